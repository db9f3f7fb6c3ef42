"""The drawing of an automaton: positions of states, strokes that stand for their edges, and the page that shows them.

Source: K. Sugiyama, S. Tagawa and M. Toda, "Methods for visual understanding of hierarchical system structures"
(1981); of their steps, layers by distance and one sweep of barycentres suffice for automata that are small enough to
be looked at.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

import numpy as np
from structgen_kernels import _native

from structgen.errors import LimitExceeded
from structgen.markup import page_policy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Constraint

__all__ = ["MAX_STATES", "Drawing", "Edge", "Ranges", "drawing_of", "page_of"]

Ranges: TypeAlias = "tuple[tuple[int, int], ...]"
_NAMES: Final = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r", 0x20: "␣", 0x7F: "\\x7f"}
_CONTINUATION: Final = range(0x80, 0xC0)
_BEYOND: Final = "beyond ASCII"


@final
@dataclass(frozen=True, slots=True)
class Edge:
    """A step from one state to another.

    Attributes:
        source, target: states.
        ranges: bytes that lead there, as inclusive ranges; empty for calls and special tokens.
        rule: the start of the rule that is called on the way; None where none is.
        token: the special token that leads there; None where none does.
    """

    source: int
    target: int
    ranges: Ranges = ()
    rule: int | None = None
    token: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Stroke:
    """A stroke between two states.

    Attributes:
        source, target: states.
        label: its text.
        inner: the states on the way, which have no place of their own.
        rule: the start of the rule that is called on the way; None where none is.
    """

    source: int
    target: int
    label: str
    inner: tuple[int, ...] = ()
    rule: int | None = None


def label_of(edge: Edge, names: dict[int, str]) -> str:
    """The text at an edge."""
    if edge.rule is not None:
        return f"call {names[edge.rule]}"
    if edge.token is not None:
        return f"token {edge.token}"
    return " ".join(_byte(low) if low == high else f"{_byte(low)}..{_byte(high)}" for low, high in edge.ranges)


def _byte(value: int) -> str:
    return _NAMES.get(value) or (chr(value) if 0x20 < value < 0x7F else f"x{value:02x}")


@final
class Strokes:
    """Finds the strokes of one rule, by its first state, all of its edges, and the states in which it may end.

    ``names`` are those of rules, by their starts.
    """

    def __init__(self, start: int, edges: list[Edge], final: frozenset[int], names: dict[int, str]) -> None:
        self._names = names
        self._edges: dict[int, list[Edge]] = defaultdict(list)
        entered: dict[int, int] = defaultdict(int)
        for edge in edges:
            self._edges[edge.source].append(edge)
            entered[edge.target] += 1
        plain = {
            state
            for state, after in self._edges.items()
            if state != start and state not in final and all(edge.ranges for edge in after)
        }
        self._within_character = {
            state
            for state in plain
            if all(low in _CONTINUATION for edge in self._edges[state] for low, _ in edge.ranges)
        }
        self._within_text = {
            state
            for state in plain - self._within_character
            if entered[state] == 1 and len(self._edges[state]) == 1 and _single(self._edges[state][0]) is not None
        }
        self._start = start

    def all(self) -> tuple[Stroke, ...]:
        """The strokes between the states that have a place."""
        found: list[Stroke] = []
        seen, waiting = {self._start}, [self._start]
        while waiting:
            for stroke in self._from(waiting.pop()):
                found.append(stroke)
                if stroke.target not in seen:
                    seen.add(stroke.target)
                    waiting.append(stroke.target)
        return tuple(found)

    def _from(self, state: int) -> Iterator[Stroke]:
        beyond: dict[int, set[int]] = defaultdict(set)
        for edge in self._edges[state]:
            if edge.target in self._within_character and edge.ranges:
                for target, inner in self._characters(edge.target).items():
                    beyond[target] |= inner
            elif edge.target in self._within_text and _single(edge) is not None:
                yield self._text(edge)
            else:
                yield Stroke(state, edge.target, label_of(edge, self._names), rule=edge.rule)
        for target, inner in beyond.items():
            yield Stroke(state, target, _BEYOND, tuple(sorted(inner)))

    def _text(self, edge: Edge) -> Stroke:
        """The stroke that begins with an edge into a text that only one way leads through."""
        inner: list[int] = []
        written = [label_of(edge, self._names)]
        target = edge.target
        while target in self._within_text and target not in inner:
            inner.append(target)
            (after,) = self._edges[target]
            written.append(label_of(after, self._names))
            target = after.target
        if target in self._within_character:  # the text continues with a character of several bytes
            target = inner.pop()
            written.pop()
        return Stroke(edge.source, target, "".join(written), tuple(inner))

    def _characters(self, state: int) -> dict[int, set[int]]:
        """The states after the characters that a state is within, each with the states on the way."""
        found: dict[int, set[int]] = defaultdict(set)
        waiting = [(state, frozenset({state}))]
        while waiting:
            at, inner = waiting.pop()
            for edge in self._edges[at]:
                if edge.target in self._within_character and len(inner) < 3:
                    waiting.append((edge.target, inner | {edge.target}))
                else:
                    found[edge.target] |= inner
        return found


def _single(edge: Edge) -> int | None:
    """The byte of an edge that has only one, of ASCII."""
    if len(edge.ranges) == 1 and edge.ranges[0][0] == edge.ranges[0][1] < 0x80:
        return edge.ranges[0][0]
    return None


MAX_STATES: Final = 4_000
"""States of all rules together."""

MAX_DRAWN: Final = 400
"""States of one rule that are drawn; all are stepped through."""


@final
@dataclass(frozen=True, slots=True)
class RuleDrawing:
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

    rules: tuple[RuleDrawing, ...]
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


def drawing_of(constraint: Constraint, *, most_states: int = MAX_STATES) -> Drawing:
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
        rules=tuple(_rule_drawing(names[start], start, edges, final, names) for start in starts),
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


def _rule_drawing(
    name: str, start: int, edges: dict[int, list[Edge]], ends: frozenset[int], names: dict[int, str]
) -> RuleDrawing:
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
    places, left_out = _state_positions(start, strokes)
    drawn = tuple(stroke for stroke in strokes if stroke.source in places and stroke.target in places)
    return RuleDrawing(name, start, tuple(own), len(seen), drawn, places, left_out)


def _state_positions(start: int, strokes: tuple[Stroke, ...]) -> tuple[dict[int, tuple[int, int]], int]:
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
    for state, column in list(columns.items())[:MAX_DRAWN]:  # in the order of their distance
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


_PLACEHOLDER: Final = re.compile(r"\{\{(title|data|policy)\}\}")


def page_of(drawing: Drawing, *, title: str, text: str = "") -> str:
    """Return the page that draws ``drawing`` and steps through texts, ``text`` first."""
    template = files(__package__).joinpath("automaton_page.html").read_text("utf-8")
    # No text of the grammar can end the script, and none is read as HTML.
    data = json.dumps(_page_data(drawing, text), ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")
    values = {"title": escape(title), "data": data, "policy": page_policy(template)}
    return _PLACEHOLDER.sub(lambda match: values[match[1]], template)


def _page_data(drawing: Drawing, text: str) -> dict[str, Any]:
    return {
        "text": text,
        "final": sorted(drawing.final),
        "rules": [
            {
                "name": rule.name,
                "start": rule.start,
                "leftOut": rule.left_out,
                "states": [[state, *place] for state, place in sorted(rule.places.items())],
                "strokes": [
                    {"from": one.source, "to": one.target, "label": one.label, "inner": one.inner, "call": one.rule}
                    for one in rule.strokes
                ],
                "edges": [
                    {"from": one.source, "to": one.target, "bytes": one.ranges, "call": one.rule, "token": one.token}
                    for one in rule.edges
                ],
            }
            for rule in drawing.rules
        ],
    }
