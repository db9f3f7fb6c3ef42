"""The characters that a class leaves out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from structgen.grammar.nodes import MAX_CODE_POINT, CharClass

__all__ = ["inverse_of"]


def inverse_of(ranges: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The ranges of all other characters; ``ranges`` are sorted and disjoint."""
    return CharClass(_between(ranges)).ranges


def _between(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    following = 0
    for low, high in ranges:
        if following < low:
            yield following, low - 1
        following = high + 1
    if following <= MAX_CODE_POINT:
        yield following, MAX_CODE_POINT
