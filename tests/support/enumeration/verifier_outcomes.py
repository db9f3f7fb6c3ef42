"""Verifiers run on exact fractions, with every outcome of chance in turn."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from exact_randomness import Chances, outcomes
from numpy.typing import NDArray

Result = TypeVar("Result")
Distribution = NDArray[Any]


class EveryChance:
    """``structgen.decode.speculative.verifier.Chance`` whose outcomes are enumerated.

    Attributes:
        draws: how often an index was sampled.
    """

    def __init__(self, chances: Chances) -> None:
        self._chances = chances
        self.draws = 0

    def coin(self, probability: Any) -> bool:
        heads = min(max(Fraction(probability), Fraction(0)), Fraction(1))
        return self._chances.choose([1 - heads, heads]) == 1

    def draw(self, weights: Sequence[Any] | NDArray[Any]) -> int:
        self.draws += 1
        return self._chances.choose([Fraction(weight) for weight in weights])


def distribution_of(run: Callable[[EveryChance], Result]) -> dict[Result, Fraction]:
    """The probability of every possible outcome; they sum to 1."""
    found: defaultdict[Result, Fraction] = defaultdict(Fraction)
    for probability, result in outcomes(lambda chances: run(EveryChance(chances))):
        if probability:
            found[result] += probability
    assert sum(found.values()) == 1
    return dict(found)


def exact_distribution(weights: Sequence[int | Fraction]) -> Distribution:
    """An object array of fractions that sum to 1."""
    total = sum(weights)
    return np.array([Fraction(weight) / total for weight in weights], dtype=object)


def random_distribution(rng: random.Random, size: int, allowed: Sequence[bool] | None = None) -> Distribution:
    """Some of the probabilities are zero, perhaps those of all allowed tokens."""
    weights = [rng.choice((0, 1, 1, 2, 3, 5, 9)) for _ in range(size)]
    ids = [index for index in range(size) if allowed is None or allowed[index]]
    weights[rng.choice(ids)] += rng.randint(1, 9)
    return exact_distribution([weight if index in ids else 0 for index, weight in enumerate(weights)])


def random_mask(rng: random.Random, size: int) -> list[bool]:
    """At least one is allowed."""
    mask = [rng.random() < 0.6 for _ in range(size)]
    mask[rng.randrange(size)] = True
    return mask


def masked(distribution: Distribution, mask: Sequence[bool]) -> Distribution:
    """The distribution conditional on the allowed tokens; zeros if none of them has positive probability."""
    kept = np.where(np.array(mask), distribution, Fraction(0))
    total = kept.sum()
    return kept / total if total else kept


def sampled_from(q: Distribution, count: int, chance: EveryChance, *, replaced: bool) -> list[int]:
    """Up to ``count`` tokens; fewer if no probability remains."""
    left = q.copy()
    drafts: list[int] = []
    while len(drafts) < count and left.sum() > 0:
        draft = chance.draw(left)
        drafts.append(draft)
        if not replaced:
            left[draft] = Fraction(0)
    return drafts


def as_distribution(found: dict[int, Fraction], size: int) -> list[Fraction]:
    """Probabilities by index."""
    return [found.get(index, Fraction(0)) for index in range(size)]
