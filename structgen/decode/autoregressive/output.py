"""One output while it is written: its tokens and steps, the characters that are complete, and what it has cost."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, final

from structgen.decode.step.result import FinishReason, Stats, Step
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from numpy.random import Generator

    from structgen.decode.potentials import Potential
    from structgen.decode.step.context import Context
    from structgen.decode.step.result import DraftStats, Result
    from structgen.engine import Constraint

__all__ = ["Chunk", "Costs", "Output", "Writer"]


class Writer(Protocol):
    """Writes all that is missing of an output at once: the loop's view of a sampler of whole outputs."""

    @property
    def drafts(self) -> DraftStats | None:
        """The draft tokens of all that was written; None where there are none."""

    def is_complete(self, tokens: tuple[int, ...]) -> bool:
        """Whether ``tokens`` were written as an output that ends without EOS."""

    def write(self, tokens: tuple[int, ...], potentials: Sequence[Potential], generator: Generator) -> Result:
        """Write an output that begins with ``tokens``; only the steps after them are in it."""


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """What one turn of the loop adds to the output.

    Attributes:
        text: the characters that are complete now; all texts joined are the text of the result.
        tokens: the tokens; a run of several was forced.
        forced: the grammar left no choice.
        start: how many tokens of the output stand before it: fewer than were told where some were taken back.
    """

    text: str
    tokens: tuple[int, ...]
    forced: bool
    start: int = 0


@final
class Costs:
    """The passes and the time of one output, counted from now on.

    Attributes:
        mask_s: seconds in the matcher.
        model_s: seconds in the model.
        searches: forward passes beside those of the context.
        ended: when the output was finished; None while it goes on.

    Args:
        context: the prompt, whose forward passes are counted.
    """

    def __init__(self, context: Context) -> None:
        self.mask_s = 0.0
        self.model_s = 0.0
        self.searches = 0
        self.ended: float | None = None
        self._began = perf_counter()
        self._context = context
        self._forwards_before = context.forwards
        self._prompt_tokens = len(context)

    def end(self) -> None:
        """The output is finished; it may still be taken back and go on, and ``ended`` is None again."""
        self.ended = perf_counter()

    def stats(self, steps: Sequence[Step], drafts: DraftStats | None) -> Stats:
        """What it comes to, up to the end or up to now.

        Args:
            steps: of the output.
            drafts: what drafters brought; None where there were none.
        """
        tokens = [step for step in steps if step.token is not None]
        forced = sum(step.forced for step in tokens)
        seconds = (perf_counter() if self.ended is None else self.ended) - self._began
        return Stats(
            prompt_tokens=self._prompt_tokens,
            tokens=len(tokens),
            forced=forced,
            sampled=len(tokens) - forced,
            drafted=0 if drafts is None else drafts.drafted,
            accepted=0 if drafts is None else drafts.accepted,
            forwards=self._context.forwards - self._forwards_before + self.searches,
            time_mask_s=self.mask_s,
            time_model_s=self.model_s,
            time_other_s=max(seconds - self.model_s - self.mask_s, 0.0),
            drafts=drafts,
        )


