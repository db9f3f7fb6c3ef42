"""Depths that pay: the best of all fixed ones, and drafts that are measured without being run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from random_acceptance_rounds import WRONG, Lucky, Round, rounds, token

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.methods.tree_policies.draft_length import Goodput, Survival
from structgen.methods.tree_policies.draft_outcome import DraftOutcome, cut_to_depth


def speed(written: list[Round], cost: CostModel) -> float:
    return sum(each.told for each in written) / sum(each.time(cost) for each in written)


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", [0.02, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("right", [0.1, 0.5, 0.8, 0.95])
def test_the_depth_is_nearly_the_best_of_all(right: float, row: float) -> None:
    cost = CostModel(row)
    found = speed(list(rounds(Goodput(Lucky("lucky", right, 8), cost), 700))[200:], cost)
    # The number of tokens of a chain is known: (1 - p^(k+1)) / (1 - p).
    best = max((1 - right ** (k + 1)) / (1 - right) / cost.relative(1 + k) for k in range(9))
    assert found > 0.9 * best
    assert found > 0.97


def test_depths_are_measured_where_nothing_is_run() -> None:
    """A drafter that was off is asked now and then, is right, and is on again; only its time was measured before."""
    lucky = Lucky("lucky", {0: 0.02, 1: 0.9}, 6)
    goodput = Goodput(lucky, CostModel(0.3), trial=4, survival=Survival(memory=30))
    written = list(rounds(goodput, 300, kind=lambda _: 0))
    assert not any(len(each.tree) for each in written[-100:])
    assert goodput.depth(0, CostModel(0.3)) == 0
    object.__setattr__(lucky, "right", 0.95)
    lucky.asked.clear()
    written = list(rounds(goodput, 300, kind=lambda _: 0))
    first = next(number for number, each in enumerate(written) if len(each.tree))
    assert 4 < first < 200
    assert len([at for at in lucky.asked if at <= first + 1]) == pytest.approx(first / 4, abs=1)
    assert speed(written[-50:], CostModel(0.3)) > 1.5


def test_kinds_are_kept_apart() -> None:
    goodput = Goodput(Lucky("lucky", {0: 0.05, 1: 0.95}, 6), CostModel(0.2))
    written = list(rounds(goodput, 400, kind=lambda number: number % 2))[200:]
    assert sum(len(each.tree) for each in written if each.kind == 0) < sum(len(each.tree) for each in written) / 20
    assert goodput.depth(1, CostModel(0.2)) >= 5


def test_a_draft_that_costs_too_much_itself_is_not_made() -> None:
    lucky = Lucky("lucky", 0.5, 4)
    goodput = Goodput(lucky, CostModel(0.1), price=2.0, trial=10)
    written = list(rounds(goodput, 200))
    assert not any(len(each.tree) for each in written[100:])
    assert len([at for at in lucky.asked if at > 101]) == 10


def test_what_is_learned_of_a_tree() -> None:
    tree = DraftTree()
    first = tree.add(ROOT, token(1))
    tree.add(ROOT, WRONG)
    end = tree.extend(first, (token(2), token(3)), source=FORCED)
    tree.add(end, WRONG)
    survival = Survival(most=4, prior=0.5, strength=1.0)
    survival.learn(DraftOutcome(tree, tuple(token(at) for at in (1, 2, 3, 4)), 7))
    right, nodes = survival.estimate(7)
    assert right == pytest.approx(((1 + 1) / 2, (0.5 + 1) / 2, 0.25 / 2, 0.125 / 2, 0.0625 / 2))
    assert nodes == pytest.approx(((0 + 0) / 2, (1 + 4) / 2, (2 + 5) / 2, (3 + 5) / 2, (4 + 5) / 2))
    assert survival.estimate(8)[0] == pytest.approx([0.5**depth for depth in range(5)])


def test_old_drafts_fade() -> None:
    survival = Survival(most=1, memory=10)
    tree = DraftTree.chain([token(1)])
    for _ in range(50):
        survival.learn(DraftOutcome(tree, (token(1),), 0))
    for _ in range(30):
        survival.learn(DraftOutcome(tree, (WRONG,), 0))
    assert survival.estimate(0)[0][1] < 0.25


def test_a_tree_is_cut_at_a_depth_after_what_is_forced() -> None:
    tree = DraftTree()
    node = tree.extend(ROOT, (1, 2))
    tree.extend(node, (3, 4), source=FORCED)
    tree.add(ROOT, 5)
    assert cut_to_depth(tree, 2) is tree
    assert cut_to_depth(tree, 1).tokens == [1, 5]
    assert cut_to_depth(tree, 0).tokens == []
    assert cut_to_depth(DraftTree(), 3).tokens == []
    after = DraftTree()
    after.extend(after.extend(ROOT, (1,)), (2, 3), source=FORCED)
    after.add(2, 4)
    assert cut_to_depth(after, 1).tokens == [1, 2, 3]


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"price": -1.0}, {"price": math.inf}, {"trial": 0}):
        with pytest.raises(ValueError, match="Goodput"):
            Goodput(Lucky("lucky", 0.5), **settings)
    for settings in ({"most": 0}, {"prior": 1.0}, {"strength": 0.0}, {"memory": 0.5}):
        with pytest.raises(ValueError, match="Survival"):
            Survival(**settings)
    assert np.isfinite(Survival().estimate(0)).all()
