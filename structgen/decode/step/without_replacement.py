"""Sampling tokens without replacement, and adaptive weighted rejection sampling (AWRS) on top of it.

Masking asks a predicate about the whole vocabulary.  AWRS samples tokens from the model's distribution ``p`` and
rejects until one is admitted; that token is distributed as under masking.  What masking would also know, the
probability ``Z`` of all admitted tokens together, is estimated by a weight that is unbiased for every token:

    E[weight 1{token = x}] = p(x) if x is admitted, else 0

which is what importance sampling and sequential Monte Carlo need.

Source: B. Lipkin et al., "Fast Controlled Generation from Language Models with Adaptive Weighted Rejection Sampling"
(COLM 2025, arXiv 2504.05410).  The published code finds the mass that is left as 1 minus what was rejected, and gives
weight zero where that is below 1e-5; here it is summed from what is left, so that any mass has its weight.
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
    """Tokens with probabilities; those that are taken out are not drawn again.

    The probabilities are ``Number_co``: floats, or exact fractions in proofs.

    Attributes:
        left: the probability of all that is in it; 1 at first.
        is_empty: whether nothing is in it that has any probability.
    """

    @property
    def left(self) -> Number_co: ...
    @property
    def is_empty(self) -> bool: ...
    def probability(self, token: int, /) -> Number_co:
        """That of a token in the full sampler without replacement."""

    def take(self) -> int:
        """Draw a token with its share of what is in the sampler without replacement, and take it out.

        The sampler without replacement must not be empty.
        """

    def put_back(self, token: int, /) -> None:
        """Put back a token that was taken."""

    def misses(self, most: float, /) -> float:
        """Sample how often sampling with replacement from all tokens meets one that is gone.

        That is, before anything that is in it; ``most`` where it is as often or more, which it is if nothing is in it.
        """


@final
class TokensWithoutReplacement:
    """The tokens of a distribution.

    What is left is summed anew from what is there, never found by subtraction: of a distribution in which all
    but 1e-15 was taken out, the rest is known as precisely as the whole.  Probabilities below 1e-300 count as zero.

    Args:
        weights: in proportion to the probabilities, float64 ``[n]``, none negative; the largest is about 1;
            tokens are indices into it.
        generator: the randomness: one uniform number for each ``take`` and ``misses``.

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
        """See ``WithoutReplacement``: by the inverse distribution function, in the order of the tokens."""
        token = index_at(self._weights, self._sums, self._generator.random())
        self._set(token, 0.0)
        return token

    def put_back(self, token: int) -> None:
        """See ``WithoutReplacement``."""
        self._set(token, float(self._full[token]))

    def misses(self, most: float) -> float:
        """See ``WithoutReplacement``."""
        return sample_misses(self.left, most, self._generator)

    def _set(self, token: int, weight: float) -> None:
        self._weights[token] = weight
        block = token // BLOCK
        self._sums[block] = self._weights[block * BLOCK : (block + 1) * BLOCK].sum()


def sample_misses(left: float, most: float, generator: np.random.Generator) -> float:
    """Sample the number of misses where mass ``left`` is left, by inversion of the geometric distribution.

    One uniform number.
    """
    uniform = 1 - generator.random()  # in (0, 1]
    if left >= 1:
        return 0
    if left == 0:
        return most
    count = math.log(uniform) / math.log1p(-left)  # P(k or more) = (1 - left)^k
    return min(float(math.floor(count)), most)


Number = TypeVar("Number", float, Fraction)

PEAKED: Final = 2 / 3
"""From this probability of the likeliest token on, ``weighted`` uses the geometric estimator."""


@final
@dataclass(frozen=True, slots=True)
class WeightedSample(Generic[Number]):
    """What a draw came to.

    Attributes:
        token: the first that was admitted; None where none was found, and then the weight is zero.
        weight: see the module.
        asked: how many tokens the predicate was asked about.
    """

    token: int | None
    weight: Number
    asked: int


