"""Trees of draft tokens: numbers, paths, and what remains when nodes are cut."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren, merged_tree


def family() -> DraftTree:
    """A tree of 5 with children 6 and 7, 8 below 7, and 9 beside 5."""
    tree = DraftTree()
    five = tree.add(ROOT, 5, 0.5)
    tree.add(five, 6, 0.4)
    seven = tree.add(five, 7, 0.2)
    tree.add(seven, 8, 1.0, source="forced")
    tree.add(ROOT, 9, 0.25)
    return tree


def test_paths_and_reach() -> None:
    """The reach of a node is the product of the confidences on its path."""
    tree = family()
    assert [tree.prefix(node) for node in range(len(tree))] == [[5], [5, 6], [5, 7], [5, 7, 8], [9]]
    assert tree.reach() == pytest.approx([0.5, 0.2, 0.1, 0.1, 0.25])
    assert tree.children(ROOT) == (0, 4)
    assert tree.child(0, 7) == 2
    assert tree.child(0, 9) is None
    assert list(tree.leaves()) == [1, 3, 4]
    assert tree.depth() == 3
    assert DraftTree().depth() == 0


def test_a_token_that_is_there_is_found_again() -> None:
    """The same draft from two sources is one node with the larger confidence."""
    tree = DraftTree.chain([1, 2], [0.3, 0.6])
    assert tree.extend(ROOT, [1, 2, 3], 0.5) == 2
    assert tree.tokens == [1, 2, 3]
    assert tree.confidences == [0.5, 0.6, 0.5]


def test_every_choice_of_nodes_keeps_the_paths_that_are_whole() -> None:
    """Of any subset, exactly the nodes stay whose ancestors are all in it."""
    tree = family()
    for count in range(len(tree) + 1):
        for nodes in itertools.combinations(range(len(tree)), count):
            kept = tree.kept(nodes)
            expected = [tree.prefix(node) for node in range(len(tree)) if set(tree.path(node)) <= set(nodes)]
            assert [kept.prefix(node) for node in range(len(kept))] == expected


def test_what_was_sampled_is_cut_with_its_node() -> None:
    """A distribution stays with its parent.

    It lists the remaining tokens in the order of their draws.
    """
    tree = family()
    distribution = np.full(10, 0.1)
    tree.sampled[0] = SampledChildren(distribution, (7, 6))
    assert tree.kept([0, 1, 2]).sampled[0].tokens == (7, 6)
    assert tree.kept([0, 4, 2]).sampled[0].tokens == (7,)
    assert tree.kept([4]).sampled == {}


def test_merged_trees_have_all_paths() -> None:
    """The union of the paths, each node with the larger confidence."""
    other = DraftTree()
    other.extend(ROOT, [9, 1], [0.75, 0.5])
    union = merged_tree([family(), other])
    paths = {tuple(union.prefix(node)) for node in range(len(union))}
    assert paths == {(5,), (5, 6), (5, 7), (5, 7, 8), (9,), (9, 1)}
    assert union.confidences[union.child(ROOT, 9) or 0] == 0.75
    assert union.sources[3] == "forced"


def test_a_session_gets_tokens_and_parents_alone() -> None:
    """The order of the nodes is that of the tree."""
    assert family().token_tree() == ((5, 6, 7, 8, 9), (-1, 0, 0, 2, -1))