@final
class Output:
    """What stands of one output.

    Matcher and context move with its tokens, so that the three always stand at the same place.

    Attributes:
        context: the prompt, and after it the tokens.
        constraint: what the output is a member of.
        vocabulary: what its tokens belong to.
        matcher: where it stands in the grammar.
        tokens: the token ids, EOS left out; to be read only.
        steps: one for each token, and one for the stop where it was taken; to be read only.
        scored: how many tokens at the start have a step with its ``log_z``.
        finish_reason: why it ended; None while it goes on.

    Args:
        context: the prompt.
        constraint: see above.
        max_tokens: tokens that it may have.
    """

    def __init__(self, context: Context, constraint: Constraint, max_tokens: int) -> None:
        self.context = context
        self.constraint = constraint
        self.vocabulary = constraint.vocabulary
        self.matcher = constraint.matcher()
        self.tokens: list[int] = []
        self.steps: list[Step] = []
        self.scored = 0
        self.finish_reason: FinishReason | None = None
        self._max_tokens = max_tokens
        self._decoder = _decoder()

    @property
    def data(self) -> bytes:
        """The output as bytes, special tokens left out."""
        return self.vocabulary.decode(self.tokens)

    @property
    def remaining(self) -> int:
        """Tokens that are left of the budget."""
        return self._max_tokens - len(self.tokens)

    @property
    def unscored(self) -> list[int]:
        """The forced tokens at the end that no forward pass has scored yet."""
        return self.tokens[self.scored :]

    @property
    def has_unscored_stop(self) -> bool:
        """Whether it ends with a stop that was forced and has no score."""
        return bool(self.steps) and self.steps[-1].token is None and self.steps[-1].log_z is None

    def take(self, step: Step) -> int | None:
        """Add a step that was chosen and has its scores, as all before it have; return its token, None for the stop.

        Raises:
            GenerationError: the matcher refuses the token.
        """
        token = step.token
        if token is None:
            self.steps.append(step)
            self.finish_reason = "stop"
            return None
        if not self.matcher.accept(token):
            raise GenerationError("matcher", f"it refuses token {token}, which its own mask allows")
        self.tokens.append(token)
        self.context.append([token])
        self.steps.append(step)
        self.scored = len(self.steps)
        return token

    def add_forced(self, token: int) -> None:
        """Add a forced token, which the matcher has accepted; a later forward pass scores it."""
        self.tokens.append(token)
        self.context.append([token])
        self.steps.append(Step(token, True, 0.0, None))

    def score(self, log_z: Iterable[float]) -> None:
        """Give the ``unscored`` tokens the log-probabilities that the model gives to them."""
        self.steps[self.scored : len(self.tokens)] = [
            Step(token, True, 0.0, each) for token, each in zip(self.unscored, log_z, strict=True)
        ]
        self.scored = len(self.tokens)

    def score_stop(self, log_z: float) -> None:
        """Give the forced stop the log-probability that the model gives to it."""
        self.steps[-1] = Step(None, True, 0.0, log_z)

    def end(self, reason: FinishReason) -> None:
        """Finish where the model is not asked; a stop is forced then."""
        self.finish_reason = reason
        if reason == "stop" and self.vocabulary.eos:
            self.steps.append(Step(None, True, 0.0, None))

    def truncate(self, length: int) -> None:
        """Take back all tokens from position ``length`` on, and the end."""
        count = len(self.tokens) - length
        self.matcher.rollback(count)
        self.context.truncate(len(self.context) - count)
        del self.tokens[length:]
        del self.steps[length:]
        self.scored = min(self.scored, length)
        self._decoder.reset()
        self._decoder.decode(self.data)
        self.finish_reason = None

    def chunk(self, tokens: list[int], *, forced: bool) -> Chunk:
        """What the last tokens add to the text; to be asked once for each."""
        text = self._decoder.decode(self.vocabulary.decode(tokens))
        return Chunk(text, tuple(tokens), forced, len(self.tokens) - len(tokens))

    def rest(self) -> Chunk | None:
        """What is left of the text once the output is finished; None where its characters are complete."""
        text = self._decoder.decode(b"", final=True)
        return Chunk(text, (), False, len(self.tokens)) if text else None

    def prefix(self, chunk: Chunk, count: int) -> Chunk:
        """What ``chunk`` would be with its first ``count`` tokens only; the tokens before it still stand."""
        decoder = _decoder()
        decoder.decode(self.vocabulary.decode(self.tokens[: chunk.start]))
        kept = chunk.tokens[:count]
        return Chunk(decoder.decode(self.vocabulary.decode(kept)), kept, chunk.forced, chunk.start)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
