"""How particles advance: a proposal samples the next token with an unbiased weight, resampling chooses which go on.

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
    """Draw ``count`` indices.

    Args:
        weights: in proportion to the probabilities, none negative, one positive at least, ``[n]``.
        count: how many.
        scheme: ``multinomial``: independently.  ``stratified``: one from each of ``count`` parts of equal mass.
            ``systematic``: the same, at one place in all parts.  ``residual``: each as often as ``count w_i`` has
            wholes, and the rest independently.
        generator: the randomness.

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
    wholes = np.floor(expected).astype(np.intp)
    kept = np.repeat(np.arange(len(weights)), wholes)
    rest = count - len(kept)
    if rest <= 0:
        return kept[:count]
    left = expected - wholes
    return np.concatenate((kept, _indices_at(left / left.sum(), generator.random(rest))))


def _indices_at(weights: NDArray[np.float64], positions: NDArray[np.float64]) -> NDArray[np.intp]:
    """The inverse distribution function; never an index of weight zero."""
    sums = np.cumsum(weights)
    found: NDArray[np.intp] = np.searchsorted(sums, positions * sums[-1], side="right")
    found[found == len(weights)] = np.flatnonzero(weights)[-1]  # rounded up to the sum
    return found


RESAMPLING: Final[dict[str, Callable[[NDArray[np.float64], int, np.random.Generator], NDArray[np.intp]]]] = {
    "multinomial": _multinomial,
    "stratified": _stratified,
    "systematic": _systematic,
    "residual": _residual,
}


class Proposed(NamedTuple):
    """A token that was drawn.

    Attributes:
        token: its id; None where none was found, and then the weight is zero.
        log_weight: see the module.
        log_p: the model's log-probability of the token.
        is_only: nothing else is allowed.
    """

    token: int | None
    log_weight: float
    log_p: float
    is_only: bool = False


@runtime_checkable
class Proposal(Protocol):
    """Draws next tokens."""

    @property
    def lossless(self) -> bool:
        """Whether the weights are as the module says."""

    def propose(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator, /
    ) -> list[Proposed]:
        """Draw ``count`` tokens that may follow ``branch``, after which the model says ``logits``."""


NOTHING: Final = Proposed(None, -math.inf, -math.inf)


@final
@dataclass(frozen=True, slots=True)
class Scan:
    """Tokens drawn from all that are admitted: locally constrained decoding.

    Potentials that cannot tell of all tokens at once are asked about every token that the automaton allows.  The
    weight is exact.  ``Multinomial()`` as a proposal is this.
    """

    lossless: ClassVar[bool] = True

    def propose(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """See ``Proposal``."""
        distribution = branches.distribution(branch, logits)
        if branches.questions.any:
            distribution = distribution.only(
                np.array([branches.admits(branch, int(token)) for token in distribution.ids], dtype=np.bool_)
            )
        return exact_samples(distribution, count, generator)


@final
@dataclass(frozen=True, slots=True)
class AWRS:
    """Adaptive weighted rejection sampling: potentials are asked about the tokens that are drawn, few of all.

    The weight is an unbiased estimate of the probability of what is admitted; where there is nothing to ask about
    beyond the automaton's mask, it is that probability itself.

    Tokens are drawn from those that the mask allows.  With ``mask_after`` the automaton too is asked token by token at
    first, as would a parser be that has no masks.  The mask is filled after so many rejected tokens, or used at once
    where it is known from another particle in the same state; the weight is exact then.  That stays unbiased, since
    whatever was rejected, the expected weight of the estimator is the same.

    Attributes:
        most_rejects: give up on a particle after so many rejected tokens, without bias: its weight is zero, and those
            of others are the larger for it.  None never gives up.
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
        found: list[Proposed] = []
        if self.mask_after != 0 and not branches.knows_mask(branch):
            found = self._without_mask(branches, branch, logits, count, generator)
        if len(found) == count:
            return found
        distribution = branches.distribution(branch, logits)
        return found + self.draw_from(distribution, branches, branch, count - len(found), generator)

    def draw_from(
        self, distribution: Distribution, branches: Branches, branch: Branch, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """Draw ``count`` tokens from the distribution of what the mask allows after ``branch``."""
        if not branches.questions.any:
            return exact_samples(distribution, count, generator)
        return self._draws(distribution, partial(branches.admits, branch), count, generator)

    def _draws(
        self, distribution: Distribution, admits: Callable[[int], bool], count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """Draw by the estimator that asks less."""
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
                    TokensWithoutReplacement(weights, generator), likeliest, admits_at, most_rejects=self.most_rejects
                ),
            )
            for _ in range(count)
        ]

    def _without_mask(
        self, branches: Branches, branch: Branch, logits: Logits, count: int, generator: np.random.Generator
    ) -> list[Proposed]:
        """Ask the automaton too; stop short of ``count`` where it is quicker to fill the mask."""
        distribution = branches.distribution(branch, logits, branches.masks.all_ids)
        answers: dict[int, bool] = {}

        def admits(token: int) -> bool:
            if token not in answers:
                answers[token] = branches.accepts(branch, token) and branches.admits(branch, token)
            return answers[token]

        if self.mask_after is None:
            return self._draws(distribution, admits, count, generator)
        found: list[Proposed] = []
        weights = distribution.weights()
        for _ in range(count):
            patient = _BoundedPredicate(admits, distribution.ids, self.mask_after)
            try:
                drawn = sample_recursive(
                    TokensWithoutReplacement(weights, generator), patient, most_rejects=self.most_rejects
                )
            except _MaskWanted:
                break
            found.append(_proposed(distribution, drawn))
        return found


@final
class _BoundedPredicate:
    """Asks about tokens until ``most`` were rejected and none was admitted.

    Whatever was rejected before the first token that is admitted, the recursive estimator goes on to give each token
    its probability on average, and so does the mask.  Later on, or with the geometric estimator, that would not be so.
    """

    def __init__(self, admits: Callable[[int], bool], ids: NDArray[np.int32], most: int) -> None:
        self._admits = admits
        self._ids = ids
        self._left = most
        self._has_admitted = False

    def __call__(self, index: int) -> bool:
        if self._admits(int(self._ids[index])):
            self._has_admitted = True
            return True
        if not self._has_admitted:
            if not self._left:
                raise _MaskWanted
            self._left -= 1
        return False


class _MaskWanted(Exception):
    """Enough tokens were rejected."""


def _proposed(distribution: Distribution, drawn: WeightedSample[float]) -> Proposed:
    if drawn.token is None or drawn.weight == 0:
        return NOTHING
    return _proposed_at(distribution, drawn.token, math.log(drawn.weight))


def _proposed_at(distribution: Distribution, index: int, log_admitted: float) -> Proposed:
    """The token at an index of a distribution, drawn from ``log_q`` where this much of it is admitted."""
    log_weight = log_admitted + distribution.log_weight(index)
    return Proposed(int(distribution.ids[index]), log_weight, float(distribution.log_p[index]), distribution.is_forced)


def as_proposal(sampler: Proposal | Multinomial) -> Proposal:
    """Return a sampler of tokens as a proposal.

    Raises:
        ValueError: it draws from another distribution than the model's, so that its weights would be wrong.
        TypeError: it is no sampler of tokens.
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
    """Draw from a distribution whose sum is known.

    Stratified, so that ``count`` draws stand for it better than if independent.

    Each draw by itself has the distribution; no token comes up more than one time away from its share.
    """
    if not distribution.is_possible:
        return [NOTHING] * count
    indices = resample(distribution.weights(), count, "stratified", generator)
    return [_proposed_at(distribution, int(index), 0.0) for index in indices]
