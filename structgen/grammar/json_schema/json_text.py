r"""Text as it stands between the quotes of a JSON string, for grammars that no regular ``JsonString`` can hold.

A term over characters becomes a term over bytes: each character is written in every way that RFC 8259 allows, raw,
as a short escape or as ``\uXXXX`` in either case.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from structgen.grammar.json_schema.terms import alternatives, chain
from structgen.grammar.nodes import (
    EPSILON,
    ByteClass,
    CharClass,
    Choice,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Sequence,
)

__all__ = ["spelled"]

_SHORT: Final = {
    0x22: b'\\"',
    0x5C: b"\\\\",
    0x2F: b"\\/",
    0x08: b"\\b",
    0x0C: b"\\f",
    0x0A: b"\\n",
    0x0D: b"\\r",
    0x09: b"\\t",
}
_RAW: Final = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))
_ESCAPE: Final = Literal(b"\\u")
_FEW: Final = 8
_Ranges = tuple[tuple[int, int], ...]


def spelled(term: Grammar) -> Grammar:
    """The spellings of the members of ``term``, which is made of classes, literals, sequences, choices and repeats.

    The nesting of ``term`` is that of the program text that made it; references stay as they are.
    """
    match term:
        case CharClass(ranges=ranges):
            return _characters(ranges)
        case Literal(data=data):
            return chain(*(_characters(((ord(c), ord(c)),)) for c in data.decode()))
        case Sequence(items=items):
            return Sequence([spelled(item) for item in items])
        case Choice(items=items):
            return _choice(items)
        case Repeat(item=item, min=least, max=most):
            return Repeat(spelled(item), least, most)
        case Reference():
            return term
    raise TypeError(f"{type(term).__name__} has no spelling")


def _choice(items: tuple[Grammar, ...]) -> Grammar:
    r"""Alternatives that begin with a character of ASCII are told apart by it, and share the beginning of its escape.

    ``\u00`` would else begin as many alternatives of every state that the choice may follow.
    """
    begun: dict[int, list[Grammar]] = {}
    others = []
    for item in items:
        parts = item.items if isinstance(item, Sequence) else (item,)
        first = parts[0] if parts else None
        if isinstance(first, Literal) and first.data and first.data[0] < 0x80:
            rest = Literal(first.data[1:]) if len(first.data) > 1 else EPSILON
            begun.setdefault(first.data[0], []).append(chain(rest, *parts[1:]))
        else:
            others.append(spelled(item))
    if sum(map(len, begun.values())) < _FEW:
        return Choice([spelled(item) for item in items])
    raw, escaped = [], []
    for code, rests in begun.items():
        rest = spelled(alternatives(*rests))
        if _common(_RAW, code, code):
            raw.append(chain(Literal(bytes([code])), rest))
        if code in _SHORT:
            raw.append(chain(Literal(_SHORT[code]), rest))
        escaped.append(chain(_hexadecimal(code, code, 2), rest))
    return Choice([*others, *raw, chain(Literal(b"\\u00"), Choice(escaped))])


@cache
def _characters(ranges: _Ranges) -> Grammar:
    """One character of a class."""
    raw = CharClass([pair for low, high in _RAW for pair in _common(ranges, low, high)])
    short = [Literal(text) for code, text in _SHORT.items() if _common(ranges, code, code)]
    basic = [_hexadecimal(low, high, 4) for low, high in _common(ranges, 0, 0xFFFF)]
    pairs = [_surrogates(low, high) for low, high in _common(ranges, 0x10000, 0x10FFFF)]
    escaped = chain(_ESCAPE, alternatives(*basic)) if basic else Choice(())
    return alternatives(*([raw] if raw.ranges else []), *short, escaped, *pairs)


def _common(ranges: _Ranges, low: int, high: int) -> list[tuple[int, int]]:
    return [(max(a, low), min(b, high)) for a, b in ranges if a <= high and b >= low]


def _surrogates(low: int, high: int) -> Grammar:
    """The surrogate pairs of characters beyond the basic plane."""
    first, last = divmod(low - 0x10000, 0x400), divmod(high - 0x10000, 0x400)
    if first[0] == last[0]:
        return _pair(first[0], first[0], first[1], last[1])
    return alternatives(
        _pair(first[0], first[0], first[1], 0x3FF),
        _pair(first[0] + 1, last[0] - 1, 0, 0x3FF),
        _pair(last[0], last[0], 0, last[1]),
    )


def _pair(lead: int, last_lead: int, trail: int, last_trail: int) -> Grammar:
    if lead > last_lead:
        return Choice(())
    leads, trails = (
        _hexadecimal(0xD800 + lead, 0xD800 + last_lead, 4),
        _hexadecimal(0xDC00 + trail, 0xDC00 + last_trail, 4),
    )
    return chain(_ESCAPE, leads, _ESCAPE, trails)


def _hexadecimal(low: int, high: int, digits: int) -> Grammar:
    """The numbers from ``low`` to ``high`` in exactly ``digits`` hexadecimal digits, in either case."""
    if digits == 1:
        return _digits(low, high)
    unit = 16 ** (digits - 1)
    first, last = low // unit, high // unit
    if first == last:
        return chain(_digits(first, first), _hexadecimal(low % unit, high % unit, digits - 1))
    parts = []
    if low % unit:
        parts.append(chain(_digits(first, first), _hexadecimal(low % unit, unit - 1, digits - 1)))
        first += 1
    end = last if high % unit == unit - 1 else last - 1
    if first <= end:
        parts.append(chain(_digits(first, end), Repeat(_digits(0, 15), digits - 1, digits - 1)))
    if end < last:
        parts.append(chain(_digits(last, last), _hexadecimal(0, high % unit, digits - 1)))
    return alternatives(*parts)


@cache
def _digits(low: int, high: int) -> Grammar:
    texts = "0123456789abcdef"[low : high + 1]
    return ByteClass([(ord(digit), ord(digit)) for text in texts for digit in {text, text.upper()}])
