"""The outlines of the rules of a grammar.

A rule depends on the parser state in which it begins if other lexers read inside it or the parser resolves conflicts
differently.  An *outline* is a rule together with all states where it is the same: a small acyclic graph, in which
equal ends of its alternatives are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

from structgen.errors import LimitExceeded
from structgen.frontends.lark.contextual.table import Tables
from structgen.grammar.limits import Limits, spend

__all__ = ["Outline", "OutlineEdge", "OutlinePoint", "make_outlines"]

OutlineEdge: TypeAlias = tuple[str, int, int]
"""A terminal and the class of parser states that it leads to, or ``""`` and an outline; then the next point."""


@dataclass(frozen=True, slots=True)
class OutlinePoint:
    """A position in the alternatives of a rule.

    Attributes:
        edges: what may come next.
        ends: for each alternative that ends here, the terminals before which the parser does not reduce it.
    """

    edges: tuple[OutlineEdge, ...]
    ends: tuple[frozenset[str], ...]


@dataclass(slots=True)
class Outline:
    """A rule in the parser states where it is the same.

    Attributes:
        origin: the rule.
        root: its first point.
        first: the terminals that it may begin with.
        is_nullable: whether it may be empty.
    """

    origin: str
    root: int
    first: frozenset[str] = field(default=frozenset())
    is_nullable: bool = False


def make_outlines(
    tables: Tables, state_classes: Sequence[int], limits: Limits, subject: str
) -> tuple[list[OutlinePoint], list[Outline], int]:
    """Return the points, the outlines, and the number of the outline of the start rule.

    ``state_classes`` has the class of each parser state for the lexers; ``limits.grammar_nodes`` bounds the points.
    """
    alternatives: dict[str, list[int]] = {}
    for index, production in enumerate(tables.productions):
        alternatives.setdefault(production.origin, []).append(index)
    starts = [(state, name) for state, row in enumerate(tables.goto) for name, is_terminal in row if not is_terminal]
    positions = _Positions(tables, state_classes, {start: index for index, start in enumerate(starts)})
    trees: list[list[int]] = []
    count = 0
    for state, name in starts:
        trees.append(positions.tree(state, tuple([(index, 0) for index in alternatives[name]])))
        count += len(trees[-1])
        spend(len(trees[-1]), subject, f"its rules have {count} positions in the states of the parser")
        if count > limits.grammar_nodes:
            raise LimitExceeded(subject, limit="grammar_nodes", maximum=limits.grammar_nodes)
    numbers = {name: number for number, name in enumerate(dict.fromkeys(name for _, name in starts))}
    classes = [numbers[name] for _, name in starts]
    distinct = len(numbers)
    while True:
        spend(count // 2, subject, "its rules differ in the states of the parser")
        roots = positions.numbered(trees, classes)[1]
        keys: dict[tuple[str, int], int] = {}
        refined = [keys.setdefault((name, root), len(keys)) for (_, name), root in zip(starts, roots, strict=True)]
        classes = refined
        if len(keys) == distinct:
            break
        distinct = len(keys)
    # The points of the last round have the numbers of the round before, so they are made once more.
    first = {number: index for index, number in reversed(list(enumerate(classes)))}
    chosen = [first[number] for number in range(distinct)]
    points, roots = positions.numbered([trees[index] for index in chosen], classes)
    outlines = [Outline(starts[index][1], root) for index, root in zip(chosen, roots, strict=True)]
    _solve_first(points, outlines)
    return points, outlines, classes[starts.index((0, tables.start))]


@final
class _Positions:
    """The positions in the alternatives of rules, as (parser state, alternatives and positions in them).

    They are shared by all starts that lead to the same state.
    """

    def __init__(self, tables: Tables, state_classes: Sequence[int], starts: dict[tuple[int, str], int]) -> None:
        self._tables = tables
        self._classes = state_classes
        self._starts = starts
        self._numbers: dict[tuple[int, tuple[tuple[int, int], ...]], int] = {}
        # By position: (terminal, class of the next state, next position), (number of a start, next position), ends.
        self._terminals: list[list[tuple[str, int, int]]] = []
        self._rules: list[list[tuple[int, int]]] = []
        self._ends: list[tuple[frozenset[str], ...]] = []
        self._below: list[list[int]] = []

    def tree(self, state: int, items: tuple[tuple[int, int], ...]) -> list[int]:
        """Return the positions from a start on, each before those that it leads to."""
        found = [self._number(state, items)]
        seen = set(found)
        for number in found:  # grows in the loop
            for target in self._below[number]:
                if target not in seen:
                    seen.add(target)
                    found.append(target)
        return found

    def _number(self, state: int, items: tuple[tuple[int, int], ...]) -> int:
        """Return the number of a position; new ones are made with all that they lead to."""
        waiting = [(state, items)]
        root = self._numbers.setdefault(waiting[0], len(self._numbers))
        if root < len(self._ends):
            return root
        for here, inside in waiting:  # grows in the loop
            following: dict[tuple[str, bool], list[tuple[int, int]]] = {}
            ending: set[frozenset[str]] = set()
            for production, position in inside:
                symbols = self._tables.productions[production].symbols
                if position == len(symbols):
                    ending.add(self._tables.forbidden.get((here, production), frozenset()))
                else:
                    following.setdefault(symbols[position], []).append((production, position + 1))
            terminals: list[tuple[str, int, int]] = []
            rules: list[tuple[int, int]] = []
            below: list[int] = []
            for symbol, rest in following.items():
                target = (self._tables.goto[here][symbol], tuple(rest))
                fresh = len(self._numbers)
                number = self._numbers.setdefault(target, fresh)
                if number == fresh:
                    waiting.append(target)
                name, is_terminal = symbol
                if is_terminal:
                    terminals.append((name, self._classes[target[0]], number))
                else:
                    rules.append((self._starts[here, name], number))
                below.append(number)
            self._terminals.append(terminals)
            self._rules.append(rules)
            self._below.append(below)
            self._ends.append(tuple(sorted(ending, key=sorted)))
        return root

    def numbered(self, trees: Sequence[list[int]], classes: Sequence[int]) -> tuple[list[OutlinePoint], list[int]]:
        """Return points, equal ones once and each after those that it leads to, and the number of each tree's first.

        ``classes`` has the outline of each start.
        """
        made = [-1] * len(self._ends)
        numbers: dict[tuple[tuple[OutlineEdge, ...], tuple[frozenset[str], ...]], int] = {}
        for tree in trees:
            for position in reversed(tree):
                if made[position] < 0:
                    row = [(name, state, made[child]) for name, state, child in self._terminals[position]]
                    row += [("", classes[start], made[child]) for start, child in self._rules[position]]
                    row.sort()
                    made[position] = numbers.setdefault((tuple(row), self._ends[position]), len(numbers))
        return [OutlinePoint(*key) for key in numbers], [made[tree[0]] for tree in trees]


def _solve_first(points: Sequence[OutlinePoint], outlines: Sequence[Outline]) -> None:
    """Compute the FIRST sets of the outlines; points come after those that they lead to."""
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
