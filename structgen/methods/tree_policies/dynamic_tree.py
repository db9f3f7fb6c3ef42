"""Trees that are grown from the draft distributions.

``OptTree`` adds the most probable nodes level by level, ``DySpec`` one at a time.  ``IndependentDraws`` samples
children with replacement, for verifiers that need that.
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
    """A tree of candidates that keeps track of the most probable ones.

    A node is at most as probable as its parent, so the most probable nodes are a tree; of equally probable nodes the
    earlier ones count as more probable.

    Args:
        size: the number of most probable nodes, the best.
        least: nodes that are less probable are left out.

    Attributes:
        tree: the candidates, without those that cannot be among the best.
    """

    def __init__(self, size: int, *, least: float = 0.0) -> None:
        self.tree = DraftTree()
        self._size = size
        self._least = least
        self._heap: list[tuple[float, int]] = []  # the best: reach and negative node; the smallest first
        self._reach: dict[int, float] = {ROOT: 1.0}
        self._unexpanded = {ROOT}
        self._runs: list[range] = []

    def waiting(self) -> list[int]:
        """Return the nodes without known children whose descendants may be among the best, the most probable first."""
        bound = self._heap[0][0] if len(self._heap) == self._size else 0.0
        self._unexpanded &= {ROOT, *self.best()}
        nodes = (node for node in self._unexpanded if self._reach[node] > bound)
        return sorted(nodes, key=lambda node: (-self._reach[node], node))

    def add(self, node: int, distribution: DraftDistribution | None) -> None:
        """Add the children of a node that are among the best."""
        self._unexpanded.discard(node)
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
            self._unexpanded.add(child)

    def best(self) -> set[int]:
        """Return the best nodes."""
        return {-negative for _, negative in self._heap}

    def expected(self) -> float:
        """Return the expected number of accepted nodes among the best."""
        return sum(reach for reach, _ in self._heap)

    def result(self) -> DraftTree:
        """Return the tree of the best nodes; an incomplete run of forced nodes is left out."""
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
    """Adds the next child where its expected gain is largest.

    For chosen children, the gain of a node is the product of the probabilities on its path: the result is the best tree
    of its size, as that of ``OptTree`` with all levels.

    For sampled children, each node has a slot for its next child.  The value of a slot is the probability that the slot
    is reached: the probability of the node times the probability that its earlier children left.  The slot of the
    largest value is filled next.  So the decision to sample never depends on the sample, and samples are never dropped.

    Source: Y. Xiong, R. Zhang, Y. Li et al., "DySpec" (2024, arXiv 2410.11744), algorithm 1.

    Attributes:
        least: nodes of less gain are left out, and slots of less value stay empty, in [0, 1].
        width: the largest number of nodes in one query of the drafter: the node that is needed, and the next ones by
            value.  It changes the number of queries, but not the result, except for equally probable nodes.

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
            return self._sampled(growth, budget, generator)
        ranked = RankedTree(budget, least=self.least)
        while budget and (nodes := ranked.waiting()[: self.width]):
            for node, distribution in zip(nodes, growth.distributions(ranked.tree, nodes), strict=True):
                ranked.add(node, distribution)
        return ranked.result()

    def _sampled(self, growth: Growth, budget: int, generator: np.random.Generator) -> DraftTree:
        tree = DraftTree()
        numbers = count(1)
        heap = [_PendingChild(-1.0, 0, ROOT, 1.0, None)]
        distributions: dict[int, DraftDistribution | None] = {}
        while heap and len(tree) < budget and -heap[0].order >= self.least:
            slot = heapq.heappop(heap)
            node, reach, children = slot.node, slot.reach, slot.children
            if children is None:
                if node not in distributions:
                    nodes = [node, *self._next(heap, distributions)]
                    distributions.update(zip(nodes, growth.distributions(tree, nodes), strict=True))
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
            value = reach * children.left
            if value > 0:
                heapq.heappush(heap, _PendingChild(-value, next(numbers), node, reach, children))
        return tree

    def _next(self, heap: list[_PendingChild], distributions: dict[int, DraftDistribution | None]) -> list[int]:
        """The nodes that will probably be queried next."""
        waiting = [
            slot
            for slot in heap
            if slot.children is None and slot.node not in distributions and -slot.order >= self.least
        ]
        return [slot.node for slot in heapq.nsmallest(self.width - 1, waiting)]


class _PendingChild(NamedTuple):
    """A slot for a child; the slot of the largest value comes first, of equal ones the oldest."""

    order: float
    """The negative value."""
    number: int
    node: int
    reach: float
    """The acceptance probability of ``node``."""
    children: Children | None
    """None before the distribution after the node is known."""


@final
@dataclass(frozen=True, slots=True)
class OptTree(Shape):
    """Retains the nodes with the largest product of probabilities on their path.

    The expected number of accepted nodes of a tree is the sum of these products, and no product is larger than that of
    the parent, so the best tree of a size has the largest ones.  The drafter is queried once for each level, for the
    nodes that are among the best so far; no other node has a descendant in the result.  With ``least_gain=0`` the
    result is optimal for the listed tokens of the distributions.

    Sampled children must not be selected by their own probability, so this policy refuses a generator; ``DySpec``
    samples.

    Source: J. Wang, Y. Su, J. Li et al., "OPT-Tree" (2024, arXiv 2406.17276), algorithm 1.

    Attributes:
        least_gain: growth stops once a level raises the expected number of tokens by no more than this.
        depth: the largest number of levels, each with one query; None for no bound.

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
            raise ValueError("OptTree: sampled children cannot be selected by their probability; use DySpec")
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
    """Samples a given number of children at each depth, with replacement: equal samples are one child.

    For verifiers that need samples with replacement (``KSequential``, ``IndependentRejection``).  Without a generator,
    the most probable tokens are chosen.

    Source: Z. Sun et al., "SpecTr" (NeurIPS 2023, arXiv 2310.15141), whose candidates are independent.

    Attributes:
        draws_by_depth: the number of samples after a node at each depth; at most the budget that is left.

    Raises:
        ValueError: the tuple is empty, or a number is not a positive integer.
    """

    draws_by_depth: tuple[int, ...] = (2, 1, 1, 1)

    def __post_init__(self) -> None:
        counts = self.draws_by_depth
        if not counts or any(not isinstance(count, int) or count < 1 for count in counts):
            raise ValueError(f"IndependentDraws: expected positive integers, one for each depth; found {counts!r}")

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``; children are sampled with replacement."""
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
                count = min(width, budget - len(tree))
                if generator is None:
                    chosen = [int(token) for token in distribution.tokens[:count]]
                    probabilities = distribution.probabilities.tolist()
                    grown += [tree.add(last, token, p) for token, p in zip(chosen, probabilities, strict=False)]
                elif distribution.dense is None:
                    raise ValueError("IndependentDraws: children can only be sampled from dense distributions")
                elif count:
                    sampled = tuple(inverse_cdf(distribution.dense, generator.random()) for _ in range(count))
                    tree.sampled[last] = SampledChildren(distribution.dense, sampled, replaced=True)
                    grown += [
                        tree.add(last, token, float(distribution.dense[token])) for token in dict.fromkeys(sampled)
                    ]
            nodes = grown
        return tree
