"""Whether a given text belongs to a regular term: for names against patterns, and constants against everything.

Sets of positions are pushed through the term from the left, as in a simulation of its automaton; a set is an
``int`` whose bit ``i`` stands for byte offset ``i``.  Only below an intersection or a complement does each start
need a run of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import lru_cache
from typing import TypeAlias

from structgen.grammar.json_schema.trampoline import run
from structgen.grammar.nodes import (
    ByteClass,
    CharClass,
    Choice,
    Complement,
    Grammar,
    Intersection,
    Literal,
    Repeat,
    Sequence,
    Shared,
)

__all__ = ["belongs", "members"]

_Ends: TypeAlias = Generator[object, int, int]


@lru_cache(maxsize=8192)
def belongs(text: str, language: Grammar) -> bool:
    """Whether ``text`` is a member of the regular term ``language``.

    Complexity: at most O(nodes * len(text) ** 2), usually O(nodes * len(text)).

    >>> from structgen.grammar.nodes import ANY_CHAR, Repeat, literal
    >>> belongs("\N{EURO SIGN}x", literal("\N{EURO SIGN}") + Repeat(ANY_CHAR, 1, 2))
    True
    """
    data = text.encode("utf-8", "surrogatepass")
    return bool(run(_ends(language, 1, _Text(data))) >> len(data) & 1)


def members(texts: frozenset[str], language: Grammar) -> frozenset[str]:
    """Those of ``texts`` that are members of the regular term ``language``."""
    if isinstance(language, Literal):
        return texts & {language.data.decode("utf-8", "surrogatepass")}
    return frozenset(text for text in texts if belongs(text, language))


class _Text:
    """The bytes to match, and where their characters begin."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if data.isascii():
            self.starts = (1 << len(data) + 1) - 1
            self.characters = {offset: (byte, offset + 1) for offset, byte in enumerate(data)}
        else:
            self.starts = sum(1 << i for i, byte in enumerate(data) if byte & 0xC0 != 0x80) | 1 << len(data)
            self.characters = _code_points(data)


def _code_points(data: bytes) -> dict[int, tuple[int, int]]:
    """Offset of a character to its code point and the offset of the next."""
    points: dict[int, tuple[int, int]] = {}
    offset = 0
    for character in data.decode("utf-8", "surrogatepass"):
        end = offset + len(character.encode("utf-8", "surrogatepass"))
        points[offset] = ord(character), end
        offset = end
    return points


def _ends(term: Grammar, starts: int, text: _Text) -> _Ends:
    """Yield sub-problems to the trampoline; return where matches that begin in ``starts`` can end."""
    if not starts:
        return 0
    match term:
        case Literal(data=data):
            return sum(1 << i + len(data) for i in _bits(starts) if text.data.startswith(data, i))
        case CharClass(ranges=ranges):
            return sum(1 << end for i in _bits(starts) for end in _character_end(text, i, ranges))
        case ByteClass(ranges=ranges):
            return sum(1 << i + 1 for i in _bits(starts) if i < len(text.data) and _within(text.data[i], ranges))
        case Sequence(items=items):
            for item in items:
                starts = yield _ends(item, starts, text)
            return starts
        case Choice(items=items):
            found = 0
            for item in items:
                found |= yield _ends(item, starts, text)
            return found
        case Repeat():
            return (yield _repeated(term, starts, text))
        case Shared(item=item):
            return (yield _ends(item, starts, text))
        case Intersection() | Complement():
            return (yield _combined(term, starts, text))
    raise TypeError(f"{type(term).__name__} is not a regular term over text")


def _repeated(term: Repeat, starts: int, text: _Text) -> _Ends:
    for _ in range(min(term.min, len(text.data) + 1)):  # more rounds than bytes change nothing
        starts = yield _ends(term.item, starts, text)
    reached, fresh = starts, starts
    rounds = 0
    while fresh and (term.max is None or rounds < term.max - term.min):
        fresh = (yield _ends(term.item, fresh, text)) & ~reached
        reached |= fresh
        rounds += 1
    return reached


def _combined(term: Intersection | Complement, starts: int, text: _Text) -> _Ends:
    found = 0
    for start in _bits(starts & text.starts):
        later = text.starts >> start << start
        if isinstance(term, Complement):
            found |= later & ~(yield _ends(term.item, 1 << start, text))
            continue
        common = later
        for item in term.items:
            common &= yield _ends(item, 1 << start, text)
        found |= common
    return found


def _bits(positions: int) -> list[int]:
    if positions & (positions - 1) == 0:
        return [positions.bit_length() - 1] if positions else []
    return [i for i in range(positions.bit_length()) if positions >> i & 1]


def _character_end(text: _Text, offset: int, ranges: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    point, end = text.characters.get(offset, (-1, -1))
    return (end,) if _within(point, ranges) else ()


def _within(value: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    return any(low <= value <= high for low, high in ranges)
