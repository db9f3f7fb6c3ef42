"""A tree of guesses whose form is fixed: which child, by its rank, has which children."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.shapes.fixed import Fixed
from structgen.decode.speculative.shapes.growth import Shape, check_budget

if TYPE_CHECKING:
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.shapes.growth import Growth

__all__ = ["RankTree"]


@final
@dataclass(frozen=True)
class RankTree(Shape):
    """The same tree at each step (``Fixed``), of which a small budget gets the nodes that stand first.

    A node is told by the ranks of the children that lead down to it.

    Source: the static tree of X. Luo et al. (2024, arXiv 2408.08696); the tree by measured acceptance of
    W. Song et al. (2025, arXiv 2506.04708), which keeps the nodes that were reached most often.

    Attributes:
        paths: the nodes; a parent stands before its children, and a child of a lower rank before its siblings.

    Raises:
        ValueError: a node comes twice, or before its parent or a sibling of a lower rank.
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        seen: set[tuple[int, ...]] = {()}
        for path in self.paths:
            known = path and path[:-1] in seen and path[-1] >= 0
            if not known or path in seen or (path[-1] and (*path[:-1], path[-1] - 1) not in seen):
                raise ValueError(
                    f"RankTree: {path} does not stand behind its parent and its siblings of lower rank, once"
                )
            seen.add(path)

    @classmethod
    def of_rates(cls, rates: Sequence[Sequence[float]], size: int) -> Self:
        """The tree with the most accepted tokens to be expected.

        Where a child is accepted with a probability that its depth and rank alone decide, a node is reached with the
        product of those on its path, and the expected number of accepted tokens is the sum of these products.  So the
        best tree of ``size`` nodes has those with the largest products; it is the beginning of the best larger ones.

        Args:
            rates: by depth, the acceptance rate of each rank; the last is that of all greater depths too.  Rates of
                one depth that do not fall with the rank are taken in the order of the ranks all the same.
            size: how many nodes; fewer where no other is ever reached.

        Raises:
            ValueError: there are no rates, one is not between 0 and 1, or ``size`` is negative.

        Complexity: O(size * ranks * log).
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

    def expected_length(self, rates: Sequence[Sequence[float]]) -> float:
        """How many tokens of the tree are accepted on average, with such rates (see ``of_rates``)."""
        reach: dict[tuple[int, ...], float] = {(): 1.0}
        for path in self.paths:
            level = rates[min(len(path) - 1, len(rates) - 1)]
            reach[path] = reach[path[:-1]] * (level[path[-1]] if path[-1] < len(level) else 0.0)
        return sum(reach.values()) - 1.0

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
