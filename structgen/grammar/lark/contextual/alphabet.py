"""Classes of characters as sets of bits.

All characters that the terminals of a grammar tell apart in no way are one *letter*; a class is then an integer with
one bit for each of its letters.  One bit more, ``end``, stands for the end of the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from structgen.grammar.lark.contextual.patterns import character
from structgen.grammar.nodes import MAX_CODE_POINT, SURROGATES, Grammar
from structgen.grammar.regex.ranges import Ranges, union

__all__ = ["Alphabet", "letters_of"]


class Alphabet:
    """The letters of a grammar.

    Attributes:
        size: how many letters there are.
        end: the bit of the end of the text.
        all: the bits of all letters and of the end.
    """

    def __init__(self, classes: Iterable[Ranges]) -> None:
        """Divide the characters by ``classes``.

        Complexity: O(n log n) for n ranges together, and n times the number of classes that overlap.
        """
        distinct = list(dict.fromkeys(classes))
        events: dict[int, list[int]] = {0: [], MAX_CODE_POINT + 1: []}
        for index, ranges in enumerate([*distinct, (SURROGATES,)]):
            for low, high in ranges:
                events.setdefault(low, []).append(index)
                events.setdefault(high + 1, []).append(index)
        points = sorted(events)
        members: dict[frozenset[int], list[tuple[int, int]]] = {}
        inside: set[int] = set()
        for low, following in pairwise(points):
            inside.symmetric_difference_update(events[low])
            if len(distinct) not in inside:  # surrogates stand in no text
                members.setdefault(frozenset(inside), []).append((low, following - 1))
        self._ranges = [union(found) for found in members.values()]
        self.size = len(self._ranges)
        self.end = 1 << self.size
        self.all = (self.end << 1) - 1
        self._masks = dict.fromkeys(distinct, 0)
        for letter, key in enumerate(members):
            for index in key:
                self._masks[distinct[index]] |= 1 << letter
        self._terms: dict[int, Grammar] = {}

    def mask(self, ranges: Ranges) -> int:
        """The bits of a class that the alphabet was made with."""
        return self._masks[ranges]

    def term(self, mask: int) -> Grammar:
        """One character of the letters of ``mask``."""
        found = self._terms.get(mask)
        if found is None:
            pairs = [pair for letter in letters_of(mask & ~self.end) for pair in self._ranges[letter]]
            found = self._terms[mask] = character(union(pairs))
        return found


def letters_of(mask: int) -> Iterator[int]:
    """The positions of the bits of ``mask``, lowest first."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
