"""The draft tokens that pay: the best part of a tree, by enumeration of all parts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from structgen.decode.speculative.cost import CostModel, expected_saving, pruned_tree
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, SampledChildren

COSTS = (
    CostModel(0.03),
    CostModel(0.2),
    CostModel(0.5, ((2, 1.4), (4, 1.45))),
    CostModel(0.0, ((4, 1.01), (5, 1.9))),
    CostModel(0.0),
)


def a_tree(rng: random.Random, size: int, *, forced: float) -> DraftTree:
    tree = DraftTree()
    left = {ROOT: 1.0}  # for nodes that may go on in several ways, the probability outside the tree
    while len(tree) < size:
        parent = rng.choice(list(left))
        confidence = left[parent] * rng.choice((0.0, 0.1, 0.4, 0.7, 0.9, 1.0))
        left[parent] -= confidence
        node = tree.add(parent, len(tree), confidence)
        while rng.random() < forced and len(tree) < size:
            node = tree.add(node, len(tree), 1.0, source=FORCED)
        left[node] = 1.0
    return tree  # the token of a node is its number


def parts(tree: DraftTree) -> Iterator[list[int]]:
    """All sets of nodes that contain their parents."""
    for bits in range(1 << len(tree)):
        nodes = [node for node in range(len(tree)) if bits >> node & 1]
        if all(tree.parents[node] == ROOT or bits >> tree.parents[node] & 1 for node in nodes):
            yield nodes


def time_saved(tree: DraftTree, nodes: list[int], cost: CostModel, pending: int) -> float:
    """The expected time to write the tokens up to the first outside the tree: without the nodes minus with them."""
    taken = [ROOT, *range(len(tree))]
    left = dict.fromkeys(taken, 1.0)
    for parent, confidence in zip(tree.parents, tree.confidences, strict=True):
        left[parent] -= confidence
    reach = {ROOT: 1.0, **dict(enumerate(tree.reach()))}
    assert sum(reach[node] * left[node] for node in taken) == pytest.approx(1)
    return sum(
        reach[node] * left[node] * (writing(tree, node, [], cost, pending) - writing(tree, node, nodes, cost, pending))
        for node in taken
        if left[node] > 0
    )


def writing(tree: DraftTree, last: int, nodes: list[int], cost: CostModel, pending: int) -> float:
    """The time until the model's answer after the path to ``last``: the loop, step by step."""
    time, rows, told = 0.0, pending, {-2}
    for node in [ROOT, *tree.path(last)]:
        if node != ROOT and node not in told:
            rows += 1
        is_choice = not any(tree.sources[child] == FORCED for child in tree.children(node))
        if is_choice and node not in told:
            time += cost.relative(rows + (len(nodes) if node == ROOT else 0))
            told |= {ROOT} | (set(nodes) if node == ROOT else set())
            rows = 0
    return time


@pytest.mark.parametrize("forced", [0.0, 0.4])
@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_no_part_saves_more(cost: CostModel, forced: float) -> None:
    rng = random.Random(f"{cost}{forced}")
    for _ in range(25):
        tree = a_tree(rng, rng.randint(1, 9), forced=forced)
        pending, budget = rng.randint(1, 4), rng.randint(1, 10)
        best = max(time_saved(tree, part, cost, pending) for part in parts(tree) if len(part) <= budget)
        found = pruned_tree(tree, cost, budget, pending=pending)
        assert len(found) <= budget
        assert time_saved(tree, found.tokens, cost, pending) == pytest.approx(best, abs=1e-12)
        assert all(found.prefix(node) in map(tree.prefix, range(len(tree))) for node in range(len(found)))


@pytest.mark.parametrize("forced", [0.0, 0.4])
@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_no_chain_saves_more_where_only_one_is_run(cost: CostModel, forced: float) -> None:
    rng = random.Random(f"chain{cost}{forced}")
    for _ in range(40):
        tree = a_tree(rng, rng.randint(1, 10), forced=forced)
        pending, budget = rng.randint(1, 4), rng.randint(1, 10)
        chains = [tree.path(node) for node in [ROOT, *range(len(tree))]]
        best = max(time_saved(tree, chain, cost, pending) for chain in chains if len(chain) <= budget)
        found = pruned_tree(tree, cost, budget, pending=pending, branches=False)
        assert found.token_tree().first_chain() == list(range(len(found)))
        assert time_saved(tree, found.tokens, cost, pending) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("forced", [0.0, 0.4])
@pytest.mark.parametrize("cost", [*COSTS, CostModel(0.4, ((2, 1.8),)), CostModel(0.3, ((2, 2.1), (4, 3.0)))], ids=str)
def test_draft_tokens_of_too_little_reach_never_pay(cost: CostModel, forced: float) -> None:
    """The best part of a tree, and the best chain, have none of them."""
    rng = random.Random(f"least{cost}{forced}")
    left_out = 0
    for _ in range(25):
        tree = a_tree(rng, rng.randint(1, 9), forced=forced)
        pending, budget = rng.randint(1, 4), rng.randint(1, 10)
        least = cost.least(pending, len(tree))
        some = [node for node, reach in enumerate(tree.reach()) if reach >= least]
        left_out += len(some) < len(tree)
        best = {True: 0.0, False: 0.0}
        for part in parts(tree):
            if len(part) <= budget:
                is_some = set(part) <= set(some)
                best[is_some] = max(best[is_some], time_saved(tree, part, cost, pending))
        assert best[True] >= best[False] - 1e-12
    assert left_out > 3 or cost.least(1, 9) < 0.1


@pytest.mark.parametrize("cost", COSTS, ids=str)
def test_what_a_whole_tree_saves(cost: CostModel) -> None:
    rng = random.Random(5)
    for _ in range(40):
        tree = a_tree(rng, rng.randint(0, 12), forced=0.4)
        expected = time_saved(tree, list(range(len(tree))), cost, 2)
        assert expected_saving(tree, cost, pending=2) == pytest.approx(expected, abs=1e-12)


def test_forced_tokens_pay_at_their_end_alone() -> None:
    tree = DraftTree()
    tree.extend(tree.add(ROOT, 7, 0.5), (1, 2, 3), source=FORCED)
    cost = CostModel(0.1)
    assert len(pruned_tree(tree, cost, 4)) == 4
    assert len(pruned_tree(tree, cost, 3)) == 0
    assert expected_saving(tree, cost) == pytest.approx(0.5 * 1.3 - 0.4)


def test_nothing_is_run_where_nothing_pays() -> None:
    tree = DraftTree.chain((1, 2), 0.1)
    assert len(pruned_tree(tree, CostModel(0.2), 8)) == 0
    assert len(pruned_tree(tree, CostModel(0.05), 8)) == 1
    assert pruned_tree(tree, CostModel(0.0), 8) is tree
    assert len(pruned_tree(tree, CostModel(0.0), 0)) == 0
    assert len(pruned_tree(DraftTree(), CostModel(0.0), 8)) == 0


def test_a_tree_with_sampled_children_is_cut_at_its_end_alone() -> None:
    """The draws do not matter: the cut is at the same place."""
    sizes = set()
    for confidence in (0.0, 0.01, 0.9):
        tree = DraftTree.chain((3, 1, 2), confidence)
        tree.add(ROOT, 4, confidence)
        tree.sampled[ROOT] = SampledChildren(np.full(5, 0.2), (3, 4))
        found = pruned_tree(tree, CostModel(0.5), 3)
        sizes.add(tuple(found.tokens))
        assert found.sampled[ROOT].tokens == (3,)
        assert pruned_tree(tree, CostModel(0.5), 4) is tree
    assert sizes == {(3, 1, 2)}
