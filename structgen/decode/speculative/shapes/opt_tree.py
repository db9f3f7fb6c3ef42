"""The tree with the largest expected number of tokens taken, level by level."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.speculative.shapes.best import Ranked
from structgen.decode.speculative.shapes.growth import Shape, check_budget

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.shapes.growth import Growth

__all__ = ["OptTree"]


@final
@dataclass(frozen=True, slots=True)
class OptTree(Shape):
    """Keeps the nodes that are most probable, each with the product of probabilities on its way.

    A tree is expected to bring the sum of these products, and no product is larger than that of the parent, so of all
    trees of a size the best is made of the largest ones.  The drafter is asked once for each level, about those of its
    nodes that are among the best of all so far; no other has a descendant in the result.  With ``least_gain=0`` the
    result is exactly the best for what the laws name.

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
        ranked = Ranked(budget)
        expected = 0.0
        depth = 0
        while budget and (self.depth is None or depth < self.depth) and (level := ranked.waiting()):
            for node, law in zip(level, growth.laws(ranked.tree, level), strict=True):
                ranked.add(node, law)
            gain = ranked.expected() - expected
            if gain <= self.least_gain:
                break
            expected += gain
            depth += 1
        return ranked.result()
