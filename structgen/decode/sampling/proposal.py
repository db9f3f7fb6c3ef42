"""How particles advance: a proposal samples next tokens with weights, and resampling chooses the particles.

A weight is unbiased: on average, a token comes with weight ``p(token)`` if it is allowed, and else with 0.

Source: R. Douc and O. Cappé, "Comparison of resampling schemes for particle filtering" (2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple, Protocol, TypeAlias, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.sampler import Multinomial
from structgen.decode.step.without_replacement import (
    TokensWithoutReplacement,
    WeightedSample,
    sample_recursive,
    sample_weighted,
)

if TYPE_CHECKING:
    from structgen.decode.sampling.branch import Branch
    from structgen.decode.sampling.branch_set import Branches
    from structgen.decode.step.distribution import Distribution
    from structgen.models.protocol import Logits

__all__ = ["AWRS", "RESAMPLING", "Proposal", "Proposed", "Resampling", "Scan", "as_proposal", "resample"]

Resampling: TypeAlias = Literal["multinomial", "stratified", "systematic", "residual"]


def resample(
    weights: NDArray[np.float64], count: int, scheme: Resampling, generator: np.random.Generator
) -> NDArray[np.intp]:
    """Sample ``count`` indices.

    Args:
        weights: in proportion to the probabilities, none negative, at least one positive, ``[n]``.
        count: number of indices.
        scheme: ``multinomial``: independently.  ``stratified``: one from each of ``count`` strata of equal mass.
            ``systematic``: the same, at one offset in all strata.  ``residual``: index ``i`` at least
            ``floor(count w_i)`` times, and the rest independently.
        generator: the random numbers.

    Returns:
        The indices, ascending, ``[count]``.

    Complexity: O(n + count log n).
    """
    return np.sort(RESAMPLING[scheme](weights / weights.sum(), count, generator))


def _multinomial(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    return _indices_at(weights, generator.random(count))


def _stratified(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    return _indices_at(weights, (np.arange(count) + generator.random(count)) / count)


def _systematic(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    return _indices_at(weights, (np.arange(count) + generator.random()) / count)


def _residual(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    expected = weights * count
    floors = np.floor(expected).astype(np.intp)
    certain = np.repeat(np.arange(len(weights)), floors)
    rest = count - len(certain)
    if rest <= 0:
        return certain[:count]
    residual = expected - floors
    return np.concatenate((certain, _indices_at(residual / residual.sum(), generator.random(rest))))


def _indices_at(weights: NDArray[np.float64], positions: NDArray[np.float64]) -> NDArray[np.intp]:
    """The inverse distribution function; never an index of weight zero."""
    sums = np.cumsum(weights)
    indices: NDArray[np.intp] = np.searchsorted(sums, positions * sums[-1], side="right")
    indices[indices == len(weights)] = np.flatnonzero(weights)[-1]  # rounded up to the sum
    return indices


RESAMPLING: Final[dict[str, Callable[[NDArray[np.float64], int, np.random.Generator], NDArray[np.intp]]]] = {
    "multinomial": _multinomial,
    "stratified": _stratified,
    "systematic": _systematic,
    "residual": _residual,
}


class Proposed(NamedTuple):
    """A sampled token with its weight.

    Attributes:
        token: its id; None if no token was accepted, and then the weight is zero.
        log_weight: log of the weight, see the module.
        log_p: the model's log-probability of the token.
        is_only: whether it is the only allowed token.
    """

    token: int | None
    log_weight: float
    log_p: float
    is_only: bool = False


@runtime_checkable
class Proposal(Protocol):
    """Samples next tokens with weights."""

    @property
    def lossless(self) -> bool:
        """Whether the weights are unbiased, see the module."""

    def propose(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator, /
    ) -> list[Proposed]:
        """Sample ``count`` next tokens of ``branch``, whose logits are ``logits``."""


NOTHING: Final = Proposed(None, -math.inf, -math.inf)


@final
@dataclass(frozen=True, slots=True)
class Scan:
    """Samples from all allowed tokens: locally constrained decoding.  ``Multinomial()`` as a proposal is this.

    Potentials without ``logw_next`` are evaluated for every token that the mask allows.  The weight is exact.
    """

    lossless: ClassVar[bool] = True

    def propose(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """See ``Proposal``."""
        distribution = branches.distribution(branch, logits)
        if branches.evaluator.any:
            distribution = distribution.only(
                np.array([branches.admits(branch, int(token)) for token in distribution.ids], dtype=np.bool_)
            )
        return exact_samples(distribution, count, generator)


@final
@dataclass(frozen=True, slots=True)
class AWRS:
    """Adaptive weighted rejection sampling: potentials are evaluated only for sampled tokens.

    The weight is an unbiased estimate of the total probability of the allowed tokens; without potentials it is that
    probability itself.

    Tokens are sampled from the mask.  With ``mask_after`` the matcher too is first queried token by token, as a parser
    without masks would be.  The mask is filled after this many rejected tokens, or used at once if another particle in
    the same state has filled it; the weight is exact then.  This stays unbiased: whatever was rejected, the expected
    weight of the estimator is the same.

    Attributes:
        most_rejects: give up on a particle after this many rejected tokens.  Its weight is zero then, and the weights
            of others are larger on average, so estimates stay unbiased.  None never gives up.
        mask_after: see above; 0 always uses the mask, None never.

    Raises:
        ValueError: a number is out of range.
    """

    most_rejects: int | None = None
    mask_after: int | None = 0

    lossless: ClassVar[bool] = True
    target: ClassVar[str] = (
        "locally constrained decoding, with a weight for the model's distribution given the constraint"
    )

    def __post_init__(self) -> None:
        if self.most_rejects is not None and self.most_rejects < 1:
            raise ValueError(f"AWRS: most_rejects must be at least 1; found {self.most_rejects!r}")
        if self.mask_after is not None and self.mask_after < 0:
            raise ValueError(f"AWRS: mask_after must not be negative; found {self.mask_after!r}")

    def propose(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """See ``Proposal``."""
        proposed: list[Proposed] = []
        if self.mask_after != 0 and not branches.knows_mask(branch):
            proposed = self._without_mask(branches, branch, logits, count, generator)
        if len(proposed) == count:
            return proposed
        distribution = branches.distribution(branch, logits)
        return proposed + self.draw_from(distribution, branches, branch, count - len(proposed), generator)

    def draw_from(
        self, distribution: Distribution, branches: Branches, branch: Branch, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """Sample ``count`` tokens from the masked distribution after ``branch``."""
        if not branches.evaluator.any:
            return exact_samples(distribution, count, generator)
        return self._samples(distribution, partial(branches.admits, branch), count, generator)

    def _samples(
        self, distribution: Distribution, admits: Callable[[int], bool], count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """Sample with the estimator that needs fewer queries."""
        if not distribution.is_possible:
            return [NOTHING] * count
        ids, weights = distribution.ids, distribution.weights()
        likeliest = float(weights.max() / weights.sum())

        def admits_at(index: int) -> bool:
            return admits(int(ids[index]))

        return [
            _proposed(
                distribution,
                sample_weighted(
                    TokensWithoutReplacement(weights, generator), likeliest, admits_at, max_rejects=self.most_rejects
                ),
            )
            for _ in range(count)
        ]

    def _without_mask(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """Query the matcher token by token; return fewer than ``count`` if filling the mask is quicker."""
        distribution = branches.distribution(branch, logits, branches.masks.all_ids)
        answers: dict[int, bool] = {}

        def admits(token: int) -> bool:
            if token not in answers:
                answers[token] = branches.accepts(branch, token) and branches.admits(branch, token)
            return answers[token]

        if self.mask_after is None:
            return self._samples(distribution, admits, count, generator)
        # Where the mask is filled first, no particle is given up.  A token that is admitted at the last query before
        # giving up has a weight that makes up for those given up, which would be wrong before the mask.
        gives_up = self.most_rejects is not None and self.most_rejects <= self.mask_after
        max_rejects = self.most_rejects if gives_up else None
        proposed: list[Proposed] = []
        weights = distribution.weights()
        for _ in range(count):
            bounded = _BoundedPredicate(admits, distribution.ids, self.mask_after)
            try:
                sample = sample_recursive(
                    TokensWithoutReplacement(weights, generator), bounded, max_rejects=max_rejects
                )
            except _TooManyRejects:
                break
            proposed.append(_proposed(distribution, sample))
        return proposed


@final
class _BoundedPredicate:
    """A predicate that raises ``_TooManyRejects`` after ``limit`` rejected tokens, if none was admitted before.

    The caller then samples from the mask, without bias.  Before the first admitted token, the recursive estimator gives
    each token its probability on average, whatever was rejected, and so does the mask.  After an admitted token, or
    with the geometric estimator, this does not hold.
    """

    def __init__(self, admits: Callable[[int], bool], ids: NDArray[np.int32], limit: int) -> None:
        self._admits = admits
        self._ids = ids
        self._left = limit
        self._has_admitted = False

    def __call__(self, index: int) -> bool:
        if self._admits(int(self._ids[index])):
            self._has_admitted = True
            return True
        if not self._has_admitted:
            if not self._left:
                raise _TooManyRejects
            self._left -= 1
        return False


class _TooManyRejects(Exception):
    """Filling the mask is quicker now."""


def _proposed(distribution: Distribution, sample: WeightedSample[float]) -> Proposed:
    if sample.token is None or sample.weight == 0:
        return NOTHING
    return _proposed_at(distribution, sample.token, math.log(sample.weight))


def _proposed_at(distribution: Distribution, index: int, log_admitted: float) -> Proposed:
    """The token at an index, sampled from ``log_q``; ``log_admitted`` is the log of the mass that is admitted."""
    log_weight = log_admitted + distribution.log_weight(index)
    return Proposed(int(distribution.ids[index]), log_weight, float(distribution.log_p[index]), distribution.is_forced)


def as_proposal(sampler: Proposal | Multinomial) -> Proposal:
    """Return a sampler of tokens as a proposal.

    Raises:
        ValueError: it samples from another distribution than the model's, and its weights would be wrong.
        TypeError: it is no proposal.
    """
    if isinstance(sampler, Multinomial):
        if not sampler.lossless:
            raise ValueError(
                f"proposal: {sampler!r} changes the model's distribution, and weights would be wrong; "
                "use Multinomial() or AWRS() as they are"
            )
        return Scan()
    if not isinstance(sampler, Proposal):
        raise TypeError(f"proposal: expected AWRS(...) or Multinomial(), found {sampler!r}")
    if not sampler.lossless:
        raise ValueError(f"proposal: {sampler!r} is not lossless, and weights would be wrong")
    return sampler


def exact_samples(distribution: Distribution, count: int, generator: np.random.Generator) -> list[Proposed]:
    """Sample ``count`` tokens from a distribution, stratified.

    Each token by itself has the distribution; together they represent it better than independent samples.
    """
    if not distribution.is_possible:
        return [NOTHING] * count
    indices = resample(distribution.weights(), count, "stratified", generator)
    return [_proposed_at(distribution, int(index), 0.0) for index in indices]
