"""The most probable of many nodes, as they become known."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.shapes.growth import with_forced

if TYPE_CHECKING:
    from structgen.decode.speculative.shapes.growth import Law

__all__ = ["Ranked"]


@final
class Ranked:
    """A tree of candidates, and which of them are the most probable ones.

    A node is at most as probable as its parent, so the most probable ones of a number are a tree; of equally probable
    ones those that were added first count as more probable.

    Args:
        size: how many are the best.
        least: nodes that are less probable are no candidates.

    Attributes:
        tree: the candidates; those that cannot be among the best are left out.
    """

    def __init__(self, size: int, *, least: float = 0.0) -> None:
        self.tree = DraftTree()
        self._size = size
        self._least = least
        self._heap: list[tuple[float, int]] = []  # the best: reach, and the negative node; the least of them first
        self._reach: dict[int, float] = {ROOT: 1.0}
        self._unasked = {ROOT}
        self._runs: list[range] = []

    def waiting(self) -> list[int]:
        """The nodes whose descendants may be among the best and are not known, the most probable first."""
        bound = self._heap[0][0] if len(self._heap) == self._size else 0.0
        self._unasked &= {ROOT, *self.best()}
        nodes = (node for node in self._unasked if self._reach[node] > bound)
        return sorted(nodes, key=lambda node: (-self._reach[node], node))

    def add(self, node: int, law: Law | None) -> None:
        """Add what may follow a node, as far as it is among the best."""
        self._unasked.discard(node)
        first = len(self.tree)
        end = None if law is None else with_forced(self.tree, node, law, first + self._size)
        if law is None or end is None:
            return
        reach = self._reach[node]
        for forced in range(first, len(self.tree)):
            self._push(forced, reach)
        if end != node:
            self._runs.append(range(first, len(self.tree)))
        for token, probability in zip(law.tokens.tolist(), law.probabilities.tolist(), strict=True):
            likely = reach * probability
            if likely < self._least or (len(self._heap) == self._size and likely <= self._heap[0][0]):
                break
            child = self.tree.add(end, token, probability)
            self._push(child, likely)
            self._unasked.add(child)

    def best(self) -> set[int]:
        """The best nodes."""
        return {-negative for _, negative in self._heap}

    def expected(self) -> float:
        """The expected number of them that are taken."""
        return sum(reach for reach, _ in self._heap)

    def result(self) -> DraftTree:
        """The tree of the best nodes; a run of forced ones that is not there up to its end is left out."""
        best = self.best()
        for run in self._runs:
            if run[-1] not in best:
                best.difference_update(run)
        return self.tree.kept(best)

    def _push(self, node: int, reach: float) -> None:
        self._reach[node] = reach
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, (reach, -node))
        else:
            heapq.heappushpop(self._heap, (reach, -node))
