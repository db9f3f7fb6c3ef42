"""Sets of code points: sorted ranges, classes by Unicode property, and closure under case.

A character class is a tuple of ``(low, high)`` pairs. Every operation merges such tuples in linear time, independent of
the number of characters.

Classes by Unicode property are computed from ``unicodedata``, once per process on first use, by a scan of the planes
with assigned characters (0 to 3 and 14; planes 4 to 13 are unassigned, 15 and 16 are private use by definition). So the
Unicode version is that of the running Python, which ``re`` also uses.  Scripts and most binary properties come from a
table, ``unicode_properties.txt``.

Two characters match each other without regard to case if they are in one *orbit*; a caseless class is closed under
orbits. There are three equivalences:

* ``PYTHON``: characters with the same simple lower case, joined where lower cases share their upper case.  This is
  ``re.IGNORECASE`` for ``str`` patterns: U+0130 and U+0131 match ``i``, U+017F matches ``s``.
* ``ASCII``: the 26 letters only (``re.ASCII``).
* ``SIMPLE``: simple case folding of ``CaseFolding.txt`` (statuses C and S), which ECMA-262 (with ``u``) and Rust
  use.  ``unicodedata`` has full folding only, from which the simple one is derived.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from structgen.grammar.limits import spend
from structgen.grammar.nodes.regular import MAX_CODE_POINT, gaps_between
from structgen.memory_cache import TERMS, cached

__all__ = [
    "ALL",
    "ASCII_DIGIT",
    "ASCII_SPACE",
    "ASCII_WORD",
    "CATEGORY_NAMES",
    "NONE",
    "CaseRule",
    "Ranges",
    "category",
    "close_under_case",
    "complement",
    "contains",
    "decimal_digits",
    "difference",
    "find_listed",
    "find_property",
    "intersection",
    "listed_names",
    "python_space",
    "python_word",
    "ranges_bytes",
    "rust_word",
    "symmetric_difference",
    "union",
    "white_space",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent inclusive pairs of code points."""

_RANGE_BYTES: Final = 256
ALL: Final[Ranges] = ((0, MAX_CODE_POINT),)
NONE: Final[Ranges] = ()


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """The union of ``sets`` (pairs in any order, overlaps allowed).

    >>> union([(5, 9)], [(1, 3), (4, 6)])
    ((1, 9),)
    """
    pairs = [pair for pairs in sets for pair in pairs]
    if len(pairs) > 1:
        pairs.sort()
    merged: list[tuple[int, int]] = []
    last_low = last_high = -2
    for low, high in pairs:
        if low <= last_high + 1:
            if high > last_high:
                last_high = high
                merged[-1] = (last_low, high)
        else:
            last_low, last_high = low, high
            merged.append((low, high))
    return tuple(merged)


def complement(ranges: Ranges) -> Ranges:
    """The code points of Unicode that are not in ``ranges``.

    >>> complement(((0, 9), (20, 0x10FFFF)))
    ((10, 19),)
    """
    return gaps_between(ranges, MAX_CODE_POINT)


