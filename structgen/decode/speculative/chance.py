"""The random decisions of a verifier, behind two questions.

Whoever answers them decides what a verification is: with a generator of random numbers it is one run; with exact
fractions and every answer in turn, it is the whole law (as the tests ask).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

from structgen.decode.sampler import inverse_cdf

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Chance", "Random"]


class Chance(Protocol):
    """Answers what is left to chance."""

    def coin(self, probability: Any, /) -> bool:
        """Return True with ``probability``; one of 1 or more is True, one of 0 or less is False."""

    def draw(self, weights: NDArray[Any], /) -> int:
        """Return an index with a probability proportional to its weight ``[n]``; not all of them are 0."""


@final
class Random:
    """One run, by a generator of random numbers."""

    __slots__ = ("_generator",)

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator

    def coin(self, probability: float, /) -> bool:
        """See ``Chance.coin``."""
        return bool(self._generator.random() < probability)

    def draw(self, weights: NDArray[np.float64], /) -> int:
        """See ``Chance.draw``."""
        return inverse_cdf(weights, self._generator.random())
