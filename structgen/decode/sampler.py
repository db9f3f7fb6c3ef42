"""How a token is chosen from the projection: samplers are values, the randomness is handed in.

The order is fixed: the mask excludes, the rest is renormalised (``structgen.decode.projection``), and only then do
temperature, top-k, top-p and min-p shape what is left, in this order, each on the renormalised outcome of the one
before.  Shaping after the mask means that top-k counts allowed tokens and can never remove all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

__all__ = ["Greedy", "Multinomial", "Sampler"]

BLOCK: Final = 512
"""Weights that are summed together, where few of them are looked at one by one."""


@runtime_checkable
class Sampler(Protocol):
    """Chooses one of the tokens of a projection."""

    @property
    def lossless(self) -> bool:
        """Whether tokens come from the projection itself, not from a law made from it."""

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """Return an index into ``log_p``, normalised log-probabilities ``[n]`` in ascending order of token id.

        Called only where there are two choices or more; must leave ``log_p`` as it is.
        """


@final
@dataclass(frozen=True, slots=True)
class Greedy:
    """The most probable token; of equally probable ones that with the lowest id.  Draws no random number."""

    lossless: ClassVar[bool] = False
    target: ClassVar[str] = "the most probable token of each step"

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return int(log_p.argmax())


@final
@dataclass(frozen=True, slots=True)
class Multinomial:
    """A token drawn with its probability.

    One uniform number a token, turned into a token by the inverse distribution function in the order of token ids, in
    float64: the same seed gives the same tokens on every machine, but for uniform numbers within rounding error
    (about 1e-13) of a boundary.

    Attributes:
        temperature: logits are divided by it; 1 leaves them.
        top_k: only the ``top_k`` most probable tokens (of equal ones those with the lowest ids); None is all.
        top_p: only the fewest most probable tokens that have at least this probability together; None is all.
        min_p: only tokens with at least ``min_p`` times the probability of the most probable one; None is all.

    Raises:
        ValueError: a value is out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    target: ClassVar[str] = "locally constrained decoding: the projection at each step, as it is shaped"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise ValueError(
                f"Multinomial: temperature must be positive and finite; found {self.temperature!r}; "
                "use Greedy() for the most probable token"
            )
        if self.top_k is not None and (not isinstance(self.top_k, int) or self.top_k < 1):
            raise ValueError(f"Multinomial: top_k must be an integer of at least 1; found {self.top_k!r}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"Multinomial: top_p must be in (0, 1]; found {self.top_p!r}")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ValueError(f"Multinomial: min_p must be in [0, 1]; found {self.min_p!r}")

    @property
    def lossless(self) -> bool:
        """Whether nothing is shaped: temperature 1 and no truncation."""
        return self.temperature == 1 and self.top_k is None and self.top_p in (None, 1) and self.min_p in (None, 0)

    def shaped(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weights (not normalised, the largest is 1) after temperature and truncation, float64 ``[n]``."""
        weights: NDArray[np.float64] = log_p - log_p.max()
        if self.temperature != 1:
            weights /= self.temperature
        np.exp(weights, out=weights)
        if self.top_k is not None and self.top_k < len(weights):
            weights = _keep_top_k(weights, self.top_k)
        if self.top_p is not None and self.top_p < 1:
            weights = _keep_top_p(weights, self.top_p)
        if self.min_p is not None:
            weights[weights < self.min_p] = 0  # the largest weight is 1
        return weights

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return inverse_cdf(self.shaped(log_p), generator.random())


def inverse_cdf(weights: NDArray[np.float64], uniform: float) -> int:
    """The smallest index at which the running sum of ``weights`` exceeds ``uniform`` times their sum.

    Sums go over blocks first, so that only one block needs running sums; never returns an index of weight zero.
    """
    return index_at(weights, block_sums(weights), uniform)


def block_sums(weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The sums of ``BLOCK`` weights each."""
    sums: NDArray[np.float64] = np.add.reduceat(weights, np.arange(0, len(weights), BLOCK))
    return sums


def index_at(weights: NDArray[np.float64], blocks: NDArray[np.float64], uniform: float) -> int:
    """As ``inverse_cdf``, with ``block_sums(weights)`` at hand."""
    sums = np.cumsum(blocks)
    target = uniform * sums[-1]
    block = int(np.searchsorted(sums, target, side="right"))
    if block == len(sums):  # uniform times the sum was rounded up to the sum
        return int(np.flatnonzero(weights)[-1])
    before = sums[block - 1] if block else 0.0
    start = block * BLOCK
    inside = before + np.cumsum(weights[start : start + BLOCK])
    index = int(np.searchsorted(inside, target, side="right"))
    if index == len(inside):  # the two sums of the block differ in the last bit
        return start + int(np.flatnonzero(weights[start : start + BLOCK])[-1])
    return start + index


def _keep_top_k(weights: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    least = np.partition(weights, len(weights) - k)[len(weights) - k]
    kept = np.where(weights > least, weights, 0)
    equal = np.flatnonzero(weights == least)[: k - np.count_nonzero(kept)]
    kept[equal] = least
    return kept


def _keep_top_p(weights: NDArray[np.float64], p: float) -> NDArray[np.float64]:
    total = weights.sum()
    # Tokens below this share have less than 1 - p together, so the nucleus is among the others.
    candidates = np.flatnonzero(weights >= (1 - p) * total / len(weights))
    order = candidates[np.argsort(-weights[candidates], kind="stable")]
    count = int(np.searchsorted(np.cumsum(weights[order]), p * total, side="left")) + 1
    kept = np.zeros_like(weights)
    kept[order[:count]] = weights[order[:count]]
    return kept
