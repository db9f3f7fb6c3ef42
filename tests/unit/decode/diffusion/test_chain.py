"""Messages along the slots, against numpy and against enumeration of all runs."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from canvas_enumeration import chi_square, chi_square_bound
from structgen_kernels import _native

from structgen.decode.diffusion.regular import Chain, Edges

STATES, LABELS = 4, 3


def a_chain(seed: int, *, is_max: bool, slots: int = 4, scale: float = 1.0) -> Chain:
    """Random edges, some of them parallel, and random weights, some of them minus infinity."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 14))
    edges = Edges(
        STATES,
        LABELS,
        rng.random(STATES) < 0.6,
        *(rng.integers(0, most, count).astype(np.int32) for most in (STATES, STATES, LABELS)),
    )
    weights = scale * np.log(rng.integers(1, 10, (slots, LABELS)) / 16.0)
    weights[rng.random((slots, LABELS)) < 0.15] = -np.inf
    return Chain(edges, weights, is_max=is_max)


def runs(chain: Chain) -> dict[tuple[int, ...], float]:
    """The log weight of every run of edges from the start to acceptance."""
    edges, found = chain.edges, {}
    for run in product(range(len(edges.source)), repeat=len(chain.weights)):
        states = [0, *(int(edges.target[edge]) for edge in run)]
        if all(edges.source[edge] == state for edge, state in zip(run, states, strict=False)):
            weight = sum(chain.weights[slot, edges.label[edge]] for slot, edge in enumerate(run))
            if edges.final[states[-1]] and weight > -math.inf:
                found[run] = weight
    return found


def total(weights: list[float], *, is_max: bool) -> float:
    if not weights:
        return -math.inf
    return max(weights) if is_max else math.log(sum(map(math.exp, weights)))


@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_messages_are_what_all_runs_weigh(seed: int, is_max: bool) -> None:
    """Messages give the total mass, the mass through every state, and the mass around every label."""
    chain = a_chain(seed, is_max=is_max, slots=3)
    found = runs(chain)
    edges = chain.edges
    assert chain.total == pytest.approx(total(list(found.values()), is_max=is_max), abs=1e-12)
    through = chain.forward() + chain.backward
    around = chain.label_masses() + chain.weights
    for slot in range(3):
        for state in range(STATES):
            of = [weight for run, weight in found.items() if edges.source[run[slot]] == state]
            assert through[slot, state] == pytest.approx(total(of, is_max=is_max), abs=1e-12)
        for label in range(LABELS):
            of = [weight for run, weight in found.items() if edges.label[run[slot]] == label]
            assert around[slot, label] == pytest.approx(total(of, is_max=is_max), abs=1e-12)
    if found and is_max:
        assert found[tuple(chain.run().tolist())] == pytest.approx(max(found.values()), abs=1e-12)


def reference(chain: Chain) -> np.ndarray:
    """Backward messages by numpy."""
    edges, made = chain.edges, np.full((len(chain.weights) + 1, chain.edges.states), -np.inf)
    made[-1, edges.final] = 0.0
    for slot in reversed(range(len(chain.weights))):
        through = chain.weights[slot][edges.label] + made[slot + 1][edges.target]
        (np.maximum if chain.is_max else np.logaddexp).at(made[slot], edges.source, through)
    return made


@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_long_chains_equal_numpy(seed: int, is_max: bool) -> None:
    """What is looked at has all its messages; the rest is not reached from the start, or too far from acceptance."""
    chain = a_chain(seed, is_max=is_max, slots=200)
    backward, reached = reference(chain), chain.reached
    assert chain.backward[reached] == pytest.approx(backward[reached], rel=1e-12, abs=1e-12)
    assert not np.isfinite(chain.backward[~reached]).any()
    assert not (np.isfinite(backward) & prefixes(chain) & ~reached).any()


