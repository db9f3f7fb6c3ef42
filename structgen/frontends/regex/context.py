"""The context of an assertion, and its split into cases for one pattern.

An assertion at a position looks at one character to either side at most, or at the edge of the text: a :class:`Side`
is what it accepts there. Each pattern splits the characters into blocks that its assertions do not distinguish
(:class:`ContextAlphabet`), and a side becomes a bit mask over: the edge of the text, the case of exactly one line feed
before the end, and the blocks.  These cases exclude each other, so the conjunction of two assertions is the
intersection of their masks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from structgen.frontends.regex.code_point import (
    ALL,
    NONE,
    Ranges,
    complement,
    contains,
    difference,
    intersection,
    ranges_bytes,
    union,
)
from structgen.grammar.nodes import CharClass
from structgen.memory_cache import TERMS, cached

__all__ = [
    "ANY",
    "ANYTHING",
    "CHARACTERS",
    "EDGE",
    "LAST_NEWLINE",
    "NOTHING",
    "Cell",
    "ContextAlphabet",
    "Side",
    "TooManyBlocks",
    "alphabet_of",
]

Cell = tuple[int, int]
"""A requirement on the left context and one on the right context, as masks."""

ANY: Final = -1
"""The mask of no requirement: all bits."""
EDGE: Final = 1
"""There is no character on this side."""
LAST_NEWLINE: Final = 2
"""On the right: one line feed and then the end of the text."""
CHARACTERS: Final = ~(EDGE | LAST_NEWLINE)
"""All bits of blocks of characters."""

_FIRST_BLOCK: Final = 4
_MAX_BLOCKS: Final = 64
_USES_OF_A_BLOCK: Final = 8
"""Unions of blocks are remembered; about so many hold each block."""
_LINE_FEED: Final = 0x0A


class TooManyBlocks(Exception):
    """The assertions of a pattern distinguish more than 64 kinds of characters."""


class Side(NamedTuple):
    """What an assertion accepts on one side.

    Attributes:
        at_edge: whether it accepts the edge of the text.
        characters: the accepted characters.
        last_newline: whether it accepts one line feed that is the last character of the text.
    """

    at_edge: bool
    characters: Ranges
    last_newline: bool = False

    @property
    def complement(self) -> Side | None:
        """The complement of this side; ``None`` if it would separate a last line feed from others."""
        if self.last_newline and not contains(self.characters, _LINE_FEED):
            return None
        return Side(not self.at_edge, complement(self.characters))

    def joined(self, other: Side) -> Side:
        """The union of both sides."""
        characters = union(self.characters, other.characters)
        return Side(self.at_edge or other.at_edge, characters, self.last_newline or other.last_newline)


ANYTHING: Final = Side(at_edge=True, characters=ALL)
"""No requirement."""
NOTHING: Final = Side(at_edge=False, characters=NONE)
"""An unsatisfiable requirement."""


class ContextAlphabet:
    """The characters, split into blocks that the assertions of a pattern do not distinguish.

    Raises:
        TooManyBlocks: there are more than 64 blocks.
    """

    __slots__ = ("_masks", "_ranges", "blocks", "line_feed")

    def __init__(self, sets: Iterable[Ranges]) -> None:
        blocks: list[Ranges] = [ALL]
        for members in sets:
            parts = [(intersection(block, members), difference(block, members)) for block in blocks]
            blocks = [part for pair in parts for part in pair if part]
            if len(blocks) > _MAX_BLOCKS:
                raise TooManyBlocks
        self.blocks: dict[int, Ranges] = {_FIRST_BLOCK << index: block for index, block in enumerate(blocks)}
        self.line_feed = next(bit for bit, block in self.blocks.items() if contains(block, _LINE_FEED))
        self._masks: dict[Side, int] = {}
        self._ranges: dict[int, Ranges] = {}

    def mask(self, side: Side) -> int:
        """The cases that ``side`` accepts; its characters are a union of blocks."""
        if side is ANYTHING:
            return ANY
        if side is NOTHING:
            return 0
        known = self._masks.get(side)
        if known is None:
            known = self._masks[side] = self._mask(side)
        return known

    def ranges(self, mask: int) -> Ranges:
        """The characters of the blocks in ``mask``."""
        mask &= CHARACTERS
        known = self._ranges.get(mask)
        if known is None:
            chosen = [block for bit, block in self.blocks.items() if mask & bit]
            known = ALL if len(chosen) == len(self.blocks) else union(*chosen)
            self._ranges[mask] = known
        return known

    def characters(self, mask: int) -> CharClass:
        """One character of the blocks in ``mask``."""
        return CharClass(self.ranges(mask))

    def _mask(self, side: Side) -> int:
        if side.characters == ALL:
            return ANY if side.at_edge else ~EDGE
        mask = EDGE if side.at_edge else 0
        if side.characters != NONE:
            for bit, block in self.blocks.items():
                if contains(side.characters, block[0][0]):
                    mask |= bit
        if side.last_newline or mask & self.line_feed:
            mask |= LAST_NEWLINE
        return mask


def _alphabet_bytes(alphabet: ContextAlphabet) -> int:
    return _USES_OF_A_BLOCK * sum(map(ranges_bytes, alphabet.blocks.values()))


@cached(TERMS, _alphabet_bytes)
def alphabet_of(sets: tuple[Ranges, ...]) -> ContextAlphabet:
    """The alphabet that separates ``sets``, cached for patterns with the same assertions.

    Raises:
        TooManyBlocks: there are more than 64 blocks.
    """
    return ContextAlphabet(sets)
