"""Adaptive token samplers: parameters by step and uncertainty, and top-k with a k for each distribution.

Source: G. Noarov et al., "Foundations of Top-k Decoding for Language Models" (NeurIPS 2025, arXiv 2505.19371): the
    minimiser keeps the most probable tokens, and the cost is discretely convex in their number, so a binary search
    finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.step.sampler import Sampler, inverse_cdf
from structgen.errors import GenerationError, StructgenError

__all__ = ["BregmanTopK", "Scheduled", "Situation"]


@final
@dataclass(frozen=True, slots=True)
class Situation:
    """The features of a step before a token is sampled.

    Attributes:
        allowed: the number of tokens that the mask allows, two or more.
        entropy: of the distribution after masking, in nats; at most ``log(allowed)``.
        likeliest: the probability of the most probable token after masking.
    """

    allowed: int
    entropy: float
    likeliest: float

    @classmethod
    def of(cls, log_p: NDArray[np.float64]) -> Situation:
        """Return the situation of a distribution, normalised log-probabilities ``[n]``."""
        possible = log_p[log_p > -np.inf]
        p = np.exp(possible)
        return cls(len(log_p), max(0.0, float(-(p @ possible))), float(p.max()))


@final
@dataclass(frozen=True, slots=True)
class Scheduled:
    """A sampler that is chosen at each step.

        Scheduled(lambda step: Multinomial(temperature=1.0) if step.allowed > 1000 else Greedy())

    samples text freely and takes the most probable token in structure. The mask comes before: only allowed tokens are
    sampled, whatever the sampler.

    Attributes:
        schedule: returns the sampler of a step; it must be deterministic for seeds to be reproducible.

    Source: a training-free form of what Z. Wang et al., "The End of Manual Decoding" (2025, arXiv 2510.26697), train
        heads for: temperature and top-p for each step.
    """

    schedule: Callable[[Situation], Sampler]

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not callable(self.schedule):
            raise ValueError(
                f"Scheduled: expected a function of a Situation, found {self.schedule!r}; pass a constant sampler to "
                "generate directly"
            )

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``.

        Raises:
            GenerationError: the schedule raised an error, or returned no token sampler.
        """
        situation = Situation.of(log_p)
        try:
            sampler = self.schedule(situation)
        except StructgenError:
            raise
        except Exception as error:
            raise GenerationError(
                "schedule",
                f"it raised {type(error).__name__}: {error}",
                evidence=f"for {situation!r}",
                remedy="let it return a sampler for every situation",
            ) from error
        if isinstance(sampler, type) or not isinstance(sampler, Sampler):
            raise GenerationError(
                "schedule",
                f"it returned {sampler!r}, which is no sampler of tokens",
                evidence=f"for {situation!r}",
                remedy="let it return Greedy(), Multinomial(...) or the like",
            )
        return sampler.draw(log_p, generator)


_ROUNDS: Final = 500
_CLOSE: Final = 1e-15
_NEAR_ONE: Final = 1e-6

_DistributionAndSlope: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]


