"""The rules of a grammar as its LALR parser sees them.

A rule means another thing in each parser state that it begins in, so far as other lexers read inside it, or as the
parser resolves conflicts otherwise.  An *outline* is a rule together with all the states where it means the same: a
small graph without circles, in which equal ends of its alternatives are one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from structgen.errors import LimitExceeded
from structgen.grammar.lark.contextual.tables import Tables
from structgen.grammar.limits import Limits

__all__ = ["Edge", "Outline", "Point", "make_outlines"]

Edge: TypeAlias = tuple[str, int, int]
"""A terminal and the class of parser states that it leads to, or ``""`` and an outline; then the next point."""


@dataclass(frozen=True, slots=True)
class Point:
    """A place in the alternatives of a rule.

    Attributes:
        edges: what may come next.
        ends: for each alternative that ends here, the terminals before which the parser does not end it.
    """

    edges: tuple[Edge, ...]
    ends: tuple[frozenset[str], ...]


@dataclass(slots=True)
class Outline:
    """A rule in the states where it means the same.

    Attributes:
        origin: the rule.
        root: its first point.
        first: the terminals that a text of it may begin with.
        is_nullable: whether it may be empty.
    """

    origin: str
    root: int
    first: frozenset[str] = field(default=frozenset())
    is_nullable: bool = False


def make_outlines(
    tables: Tables, places: Sequence[int], limits: Limits, subject: str
) -> tuple[list[Point], list[Outline], int]:
    """Return the points, the outlines, and the number of the outline of the start rule.

    Args:
        tables: of the grammar.
        places: by parser state, its class for the lexers.
        limits: ``grammar_nodes`` bounds the points.
        subject: what errors are about.
    """
    alternatives: dict[str, list[int]] = {}
    for index, production in enumerate(tables.productions):
        alternatives.setdefault(production.origin, []).append(index)
    starts = [(state, name) for state, row in enumerate(tables.goto) for name, is_terminal in row if not is_terminal]
    trees = [_Tree(tables, state, tuple((index, 0) for index in alternatives[name])) for state, name in starts]
    if sum(len(tree.nodes) for tree in trees) > limits.grammar_nodes:
        raise LimitExceeded(subject, limit="grammar_nodes", maximum=limits.grammar_nodes)
    names = {name: number for number, name in enumerate(dict.fromkeys(name for _, name in starts))}
    classes = {(state, name): names[name] for state, name in starts}
    count = len(names)
    while True:
        points: list[Point] = []
        numbers: dict[Point, int] = {}
        keys: dict[tuple[str, int], int] = {}
        refined: dict[tuple[int, str], int] = {}
        for start, tree in zip(starts, trees, strict=True):
            root = tree.numbered(classes, places, tables, points, numbers)
            refined[start] = keys.setdefault((start[1], root), len(keys))
        classes = refined
        if len(keys) == count:
            break
        count = len(keys)
    # The points of the last round bear the numbers of the round before, so they are made once more.
    points, roots = _renamed(starts, trees, classes, places, tables)
    outlines = [Outline(name, root) for name, root in roots]
    _solve_first(points, outlines)
    return points, outlines, classes[0, tables.start]


def _renamed(
    starts: Sequence[tuple[int, str]],
    trees: Sequence[_Tree],
    classes: dict[tuple[int, str], int],
    places: Sequence[int],
    tables: Tables,
) -> tuple[list[Point], list[tuple[str, int]]]:
    points: list[Point] = []
    numbers: dict[Point, int] = {}
    roots: dict[int, tuple[str, int]] = {}
    for start, tree in zip(starts, trees, strict=True):
        if classes[start] not in roots:
            roots[classes[start]] = (start[1], tree.numbered(classes, places, tables, points, numbers))
    return points, [roots[number] for number in range(len(roots))]


class _Tree:
    """The alternatives of a rule from one parser state on, as a tree of (state, alternatives and places in them)."""

    __slots__ = ("nodes",)

    def __init__(self, tables: Tables, state: int, items: tuple[tuple[int, int], ...]) -> None:
        # Children come behind their parents.
        self.nodes: list[tuple[int, list[tuple[str, bool, int]], list[int]]] = []
        waiting = [(state, items)]
        for here, found in waiting:
            following: dict[tuple[str, bool], list[tuple[int, int]]] = {}
            ending: list[int] = []
            for production, position in found:
                symbols = tables.productions[production].symbols
                if position == len(symbols):
                    ending.append(production)
                else:
                    following.setdefault(symbols[position], []).append((production, position + 1))
            edges = []
            for symbol, rest in following.items():
                edges.append((*symbol, len(waiting)))
                waiting.append((tables.goto[here][symbol], tuple(rest)))
            self.nodes.append((here, edges, ending))

    def numbered(
        self,
        classes: dict[tuple[int, str], int],
        places: Sequence[int],
        tables: Tables,
        points: list[Point],
        numbers: dict[Point, int],
    ) -> int:
        """Return the number of the first point, new points put behind ``points``."""
        made = [0] * len(self.nodes)
        for index in range(len(self.nodes) - 1, -1, -1):
            state, edges, ending = self.nodes[index]
            row: list[Edge] = []
            for name, is_terminal, child in edges:
                if is_terminal:
                    row.append((name, places[self.nodes[child][0]], made[child]))
                else:
                    row.append(("", classes[state, name], made[child]))
            ends = tuple(
                sorted({tables.forbidden.get((state, production), frozenset()) for production in ending}, key=sorted)
            )
            point = Point(tuple(sorted(row)), ends)
            found = numbers.get(point)
            if found is None:
                found = numbers[point] = len(points)
                points.append(point)
            made[index] = found
        return made[0]


def _solve_first(points: Sequence[Point], outlines: Sequence[Outline]) -> None:
    """Find what the outlines may begin with; points come behind those that they lead to."""
    changed = True
    while changed:
        changed = False
        first: list[frozenset[str]] = []
        nullable: list[bool] = []
        for point in points:
            names: set[str] = set()
            is_nullable = bool(point.ends)
            for name, number, child in point.edges:
                if name:
                    names.add(name)
                    continue
                names |= outlines[number].first
                if outlines[number].is_nullable:
                    names |= first[child]
                    is_nullable = is_nullable or nullable[child]
            first.append(frozenset(names))
            nullable.append(is_nullable)
        for outline in outlines:
            if (outline.first, outline.is_nullable) != (first[outline.root], nullable[outline.root]):
                outline.first, outline.is_nullable = first[outline.root], nullable[outline.root]
                changed = True
