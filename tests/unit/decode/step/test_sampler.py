"""Samplers, against their definitions in plain Python."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray

from structgen.decode.step.sampler import Greedy, Multinomial, Sampler, inverse_cdf


def log_probabilities(weights: list[float]) -> NDArray[np.float64]:
    values = np.log(np.array(weights, dtype=np.float64))
    return values - np.log(np.exp(values).sum())


def plainly_shaped(log_p: list[float], sampler: Multinomial) -> list[float]:
    """Temperature, top-k, top-p, min-p in this order, each renormalised; ties keep the lowest index."""
    weights = [math.exp(value / sampler.temperature) for value in log_p]
    total = math.fsum(weights)
    p = [weight / total for weight in weights]
    by_rank = sorted(range(len(p)), key=lambda i: (-log_p[i], i))
    if sampler.top_k is not None:
        p = [p[i] if i in by_rank[: sampler.top_k] else 0.0 for i in range(len(p))]
    if sampler.top_p is not None:
        total, running, kept = math.fsum(p), 0.0, set()
        for i in by_rank:
            if running >= sampler.top_p * total:
                break
            kept.add(i)
            running += p[i]
        p = [p[i] if i in kept else 0.0 for i in range(len(p))]
    if sampler.min_p is not None:
        p = [value if value >= sampler.min_p * max(p) else 0.0 for value in p]
    total = math.fsum(p)
    return [value / total for value in p]


SHAPES = [
    Multinomial(),
    Multinomial(temperature=0.5),
    Multinomial(temperature=3.0),
    Multinomial(top_k=1),
    Multinomial(top_k=4),
    Multinomial(top_p=0.3),
    Multinomial(top_p=0.999),
    Multinomial(min_p=0.25),
    Multinomial(temperature=0.7, top_k=6, top_p=0.8, min_p=0.1),
    Multinomial(temperature=1.9, top_k=3, top_p=0.5),
]


@pytest.mark.parametrize("sampler", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_shapes_are_the_definitions(sampler: Multinomial, seed: int) -> None:
    """The weights after shaping are those of the definitions, in the documented order."""
    log_p = log_probabilities(np.random.default_rng(seed).random(40).tolist())
    weights = sampler.shaped(log_p)
    assert (weights / weights.sum()).tolist() == pytest.approx(plainly_shaped(log_p.tolist(), sampler), abs=1e-12)


@pytest.mark.parametrize("sampler", SHAPES, ids=str)
def test_shaping_leaves_its_input(sampler: Multinomial) -> None:
    """The given distribution is not modified."""
    log_p = log_probabilities([1, 2, 3, 4])
    before = log_p.copy()
    sampler.draw(log_p, np.random.default_rng(0))
    assert (log_p == before).all()


def test_top_k_breaks_ties_by_the_lowest_id() -> None:
    """Of equally probable tokens at the threshold, those with the lowest ids are kept, up to exactly k."""
    log_p = log_probabilities([1, 1, 2, 1, 1])
    assert np.flatnonzero(Multinomial(top_k=3).shaped(log_p)).tolist() == [0, 1, 2]


def test_top_p_of_a_flat_distribution_keeps_the_fewest() -> None:
    """Half of the mass of ten equal tokens is the first five."""
    log_p = log_probabilities([1] * 10)
    assert np.flatnonzero(Multinomial(top_p=0.5).shaped(log_p)).tolist() == [0, 1, 2, 3, 4]


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]), min_size=1, max_size=1_400).filter(any),
    st.floats(0, 1, exclude_max=True),
)
def test_inverse_cdf_is_the_first_index_beyond_the_number(weights: list[float], uniform: float) -> None:
    """The index is the first whose running sum exceeds the number, also over several blocks."""
    target = uniform * math.fsum(weights)  # the running sums of these weights need no rounding
    running, expected = 0.0, 0
    for expected, weight in enumerate(weights):  # noqa: B007
        running += weight
        if running > target:
            break
    assert inverse_cdf(np.array(weights), uniform) == expected


def test_inverse_cdf_at_the_last_number_below_one() -> None:
    """A number that rounding carries to the sum of all weights still gives an index with positive weight."""
    weights = np.array([0.1] * 10 + [0.0] * 3)
    assert inverse_cdf(weights, math.nextafter(1, 0)) == 9
    assert inverse_cdf(weights, 1.0) == 9


def test_an_even_grid_of_numbers_gives_the_distribution() -> None:
    """Inverting a grid of uniform numbers gives each token a count in proportion to its probability."""
    weights = np.array([1.0, 0.0, 2.0, 5.0])
    counts = Counter(inverse_cdf(weights, (i + 0.5) / 8) for i in range(8))
    assert counts == {0: 1, 2: 2, 3: 5}


def test_one_uniform_number_a_token() -> None:
    """The generator advances by one number for each draw, whatever the shape."""
    log_p = log_probabilities(list(range(1, 2_000)))
    for sampler in SHAPES:
        ours, other = np.random.default_rng(3), np.random.default_rng(3)
        sampler.draw(log_p, ours)
        other.random()
        assert ours.random() == other.random()


def test_draws_are_the_same_everywhere() -> None:
    """A seed gives fixed tokens, so that no change of the algorithm goes unnoticed."""
    log_p = log_probabilities([math.sqrt(i) for i in range(1, 5_001)])
    generator = np.random.Generator(np.random.PCG64(7))
    sums = np.cumsum([math.sqrt(i) for i in range(1, 5_001)])
    numbers = np.random.Generator(np.random.PCG64(7)).random(5)
    expected = [int(np.argmax(sums > number * sums[-1])) for number in numbers]
    assert [Multinomial().draw(log_p, generator) for _ in range(5)] == expected
    assert expected == [3655, 4651, 4221, 1850, 2241]


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    """Ties go to the lowest id, and no random number is used."""
    generator = np.random.default_rng(0)
    assert Greedy().draw(log_probabilities([1, 3, 3, 2]), generator) == 1
    assert generator.random() == np.random.default_rng(0).random()


@pytest.mark.parametrize(
    ("sampler", "lossless"),
    [
        (Greedy(), False),
        (Multinomial(), True),
        (Multinomial(top_p=1.0, min_p=0.0), True),
        (Multinomial(temperature=0.9), False),
        (Multinomial(top_k=1000), False),
        (Multinomial(top_p=0.9), False),
        (Multinomial(min_p=0.1), False),
    ],
    ids=str,
)
def test_lossless_only_without_shaping(sampler: Sampler, lossless: bool) -> None:
    """Only temperature 1 without truncation samples from the masked distribution itself."""
    assert sampler.lossless is lossless
    assert isinstance(sampler, Sampler)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": 0},
        {"top_k": 2.5},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"min_p": -0.1},
        {"min_p": 1.1},
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(values: dict[str, Any]) -> None:
    """Each invalid value is refused by name."""
    with pytest.raises(ValueError, match=next(iter(values))):
        Multinomial(**values)


def test_samplers_are_values() -> None:
    """Equal settings are equal and hash alike, and cannot be changed."""
    assert Multinomial(top_k=3) == Multinomial(top_k=3)
    assert len({Greedy(), Greedy(), Multinomial()}) == 2
    with pytest.raises(FrozenInstanceError):
        Multinomial().temperature = 2.0  # type: ignore[misc]
