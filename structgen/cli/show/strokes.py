"""Edges between states, and the fewer strokes that are drawn for them.

A text that only one way leads through is one stroke, and so are all characters beyond ASCII that lead from one state
to another, however many bytes they take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias, final

__all__ = ["Edge", "Ranges", "Stroke", "Strokes", "label_of"]

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
    """What is drawn between two states.

    Attributes:
        source, target: states.
        label: what is written beside it.
        inner: the states on the way, which have no place of their own.
        rule: the start of the rule that is called on the way; None where none is.
    """

    source: int
    target: int
    label: str
    inner: tuple[int, ...] = ()
    rule: int | None = None


def label_of(edge: Edge, names: dict[int, str]) -> str:
    """What is written beside an edge."""
    if edge.rule is not None:
        return f"call {names[edge.rule]}"
    if edge.token is not None:
        return f"token {edge.token}"
    return " ".join(_byte(low) if low == high else f"{_byte(low)}..{_byte(high)}" for low, high in edge.ranges)


def _byte(value: int) -> str:
    return _NAMES.get(value) or (chr(value) if 0x20 < value < 0x7F else f"x{value:02x}")


@final
class Strokes:
    """Finds the strokes of one rule.

    Args:
        start: its first state.
        edges: all of its edges.
        final: the states in which it may end.
        names: of rules, by their starts.
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
        if target in self._within_character:  # the text goes on with a character of several bytes
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
