"""Extreme floats: no verifier fails, and none accepts a token of target probability zero."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.verifier import (
    ChainVerifier,
    GeneratorChance,
    IndependentRejection,
    RecursiveRejection,
    Verifier,
)
from structgen.methods.verifiers.acceptance_rules import Judge, KSequential, TypicalAcceptance, min_rho
from structgen.methods.verifiers.tree_verification import BlockVerification, ChainSampling, restricted, verify_tree

Distribution = NDArray[np.float64]

VERIFIERS: list[Verifier] = [
    RecursiveRejection(),
    IndependentRejection(),
    KSequential(),
    KSequential(4.0),
    TypicalAcceptance(),
    Judge(lambda p, q, draft: float(draft % 2)),
]
CHAINS: list[ChainVerifier] = [ChainSampling(), BlockVerification()]
verifiers = pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda each: type(each).__name__)


class Contrary:
    """Chooses the outcome of the smallest positive probability."""

    def coin(self, probability: Any) -> bool:
        return bool(probability > 0 and not probability >= 1 - 1e-12)

    def draw(self, weights: Distribution) -> int:
        positive = np.flatnonzero(weights)
        return int(positive[weights[positive].argmin()])


class Rejecting(Contrary):
    """Every coin that can reject does, rounding errors included."""

    def coin(self, probability: Any) -> bool:
        return False


def one_hot(size: int, index: int) -> Distribution:
    distribution = np.zeros(size)
    distribution[index] = 1
    return distribution


def distributions(size: int) -> dict[str, Distribution]:
    rng = np.random.default_rng(0)
    ordinary = rng.dirichlet(np.ones(size))
    near = ordinary * (1 + rng.uniform(-1e-15, 1e-15, size))
    small = np.full(size, 1e-300)
    small[0] = 1.0
    least = np.full(size, 5e-324)
    least[1] = 1.0
    some = np.where(np.arange(size) % 2, ordinary, 0.0)
    return {
        "ordinary": ordinary,
        "nearly the same": near,
        "uniform": np.full(size, 1 / size),
        "first": one_hot(size, 0),
        "last": one_hot(size, size - 1),
        "tiny": small,
        "subnormal": least,
        "odd ones": some / some.sum(),
        "in float32": ordinary.astype(np.float32).astype(np.float64),
        "sum below one": ordinary * (1 - 1e-13),
    }


def pairs(size: int) -> Iterator[tuple[Distribution, Distribution]]:
    yield from itertools.product(distributions(size).values(), repeat=2)


@verifiers
@pytest.mark.parametrize("size", [2, 7, 600])
def test_what_is_chosen_has_a_probability(verifier: Verifier, size: int) -> None:
    generator = np.random.default_rng(1)
    for p, q in pairs(size):
        before = p.copy(), q.copy()
        for chance in (GeneratorChance(generator), Contrary(), Rejecting()):
            for drafts in ([], [0], [size - 1, 0, 1, 0], generator.integers(0, size, 8).tolist()):
                fixed = isinstance(verifier, KSequential) and verifier.rho is not None
                token = verifier.choose(p, q, drafts[:4] if fixed else drafts, chance)
                assert p[token] > 0
        assert (p == before[0]).all()
        assert (q == before[1]).all()


@pytest.mark.parametrize("verifier", CHAINS, ids=lambda each: type(each).__name__)
def test_chains_take_what_has_a_probability(verifier: ChainVerifier) -> None:
    generator = np.random.default_rng(2)
    size = 7
    every = list(distributions(size).values())
    for _ in range(400):
        p = [every[each] for each in generator.integers(0, len(every), 5)]
        q = [every[each] for each in generator.integers(0, len(every), 4)]
        drafts = [int(generator.choice(size, p=distribution / distribution.sum())) for distribution in q]
        for chance in (GeneratorChance(generator), Contrary(), Rejecting()):
            verification = verifier.verify(p, q, drafts, chance)
            assert p[verification.accepted][verification.token] > 0
            assert all(p[position][drafts[position]] > 0 for position in verification.nodes)


def test_equal_distributions_take_the_whole_chain() -> None:
    p = np.random.default_rng(0).dirichlet(np.ones(5))
    for verifier in CHAINS:
        verification = verifier.verify([p] * 4, [p] * 3, [1, 2, 3], GeneratorChance(np.random.default_rng(0)))
        assert verification.accepted == 3


def test_trees_take_what_has_a_probability() -> None:
    generator = np.random.default_rng(3)
    size = 7
    every = list(distributions(size).values())
    for _ in range(200):
        tree = DraftTree()
        for node in (ROOT, 0, 1):
            drafts = tuple(int(each) for each in generator.permutation(size)[:2])
            tree.sampled[node] = SampledChildren(every[generator.integers(len(every))], drafts)
            for draft in drafts:
                tree.add(node, draft)
        p = [every[each] for each in generator.integers(0, len(every), 1 + len(tree))]
        allowed = [distribution > 0 for distribution in p]
        for chance in (GeneratorChance(generator), Contrary(), Rejecting()):
            verification = verify_tree(p, tree, RecursiveRejection(), chance, allowed=allowed)
            assert p[(verification.nodes[-1] if verification.nodes else ROOT) + 1][verification.token] > 0


def test_a_distribution_without_anything_allowed_leaves_no_drafts() -> None:
    distribution, drafts = restricted(one_hot(3, 0), (0,), np.array([False, True, True]))
    assert not distribution.any()
    assert drafts == ()


def test_rho_of_degenerate_distributions_is_in_its_range() -> None:
    for p, q in pairs(7):
        for count in (1, 2, 5, 30):
            assert 1 <= min_rho(p, q, count) <= count


@pytest.mark.exhaustive
@pytest.mark.parametrize("verifier", [each for each in VERIFIERS if each.lossless], ids=repr)
def test_drawing_many_times_gives_the_target(verifier: Verifier) -> None:
    """With a generator, 4000 draws are within five standard deviations."""
    generator = np.random.default_rng(4)
    p, q = np.array([0.5, 0.3, 0.0, 0.2]), np.array([0.1, 0.2, 0.4, 0.3])
    chance = GeneratorChance(generator)
    counts = np.zeros(4)
    for _ in range(4000):
        drafts = generator.choice(4, 3, replace=verifier.replaced, p=q).tolist()
        counts[verifier.choose(p, q, drafts, chance)] += 1
    assert (np.abs(counts / 4000 - p) <= 5 * np.sqrt(p * (1 - p) / 4000)).all()
