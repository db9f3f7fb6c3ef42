"""The result of a generation: the output, its steps, and the statistics of passes, times and draft tokens.

``BudgetWatch`` finds where the budget decided the output (``Result.cut_at``).
"""

from __future__ import annotations

import codecs
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, final

import numpy as np

from structgen.engine.mask import contains, empty_masks, without
from structgen.engine.parse.captures import captures_of_tokens, value_of
from structgen.errors import LimitExceeded
from structgen.markup import Kind, Piece, card, pieces, shortened, table

if TYPE_CHECKING:
    from structgen.decode.diffusion.commit_policy import Filling
    from structgen.engine import Constraint, Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = [
    "BudgetWatch",
    "DraftStats",
    "FinishReason",
    "Result",
    "Seconds",
    "SourceStats",
    "Stats",
    "Step",
    "result_pieces",
]


@final
@dataclass(frozen=True, slots=True)
class SourceStats:
    """The draft tokens of one drafter.

    Attributes:
        drafted: how many were run.
        accepted: how many of these are in the output.
    """

    drafted: int
    accepted: int

    @property
    def rate(self) -> float:
        """Acceptance rate; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0


@final
@dataclass(frozen=True, slots=True)
class DraftStats:
    """The statistics of the draft tokens of one output.

    Attributes:
        passes: forward passes that ran draft tokens.
        lengths: by number of tokens, how many of these passes had this many tokens of their tree accepted, forced
            tokens included.
        sources: statistics by drafter; forced tokens belong to no drafter.
        saved_forwards: choices whose logits an earlier pass had computed.
        saved_s: estimated seconds saved: those of the passes that were not needed, less the cost of drafting and of
            wider passes; negative if drafting was slower.
        time_draft_s: seconds spent on proposing, pruning and learning.
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
        """Draft tokens that were run."""
        return sum(each.drafted for each in self.sources.values())

    @property
    def accepted(self) -> int:
        """Draft tokens that are in the output."""
        return sum(each.accepted for each in self.sources.values())

    @property
    def mean_length(self) -> float:
        """Mean number of tokens accepted from a tree; 0 without trees."""
        count = sum(self.lengths.values())
        return sum(length * times for length, times in self.lengths.items()) / count if count else 0.0


