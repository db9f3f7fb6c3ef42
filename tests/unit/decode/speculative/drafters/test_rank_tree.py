"""Trees of fixed shape by measured rates, against all trees of their size."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from structgen.decode.speculative.acceptance import RankRates
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.tree_policy import DraftDistribution

Path = tuple[int, ...]


def every_tree(size: int, ranks: int) -> Iterator[frozenset[Path]]:
    """All sets of nodes that contain their parents and their siblings of lower rank."""
    trees: set[frozenset[Path]] = {frozenset()}
    for _ in range(size):
        larger: set[frozenset[Path]] = set()
        for tree in trees:
            for parent in [(), *tree]:
                rank = next(rank for rank in itertools.count() if (*parent, rank) not in tree)
                if rank < ranks:
                    larger.add(tree | {(*parent, rank)})
        trees = larger
    yield from trees


def length(tree: Sequence[Path] | frozenset[Path], rates: Sequence[Sequence[float]]) -> float:
    """Expected number of accepted nodes, by the definition."""
    total = 0.0
    for path in tree:
        reach = 1.0
        for depth, rank in enumerate(path):
            reach *= rates[min(depth, len(rates) - 1)][rank]
        total += reach
    return total


@pytest.mark.parametrize("seed", range(12))
def test_no_tree_of_the_size_is_better(seed: int) -> None:
    rng = random.Random(seed)
    rates = [sorted((rng.random() for _ in range(3)), reverse=True) for _ in range(rng.randint(1, 3))]
    size = rng.randint(1, 5)
    found = RankTree.of_rates(rates, size)
    best = max(length(tree, rates) for tree in every_tree(size, 3))
    assert len(found.paths) == size
    assert length(found.paths, rates) == pytest.approx(best, abs=1e-12)
    assert RankTree.of_rates(rates, size + 3).paths[:size] == found.paths


def test_ranks_that_are_never_taken_have_no_nodes() -> None:
    assert RankTree.of_rates([[1.0, 0.0], [0.0]], 5).paths == ((0,),)


@pytest.mark.parametrize("paths", [((0, 0),), ((1,),), ((0,), (0,)), ((),), ((-1,),)])
def test_what_is_no_tree_is_refused(paths: tuple[Path, ...]) -> None:
    with pytest.raises(ValueError, match="RankTree"):
        RankTree(paths)


def test_rates_are_checked() -> None:
    for rates in ([], [[1.5]], [[-0.1]]):
        with pytest.raises(ValueError, match="RankTree"):
            RankTree.of_rates(rates, 3)
    with pytest.raises(ValueError, match="size"):
        RankTree.of_rates([[0.5]], -1)
    with pytest.raises(ValueError, match="RankRates"):
        RankRates([0.5, 1.0])


class Same:
    """The same three tokens after every prefix."""

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        return [DraftDistribution(np.array([5, 6, 7]), np.array([0.5, 0.3, 0.1])) for _ in nodes]


def test_of_a_small_budget_the_first_nodes_are_grown() -> None:
    shape = RankTree(((0,), (0, 0), (0, 0, 0), (1,), (2,)))
    tree = shape.grow(Same(), 10)
    assert sorted(tree.prefix(node) for node in range(len(tree))) == [[5], [5, 5], [5, 5, 5], [6], [7]]
    assert sorted(shape.grow(Same(), 3).prefix(node) for node in range(3)) == [[5], [5, 5], [5, 5, 5]]
    assert len(shape.grow(Same(), 0)) == 0


def test_rates_are_what_was_counted() -> None:
    rates = RankRates([0.5, 0.25])
    assert [rates.rate(0, rank) for rank in range(3)] == [0.5, 0.25, 0.25]
    rates.learn((0, 1, taken) for taken in [True] * 30 + [False] * 30)
    assert rates.rate(0, 1) == pytest.approx((8 * 0.25 + 30) / 68)
    assert rates.rate(1, 1) == 0.25
    rates.learn([(9, 0, True)])
    assert rates.rate(3, 0) == rates.rate(50, 0) == pytest.approx((8 * 0.5 + 1) / 9)
    assert rates.rates(2)[0] == [rates.rate(0, 0), rates.rate(0, 1)]
