"""Acceptance rates by rank, and the fates of draft tokens."""

from __future__ import annotations

import random

import pytest

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.methods.tree_policies.draft_outcome import choice_count, draft_depths, visited_siblings
from structgen.methods.tree_policies.sequoia import RankAcceptance


def test_rates_come_to_what_happens() -> None:
    rng = random.Random(0)
    acceptance = RankAcceptance(ranks=4, memory=1000)
    true = (0.5, 0.2, 0.1)
    for _ in range(3000):
        tree = DraftTree()
        for token in range(3):
            tree.add(ROOT, token)
        acceptance.learn(tree, rng.choices([0, 1, 2, 3], (*true, 0.2)), 1)
    assert acceptance.rates(1)[:3] == pytest.approx(true, abs=0.05)
    assert acceptance.rates(1)[3] == pytest.approx(0.6 * 0.4**3, abs=1 / 64)  # no tree had a fourth child
    assert acceptance.rates(2)[0] == pytest.approx(0.6, abs=1 / 64)
    assert all(rate * 64 == int(rate * 64) for rate in acceptance.rates(1))


def test_all_nodes_that_were_come_to_count() -> None:
    acceptance = RankAcceptance(ranks=2, strength=1e-9)
    tree = DraftTree()
    left, _ = tree.add(ROOT, 1), tree.add(ROOT, 2)
    below = tree.add(left, 3)
    tree.add(below, 4)
    tree.add(below, 5)
    acceptance.learn(tree, (1, 3, 5), 0)
    assert acceptance.rates(0) == pytest.approx((2 / 3, 1 / 2), abs=0.12)  # of 3 and 2; shrunk to 1 together
    fresh = RankAcceptance(ranks=2, strength=1e-9)
    fresh.learn(tree, (2,), 0)
    assert fresh.rates(0) == pytest.approx((0.0, 1.0), abs=1 / 64)


def test_rates_follow_a_change() -> None:
    acceptance = RankAcceptance(ranks=1, memory=20)
    tree = DraftTree.chain((1,))
    for token in [1] * 100 + [2] * 60:
        acceptance.learn(tree, (token,), 0)
    assert acceptance.rates(0)[0] < 0.2


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"ranks": 0}, {"first": 1.0}, {"strength": 0.0}, {"memory": 0.0}):
        with pytest.raises(ValueError, match="RankAcceptance"):
            RankAcceptance(**settings)


def a_tree() -> DraftTree:
    tree = DraftTree()
    first = tree.add(ROOT, 1)
    tree.add(ROOT, 2)
    end = tree.extend(first, (8, 9), source=FORCED)
    tree.add(end, 3)
    tree.add(end, 4)
    return tree


def test_what_was_taken_of_a_tree() -> None:
    tree = a_tree()
    assert tree.follow(()) == []
    assert tree.follow((7,)) == []
    assert tree.follow((1, 8, 9, 4, 4)) == [0, 2, 3, 5]
    assert list(visited_siblings(tree, (1, 8, 9, 4))) == [((0, 1), 0), ((4, 5), 5)]
    assert list(visited_siblings(tree, (1, 8, 9))) == [((0, 1), 0)]
    assert list(visited_siblings(tree, (5, 8))) == [((0, 1), None)]
    assert list(visited_siblings(tree, ())) == []
    assert draft_depths(tree) == [1, 1, 1, 1, 2, 2]


def test_choices_that_rows_told() -> None:
    tree = a_tree()
    assert choice_count(tree, (5,)) == 0
    assert choice_count(tree, (2, 5)) == 1
    assert choice_count(tree, (1, 5)) == 0  # the row after token 1 gave no choice: token 8 was forced
    assert choice_count(tree, (1, 8, 9, 5)) == 1
    assert choice_count(tree, (1, 8, 9, 3, 5)) == 2
