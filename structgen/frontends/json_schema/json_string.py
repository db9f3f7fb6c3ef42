r"""How text is written inside a JSON string: characters themselves, short escapes such as ``\n``, and ``\uXXXX``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from structgen.grammar.nodes import ANY_CHAR, EMPTY, CharClass, Grammar, Repeat, choice, sequence

__all__ = [
    "ANY_SPELLING",
    "RAW",
    "SHORT_ESCAPES",
    "clipped",
    "escapable",
    "escaped",
    "hexadecimal",
    "spelled_class",
    "spelled_literal",
]

SHORT_ESCAPES: Final = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
"""The character after the backslash, by code point."""
RAW: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
"""The characters that need no escape."""
_DIGITS: Final = "0123456789abcdef"
_LAST_UNIT: Final = 0xFFFF


def clipped(ranges: Iterable[tuple[int, int]], low: int, high: int) -> tuple[tuple[int, int], ...]:
    """The parts of ranges from ``low`` to ``high``."""
    return tuple((max(first, low), min(last, high)) for first, last in ranges if first <= high and last >= low)


def spelled_class(ranges: Sequence[tuple[int, int]]) -> Grammar:
    """The spellings of one character out of ``ranges``."""
    options: list[Grammar] = []
    raw = [pair for low, high in ranges for pair in clipped(RAW, low, high)]
    if raw:
        options.append(CharClass(raw))
    short = [ord(mark) for code, mark in SHORT_ESCAPES.items() if clipped(ranges, code, code)]
    escapes: list[Grammar] = [CharClass((code, code) for code in short)] if short else []
    for low, high in clipped(ranges, 0, _LAST_UNIT):
        escapes += [sequence("u", *_classes(digits)) for digits in _numbers(low, high, 4)]
    for low, high in clipped(ranges, _LAST_UNIT + 1, 0x10FFFF):
        escapes += _pairs(low - _LAST_UNIT - 1, high - _LAST_UNIT - 1)
    if escapes:
        options.append(sequence("\\", choice(*escapes)))
    return choice(*options) if options else EMPTY


def spelled_literal(data: bytes) -> Grammar:
    """The spellings of a string.

    Raises:
        UnicodeDecodeError: ``data`` is not UTF-8.
    """
    return sequence(*(spelled_class([(ord(character), ord(character))]) for character in data.decode()))


def escaped(term: CharClass) -> Grammar:
    r"""The escapes ``\uXXXX`` of the characters of a class, all below U+10000."""
    return sequence("\\u", choice(*(hexadecimal(low, high, 4) for low, high in term.ranges)))


def escapable(term: CharClass) -> Grammar:
    r"""The characters of a class, themselves or as ``\uXXXX``."""
    return choice(term, escaped(term))


def hexadecimal(low: int, high: int, width: int) -> Grammar:
    """The numbers from ``low`` to ``high`` in exactly ``width`` hexadecimal digits, in either case."""
    return choice(*(sequence(*_classes(digits)) for digits in _numbers(low, high, width)))


def _pairs(low: int, high: int) -> Iterator[Grammar]:
    """Surrogate pairs for numbers of 20 bits: ten of them in each half."""
    first, last = low >> 10, high >> 10
    if first == last:
        yield _pair(first, first, low & 0x3FF, high & 0x3FF)
        return
    if low & 0x3FF:
        yield _pair(first, first, low & 0x3FF, 0x3FF)
        first += 1
    is_cut = high & 0x3FF != 0x3FF
    if first <= last - is_cut:
        yield _pair(first, last - is_cut, 0, 0x3FF)
    if is_cut:
        yield _pair(last, last, 0, high & 0x3FF)


def _pair(high_first: int, high_last: int, low_first: int, low_last: int) -> Grammar:
    high = hexadecimal(0xD800 + high_first, 0xD800 + high_last, 4)
    low = hexadecimal(0xDC00 + low_first, 0xDC00 + low_last, 4)
    return sequence("u", high, "\\u", low)


def _numbers(low: int, high: int, width: int) -> Iterator[list[tuple[int, int]]]:
    """The numbers from ``low`` to ``high`` in hexadecimal, as products of ranges of digits."""
    if width == 0:
        yield []
        return
    unit = 16 ** (width - 1)
    first, last = low // unit, high // unit
    if first == last:
        for rest in _numbers(low % unit, high % unit, width - 1):
            yield [(first, first), *rest]
        return
    if low % unit:
        for rest in _numbers(low % unit, unit - 1, width - 1):
            yield [(first, first), *rest]
        first += 1
    is_cut = high % unit != unit - 1
    if first <= last - is_cut:
        yield [(first, last - is_cut)] + [(0, 15)] * (width - 1)
    if is_cut:
        for rest in _numbers(0, high % unit, width - 1):
            yield [(last, last), *rest]


def _classes(digits: Iterable[tuple[int, int]]) -> Iterator[Grammar]:
    for low, high in digits:
        marks = _DIGITS[low : high + 1]
        yield CharClass((ord(mark), ord(mark)) for mark in {*marks, *marks.upper()})


ANY_SPELLING: Final = Repeat(spelled_class(ANY_CHAR.ranges if isinstance(ANY_CHAR, CharClass) else ()), 0, None)
"""The spellings of any string."""