def intersection(left: Ranges, right: Ranges) -> Ranges:
    """The code points of both sets."""
    common: list[tuple[int, int]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if low <= high:
            common.append((low, high))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return tuple(common)


def difference(left: Ranges, right: Ranges) -> Ranges:
    """The code points of ``left`` that are not in ``right``."""
    return intersection(left, complement(right))


def symmetric_difference(left: Ranges, right: Ranges) -> Ranges:
    """The code points of exactly one of the sets."""
    return union(difference(left, right), difference(right, left))


def contains(ranges: Ranges, code_point: int) -> bool:
    """Whether ``code_point`` is in ``ranges``."""
    index = bisect_right(ranges, (code_point, MAX_CODE_POINT)) - 1
    return index >= 0 and ranges[index][1] >= code_point


class CaseRule(Enum):
    """Which characters count as the same letter."""

    PYTHON = "python"
    ASCII = "ascii"
    SIMPLE = "simple"


_LAST_CASED: Final = 0x1FFFF
_SIMPLE_SINCE_15_1: Final = {0x1FD3: 0x390, 0x1FE3: 0x3B0, 0xFB05: 0xFB06}


def ranges_bytes(ranges: Ranges) -> int:
    """The memory of ranges and of the ranges that they were made of, about."""
    return _RANGE_BYTES * len(ranges)


def close_under_case(ranges: Ranges, rule: CaseRule) -> Ranges:
    """``ranges`` with every character equivalent to one of them under ``rule``.

    Complexity: one look-up for each range, and for each of its characters that have equivalents: 2,800 have.
    """
    if rule is CaseRule.ASCII:
        return _close_ascii(ranges)
    points = _orbits(rule).points
    count = sum(bisect_right(points, high) - bisect_left(points, low) for low, high in ranges)
    spend(count // _POINTS_A_STEP, "regex")  # made or cached
    return _closed_under_case(ranges, rule)


_POINTS_A_STEP: Final = 1


@cached(TERMS, ranges_bytes)
def _closed_under_case(ranges: Ranges, rule: CaseRule) -> Ranges:
    table = _orbits(rule)
    added: set[int] = set()
    for low, high in ranges:
        for index in range(bisect_left(table.points, low), bisect_right(table.points, high)):
            added.update([other for other in table.members[table.points[index]] if not low <= other <= high])
    return union(ranges, ((point, point) for point in added)) if added else ranges


def _close_ascii(ranges: Ranges) -> Ranges:
    added = [(point ^ 0x20, point ^ 0x20) for point in _ASCII_LETTERS if contains(ranges, point)]
    return union(ranges, added)


_ASCII_LETTERS: Final = (*range(0x41, 0x5B), *range(0x61, 0x7B))


class _Orbits:
    """All orbits of two or more characters: the orbit of each of their characters, and these, sorted."""

    __slots__ = ("members", "points")

    def __init__(self, orbits: list[tuple[int, ...]]) -> None:
        self.members = {point: orbit for orbit in orbits for point in orbit}
        self.points = sorted(self.members)


@lru_cache(maxsize=2)
def _orbits(rule: CaseRule) -> _Orbits:
    key_of = _python_key if rule is CaseRule.PYTHON else _simple_fold
    groups: dict[str, set[int]] = {}
    for character in map(chr, range(_LAST_CASED + 1)):
        key = key_of(character)
        if key != character:
            groups.setdefault(key, set()).add(ord(character))
            if len(key) == 1:
                groups[key].add(ord(key))
    return _Orbits([tuple(sorted(group)) for group in groups.values() if len(group) > 1])


def _python_key(character: str) -> str:
    # The first character of a full mapping is the simple one for U+0130, the only character whose full lower case
    # is longer than one.
    return character.lower()[0].upper()


def _simple_fold(character: str) -> str:
    if _HAS_15_1 and ord(character) in _SIMPLE_SINCE_15_1:
        return chr(_SIMPLE_SINCE_15_1[ord(character)])
    folded = character.casefold()
    if len(folded) == 1:
        return folded
    # A full folding to several characters has a simple counterpart exactly where a simple lower case exists (U+1E9E,
    # U+1F88 ...).
    lower = character.lower()
    return lower if len(lower) == 1 else character


_HAS_15_1: Final = tuple(int(part) for part in unicodedata.unidata_version.split(".")) >= (15, 1)


ASCII_DIGIT: Final[Ranges] = ((0x30, 0x39),)
ASCII_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Final[Ranges] = ((0x09, 0x0D), (0x20, 0x20))

_PLANES: Final = ((0, 0x3FFFF), (0xE0000, 0xEFFFF))
_PRIVATE_USE: Final = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))

_ALIASES: Final = """
L Letter, LC Cased_Letter, Lu Uppercase_Letter, Ll Lowercase_Letter, Lt Titlecase_Letter, Lm Modifier_Letter,
Lo Other_Letter, M Mark Combining_Mark, Mn Nonspacing_Mark, Mc Spacing_Mark, Me Enclosing_Mark, N Number,
Nd Decimal_Number digit, Nl Letter_Number, No Other_Number, P Punctuation punct, Pc Connector_Punctuation,
Pd Dash_Punctuation, Ps Open_Punctuation, Pe Close_Punctuation, Pi Initial_Punctuation, Pf Final_Punctuation,
Po Other_Punctuation, S Symbol, Sm Math_Symbol, Sc Currency_Symbol, Sk Modifier_Symbol, So Other_Symbol,
Z Separator, Zs Space_Separator, Zl Line_Separator, Zp Paragraph_Separator, C Other, Cc Control cntrl, Cf Format,
Cs Surrogate, Co Private_Use, Cn Unassigned
"""

CATEGORY_NAMES: Final[dict[str, str]] = {
    name: names.split()[0] for names in _ALIASES.replace("\n", " ").split(",") for name in names.split()
}
"""Every name of a general category (``Lu``, ``Uppercase_Letter``, ``digit`` ...) -> its short name."""


@cache
def category(short: str) -> Ranges:
    """The characters of a general category or group of them (``"Lu"``, ``"L"``, ``"LC"``).

    Raises:
        KeyError: no category has this short name.
    """
    table = _by_category()
    if short == "LC":
        return union(table["Lu"], table["Ll"], table["Lt"])
    if len(short) == 1:
        return union(*(ranges for name, ranges in table.items() if name[0] == short))
    return table[short]


@cache
def decimal_digits() -> Ranges:
    r"""General category ``Nd``: what ``\d`` is in Python and Rust."""
    return category("Nd")


