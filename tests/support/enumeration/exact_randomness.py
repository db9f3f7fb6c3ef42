"""Random computations with all outcomes enumerated, each with its probability as an exact fraction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import TypeVar

Result = TypeVar("Result")


class Chances:
    """Decisions: first those of ``script``, then always the first possible one.

    Attributes:
        probability: of all decisions so far.
        others: scripts that decide otherwise somewhere.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.probability = Fraction(1)
        self.others: list[list[int]] = []
        self._script = script
        self._made: list[int] = []

    def choose(self, weights: Sequence[Fraction]) -> int:
        """Decide for an index, with probability proportional to the weights."""
        possible = [index for index, weight in enumerate(weights) if weight]
        if len(self._made) < len(self._script):
            chosen = self._script[len(self._made)]
        else:
            chosen = possible[0]
            self.others += [[*self._made, other] for other in possible[1:]]
        self._made.append(chosen)
        self.probability *= weights[chosen] / sum(weights)
        return chosen


def outcomes(run: Callable[[Chances], Result]) -> Iterator[tuple[Fraction, Result]]:
    """Every outcome of a random computation with its probability; the probabilities sum to 1."""
    scripts: list[list[int]] = [[]]
    while scripts:
        chances = Chances(scripts.pop())
        result = run(chances)
        yield chances.probability, result
        scripts += chances.others


class ExactWithoutReplacement:
    """``structgen.decode.step.without_replacement.WithoutReplacement`` in fractions."""

    def __init__(self, distribution: Sequence[Fraction], chances: Chances) -> None:
        self._distribution = distribution
        self._inside = list(distribution)
        self._chances = chances

    @property
    def left(self) -> Fraction:
        return sum(self._inside, Fraction(0))

    @property
    def is_empty(self) -> bool:
        return not self.left

    def probability(self, token: int) -> Fraction:
        return self._distribution[token]

    def take(self) -> int:
        token = self._chances.choose(self._inside)
        self._inside[token] = Fraction(0)
        return token

    def put_back(self, token: int) -> None:
        self._inside[token] = self._distribution[token]

    def misses(self, most: float) -> float:
        """See ``WithoutReplacement.misses``; ``most`` is finite."""
        left = self.left
        fewer = [(1 - left) ** count * left for count in range(int(most))]
        return self._chances.choose([*fewer, (1 - left) ** int(most)])
