"""What a generation returns: the output with its steps, and what it and its drafts cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, final

from structgen.decode.parse.captures import captures_of_tokens, value_of

if TYPE_CHECKING:
    from structgen.decode.diffusion.commit_policy import Filling
    from structgen.engine import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["DraftStats", "FinishReason", "Result", "SourceStats", "Stats", "Step"]


@final
@dataclass(frozen=True, slots=True)
class SourceStats:
    """What one drafter brought.

    Attributes:
        drafted: tokens of it that were run.
        accepted: those of them that were taken.
    """

    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Share of the tokens that were taken; 0 where there were none."""
        return self.accepted / self.drafted if self.drafted else 0.0


@final
@dataclass(frozen=True, slots=True)
class DraftStats:
    """What drafts brought to one output.

    Attributes:
        passes: forward passes that looked ahead.
        lengths: how often a pass that looked ahead was followed by how many tokens from its tree, forced ones included.
        sources: by drafter; tokens that the grammar forces are nobody's.
        saved_forwards: choices for which the distribution was known from a look ahead.
        saved_s: estimated seconds saved: those of the passes that were not needed, less what drafting and the wider
            passes cost; negative where drafting did not pay.
        time_draft_s: seconds spent on proposing, cutting and learning.
    """

    passes: int = 0
    lengths: Mapping[int, int] = field(default_factory=dict)
    sources: Mapping[str, SourceStats] = field(default_factory=dict)
    saved_forwards: int = 0
    saved_s: float = 0.0
    time_draft_s: float = 0.0

    @classmethod
    def total(cls, parts: Iterable[DraftStats]) -> Self:
        """The sums over several outputs."""
        parts = list(parts)
        lengths: Counter[int] = Counter()
        drafted: Counter[str] = Counter()
        accepted: Counter[str] = Counter()
        for part in parts:
            lengths.update(part.lengths)
            drafted.update({name: each.drafted for name, each in part.sources.items()})
            accepted.update({name: each.accepted for name, each in part.sources.items()})
        return cls(
            passes=sum(part.passes for part in parts),
            lengths=dict(sorted(lengths.items())),
            sources={name: SourceStats(drafted[name], accepted[name]) for name in sorted(drafted)},
            saved_forwards=sum(part.saved_forwards for part in parts),
            saved_s=sum(part.saved_s for part in parts),
            time_draft_s=sum(part.time_draft_s for part in parts),
        )

    @property
    def drafted(self) -> int:
        """Tokens of drafters that were run."""
        return sum(each.drafted for each in self.sources.values())

    @property
    def accepted(self) -> int:
        """Tokens of drafters that were taken."""
        return sum(each.accepted for each in self.sources.values())

    @property
    def mean_length(self) -> float:
        """Mean number of tokens taken from a tree; 0 where nothing was looked at."""
        count = sum(self.lengths.values())
        return sum(length * times for length, times in self.lengths.items()) / count if count else 0.0


FinishReason: TypeAlias = Literal["stop", "length"]
"""``"stop"``: the model ended the output, or the grammar allows nothing more.  ``"length"``: the budget is spent,
and the output is complete there."""


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One token of the output, or the stop at its end.

    Attributes:
        token: its id; None for the stop.
        forced: the grammar left no choice.
        logprob: its log-probability in the projection: what the mask allows, renormalised; 0 if it was forced.
        log_z: log of the probability that the model gives to what the mask allows (of a forced token: to this token);
            None where no forward pass was spent on it.
        alternatives: the most probable other tokens that the mask allowed, with their log-probabilities in the
            projection; as many as were asked for.
    """

    token: int | None
    forced: bool
    logprob: float
    log_z: float | None
    alternatives: tuple[tuple[int, float], ...] = ()


@final
@dataclass(frozen=True, slots=True)
class Stats:
    """What a generation cost.

    Attributes:
        prompt_tokens: tokens of the prompt.
        tokens: tokens of the output, EOS not counted.
        forced: those of them for which the grammar left no choice.
        sampled: the others.
        drafted: tokens that a drafter proposed.
        accepted: drafted tokens that were kept.
        forwards: forward passes of the model, the one over the prompt included.
        time_mask_s: seconds in the matcher: masks, forced tokens, state.
        time_model_s: seconds in the model.
        time_other_s: all other seconds: sampling, scores, drafts, callbacks.
        drafts: what drafters brought; None where there were none.
    """

    prompt_tokens: int
    tokens: int
    forced: int
    sampled: int
    drafted: int
    accepted: int
    forwards: int
    time_mask_s: float
    time_model_s: float
    time_other_s: float
    drafts: DraftStats | None = None

    @classmethod
    def total(cls, parts: Sequence[Stats]) -> Self:
        """The sums over several outputs."""
        summed = {
            each.name: sum(getattr(part, each.name) for part in parts) for each in fields(cls) if each.name != "drafts"
        }
        drafts = [part.drafts for part in parts if part.drafts is not None]
        return cls(**summed, drafts=DraftStats.total(drafts) if drafts else None)

    def as_dict(self) -> dict[str, Any]:
        """All of it as dictionaries of plain values, which JSON can hold."""
        return asdict(self)

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of the output for each forward pass; infinite where all of them were forced and no pass was needed."""
        return self.tokens / self.forwards if self.forwards else math.inf


@final
@dataclass(frozen=True)
class Result:
    """A complete output.

    ``logprob + log_z`` is the log-probability that the unconstrained model (temperature 1) gives to the scored steps:
    to the whole output and its stop where ``unscored`` is 0.

    Attributes:
        data: the output as bytes, special tokens left out.
        tokens: the token ids, EOS left out.
        steps: one for each token, and one for the stop where it was taken.
        stats: counts and times.
        finish_reason: why it ended.
        grammar: what it is a member of.
        vocabulary: what its tokens belong to.
        canvas: how its canvas was filled, where a diffusion model wrote it.
    """

    data: bytes
    tokens: tuple[int, ...]
    steps: tuple[Step, ...] = field(repr=False)
    stats: Stats
    finish_reason: FinishReason
    grammar: Grammar = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)
    canvas: Filling | None = field(default=None, repr=False)

    @cached_property
    def text(self) -> str:
        """The output as text.  Bytes that are not UTF-8, which only a grammar over bytes allows, become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def spelled(self) -> str:
        """The output as text, with special tokens written as their texts, as ``read_reply`` takes it."""
        special, tokens = self.vocabulary.special, self.vocabulary.tokens
        return b"".join(special[token].encode() if token in special else tokens[token] for token in self.tokens).decode(
            "utf-8", "replace"
        )

    @cached_property
    def value(self) -> Any:
        """The output as a Python value: see ``structgen.decode.parse.captures.value_of``."""
        return value_of(self.grammar, self.data)

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of the named parts of the grammar: see ``structgen.decode.parse.captures.find_captures``."""
        return captures_of_tokens(self.grammar, self.tokens, self.vocabulary)

    @property
    def logprob(self) -> float:
        """Log-probability of the output under the projection, step by step."""
        return sum(step.logprob for step in self.steps)

    @property
    def log_z(self) -> float:
        """Sum of ``log_z`` over the steps that a forward pass was spent on."""
        return sum(step.log_z for step in self.steps if step.log_z is not None)

    @property
    def unscored(self) -> int:
        """Steps without ``log_z``: forced ones at the end, after the last forward pass."""
        return sum(step.log_z is None for step in self.steps)

    def __str__(self) -> str:
        return self.text
