r"""How the inside of a JSON string spells one character, after RFC 8259 section 7.

A *pending* spelling is what has been read of an escape so far: ``b""``, ``b"\\"``, ``b"\\u00"``,
``b"\\ud83d\\u"`` ...  Hexadecimal digits are kept in lower case.
"""

from __future__ import annotations

from typing import Final

__all__ = ["extend", "possible_characters"]

_SHORT: Final = {
    ord('"'): '"',
    ord("\\"): "\\",
    ord("/"): "/",
    ord("b"): "\b",
    ord("f"): "\f",
    ord("n"): "\n",
    ord("r"): "\r",
    ord("t"): "\t",
}
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
_HIGH: Final = (0xD800, 0xDBFF)
_LOW: Final = (0xDC00, 0xDFFF)
_UNIT_LENGTH: Final = len(b"\\u0000")


def extend(pending: bytes, byte: int) -> bytes | str | None:
    """Read one byte more of an escape that began with a backslash.

    Returns:
        the longer pending spelling; or the character, when it is complete; or ``None``, when nothing that
        begins so spells a character.
    """
    place = len(pending) % _UNIT_LENGTH
    spelled = bytes([byte])
    if place == 0:  # a complete high surrogate waits for its low one
        return pending + spelled if spelled == b"\\" else None
    if place == 1:
        if spelled == b"u":
            return pending + spelled
        return _SHORT.get(byte) if len(pending) == 1 else None
    if byte not in _HEX:
        return None
    pending += spelled.lower()
    characters = possible_characters(pending)
    if not characters:
        return None
    if len(pending) % _UNIT_LENGTH == 0 and characters[0][0] == characters[-1][1]:
        return chr(characters[0][0])
    return pending


def possible_characters(pending: bytes) -> tuple[tuple[int, int], ...]:
    """Return the characters that an escape prefix so can still spell, as ranges of scalar values."""
    if len(pending) < 2:
        return ((0, _HIGH[0] - 1), (_LOW[1] + 1, 0x10FFFF))
    low, high = _code_units(pending[:_UNIT_LENGTH])
    if len(pending) <= _UNIT_LENGTH:
        basic = ((low, min(high, _HIGH[0] - 1)), (max(low, _LOW[1] + 1), high))
        leads = max(low, _HIGH[0]), min(high, _HIGH[1])
        pairs = (_pair(leads[0], _LOW[0]), _pair(leads[1], _LOW[1])) if leads[0] <= leads[1] else (1, 0)
        return tuple((first, last) for first, last in (*basic, pairs) if first <= last)
    trail_low, trail_high = _code_units(pending[_UNIT_LENGTH:])
    first, last = max(trail_low, _LOW[0]), min(trail_high, _LOW[1])
    return ((_pair(low, first), _pair(low, last)),) if first <= last else ()


def _code_units(escape: bytes) -> tuple[int, int]:
    """The least and the greatest UTF-16 code unit that an escape prefix with ``escape`` can hold."""
    digits = escape[2:].decode()
    return int(digits.ljust(4, "0"), 16), int(digits.ljust(4, "f"), 16)


def _pair(high: int, low: int) -> int:
    return 0x10000 + ((high - _HIGH[0]) << 10) + (low - _LOW[0])
