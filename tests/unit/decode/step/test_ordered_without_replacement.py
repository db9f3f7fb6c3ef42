"""A sampler without replacement over an order: by enumeration of all orders, and of the estimators over it."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np
import pytest
from ordered_without_replacement import OrderedWithoutReplacement

from structgen.decode.step.without_replacement import sample_recursive

Entry = tuple[int, float, float]


def orders(distribution: Sequence[float]) -> Iterator[tuple[float, list[Entry]]]:
    """Every order of the tokens of positive probability, with its probability."""
    possible = [token for token, p in enumerate(distribution) if p]
    for order in permutations(possible):
        chance, entries = 1.0, []
        for place, token in enumerate(order):
            left = math.fsum(distribution[each] for each in order[place:])
            entries.append((token, math.log(distribution[token]), math.log(left)))
            chance *= distribution[token] / left
        yield chance, entries


@pytest.mark.parametrize("seed", range(30))
def test_weights_are_right_on_average_for_every_token(seed: int) -> None:
    rng = random.Random(seed)
    weights = [rng.choice((0, 1, 1e-9, 2, 5, 9)) for _ in range(rng.randint(1, 5))]
    weights[rng.randrange(len(weights))] = 3
    distribution = [weight / sum(weights) for weight in weights]
    admitted = [rng.random() < 0.5 for _ in distribution]
    rejects = rng.choice((None, 1, 2, 3))
    found = [0.0] * len(distribution)
    for chance, order in orders(distribution):
        sampled = sample_recursive(
            OrderedWithoutReplacement(order, np.random.default_rng(0)), admitted.__getitem__, max_rejects=rejects
        )
        if sampled.token is not None:
            found[sampled.token] += chance * sampled.weight
    expected = [p if ok else 0.0 for p, ok in zip(distribution, admitted, strict=True)]
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_no_more_is_read_than_is_taken() -> None:
    read = []

    def entries() -> Iterator[Entry]:
        for token in range(3):
            read.append(token)
            yield token, math.log(1 / 3), math.log(1 - token / 3)

    sampler = OrderedWithoutReplacement(entries(), np.random.default_rng(0))
    assert sampler.take() == 0
    assert read == [0]
    assert sampler.left == pytest.approx(2 / 3)
    assert read == [0, 1]
    assert [sampler.take(), sampler.take()] == [1, 2]
    assert sampler.is_empty
    assert sampler.left == 0
    with pytest.raises(ValueError, match="empty"):
        sampler.take()


def test_what_is_put_back_comes_with_its_share() -> None:
    distribution = [0.5, 0.3, 0.15, 0.05]
    generator = np.random.default_rng(3)
    times, counts = 40_000, np.zeros(4)
    entries = [(token, math.log(distribution[token]), math.log(sum(distribution[token:]))) for token in range(4)]
    for _ in range(times):
        sampler = OrderedWithoutReplacement(entries, generator)
        assert [sampler.take(), sampler.take(), sampler.take()] == [0, 1, 2]
        sampler.put_back(0)
        sampler.put_back(2)
        assert sampler.left == pytest.approx(0.7)
        counts[sampler.take()] += 1
    expected = times * np.array([0.5, 0.0, 0.15, 0.05]) / 0.7
    kept = expected > 0
    assert counts[1] == 0
    # 2 degrees of freedom: above 27.7 with a probability of 1e-6.
    assert ((counts - expected)[kept] ** 2 / expected[kept]).sum() < 27.7


def test_the_last_ones_that_were_put_back_keep_their_shares() -> None:
    generator = np.random.default_rng(4)
    entries = [(0, math.log(0.75), 0.0), (1, math.log(0.25), math.log(0.25))]
    first = 0
    for _ in range(20_000):
        sampler = OrderedWithoutReplacement(entries, generator)
        for token in (sampler.take(), sampler.take()):
            sampler.put_back(token)
        first += sampler.take() == 0
        sampler.take()
        assert sampler.is_empty
    assert abs(first - 15_000) < 4.9 * math.sqrt(20_000 * 0.75 * 0.25)


def test_misses_are_those_of_what_is_out() -> None:
    entries = [(0, math.log(0.75), 0.0), (1, math.log(0.25), math.log(0.25))]
    generator = np.random.default_rng(5)
    assert OrderedWithoutReplacement(entries, generator).misses(9) == 0
    sampler = OrderedWithoutReplacement(entries, generator)
    sampler.take()
    mean = sum(sampler.misses(1e9) for _ in range(20_000)) / 20_000
    assert abs(mean - 3) < 4.9 * math.sqrt(12 / 20_000)
    sampler.take()
    assert sampler.misses(7) == 7


def test_an_order_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no token"):
        OrderedWithoutReplacement([], np.random.default_rng(0))
