"""JSON strings by their value, as terms of characters: every spelling of each character, between quotes.

Spelling is a homomorphism, and no text is a spelling of two values.  So it goes through all operators, intersections
included; a complement becomes the spellings that are not those of its item.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from structgen.grammar.nodes import ANY_CHAR, EMPTY, CharClass, Grammar, Repeat, choice, sequence

__all__ = ["ANY_SPELLING", "spelled_class", "spelled_literal"]

_SHORT: Final = {0x22: '"', 0x5C: "\\", 0x2F: "/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
_RAW: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
_DIGITS: Final = "0123456789abcdef"


def spelled_class(ranges: Sequence[tuple[int, int]]) -> Grammar:
    """The spellings of one character out of ``ranges``."""
    options: list[Grammar] = []
    raw = [(max(low, first), min(high, last)) for low, high in ranges for first, last in _RAW]
    raw = [pair for pair in raw if pair[0] <= pair[1]]
    if raw:
        options.append(CharClass(raw))
    short = [ord(mark) for code, mark in _SHORT.items() if any(low <= code <= high for low, high in ranges)]
    escapes: list[Grammar] = [CharClass((code, code) for code in short)] if short else []
    units = [("u", digits) for low, high in ranges if low <= 0xFFFF for digits in _numbers(low, min(high, 0xFFFF), 4)]
    escapes += [sequence(mark, *_classes(digits)) for mark, digits in units]
    for low, high in ranges:
        if high > 0xFFFF:
            escapes += _pairs(max(low, 0x10000) - 0x10000, high - 0x10000)
    if escapes:
        options.append(sequence("\\", choice(*escapes)))
    return choice(*options) if options else EMPTY


def spelled_literal(data: bytes) -> Grammar:
    """The spellings of a text.

    Raises:
        UnicodeDecodeError: ``data`` is no text.
    """
    return sequence(*(spelled_class([(ord(character), ord(character))]) for character in data.decode()))


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
    high = [sequence(*_classes(digits)) for digits in _numbers(0xD800 + high_first, 0xD800 + high_last, 4)]
    low = [sequence(*_classes(digits)) for digits in _numbers(0xDC00 + low_first, 0xDC00 + low_last, 4)]
    return sequence("u", choice(*high), "\\u", choice(*low))


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
"""The spellings of any text, without the quotes."""
