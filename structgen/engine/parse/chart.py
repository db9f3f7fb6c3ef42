"""An Earley-style chart of a complete text: where a part of the grammar can end, for every start that is needed.

An entry holds the set of ends of one node from one start.  Entries are evaluated from right to left, so the entries
that one needs from further right are complete.  Left recursion and empty matches at one position are a least fixpoint.

Complexity: O(starts x nodes) entries of O(n) bits, so polynomial for every grammar, also an ambiguous one.
"""

from __future__ import annotations

import heapq
import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from structgen.engine.parse.grammar_graph import (
    SPECIAL_BASE,
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
    Text,
    TokenOf,
)
from structgen.errors import GrammarError

__all__ = ["NO_ENDS", "Chart", "ChartEntry", "EndSet", "ParsedInput"]

_JSON_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')


@final
class EndSet:
    """An immutable set of positions in a text: bit ``i`` of ``bits`` stands for position ``base + i``.

    Invariant: bit 0 is set, or the set is empty and ``base`` is 0; so equal sets have equal fields.
    """

    __slots__ = ("base", "bits")

    def __init__(self, base: int, bits: int = 1) -> None:
        if not bits & 1:
            zeros = (bits & -bits).bit_length() - 1 if bits else 0
            base, bits = (base + zeros, bits >> zeros) if bits else (0, 0)
        self.base = base
        self.bits = bits

    @classmethod
    def of(cls, positions: list[int]) -> EndSet:
        """The set of ascending positions; O(span)."""
        if not positions:
            return NO_ENDS
        base, top = positions[0], positions[-1]
        digits = bytearray(b"0" * (top - base + 1))
        for position in positions:
            digits[top - position] = 49  # "1"
        return cls(base, int(bytes(digits), 2))

    def __bool__(self) -> bool:
        return self.bits != 0

    def __contains__(self, position: int) -> bool:
        return position >= self.base and self.bits >> (position - self.base) & 1 == 1

    def __iter__(self) -> Iterator[int]:
        """The positions, ascending; O(span)."""
        if self.bits == 1:
            yield self.base
            return
        digits = bin(self.bits)[:1:-1]
        index = digits.find("1")
        while index >= 0:
            yield self.base + index
            index = digits.find("1", index + 1)

    @property
    def last(self) -> int:
        """The greatest position of a set that is not empty."""
        return self.base + self.bits.bit_length() - 1

    def __or__(self, other: EndSet) -> EndSet:
        if not other.bits or self is other:
            return self
        if not self.bits:
            return other
        base = min(self.base, other.base)
        return EndSet(base, self.bits << self.base - base | other.bits << other.base - base)

    def __and__(self, other: EndSet) -> EndSet:
        base = max(self.base, other.base)
        return EndSet(base, (self.bits >> base - self.base) & (other.bits >> base - other.base))

    def __sub__(self, other: EndSet) -> EndSet:
        if not self.bits or not other.bits:
            return self
        shift = other.base - self.base
        removed = other.bits << shift if shift >= 0 else other.bits >> -shift
        return EndSet(self.base, self.bits & ~removed)

    def between(self, low: int, high: int) -> EndSet:
        """The positions from ``low`` to ``high``, both included."""
        if not self.bits or high < low:
            return NO_ENDS
        bits = self.bits & ((1 << high - self.base + 1) - 1) if high >= self.base else 0
        skipped = max(low - self.base, 0)
        return EndSet(self.base + skipped, bits >> skipped)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EndSet) and self.base == other.base and self.bits == other.bits

    def __hash__(self) -> int:
        return hash((self.base, self.bits))

    def __repr__(self) -> str:
        return f"Ends({list(self)})"


NO_ENDS: Final = EndSet(0, 0)


