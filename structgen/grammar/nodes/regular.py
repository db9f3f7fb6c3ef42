"""Nodes that need no rules, and the operators that make terms from strings and terms.

Literals, classes, sequences, choices, repetitions, permutations, intersections and complements.  The operators
simplify a little: an empty sequence disappears, a choice of one part is that part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat as repeated
from typing import Final, final

from structgen.errors import found
from structgen.grammar.nodes.base import (
    Grammar,
    NaryNode,
    UnaryNode,
    assign_field,
    builtin_max,
    checked_term,
    checked_terms,
    new_node,
    set_fields,
)
from structgen.grammar.nodes.recursive import Budget, Capture

__all__ = [
    "ANY_CHAR",
    "EMPTY",
    "EPSILON",
    "ByteClass",
    "CharClass",
    "Choice",
    "Complement",
    "Intersection",
    "Literal",
    "Permutation",
    "Repeat",
    "Sequence",
    "choice",
    "choice_of",
    "choices_of",
    "literal",
    "repeat",
    "sequence",
    "sequence_of",
    "sequences_of",
]

MAX_CODE_POINT: Final = 0x10FFFF
SURROGATES: Final = (0xD800, 0xDFFF)


@final
class Literal(Grammar):
    """Exactly the bytes ``data``; empty ``data`` is the empty string."""

    __slots__ = ("data",)
    _fields = ("data",)
    data: bytes

    def __init__(self, data: bytes) -> None:
        if not isinstance(data, bytes):
            raise TypeError(f"Literal: data must be bytes, not {type(data).__name__}; use literal() for str")
        assign_field(self, "data", data)

    def _own(self) -> object:
        return self.data


@final
class ByteClass(Grammar):
    """One byte out of ``ranges``: sorted, disjoint, inclusive pairs; no ranges is the empty language."""

    __slots__ = ("ranges",)
    _fields = ("ranges",)
    ranges: tuple[tuple[int, int], ...]

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        set_fields(self, ranges=merged_ranges(ranges, maximum=255, what="ByteClass"))

    def _own(self) -> object:
        return self.ranges


@final
class CharClass(Grammar):
    """One Unicode scalar value out of ``ranges``, written in UTF-8.

    Ranges are sorted, disjoint and inclusive.  Surrogates (U+D800..U+DFFF) are not scalar values and are removed.
    """

    __slots__ = ("ranges",)
    _fields = ("ranges",)
    ranges: tuple[tuple[int, int], ...]

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        merged = merged_ranges(ranges, maximum=MAX_CODE_POINT, what="CharClass")
        last = bisect_right(merged, (SURROGATES[1], MAX_CODE_POINT)) - 1
        if last >= 0 and merged[last][1] >= SURROGATES[0]:
            merged = tuple(_without_surrogates(merged))
        set_fields(self, ranges=merged)

    def _own(self) -> object:
        return self.ranges


@final
class Sequence(NaryNode):
    """The items one after the other; no items is the empty string."""

    __slots__ = ("items",)
    _fields = ("items",)

    def __init__(self, items: Iterable[Grammar]) -> None:
        assign_field(self, "items", checked_terms(items, "Sequence"))


@final
class Choice(NaryNode):
    """Any one of the items; no items is the empty language.  Ambiguity is allowed."""

    __slots__ = ("items",)
    _fields = ("items",)

    def __init__(self, items: Iterable[Grammar]) -> None:
        assign_field(self, "items", checked_terms(items, "Choice"))


@final
class Repeat(UnaryNode):
    """``item`` from ``min`` to ``max`` times; ``max=None`` is unbounded."""

    __slots__ = ("item", "max", "min")
    _fields = ("item", "min", "max")
    min: int
    max: int | None

    def __init__(self, item: Grammar, min: int = 0, max: int | None = None) -> None:
        if min < 0 or (max is not None and max < min):
            raise ValueError(f"Repeat: the bounds {min}..{max} contain no count; give 0 <= min <= max")
        assign_field(self, "item", checked_term(item, "Repeat"))
        assign_field(self, "min", min)
        assign_field(self, "max", max)

    def _own(self) -> object:
        return self.min, self.max


@final
class Permutation(Grammar):
    """Items in any order, ``separator`` between them.

    Each of ``required`` occurs exactly once, each of ``optional`` at most once, and ``rest`` any number of times. The
    number of items in all is from ``min`` to ``max`` (``None``: no bound). No items are the empty string.

    The order of ``required`` and ``optional`` has no meaning. Nothing is expanded: n items have 2 ** n states, and the
    engine makes a state when it is reached.

    Source: R. D. Cameron, "Extending context-free grammars with permutation phrases" (1993).
    """

    __slots__ = ("max", "min", "optional", "required", "rest", "separator")
    _fields = ("required", "optional", "rest", "separator", "min", "max")
    required: tuple[Grammar, ...]
    optional: tuple[Grammar, ...]
    rest: Grammar
    separator: Grammar
    min: int
    max: int | None

    def __init__(
        self,
        required: Iterable[Grammar] = (),
        optional: Iterable[Grammar] = (),
        rest: Grammar | None = None,
        separator: Grammar | None = None,
        min: int = 0,
        max: int | None = None,
    ) -> None:
        """Make the term; by default there is no ``rest`` and no ``separator``."""
        once = checked_terms(required, "Permutation")
        min_count = builtin_max(min, len(once))
        if min < 0 or (max is not None and max < min_count):
            raise ValueError(
                f"Permutation: the bounds {min}..{max} contain no count; give 0 <= min <= max, and as many "
                f"as are required ({len(once)})"
            )
        set_fields(
            self,
            required=once,
            optional=checked_terms(optional, "Permutation"),
            rest=EMPTY if rest is None else checked_term(rest, "Permutation"),
            separator=EPSILON if separator is None else checked_term(separator, "Permutation"),
            min=min,
            max=max,
        )

    @property
    def children(self) -> tuple[Grammar, ...]:
        """The required items, the optional ones, the rest and the separator."""
        return (*self.required, *self.optional, self.rest, self.separator)

    def _own(self) -> object:
        return len(self.required), self.min, self.max


@final
class Intersection(NaryNode):
    """Strings that belong to every item.  All items must be regular; no items is every string."""

    __slots__ = ("items",)
    _fields = ("items",)

    def __init__(self, items: Iterable[Grammar]) -> None:
        set_fields(self, items=checked_terms(items, "Intersection"))


@final
class Complement(UnaryNode):
    """The well-formed UTF-8 strings that do not belong to ``item``, which must be regular."""

    __slots__ = ("item",)
    _fields = ("item",)

    def __init__(self, item: Grammar) -> None:
        set_fields(self, item=checked_term(item, "Complement"))


_assign_sequence = vars(Sequence)["items"].__set__  # looks up no name
_assign_choice = vars(Choice)["items"].__set__


def sequence_of(items: tuple[Grammar, ...]) -> Grammar:
    """``Sequence(items)`` without checking the items; front ends make hundreds of thousands of these."""
    node = new_node(Sequence)
    _assign_sequence(node, items)
    return node


def choice_of(items: tuple[Grammar, ...]) -> Grammar:
    """``Choice(items)`` without checking the items."""
    node = new_node(Choice)
    _assign_choice(node, items)
    return node


def sequences_of(items: Collection[tuple[Grammar, ...]]) -> list[Grammar]:
    """``sequence_of`` of each, in a third of the time."""
    nodes: list[Grammar] = list(map(new_node, repeated(Sequence, len(items))))
    deque(map(_assign_sequence, nodes, items), maxlen=0)
    return nodes


def choices_of(items: Collection[tuple[Grammar, ...]]) -> list[Grammar]:
    """``choice_of`` of each."""
    nodes: list[Grammar] = list(map(new_node, repeated(Choice, len(items))))
    deque(map(_assign_choice, nodes, items), maxlen=0)
    return nodes


def merged_ranges(ranges: Iterable[tuple[int, int]], *, maximum: int, what: str) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    last = -2
    for pair in sorted(ranges):
        low, high = pair
        if not 0 <= low <= high <= maximum:
            raise ValueError(f"{what}: range {low}..{high} is not within 0..{maximum}")
        if low > last + 1:
            merged.append(pair)
            last = high
        elif high > last:
            merged[-1] = (merged[-1][0], high)
            last = high
    return tuple(merged)


def gaps_between(ranges: Iterable[tuple[int, int]], maximum: int) -> tuple[tuple[int, int], ...]:
    """The complement of sorted, disjoint ``ranges`` in 0..maximum."""
    gaps: list[tuple[int, int]] = []
    following = 0
    for low, high in ranges:
        if following < low:
            gaps.append((following, low - 1))
        following = high + 1
    if following <= maximum:
        gaps.append((following, maximum))
    return tuple(gaps)


def _without_surrogates(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for low, high in ranges:
        if low < SURROGATES[0]:
            yield low, min(high, SURROGATES[0] - 1)
        if high > SURROGATES[1]:
            yield builtin_max(low, SURROGATES[1] + 1), high


EPSILON: Final[Grammar] = Literal(b"")
"""The language of the empty string alone."""
EMPTY: Final[Grammar] = Choice(())
"""The empty language."""
ANY_CHAR: Final[Grammar] = CharClass([(0, MAX_CODE_POINT)])
"""Any one Unicode scalar value, in UTF-8."""


def coerced(value: Grammar | str | bytes) -> Grammar:
    return value if isinstance(value, Grammar) else literal(value)


def literal(text: str | bytes) -> Grammar:
    """The language of exactly ``text`` (``str`` is written in UTF-8; lone surrogates are refused)."""
    if isinstance(text, str):
        try:
            return Literal(text.encode())
        except UnicodeEncodeError as error:
            raise ValueError(
                f"literal: lone surrogate {text[error.start]!r} at character {error.start} has no UTF-8 form; "
                "pass bytes if you mean raw bytes"
            ) from None
    if not isinstance(text, bytes):
        raise TypeError(f"literal: expected a text; {found(text)}; write a number or another value as text")
    return Literal(text)


def sequence(*items: Grammar | str | bytes) -> Grammar:
    """The items one after the other, with nested sequences spliced and adjacent literals joined."""
    flat: list[Grammar] = []
    for item in items:
        term = coerced(item)
        for part in term.items if isinstance(term, Sequence) else (term,):
            if isinstance(part, Literal):
                if not part.data:
                    continue
                if flat and isinstance(flat[-1], Literal):
                    flat[-1] = Literal(flat[-1].data + part.data)
                    continue
            flat.append(part)
    if not flat:
        return EPSILON
    return flat[0] if len(flat) == 1 else Sequence(flat)


def choice(*items: Grammar | str | bytes) -> Grammar:
    """Any one of the items, with nested choices spliced."""
    flat: list[Grammar] = []
    for item in items:
        term = coerced(item)
        flat.extend(term.items if isinstance(term, Choice) else (term,))
    return flat[0] if len(flat) == 1 else Choice(flat)


def repeat(item: Grammar | str | bytes, min: int = 0, max: int | None = None) -> Grammar:
    """``item`` from ``min`` to ``max`` times (``None``: unbounded)."""
    return Repeat(coerced(item), min, max)


def intersection(*items: Grammar | str | bytes) -> Grammar:
    """Strings that belong to every item."""
    return Intersection(tuple(coerced(item) for item in items))


def complement(item: Grammar) -> Grammar:
    """The strings that do not belong to ``item``."""
    return Complement(item)


def capture(item: Grammar, name: str) -> Grammar:
    """``item``, reported under ``name``."""
    if not isinstance(name, str):
        raise TypeError(f"named: the name must be a text; {found(name)}")
    if not name:
        raise ValueError("named: the name is empty; captures are read by name; give one, or leave named() out")
    return Capture(name, item)


def budget(item: Grammar, tokens: int | None, characters: int | None) -> Grammar:
    """``item`` within bounds."""
    return Budget(item, tokens, characters)


def many(item: Grammar, min: int, max: int | None, sep: Grammar | str | bytes | None) -> Grammar:
    """``item`` from ``min`` to ``max`` times, with ``sep`` between."""
    if sep is None:
        return repeat(item, min, max)
    if max is not None and (max < min or max < 0):
        raise ValueError(f"many: the bounds {min}..{max} contain no count; give 0 <= min <= max")
    if max == 0:
        return EPSILON
    further = repeat(sequence(coerced(sep), item), builtin_max(min - 1, 0), None if max is None else max - 1)
    joined = sequence(item, further)
    return joined if min > 0 else choice(EPSILON, joined)
