"""Classes of characters by Unicode property, read from the interpreter's own ``unicodedata``.

Nothing is stored: each class is computed once per process, on first use, by scanning the planes that hold
assigned characters (0 to 3 and 14; planes 4 to 13 are unassigned, 15 and 16 are private use by definition).  The
Unicode version is therefore that of the running Python, which is also the one that ``re`` uses.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import Final

from structgen.grammar.regex.ranges import ALL, Ranges, complement, difference, union

__all__ = [
    "ASCII_DIGIT",
    "ASCII_SPACE",
    "ASCII_WORD",
    "CATEGORY_NAMES",
    "category",
    "decimal_digits",
    "find_property",
    "python_space",
    "python_word",
    "rust_word",
    "white_space",
]

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
    """The characters of a general category or binary property by its exact name, or ``None`` if it is not held.

    Scripts, blocks and most binary properties are not part of ``unicodedata``.
    """
    short = CATEGORY_NAMES.get(name)
    if short is not None:
        return category(short)
    make = _PROPERTIES.get(name)
    return None if make is None else make()


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
    """The characters of the assigned planes for which ``holds``; none are in planes 15 and 16."""
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
