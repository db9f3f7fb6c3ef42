"""What is drawn: the automata of the rules, with places for their states.

States stand in layers by how few edges lead to them from the start of their rule, and within a layer near to where
their edges come from.

Source: K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system structures"
(1981); of their steps, layers by distance and one sweep of barycentres suffice for automata that are small enough to
be looked at.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.cli.show.strokes import Edge, Ranges, Stroke, Strokes, label_of
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Constraint

__all__ = ["MOST_DRAWN", "MOST_STATES", "Drawing", "Rule", "drawing_of"]

MOST_STATES: Final = 4_000
"""States of all rules together."""

MOST_DRAWN: Final = 400
"""States of one rule that are drawn; all are stepped through."""


@final
@dataclass(frozen=True, slots=True)
class Rule:
    """The automaton of one rule.

    Attributes:
        name: of the rule; of the outermost one ``"(text)"``.
        start: its first state.
        edges: between its states.
        states: how many it has.
        strokes: what is drawn of the edges.
        places: column and row of each state that is drawn.
        left_out: how many states are not drawn, for there are too many.
    """

    name: str
    start: int
    edges: tuple[Edge, ...]
    states: int
    strokes: tuple[Stroke, ...]
    places: dict[int, tuple[int, int]]
    left_out: int


@final
@dataclass(frozen=True, slots=True)
class Drawing:
    """All rules, outermost first.

    Attributes:
        rules: each once.
        final: the states in which a rule may end.
        states: how many states there are.
    """

    rules: tuple[Rule, ...]
    final: frozenset[int]
    states: int

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        names = {rule.start: rule.name for rule in self.rules}
        for rule in self.rules:
            yield f"{rule.name}: {rule.states} states, from {rule.start}"
            ends = sorted(self.final & {rule.start, *(edge.target for edge in rule.edges)})
            yield f"  may end in {', '.join(map(str, ends)) or 'none'}"
            for edge in rule.edges:
                yield f"  {edge.source} -> {edge.target}  {label_of(edge, names)}"


def drawing_of(constraint: Constraint, *, most_states: int = MOST_STATES) -> Drawing:
    """Return the automata of a constraint's rules.

    The constraint is compiled once more, in an engine of its own, where its rules have their names.

    Raises:
        LimitExceeded: they have more than ``most_states`` states together.

    Complexity: O(states x 256).
    """
    alone = constraint.alone().native
    made = _native.unfold_calls(alone, most_states)
    if made is None:
        raise LimitExceeded(
            "drawing of an automaton",
            limit="most_states",
            maximum=most_states,
            remedy="draw a part of the grammar, or bound what repeats with smaller numbers",
        )
    following, ends, calls, specials = made
    named = dict(_native.called_rules(alone, most_states))
    edges: dict[int, list[Edge]] = defaultdict(list)
    for source, row in enumerate(following):
        for target, ranges in _grouped(row):
            edges[source].append(Edge(source, target, ranges))
    texts = constraint.vocabulary.special
    for source, start, after in calls.tolist():
        edges[source].append(Edge(source, after, rule=start))
    for source, token, after in specials.tolist():
        edges[source].append(Edge(source, after, token=texts.get(token, f"<[{token}]>")))
    starts = [0, *(start for start in named if start != 0)]
    names = {0: "(text)"} | {start: name or "(shared)" for start, name in named.items()}
    final = frozenset(np.flatnonzero(ends).tolist())
    return Drawing(
        rules=tuple(_rule(names[start], start, edges, final, names) for start in starts),
        final=final,
        states=len(following),
    )


def _grouped(row: NDArray[np.int32]) -> Iterator[tuple[int, Ranges]]:
    """The targets of a state, each with the ranges of bytes that lead there."""
    found: dict[int, list[tuple[int, int]]] = {}
    changes = np.flatnonzero(np.diff(row)) + 1
    for low, high in zip([0, *changes.tolist()], [*changes.tolist(), 256], strict=True):
        target = int(row[low])
        if target >= 0:
            found.setdefault(target, []).append((low, high - 1))
    for target, ranges in found.items():
        yield target, tuple(ranges)


def _rule(name: str, start: int, edges: dict[int, list[Edge]], ends: frozenset[int], names: dict[int, str]) -> Rule:
    own: list[Edge] = []
    seen = {start}
    waiting = deque([start])
    while waiting:
        for edge in edges[waiting.popleft()]:
            own.append(edge)
            if edge.target not in seen:
                seen.add(edge.target)
                waiting.append(edge.target)
    strokes = Strokes(start, own, ends, names).all()
    places, left_out = _placed(start, strokes)
    drawn = tuple(stroke for stroke in strokes if stroke.source in places and stroke.target in places)
    return Rule(name, start, tuple(own), len(seen), drawn, places, left_out)


def _placed(start: int, strokes: tuple[Stroke, ...]) -> tuple[dict[int, tuple[int, int]], int]:
    """The places of the states that are drawn, and how many are not."""
    targets: dict[int, list[int]] = defaultdict(list)
    for stroke in strokes:
        targets[stroke.source].append(stroke.target)
    columns: dict[int, int] = {start: 0}
    parents: dict[int, list[int]] = defaultdict(list)
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        for target in targets[state]:
            parents[target].append(state)
            if target not in columns:
                columns[target] = columns[state] + 1
                waiting.append(target)
    layers: dict[int, list[int]] = defaultdict(list)
    for state, column in list(columns.items())[:MOST_DRAWN]:  # in the order of their distance
        layers[column].append(state)
    rows: dict[int, int] = {}
    for column in range(len(layers)):
        middle = {
            state: _mean([rows[parent] for parent in parents[state] if columns[parent] < column])
            for state in layers[column]
        }
        rows |= {state: row for row, state in enumerate(sorted(layers[column], key=middle.__getitem__))}
    return {state: (columns[state], row) for state, row in rows.items()}, len(columns) - len(rows)


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else 0.0
