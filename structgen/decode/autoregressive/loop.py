"""The autoregressive loop: ``Generation`` writes one output; ``Autoregressive`` holds the settings that only it has.

Each turn of ``Generation._run`` takes the forced tokens (``allowed``).  If there are none, one forward pass returns the
logits, and the sampler chooses an allowed token (``choice``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.autoregressive.allowed import Allowed, ForbiddenTokens, ForcedSteps
from structgen.decode.autoregressive.choice import ScoredPasses, TokenChoice
from structgen.decode.autoregressive.output import Chunk, Costs, Healing, Output, Writer
from structgen.decode.potentials import Potential
from structgen.decode.potentials.potential import Score
from structgen.decode.speculative.speculation import AnyDrafter
from structgen.decode.step.logits_row import on_host
from structgen.decode.step.result import Result, Stats, Step
from structgen.decode.step.sampler import Sampler, check_tempering
from structgen.engine import Constraint
from structgen.errors import GenerationError, LimitExceeded
from structgen.log import log_cut

if TYPE_CHECKING:
    from structgen.decode.speculative.speculation import Speculation, SpeculationRounds
    from structgen.decode.step.context import Context
    from structgen.engine import Matcher, Vocabulary
    from structgen.models.protocol import Logits

__all__ = ["AnyPotential", "Autoregressive", "Chunk", "Generation"]

AnyPotential: TypeAlias = Potential | Constraint | Score
"""A weight of outputs: a potential, a second constraint, or a function of the text."""


@final
@dataclass(frozen=True, slots=True)
class Autoregressive:
    """How an autoregressive model writes an output; ``Unmasking`` is its counterpart for diffusion models.

    Attributes:
        drafter: proposes draft tokens, which the model verifies in one forward pass: a drafter, or a ``Speculation``
            with all its settings; None drafts nothing.  ``"auto"`` combines drafters that cost next to nothing, and
            drafts only if that is expected to save time.  With the same seed the output is the same with every
            drafter.  Drafters that sample draft tokens are the exception: they keep only the output's
            distribution.
        jump_forward: take forced tokens without forward passes of their own; the output is the same either way.
        score_ending: spend a forward pass on forced steps at the end of the output, so that ``log_z`` covers them.
        potentials: further conditions on the output: potentials, constraints, or functions of its text.  Samplers of
            tokens block tokens that they forbid, and backtrack if nothing is left; scores need a sampler of whole
            outputs.
        heal: the last token of the prompt may be rewritten: see ``generate``.
        canonical: write only token sequences that the tokenizer itself writes for the text of the output; exact for
            most tokenizers of byte pairs (BPE), others are refused.
    """

    drafter: AnyDrafter = "auto"
    jump_forward: bool = True
    score_ending: bool = False
    potentials: Sequence[AnyPotential] = ()
    heal: bool = False
    canonical: bool = False


@final
class Generation:
    """An iterator over the chunks of one output; ``result()`` returns the output once it is exhausted.

    Tokens are added to the context as they are taken, and stay there.

    Args:
        context: the prompt, at least one token, and the model.
        constraint: compiled for the model's vocabulary.
        max_tokens: maximum number of tokens, EOS not counted; at least ``constraint.min_tokens()``.
        sampler: chooses tokens.
        writer: writes the rest of the output at once, in place of the sampler; it has drafts of its own.
        seed: seed of the sampler's random numbers.
        jump_forward: see ``Autoregressive``.
        score_ending: see ``Autoregressive``; without ``jump_forward`` all forced steps are scored.
        alternatives: how many other tokens each step records.
        potentials: tokens that they forbid are blocked.
        speculation: how to draft tokens; None drafts nothing.  Without ``jump_forward`` nothing is drafted, since even
            forced tokens are run one by one.
        healing: what the tokens have before the output, which the constraint begins with.
    """

    def __init__(  # noqa: PLR0913  of generate
        self,
        context: Context,
        constraint: Constraint,
        *,
        max_tokens: int,
        sampler: Sampler,
        writer: Writer | None = None,
        seed: int,
        jump_forward: bool = True,
        score_ending: bool = False,
        alternatives: int = 0,
        potentials: Sequence[Potential] = (),
        speculation: Speculation | None = None,
        healing: Healing | None = None,
    ) -> None:
        context.prepare()
        if constraint.has_temperatures and writer is None:
            check_tempering(sampler)
        self._output = Output(context, constraint, max_tokens, healing)
        self._costs = Costs(context)
        self._potentials = tuple(potentials)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._score_ending = score_ending or not jump_forward
        self._planned: deque[Step] = deque()  # steps to take next
        self._writer = writer
        self._drafts: SpeculationRounds | None = None
        # Drafts are verified with one sampler for all positions, so a grammar with temperatures has none.
        if speculation is not None and jump_forward and writer is None and not constraint.has_temperatures:
            from structgen.decode.speculative.speculation import SpeculationRounds  # not needed without drafts

            self._drafts = SpeculationRounds(speculation, context, constraint, sampler, seed)
        self._allowed = Allowed(self._output, self._potentials)
        self._forced = ForcedSteps(self._output, self._allowed)
        self._choice = TokenChoice(
            self._output, self._allowed, sampler, self._generator, drafts=self._drafts, alternatives=alternatives
        )
        self._passes = ScoredPasses(self._output, self._allowed, self._drafts, self._costs, jump_forward=jump_forward)
        self._chunks = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        """The next chunk.

        Raises:
            LimitExceeded: a bound of the constraint's limits was reached; the error has the output so far, which is not
                complete, and the generation is over.
            GenerationError: as ``generate``.
        """
        try:
            return next(self._chunks)
        except LimitExceeded as error:
            error.ended(self.data, self.tokens)
            raise

    @property
    def context(self) -> Context:
        """The prompt, followed by the tokens of the output."""
        return self._output.context

    @property
    def data(self) -> bytes:
        """The output so far."""
        return self._output.data

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens of the output so far."""
        return tuple(self._output.tokens)

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the constraint."""
        return self._output.vocabulary

    @property
    def matcher(self) -> Matcher:
        """The matcher after the tokens so far.  Fork it to look ahead; the generation advances it."""
        return self._output.matcher

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps so far; those after the last choice have no ``log_z`` yet."""
        return tuple(self._output.steps)

    @property
    def stats(self) -> Stats:
        """The statistics of the output so far."""
        drafts = None if self._drafts is None else self._drafts.counts.stats()
        if self._writer is not None:
            drafts = self._writer.drafts
        return self._costs.stats(self._output.steps, drafts)

    @property
    def remaining(self) -> int:
        """How many tokens are left of the budget."""
        return self._output.remaining

    @property
    def alternatives(self) -> int:
        """How many other tokens each step records."""
        return self._choice.alternatives

    def draw(self, log_p: NDArray[np.float64]) -> int:
        """Let the sampler choose an index into normalised log-probabilities."""
        return self._choice.draw(log_p)

    def logits(self) -> Logits:
        """Run the pending tokens through the model, and return the logits of the next token.

        A caller that adds no token then must call ``context.prepare()``, so that the next pass has a token to run.
        """
        last = on_host(self._passes.next_row())
        unseen = self.context.unseen
        if unseen:  # a look-ahead had the logits, but the session no longer holds the tokens
            return self.context.session.extend(unseen)
        return last

    @property
    def cut_byte(self) -> int | None:
        """The first byte so far at which the budget excluded a token: see ``Result.cut_byte``."""
        cut = self._output.cut_at()
        return None if cut is None else len(self._output.bytes_of(0, cut))

    def blocked_after(self, tokens: tuple[int, ...]) -> Set[int]:
        """The tokens that are blocked after the output and ``tokens``: see ``reject`` and ``block``."""
        return self._allowed.blocked_after(tokens)

    def restrict(self, mask: NDArray[np.int32], ahead: tuple[int, ...]) -> None:
        """Remove from a mask after the output and ``ahead`` what potentials forbid by a mask of their own, not EOS."""
        self._allowed.restrict(mask, ahead)

    def admits(self, ahead: tuple[int, ...], token: int | None) -> bool:
        """Whether the potentials allow a token, None for EOS, after the output and ``ahead``."""
        return self._allowed.admits_ahead(ahead, token)

    def blocked_at(self, length: int) -> Set[int]:
        """The tokens that are blocked after the first ``length`` tokens of the output."""
        return self._allowed.blocked.get(tuple(self._output.tokens[:length]), frozenset())

    @property
    def is_complete(self) -> bool:
        """Whether the output has ended; ``reject`` and ``rewind`` open it again."""
        return self._output.finish_reason is not None

    def block(self, tokens: Iterable[int]) -> None:
        """Block ``tokens`` as the next token; if nothing else is left, backtrack as after ``reject``."""
        self.context.prepare()
        self._allowed.block(tokens)

    def rewind(self, length: int) -> None:
        """Remove all tokens from position ``length`` of the output on, and all planned steps."""
        is_finished = self._output.finish_reason is not None
        self._planned.clear()
        self._output.truncate(length)
        if is_finished:
            self._costs.ended = None
            self._chunks = self._run()

    def take_back(self, chunk: Chunk, keep: int) -> Chunk:
        """Remove the tokens of ``chunk``, the last one, except its first ``keep``; return a chunk of these."""
        retained = self._output.prefix(chunk, keep)
        self.rewind(chunk.start + keep)
        return retained

    def plan(self, steps: Iterable[Step], *, forwards: int, time_model_s: float) -> None:
        """Take steps that a search chose, one a turn, before anything else; ``rewind`` discards them.

        Args:
            steps: scored steps; the last may be EOS.
            forwards: forward passes of the search, those of the context not counted.
            time_model_s: seconds of the search in the model.
        """
        self._planned.extend(steps)
        self._costs.searches += forwards
        self._costs.model_s += time_model_s

    def reject(self, length: int, *, keep: int, also: Iterable[int] = ()) -> None:
        """Rewind to the first ``keep`` tokens, and never again write the first ``length`` tokens.

        For text that is wrong although the grammar allows it.  The last of the ``length`` tokens is blocked at its
        position from now on; if nothing else is left there, the token before it is blocked too, and so on.  If the
        output is complete and ``length`` is all of it, EOS is blocked instead: a longer output may begin with it.

        Args:
            length: a number of tokens of the output, at least ``keep``.
            keep: a number of tokens; these are never removed again, even if nothing is left to follow them.
            also: further tokens to block at the position of the last of the ``length`` tokens.

        Raises:
            ValueError: the numbers are not in that order, or the output is shorter.
            GenerationError: ``length`` equals ``keep``, and the output is not complete.
        """
        tokens, eos = self._output.tokens, self.vocabulary.eos
        if not 0 <= keep <= length <= len(tokens):
            raise ValueError(f"reject: expected 0 <= {keep} <= {length} <= {len(tokens)}")
        self._allowed.floor = keep
        if self._output.finish_reason is not None and length == len(tokens) and eos:
            self._allowed.block(eos)
        elif length == keep:
            raise self._allowed.nothing_left()
        else:
            self._allowed.block([tokens[length - 1], *also], length - 1)
        self.rewind(keep)

    def result(self) -> Result:
        """The complete output.

        Raises:
            GenerationError: the generation is not exhausted.
        """
        output = self._output
        if output.finish_reason is None or self._costs.ended is None:
            raise GenerationError(
                "generation",
                "it has no result yet",
                evidence=f"it has {len(output.tokens)} tokens so far",
                remedy="iterate to its end first",
            )
        return Result(
            data=output.data,
            tokens=self.tokens,
            steps=self.steps,
            stats=self.stats,
            grammar=output.grammar,
            vocabulary=output.vocabulary,
            skipped=output.skipped,
            cut_at=output.cut_at(),
        )

    def _run(self) -> Iterator[Chunk]:
        output = self._output
        while output.finish_reason is None:
            if self._planned:
                step = self._planned.popleft()
                token = self._take(step)
                if token is not None:
                    yield output.chunk([token], forced=step.forced)
                continue
            if self._writer is not None:
                self._write(self._writer)
                continue
            began = perf_counter()
            run = self._forced.take()
            self._costs.mask_s += perf_counter() - began
            if run:
                yield output.chunk(run, forced=True)
            elif output.finish_reason is None:
                token = self._choose()
                if token is not None:
                    yield output.chunk([token], forced=False)
        if self._score_ending:
            self._passes.score_ending()
        if self._drafts is not None:
            output.mark_drafted(self._drafts.finish(output.context))
        self._costs.end()
        log_cut(output.cut_at(), len(output.tokens), len(output.tokens) + output.remaining)
        rest = output.rest()
        if rest is not None:  # a grammar over bytes may end within a character
            yield rest

    def _choose(self) -> int | None:
        """Let the model and the sampler choose an allowed token; None for EOS, or if nothing is left."""
        step = self._choice.step(self._passes.next_row(self._choice))
        if step is None:
            self.context.prepare()
            return None
        return self._take(step)

    def _take(self, step: Step) -> int | None:
        """Add a scored step to the output; return its token, None for EOS."""
        began = perf_counter()
        token = self._output.take(step)
        self._costs.mask_s += perf_counter() - began
        return token

    def _write(self, writer: Writer) -> None:
        """Plan the steps that a sampler of whole outputs writes; or end the output if it is complete."""
        if writer.is_complete(self.tokens):
            self._forced.end()
            return
        potentials = [*self._potentials, ForbiddenTokens(self._allowed.blocked)]
        written = writer.write(self.tokens, potentials, self._generator)
        self.plan(written.steps, forwards=written.stats.forwards, time_model_s=written.stats.time_model_s)