@pytest.mark.parametrize("scale", [60.0, 150.0, 4_000.0, 1e8])
@pytest.mark.parametrize("seed", range(6))
def test_masses_far_below_any_float_are_kept(seed: int, scale: float) -> None:
    """Sums equal numpy where weights of one slot are further apart than floats reach, and those of runs more so."""
    chain = a_chain(seed, is_max=False, slots=60, scale=scale)
    backward, reached = reference(chain), chain.reached
    assert chain.backward[reached] == pytest.approx(backward[reached], rel=1e-12, abs=1e-12)
    through = np.logaddexp.reduce(chain.forward() + chain.backward, axis=1)  # the same at each boundary
    if np.isfinite(chain.total):
        assert through == pytest.approx(chain.total, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("seed", range(40))
def test_possible_labels_are_those_of_runs(seed: int) -> None:
    """A label is possible in a slot where a run of weight above zero has it there, by enumeration."""
    chain = a_chain(seed, is_max=True, slots=3)
    found, edges = runs(chain), chain.edges
    wanted = np.zeros(chain.weights.shape, dtype=bool)
    for run in found:
        wanted[np.arange(3), edges.label[list(run)]] = True
    allowed = np.isfinite(chain.weights).astype(np.uint8)
    steps, labels, is_any = _native.possible_runs(edges.native, allowed, 1 << 40)
    assert is_any == bool(found)
    assert labels is not None
    assert np.array_equal(labels.astype(bool), wanted)
    if steps:
        assert _native.possible_runs(edges.native, allowed, steps - 1)[1] is None


@pytest.mark.parametrize("seed", range(40))
def test_lengths_of_walks_equal_numpy(seed: int) -> None:
    """The length by which half of the walks have stopped, and whether walks go on, up to the next multiple of eight."""
    rng = np.random.default_rng(seed)
    states, count = 12, int(rng.integers(0, 30))
    source = np.sort(rng.integers(0, states, count)).astype(np.int32)
    target = (rng.integers(0, states, count) if seed % 2 else np.minimum(source + 1, states - 1)).astype(np.int32)
    weights, stop = rng.random(count) + 0.1, np.where(rng.random(states) < 0.4, 0.3, 0.0)
    total = stop + np.bincount(source, weights, states)
    share, stops = weights / total[source], np.divide(stop, total, out=np.zeros(states), where=total > 0)
    at, stopped, typical, longest = np.eye(states)[0], 0.0, 40, 40
    for length in range(40):
        stopped += float(at @ stops)
        if stopped >= 0.5:
            typical = min(typical, length)
        at = np.bincount(target, at[source] * share, states)
        if not at.any():
            longest = length
            break
    steps, lengths = _native.walk_lengths(source, target, share, stops, 0.5, 8, 40, 1 << 40)
    assert lengths is not None
    assert min(lengths[0], lengths[1]) == min(typical, longest)
    rounded = min(-(-lengths[0] // 8) * 8, 40)
    assert min(rounded, lengths[1]) == min(-(-typical // 8) * 8, 40, longest)
    if steps:
        assert _native.walk_lengths(source, target, share, stops, 0.5, 8, 40, steps - 1)[1] is None


def test_scores_of_labels_equal_numpy() -> None:
    """Sums and maxima over the classes of each label, which may be none; and the sums of what labels give classes."""
    rng = np.random.default_rng(5)
    begin = np.array([0, 0, 3, 4, 9], dtype=np.int64)
    classes = rng.integers(0, 6, 9).astype(np.int32)
    scores = 40 * rng.normal(size=(4, 6))
    scores[:, 2] = -np.inf
    for is_max in (True, False):
        made = _native.label_scores(begin, classes, scores, is_max)
        reduce = np.maximum if is_max else np.logaddexp
        wanted = [reduce.reduce(scores[:, classes[a:b]], axis=1, initial=-np.inf) for a, b in pairwise(begin)]
        assert made == pytest.approx(np.stack(wanted, axis=1), rel=1e-12)
    values = rng.random((4, 4))
    sums = np.zeros((4, 6))
    np.add.at(sums, (slice(None), classes), np.repeat(values, np.diff(begin), axis=1))
    assert _native.class_sums(begin, classes, values, 6) == pytest.approx(sums)
    with pytest.raises(ValueError, match="a class is out of range"):
        _native.class_sums(begin, classes, values, 3)
    with pytest.raises(ValueError, match="one list after the other"):
        _native.label_scores(begin[:-1], classes, scores, False)


def prefixes(chain: Chain) -> np.ndarray:
    """The states that runs from the start lead to, bool ``[slots + 1, states]``."""
    edges, made = chain.edges, np.zeros((len(chain.weights) + 1, chain.edges.states), dtype=bool)
    made[0, 0] = True
    for slot, weights in enumerate(chain.weights):
        taken = made[slot][edges.source] & (weights[edges.label] > -np.inf)
        made[slot + 1, edges.target[taken]] = True
    return made


def test_a_chain_takes_what_the_canvas_leaves_open() -> None:
    """Of many branches only the one that a fixed first slot chooses is looked at; a chain stops at its limit."""
    branches, length = 40, 50
    begin = [1 + branch * length for branch in range(branches)]
    states = 1 + branches * length
    inner = np.array([state for state in range(1, states) if (state - 1) % length < length - 1])
    edges = Edges(
        states,
        branches + 1,
        np.arange(states) % length == 0,
        np.concatenate([np.zeros(branches, dtype=np.int32), inner]).astype(np.int32),
        np.concatenate([begin, inner + 1]).astype(np.int32),
        np.concatenate([np.arange(branches), np.full(len(inner), branches)]).astype(np.int32),
    )
    weights = np.zeros((length, branches + 1))
    free = Chain(edges, weights, is_max=True)
    weights[0, 1:branches] = -np.inf
    fixed = Chain(edges, weights, is_max=True)
    assert (free.total, fixed.total) == (0.0, 0.0)
    assert fixed.reached.sum() == length + 1
    assert free.reached.sum() == branches * length + 1
    assert 10 * fixed.steps < free.steps
    assert Chain(edges, weights, is_max=True, max_steps=fixed.steps).is_complete
    assert not Chain(edges, weights, is_max=True, max_steps=fixed.steps - 1).is_complete


def is_uneven(chain: Chain) -> bool:
    """Whether there are some runs, none of them rare, and some weigh several times as much as others."""
    weights = list(runs(chain).values())
    return 5 <= len(weights) <= 40 and 1 < max(weights) - min(weights) < 3


def test_runs_are_sampled_by_their_weight() -> None:
    """Chi-square with alpha 1e-6 over 6,000 draws accepts; the same draws reject the uniform distribution over runs."""
    chain = next(chain for seed in range(200) if is_uneven(chain := a_chain(seed, is_max=False, slots=3)))
    generator = np.random.default_rng(0)
    counts = Counter(tuple(chain.run(generator.random(3)).tolist()) for _ in range(6_000))
    weights = {run: Fraction(math.exp(weight)) for run, weight in runs(chain).items()}
    distribution = {run: weight / sum(weights.values()) for run, weight in weights.items()}
    assert chi_square(counts, distribution) < chi_square_bound(len(distribution))
    assert chi_square(counts, dict.fromkeys(distribution, Fraction(1, len(distribution)))) > chi_square_bound(
        len(distribution)
    )


def test_a_run_of_no_weight_is_never_sampled() -> None:
    """This holds for any uniform number, also 0 and the largest number below 1."""
    none, some = -np.inf, 0.0
    edges = Edges(3, 2, np.array([False, True, False]), *np.array([[0, 0, 0], [2, 1, 2], [0, 0, 1]], dtype=np.int32))
    chain = Chain(edges, np.array([[some, none]]), is_max=False)
    for uniform in (0.0, 0.5, np.nextafter(1.0, 0.0)):
        assert edges.target[chain.run(np.array([uniform]))].tolist() == [1]


def test_a_chain_without_runs_is_an_error_and_not_a_run() -> None:
    edges = Edges(2, 1, np.array([False, True]), *np.zeros((3, 1), dtype=np.int32))
    chain = Chain(edges, np.zeros((2, 1)), is_max=False)
    assert chain.total == -math.inf
    for uniform in (None, np.zeros(2)):
        with pytest.raises(ValueError, match="no run leads on from state 0"):
            chain.run(uniform)


def test_sums_keep_a_range_beyond_all_numbers() -> None:
    """The run of weight exp(-4000) is found beside one of weight 1."""
    edges = Edges(
        3,
        3,
        np.array([False, True, True]),
        *np.array([[0, 0, 1, 2, 2], [1, 2, 1, 2, 2], [0, 1, 0, 1, 1]], dtype=np.int32),
    )
    slots = 400
    chain = Chain(edges, np.tile([0.0, -10.0, 0.0], (slots, 1)), is_max=False)
    rare = slots * -10.0 + (slots - 1) * math.log(2)
    assert chain.total == 0.0
    assert chain.label_masses()[slots - 1, 1] + chain.weights[slots - 1, 1] == pytest.approx(rare, rel=1e-12)


def test_a_million_small_terms_are_not_lost() -> None:
    """Terms far below the largest are left out only where all of them together are negligible."""
    terms = 20_000
    for depth in (-30.0, -36.0):
        edges = Edges(
            1,
            2,
            np.array([True]),
            np.zeros(terms + 1, dtype=np.int32),
            np.zeros(terms + 1, dtype=np.int32),
            np.append(np.ones(terms, dtype=np.int32), np.int32(0)),
        )
        chain = Chain(edges, np.array([[0.0, depth]]), is_max=False)
        assert chain.total == pytest.approx(math.log1p(terms * math.exp(depth)), rel=1e-4, abs=1e-16)


def test_edges_that_point_outside_are_refused() -> None:
    one = np.zeros(1, dtype=np.int32)
    for source, target, label in ((one + 2, one, one), (one, one - 1, one), (one, one, one + 1)):
        with pytest.raises(ValueError, match=r"ChainEdges: (a state|a label)"):
            Edges(2, 1, np.array([True, True]), source, target, label)
    edges = Edges(2, 1, np.array([True, True]), one, one, one)
    with pytest.raises(ValueError, match="a weight for each label"):
        Chain(edges, np.zeros((3, 2)), is_max=True)
    with pytest.raises(ValueError, match="a number for each slot"):
        Chain(edges, np.zeros((3, 1)), is_max=True).run(np.zeros(2))
