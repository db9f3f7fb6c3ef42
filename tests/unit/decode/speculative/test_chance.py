"""Random decisions in one run."""

from __future__ import annotations

import math

import numpy as np

from structgen.decode.speculative.verifier import GeneratorChance


def test_what_is_certain_is_certain() -> None:
    chance = GeneratorChance(np.random.default_rng(0))
    for _ in range(200):
        assert chance.coin(1)
        assert chance.coin(1.5)
        assert not chance.coin(0)
        assert not chance.coin(-0.5)
        assert chance.draw(np.array([0.0, 3.0, 0.0])) == 1


def test_coins_and_draws_have_their_distribution() -> None:
    """Of 5000, counts are within five standard deviations."""
    chance = GeneratorChance(np.random.default_rng(1))
    assert abs(sum(chance.coin(0.3) for _ in range(5000)) / 5000 - 0.3) < 5 * math.sqrt(0.25 / 5000)
    counts = np.bincount([chance.draw(np.array([1.0, 0.0, 3.0])) for _ in range(5000)], minlength=3)
    assert counts[1] == 0
    assert abs(counts[2] / 5000 - 0.75) < 5 * math.sqrt(0.25 / 5000)


def test_the_same_seed_gives_the_same_answers() -> None:
    first, second = (GeneratorChance(np.random.default_rng(2)) for _ in range(2))
    distribution = np.full(1000, 0.001)
    assert [first.draw(distribution) for _ in range(20)] == [second.draw(distribution) for _ in range(20)]
    assert [first.coin(0.5) for _ in range(20)] == [second.coin(0.5) for _ in range(20)]
