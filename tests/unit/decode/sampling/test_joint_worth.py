"""How far it pays to look ahead for several sequences, against explicit sums and against one sequence alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from structgen.decode.sampling.shared_pass import Outlook, joint_depth, outlook
from structgen.decode.speculative.cost import CostModel, pruned_tree
from structgen.decode.speculative.draft_tree import ROOT, DraftTree

FLAT = CostModel(0.1)


def test_an_outlook_adds_up_what_is_at_each_depth() -> None:
    """For a tree with a fork it gives the reach and the number of rows by depth."""
    tree = DraftTree()
    first = tree.add(ROOT, 1, 0.5)
    tree.add(ROOT, 2, 0.25)
    tree.add(first, 3, 0.5)
    assert outlook(tree, 3) == Outlook([0.75, 0.25], [2, 1], 3)
    assert outlook(DraftTree()) == Outlook([], [], 1)


def test_of_one_sequence_it_is_the_best_part_of_its_chain() -> None:
    """On 300 random chains it is the part that ``worthwhile`` finds, which ranks parts of trees."""
    generator = np.random.default_rng(1)
    for _ in range(300):
        confidences = generator.uniform(0.2, 1.0, size=int(generator.integers(1, 9))).tolist()
        cost = CostModel(float(generator.uniform(0, 0.4)), ((2, 1 + float(generator.uniform(0, 0.4))),))
        chain = DraftTree.chain(range(len(confidences)), confidences)
        pending, budget = int(generator.integers(1, 4)), int(generator.integers(1, 9))
        best = pruned_tree(chain, cost, budget, pending=pending)
        assert joint_depth([outlook(chain)], cost, pending=pending, budget=budget) == len(best)


def test_of_several_it_is_the_depth_that_saves_most() -> None:
    """In 200 cases it agrees with the explicit sum of spared passes, reused rows, and the price of all rows."""
    generator = np.random.default_rng(2)
    found = set()
    for _ in range(200):
        count = int(generator.integers(2, 5))
        chains = [generator.uniform(0.6, 1.0, size=int(generator.integers(1, 6))).tolist() for _ in range(count)]
        particles = generator.integers(1, 4, size=count).tolist()
        price = float(generator.uniform(0, 0.5))
        reaches = [np.cumprod(chain).tolist() for chain in chains]
        savings = [0.0]
        for depth in range(1, min(map(len, chains)) + 1):
            spared = sum(
                math.prod(reach[at] ** n for reach, n in zip(reaches, particles, strict=True)) for at in range(depth)
            )
            taken = sum(max(sum(reach[at] for reach in reaches) - 1, 0.0) for at in range(depth))
            savings.append(spared + price * taken - price * depth * count)
        outlooks = [
            outlook(DraftTree.chain(range(len(chain)), chain), n) for chain, n in zip(chains, particles, strict=True)
        ]
        depth = joint_depth(outlooks, CostModel(price), pending=count, budget=99)
        assert savings[depth] == pytest.approx(max(savings))
        found.add(depth)
    assert {0, 1, 2} < found


def test_one_that_is_not_drafted_makes_the_others_useless() -> None:
    """The pass is needed then, whatever is known about the others."""
    sure = Outlook([1.0] * 5, [1] * 5)
    assert joint_depth([sure, sure], FLAT, pending=2, budget=99) == 5
    assert joint_depth([sure, Outlook([], [])], FLAT, pending=2, budget=99) == 0
    assert joint_depth([sure, Outlook([1.0, 1.0], [0, 0])], FLAT, pending=1, budget=99) == 2
    assert joint_depth([], FLAT, pending=1, budget=99) == 0


def test_a_budget_is_for_all_of_them() -> None:
    """Eight rows for two sequences are four tokens each."""
    sure = Outlook([1.0] * 9, [1] * 9)
    assert joint_depth([sure, sure], FLAT, pending=2, budget=8) == 4
    assert joint_depth([sure, sure], FLAT, pending=2, budget=1) == 0


def test_many_particles_leave_a_tree_sooner() -> None:
    """One sequence is likely to take more than all of sixteen do."""
    likely = outlook(DraftTree.chain(range(8), 0.9))
    alone = joint_depth([likely], FLAT, pending=1, budget=99)
    together = joint_depth([likely._replace(particles=16)], FLAT, pending=1, budget=99)
    assert alone > together
