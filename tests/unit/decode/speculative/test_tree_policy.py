"""Distributions, and the children that are made from them."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from random_tree_policies import RandomGrowth

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.fixed_tree import Chain, Fixed
from structgen.decode.speculative.tree_policy import Children, DraftDistribution, with_forced
from structgen.methods.tree_policies.dynamic_tree import DySpec, OptTree

DENSE = np.array([0.1, 0.3, 0.0, 0.3, 0.05, 0.25])


@pytest.mark.parametrize("most", range(8))
def test_a_distribution_names_the_most_probable_tokens(most: int) -> None:
    distribution = DraftDistribution.of(DENSE, most)
    assert distribution.tokens.tolist() == [1, 3, 5, 0, 4][:most]
    assert distribution.probabilities.tolist() == [0.3, 0.3, 0.25, 0.1, 0.05][:most]
    assert distribution.dense is DENSE
    assert distribution.surest() == (0.3 if most else 0.0)


def test_a_distribution_among_some_tokens() -> None:
    distribution = DraftDistribution.among(np.array([4, 9, 11]), np.array([0.2, 0.5, 0.3]), 2, forced=(7,))
    assert (distribution.tokens.tolist(), distribution.probabilities.tolist(), distribution.forced) == (
        [9, 11],
        [0.5, 0.3],
        (7,),
    )
    assert distribution.dense is None


@pytest.mark.parametrize("size", [1, 3, 7, 8, 27, 28, 40, 5001])
@pytest.mark.parametrize("seed", range(5))
def test_naming_is_sorting(seed: int, size: int) -> None:
    weights = np.random.default_rng(seed).integers(0, 6, size).astype(np.float64)
    weights[:: 1 + seed] *= 100
    distribution = DraftDistribution.of(weights / weights.sum(), 7)
    order = sorted(range(size), key=lambda token: (-weights[token], token))[:7]
    assert distribution.tokens.tolist() == [token for token in order if weights[token]]


def test_entropies() -> None:
    assert DraftDistribution.of(np.full(8, 0.125), 2).entropy() == pytest.approx(math.log(8))
    assert DraftDistribution.of(np.array([0.0, 1.0]), 1).entropy() == 0
    named = DraftDistribution.among(np.arange(3), np.array([0.5, 0.25, 0.25]), 2)
    assert named.entropy() == pytest.approx(1.5 * math.log(2))  # the third stands for all others
    whole = DraftDistribution.among(np.arange(2), np.array([0.5, 0.5]), 2)
    assert whole.entropy() == pytest.approx(math.log(2))
    assert DraftDistribution.among(np.arange(0), np.zeros(0), 3).entropy() == 0


def test_forced_tokens_are_added_whole_or_not_at_all() -> None:
    tree = DraftTree.chain((5,))
    distribution = DraftDistribution.of(DENSE, 2, forced=(8, 9))
    assert with_forced(tree, 0, distribution, 2) is None
    assert tree.tokens == [5]
    assert with_forced(tree, 0, distribution, 3) == 2
    assert (tree.tokens, tree.sources, tree.confidences[1:]) == ([5, 8, 9], ["", FORCED, FORCED], [1, 1])
    assert with_forced(tree, 2, DraftDistribution.of(DENSE, 2), 3) == 2


def test_chosen_children_come_in_the_order_of_the_distribution() -> None:
    tree = DraftTree()
    children = Children(tree, ROOT, DraftDistribution.of(DENSE, 3), None)
    assert [children.add() for _ in range(4)] == [0, 1, 2, None]
    assert tree.tokens == [1, 3, 5]
    assert tree.confidences == [0.3, 0.3, 0.25]
    assert children.left == pytest.approx(0.15)
    assert children.share() == 0
    assert not tree.sampled


@pytest.mark.exhaustive
def test_sampled_children_follow_the_distribution_without_replacement() -> None:
    generator = np.random.default_rng(0)
    counts: Counter[tuple[int, ...]] = Counter()
    draws = 6000
    for _ in range(draws):
        tree = DraftTree()
        children = Children(tree, ROOT, DraftDistribution.of(DENSE, 1), generator)
        children.add()
        children.add()
        assert children.left == pytest.approx(1 - sum(tree.confidences))
        assert tree.confidences == pytest.approx([DENSE[token] for token in tree.tokens])
        assert tree.sampled[ROOT].tokens == tuple(tree.tokens)
        assert tree.sampled[ROOT].distribution is DENSE
        counts[tuple(tree.tokens)] += 1
    for first in range(6):
        for second in range(6):
            p = 0.0 if first == second else DENSE[first] * DENSE[second] / (1 - DENSE[first])
            deviation = math.sqrt(p * (1 - p) / draws)
            assert counts[first, second] / draws == pytest.approx(p, abs=5.5 * deviation)


def test_no_more_children_are_sampled_than_have_a_probability() -> None:
    tree = DraftTree()
    children = Children(tree, ROOT, DraftDistribution.of(DENSE, 1), np.random.default_rng(0))
    assert [children.add() is None for _ in range(7)] == [False] * 5 + [True] * 2
    assert sorted(tree.sampled[ROOT].tokens) == [0, 1, 3, 4, 5]


@pytest.mark.parametrize("shape", [Chain(3), Fixed.branching(2), DySpec()], ids=str)
def test_what_is_sampled_needs_a_dense_distribution(shape: Chain | Fixed | DySpec) -> None:
    class Sparse(RandomGrowth):
        def distribution(self, prefix: tuple[int, ...]) -> DraftDistribution | None:
            return DraftDistribution.among(np.arange(2), np.array([0.6, 0.2]), 2)

    assert len(shape.grow(Sparse(0), 4)) >= 2
    with pytest.raises(ValueError, match="from a dense distribution"):
        shape.grow(Sparse(0), 4, generator=np.random.default_rng(0))


@pytest.mark.parametrize("shape", [Chain(3), Fixed.branching(2, 2), DySpec(), OptTree()], ids=str)
def test_shapes_without_anything_to_learn_learn_nothing(shape: Chain | Fixed | DySpec | OptTree) -> None:
    before = hash(shape)
    shape.learn(DraftTree.chain((1, 2)), (1, 3), 0)
    assert hash(shape) == before
