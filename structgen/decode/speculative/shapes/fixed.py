"""Trees whose form is known before anything is guessed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.shapes.children import Children
from structgen.decode.speculative.shapes.growth import Shape, check_budget, with_forced

if TYPE_CHECKING:
    import numpy as np

    from structgen.decode.speculative.shapes.growth import Growth, Law

__all__ = ["Fixed"]

_MOST_NODES: Final = 4096


@final
@dataclass(frozen=True, slots=True)
class Fixed(Shape):
    """The form of a tree: the first child of a node is the most probable token there, or the first that was drawn.

    It is filled level by level, with one question to the drafter for each.  Where the grammar leaves fewer tokens than
    the form has children, the last ones are missing, with all behind them; where the budget ends, the lowest levels.

    Attributes:
        parents: of each node, before itself; ``ROOT`` for the first level.  Children of a node are counted in order.

    Raises:
        ValueError: a parent does not stand before its child.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise ValueError(f"Fixed: parents must stand before their children; found {parent!r} for node {node}")

    @classmethod
    def branching(cls, *counts: int) -> Self:
        """The form in which all nodes of a level have the same number of children, ``counts[0]`` those of the root.

        Raises:
            ValueError: a number is below 1, or there are more than 4096 nodes.
        """
        parents: list[int] = []
        level = [ROOT]
        for count in counts:
            if count < 1 or len(parents) + count * len(level) > _MOST_NODES:
                raise ValueError(
                    f"Fixed: counts must be at least 1, of up to {_MOST_NODES} nodes in all; found {counts!r}"
                )
            first = len(parents)
            parents += [node for node in level for _ in range(count)]
            level = list(range(first, len(parents)))
        return cls(tuple(parents))

    @classmethod
    def paths(cls, paths: Sequence[Sequence[int]]) -> Self:
        """The form that has these ways down from the root, each told by which child comes next, 0 for the first.

        Beginnings of paths, and the children before a child, are added where they are missing.

        Raises:
            ValueError: a number is negative.
        """
        wanted: set[tuple[int, ...]] = set()
        for path in paths:
            for end in range(1, len(path) + 1):
                if path[end - 1] < 0:
                    raise ValueError(f"Fixed: paths must not hold negative numbers; found {tuple(path)!r}")
                wanted |= {(*path[: end - 1], rank) for rank in range(path[end - 1] + 1)}
        numbers: dict[tuple[int, ...], int] = {(): ROOT}
        parents = []
        for node, path in enumerate(sorted(wanted, key=lambda path: (len(path), path))):
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
        level = {ROOT: ROOT}  # of the form, with the nodes of the tree
        while len(tree) < budget:
            level = {node: grown for node, grown in level.items() if node in form}
            if not level:
                break
            laws = growth.laws(tree, list(level.values()))
            below: dict[int, int] = {}
            for (node, grown), law in zip(level.items(), laws, strict=True):
                if law is not None:
                    found = _filled(tree, grown, law, min(len(form[node]), budget), budget, generator)
                    below.update(zip(form[node], found, strict=False))
            level = below
        return tree


def _filled(
    tree: DraftTree, node: int, law: Law, count: int, budget: int, generator: np.random.Generator | None
) -> list[int]:
    """Add what is forced behind a node and up to ``count`` children; return these."""
    end = with_forced(tree, node, law, budget)
    found: list[int] = []
    if end is None or len(tree) >= budget:
        return found
    children = Children(tree, end, law, generator)
    while len(found) < count and len(tree) < budget:
        child = children.add()
        if child is None:
            break
        found.append(child)
    return found
