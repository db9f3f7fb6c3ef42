"""Matching without regard to case, as an equivalence of characters.

Two characters match each other when they are in one *orbit*; a class matches without regard to case when it is
closed under orbits.  There are three equivalences:

* ``PYTHON``: characters with the same simple lower case, joined where lower cases share their upper case.  This is
  what ``re.IGNORECASE`` does for ``str`` patterns: it takes in U+0130 and U+0131 with ``i``, U+017F with ``s``.
* ``ASCII``: the 26 letters only (``re.ASCII``).
* ``SIMPLE``: simple case folding of ``CaseFolding.txt`` (statuses C and S), which ECMA-262 (with ``u``) and Rust
  use.  ``unicodedata`` has full folding only, from which the simple one is derived.
"""

from __future__ import annotations

import unicodedata
from enum import Enum
from functools import lru_cache
from typing import Final

from structgen.grammar.regex.ranges import Ranges, contains, union

__all__ = ["CaseRule", "close_under_case"]


class CaseRule(Enum):
    """Which characters count as the same letter."""

    PYTHON = "python"
    ASCII = "ascii"
    SIMPLE = "simple"


_LAST_CASED: Final = 0x1FFFF
_SIMPLE_SINCE_15_1: Final = {0x1FD3: 0x390, 0x1FE3: 0x3B0, 0xFB05: 0xFB06}


@lru_cache(maxsize=1024)
def close_under_case(ranges: Ranges, rule: CaseRule) -> Ranges:
    """``ranges`` with every character that equals one of them under ``rule``.

    Complexity: one look-up for each of some 1,400 orbits.
    """
    if rule is CaseRule.ASCII:
        return _close_ascii(ranges)
    table = _orbits(rule)
    if sum(high - low + 1 for low, high in ranges) <= len(table.members):
        points = [point for low, high in ranges for point in range(low, high + 1) if point in table.members]
        added = {other for point in points for other in table.members[point]}
    else:
        added = {other for orbit in table.orbits if any(contains(ranges, point) for point in orbit) for other in orbit}
    return union(ranges, ((point, point) for point in added)) if added else ranges


def _close_ascii(ranges: Ranges) -> Ranges:
    added = [(point ^ 0x20, point ^ 0x20) for point in _ASCII_LETTERS if contains(ranges, point)]
    return union(ranges, added)


_ASCII_LETTERS: Final = (*range(0x41, 0x5B), *range(0x61, 0x7B))


class _Orbits:
    """All orbits of two characters and more, and the orbit of each character in one."""

    __slots__ = ("members", "orbits")

    def __init__(self, orbits: list[tuple[int, ...]]) -> None:
        self.orbits = orbits
        self.members = {point: orbit for orbit in orbits for point in orbit}


@lru_cache(maxsize=2)
def _orbits(rule: CaseRule) -> _Orbits:
    key_of = _python_key if rule is CaseRule.PYTHON else _simple_fold
    groups: dict[str, set[int]] = {}
    for character in map(chr, range(_LAST_CASED + 1)):
        key = key_of(character)
        if key != character:
            groups.setdefault(key, set()).add(ord(character))
            if len(key) == 1:
                groups[key].add(ord(key))
    return _Orbits([tuple(sorted(group)) for group in groups.values() if len(group) > 1])


def _python_key(character: str) -> str:
    # The first character of a full mapping is the simple one for U+0130, the only character whose full lower case
    # is longer than one.
    return character.lower()[0].upper()


def _simple_fold(character: str) -> str:
    if _HAS_15_1 and ord(character) in _SIMPLE_SINCE_15_1:
        return chr(_SIMPLE_SINCE_15_1[ord(character)])
    folded = character.casefold()
    if len(folded) == 1:
        return folded
    # A full folding of several characters has a simple one beside it exactly where a simple lower case exists
    # (U+1E9E, U+1F88 ...).
    lower = character.lower()
    return lower if len(lower) == 1 else character


_HAS_15_1: Final = tuple(int(part) for part in unicodedata.unidata_version.split(".")) >= (15, 1)
