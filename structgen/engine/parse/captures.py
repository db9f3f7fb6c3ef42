"""The texts of the named parts of a complete output, from one parse of it, and its Python value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from structgen.engine.parse.chart import NO_ENDS, Chart, ChartEntry, EndSet, ParsedInput
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
    symbols_of,
)
from structgen.errors import GenerationError, GrammarError
from structgen.grammar.nodes import Capture, Grammar, Shared, postorder
from structgen.grammar.nodes.description import Described, Description

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["captures_of_tokens", "find_captures", "has_captures", "value_of"]

_MANY: Final = 2


def has_captures(grammar: Grammar) -> bool:
    """Whether any part of ``grammar`` is named.  Complexity: linear in the number of its nodes."""
    return any(isinstance(node, Capture) for node in postorder(grammar))


def captures_of_tokens(
    grammar: Grammar, tokens: Sequence[int], vocabulary: Vocabulary, skipped: int = 0
) -> dict[str, str | list[str]]:
    """``find_captures`` of an output given as token ids, EOS left out; ``skipped`` bytes come before the output."""
    if not has_captures(grammar):
        return {}
    symbols, by_start = symbols_of(tokens, vocabulary.tokens)
    by_start = {start - skipped: (token, end - skipped) for start, (token, end) in by_start.items()}
    return find_captures(grammar, symbols[skipped:], vocabulary.special, by_start)


def find_captures(
    grammar: Grammar,
    symbols: str,
    special: Mapping[int, str] | None = None,
    tokens: Mapping[int, tuple[int, int]] | None = None,
) -> dict[str, str | list[str]]:
    """The text of every named part of ``grammar`` in ``symbols``.

    A name that can occur more than once in one output (in a repeat, in a recursive rule, in two parts) maps to the list
    of its texts from left to right, which may be empty.  Any other name maps to its text, and is absent if the parse
    does not use its part.  Names inside a complement are ignored.

    Args:
        grammar: a closed term.
        symbols: the output, one character a byte, with ``chr(256 + id)`` for a special token.
        special: the special tokens of the vocabulary, id to text.
        tokens: the tokens of the output, start to (id, end).

    Raises:
        GrammarError: ``symbols`` is not a string of the grammar.
    """
    linker = Linker(grammar, special or {})
    chart = Chart(linker, symbols, tokens)
    if len(symbols) not in chart.root.ends:
        raise GrammarError(
            "captures",
            "the text is not a string of the grammar",
            evidence=f"it has {len(symbols)} symbols and begins with {symbols[:40]!r}",
            remedy="pass a complete output of this grammar",
        )
    captures: dict[str, str | list[str]] = {}
    spans = _CaptureWalk(linker, chart).spans()
    for name, count in _multiplicities(linker).items():
        texts = [source.text(start, end) for captured, source, start, end in spans if captured == name]
        if count == _MANY:
            captures[name] = texts
        elif texts:
            captures[name] = texts[0]
    return captures


@final
@dataclass(eq=False, repr=False, slots=True)
class _Goal:
    """Match ``node`` from the position of the walk, so that it ends at one of ``ends``.

    A ``ranked`` goal has one end, and uses only premises that the chart derived before their conclusion; this breaks
    cycles.
    """

    node: GraphNode
    ends: EndSet
    ranked: bool


@final
@dataclass(eq=False, repr=False, slots=True)
class _Close:
    """The end of a captured part that starts at ``start``."""

    name: str
    slot: int
    start: int


@final
@dataclass(eq=False, repr=False, slots=True)
class _Leave:
    """The end of a reference to a rule, after which the same goal is no cycle."""

    key: tuple[int, int, int, EndSet]


@final
@dataclass(eq=False, repr=False, slots=True)
class _Jump:
    """Move the walk to ``position`` of ``source``."""

    source: ParsedInput
    position: int


@final
@dataclass(eq=False, repr=False, slots=True)
class _Alike:
    """Match the other items of an intersection over the text that the first one matched from ``start`` on."""

    items: tuple[GraphNode, ...]
    start: int


_Span = tuple[str, ParsedInput, int, int]


@final
class _CaptureWalk:
    """Follows the preferred parse from left to right with a stack of goals."""

    def __init__(self, linker: Linker, chart: Chart) -> None:
        self._linker = linker
        self._chart = chart
        self._source = chart.source
        self._position = 0
        self._stack: list[_Goal | _Close | _Leave | _Jump | _Alike] = []
        self._active: set[tuple[int, int, int, EndSet]] = set()
        self._spans: list[_Span | None] = []

    def spans(self) -> list[_Span]:
        """The captured spans, by start."""
        self._stack.append(_Goal(self._linker.root, EndSet(len(self._source.symbols)), ranked=False))
        while self._stack:
            match self._stack.pop():
                case _Goal() as goal:
                    self._expand(goal)
                case _Close(name=name, slot=slot, start=start):
                    self._spans[slot] = name, self._source, start, self._position
                case _Leave(key=key):
                    self._active.discard(key)
                case _Jump(source=source, position=position):
                    self._source, self._position = source, position
                case _Alike(items=items, start=start):
                    self._push_alike(items, start)
        return [span for span in self._spans if span is not None]

    def _entry(self, node: GraphNode, start: int | None = None) -> ChartEntry:
        return self._chart.entry(node, self._source, self._position if start is None else start)

    def _push(self, node: GraphNode, ends: EndSet, goal: _Goal) -> None:
        self._stack.append(_Goal(node, ends, ranked=goal.ranked))

    def _expand(self, goal: _Goal) -> None:
        goal.node = self._linker.unfold(goal.node)
        match goal.node:
            case Pair(head=head, tail=tail):
                self._expand_pair(goal, head, tail)
            case Either():
                self._expand_either(goal, goal.node)
            case Repeated():
                self._expand_repeat(goal, goal.node)
            case Captured(name=name, item=item):
                self._stack.append(_Close(name, len(self._spans), self._position))
                self._spans.append(None)
                self._push(item, goal.ends, goal)
            case Members(item=item):
                self._push(item, goal.ends, goal)
            case JsonText(value=value):
                self._expand_json(goal, value)
            case Both(items=items) if items:
                shared = goal.ends
                for item in items:
                    shared = shared & self._entry(item).ends
                self._stack.append(_Alike(items[1:], self._position))
                self._push(items[0], shared, goal)
            case Characters() | Not() | Both():
                self._position = (self._entry(goal.node).ends & goal.ends).last
            case _:
                self._position = (self._entry(goal.node).ends & goal.ends).base

    def _expand_pair(self, goal: _Goal, head: GraphNode, tail: GraphNode) -> None:
        self._push(tail, goal.ends, goal)
        self._push(head, self._middles(goal, head, tail, self._entry(head).ends), goal)

    def _middles(self, goal: _Goal, head: GraphNode, tail: GraphNode, candidates: EndSet) -> EndSet:
        """The ends of ``head`` from which ``tail`` can reach the goal; one of them if the goal is ranked."""
        own, heads = self._entry(goal.node), self._entry(head)
        middles: list[int] = []
        for middle in candidates:
            tails = self._entry(tail, middle)
            if not goal.ranked:
                if tails.ends & goal.ends:
                    middles.append(middle)
            elif _precedes(own, goal.ends, (heads, middle), (tails, goal.ends.base)):
                return EndSet(middle)
        return EndSet.of(middles)

    def _expand_either(self, goal: _Goal, node: Either) -> None:
        if node.recursive:
            goal = self._entered(goal, self._linker.unfold(node.items[0]))
        own = self._entry(node)
        for item in node.items:
            entry = self._entry(item)
            fits = _precedes(own, goal.ends, (entry, goal.ends.base)) if goal.ranked else entry.ends & goal.ends
            if fits:
                self._push(item, goal.ends, goal)
                return
        raise RuntimeError("no alternative matches the chart")

    def _entered(self, goal: _Goal, rule: GraphNode) -> _Goal:
        """The goal of a reference, made a ranked goal if it occurs within itself."""
        if goal.ranked:
            return goal
        key = id(rule), self._source.index, self._position, goal.ends
        if key not in self._active:
            self._active.add(key)
            self._stack.append(_Leave(key))
            return goal
        own = self._entry(goal.node)
        earliest = min(own.ends & goal.ends, key=own.rank)
        return _Goal(goal.node, EndSet(earliest), ranked=True)

    def _expand_repeat(self, goal: _Goal, node: Repeated) -> None:
        heads = self._entry(node.item).ends if node.max != 0 else NO_ENDS
        if goal.ranked and node.min > 0 and self._position in heads:
            self._push(node.optional(), goal.ends, goal)  # from which the chart derived it
            return
        candidates = heads if node.min > 0 else heads - EndSet(self._position)
        middles = self._middles(goal, node.item, node.rest(), candidates) if candidates else NO_ENDS
        if middles:
            self._push(node.rest(), goal.ends, goal)
            self._push(node.item, middles, goal)

    def _expand_json(self, goal: _Goal, value: GraphNode) -> None:
        decoded = self._chart.decoded(self._source, self._position)
        if decoded is None:
            raise RuntimeError("no JSON string matches the chart")
        inner, end = decoded
        self._stack.append(_Jump(self._source, end))
        self._source, self._position = inner, 0
        self._stack.append(_Goal(value, EndSet(len(inner.symbols)), ranked=False))

    def _push_alike(self, items: tuple[GraphNode, ...], start: int) -> None:
        end = self._position
        for item in reversed(items):
            self._stack.append(_Goal(item, EndSet(end), ranked=False))
            self._stack.append(_Jump(self._source, start))


def _precedes(own: ChartEntry, ends: EndSet, *premises: tuple[ChartEntry, int]) -> bool:
    """Whether the chart derived every premise (entry and end) before the one end in ``ends`` of ``own``."""
    limit = own.rank(ends.base)
    return all(end in entry.ends and entry.rank(end) < limit for entry, end in premises)


def _multiplicities(linker: Linker) -> Counter[str]:
    """How often each name can occur in one parse, with ``_MANY`` for more than once.

    A least fixpoint over the graph of nodes, with counts that stop growing at ``_MANY``.
    """
    parents: dict[int, list[GraphNode]] = {}
    root = linker.unfold(linker.root)
    nodes: list[GraphNode] = [root]
    seen = {id(root)}
    for node in nodes:
        for child in linker.children(node):
            parents.setdefault(id(child), []).append(node)
            if id(child) not in seen:
                seen.add(id(child))
                nodes.append(child)
    counts: dict[int, Counter[str]] = {id(node): Counter() for node in nodes}
    stale: list[GraphNode] = [node for node in nodes if isinstance(node, Captured)]
    while stale:
        node = stale.pop()
        new = _count(node, [counts[id(child)] for child in linker.children(node)])
        if new != counts[id(node)]:
            counts[id(node)] = new
            stale.extend(parents.get(id(node), ()))
    return counts[id(root)]


def _count(node: GraphNode, inner: list[Counter[str]]) -> Counter[str]:
    match node:
        case Not():
            return Counter()
        case Either():
            total: Counter[str] = Counter()
            for counts in inner:
                total |= counts
        case Repeated(max=maximum):
            total = Counter() if maximum == 0 else inner[0] if maximum == 1 else inner[0] + inner[0]
        case Members():
            total = sum([*inner, *inner[-2:]], Counter())  # the rest and the separator may occur more than once
        case Captured(name=name):
            total = inner[0] + Counter([name])
        case _:
            total = sum(inner, Counter())
    return Counter({name: min(count, _MANY) for name, count in total.items()})


def value_of(grammar: Grammar, data: bytes) -> Any:
    """Return the value of ``data``, a string of ``grammar``.

    The output of a JSON grammar is parsed, and validated as the Python type that the grammar was made from, if any.
    The value of other output is its text; bytes that are not UTF-8, which only a grammar over bytes allows, become
    U+FFFD.

    Raises:
        GenerationError: the value is nested more deeply than Python's parser can follow.
        pydantic.ValidationError: the type has a validator of its own that refuses the value.
    """
    description = _description(grammar)
    text = data.decode("utf-8", "replace")
    if description is None or description.value != "json":
        return text
    if description.python_type is not None:
        from pydantic import TypeAdapter  # imported only by those who use types

        kind: Any = description.python_type
        adapter: Any = TypeAdapter(kind)
        return adapter.validate_json(data)
    try:
        return json.loads(text)
    except RecursionError:
        raise GenerationError(
            "value", "it is nested too deeply for json.loads", remedy="use the text of the result"
        ) from None


def _description(grammar: Grammar) -> Description | None:
    while not isinstance(grammar, Described):
        if not isinstance(grammar, (Capture, Shared)):
            return None
        grammar = grammar.item
    return grammar.description
