"""Regular languages by their derivatives: membership, completion and emptiness, for the reference implementation.

The derivative of a language by a symbol is what may follow that symbol in it; a word belongs to a language
iff its derivative by the whole word holds the empty string. Intersection and complement need nothing more
than the other operators do, which is why the reference uses them: Brzozowski, "Derivatives of regular
expressions" (1964); Owens, Reppy and Turon, "Regular-expression derivatives re-examined" (2009).

Expressions are interned, so that equal ones are one object, and choices are sets; a language has then
finitely many derivatives, and whether it is empty is decided by looking at all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import reduce
from operator import or_
from typing import TypeAlias

from structgen.testing.node_semantics import extend_escape, possible_characters

__all__ = ["Algebra", "Regex", "Special", "Symbol"]


@dataclass(frozen=True, slots=True)
class Special:
    """A special token as a symbol: it equals no byte."""

    token: str | int


Symbol: TypeAlias = int | Special
"""A byte, or a special token."""

Ranges: TypeAlias = tuple[tuple[int, int], ...]

_ANY: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_IRREGULAR_LEADS = (0x80, 0xC2, 0xE0, 0xE1, 0xED, 0xEE, 0xF0, 0xF1, 0xF4, 0xF5)


class Kind(Enum):
    """The kinds of expressions, with the meaning of ``data`` and ``parts`` for each."""

    WORD = auto()  # exactly data: bytes
    ONE = auto()  # one symbol of data: frozenset[Symbol]; the empty set is the empty language
    CHARACTER = auto()  # data: (n, ranges); n = 0: one scalar value in UTF-8; else its last n bytes
    CONCATENATION = auto()  # parts, one after the other
    UNION = auto()  # parts
    INTERSECTION = auto()  # parts
    NEGATION = auto()  # every string of symbols that is not in the part
    REPETITION = auto()  # the part, data: (min, max) times
    QUOTED = auto()  # data: pending escape; JSON spellings of the part (texts only), then a closing quote


@dataclass(frozen=True, slots=True, eq=False)
class Regex:
    """A regular expression, interned by its algebra: equal expressions are the same object.

    Attributes:
        nullable: whether the empty string is in the language.
        cuts: bit b is set where bytes b - 1 and b may have different derivatives.
    """

    serial: int
    kind: Kind
    data: object
    parts: tuple[Regex, ...]
    nullable: bool
    cuts: int


class Algebra:
    """Makes expressions, their derivatives by a symbol, and tells which are empty; caches all three."""

    def __init__(self) -> None:
        self._interned: dict[tuple[object, ...], Regex] = {}
        self._derivatives: dict[tuple[Regex, Symbol], Regex] = {}
        self._empty: dict[Regex, bool] = {}
        self._specials: dict[Special, None] = {}
        self.nothing = self._make(Kind.ONE, frozenset(), (), nullable=False, cuts=0)
        self.epsilon = self.word(b"")
        self.text = self.repetition(self.character(_ANY), 0, None)

    # Constructors

    def word(self, data: bytes) -> Regex:
        """Exactly ``data``."""
        return self._make(Kind.WORD, data, (), nullable=not data, cuts=_cuts_of(data[:1]))

    def one_of(self, symbols: Iterable[Symbol]) -> Regex:
        """One symbol of ``symbols``; without any, the empty language."""
        chosen = frozenset(symbols)
        self._specials.update((symbol, None) for symbol in chosen if isinstance(symbol, Special))
        cuts = _cuts_of(symbol for symbol in chosen if isinstance(symbol, int))
        return self._make(Kind.ONE, chosen, (), nullable=False, cuts=cuts)

    def character(self, ranges: Iterable[tuple[int, int]]) -> Regex:
        """One scalar value within inclusive ``ranges``, in UTF-8."""
        return self._character(0, tuple(ranges))

    def concatenation(self, parts: Iterable[Regex]) -> Regex:
        """All parts, one after the other."""
        kept = [part for part in parts if part is not self.epsilon]
        if any(part is self.nothing for part in kept):
            return self.nothing
        joined = self.epsilon
        for part in reversed(kept):
            joined = part if joined is self.epsilon else self._pair(part, joined)
        return joined

    def union(self, parts: Iterable[Regex]) -> Regex:
        """The union of the parts; without parts, the empty language."""
        kept = _as_set(Kind.UNION, parts, without=self.nothing)
        if not kept:
            return self.nothing
        if len(kept) == 1:
            return kept[0]
        return self._make_set(Kind.UNION, kept, nullable=any(part.nullable for part in kept))

    def intersection(self, parts: Iterable[Regex]) -> Regex:
        """The intersection of the parts; there must be one."""
        kept = _as_set(Kind.INTERSECTION, parts, without=None)
        if any(part is self.nothing for part in kept):
            return self.nothing
        if len(kept) == 1:
            return kept[0]
        return self._make_set(Kind.INTERSECTION, kept, nullable=all(part.nullable for part in kept))

    def complement(self, part: Regex) -> Regex:
        """The texts that are not in ``part``."""
        return self.intersection([self._negation(part), self.text])

    def repetition(self, part: Regex, least: int, most: int | None) -> Regex:
        """``least`` to ``most`` parts, one after the other; None is no bound."""
        if most == 0:
            return self.epsilon
        nullable = least == 0 or part.nullable
        return self._make(Kind.REPETITION, (least, most), (part,), nullable=nullable, cuts=part.cuts)

    def json_string(self, value: Regex) -> Regex:
        """The JSON string literals whose decoded text is in ``value``."""
        return self.concatenation([self.word(b'"'), self._quoted(b"", self.intersection([value, self.text]))])

    # Questions

    def derivative(self, root: Regex, symbol: Symbol) -> Regex:
        """Return the language of what may follow ``symbol`` in ``root``."""
        if (root, symbol) in self._derivatives:
            return self._derivatives[root, symbol]
        stack = [root]
        while stack:
            regex = stack[-1]
            missing = [part for part in _read_by(regex, symbol) if (part, symbol) not in self._derivatives]
            if missing:
                stack.extend(missing)
                continue
            if (regex, symbol) not in self._derivatives:
                self._derivatives[regex, symbol] = self._derive(regex, symbol)
            stack.pop()
        return self._derivatives[root, symbol]

    def is_empty(self, root: Regex) -> bool:
        """Decide whether ``root`` has no string."""
        if root in self._empty:
            return self._empty[root]
        stack = [root]
        while stack:
            regex = stack[-1]
            missing = [part for part in self._emptiness_parts(regex) if part not in self._empty]
            if missing:
                stack.extend(missing)
                continue
            if regex not in self._empty:
                self._empty[regex] = self._decide_empty(regex)
            stack.pop()
        return self._empty[root]

    # Derivatives

    def _derive(self, regex: Regex, symbol: Symbol) -> Regex:
        after = [self._derivatives[part, symbol] for part in _read_by(regex, symbol)]
        match regex.kind, regex.data:
            case Kind.WORD, bytes(data):
                return self.word(data[1:]) if data and data[0] == symbol else self.nothing
            case Kind.ONE, frozenset() as symbols:
                return self.epsilon if symbol in symbols else self.nothing
            case Kind.CHARACTER, (int(left), tuple(ranges)):
                return self._character_after(left, ranges, symbol)
            case Kind.CONCATENATION, _:
                return self.union([self.concatenation([after[0], regex.parts[1]]), *after[1:]])
            case Kind.UNION, _:
                return self.union(after)
            case Kind.INTERSECTION, _:
                return self.intersection(after)
            case Kind.NEGATION, _:
                return self._negation(after[0])
            case Kind.REPETITION, (int(least), (int() | None) as most):
                rest = self.repetition(regex.parts[0], max(least - 1, 0), None if most is None else most - 1)
                return self.concatenation([after[0], rest])
            case Kind.QUOTED, bytes(pending):
                return self._quoted_after(pending, regex.parts[0], symbol, after)
            case _:
                raise TypeError(f"no derivative is defined for {regex!r}")

    def _character_after(self, left: int, ranges: Ranges, symbol: Symbol) -> Regex:
        if isinstance(symbol, Special):
            return self.nothing
        if left == 0:
            length, floor, block = _lead_byte(symbol)
            if length == 0:
                return self.nothing
            left, bits, least = length, block, floor
        else:
            if not 0x80 <= symbol <= 0xBF:
                return self.nothing
            bits, least = symbol & 0x3F, 0
        left -= 1
        start = bits << 6 * left
        inside = _cut(ranges, max(start, least), start + (1 << 6 * left) - 1)
        if not inside:
            return self.nothing
        if left == 0:
            return self.epsilon
        return self._character(left, tuple((low - start, high - start) for low, high in inside))

    def _quoted_after(self, pending: bytes, value: Regex, symbol: Symbol, after: list[Regex]) -> Regex:
        if isinstance(symbol, Special):
            return self.nothing
        if not pending:
            if symbol == ord('"'):
                return self.epsilon if value.nullable else self.nothing
            if symbol == ord("\\"):
                return self._quoted(b"\\", value)
            return self._quoted(b"", after[0]) if symbol >= 0x20 else self.nothing
        match extend_escape(pending, symbol):
            case None:
                return self.nothing
            case bytes(longer):
                return self._quoted(longer, value)
            case str(character):
                for byte in character.encode():
                    value = self.derivative(value, byte)
                return self._quoted(b"", value)

    # Emptiness

    def _emptiness_parts(self, regex: Regex) -> tuple[Regex, ...]:
        match regex.kind:
            case Kind.CONCATENATION | Kind.UNION | Kind.REPETITION:
                return regex.parts
            case Kind.QUOTED:
                return (self._spellable(regex),)
            case _:
                return ()

    def _decide_empty(self, regex: Regex) -> bool:
        parts = [self._empty[part] for part in self._emptiness_parts(regex)]
        match regex.kind, regex.data:
            case _ if regex.nullable:
                return False
            case ((Kind.WORD | Kind.CHARACTER), _):
                return False
            case Kind.ONE, symbols:
                return not symbols
            case Kind.CONCATENATION, _:
                return any(parts)
            case ((Kind.UNION | Kind.REPETITION | Kind.QUOTED), _):
                return all(parts)
            case _:
                return not self._search(regex)

    def _spellable(self, regex: Regex) -> Regex:
        """Texts of the value that continue with a character which the pending escape can still spell.

        Every character has an escape, so a quoted language has a string iff this one does.
        """
        value, pending = regex.parts[0], regex.data
        if not isinstance(pending, bytes) or not pending:
            return value
        first = self.character(possible_characters(pending))
        return self.intersection([value, self.concatenation([first, self.text])])

    def _search(self, start: Regex) -> bool:
        """Look for a string of ``start`` among its derivatives, depth first; remember what was decided."""
        path = [start]
        branches = [self._successors(start)]
        visited = {start: None}
        while path:
            found = path[-1].nullable or self._empty.get(path[-1]) is False
            if found:
                self._empty.update((regex, False) for regex in path)
                return True
            following = next(branches[-1], None)
            if following is None:
                path.pop()
                branches.pop()
            elif following not in visited and not self._empty.get(following, False):
                visited[following] = None
                path.append(following)
                branches.append(self._successors(following))
        self._empty.update((regex, True) for regex in visited)
        return False

    def _successors(self, regex: Regex) -> Iterator[Regex]:
        for byte in range(256):
            if byte == 0 or regex.cuts >> byte & 1:
                yield self.derivative(regex, byte)
        for special in self._specials:
            yield self.derivative(regex, special)

    # Interning

    def _make(self, kind: Kind, data: object, parts: tuple[Regex, ...], *, nullable: bool, cuts: int) -> Regex:
        key = (kind, data, parts)
        if key not in self._interned:
            self._interned[key] = Regex(len(self._interned), kind, data, parts, nullable, cuts)
        return self._interned[key]

    def _make_set(self, kind: Kind, parts: tuple[Regex, ...], *, nullable: bool) -> Regex:
        return self._make(kind, None, parts, nullable=nullable, cuts=_joined_cuts(parts))

    def _pair(self, first: Regex, rest: Regex) -> Regex:
        cuts = first.cuts | rest.cuts if first.nullable else first.cuts
        nullable = first.nullable and rest.nullable
        return self._make(Kind.CONCATENATION, None, (first, rest), nullable=nullable, cuts=cuts)

    def _negation(self, part: Regex) -> Regex:
        return self._make(Kind.NEGATION, None, (part,), nullable=not part.nullable, cuts=part.cuts)

    def _quoted(self, pending: bytes, value: Regex) -> Regex:
        if value is self.nothing:
            return self.nothing
        cuts = (1 << 0x80) - 1 if pending else value.cuts | _cuts_of(b'"\\') | 1 << 0x20
        return self._make(Kind.QUOTED, pending, (value,), nullable=False, cuts=cuts)

    def _character(self, left: int, ranges: Ranges) -> Regex:
        if not ranges:
            return self.nothing
        return self._make(Kind.CHARACTER, (left, ranges), (), nullable=False, cuts=_character_cuts(left, ranges))


def _read_by(regex: Regex, symbol: Symbol) -> tuple[Regex, ...]:
    """The parts whose derivatives make the derivative of ``regex``."""
    match regex.kind:
        case Kind.CONCATENATION:
            return regex.parts if regex.parts[0].nullable else regex.parts[:1]
        case Kind.UNION | Kind.INTERSECTION | Kind.NEGATION | Kind.REPETITION:
            return regex.parts
        case Kind.QUOTED:
            is_raw = isinstance(symbol, int) and symbol >= 0x20 and symbol not in b'"\\'
            return regex.parts if is_raw and not regex.data else ()
        case _:
            return ()


def _as_set(kind: Kind, parts: Iterable[Regex], *, without: Regex | None) -> tuple[Regex, ...]:
    """Splice nested sets of ``kind``, drop doubles and ``without``, and order the rest by age."""
    spliced = (inner for part in parts for inner in (part.parts if part.kind is kind else (part,)))
    return tuple(sorted({part for part in spliced if part is not without}, key=lambda part: part.serial))


def _lead_byte(byte: int) -> tuple[int, int, int]:
    """Length, least scalar value of that length, and payload of a UTF-8 sequence by its first byte."""
    if byte < 0x80:
        return 1, 0, byte
    if 0xC0 <= byte < 0xE0:
        return 2, 0x80, byte & 0x1F
    if 0xE0 <= byte < 0xF0:
        return 3, 0x800, byte & 0x0F
    if 0xF0 <= byte < 0xF8:
        return 4, 0x10000, byte & 0x07
    return 0, 0, 0


def _cut(ranges: Ranges, least: int, most: int) -> Ranges:
    return tuple((max(low, least), min(high, most)) for low, high in ranges if max(low, least) <= min(high, most))


def _cuts_of(chosen: Iterable[int]) -> int:
    """Where membership in ``chosen`` changes from one byte to the next."""
    members = set(chosen)
    edges = {byte for byte in members if byte - 1 not in members}
    edges |= {byte + 1 for byte in members if byte + 1 not in members}
    return _bits(edges)


def _character_cuts(left: int, ranges: Ranges) -> int:
    ends = [end for pair in ranges for end in pair]
    if left == 0:
        leads = [chr(end).encode()[0] for end in ends]
        return _bits({*_IRREGULAR_LEADS, *leads, *(lead + 1 for lead in leads)})
    bytes_ = [0x80 + (end >> 6 * (left - 1)) for end in ends]
    return _bits({0x80, 0xC0, *bytes_, *(byte + 1 for byte in bytes_)})


def _joined_cuts(parts: Iterable[Regex]) -> int:
    return reduce(or_, (part.cuts for part in parts), 0)


def _bits(places: Iterable[int]) -> int:
    return sum(1 << place for place in set(places))
