"""The named parts of an incomplete text: what is certain for every continuation.

A text that is not complete has many parses: those of all strings that begin with it.  ``parts_of_prefix`` finds what
they have in common.  A *goal* is one node of the grammar from one position to one end, or to an end beyond the text.
Its value has the parts that all its derivations share.  Alternatives meet, sequences join, and the values are the
greatest that satisfy these equations over finite derivations: a goal without a derivation so far has no value, and
values only shrink from there.  Meet and join distribute, so the result is exact for all strings that the graph derives.

What could follow is judged node by node, without looking into intersections, complements, values that must differ and
budgets: there what is possible is over-approximated.  So less may be certain, never more.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias, final

from structgen.engine.parse.chart import Chart, EndSet, ParsedInput
from structgen.engine.parse.grammar_graph import (
    Both,
    Captured,
    Characters,
    Either,
    GraphNode,
    JsonText,
    Linker,
    Members,
    Not,
    Pair,
    Repeated,
    Special,
    symbols_of,
)
from structgen.engine.parse.prefixes import can_continue, is_text, opened_string
from structgen.grammar.limits import Limits, counted, spend
from structgen.memory_cache import TERMS, ContentCache

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["NamedPart", "parts_of_prefix", "parts_of_tokens"]

_BEYOND: Final = -1
"""The end of a goal beyond the text."""
_LATER: Final = 1 << 60
"""An end beyond the text, where ends are compared."""
_NODE_BYTES: Final = 400
_MAX_MADE: Final = 10_000
_MAX_EMPTY: Final = 64

_Key: TypeAlias = "tuple[str, int, int]"  # name, number of the source, start
_Closed: TypeAlias = "frozenset[tuple[_Key, int]]"


@final
@dataclass(frozen=True, slots=True)
class NamedPart:
    """A named part of an output that may not be complete.

    Attributes:
        name: its name.
        text: its text; of an open part, what is certainly in it so far.
        is_open: where it ends is not certain: it may still get longer.
        start: the byte at which it begins: of the output, or, inside a JSON string, of the decoded string.
    """

    name: str
    text: str
    is_open: bool
    start: int


@final
@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts that all derivations of a goal share.

    Attributes:
        closed: parts with their ends.
        ends: for each part that all have, the least and the greatest of the ends that it has in them.
    """

    closed: _Closed = frozenset()
    ends: Mapping[_Key, tuple[int, int]] = field(default_factory=dict)

    def meet(self, other: _Parts | None) -> _Parts:
        """The parts that this and another derivation share."""
        if other is None or other is self:
            return self
        if not self.ends or not other.ends:
            return _NOTHING
        ends = {
            key: (min(low, other.ends[key][0]), max(high, other.ends[key][1]))
            for key, (low, high) in self.ends.items()
            if key in other.ends
        }
        return _Parts(self.closed & other.closed, ends)

    def join(self, other: _Parts) -> _Parts:
        """The parts of a derivation of both, one after the other."""
        if not other.ends:
            return self
        if not self.ends:
            return other
        ends = dict(self.ends)
        for key, (low, high) in other.ends.items():
            before = ends.get(key, (low, high))
            ends[key] = max(low, before[0]), max(high, before[1])
        return _Parts(self.closed | other.closed, ends)


_NOTHING: Final = _Parts()


def parts_of_tokens(
    grammar: Grammar,
    taken: Sequence[int | bytes],
    texts: Sequence[bytes],
    special: Mapping[int, str],
    limits: Limits,
    *,
    is_over: bool,
) -> tuple[NamedPart, ...]:
    """``parts_of_prefix`` of what a matcher took: ids of tokens, whose bytes are ``texts``, and bytes; EOS left out."""
    symbols, tokens = symbols_of(taken, texts)
    return parts_of_prefix(grammar, symbols, special, tokens, limits, is_over=is_over)


