"""Trees that are grown from the draft distribution: where tokens are most probable, or by independent samples.

``OptTree`` grows level by level, ``DySpec`` one node after the other.  ``IndependentDraws`` samples children
independently of each other, for verifiers that need that.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, ClassVar, NamedTuple, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.tree_policy import Children, Shape, check_budget, with_forced
from structgen.decode.step.sampler import inverse_cdf

if TYPE_CHECKING:
    from structgen.decode.speculative.tree_policy import DraftDistribution, Growth

__all__ = ["DySpec", "IndependentDraws", "OptTree", "RankedTree"]


@final
class RankedTree:
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

    def add(self, node: int, distribution: DraftDistribution | None) -> None:
        """Add what may follow a node, as far as it is among the best."""
        self._unasked.discard(node)
        first = len(self.tree)
        end = None if distribution is None else with_forced(self.tree, node, distribution, first + self._size)
        if distribution is None or end is None:
            return
        reach = self._reach[node]
        for forced in range(first, len(self.tree)):
            self._push(forced, reach)
        if end != node:
            self._runs.append(range(first, len(self.tree)))
        for token, probability in zip(distribution.tokens.tolist(), distribution.probabilities.tolist(), strict=True):
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


@final
@dataclass(frozen=True, slots=True)
class DySpec(Shape):
    """Adds the next child where that is expected to bring the most.

    Where children are chosen, what a node brings is its probability on its way from the root: the result is the best
    tree of its size, as that of ``OptTree`` with all levels.

    Where they are drawn, each node has a place for its next child, which is worth the probability that it is come to:
    that its node is taken and the children before it are not, which is the probability of the node times what they left
    of its distribution.  The place of the largest worth is filled next.  So whether a token is drawn never depends on
    which one it will be, and what was drawn is never dropped.

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
        ranked = RankedTree(budget, least=self.least)
        while budget and (asked := ranked.waiting()[: self.width]):
            for node, distribution in zip(asked, growth.distributions(ranked.tree, asked), strict=True):
                ranked.add(node, distribution)
        return ranked.result()

    def _drawn(self, growth: Growth, budget: int, generator: np.random.Generator) -> DraftTree:
        tree = DraftTree()
        numbers = count(1)
        heap = [_PendingChild(-1.0, 0, ROOT, 1.0, None)]
        distributions: dict[int, DraftDistribution | None] = {}
        while heap and len(tree) < budget and -heap[0].order >= self.least:
            place = heapq.heappop(heap)
            node, reach, children = place.node, place.reach, place.children
            if children is None:
                if node not in distributions:
                    asked = [node, *self._next(heap, distributions)]
                    distributions.update(zip(asked, growth.distributions(tree, asked), strict=True))
                distribution = distributions.pop(node)
                end = None if distribution is None else with_forced(tree, node, distribution, budget)
                if distribution is None or end is None:
                    continue
                node, children = end, Children(tree, end, distribution, generator)
            else:
                child = children.add()
                if child is None:
                    continue
                below = reach * tree.confidences[child]
                heapq.heappush(heap, _PendingChild(-below, next(numbers), child, below, None))
            worth = reach * children.left
            if worth > 0:
                heapq.heappush(heap, _PendingChild(-worth, next(numbers), node, reach, children))
        return tree

    def _next(self, heap: list[_PendingChild], distributions: dict[int, DraftDistribution | None]) -> list[int]:
        """The nodes that the drafter will probably be asked about soon."""
        waiting = [
            place
            for place in heap
            if place.children is None and place.node not in distributions and -place.order >= self.least
        ]
        return [place.node for place in heapq.nsmallest(self.width - 1, waiting)]


class _PendingChild(NamedTuple):
    """Where a child may be added; the one that is worth the most comes first, of equal ones the first that was made."""

    order: float
    """The negative worth."""
    number: int
    node: int
    reach: float
    """The probability that ``node`` is taken."""
    children: Children | None
    """None as long as the distribution after the node is not known."""