@cache
def python_word() -> Ranges:
    r"""What ``\w`` matches in Python: alphanumeric by ``str.isalnum``, and the underscore."""
    return union(_scan(str.isalnum), [(0x5F, 0x5F)])


@cache
def python_space() -> Ranges:
    r"""What ``\s`` matches in Python: ``str.isspace``, which includes U+001C to U+001F."""
    return _scan(str.isspace)


@cache
def white_space() -> Ranges:
    """The property ``White_Space``."""
    return difference(python_space(), ((0x1C, 0x1F),))


@cache
def rust_word() -> Ranges:
    r"""What ``\w`` matches in Rust: Alphabetic, M, Nd, Pc and Join_Control (UTS 18, annex C).

    ``Other_Alphabetic`` holds marks and characters that are Lowercase or Uppercase only, so the union below needs
    no table of it.
    """
    letters = (category(short) for short in ("L", "M", "Nl", "Nd", "Pc"))
    return union(*letters, _scan(str.islower), _scan(str.isupper), [(0x200C, 0x200D)])


def find_property(name: str) -> Ranges | None:
    """The characters of a general category or binary property by its exact name, or ``None`` if unsupported."""
    short = CATEGORY_NAMES.get(name)
    if short is not None:
        return category(short)
    make = _PROPERTIES.get(name)
    return find_listed("bin", name) if make is None else make()


@cache
def listed_names(kind: str) -> Mapping[str, str]:
    """The names of scripts (``"sc"``) or binary properties (``"bin"``) in the table -> the ranges as text.

    ``unicodedata`` knows neither, so they come from a table of a fixed version of Unicode. Under ``"scx"`` are the
    scripts with extensions of their own; the others are those of ``"sc"``.
    """
    found: dict[str, str] = {}
    for line in Path(__file__).with_name("unicode_properties.txt").read_text(encoding="utf-8").splitlines()[1:]:
        names, _, numbers = line.partition(":")
        own, *aliases = names.split()
        if own == kind:
            found.update(dict.fromkeys(aliases, numbers))
    return {**listed_names("sc"), **found} if kind == "scx" else found


@cache
def find_listed(kind: str, name: str) -> Ranges | None:
    """The characters of a script (``"sc"``, with extensions ``"scx"``) or binary property (``"bin"``) of the table."""
    text = listed_names(kind).get(name)
    if text is None:
        return None
    numbers = [int(number, 36) for number in text.split()]
    ranges, end = [], -1
    for distance, size in zip(numbers[::2], numbers[1::2], strict=True):
        first = end + distance
        end = first + size
        ranges.append((first, end))
    return tuple(ranges)


@lru_cache(maxsize=1)
def _by_category() -> dict[str, Ranges]:
    found: dict[str, list[tuple[int, int]]] = {}
    for first, last in _PLANES:
        start, current = first, unicodedata.category(chr(first))
        for code_point in range(first + 1, last + 1):
            name = unicodedata.category(chr(code_point))
            if name != current:
                found.setdefault(current, []).append((start, code_point - 1))
                start, current = code_point, name
        found.setdefault(current, []).append((start, last))
    found["Co"].extend(_PRIVATE_USE)
    table = {name: union(ranges) for name, ranges in found.items()}
    assigned = union(*(ranges for name, ranges in table.items() if name != "Cn"))
    table["Cn"] = complement(assigned)
    return table


def _scan(holds: Callable[[str], bool]) -> Ranges:
    """The characters of the assigned planes for which ``holds`` is true; none are in planes 15 and 16."""
    return union(pair for first, last in _PLANES for pair in _runs(first, last, holds))


def _runs(first: int, last: int, holds: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    flags = bytes(map(holds, map(chr, range(first, last + 1))))
    end = 0
    while (start := flags.find(1, end)) >= 0:
        end = flags.find(0, start)
        if end < 0:
            end = len(flags)
        yield first + start, first + end - 1


def _is_xid_continue(character: str) -> bool:
    return ("a" + character).isidentifier()


def _xid_start() -> Ranges:
    return difference(_scan(str.isidentifier), ((0x5F, 0x5F),))


_PROPERTIES: Final[dict[str, Callable[[], Ranges]]] = {
    "Any": lambda: ALL,
    "ASCII": lambda: ((0, 0x7F),),
    "Assigned": lambda: complement(category("Cn")),
    "Lowercase": cache(lambda: _scan(str.islower)),
    "Lower": cache(lambda: _scan(str.islower)),
    "Uppercase": cache(lambda: _scan(str.isupper)),
    "Upper": cache(lambda: _scan(str.isupper)),
    "White_Space": white_space,
    "space": white_space,
    "XID_Start": cache(_xid_start),
    "XIDS": cache(_xid_start),
    "XID_Continue": cache(lambda: _scan(_is_xid_continue)),
    "XIDC": cache(lambda: _scan(_is_xid_continue)),
}
