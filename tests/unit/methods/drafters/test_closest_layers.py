"""The dynamic program over layers, against its literal recursion and against all sets of layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from structgen.methods.drafters.layer_skip import closest_layers

Network = Callable[[int, NDArray[np.float32]], NDArray[np.float32]]


def random_network(seed: int, layers: int, width: int = 6) -> tuple[Network, NDArray[np.float32]]:
    """Blocks that add a function of their input, like those of a transformer."""
    random = np.random.default_rng(seed)
    into = random.normal(size=(layers, width, width))
    out = random.normal(size=(layers, width, width)) / 2

    def through(layer: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = (states + np.tanh(states @ into[layer]) @ out[layer]).astype(np.float32)
        return found

    return through, random.normal(size=width).astype(np.float32)


def cosine(first: NDArray[np.float32], second: NDArray[np.float32]) -> float:
    return float(first @ second / np.linalg.norm(first) / np.linalg.norm(second))


def literal(through: Network, start: NDArray[np.float32], layers: int, skipped: int) -> tuple[int, ...]:
    """The recursion as published, from the end, one state at a time."""

    def layer(index: int, state: NDArray[np.float32]) -> NDArray[np.float32]:
        return through(index, state[None])[0]

    @cache
    def whole(depth: int) -> NDArray[np.float32]:
        return start if depth == 0 else layer(depth - 1, whole(depth - 1))

    @cache
    def best(depth: int, left_out: int) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        if depth == 0:
            return start, ()
        found = []
        if left_out < depth:
            state, kept = best(depth - 1, left_out)
            found.append((layer(depth - 1, state), (*kept, depth - 1)))
        if left_out:
            found.append(best(depth - 1, left_out - 1))
        return max(found, key=lambda each: cosine(each[0], whole(depth)))

    return best(layers, skipped)[1]


def ending(through: Network, start: NDArray[np.float32], kept: tuple[int, ...]) -> NDArray[np.float32]:
    state = start[None]
    for layer in kept:
        state = through(layer, state)
    return state[0]


@pytest.mark.parametrize("layers", range(1, 8))
@pytest.mark.parametrize("seed", range(6))
def test_it_is_the_recursion(seed: int, layers: int) -> None:
    through, start = random_network(seed, layers)
    for skipped in range(layers + 1):
        kept = closest_layers(through, start, layers=layers, skipped=skipped)
        assert kept == literal(through, start, layers, skipped)
        assert len(kept) == layers - skipped


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_best_set_where_layers_are_independent(seed: int) -> None:
    """For layers that add orthogonal constants the program finds the best set."""
    random = np.random.default_rng(seed)
    layers = 7
    steps = np.zeros((layers, layers + 1), dtype=np.float32)
    steps[np.arange(layers), 1 + random.permutation(layers)] = random.permutation(layers) + 1.0
    start = np.eye(layers + 1, dtype=np.float32)[0]

    def through(layer: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = states + steps[layer]
        return found

    target = ending(through, start, tuple(range(layers)))
    for skipped in range(layers + 1):
        kept = closest_layers(through, start, layers=layers, skipped=skipped)
        sets = combinations(range(layers), layers - skipped)
        best = max(cosine(ending(through, start, each), target) for each in sets)
        assert cosine(ending(through, start, kept), target) == pytest.approx(best, abs=1e-6)


def test_it_is_not_the_best_set_in_general_but_close_to_it() -> None:
    """Over random networks it is sometimes worse than the best set, but in the best quarter of all sets."""
    ranks = []
    for seed in range(40):
        through, start = random_network(seed, 7)
        target = ending(through, start, tuple(range(7)))
        kept = closest_layers(through, start, layers=7, skipped=3)
        mine = cosine(ending(through, start, kept), target)
        others = [cosine(ending(through, start, each), target) for each in combinations(range(7), 4)]
        assert mine <= max(others) + 1e-6
        ranks.append(sum(other > mine + 1e-6 for other in others) / len(others))
    assert 0 < np.mean(ranks) < 0.25


def test_each_layer_runs_once_on_few_rows() -> None:
    through, start = random_network(1, 7)
    calls: list[tuple[int, int]] = []

    def counted(layer: int, states: NDArray[np.float32]) -> NDArray[np.float32]:
        calls.append((layer, len(states)))
        return through(layer, states)

    closest_layers(counted, start, layers=7, skipped=2)
    assert calls == [(0, 1), (1, 2), (2, 3), (3, 3), (4, 3), (5, 3), (6, 3)]


def test_impossible_numbers_are_refused() -> None:
    through, start = random_network(1, 3)
    for skipped in (-1, 4):
        with pytest.raises(ValueError, match="between 0 and 3"):
            closest_layers(through, start, layers=3, skipped=skipped)
