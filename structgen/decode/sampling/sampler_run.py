"""``run_sampler`` runs a sampler of whole outputs; ``OutputWriter`` lets one complete an output of the loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.potentials import Potential, as_potentials
from structgen.decode.sampling.branch_set import Branches
from structgen.decode.sampling.joint_draft import AutoParticles
from structgen.decode.sampling.proposal import Proposal
from structgen.decode.sampling.protocol import Problem, SequenceSampler
from structgen.decode.sampling.smc import SMC
from structgen.decode.speculative.speculation import AnyDrafter, Speculation, as_speculation
from structgen.decode.step.context import check_start
from structgen.decode.step.result import DraftStats
from structgen.decode.step.sampler import Multinomial, Sampler, check_tempering, wrong_sampler
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Score
    from structgen.decode.sampling.protocol import Samples
    from structgen.decode.step.context import Context
    from structgen.decode.step.result import Result
    from structgen.engine import Constraint

__all__ = ["OutputWriter", "output_writer", "run_sampler", "weighted_sampler", "whole_speculation"]

_MAX_DRAFT_TOKENS: Final = 64


def run_sampler(  # noqa: PLR0913  public: the settings of ``sample``
    sampler: SequenceSampler,
    context: Context,
    constraint: Constraint,
    *,
    potentials: Sequence[Potential | Constraint | Score] = (),
    max_tokens: int,
    generator: np.random.Generator,
    begun: tuple[int, ...] = (),
    speculation: Speculation | None = None,
) -> Samples:
    """Sample outputs after the tokens of a context, which stays as it is: see ``sample`` for other arguments.

    Args:
        sampler: samples the outputs.
        context: the prompt, at least one token, and the tokens of ``begun``.
        constraint: compiled for the model's vocabulary.
        potentials: factors of the target.
        max_tokens: maximum number of tokens of an output; those of ``begun`` count.
        generator: the random numbers.
        begun: tokens that the output begins with; the context ends with them.
        speculation: how to draft tokens; None drafts nothing.

    Raises:
        GenerationError, BudgetError, VocabularyError: as ``sample``.
        LimitExceeded: a limit ended all outputs; one that ends only some makes the samples ``lossless = False``.
    """
    check_start(context.model, len(context) - len(begun), constraint, max_tokens)
    factors = tuple(as_potentials(potentials))
    problem = Problem(context.model, context.tokens, constraint, factors, max_tokens, begun)
    with Branches(problem, context, speculation=speculation) as branches:
        try:
            return sampler.run(branches, generator)
        except GenerationError as error:  # nothing is left
            if branches.limited:
                raise next(iter(branches.limited.values())) from error
            raise


def weighted_sampler(sampler: SequenceSampler | Proposal | Multinomial) -> SequenceSampler:
    """Return a sampler of whole outputs; ``AWRS(...)`` and ``Multinomial()`` become ``SMC`` with one particle.

    One particle is importance sampling: the weight of the output is the product of the weights of its tokens, times the
    potentials.  The expectation of ``weight * 1{output = x}`` is the target of ``x`` (``Problem``), for every ``x``.

    Raises:
        ValueError: the sampler chooses tokens from another distribution than the model's, so no weight would be right.
        ArgumentError: it is no sampler, or a class.
    """
    if isinstance(sampler, type) or not isinstance(sampler, (SequenceSampler, Proposal, Sampler)):
        raise wrong_sampler("sampler", sampler, expected="a sampler", example="sg.samplers.SMC()")
    if isinstance(sampler, SequenceSampler):
        return sampler
    has_weights = isinstance(sampler, Proposal) or (isinstance(sampler, Multinomial) and sampler.lossless)
    if isinstance(sampler, Sampler) and not has_weights:
        raise ValueError(
            f"sampler={sampler!r:.60} chooses tokens without weights, and sample(...) returns weighted outputs; "
            "take Multinomial() without settings, AWRS() or SMC(), or call generate(...) for one output without weight"
        )
    return SMC(1, ess_threshold=0, proposal=sampler)


def whole_speculation(drafter: AnyDrafter, sampler: SequenceSampler | Proposal) -> Speculation | None:
    """Return how to draft tokens for a sampler of whole outputs; ``"auto"`` is ``AutoParticles``.

    Only samplers whose sequences grow together can look ahead: they have ``looks_ahead``.  So can a proposal, which
    ``SMC`` runs.  For other samplers ``"auto"`` drafts nothing.

    Raises:
        TypeError: ``drafter`` is no drafter.
        ValueError: a drafter is given, and the sampler does not look ahead.
    """
    looks_ahead = getattr(sampler, "looks_ahead", not isinstance(sampler, SequenceSampler))
    if drafter == "auto":
        return Speculation(AutoParticles(), budget=_MAX_DRAFT_TOKENS, cost="assumed") if looks_ahead else None
    speculation = as_speculation(drafter)
    if speculation is not None and not looks_ahead:
        raise ValueError(
            f"drafter={drafter!r:.60} is not for sampler {type(sampler).__name__}, which returns to earlier prefixes; "
            "leave it out"
        )
    return speculation


@final
class OutputWriter:
    """Writes the rest of an output by a sampler of whole outputs: the ``Writer`` of the loop.

    The context holds the prompt and the tokens of the output so far; ``max_tokens`` bounds the whole output.
    """

    def __init__(
        self,
        sampler: SequenceSampler,
        context: Context,
        constraint: Constraint,
        max_tokens: int,
        speculation: Speculation | None = None,
    ) -> None:
        self._sampler = sampler
        self._context = context
        self._constraint = constraint
        self._max_tokens = max_tokens
        self._speculation = speculation
        self._complete: tuple[int, ...] | None = None
        self._drafts: list[DraftStats] = []

    @property
    def drafts(self) -> DraftStats | None:
        """See ``Writer.drafts``."""
        return DraftStats.total(self._drafts) if self._drafts else None

    def is_complete(self, tokens: tuple[int, ...]) -> bool:
        """See ``Writer.is_complete``."""
        return self._complete == tokens

    def write(self, tokens: tuple[int, ...], potentials: Sequence[Potential], generator: np.random.Generator) -> Result:
        """See ``Writer.write``; the context ends with ``tokens``.

        Raises:
            GenerationError: all weights are zero, or a potential fails.
        """
        samples = run_sampler(
            self._sampler,
            self._context,
            self._constraint,
            potentials=potentials,
            max_tokens=self._max_tokens,
            generator=generator,
            begun=tokens,
            speculation=self._speculation,
        )
        if samples.drafts is not None:
            self._drafts.append(samples.drafts)
        result = samples.best() if self._sampler.takes_best else samples.draw(generator)
        has_stop = bool(result.steps) and result.steps[-1].token is None
        self._complete = None if has_stop else result.tokens
        return result


def output_writer(
    sampler: SequenceSampler | Proposal,
    context: Context,
    constraint: Constraint,
    max_tokens: int,
    drafter: AnyDrafter,
    *,
    has_drafts: bool,
) -> OutputWriter:
    """Return the ``OutputWriter`` of a sampler of whole outputs; for a proposal it is ``SMC`` with one particle.

    ``has_drafts`` is whether ``drafter`` is used.

    Raises:
        TypeError: ``drafter`` is no drafter.
        ValueError: the grammar has temperatures, or the sampler does not take this drafter.
    """
    whole = weighted_sampler(sampler)
    speculation = whole_speculation(drafter, whole)
    if constraint.has_temperatures:
        check_tempering(whole)
    return OutputWriter(whole, context, constraint, max_tokens, speculation if has_drafts else None)