@final
class ParsedInput:
    """A text to parse: ``symbols`` has one character a byte; characters from ``SPECIAL_BASE`` on are special tokens.

    ``tokens`` maps the start of each token to (id, end).  It is empty if the tokens are not given; then only special
    tokens can match a token set.
    """

    __slots__ = ("_characters", "index", "symbols", "tokens")

    def __init__(self, symbols: str, index: int = 0, tokens: Mapping[int, tuple[int, int]] | None = None) -> None:
        self.symbols = symbols
        self.index = index
        self.tokens = tokens or {}
        self._characters: list[tuple[int, int]] | None = None

    def character(self, start: int) -> tuple[int, int]:
        """The code point that starts at ``start`` and its end, or ``(-1, start)``."""
        if self._characters is None:
            self._characters = _decoded(self.symbols)
        return self._characters[start]

    def text(self, start: int, end: int) -> str:
        """The characters from ``start`` to ``end``, special tokens left out."""
        data = bytes(ord(symbol) for symbol in self.symbols[start:end] if ord(symbol) < SPECIAL_BASE)
        return data.decode("utf-8", "replace")


def _ends_of_symbol(node: Special | TokenOf, source: ParsedInput, start: int) -> EndSet:
    if isinstance(node, Special):
        return EndSet(start + 1) if source.symbols[start : start + 1] in node.symbols else NO_ENDS
    token, end = source.tokens.get(start) or _special_at(source.symbols, start)
    return EndSet(end) if token >= 0 and node.holds(token) else NO_ENDS


def _special_at(symbols: str, start: int) -> tuple[int, int]:
    """The id of the special token at ``start`` and its end; -1 if there is none."""
    symbol = ord(symbols[start]) if start < len(symbols) else 0
    return (symbol - SPECIAL_BASE, start + 1) if symbol >= SPECIAL_BASE else (-1, start)


def _decoded(symbols: str) -> list[tuple[int, int]]:
    characters = [(-1, start) for start in range(len(symbols) + 1)]
    start = 0
    while start < len(symbols):
        lead = ord(symbols[start])
        length = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        try:
            character = symbols[start : start + length].encode("latin-1").decode("utf-8")
        except UnicodeError:
            start += 1
            continue
        characters[start] = ord(character), start + length
        start += length
    return characters


@final
@dataclass(eq=False, repr=False, slots=True)
class ChartEntry:
    """The ends of ``node`` from ``start``, a set that only grows.

    ``history`` records at which time ends were added, so that a derivation can be traced back without cycles.
    """

    node: GraphNode
    source: ParsedInput
    start: int
    ends: EndSet = NO_ENDS
    history: list[tuple[int, EndSet]] = field(default_factory=list)
    dependents: dict[int, ChartEntry] = field(default_factory=dict)
    queued: bool = False
    changed: list[ChartEntry] | None = None  # None: not evaluated yet
    head: ChartEntry | None = None
    heads: EndSet = NO_ENDS  # the ends of ``head`` that have been followed

    def rank(self, end: int) -> int:
        """The time at which ``end`` was added; its premises were added earlier."""
        return next(time for time, ends in self.history if end in ends)


