"""One output while it is written: its tokens and steps, its complete characters, its costs; and token healing."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Protocol, final

from structgen.decode.step.result import BudgetWatch, FinishReason, Seconds, Stats, Step
from structgen.engine import Constraint, compile
from structgen.errors import GenerationError
from structgen.grammar import nodes as ir

if TYPE_CHECKING:
    from numpy.random import Generator

    from structgen.decode.potentials import Potential
    from structgen.decode.step.context import Context
    from structgen.decode.step.result import DraftStats, Result

__all__ = ["Chunk", "Costs", "Healing", "Output", "Writer", "heal"]


class Writer(Protocol):
    """Writes the rest of an output at once: the loop's view of a sampler of whole outputs."""

    @property
    def drafts(self) -> DraftStats | None:
        """Counts and times of all draft tokens; None without drafts."""

    def is_complete(self, tokens: tuple[int, ...]) -> bool:
        """Whether ``tokens`` were written as an output that ends without EOS."""

    def write(self, tokens: tuple[int, ...], potentials: Sequence[Potential], generator: Generator) -> Result:
        """Write an output that begins with ``tokens``; the result has only the steps after them."""


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """A streamed piece of the output: what one turn of the loop adds.

    Attributes:
        text: the characters that became complete; all texts joined are the text of the result.
        tokens: the tokens; several only if they were forced.
        forced: the grammar left no choice.
        start: how many tokens of the output come before it: fewer than were streamed if some were removed.
        is_cut: some of its tokens come at or after the first position at which the budget excluded a token: see
            ``Result.cut_at``.
    """

    text: str
    tokens: tuple[int, ...]
    forced: bool
    start: int = 0
    is_cut: bool = False


@final
class Costs:
    """The forward passes and the time of one output, counted from now on.

    Attributes:
        mask_s: seconds in the matcher.
        model_s: seconds in the model.
        searches: forward passes besides those of the context.
        ended: time at which the output was complete; None before.

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
        """Note that the output is complete; if tokens are removed again, the loop resets ``ended``."""
        self.ended = perf_counter()

    def stats(self, steps: Sequence[Step], drafts: DraftStats | None) -> Stats:
        """The statistics of an output with these steps and drafts, up to its end or up to now."""
        ended = perf_counter() if self.ended is None else self.ended
        return Stats.of_steps(
            steps,
            drafts,
            prompt_tokens=self._prompt_tokens,
            tokens=sum(step.token is not None for step in steps),
            forwards=self._context.forwards - self._forwards_before + self.searches,
            seconds=Seconds(self.mask_s, self.model_s, ended - self._began),
        )


@final
@dataclass(frozen=True, slots=True)
class Healing:
    """Token healing: the bytes at the end of the prompt that the tokens of the output repeat.

    Attributes:
        prefix: the bytes of the prompt's last token.
        grammar: the grammar of the output after them.
    """

    prefix: bytes
    grammar: ir.Grammar


@final
class Output:
    """One output: its tokens and steps, with matcher and context at the same position.

    Attributes:
        context: the prompt, and after it the tokens.
        constraint: the constraint.
        grammar: the grammar of ``data``.
        vocabulary: its vocabulary.
        matcher: the matcher after the tokens.
        tokens: the token ids, EOS left out, at most ``max_tokens``; read only.
        steps: one for each token, and one for EOS if it was taken; read only.
        scored: how many steps at the start have a ``log_z``.
        finish_reason: why the output ended; None before.
        skipped: how many bytes of the tokens come before the output: those of a healed prompt.
    """

    def __init__(
        self, context: Context, constraint: Constraint, max_tokens: int, healing: Healing | None = None
    ) -> None:
        self.context = context
        self.constraint = constraint
        self.vocabulary = constraint.vocabulary
        self.matcher = constraint.matcher()
        self.tokens: list[int] = []
        self.steps: list[Step] = []
        self.scored = 0
        self.finish_reason: FinishReason | None = None
        self.skipped = 0 if healing is None else len(healing.prefix)
        self.grammar = constraint.grammar if healing is None else healing.grammar
        self._max_tokens = max_tokens
        self._watch: BudgetWatch | None = None
        self._decoder = _decoder()

    @property
    def data(self) -> bytes:
        """The output as bytes, special tokens left out."""
        return self.bytes_of(0, len(self.tokens))

    def bytes_of(self, start: int, end: int) -> bytes:
        """The bytes of ``data`` that the tokens from ``start`` to ``end`` spell."""
        data = self.vocabulary.decode(self.tokens[start:end])
        if start >= self.skipped:  # each of the first tokens has a byte at least
            return data
        return data[max(self.skipped - len(self.vocabulary.decode(self.tokens[:start])), 0) :]

    @property
    def remaining(self) -> int:
        """How many tokens are left of the budget."""
        return self._max_tokens - len(self.tokens)

    @property
    def unscored(self) -> list[int]:
        """The forced tokens at the end that no forward pass has scored."""
        return self.tokens[self.scored :]

    @property
    def has_unscored_stop(self) -> bool:
        """Whether the output ends with a forced EOS without score."""
        return bool(self.steps) and self.steps[-1].token is None and self.steps[-1].log_z is None

    def cut_at(self) -> int | None:
        """The first position so far at which the budget excluded a token: see ``BudgetWatch.cut_at``."""
        if self._watch is None:
            self._watch = BudgetWatch(self.constraint, self._max_tokens)
        return self._watch.cut_at(self.tokens, is_complete=self.finish_reason is not None)

    def take(self, step: Step) -> int | None:
        """Add a scored step, all steps before it being scored; return its token, None for EOS.

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
        """Add a forced token that the matcher has accepted; a later forward pass scores it."""
        self.tokens.append(token)
        self.context.append([token])
        self.steps.append(_forced_step(token, None))

    def score(self, log_z: Iterable[float]) -> None:
        """Give the ``unscored`` tokens their log-probabilities under the model."""
        self.steps[self.scored : len(self.tokens)] = [
            _forced_step(token, each) for token, each in zip(self.unscored, log_z, strict=True)
        ]
        self.scored = len(self.tokens)

    def score_stop(self, log_z: float) -> None:
        """Give the forced EOS its log-probability under the model."""
        self.steps[-1] = _forced_step(None, log_z)

    def mark_drafted(self, positions: Iterable[int]) -> None:
        """Note which tokens had been run as draft tokens; forced ones are only forced."""
        for position in positions:
            step = self.steps[position]
            if not step.forced:
                self.steps[position] = replace(step, drafted=True)

    def end(self, reason: FinishReason) -> None:
        """Complete the output without the model; EOS is forced then."""
        self.finish_reason = reason
        if reason == "stop" and self.vocabulary.eos:
            self.steps.append(_forced_step(None, None))

    def truncate(self, length: int) -> None:
        """Remove all tokens from position ``length`` on, and the end."""
        count = len(self.tokens) - length
        self.matcher.rollback(count)
        self.context.truncate(len(self.context) - count)
        if self._watch is not None:
            self._watch.truncate(length)
        del self.tokens[length:]
        del self.steps[length:]
        self.scored = min(self.scored, length)
        self._decoder.reset()
        self._decoder.decode(self.data)
        self.finish_reason = None

    def chunk(self, tokens: list[int], *, forced: bool) -> Chunk:
        """Return the chunk of the last ``tokens``; to be called once for each token."""
        text = self._decoder.decode(self.bytes_of(len(self.tokens) - len(tokens), len(self.tokens)))
        cut = self.cut_at()
        return Chunk(
            text,
            tuple(tokens),
            forced,
            start=len(self.tokens) - len(tokens),
            is_cut=cut is not None and cut < len(self.tokens),
        )

    def rest(self) -> Chunk | None:
        """Return an incomplete character at the end of a complete output; None if there is none."""
        text = self._decoder.decode(b"", final=True)
        if not text:
            return None
        return Chunk(text, (), forced=False, start=len(self.tokens), is_cut=self.cut_at() is not None)

    def prefix(self, chunk: Chunk, count: int) -> Chunk:
        """Return ``chunk`` with its first ``count`` tokens only; the tokens before it are still in the output."""
        decoder = _decoder()
        decoder.decode(self.bytes_of(0, chunk.start))
        tokens = chunk.tokens[:count]
        cut = self.cut_at()
        is_cut = cut is not None and cut < chunk.start + count
        text = decoder.decode(self.bytes_of(chunk.start, chunk.start + count))
        return Chunk(text, tokens, chunk.forced, chunk.start, is_cut)


