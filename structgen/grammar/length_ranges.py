"""Arithmetic on what is known of the longest member of a language, for ``lengths``."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, TypeAlias

from structgen.grammar.nodes import ByteClass, Grammar, Literal, postorder

__all__ = [
    "EMPTY",
    "ESCAPE_BYTES",
    "NOTHING",
    "UNBOUNDED",
    "UNKNOWN",
    "Range",
    "arranged",
    "either",
    "exactly",
    "is_text",
    "spelled",
    "times",
    "total",
]

UNBOUNDED: Final = math.inf
EMPTY: Final = -math.inf
ESCAPE_BYTES: Final = 6  # \uXXXX for one UTF-16 unit
_LAST_ASCII: Final = 0x7F

Range: TypeAlias = tuple[float, float]
"""Bounds of the length of the longest member; minus infinity where there may be no member."""
UNKNOWN: Final[Range] = (EMPTY, UNBOUNDED)
NOTHING: Final[Range] = (EMPTY, EMPTY)


def exactly(length: float) -> Range:
    """A length that is known."""
    return length, length


def either(ranges: Iterable[Range]) -> Range:
    """The longest of several; nothing, if there are none."""
    found = list(ranges)
    return max((low for low, _ in found), default=EMPTY), max((high for _, high in found), default=EMPTY)


def total(ranges: Iterable[Range]) -> Range:
    """The length of a sequence; nothing, if one of its items has no member."""
    low = high = 0.0
    for one, other in ranges:
        low = EMPTY if EMPTY in (low, one) else low + one
        high = EMPTY if EMPTY in (high, other) else high + other
    return low, high


def times(length: float, count: int | None) -> float:
    """``count`` times a length; without a count as often as one likes."""
    if count is None:
        return UNBOUNDED if length > 0 else length
    return length * count


def arranged(
    required: list[float], optional: list[float], rest: float, separator: float, spare: int | None, least: int
) -> float:
    """The length of all required members with the longest others, of which ``spare`` have a place."""
    if EMPTY in required:
        return EMPTY
    chosen = sorted((length for length in optional if length != EMPTY), reverse=True)
    if spare is None and rest != EMPTY and rest + separator > 0:
        return UNBOUNDED
    if rest != EMPTY:
        chosen = [length for length in chosen if length >= rest]
        short = least - len(required) - len(chosen) if spare is None else spare - len(chosen)
        chosen += [rest] * max(0, short)
    chosen = chosen[:spare]
    count = len(required) + len(chosen)
    if count < least:
        return EMPTY
    return sum(required) + sum(chosen) + (separator * (count - 1) if count > 1 else 0)


def is_text(root: Grammar) -> bool:
    """Whether every member is well-formed UTF-8, as far as can be told at once; complements hold nothing else."""
    for node in postorder(root):
        if isinstance(node, ByteClass) and node.ranges and node.ranges[-1][1] > _LAST_ASCII:
            return False
        if isinstance(node, Literal) and not _is_utf8(node.data):
            return False
    return True


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def spelled(data: bytes) -> int:
    """The length of ``data`` inside a JSON string with every UTF-16 unit escaped."""
    return ESCAPE_BYTES * len(data.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")) // 2