def parts_of_prefix(
    grammar: Grammar,
    symbols: str,
    special: Mapping[int, str] | None = None,
    tokens: Mapping[int, tuple[int, int]] | None = None,
    limits: Limits | None = None,
    *,
    is_over: bool = False,
) -> tuple[NamedPart, ...]:
    """The named parts that every parse of every string with this prefix has, by start.

    A part is closed if it has the same text in all of them.  Else it is open; its text is what it has in all of them.

    Args:
        grammar: a closed term.
        symbols: the text so far, one character a byte, with ``chr(256 + id)`` for a special token.
        special: the special tokens of the vocabulary, id to text.
        tokens: the tokens so far, start to (id, end).
        limits: bounds on the work; by default ``Limits()``.
        is_over: nothing comes next.

    Raises:
        LimitExceeded: it takes more than ``limits.steps``.
        GrammarError: a complement is defined through itself.

    Complexity: that of a parse, and for each goal the number of parts that it has.
    """
    with counted(limits or Limits()):
        graph = _graph_of(grammar, special or {})
        if not graph.has_parts:
            return ()
        with graph.lock:
            goals = _Goals(graph, symbols, tokens)
            return tuple(goals.parts(is_over=is_over))


def _place(span: tuple[_Key, int, bool]) -> tuple[object, ...]:
    """The order of parts: those of the text first, then by start, the longest first."""
    (name, number, start), end, _ = span
    return number != 0, number, start, -end, name


class _Graph:
    """The graph of a grammar, and what is known of its nodes; a lock, since a graph unfolds while it is parsed."""

    def __init__(self, grammar: Grammar, special: Mapping[int, str]) -> None:
        self.linker = Linker(grammar, special)
        self.lock = threading.Lock()
        root = self.linker.unfold(self.linker.root)
        nodes = [root]
        parents: dict[int, list[GraphNode]] = {}
        for node in nodes:
            for child in self.linker.children(node):
                if id(child) not in parents and child is not root:
                    nodes.append(child)
                parents.setdefault(id(child), []).append(node)
        self.size = len(nodes)
        self.pending = self.linker.nodes
        spend(self.size, "captures")
        self.named = self._above([node for node in nodes if isinstance(node, Captured)], parents)
        self.has_parts = bool(self.named)
        self._known = {id(node) for node in nodes}
        self._productive: set[int] = set()
        stale = list(nodes)
        while stale:
            node = stale.pop()
            if id(node) not in self._productive and self._derives(node):
                self._productive.add(id(node))
                stale.extend(parents.get(id(node), ()))

    @staticmethod
    def _above(nodes: list[GraphNode], parents: Mapping[int, list[GraphNode]]) -> set[int]:
        found: set[int] = set()
        while nodes:
            node = nodes.pop()
            if id(node) not in found:
                found.add(id(node))
                nodes.extend(parents.get(id(node), ()))
        return found

    def can_name(self, node: GraphNode) -> bool:
        """Whether a part below a node is named, as far as is known: nodes are also made while a text is parsed."""
        if isinstance(node, Repeated):
            node = self.linker.unfold(node.item)
        return id(node) in self.named or id(node) not in self._known

    def is_productive(self, node: GraphNode) -> bool:
        """Whether a node can derive a string, as far as is known."""
        return id(node) in self._productive or id(node) not in self._known

    def _derives(self, node: GraphNode) -> bool:
        below = [id(child) in self._productive for child in self.linker.children(node)]
        match node:
            case Either():
                return any(below)
            case Characters(ranges=ranges, min=least):
                return bool(ranges) or least == 0
            case Special(symbols=symbols):
                return bool(symbols)
            case Repeated(min=least):
                return least == 0 or all(below)
            case Members() | Not():
                return True
            case _:
                return all(below)


_graphs: Final[ContentCache[_Graph]] = ContentCache(TERMS)


