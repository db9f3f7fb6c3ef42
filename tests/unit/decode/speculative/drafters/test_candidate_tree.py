"""The grown tree against all trees of its size, and its learning against a walk down the tokens."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

from structgen.decode.speculative.acceptance import Calibration, CandidateTree, DraftCandidate
from structgen.decode.speculative.draft_tree import ROOT, DraftTree


def random_drafts(generator: np.random.Generator, depth: int = 0, path: tuple[int, ...] = ()) -> list[DraftCandidate]:
    """A random tree of draft tokens, each of its own kind; the confidences of siblings sum to at most 1."""
    count = int(generator.integers(0 if path else 2, 4)) if depth < 3 else 0
    weights = generator.dirichlet(np.ones(count + 1))[:count] if count else []
    found = []
    for token, weight in enumerate(weights):
        if weight < 0.01:
            continue
        inner = random_drafts(generator, depth + 1, (*path, token))
        found.append(DraftCandidate(token, (*path, token), float(weight), lambda inner=inner: inner))
    return found


def all_nodes(
    drafts: Iterable[DraftCandidate], path: tuple[int, ...] = (), reach: float = 1
) -> dict[tuple[int, ...], float]:
    found: dict[tuple[int, ...], float] = {}
    for draft in drafts:
        here = (*path, draft.token)
        found[here] = reach * draft.prior
        found |= all_nodes(draft.then(), here, found[here])
    return found


@pytest.mark.parametrize("seed", range(30))
def test_no_tree_of_this_size_has_more_expected_tokens(seed: int) -> None:
    drafts = random_drafts(np.random.default_rng(seed))
    reach = all_nodes(drafts)
    reach = {path: value for path, value in reach.items() if value >= 0.004}
    for budget in range(1, min(len(reach), 5) + 1):
        tree = CandidateTree(Calibration(), budget).grow(0, drafts)
        best = max(
            sum(reach[path] for path in chosen)
            for chosen in combinations(reach, budget)
            if all(path[:-1] in chosen or len(path) == 1 for path in chosen)
        )
        assert len(tree) == budget
        assert sum(tree.reach()) == pytest.approx(best)


@pytest.mark.parametrize("seed", range(20))
def test_a_draft_is_judged_when_its_parent_was_taken(seed: int) -> None:
    generator = np.random.default_rng(seed)
    drafts = random_drafts(generator)
    calibration = Calibration(memory=1e9)
    growth = CandidateTree(calibration, 12)
    tree = growth.grow(2, drafts)
    tokens = [9, 9, *generator.integers(0, 4, size=int(generator.integers(0, 5))).tolist()]
    growth.settle(tokens)
    came = tuple(tokens[2:])
    for node in range(len(tree)):
        path = tuple(tree.prefix(node))
        known = came[: len(path) - 1] == path[:-1] and len(came) >= len(path)
        assert calibration.count(path) == known
        if known:
            prior = all_nodes(drafts)[path] / (all_nodes(drafts)[path[:-1]] if len(path) > 1 else 1)
            taken = came[: len(path)] == path
            assert calibration.probability(path, 0.5) == pytest.approx((4 * 0.5 + taken) / 5)
            assert 0 < prior < 1


def test_a_token_that_is_drafted_twice_is_one_node_and_both_kinds_learn() -> None:
    calibration = Calibration()
    growth = CandidateTree(calibration, 8)
    tree = growth.grow(
        0, [DraftCandidate(7, "a", 0.4, tuple), DraftCandidate(7, "b", 0.3, tuple), DraftCandidate(8, "c", 0.2, tuple)]
    )
    assert tree.tokens == [7, 8]
    assert tree.confidences == [0.4, 0.2]
    growth.settle([7])
    assert [calibration.count(kind) for kind in "abc"] == [1, 1, 1]
    assert calibration.probability("a") > 0.5 > calibration.probability("c")


def test_siblings_are_scaled_to_a_distribution() -> None:
    tree = CandidateTree(Calibration(), 8).grow(0, [DraftCandidate(token, token, 0.9, tuple) for token in range(3)])
    assert sum(tree.confidences) == pytest.approx(1)
    assert all(tree.confidences[node] == pytest.approx(1 / 3) for node in tree.children(ROOT))


def test_endless_drafts_end() -> None:
    def same() -> list[DraftCandidate]:
        return [DraftCandidate(1, "a", 0.99, same)]

    tree = CandidateTree(Calibration(), 10).grow(0, same())
    assert isinstance(tree, DraftTree)
    assert len(tree) == tree.depth() == 10

    def twice() -> list[DraftCandidate]:
        return [DraftCandidate(1, "a", 0.5, twice), DraftCandidate(1, "b", 0.5, twice)]

    assert 1 <= len(CandidateTree(Calibration(), 10).grow(0, twice())) <= 10


def test_nothing_is_grown_of_nothing() -> None:
    growth = CandidateTree(Calibration(), 4)
    assert len(growth.grow(0, ())) == 0
    growth.settle([1, 2, 3])