FinishReason: TypeAlias = Literal["stop", "length"]
"""``"length"``: the budget excluded something that the grammar allows, so the output may be shorter than the model
would have written it, or other than that; it is complete and valid all the same.  ``"stop"``: the budget excluded
nothing."""


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One token of the output, or EOS at its end.

    Attributes:
        token: the token id; None for EOS.
        forced: the grammar left no choice.
        logprob: log-probability of the token, renormalised over the allowed tokens; 0 if it was forced.
        log_z: log of the probability that the model gives to all allowed tokens (of a forced step: to its token);
            None if no forward pass scored the step.
        alternatives: the most probable other allowed tokens, with their renormalised log-probabilities.
        drafted: it was chosen, and had been run as a draft token before.  Samplers of whole outputs do not tell.
    """

    token: int | None
    forced: bool
    logprob: float
    log_z: float | None
    alternatives: tuple[tuple[int, float], ...] = ()
    drafted: bool = field(default=False, compare=False)


class Seconds(NamedTuple):
    """The time of an output: in masks, in the model, and as a whole."""

    masks: float
    model: float
    whole: float


@final
@dataclass(frozen=True, slots=True)
class Stats:
    """The statistics of a generation.

    Attributes:
        prompt_tokens: tokens of the prompt.
        tokens: tokens of the output, EOS not counted.
        forced: tokens for which the grammar left no choice.
        sampled: the other tokens.
        drafted: draft tokens that were run.
        accepted: draft tokens that are in the output.
        forwards: forward passes of the model, including those over the prompt.
        time_mask_s: seconds in the matcher: masks, forced tokens, state.
        time_model_s: seconds in the model.
        time_other_s: all other seconds: sampling, scores, drafts, callbacks.
        drafts: statistics of draft tokens; None without drafts.
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
    def of_steps(
        cls,
        steps: Sequence[Step],
        drafts: DraftStats | None,
        *,
        prompt_tokens: int,
        tokens: int,
        forwards: int,
        seconds: Seconds,
    ) -> Self:
        """The statistics of an output of ``tokens`` tokens, from its steps and drafts."""
        forced = sum(step.forced for step in steps if step.token is not None)
        return cls(
            prompt_tokens=prompt_tokens,
            tokens=tokens,
            forced=forced,
            sampled=tokens - forced,
            drafted=0 if drafts is None else drafts.drafted,
            accepted=0 if drafts is None else drafts.accepted,
            forwards=forwards,
            time_mask_s=seconds.masks,
            time_model_s=seconds.model,
            time_other_s=max(seconds.whole - seconds.model - seconds.masks, 0.0),
            drafts=drafts,
        )

    @classmethod
    def total(cls, parts: Sequence[Stats]) -> Self:
        """The sums over several outputs."""
        summed = {
            each.name: sum(getattr(part, each.name) for part in parts) for each in fields(cls) if each.name != "drafts"
        }
        drafts = [part.drafts for part in parts if part.drafts is not None]
        return cls(**summed, drafts=DraftStats.total(drafts) if drafts else None)

    def as_dict(self) -> dict[str, Any]:
        """All fields as dictionaries of plain values, for JSON."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """The main counts, in words."""
        drafts = f", {self.accepted} of {self.drafted} draft tokens accepted" if self.drafted else ""
        tokens = "1 token" if self.tokens == 1 else f"{self.tokens} tokens"
        passes = "1 forward pass" if self.forwards == 1 else f"{self.forwards} forward passes"
        return f"{tokens} ({self.forced} forced) in {passes}{drafts}"

    @property
    def tokens_per_forward(self) -> float:
        """Tokens of the output per forward pass; infinite if no pass was needed."""
        return self.tokens / self.forwards if self.forwards else math.inf


@final
@dataclass(frozen=True)
class Result:
    """A complete output.

    ``logprob + log_z`` is the log-probability of the scored steps under the unconstrained model (temperature 1): that
    of the whole output and its EOS if ``unscored`` is 0.

    Attributes:
        data: the output as bytes, special tokens left out.
        tokens: the token ids, EOS left out.
        steps: one for each token, and one for EOS if it was taken.
        stats: counts and times.
        grammar: the grammar of the output.
        vocabulary: the vocabulary of its tokens.
        canvas: how its canvas was filled, if a diffusion model wrote it.
        cut_at: the index of the first token that was chosen while the budget excluded others, the number of tokens if
            only the end was chosen so; None if the budget excluded nothing.
        skipped: how many bytes of the tokens come before ``data``: those of the prompt's last token, which was healed.
    """

    data: bytes
    tokens: tuple[int, ...]
    steps: tuple[Step, ...] = field(repr=False)
    stats: Stats
    grammar: Grammar = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)
    canvas: Filling | None = field(default=None, repr=False)
    cut_at: int | None = None
    skipped: int = 0

    @property
    def finish_reason(self) -> FinishReason:
        """Whether the budget decided anything."""
        return "stop" if self.cut_at is None else "length"

    @property
    def cut_byte(self) -> int | None:
        """The byte of ``data`` at which the token ``cut_at`` begins; None if the budget excluded nothing."""
        if self.cut_at is None:
            return None
        return max(len(self.vocabulary.decode(self.tokens[: self.cut_at])) - self.skipped, 0)

    @cached_property
    def text(self) -> str:
        """The output as text.  Bytes that are not UTF-8, which only a grammar over bytes allows, become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def spelled(self) -> str:
        """The output as text with special tokens spelled out, the form that ``read_reply`` reads."""
        return spelled_bytes(self.vocabulary, self.tokens)[self.skipped :].decode("utf-8", "replace")

    @cached_property
    def value(self) -> Any:
        """The output as a Python value: see ``structgen.engine.parse.captures.value_of``."""
        return value_of(self.grammar, self.data)

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of the named parts of the grammar: see ``structgen.engine.parse.captures.find_captures``."""
        return captures_of_tokens(self.grammar, self.tokens, self.vocabulary, self.skipped)

    @property
    def logprob(self) -> float:
        """Log-probability of the output under locally constrained decoding: the sum over the steps."""
        return sum(step.logprob for step in self.steps)

    @property
    def log_z(self) -> float:
        """Sum of ``log_z`` over the scored steps."""
        return sum(step.log_z for step in self.steps if step.log_z is not None)

    @property
    def unscored(self) -> int:
        """Number of steps without ``log_z``: forced steps at the end, after the last forward pass."""
        return sum(step.log_z is None for step in self.steps)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Result({shortened(self.text)!r}, {self.finish_reason}, {self.stats.summary})"

    def _repr_html_(self) -> str:
        facts = [("finish reason", self.finish_reason), ("cost", self.stats.summary)]
        if self.canvas is not None:
            facts.append(("canvas", self.canvas.summary))
        return card("Result", pieces(result_pieces(self)), table(facts))


def spelled_bytes(vocabulary: Vocabulary, tokens: Iterable[int]) -> bytes:
    """The bytes of tokens, special tokens by their names."""
    special, texts = vocabulary.special, vocabulary.tokens
    return b"".join(special[token].encode() if token in special else texts[token] for token in tokens)


def spelled_text(vocabulary: Vocabulary, tokens: Iterable[int]) -> str:
    """Tokens as text, special tokens by their names; bytes that are not UTF-8 become U+FFFD."""
    return spelled_bytes(vocabulary, tokens).decode("utf-8", "replace")


def result_pieces(result: Result) -> Iterator[Piece]:
    """The output for ``structgen.markup``: each token with its origin and its probability."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    special, eos, skipped = result.vocabulary.special, result.vocabulary.eos, result.skipped
    commits = () if result.canvas is None else result.canvas.commits
    commit_of = {slot: number for number, commit in enumerate(commits, 1) for slot in commit}
    for at, step in enumerate(result.steps):
        if step.token is None or step.token in eos:
            continue
        data = result.vocabulary.tokens[step.token]
        text = decoder.decode(data[skipped:])
        skipped = max(skipped - len(data), 0)
        if step.token in special:
            text += special[step.token]
        kind: Kind = "forced" if step.forced else "drafted" if step.drafted else "chosen"
        shares = "" if step.forced else f", probability {math.exp(step.logprob):.3g} of what was allowed"
        mass = "" if step.log_z is None else f", allowed {math.exp(step.log_z):.3g} of the model's distribution"
        order = f", commit {commit_of[at]} of {len(commits)}" if at in commit_of else ""
        yield Piece(
            text, kind, f"{kind}{shares}{mass}{order}", is_cut=result.cut_at is not None and at >= result.cut_at
        )
    yield Piece(decoder.decode(b"", final=True))