def _graph_of(grammar: Grammar, special: Mapping[int, str]) -> _Graph:
    key = grammar.digest, tuple(special.items())
    graph = _graphs.get(key)
    if graph is None or graph.linker.nodes > 2 * graph.pending + _MAX_MADE:  # sets of members are made on demand
        graph = _Graph(grammar, special)
        _graphs.put(key, graph, _NODE_BYTES * graph.size)
    return graph


@final
@dataclass(eq=False, slots=True)
class _Goal:
    """``node`` from ``start`` to ``end`` of ``source``, or beyond it; ``value`` is None without a derivation."""

    node: GraphNode
    source: ParsedInput
    start: int
    end: int
    value: _Parts | None = None
    queued: bool = False
    dependents: dict[int, _Goal] = field(default_factory=dict)


@final
class _Goals:
    """The goals that the root needs over one text."""

    def __init__(self, graph: _Graph, symbols: str, tokens: Mapping[int, tuple[int, int]] | None) -> None:
        self._graph = graph
        self._linker = graph.linker
        self._chart = Chart(graph.linker, symbols, tokens)
        self._goals: dict[tuple[int, int, int, int], _Goal] = {}
        self._queue: list[_Goal] = []
        self._open_strings: dict[tuple[int, int], ParsedInput | None] = {}
        self._sources: dict[int, ParsedInput] = {0: self._chart.source}

    def parts(self, *, is_over: bool) -> Iterator[NamedPart]:
        """The parts, by start."""
        source = self._chart.source
        length = len(source.symbols)
        root = self._linker.unfold(self._linker.root)
        found = self._solved(root, source, length) if length in self._ends(root, source, 0) else None
        if not is_over:
            beyond = self._solved(root, source, _BEYOND)
            found = beyond if found is None else found.meet(beyond)
        if found is None:
            return
        spans = [(key, end, False) for key, end in found.closed]
        for key, (low, high) in found.ends.items():
            if low != high or high == _LATER:
                spans.append((key, min(low, len(self._sources[key[1]].symbols)), True))
        for (name, number, start), end, is_open in sorted(spans, key=_place):
            yield NamedPart(name, self._sources[number].text(start, end), is_open, start)

    def _solved(self, node: GraphNode, source: ParsedInput, end: int) -> _Parts | None:
        goal = self._demand(node, source, 0, end, None)
        while self._queue:
            current = self._queue.pop()
            current.queued = False
            value = self._value(current)
            spend(1 + (0 if value is None else len(value.ends)), "captures")
            if value is not None and value != current.value:
                current.value = value
                for dependent in current.dependents.values():
                    self._enqueue(dependent)
        return goal.value

    def _enqueue(self, goal: _Goal) -> None:
        if not goal.queued:
            goal.queued = True
            self._queue.append(goal)

    def _demand(self, node: GraphNode, source: ParsedInput, start: int, end: int, dependent: _Goal | None) -> _Goal:
        node = self._linker.unfold(node)
        key = id(node), source.index, start, end
        goal = self._goals.get(key)
        if goal is None:
            goal = self._goals[key] = _Goal(node, source, start, end)
            self._enqueue(goal)
        if dependent is not None:
            goal.dependents[id(dependent)] = dependent
        return goal

    def _ends(self, node: GraphNode, source: ParsedInput, start: int) -> EndSet:
        return self._chart.entry(node, source, start).ends

    def _part(self, node: GraphNode, start: int, end: int, goal: _Goal) -> _Parts | None:
        """The value of a node that ``goal`` depends on, so far."""
        node = self._linker.unfold(node)
        if end != _BEYOND:
            if end not in self._ends(node, goal.source, start):
                return None
            if not self._graph.can_name(node):
                return _NOTHING
        return self._demand(node, goal.source, start, end, goal).value

    def _value(self, goal: _Goal) -> _Parts | None:
        node, source, start, end = goal.node, goal.source, goal.start, goal.end
        match node:
            case Either(items=items):
                return self._met(self._part(item, start, end, goal) for item in items)
            case Members(item=item):
                return self._part(item, start, end, goal)
            case Captured(name=name, item=item):
                inner = self._part(item, start, end, goal)
                key, last = (name, source.index, start), _LATER if end == _BEYOND else end
                own = _Parts(frozenset() if end == _BEYOND else frozenset([(key, end)]), {key: (last, last)})
                return None if inner is None else own.join(inner)
            case Pair(head=head, tail=tail):
                whole = self._met(self._divided(goal, head, tail, skips_empty=False))
                if end == _BEYOND and self._graph.is_productive(self._linker.unfold(tail)):
                    return self._met([whole, self._part(head, start, end, goal)])
                return whole
            case Repeated():
                return self._value_of_repeat(goal, node)
            case Both(items=items):
                joined = _NOTHING
                for item in items:
                    part = self._part(item, start, end, goal)
                    if part is None:
                        return None
                    joined = joined.join(part)
                return joined if items or end != _BEYOND or is_text(source, start) else None
            case JsonText(value=value):
                return self._value_of_json(goal, value)
            case _:
                return _NOTHING if end != _BEYOND or can_continue(node, source, start) else None

    @staticmethod
    def _met(parts: Iterator[_Parts | None] | Sequence[_Parts | None]) -> _Parts | None:
        found: _Parts | None = None
        for part in parts:
            if part is not None:
                found = part.meet(found)
        return found

    def _divided(self, goal: _Goal, head: GraphNode, tail: GraphNode, *, skips_empty: bool) -> Iterator[_Parts | None]:
        """For each end of the head from which the tail may lead to the goal, what both have."""
        for middle in self._ends(head, goal.source, goal.start):
            if skips_empty and middle == goal.start:
                continue
            after = self._part(tail, middle, goal.end, goal)
            if after is not None:
                before = self._part(head, goal.start, middle, goal)
                yield None if before is None else before.join(after)

    def _value_of_repeat(self, goal: _Goal, node: Repeated) -> _Parts | None:
        """An empty item adds nothing to what is certain where it need not be there, so the walk leaves it out.

        Where many items must be there and may be empty, empty ones make up the minimum at once, without their parts.
        """
        start, end = goal.start, goal.end
        is_long = node.min > _MAX_EMPTY
        found: list[_Parts | None] = []
        if node.min == 0 and start == end:
            found.append(_NOTHING)
        if node.max != 0:
            found.append(self._met(self._divided(goal, node.item, node.rest(), skips_empty=node.min == 0 or is_long)))
            if is_long and start in self._ends(node.item, goal.source, start):
                found.append(self._part(node.optional(), start, end, goal))
            if end == _BEYOND:
                found.append(self._part(node.item, start, end, goal))
        return self._met(found)

    def _value_of_json(self, goal: _Goal, value: GraphNode) -> _Parts | None:
        source, start = goal.source, goal.start
        whole = self._chart.decoded(source, start)
        if goal.end != _BEYOND:
            if whole is None:
                return None
            inner = whole[0]
            self._sources[inner.index] = inner
            return self._demand(value, inner, 0, len(inner.symbols), goal).value
        if start == len(source.symbols):
            return _NOTHING
        opened = None if whole is not None else self._open_string(source, start)
        if opened is None:
            return None
        ends = self._chart.entry(value, opened, 0).ends
        beyond = self._demand(value, opened, 0, _BEYOND, goal).value
        length = len(opened.symbols)
        return self._met([beyond, self._demand(value, opened, 0, length, goal).value if length in ends else None])

    def _open_string(self, source: ParsedInput, start: int) -> ParsedInput | None:
        """The decoded text so far of an unfinished JSON string at ``start``; None if there is no such string."""
        key = source.index, start
        if key not in self._open_strings:
            self._open_strings[key] = made = opened_string(source.symbols, start, -1 - len(self._open_strings))
            if made is not None:
                self._sources[made.index] = made
        return self._open_strings[key]