def heal(prompt: Sequence[int], constraint: Constraint) -> tuple[list[int], Constraint, Healing | None]:
    """Take the last token off a prompt, and put its bytes before the strings of a constraint: token healing.

    A prompt that ends within a word of the tokenizer ends with tokens that the model never saw in that place: after the
    tokens of ``"http:"`` it has seen ``"//"`` only as ``"://"``, one token.  So the last token is taken off the prompt,
    and the output must begin with its bytes.  Source: S. Lundberg, "The Art of Prompt Design: Prompt Boundaries and
    Token Healing" (2023), in the library guidance.

    A special token has no bytes, and no other token can span it: then nothing changes, and there is no ``Healing``.

    Raises:
        ValueError: the prompt is that token alone, so that the model would have nothing to go by.
        LimitExceeded: a bound of the constraint's limits was reached.

    Complexity: a compilation of the grammar, most of whose terms the engine has already.
    """
    vocabulary = constraint.vocabulary
    prefix = vocabulary.tokens[prompt[-1]] if len(prompt) and 0 <= prompt[-1] < vocabulary.size else b""
    if not prefix:
        return list(prompt), constraint, None
    if len(prompt) == 1:
        raise ValueError(
            f"heal=True: the prompt is one token, {prefix!r}, so no token would be left before the output; pass a "
            "longer prompt, or leave heal out"
        )
    grammar = constraint.grammar
    together = compile(ir.Sequence([ir.Literal(prefix), grammar]), vocabulary, limits=constraint.limits)
    return list(prompt[:-1]), together, Healing(prefix, grammar)


def _forced_step(token: int | None, log_z: float | None) -> Step:
    return Step(token, forced=True, logprob=0.0, log_z=log_z)


def _decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
