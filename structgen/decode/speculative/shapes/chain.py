"""A draft without forks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.shapes.children import Children
from structgen.decode.speculative.shapes.growth import Shape, check_budget, with_forced
from structgen.decode.speculative.shapes.stop import Stop

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.speculative.shapes.growth import Growth

__all__ = ["Chain"]


@final
@dataclass(frozen=True, slots=True)
class Chain(Shape):
    """One token behind the other.

    Attributes:
        length: the most guesses; forced tokens between them do not count.
        stop: may end a draft before.

    Raises:
        ValueError: ``length`` is negative.
    """

    length: int = 8
    stop: Stop | None = None

    most_children = 1

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
            (law,) = growth.laws(tree, (last,))
            if law is None:
                break
            end = with_forced(tree, last, law, budget)
            if end is None or len(tree) == budget or (self.stop and self.stop.stops(law, confidences, kind)):
                break
            child = Children(tree, end, law, generator).add()
            if child is None:
                break
            last = child
            confidences.append(tree.confidences[child])
        return tree

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """See ``Shape.learn``."""
        if self.stop is not None:
            self.stop.learn(tree, came, kind)
