"""Characters that a grammar treats alike, of which one stands for all while members are counted."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Final, final

from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import (
    SURROGATES,
    ByteClass,
    CharClass,
    Complement,
    Distinct,
    Grammar,
    JsonString,
    Label,
    Literal,
    Shared,
    postorder,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Container

__all__ = ["Characters"]

_LARGEST: Final = 0x10FFFF
_WIDTHS: Final = ((0x80, 0x7FF, 2), (0x800, 0xFFFF, 3), (0x10000, _LARGEST, 4))
"""First and last code point of each number of bytes of UTF-8."""
_LEADS: Final = {2: range(0xC2, 0xE0), 3: (*range(0xE1, 0xED), 0xEE, 0xEF), 4: range(0xF1, 0xF5)}
"""First bytes that bytes 0x80 may follow, by the number of bytes of the character."""
_HIGH: Final = frozenset(range(0x80, 0x100))
_NOT_BY_CHARACTERS: Final = (JsonString, Label, Distinct, Shared)
"""Terms where two characters that all classes treat alike may be told apart."""


@final
class Characters:
    """A grammar over fewer characters, with how many characters each stands for.

    Beyond ASCII, characters of equal length that no class and no literal tells apart are one *kind*, and the grammar is
    rewritten so that one character stands for each kind: a grammar of names in all scripts has a few states for these
    in place of thousands.  Where a term may look at characters in other ways, or there are more kinds than stand-ins,
    nothing is rewritten.

    Replacing stand-ins independently maps the members of the new grammar onto those of the old: union, concatenation,
    repetition, intersection and complement commute with it.

    Attributes:
        grammar: the grammar over stand-ins.
        ways: the bytes that members of it may have, and the number of ways in which each is to be read: that of the
            first byte of a stand-in is how many characters it stands for.
    """

    def __init__(self, grammar: Grammar, allowed: Container[int]) -> None:
        self.grammar = grammar
        self.ways = {byte: 1 for byte in range(256) if byte in allowed}
        self._kinds: dict[int, _Kind] = {}
        high = _HIGH & self.ways.keys()
        if not high:
            self.grammar = _rewritten(grammar, _in_ascii, lambda text: text)
        elif len(high) == len(_HIGH):
            self._introduce(grammar)

    def replaced(self, text: Iterable[int], chance: random.Random) -> list[int]:
        """Return ``text`` with a character for each stand-in, drawn uniformly from those that it stands for."""
        symbols: list[int] = []
        rest = iter(text)
        for symbol in rest:
            kind = self._kinds.get(symbol)
            if kind is None:
                symbols.append(symbol)
            else:
                symbols += kind.draw(chance).encode()
                for _ in range(kind.width - 1):
                    next(rest)
        return symbols

    def _introduce(self, grammar: Grammar) -> None:
        nodes = list(postorder(grammar))
        if any(isinstance(node, _NOT_BY_CHARACTERS) for node in nodes):
            return
        if any(isinstance(node, ByteClass) and node.ranges and node.ranges[-1][1] >= 0x80 for node in nodes):
            return
        literals = {node.data for node in nodes if isinstance(node, Literal) and not node.data.isascii()}
        try:
            spelled = sorted({ord(char) for data in literals for char in data.decode() if ord(char) >= 0x80})
        except UnicodeDecodeError:
            return
        classes = {node.ranges for node in nodes if isinstance(node, CharClass)} | {((code, code),) for code in spelled}
        atoms = _atoms(classes, has_others=any(isinstance(node, Complement) for node in nodes))
        by_kind: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for low, high, width, mask in atoms:
            by_kind[width, mask].append((low, high))
        leads = {width: iter(found) for width, found in _LEADS.items()}
        stand_in: dict[tuple[int, int], int] = {}
        kinds: dict[int, _Kind] = {}
        for (width, mask), ranges in by_kind.items():
            lead = next(leads[width], None)
            if lead is None:
                return
            stand_in[width, mask] = ord(bytes([lead, *[0x80] * (width - 1)]).decode())
            kinds[lead] = _Kind(width, ranges)
        begins = [low for low, _, _, _ in atoms]

        def new_ranges(low: int, high: int) -> list[tuple[int, int]]:
            place = max(bisect_right(begins, low) - 1, 0)
            codes = set()
            while place < len(atoms) and atoms[place][0] <= high:
                first, last, width, mask = atoms[place]
                if last >= low and first >= 0x80:
                    codes.add(stand_in[width, mask])
                place += 1
            return _in_ascii(low, high) + [(code, code) for code in codes]

        def new_text(text: bytes) -> bytes:
            if text.isascii():
                return text
            return "".join(
                char if char < "\x80" else chr(new_ranges(ord(char), ord(char))[0][0]) for char in text.decode()
            ).encode()

        self.grammar = _rewritten(grammar, new_ranges, new_text)
        self._kinds = kinds
        ascii_ = {byte: 1 for byte in self.ways if byte < 0x80}
        self.ways = ascii_ | {lead: kind.count for lead, kind in kinds.items()} | {0x80: 1}


@final
class _Kind:
    """Characters of equal length that a grammar does not tell apart."""

    def __init__(self, width: int, ranges: Sequence[tuple[int, int]]) -> None:
        self.width = width
        self._ranges = ranges
        self._ends = list(accumulate(high - low + 1 for low, high in ranges))

    @property
    def count(self) -> int:
        return self._ends[-1]

    def draw(self, chance: random.Random) -> str:
        index = chance.randrange(self.count)
        place = bisect_right(self._ends, index)
        return chr(self._ranges[place][1] + 1 + index - self._ends[place])


def _in_ascii(low: int, high: int) -> list[tuple[int, int]]:
    return [(low, min(high, 0x7F))] if low < 0x80 else []


def _atoms(classes: Iterable[tuple[tuple[int, int], ...]], *, has_others: bool) -> list[tuple[int, int, int, int]]:
    """The largest ranges beyond ASCII that no class divides: first, last, bytes, and a set of classes as a number."""
    changes: dict[int, int] = defaultdict(int)
    for low, high, _ in _WIDTHS:
        changes[low] ^= 0
        changes[high + 1] ^= 0
    changes[SURROGATES[0]] ^= 0
    changes[SURROGATES[1] + 1] ^= 0
    mask = 0
    for number, ranges in enumerate(classes):
        for low, high in ranges:
            if high >= 0x80:
                changes[max(low, 0x80)] ^= 1 << number
                changes[high + 1] ^= 1 << number
    found = []
    ordered = sorted(changes)
    for low, end in pairwise(ordered):
        mask ^= changes[low]
        if (mask or has_others) and not SURROGATES[0] <= low <= SURROGATES[1]:
            width = next(width for _, last, width in _WIDTHS if low <= last)
            found.append((low, end - 1, width, mask))
    return found


def _rewritten(
    grammar: Grammar,
    new_ranges: Callable[[int, int], Iterable[tuple[int, int]]],
    new_text: Callable[[bytes], bytes],
) -> Grammar:
    """The grammar with other characters in its classes and literals, values of JSON strings and labels left aside."""
    made: dict[int, Grammar] = {}
    classes: dict[tuple[tuple[int, int], ...], CharClass] = {}
    for node in postorder(grammar, known=lambda node: isinstance(node, (JsonString, Label))):
        if isinstance(node, CharClass) and node.ranges and node.ranges[-1][1] >= 0x80:
            new = classes.get(node.ranges)
            if new is None:
                new = CharClass([each for low, high in node.ranges for each in new_ranges(low, high)])
                classes[node.ranges] = new
            made[id(node)] = new
        elif isinstance(node, Literal):
            text = new_text(node.data)
            made[id(node)] = node if text == node.data else Literal(text)
        else:
            made[id(node)] = with_children(node, [made.get(id(child), child) for child in node.children])
    return made.get(id(grammar), grammar)
