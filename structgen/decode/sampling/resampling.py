"""Which particles go on: resampling schemes.

Each draws ``count`` indices such that index ``i`` comes up ``count w_i`` times on average, which keeps sequential Monte
Carlo unbiased; they differ in how much more than that is random.

Source: R. Douc and O. Cappé, "Comparison of resampling schemes for particle filtering" (2005).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["RESAMPLING", "Resampling", "resample"]

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
    return _at(weights, generator.random(count))


def _stratified(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    return _at(weights, (np.arange(count) + generator.random(count)) / count)


def _systematic(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    return _at(weights, (np.arange(count) + generator.random()) / count)


def _residual(weights: NDArray[np.float64], count: int, generator: np.random.Generator) -> NDArray[np.intp]:
    expected = weights * count
    wholes = np.floor(expected).astype(np.intp)
    kept = np.repeat(np.arange(len(weights)), wholes)
    rest = count - len(kept)
    if rest <= 0:
        return kept[:count]
    left = expected - wholes
    return np.concatenate((kept, _at(left / left.sum(), generator.random(rest))))


def _at(weights: NDArray[np.float64], positions: NDArray[np.float64]) -> NDArray[np.intp]:
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