@final
class Chart:
    """The entries that the root of a grammar needs over one text, with its tokens as in ``ParsedInput``."""

    def __init__(self, linker: Linker, symbols: str, tokens: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._linker = linker
        self._entries: dict[tuple[int, int, int], ChartEntry] = {}
        self._queue: list[tuple[int, int, int, ChartEntry]] = []
        self._clock = 0
        # Complements whose item, the second of the pair, may still grow.
        self._complements: dict[int, tuple[ChartEntry, ChartEntry]] = {}
        self._decoded: dict[tuple[int, int], tuple[ParsedInput, int] | None] = {}
        self._runs: dict[tuple[int, int], dict[int, tuple[list[int], int, EndSet]]] = {}
        self.source = ParsedInput(symbols, tokens=tokens)
        self.root = self.entry(linker.root, self.source, 0)

    def entry(self, node: GraphNode, source: ParsedInput, start: int) -> ChartEntry:
        """The complete entry of ``node`` from ``start``."""
        entry = self._demand(node, source, start, None)
        if self._queue:
            self._run()
        return entry

    def decoded(self, source: ParsedInput, start: int) -> tuple[ParsedInput, int] | None:
        """The decoded text of the JSON string at ``start``, and the end of the string; None if there is no string."""
        key = source.index, start
        if key not in self._decoded:
            self._decoded[key] = self._decode(source, start)
        return self._decoded[key]

    def _decode(self, source: ParsedInput, start: int) -> tuple[ParsedInput, int] | None:
        match = _JSON_STRING.match(source.symbols, start)
        if match is None:
            return None
        try:
            value = json.loads(match.group().encode("latin-1").decode("utf-8")).encode("utf-8")
        except (UnicodeError, ValueError):
            return None
        return ParsedInput(value.decode("latin-1"), len(self._decoded) + 1), match.end()

    def _demand(self, node: GraphNode, source: ParsedInput, start: int, dependent: ChartEntry | None) -> ChartEntry:
        node = self._linker.unfold(node)
        key = id(node), source.index, start
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = ChartEntry(node, source, start)
            self._enqueue(entry)
        if dependent is not None:
            entry.dependents[id(dependent)] = dependent
        return entry

    def _enqueue(self, entry: ChartEntry) -> None:
        if not entry.queued:
            entry.queued = True
            self._clock += 1
            heapq.heappush(self._queue, (-entry.source.index, -entry.start, -self._clock, entry))

    def _run(self) -> None:
        while self._queue or self._complements:
            if not self._queue:
                self._resolve_complement()
                continue
            entry = heapq.heappop(self._queue)[3]
            entry.queued = False
            changed, entry.changed = entry.changed, []
            if changed is None:
                self._add(entry, self._first_ends(entry))
                continue
            for child in changed:
                self._add(entry, self._further_ends(entry, child))

    def _add(self, entry: ChartEntry, ends: EndSet) -> None:
        new = ends - entry.ends
        if new:
            self._clock += 1
            entry.ends = entry.ends | new
            entry.history.append((self._clock, new))
            for dependent in entry.dependents.values():
                if dependent.changed is not None:
                    dependent.changed.append(entry)
                self._enqueue(dependent)

    def _first_ends(self, entry: ChartEntry) -> EndSet:
        """The ends that follow from the entries so far; demands all entries that they depend on."""
        node, source, start = entry.node, entry.source, entry.start
        match node:
            case Text(symbols=symbols):
                return EndSet(start + len(symbols)) if source.symbols.startswith(symbols, start) else NO_ENDS
            case Characters():
                return self._ends_of_characters(node, source, start)
            case Either(items=items):
                ends = NO_ENDS
                for item in items:
                    ends = ends | self._demand(item, source, start, entry).ends
                return ends
            case Captured(item=item) | Members(item=item):
                return self._demand(item, source, start, entry).ends
            case Pair(head=head, tail=tail):
                entry.head = self._demand(head, source, start, entry)
                return self._follow(entry, tail)
            case Repeated():
                return self._first_ends_of_repeat(node, entry)
            case Special() | TokenOf():
                return _ends_of_symbol(node, source, start)
            case Both(items=items):
                for item in items:
                    self._demand(item, source, start, entry)
                return self._common_ends(entry, items)
            case JsonText(value=value):
                decoded = self.decoded(source, start)
                if decoded is None:
                    return NO_ENDS
                return self._ends_of_json(entry, self._demand(value, decoded[0], 0, entry))
            case Not(item=item):
                self._complements[id(entry)] = entry, self._demand(item, source, start, None)
                return NO_ENDS
            case _:
                raise GrammarError("captures", f"a node of type {type(node).__name__} has no meaning here")

    def _further_ends(self, entry: ChartEntry, child: ChartEntry) -> EndSet:
        """The ends of ``entry`` that follow from new ends of ``child``."""
        node = entry.node
        if isinstance(node, (Pair, Repeated)):
            rest = node.tail if isinstance(node, Pair) else node.rest()
            ends = self._follow(entry, rest) if child is entry.head else NO_ENDS
            is_tail = child.node is self._linker.unfold(rest) and child.start in entry.heads
            return ends | child.ends if is_tail or child is not entry.head else ends
        if isinstance(node, Both):
            return self._common_ends(entry, node.items)
        if isinstance(node, JsonText):
            return self._ends_of_json(entry, child)
        return child.ends

    def _follow(self, entry: ChartEntry, tail: GraphNode) -> EndSet:
        """The ends of ``tail`` from the ends of the head that were not followed before."""
        if entry.head is None:
            raise RuntimeError("an entry without a head is followed")
        new = entry.head.ends - entry.heads
        entry.heads = entry.heads | new
        ends = NO_ENDS
        node = entry.node
        if isinstance(node, Repeated) and entry.start in new:
            new = new - EndSet(entry.start)
            if node.min > 0:  # empty items can make up the minimum
                ends = self._demand(node.optional(), entry.source, entry.start, entry).ends
        for middle in new:
            ends = ends | self._demand(tail, entry.source, middle, entry).ends
        return ends

    def _first_ends_of_repeat(self, node: Repeated, entry: ChartEntry) -> EndSet:
        source, start = entry.source, entry.start
        here = EndSet(start) if node.min == 0 else NO_ENDS
        if node.max == 0:
            return here
        entry.head = self._demand(node.item, source, start, entry)
        return here | self._follow(entry, node.rest())

    def _common_ends(self, entry: ChartEntry, items: tuple[GraphNode, ...]) -> EndSet:
        if not items:
            return _ends_of_text(entry.source, entry.start)
        common = self._demand(items[0], entry.source, entry.start, entry).ends
        for item in items[1:]:
            common = common & self._demand(item, entry.source, entry.start, entry).ends
        return common

    def _ends_of_json(self, entry: ChartEntry, value: ChartEntry) -> EndSet:
        decoded = self.decoded(entry.source, entry.start)
        if decoded is None or len(decoded[0].symbols) not in value.ends:
            return NO_ENDS
        return EndSet(decoded[1])

    def _ends_of_characters(self, node: Characters, source: ParsedInput, start: int) -> EndSet:
        runs = self._runs.setdefault((id(node), source.index), {})
        if start not in runs:
            _find_run(node, source, start, runs)
        positions, index, all_of_run = runs[start]
        last = len(positions) - 1 if node.max is None else min(index + node.max, len(positions) - 1)
        if index + node.min > last:
            return NO_ENDS
        return all_of_run.between(positions[index + node.min], positions[last])

    def _resolve_complement(self) -> None:
        """Set the ends of an open complement whose item depends on no other open complement."""
        for key, (entry, inside) in reversed(self._complements.items()):
            if not self._depends_on_others(entry, inside):
                del self._complements[key]
                self._add(entry, _ends_of_text(entry.source, entry.start) - inside.ends)
                return
        raise GrammarError("captures", "a complement is defined through itself; only regular terms have one")

    def _depends_on_others(self, complement: ChartEntry, inside: ChartEntry) -> bool:
        """Whether the item of an open complement depends on another open complement."""
        reached: set[int] = set()
        frontier = [entry for entry, _ in self._complements.values() if entry is not complement]
        while frontier:
            current = frontier.pop()
            if current is inside:
                return True
            if id(current) not in reached:
                reached.add(id(current))
                frontier.extend(current.dependents.values())
        return False


def _find_run(
    node: Characters, source: ParsedInput, start: int, runs: dict[int, tuple[list[int], int, EndSet]]
) -> None:
    """Store the longest run of the class from ``start`` under each of its positions, the end included."""
    ranges, symbols = node.ranges, source.symbols
    positions = [start]
    position = start
    while position < len(symbols):
        value, after = source.character(position) if node.utf8 else (ord(symbols[position]), position + 1)
        at = bisect_right(ranges, value, key=_low) - 1
        if value < 0 or at < 0 or value > ranges[at][1]:
            break
        position = after
        positions.append(position)
    all_of_run = EndSet.of(positions)
    for index, position in enumerate(positions):
        runs.setdefault(position, (positions, index, all_of_run))


def _low(pair: tuple[int, int]) -> int:
    return pair[0]


def _ends_of_text(source: ParsedInput, start: int) -> EndSet:
    """The ends of the well-formed texts from ``start``."""
    whole = Characters(((0, 0x10FFFF),), utf8=True, min=0, max=None)
    runs: dict[int, tuple[list[int], int, EndSet]] = {}
    _find_run(whole, source, start, runs)
    return runs[start][2]