@final
class BudgetWatch:
    """Finds the first position of an output at which the budget excluded a token that the grammar allows.

    Such a position is *cut*: from there on the output may differ from what the model would have written with more
    tokens.  Where the text is forced, a position is cut only if the budget excludes the canonical
    spelling of the text.

    Args:
        constraint: the constraint of the output.
        max_tokens: the budget of the whole output, EOS not counted; for a canvas, its slots.
    """

    def __init__(self, constraint: Constraint, max_tokens: int) -> None:
        self._matcher = constraint.matcher()
        self._max_tokens = max_tokens
        self._rows = empty_masks(constraint.vocabulary, 2)
        self._not_eos = without(np.full_like(self._rows[0], -1), constraint.vocabulary.eos)
        self._position = 0  # that is looked at next, or that is cut
        self._is_cut = False

    def cut_at(self, tokens: Sequence[int], *, is_complete: bool) -> int | None:
        """Return the first cut position of an output, None if no position is cut.

        Args:
            tokens: the tokens so far, EOS left out: those of the last call, less what ``truncate`` removed, and more.
            is_complete: whether the output ends after ``tokens``: then the position of its end counts too.

        Complexity: one step of the matcher for each new token, and two masks for each position at which the budget may
        exclude tokens, up to the first cut.
        """
        end = len(tokens) + is_complete
        while not self._is_cut and self._position < end:
            self._is_cut = self._excludes(self._max_tokens - self._position)
            if self._is_cut or self._position == len(tokens):
                break
            try:
                self._matcher.accept(tokens[self._position])
            except LimitExceeded:  # as in ``_excludes``
                self._is_cut = True
                break
            self._position += 1
        return self._position if self._is_cut and self._position < end else None

    def truncate(self, length: int) -> None:
        """Forget all tokens from position ``length`` on."""
        if length < self._position:
            self._matcher.rollback(self._position - length)
            self._position = length
            self._is_cut = False

    def _excludes(self, remaining: int) -> bool:
        """Whether the budget excludes a token here that the grammar allows."""
        try:
            if not self._matcher.needs_budget_mask(remaining):
                return False
            forced = self._matcher.forced_tokens()
            self._matcher.fill_mask(self._rows, 0, budget=remaining)
            if forced:  # other spellings of the same text do not count
                return not contains(self._rows[0], forced[0])
            self._matcher.fill_mask(self._rows, 1)
        except LimitExceeded:  # unknown: better to report a cut too many
            return True
        return bool((self._rows[1] & ~self._rows[0] & self._not_eos).any())
