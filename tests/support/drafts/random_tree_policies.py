"""Drafters without a model: distributions that are a function of the path, and the best trees by enumeration.

Distributions that are a function of the tokens on the way, and the best trees by trying all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.tree_policy import DraftDistribution

Prefix = tuple[int, ...]


class RandomGrowth:
    """Distributions over tokens 0 to ``size - 1``, random for every prefix of chosen tokens.

    It keeps the rules of ``Growth``.

    Args:
        seed: another seed gives other distributions.
        size: of the vocabulary.
        most: how many tokens the distributions name.
        forced: how often a distribution comes after forced tokens, which are those from ``size`` on.
        ends: how often there is no distribution.
    """

    def __init__(self, seed: object, size: int = 3, *, most: int = 16, forced: float = 0.0, ends: float = 0.0) -> None:
        self.seed, self.size, self.most, self.forced, self.ends = seed, size, most, forced, ends
        self.calls: list[int] = []
        self.asked: set[int] = set()

    def distribution(self, prefix: Prefix) -> DraftDistribution | None:
        """The distribution after the tokens, forced ones not counted."""
        rng = random.Random(f"{self.seed}{prefix}")
        if rng.random() < self.ends:
            return None
        weights = np.array([rng.choice((0, 1, 1, 2, 4, 8, 16)) for _ in range(self.size)], dtype=np.float64)
        weights[rng.randrange(self.size)] += 1
        run = range(self.size, self.size + rng.randint(1, 3)) if rng.random() < self.forced else ()
        return DraftDistribution.of(weights / weights.sum(), self.most, forced=run)

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """See ``Growth.distributions``."""
        assert len(set(nodes)) == len(nodes) > 0
        found = []
        for node in nodes:
            assert node not in self.asked
            above = ROOT if node == ROOT else tree.parents[node]
            while above != ROOT and tree.sources[above] == FORCED:
                above = tree.parents[above]
            assert node == ROOT or above in self.asked
            found.append(self.distribution(tuple(token for token in tree.prefix(node) if token < self.size)))
        self.asked.update(nodes)
        self.calls.append(len(nodes))
        return found

    def probability(self, path: Prefix) -> float:
        """The product of the probabilities of the tokens of a path without forced tokens."""
        product = 1.0
        for end, token in enumerate(path):
            distribution = self.distribution(path[:end])
            assert distribution is not None
            assert distribution.dense is not None
            product *= float(distribution.dense[token])
        return product


def trees(size: int, count: int, *, depth: int | None = None) -> Iterator[frozenset[Prefix]]:
    """All trees of ``count`` paths over tokens 0 to ``size - 1``: sets that contain the prefixes of their paths."""
    found: set[frozenset[Prefix]] = {frozenset()}
    for _ in range(count):
        found = {
            tree | {(*path, token)}
            for tree in found
            for path in ((), *tree)
            for token in range(size)
            if (*path, token) not in tree and (depth is None or len(path) < depth)
        }
    yield from found


def paths(tree: DraftTree) -> set[Prefix]:
    """The tokens down to each node."""
    return {tuple(tree.prefix(node)) for node in range(len(tree))}
