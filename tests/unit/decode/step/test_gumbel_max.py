"""Sampling with fixed noise: its distribution, and that it depends on nothing but the key."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

from structgen.decode.step.sampler import (
    GumbelMax,
    Multinomial,
    Sampler,
    choose_by_noise,
    exponential_noise,
    noise_key,
)

WORD = (1 << 64) - 1


def split_mix(seed: int, place: int) -> int:
    """The number at a place of SplitMix64's published sequence, in Python's integers."""
    state = seed
    for _ in range(place + 1):
        state = (state + 0x9E3779B97F4A7C15) & WORD
    word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def test_it_is_a_sampler() -> None:
    assert isinstance(GumbelMax(), Sampler)
    assert GumbelMax().lossless
    assert not GumbelMax(Multinomial(temperature=0.5)).lossless


def test_the_generator_is_split_mix() -> None:
    # The first numbers from seed 1234567 are published with the generator.
    assert [split_mix(1234567, place) for place in range(3)] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]
    for key in (0, 1234567, WORD, 1 << 63):
        ids = np.array([0, 1, 2, 5, 40])
        wanted = [-math.log(((split_mix(key, int(each)) >> 12) + 0.5) / 2**52) for each in ids]
        assert exponential_noise(key, ids) == pytest.approx(wanted, rel=1e-14)


def test_the_largest_and_the_smallest_number_are_finite() -> None:
    for word in (0, WORD):
        uniform = np.array([(word >> 12) + 0.5]) * 2.0**-52
        assert 0 < uniform[0] < 1


def test_noise_of_some_ids_is_part_of_the_noise_of_all() -> None:
    ids = np.array([3, 0, 4000])
    assert (exponential_noise(7, ids) == exponential_noise(7, np.arange(5000))[ids]).all()
    assert len(exponential_noise(7, ids[:0])) == 0


def test_noise_has_its_distribution() -> None:
    """Of 2e5 numbers, the statistics are within five standard deviations."""
    noise = np.concatenate([exponential_noise(key, np.arange(2000)) for key in range(100)])
    assert abs(noise.mean() - 1) < 5 / math.sqrt(len(noise))
    for quantile in (0.001, 0.1, 0.5, 0.9, 0.999):
        share = (noise < -math.log1p(-quantile)).mean()
        assert abs(share - quantile) < 5 * math.sqrt(quantile * (1 - quantile) / len(noise))
    by_key = noise.reshape(100, 2000)
    neighbours = np.corrcoef(by_key[:, :-1].ravel(), by_key[:, 1:].ravel())[0, 1]
    keys = np.corrcoef(by_key[:-1].ravel(), by_key[1:].ravel())[0, 1]
    assert max(abs(neighbours), abs(keys)) < 5 / math.sqrt(len(noise))


@pytest.mark.exhaustive
def test_tokens_have_their_distribution() -> None:
    distribution = np.array([0.5, 0.0, 0.3, 0.15, 0.05])
    generator = np.random.default_rng(0)
    counts = np.zeros(5)
    draws = 20_000
    for _ in range(draws):
        counts[GumbelMax().draw(np.log(distribution, where=distribution > 0, out=np.full(5, -np.inf)), generator)] += 1
    assert counts[1] == 0
    bound = 5 * np.sqrt(distribution * (1 - distribution) / draws)
    assert (np.abs(counts / draws - distribution) <= bound).all()


def test_shaped_distributions_are_those_of_multinomial() -> None:
    shape = Multinomial(temperature=0.5, top_k=2)
    log_p = np.log(np.array([0.1, 0.4, 0.2, 0.3]))
    generator = np.random.default_rng(1)
    found = np.bincount([GumbelMax(shape).draw(log_p, generator) for _ in range(5000)], minlength=4) / 5000
    wanted = shape.shaped(log_p) / shape.shaped(log_p).sum()
    assert (found[[0, 2]] == 0).all()
    assert abs(found[1] - wanted[1]) < 5 * math.sqrt(0.25 / 5000)


def test_one_number_is_taken_for_each_choice_and_they_can_be_known_before() -> None:
    generator, other = np.random.default_rng(3), np.random.default_rng(3)
    copied = copy.deepcopy(generator)
    keys = [noise_key(copied) for _ in range(4)]
    distributions = [np.log(np.random.default_rng(each).dirichlet(np.ones(6))) for each in range(4)]
    chosen = [GumbelMax().draw(distribution, generator) for distribution in distributions]
    assert chosen == [
        GumbelMax().choose(distribution, key) for distribution, key in zip(distributions, keys, strict=True)
    ]
    for _ in range(4):
        noise_key(other)
    assert generator.random() == other.random()


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.MT19937, np.random.SFC64])
def test_any_generator_will_do(kind: type[np.random.BitGenerator]) -> None:
    generator = np.random.Generator(kind(1))
    generator.integers(0, 5, dtype=np.uint32)  # some keep half a number back
    keys = [noise_key(generator) for _ in range(3)]
    assert len(set(keys)) == 3
    assert all(0 <= key <= WORD for key in keys)


def test_what_is_chosen_is_the_largest_perturbed_logarithm() -> None:
    for key in range(200):
        weights = np.random.default_rng(key).dirichlet(np.ones(30))
        weights[key % 30] = 0
        ids = np.arange(30) * 7
        with np.errstate(divide="ignore"):
            for chosen, of in (
                (choose_by_noise(weights, key, ids), ids),
                (choose_by_noise(weights, key), np.arange(30)),
            ):
                gumbel = -np.log(exponential_noise(key, of))
                assert chosen == (np.log(weights) + gumbel).argmax()


def test_it_leaves_the_distribution_as_it_is_and_takes_one_that_is_certain() -> None:
    log_p = np.array([-np.inf, 0.0, -np.inf])
    before = log_p.copy()
    assert GumbelMax().choose(log_p, 5) == 1
    assert (log_p == before).all()