@final
@dataclass(frozen=True, slots=True)
class OptTree(Shape):
    """Keeps the nodes that are most probable, each with the product of probabilities on its way.

    A tree is expected to bring the sum of these products, and no product is larger than that of the parent, so of all
    trees of a size the best is made of the largest ones.  The drafter is asked once for each level, about those of its
    nodes that are among the best of all so far; no other has a descendant in the result.  With ``least_gain=0`` the
    result is exactly the best for what the distributions name.

    Children that are drawn must not be left out for their own probability, which is all that this shape does: it
    refuses a generator; ``DySpec`` draws.

    Source: J. Wang, Y. Su, J. Li et al., "OPT-Tree" (2024, arXiv 2406.17276), algorithm 1.

    Attributes:
        least_gain: the drafter is not asked about another level once one raised the expected number of tokens by no
            more than that.
        depth: the most levels, each of one question; None is no bound.

    Raises:
        ValueError: a number is out of range.
    """

    least_gain: float = 0.0
    depth: int | None = None

    draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.least_gain) and self.least_gain >= 0):
            raise ValueError(f"OptTree: least_gain must be finite and not negative; found {self.least_gain!r}")
        if self.depth is not None and self.depth < 0:
            raise ValueError(f"OptTree: depth must not be negative; found {self.depth!r}")

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``."""
        check_budget(self, budget)
        if generator is not None:
            raise ValueError("OptTree: drawn children cannot be chosen by their probability; use DySpec")
        ranked = RankedTree(budget)
        expected = 0.0
        depth = 0
        while budget and (self.depth is None or depth < self.depth) and (level := ranked.waiting()):
            for node, distribution in zip(level, growth.distributions(ranked.tree, level), strict=True):
                ranked.add(node, distribution)
            gain = ranked.expected() - expected
            if gain <= self.least_gain:
                break
            expected += gain
            depth += 1
        return ranked.result()


@final
@dataclass(frozen=True, slots=True)
class IndependentDraws(Shape):
    """At each depth so many draws after each node, with replacement: equal ones are one child.

    For verifiers whose drafts are ``replaced`` (``KSequential``, ``IndependentRejection``).  Where tokens are chosen,
    not drawn, these are the most probable ones.

    Source: Z. Sun et al., "SpecTr" (NeurIPS 2023, arXiv 2310.15141), whose candidates are independent.

    Attributes:
        draws_by_depth: how many draws at each depth; no more is drawn than the budget has nodes for.

    Raises:
        ValueError: there are none, or one is no positive integer.
    """

    draws_by_depth: tuple[int, ...] = (2, 1, 1, 1)

    def __post_init__(self) -> None:
        counts = self.draws_by_depth
        if not counts or any(not isinstance(count, int) or count < 1 for count in counts):
            raise ValueError(f"IndependentDraws: expected positive integers, one for each depth; found {counts!r}")

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``; what is drawn, is drawn with replacement."""
        check_budget(self, budget)
        tree = DraftTree()
        nodes = [ROOT]
        for width in self.draws_by_depth:
            if not nodes or len(tree) >= budget:
                break
            grown: list[int] = []
            for node, distribution in zip(nodes, growth.distributions(tree, nodes), strict=True):
                last = None if distribution is None else with_forced(tree, node, distribution, budget)
                if distribution is None or last is None:
                    continue
                most = min(width, budget - len(tree))
                if generator is None:
                    chosen = [int(token) for token in distribution.tokens[:most]]
                    sure = distribution.probabilities.tolist()
                    grown += [tree.add(last, token, p) for token, p in zip(chosen, sure, strict=False)]
                elif distribution.dense is None:
                    raise ValueError("IndependentDraws: children can only be drawn from distributions that are dense")
                elif most:
                    drawn = tuple(inverse_cdf(distribution.dense, generator.random()) for _ in range(most))
                    tree.drawn[last] = SampledChildren(distribution.dense, drawn, replaced=True)
                    grown += [tree.add(last, token, float(distribution.dense[token])) for token in dict.fromkeys(drawn)]
            nodes = grown
        return tree