def sample_weighted(
    sampler: WithoutReplacement[Number],
    likeliest: Number,
    admits: Callable[[int], bool],
    *,
    most_rejects: int | None = None,
) -> WeightedSample[Number]:
    """Draw by the estimator that asks less.

    If one token has two thirds of the probability or more, a second draw is likely to meet it again, and the geometric
    estimator need not ask then; elsewhere the recursive one asks about one token after the first that is admitted, and
    its weight varies less.  The rule looks at the distribution alone, not at answers, so the choice leaves both
    unbiased.

    Args:
        sampler: the full distribution.
        likeliest: the probability of its likeliest token.
        admits: the predicate.
        most_rejects: give up after so many rejected tokens; the weight is unbiased all the same.

    Raises:
        ValueError: ``most_rejects`` is below 1.
    """
    if likeliest >= PEAKED:
        return sample_geometric(sampler, admits, most_rejects=most_rejects)
    return sample_recursive(sampler, admits, most_rejects=most_rejects)


def sample_recursive(
    sampler: WithoutReplacement[Number], admits: Callable[[int], bool], *, most_rejects: int | None = None
) -> WeightedSample[Number]:
    """Draw without replacement until a token is admitted, and ask about one more.

    The weight is the mass that was left when the token was drawn, if the next one is admitted too or there is none;
    else the token's own probability.  It is exactly ``Z``, without any variance, if only one token is admitted.

    Args:
        sampler: the distribution; what was asked about is out of it afterwards.
        admits: the predicate.
        most_rejects: give up after so many rejected tokens; the weight is unbiased all the same.

    Raises:
        ValueError: ``most_rejects`` is below 1.

    Complexity: at most one question a token, about ``1 / Z`` and never more than the tokens that are there.
    """
    _check_max_rejects(most_rejects)
    asked = 0
    while not sampler.is_empty:
        left = sampler.left
        token = sampler.take()
        asked += 1
        if not admits(token):
            if asked == most_rejects:
                break
            continue
        if asked == most_rejects or sampler.is_empty:
            return WeightedSample(token, left, asked)
        # Of the mass that is left after the token, the next one tells the admitted share, on average.
        weight = left if admits(sampler.take()) else sampler.probability(token)
        return WeightedSample(token, weight, asked + 1)
    return WeightedSample(None, sampler.left * 0, asked)


def sample_geometric(
    sampler: WithoutReplacement[Number],
    admits: Callable[[int], bool],
    *,
    accepts: int = 2,
    most_rejects: int | None = None,
) -> WeightedSample[Number]:
    """Draw with replacement until ``accepts`` draws were admitted.

    Draws that meet a token that was asked about before are not asked again, and draws among the rejected ones are not
    even made: how many there are has a geometric distribution.  If ``k`` of ``n`` draws were admitted, the last
    one aside, the weight is ``k / (n - 1)``: the share of the admitted among all but the last draw.

    Args:
        sampler: the distribution; rejected tokens are out of it afterwards.
        admits: the predicate.
        accepts: at least 2; more make the weight vary less.
        most_rejects: give up after so many rejected draws, repeated ones included; unbiased all the same.

    Raises:
        ValueError: ``accepts`` is below 2, or ``most_rejects`` below 1.

    Source: J. B. S. Haldane, "On a method of estimating frequencies" (Biometrika 1945), for ``(k - 1) / (n - 1)``.
    """
    _check_max_rejects(most_rejects)
    if accepts < 2:
        raise ValueError(f"accepts must be at least 2; found {accepts!r}")
    most = float("inf") if most_rejects is None else most_rejects
    known: set[int] = set()
    first: int | None = None
    accepted, rejected, asked = 0, 0.0, 0
    while accepted < accepts and not sampler.is_empty:
        if asked > len(known):
            rejected += sampler.misses(most - rejected)
        if rejected >= most:
            break
        token = sampler.take()
        if token not in known:
            asked += 1
            if not admits(token):
                rejected += 1
                if rejected >= most:
                    break
                continue
            known.add(token)
        sampler.put_back(token)
        accepted += 1
        first = token if first is None else first
    zero = sampler.left * 0
    if first is None:
        return WeightedSample(None, zero, asked)
    draws = accepted + rejected - 1
    share = Fraction(min(accepted, accepts - 1)) / Fraction(draws)
    return WeightedSample(first, zero + share, asked)


def _check_max_rejects(most_rejects: int | None) -> None:
    if most_rejects is not None and most_rejects < 1:
        raise ValueError(f"most_rejects must be at least 1; found {most_rejects!r}")
