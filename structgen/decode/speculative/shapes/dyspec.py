"""Trees that grow where the next token is most likely to be taken, one node after the other."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.shapes.best import Ranked
from structgen.decode.speculative.shapes.children import Children
from structgen.decode.speculative.shapes.growth import Shape, check_budget, with_forced

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.speculative.shapes.growth import Growth, Law

__all__ = ["DySpec"]


@final
@dataclass(frozen=True, slots=True)
class DySpec(Shape):
    """Adds the next child where that is expected to bring the most.

    Where children are chosen, what a node brings is its probability on its way from the root: the result is the best
    tree of its size, as that of ``OptTree`` with all levels.

    Where they are drawn, each node has a place for its next child, which is worth the probability that it is come to:
    that its node is taken and the children before it are not, which is the probability of the node times what they left
    of its law.  The place of the largest worth is filled next.  So whether a token is drawn never depends on which one
    it will be, and what was drawn is never dropped.

    Source: Y. Xiong, R. Zhang, Y. Li et al., "DySpec" (2024, arXiv 2410.11744), algorithm 1.

    Attributes:
        least: nodes that bring less are left out, and places that are worth less stay empty, in [0, 1].
        width: the most nodes that the drafter is asked about in one call: the one that is needed, and those that come
            next in worth.  It changes the number of calls and not the result, but for equally probable nodes.

    Raises:
        ValueError: a number is out of range.
    """

    least: float = 0.0
    width: int = 16

    def __post_init__(self) -> None:
        if not (math.isfinite(self.least) and 0 <= self.least <= 1):
            raise ValueError(f"DySpec: least must lie in [0, 1]; found {self.least!r}")
        if self.width < 1:
            raise ValueError(f"DySpec: width must be at least 1; found {self.width!r}")

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``."""
        check_budget(self, budget)
        if generator is not None:
            return self._drawn(growth, budget, generator)
        ranked = Ranked(budget, least=self.least)
        while budget and (asked := ranked.waiting()[: self.width]):
            for node, law in zip(asked, growth.laws(ranked.tree, asked), strict=True):
                ranked.add(node, law)
        return ranked.result()

    def _drawn(self, growth: Growth, budget: int, generator: np.random.Generator) -> DraftTree:
        tree = DraftTree()
        numbers = count(1)
        heap = [_Place(-1.0, 0, ROOT, 1.0, None)]
        laws: dict[int, Law | None] = {}
        while heap and len(tree) < budget and -heap[0].order >= self.least:
            place = heapq.heappop(heap)
            node, reach, children = place.node, place.reach, place.children
            if children is None:
                if node not in laws:
                    asked = [node, *self._next(heap, laws)]
                    laws.update(zip(asked, growth.laws(tree, asked), strict=True))
                law = laws.pop(node)
                end = None if law is None else with_forced(tree, node, law, budget)
                if law is None or end is None:
                    continue
                node, children = end, Children(tree, end, law, generator)
            else:
                child = children.add()
                if child is None:
                    continue
                below = reach * tree.confidences[child]
                heapq.heappush(heap, _Place(-below, next(numbers), child, below, None))
            worth = reach * children.left
            if worth > 0:
                heapq.heappush(heap, _Place(-worth, next(numbers), node, reach, children))
        return tree

    def _next(self, heap: list[_Place], laws: dict[int, Law | None]) -> list[int]:
        """The nodes that the drafter will probably be asked about soon."""
        waiting = [
            place for place in heap if place.children is None and place.node not in laws and -place.order >= self.least
        ]
        return [place.node for place in heapq.nsmallest(self.width - 1, waiting)]


class _Place(NamedTuple):
    """Where a child may be added; the one that is worth the most comes first, of equal ones the first that was made."""

    order: float
    """The negative worth."""
    number: int
    node: int
    reach: float
    """The probability that ``node`` is taken."""
    children: Children | None
    """None as long as the law behind the node is not known."""
