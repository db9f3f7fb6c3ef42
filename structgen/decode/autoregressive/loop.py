"""The autoregressive loop: the settings that only it has, and one generation in progress."""

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
from structgen.decode.autoregressive.output import Chunk, Costs, Output, Writer
from structgen.decode.potentials import Potential
from structgen.decode.potentials.potential import Score
from structgen.decode.speculative.speculation import AnyDrafter
from structgen.decode.step.logits_row import on_host
from structgen.decode.step.result import Result, Step
from structgen.decode.step.sampler import Sampler, check_tempering
from structgen.engine import Constraint
from structgen.errors import GenerationError

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
        drafter: what proposes draft tokens, which the model verifies in one forward pass: a drafter, or a
            ``Speculation`` with all its settings; None drafts nothing.  ``"auto"`` combines drafters that cost next to
            nothing, and drafts only where that pays.  With the same seed the output is the same with all of them, but
            for drafters that sample draft tokens from a distribution of their own: with those the distribution of the
            output is the same.
        jump_forward: take forced tokens without forward passes of their own; the output is the same without.
        score_ending: spend a forward pass on forced steps at the end of the output, so that ``log_z`` covers them.
        potentials: what else the output has to fulfil: potentials, constraints, or functions of its text.  Samplers of
            tokens block what they forbid, and go back where nothing is left; scores need a sampler of whole outputs.
    """

    drafter: AnyDrafter = "auto"
    jump_forward: bool = True
    score_ending: bool = False
    potentials: Sequence[AnyPotential] = ()


@final
class Generation:
    """Yields the output of one generation in chunks; ``result()`` is there once it is exhausted.

    The tokens are added to the context as they are taken, and stay there.

    Args:
        context: the prompt, at least one token, with the model that has to go on from there.
        constraint: compiled for the model's vocabulary.
        max_tokens: tokens that the output may have, EOS not counted; at least ``constraint.min_tokens()``.
        sampler: chooses tokens.
        writer: writes all that is missing of the output at once, in place of the sampler; it has its own drafts.
        seed: of the random numbers that the sampler is given.
        jump_forward: run forced tokens through the model together with the next token that has to be chosen, not in
            forward passes of their own.  The output is the same.
        score_ending: spend one more forward pass if the output ends in forced steps, so that they are scored.
            Without ``jump_forward`` they always are.
        alternatives: how many other tokens are noted at each choice.
        potentials: what they forbid is blocked where it would come.
        speculation: how to draft tokens, so that one forward pass tells several; None not to.  Not without
            ``jump_forward``, which runs even forced tokens one by one.
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
    ) -> None:
        context.prepare()
        if constraint.has_temperatures and writer is None:
            check_tempering(sampler)
        self._output = Output(context, constraint, max_tokens)
        self._costs = Costs(context)
        self._potentials = tuple(potentials)
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._score_ending = score_ending or not jump_forward
        self._planned: deque[Step] = deque()  # what is to be taken next
        self._writer = writer
        self._drafts: SpeculationRounds | None = None
        # Drafts are judged by one sampler for all positions, so where parts have their own there are none.
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
        return next(self._chunks)

    @property
    def context(self) -> Context:
        """What the output is added to."""
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
        """What the tokens belong to."""
        return self._output.vocabulary

    @property
    def matcher(self) -> Matcher:
        """Where the output stands in the grammar.  Fork it to look ahead; the generation moves it."""
        return self._output.matcher

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps so far; those after the last choice have no ``log_z`` yet."""
        return tuple(self._output.steps)

    @property
    def remaining(self) -> int:
        """Tokens that are left of the budget."""
        return self._output.remaining

    @property
    def alternatives(self) -> int:
        """How many other tokens are noted at each choice."""
        return self._choice.alternatives

    def draw(self, log_p: NDArray[np.float64]) -> int:
        """Let the sampler choose an index of normalised log-probabilities."""
        return self._choice.draw(log_p)

    def logits(self) -> Logits:
        """Run what is pending through the model, and return the logits of the token that comes next.

        Whoever does not go on with a token then calls ``context.prepare()``, so that the next pass has one to run.
        """
        last = on_host(self._passes.next_row())
        unseen = self.context.unseen
        if unseen:  # the distribution was known, but the session does not hold the tokens any more
            return self.context.session.extend(unseen)
        return last

    def blocked_after(self, tokens: tuple[int, ...]) -> Set[int]:
        """What must not come next where the output went on with ``tokens``: see ``reject`` and ``block``."""
        return self._allowed.blocked_after(tokens)

    def block(self, tokens: Iterable[int]) -> None:
        """Take none of ``tokens`` here; where nothing else is left, go back as after ``reject``."""
        self.context.prepare()
        self._allowed.block(tokens)

    def rewind(self, length: int) -> None:
        """Take back all tokens from position ``length`` of the output on, and what was planned."""
        is_finished = self._output.finish_reason is not None
        self._planned.clear()
        self._output.truncate(length)
        if is_finished:
            self._costs.ended = None
            self._chunks = self._run()

    def take_back(self, chunk: Chunk, keep: int) -> Chunk:
        """Take back ``chunk``, which came last, but for its first ``keep`` tokens; return what is left of it."""
        kept = self._output.prefix(chunk, keep)
        self.rewind(chunk.start + keep)
        return kept

    def plan(self, steps: Iterable[Step], *, forwards: int, time_model_s: float) -> None:
        """Take steps that were chosen elsewhere, one a turn, before anything else; what is taken back ends that.

        Args:
            steps: with their scores; the stop may be the last.
            forwards: forward passes that it took to choose them, beside those of the context.
            time_model_s: seconds in the model.
        """
        self._planned.extend(steps)
        self._costs.searches += forwards
        self._costs.model_s += time_model_s

    def reject(self, length: int, *, keep: int, also: Iterable[int] = ()) -> None:
        """Go on from the first ``keep`` tokens, with no output that begins with the first ``length`` tokens.

        For what is found wrong although it is a member: the token that completed it is blocked there from now on, and
        so is, one token earlier, what no token is left to continue.  Samplers draw from what remains.  Of a finished
        output, its stop is blocked: a longer one may begin with it.

        Args:
            length: a number of tokens of the output, at least ``keep``.
            keep: a number of tokens; these are not taken back any more, even if nothing is left to follow them.
            also: other tokens than the last of those that must not come in its place either.

        Raises:
            ValueError: the numbers are not in that order, or the output is shorter.
            GenerationError: only those ``keep`` tokens are rejected, and it is not finished.
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
        """The finished output.

        Raises:
            GenerationError: the generation is not through.
        """
        output = self._output
        if output.finish_reason is None or self._costs.ended is None:
            raise GenerationError(
                "generation",
                "it has no result yet",
                evidence=f"it stands at {len(output.tokens)} tokens",
                remedy="iterate to its end first",
            )
        drafts = None if self._drafts is None else self._drafts.stats()
        if self._writer is not None:
            drafts = self._writer.drafts
        return Result(
            data=output.data,
            tokens=self.tokens,
            steps=self.steps,
            stats=self._costs.stats(output.steps, drafts),
            finish_reason=output.finish_reason,
            grammar=output.constraint.grammar,
            vocabulary=output.vocabulary,
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
            self._drafts.finish(output.context)
        self._costs.end()
        rest = output.rest()
        if rest is not None:  # a grammar over bytes may end within a character
            yield rest

    def _choose(self) -> int | None:
        """Let the model and the sampler choose among what the mask allows; None is the stop, or nothing is left."""
        step = self._choice.step(self._passes.next_row(self._choice))
        if step is None:
            self.context.prepare()
            return None
        return self._take(step)

    def _take(self, step: Step) -> int | None:
        """Add a step that was chosen and has its scores; None where it is the stop."""
        began = perf_counter()
        token = self._output.take(step)
        self._costs.mask_s += perf_counter() - began
        return token

    def _write(self, writer: Writer) -> None:
        """Let a sampler of whole outputs write all that is missing, and plan to take it; or end what is written."""
        if writer.is_complete(self.tokens):
            self._forced.end()
            return
        potentials = [*self._potentials, ForbiddenTokens(self._allowed.blocked)]
        written = writer.write(self.tokens, potentials, self._generator)
        self.plan(written.steps, forwards=written.stats.forwards, time_model_s=written.stats.time_model_s)
