"""OPT-Tree and DySpec: among all trees of the size, none has a larger expected gain."""

from __future__ import annotations

import numpy as np
import pytest
from random_tree_policies import RandomGrowth, paths, trees

from structgen.decode.speculative.draft_tree import FORCED, DraftTree
from structgen.decode.speculative.tree_policy import Shape
from structgen.methods.tree_policies.dynamic_tree import DySpec, OptTree

SHAPES = (OptTree(), DySpec(), DySpec(width=1), DySpec(width=3))


@pytest.mark.exhaustive
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_no_tree_of_the_size_brings_more(shape: Shape, count: int) -> None:
    for seed in range(12):
        growth = RandomGrowth(seed)
        best = max(sum(map(growth.probability, tree)) for tree in trees(3, count))
        tree = shape.grow(growth, count)
        assert len(tree) <= count
        assert sum(tree.reach()) == pytest.approx(best, abs=1e-12)
        assert sum(map(growth.probability, paths(tree))) == pytest.approx(best, abs=1e-12)
        assert not tree.sampled


def test_a_bound_on_the_depth_leaves_the_best_of_those_that_keep_it() -> None:
    for seed in range(12):
        growth = RandomGrowth(seed)
        best = max(sum(map(growth.probability, tree)) for tree in trees(3, 4, depth=2))
        assert sum(OptTree(depth=2).grow(growth, 4).reach()) == pytest.approx(best, abs=1e-12)
        assert len(growth.calls) <= 2


@pytest.mark.parametrize("seed", range(6))
def test_large_trees_are_the_same_by_both(seed: int) -> None:
    by_level, by_node, one = (RandomGrowth(seed, 6) for _ in range(3))
    tree = OptTree().grow(by_level, 40)
    other = DySpec().grow(by_node, 40)
    alone = DySpec(width=1).grow(one, 40)
    assert sum(tree.reach()) == pytest.approx(sum(other.reach()), abs=1e-12)
    assert sorted(other.reach()) == pytest.approx(sorted(alone.reach()))
    assert set(one.calls) == {1}
    assert len(by_level.calls) <= tree.depth() + 1
    assert len(by_node.calls) < len(one.calls) / 3


def test_questions_end_where_a_level_gains_little() -> None:
    for seed in range(8):
        depths = []
        for gain in (0.0, 0.2, 0.5, 3.0):
            growth = RandomGrowth(seed)
            tree = OptTree(least_gain=gain).grow(growth, 12)
            depths.append(len(growth.calls))
            partial = OptTree(depth=len(growth.calls)).grow(RandomGrowth(seed), 12)
            assert tree.tokens == partial.tokens
        assert depths == sorted(depths, reverse=True)
        assert depths[-1] == 1 < depths[0]


def test_places_that_are_worth_little_stay_empty() -> None:
    for seed in range(8):
        whole = DySpec().grow(RandomGrowth(seed), 64)
        some = DySpec(least=0.05).grow(RandomGrowth(seed), 64)
        assert len(some) < 64
        assert sorted(some.reach()) == pytest.approx(sorted(each for each in whole.reach() if each >= 0.05))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forced_tokens_stand_whole_or_not_at_all(shape: Shape) -> None:
    seen = 0
    for seed in range(40):
        growth = RandomGrowth(seed, forced=0.6, ends=0.1)
        tree = shape.grow(growth, 9)
        assert len(tree) <= 9
        for node, source in enumerate(tree.sources):
            if source != FORCED:
                continue
            seen += 1
            run = node
            while tree.sources[run] == FORCED and tree.parents[run] >= 0:
                run = tree.parents[run]
            distribution = growth.distribution(tuple(token for token in tree.prefix(node) if token < growth.size))
            assert distribution is not None
            there = [token for token in tree.prefix(node) if token >= growth.size]
            forced_children = [child for child in tree.children(node) if tree.sources[child] == FORCED]
            last = distribution.forced[-1]
            assert tree.tokens[node] == last or [tree.tokens[child] for child in forced_children] == [there[-1] + 1]
            assert tree.confidences[node] == 1
    assert seen > 20


def test_a_tree_that_ranks_by_probability_refuses_to_draw() -> None:
    assert not OptTree.draws
    with pytest.raises(ValueError, match="use DySpec"):
        OptTree().grow(RandomGrowth(0), 4, generator=np.random.default_rng(0))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_small_budgets(shape: Shape) -> None:
    growth = RandomGrowth(0)
    tree = shape.grow(growth, 0)
    assert (len(tree), growth.calls) == (0, [])
    assert len(shape.grow(RandomGrowth(0, ends=1.1), 5)) == 0
    with pytest.raises(ValueError, match="budget must not be negative"):
        shape.grow(RandomGrowth(0), -1)
    assert isinstance(tree, DraftTree)


@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        (OptTree, {"least_gain": -1.0}),
        (OptTree, {"least_gain": float("nan")}),
        (OptTree, {"depth": -1}),
        (DySpec, {"least": 1.5}),
        (DySpec, {"least": float("nan")}),
        (DySpec, {"width": 0}),
    ],
)
def test_settings_out_of_range_are_refused(shape: type, settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=shape.__name__):
        shape(**settings)
