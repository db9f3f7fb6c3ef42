"""Sampling tokens without replacement, and adaptive weighted rejection sampling (AWRS) based on it.

Masking evaluates a predicate for the whole vocabulary.  AWRS samples tokens from the model's distribution ``p`` and
rejects them until one is admitted; that token is distributed as under masking.  The total probability ``Z`` of the
admitted tokens is estimated by a weight that is unbiased for every token, as importance sampling and sequential Monte
Carlo need it:

    E[weight 1{token = x}] = p(x) if x is admitted, else 0

Source: B. Lipkin et al., "Fast Controlled Generation from Language Models with Adaptive Weighted Rejection Sampling"
(COLM 2025, arXiv 2504.05410).  The published code computes the remaining mass as 1 minus the rejected mass, and gives
weight zero if it is below 1e-5; here it is summed from the remaining tokens, so a small mass keeps its weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Generic, Protocol, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.sampler import BLOCK, block_sums, index_at

__all__ = [
    "PEAKED",
    "TokensWithoutReplacement",
    "WeightedSample",
    "WithoutReplacement",
    "sample_geometric",
    "sample_misses",
    "sample_recursive",
    "sample_weighted",
]

Number_co = TypeVar("Number_co", covariant=True)
_MIN_WEIGHT: Final = 1e-300


class WithoutReplacement(Protocol[Number_co]):
    """Samples tokens without replacement; probabilities are floats, or exact fractions in proofs."""

    @property
    def left(self) -> Number_co:
        """The total probability of the remaining tokens; 1 at first."""

    @property
    def is_empty(self) -> bool:
        """Whether no remaining token has positive probability."""

    def probability(self, token: int, /) -> Number_co:
        """The probability of a token in the full distribution."""

    def take(self) -> int:
        """Sample one of the remaining tokens, and remove it; requires that ``is_empty`` is false."""

    def put_back(self, token: int, /) -> None:
        """Put back a token that was taken."""

    def misses(self, limit: float, /) -> float:
        """Sample how many samples with replacement are removed tokens, before the first remaining token.

        At most ``limit``, which is also the number if no token remains.
        """


@final
class TokensWithoutReplacement:
    """Samples the tokens of a distribution without replacement.

    The remaining mass is always summed from the remaining tokens, never computed by subtraction, so that a remainder of
    1e-15 is as precise as the whole.  Probabilities below 1e-300 count as zero.

    Args:
        weights: in proportion to the probabilities, float64 ``[n]``, none negative; the largest is about 1; tokens are
            indices into it.
        generator: the random numbers: one uniform number for each ``take`` and ``misses``.

    Raises:
        ValueError: all weights are zero.

    Complexity: O(n) to make, O(n / 512 + 512) for each token.
    """

    def __init__(self, weights: NDArray[np.float64], generator: np.random.Generator) -> None:
        self._generator = generator
        self._full = np.where(weights < _MIN_WEIGHT, 0.0, weights)
        self._weights = self._full.copy()
        self._sums = block_sums(self._weights)
        self._total = float(self._sums.sum())
        if not self._total > 0:
            raise ValueError("no token has any probability")

    @property
    def left(self) -> float:
        """See ``WithoutReplacement``."""
        return float(self._sums.sum()) / self._total

    @property
    def is_empty(self) -> bool:
        """See ``WithoutReplacement``."""
        return not self._sums.any()

    def probability(self, token: int) -> float:
        """See ``WithoutReplacement``."""
        return float(self._full[token]) / self._total

    def take(self) -> int:
        """See ``WithoutReplacement``: uses the inverse distribution function, in the order of the tokens."""
        token = index_at(self._weights, self._sums, self._generator.random())
        self._set(token, 0.0)
        return token

    def put_back(self, token: int) -> None:
        """See ``WithoutReplacement``."""
        self._set(token, float(self._full[token]))

    def misses(self, limit: float) -> float:
        """See ``WithoutReplacement``."""
        return sample_misses(self.left, limit, self._generator)

    def _set(self, token: int, weight: float) -> None:
        self._weights[token] = weight
        block = token // BLOCK
        self._sums[block] = self._weights[block * BLOCK : (block + 1) * BLOCK].sum()


def sample_misses(left: float, limit: float, generator: np.random.Generator) -> float:
    """Sample a geometric number of misses, with success probability ``left``, at most ``limit``; one uniform number."""
    uniform = 1 - generator.random()  # in (0, 1]
    if left >= 1:
        return 0
    if left == 0:
        return limit
    count = math.log(uniform) / math.log1p(-left)  # P(k or more) = (1 - left)^k
    return min(float(math.floor(count)), limit)


Number = TypeVar("Number", float, Fraction)

PEAKED: Final = 2 / 3
"""From this probability of the likeliest token on, ``sample_weighted`` uses the geometric estimator."""


@final
@dataclass(frozen=True, slots=True)
class WeightedSample(Generic[Number]):
    """A token with its weight.

    Attributes:
        token: the first admitted token; None if there was none, and then the weight is zero.
        weight: the unbiased weight, see the module.
        queries: number of queries to the predicate.
    """

    token: int | None
    weight: Number
    queries: int


def sample_weighted(
    sampler: WithoutReplacement[Number],
    likeliest: Number,
    admits: Callable[[int], bool],
    *,
    max_rejects: int | None = None,
) -> WeightedSample[Number]:
    """Sample with the estimator that needs fewer queries.

    If one token has two thirds of the probability or more, the geometric estimator is likely to sample it again, which
    needs no query.  Otherwise the recursive estimator queries one token after the first admitted one, and its weight
    has less variance.  The rule depends on the distribution alone, not on answers, so both stay unbiased.

    Args:
        sampler: the full distribution.
        likeliest: the probability of its likeliest token.
        admits: the predicate.
        max_rejects: give up after this many rejected tokens; the weight stays unbiased.

    Raises:
        ValueError: ``max_rejects`` is below 1.
    """
    if likeliest >= PEAKED:
        return sample_geometric(sampler, admits, max_rejects=max_rejects)
    return sample_recursive(sampler, admits, max_rejects=max_rejects)


def sample_recursive(
    sampler: WithoutReplacement[Number], admits: Callable[[int], bool], *, max_rejects: int | None = None
) -> WeightedSample[Number]:
    """Sample without replacement until a token is admitted, and query one more.

    The weight is the mass that remained when the token was sampled if the next token is admitted too, or if there is
    none; else it is the token's own probability.  If only one token is admitted, the weight is exactly ``Z``.

    Args:
        sampler: the distribution; queried tokens are removed from it.
        admits: the predicate.
        max_rejects: give up after this many rejected tokens; the weight stays unbiased.

    Raises:
        ValueError: ``max_rejects`` is below 1.

    Complexity: about ``1 / Z`` queries, at most one for each token.
    """
    _check_max_rejects(max_rejects)
    queries = 0
    while not sampler.is_empty:
        left = sampler.left
        token = sampler.take()
        queries += 1
        if not admits(token):
            if queries == max_rejects:
                break
            continue
        if queries == max_rejects or sampler.is_empty:
            return WeightedSample(token, left, queries)
        # The next token is admitted with the admitted share of the remaining mass, on average.
        weight = left if admits(sampler.take()) else sampler.probability(token)
        return WeightedSample(token, weight, queries + 1)
    return WeightedSample(None, sampler.left * 0, queries)


def sample_geometric(
    sampler: WithoutReplacement[Number],
    admits: Callable[[int], bool],
    *,
    accepts: int = 2,
    max_rejects: int | None = None,
) -> WeightedSample[Number]:
    """Sample with replacement until ``accepts`` samples are admitted.

    Each token is queried once.  Samples of rejected tokens are not even made: their number has a geometric
    distribution.  If ``n`` samples were made and ``k`` of the first ``n - 1`` were admitted, the weight is
    ``k / (n - 1)``.

    Args:
        sampler: the distribution; rejected tokens are removed from it.
        admits: the predicate.
        accepts: at least 2; a larger number reduces the variance of the weight.
        max_rejects: give up after this many rejected samples, repeated ones included; the weight stays unbiased.

    Raises:
        ValueError: ``accepts`` is below 2, or ``max_rejects`` below 1.

    Source: J. B. S. Haldane, "On a method of estimating frequencies" (Biometrika 1945), for ``(k - 1) / (n - 1)``.
    """
    _check_max_rejects(max_rejects)
    if accepts < 2:
        raise ValueError(f"accepts must be at least 2; found {accepts!r}")
    limit = float("inf") if max_rejects is None else max_rejects
    admitted: set[int] = set()
    first: int | None = None
    accepted, rejected, queries = 0, 0.0, 0
    while accepted < accepts and not sampler.is_empty:
        if queries > len(admitted):
            rejected += sampler.misses(limit - rejected)
        if rejected >= limit:
            break
        token = sampler.take()
        if token not in admitted:
            queries += 1
            if not admits(token):
                rejected += 1
                if rejected >= limit:
                    break
                continue
            admitted.add(token)
        sampler.put_back(token)
        accepted += 1
        first = token if first is None else first
    zero = sampler.left * 0
    if first is None:
        return WeightedSample(None, zero, queries)
    samples = accepted + rejected - 1
    share = Fraction(min(accepted, accepts - 1)) / Fraction(samples)
    return WeightedSample(first, zero + share, queries)


def _check_max_rejects(max_rejects: int | None) -> None:
    if max_rejects is not None and max_rejects < 1:
        raise ValueError(f"max_rejects must be at least 1; found {max_rejects!r}")
