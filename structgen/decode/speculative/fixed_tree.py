"""Draft trees of fixed form: a chain with a stopping rule, a given form, the best form for acceptance rates."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Self, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.tree_policy import Children, Shape, check_budget, with_forced

if TYPE_CHECKING:
    from structgen.decode.speculative.tree_policy import DraftDistribution, Growth

__all__ = ["Chain", "Fixed", "RankTree", "Stop"]

_MAX_NODES: Final = 4096


@final
@dataclass(frozen=True, slots=True)
class Fixed(Shape):
    """A tree of given form: the first child of a node is the most probable token, or the first sample.

    The tree is filled level by level, with one query of the drafter for each.  If the grammar allows fewer tokens than
    the form has children, the last children are missing with their descendants; at the end of the budget, the deepest
    levels are missing.

    Attributes:
        parents: the parent of each node, which comes before it; ``ROOT`` for the first level.

    Raises:
        ValueError: a parent does not come before its child.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"Fixed: parents must come before their children; found {parent!r} for node {node}")

    @classmethod
    def branching(cls, *counts: int) -> Self:
        """Return the form in which all nodes of a level have the same number of children, the root ``counts[0]``.

        Raises:
            ValueError: a number is below 1, or there are more than 4096 nodes.
        """
        parents: list[int] = []
        level = [ROOT]
        for count in counts:
            if count < 1 or len(parents) + count * len(level) > _MAX_NODES:
                raise ValueError(
                    f"Fixed: counts must be at least 1, of up to {_MAX_NODES} nodes in all; found {counts!r}"
                )
            first = len(parents)
            parents += [node for node in level for _ in range(count)]
            level = list(range(first, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def paths(cls, paths: Sequence[Sequence[int]]) -> Self:
        """Return the form with these paths from the root, each a sequence of child ranks from 0.

        Missing prefixes of paths and missing siblings of lower rank are added.

        Raises:
            ValueError: a number is negative.
        """
        nodes: set[tuple[int, ...]] = set()
        for path in paths:
            for end in range(1, len(path) + 1):
                if path[end - 1] < 0:
                    raise ValueError(f"Fixed: paths must not hold negative numbers; found {tuple(path)!r}")
                nodes |= {(*path[: end - 1], rank) for rank in range(path[end - 1] + 1)}
        numbers: dict[tuple[int, ...], int] = {(): ROOT}
        parents = []
        for node, path in enumerate(sorted(nodes, key=lambda path: (len(path), path))):
            parents.append(numbers[path[:-1]])
            numbers[path] = node
        return cls(tuple(parents))

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``."""
        check_budget(self, budget)
        tree = DraftTree()
        form: dict[int, list[int]] = {}
        for node, parent in enumerate(self.parents):
            form.setdefault(parent, []).append(node)
        level = {ROOT: ROOT}  # nodes of the form, with the nodes of the tree
        while len(tree) < budget:
            level = {node: grown for node, grown in level.items() if node in form}
            if not level:
                break
            distributions = growth.distributions(tree, list(level.values()))
            below: dict[int, int] = {}
            for (node, grown), distribution in zip(level.items(), distributions, strict=True):
                if distribution is not None:
                    added = _filled(tree, grown, distribution, min(len(form[node]), budget), budget, generator)
                    below.update(zip(form[node], added, strict=False))
            level = below
        return tree


def _filled(
    tree: DraftTree,
    node: int,
    distribution: DraftDistribution,
    count: int,
    budget: int,
    generator: np.random.Generator | None,
) -> list[int]:
    """Add the forced tokens after a node and up to ``count`` children; return the children."""
    end = with_forced(tree, node, distribution, budget)
    added: list[int] = []
    if end is None or len(tree) >= budget:
        return added
    children = Children(tree, end, distribution, generator)
    while len(added) < count and len(tree) < budget:
        child = children.add()
        if child is None:
            break
        added.append(child)
    return added


@final
@dataclass(frozen=True)
class RankTree(Shape):
    """The same tree at each step (``Fixed``); a small budget gets its first nodes.

    A node is given by the ranks of the children on its path.

    Source: the static tree of X. Luo et al. (2024, arXiv 2408.08696); the tree by measured acceptance of
    W. Song et al. (2025, arXiv 2506.04708), which keeps the nodes that were reached most often.

    Attributes:
        paths: the nodes; a parent comes before its children, and a child before its siblings of higher rank.

    Raises:
        ValueError: a node comes twice, or before its parent or a sibling of a lower rank.
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, ...]] = {()}
        for path in self.paths:
            has_parent = path and path[:-1] in seen and path[-1] >= 0
            if not has_parent or path in seen or (path[-1] and (*path[:-1], path[-1] - 1) not in seen):
                raise ValueError(f"RankTree: {path} must come once, after its parent and its siblings of lower rank")
            seen.add(path)

    @classmethod
    def of_rates(cls, rates: Sequence[Sequence[float]], size: int) -> Self:
        """Return the tree with the largest expected number of accepted tokens.

        If depth and rank alone decide the acceptance rate of a child, a node is accepted with the product of the rates
        on its path, and the expected number of accepted tokens is the sum of these products.  So the best tree of
        ``size`` nodes has the nodes with the largest products, and is a prefix of the best larger trees.

        Args:
            rates: by depth, the acceptance rate of each rank; the last holds for all greater depths.  A rate that is
                larger than one of lower rank counts as that one.
            size: how many nodes; fewer if no other node is ever accepted.

        Raises:
            ValueError: there are no rates, one is not between 0 and 1, or ``size`` is negative.

        Complexity: O(size log size), and the lengths of the paths.
        """
        if not rates or any(not 0 <= rate <= 1 for each in rates for rate in each):
            raise ValueError(f"RankTree: expected acceptance rates between 0 and 1 for each depth; found {rates!r}")
        if size < 0:
            raise ValueError(f"RankTree: size must not be negative; found {size!r}")
        falling = [np.minimum.accumulate(np.asarray(each, dtype=np.float64)).tolist() for each in rates]
        paths: list[tuple[int, ...]] = []
        waiting: list[tuple[float, int, tuple[int, ...], float]] = []

        def wait(parent: tuple[int, ...], reach: float, rank: int) -> None:
            level = falling[min(len(parent), len(falling) - 1)]
            if rank < len(level) and reach * level[rank] > 0:
                heapq.heappush(waiting, (-reach * level[rank], len(parent), (*parent, rank), reach))

        wait((), 1.0, 0)
        while waiting and len(paths) < size:
            negative, _, path, above = heapq.heappop(waiting)
            paths.append(path)
            wait(path[:-1], above, path[-1] + 1)
            wait(path, -negative, 0)
        return cls(tuple(paths))

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``."""
        check_budget(self, budget)
        return _form(self.paths[:budget]).grow(growth, budget, kind=kind, generator=generator)

    def __repr__(self) -> str:
        return f"RankTree of {len(self.paths)} nodes, {max(map(len, self.paths), default=0)} deep"


@lru_cache(maxsize=256)
def _form(paths: tuple[tuple[int, ...], ...]) -> Fixed:
    numbers = {path: node for node, path in enumerate(paths)} | {(): ROOT}
    return Fixed(tuple(numbers[path[:-1]] for path in paths))


class Stop(ABC):
    """A stopping rule for drafts: a value.

    It is checked before each draft token, but not before forced tokens.  It sees the draft so far and the distribution
    of the next token, not the token itself, so it may stop sampled drafts too.
    """

    @abstractmethod
    def stops(self, distribution: DraftDistribution, confidences: Sequence[float], kind: int) -> bool:
        """Return whether the draft ends here.

        Args:
            distribution: of the next draft token.
            confidences: of the draft tokens so far.
            kind: the kind of the position where the draft begins.
        """

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """Learn from the tokens of the output (``Shape.learn``)."""
        del tree, came, kind


@final
@dataclass(frozen=True, slots=True)
class Chain(Shape):
    """A chain: one token after the other.

    Attributes:
        length: the largest number of draft tokens; forced tokens do not count.
        stop: a stopping rule that may end a draft earlier.

    Raises:
        ValueError: ``length`` is negative.
    """

    length: int = 8
    stop: Stop | None = None

    max_children = 1

    def __post_init__(self) -> None:
        if self.length < 0:
            raise ValueError(f"Chain: length must not be negative; found {self.length!r}")

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``."""
        check_budget(self, budget)
        tree = DraftTree()
        last = ROOT
        confidences: list[float] = []
        while len(confidences) < self.length and len(tree) < budget:
            (distribution,) = growth.distributions(tree, (last,))
            if distribution is None:
                break
            end = with_forced(tree, last, distribution, budget)
            if end is None or len(tree) == budget or (self.stop and self.stop.stops(distribution, confidences, kind)):
                break
            child = Children(tree, end, distribution, generator).add()
            if child is None:
                break
            last = child
            confidences.append(tree.confidences[child])
        return tree

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """See ``Shape.learn``."""
        if self.stop is not None:
            self.stop.learn(tree, came, kind)
