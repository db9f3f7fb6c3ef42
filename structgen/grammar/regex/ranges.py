"""Sets of code points as sorted, disjoint, inclusive ranges.

The one idea: a class of characters is a tuple of ``(low, high)`` pairs, and every operation is a linear merge of
such tuples, so that no operation depends on how many characters a class holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, TypeAlias

__all__ = [
    "ALL",
    "NONE",
    "Ranges",
    "complement",
    "contains",
    "difference",
    "intersection",
    "symmetric_difference",
    "union",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Sorted, disjoint, non-adjacent inclusive pairs of code points."""

MAX_CODE_POINT: Final = 0x10FFFF
ALL: Final[Ranges] = ((0, MAX_CODE_POINT),)
NONE: Final[Ranges] = ()


def union(*sets: Iterable[tuple[int, int]]) -> Ranges:
    """The code points of any of ``sets`` (pairs in any order, overlaps allowed).

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
    gaps: list[tuple[int, int]] = []
    start = 0
    for low, high in ranges:
        if low > start:
            gaps.append((start, low - 1))
        start = high + 1
    if start <= MAX_CODE_POINT:
        gaps.append((start, MAX_CODE_POINT))
    return tuple(gaps)


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