@final
@dataclass(frozen=True, slots=True)
class BregmanTopK:
    """A token sampled from the sparse distribution nearest to the model's in a Bregman divergence.

    It acts after the mask, so at least one allowed token remains. Of equally probable tokens at the cut, those with the
    lowest ids are retained.

    Attributes:
        penalty: the price of a token. For ``alpha = 1`` a token is retained if it multiplies the probability of the
            tokens before it by more than ``exp(penalty)``.
        alpha: which divergence; positive. Above 1 the probability of dropped tokens is shared more evenly than in
            proportion, below 1 it favours the probable tokens.
        dual: whether the model's distribution is the first argument of the divergence; ``alpha`` must then be above 1,
            since otherwise dropping a token costs infinitely much.

    Raises:
        ValueError: a number is out of range.
    """

    penalty: float = 0.05
    alpha: float = 1.0
    dual: bool = False

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.penalty) and self.penalty > 0):
            raise ValueError(f"BregmanTopK: penalty must be positive and finite; found {self.penalty!r}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"BregmanTopK: alpha must be positive and finite; found {self.alpha!r}")
        if self.dual and self.alpha <= 1:
            raise ValueError(
                f"BregmanTopK: the dual decoder needs an alpha above 1, since otherwise dropping a token costs "
                f"infinitely much; found {self.alpha!r}"
            )

    def sparse(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sampled distribution, ``[n]``.

        Complexity: O(n log n), and O(log k) renormalisations of at most about 2k tokens.
        """
        p = np.exp(log_p)
        order = np.argsort(-p, kind="stable")
        ranked = p[order]
        ranked = ranked[: np.count_nonzero(ranked)]
        ranked /= ranked.sum()
        retained = self.renormalised(ranked[: self.best_k(ranked)])
        distribution = np.zeros_like(p)
        distribution[order[: len(retained)]] = retained
        return distribution

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return inverse_cdf(self.sparse(log_p), generator.random())

    def best_k(self, ranked: NDArray[np.float64]) -> int:
        """Return how many of these probabilities, positive and descending, are retained; the fewest of equal costs."""
        lost = _sums_from_the_end(ranked**self._alpha / (self._alpha * (self._alpha - 1 if self.dual else 1)))

        def cost(k: int) -> float:
            return self._divergence(ranked[:k], self.renormalised(ranked[:k])) + float(lost[k]) + self.penalty * k

        # The divergence is not negative: more tokens than ``max_k`` cost more than a single one.
        max_k = min(len(ranked), max(1, math.floor(cost(1) / self.penalty)))
        low, high = 1, 1
        while high < max_k and cost(high) > cost(high + 1):  # usually few are retained, and few are cheaper to test
            low, high = high + 1, min(2 * high + 1, max_k)
        while low < high:
            middle = (low + high) // 2
            if cost(middle) <= cost(middle + 1):
                high = middle
            else:
                low = middle + 1
        return low

    def renormalised(self, p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the nearest distribution on exactly these tokens, whose probabilities are positive and sum to <= 1.

        No token loses probability: the derivative of the divergence must be the same for all of them, and all together
        have to gain.
        """
        alpha = self._alpha
        total = float(p.sum())
        if alpha == 1 or len(p) == 1 or total >= 1:
            distribution: NDArray[np.float64] = p / total
            return distribution
        if alpha == 2:
            return np.asarray(p + (1 - total) / len(p))
        return _dual(p, alpha) if self.dual else _primal(p, alpha)

    @property
    def _alpha(self) -> float:
        """``alpha``; near 1 the general formulas suffer from cancellation."""
        return 1.0 if abs(self.alpha - 1) < _NEAR_ONE else self.alpha

    def _divergence(self, p: NDArray[np.float64], q: NDArray[np.float64]) -> float:
        """The retained tokens' part of the divergence."""
        alpha = self._alpha
        if alpha == 1:
            return float((q * np.log(q / p) - q + p).sum())
        x, y = (p, q) if self.dual else (q, p)
        parts = (x**alpha - y**alpha) / (alpha * (alpha - 1)) - y ** (alpha - 1) * (x - y) / (alpha - 1)
        return float(parts.sum())


def _primal(p: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """``q`` with ``q**(alpha - 1) = p**(alpha - 1) + shift``, with the ``shift`` for which it sums to 1."""
    base, power = p ** (alpha - 1), 1 / (alpha - 1)

    def distribution_at(shift: float) -> _DistributionAndSlope:
        return (base + shift) ** power, power * (base + shift) ** (power - 1)

    # Above 2 the sum is concave in the shift, and at most 1 without any; otherwise it is convex, and at least 1 where
    # the most probable token alone has probability 1.
    return _summing_to_one(distribution_at, 0.0 if alpha > 2 else 1 - float(base[0]))


def _dual(p: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    """``q`` with ``q**(alpha - 2) * (q - p) = gain``, with the ``gain`` for which it sums to 1."""

    def distribution_at(gain: float) -> _DistributionAndSlope:
        # From p on, up to 1, the left side grows with q, and is concave below 2 and convex above it.
        distribution = np.ones_like(p) if alpha > 2 else p.copy()
        for _ in range(_ROUNDS):
            steps = (distribution ** (alpha - 2) * (distribution - p) - gain) / _slope(distribution, p, alpha)
            distribution -= steps
            if (np.abs(steps) <= _CLOSE * distribution).all():
                break
        return distribution, 1 / _slope(distribution, p, alpha)

    return _summing_to_one(distribution_at, 0.0 if alpha > 2 else 1 - float(p[0]))


def _slope(q: NDArray[np.float64], p: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    slope: NDArray[np.float64] = q ** (alpha - 3) * ((alpha - 1) * q + (2 - alpha) * p)
    return slope


def _summing_to_one(distribution_at: Callable[[float], _DistributionAndSlope], start: float) -> NDArray[np.float64]:
    """The vector that sums to 1 in an increasing family, by Newton's method.

    Args:
        distribution_at: the vector at a parameter, and its derivative.
        start: on the side on which tangents of the sum do not overshoot.
    """
    parameter = start
    for _ in range(_ROUNDS):
        distribution, slope = distribution_at(parameter)
        step = float(distribution.sum() - 1) / float(slope.sum())
        parameter -= step
        if abs(step) <= _CLOSE * abs(parameter):
            break
    distribution, _ = distribution_at(parameter)
    normalised: NDArray[np.float64] = distribution / distribution.sum()
    return normalised


def _sums_from_the_end(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sum of all values from each index on, and 0 after the last."""
    sums: NDArray[np.float64] = np.append(np.cumsum(values[::-1])[::-1], 0.0)
    return sums
