"""The regexps of a lexer as trees, read by the parser of ``re`` itself, and their characters as sets of bits.

Only regexps for which a finite automaton suffices are supported: the usual operators, look-ahead and look-behind at
one character, and word boundaries.  The order of alternatives and the greediness of repetitions are kept, because they
decide which match ``re`` finds.

Characters that the terminals of a grammar treat alike are one *letter*; a class is an integer with one bit for each of
its letters.  One more bit, ``end``, is the end of the input.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from re import _constants as sre, _parser
from typing import Any, Final, TypeAlias

from structgen.frontends.lark.lalr import bits
from structgen.frontends.regex.code_point import (
    ALL,
    ASCII_DIGIT,
    ASCII_SPACE,
    ASCII_WORD,
    CaseRule,
    Ranges,
    close_under_case,
    complement,
    decimal_digits,
    python_space,
    python_word,
    union,
)
from structgen.grammar.algebra import either, joined
from structgen.grammar.nodes import MAX_CODE_POINT, SURROGATES, CharClass, Grammar, Repeat, literal

__all__ = [
    "Alternatives",
    "CharacterSet",
    "LetterAlphabet",
    "LookAhead",
    "LookBehind",
    "Loop",
    "PatternRefusal",
    "Series",
    "Tree",
    "character",
    "classes_of",
    "read_pattern",
    "term_of",
]


class PatternRefusal(Exception):
    """A pattern that no finite automaton matches as ``re`` does, or whose look-around is too long."""

    def __init__(self, feature: str, problem: str, terminal: str = "") -> None:
        super().__init__(problem)
        self.feature = feature
        self.problem = problem
        self.terminal = terminal


@dataclass(frozen=True, slots=True)
class CharacterSet:
    """One character of a class."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class LookAhead:
    """The next character is of a class, or the text ends if ``at_end``."""

    ranges: Ranges
    at_end: bool


@dataclass(frozen=True, slots=True)
class LookBehind:
    """The last character is of a class."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Series:
    """A concatenation."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The first of the items that leads to a match."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """``item`` from ``min`` to ``max`` times, as often as possible if ``is_greedy``, else as few as possible."""

    item: Tree
    min: int
    max: int | None
    is_greedy: bool


Tree: TypeAlias = CharacterSet | LookAhead | LookBehind | Series | Alternatives | Loop

_NOT_NEWLINE: Final = complement(((0x0A, 0x0A),))
_FLAGS: Final = re.IGNORECASE | re.DOTALL | re.ASCII | re.UNICODE | re.MULTILINE | re.VERBOSE


def read_pattern(pattern: str) -> Tree:
    """Return the tree of a regexp that ``re`` compiles.

    Raises:
        PatternRefusal: the regexp needs more than a finite automaton.
        re.error: the regexp is malformed.
        RecursionError: the regexp is nested too deeply for ``re``.
    """
    parsed = _parser.parse(pattern)
    return _series(parsed, int(parsed.state.flags))


def _series(items: Any, flags: int) -> Tree:
    found = [_item(op, argument, flags) for op, argument in items]
    return found[0] if len(found) == 1 else Series(tuple(found))


def _item(op: Any, argument: Any, flags: int) -> Tree:
    if op in {sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN}:
        return CharacterSet(_class(op, argument, flags))
    if op is sre.BRANCH:
        return Alternatives(tuple(_series(branch, flags) for branch in argument[1]))
    if op is sre.SUBPATTERN:
        _, added, removed, inner = argument
        return _series(inner, (flags | added) & ~removed)
    if op in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
        low, high, inner = argument
        maximum = None if high == sre.MAXREPEAT else int(high)
        return Loop(_series(inner, flags), int(low), maximum, op is sre.MAX_REPEAT)
    if op in {sre.ASSERT, sre.ASSERT_NOT}:
        return _assertion(op, argument, flags)
    if op is sre.AT:
        return _position(argument, flags)
    if op in {sre.GROUPREF, sre.GROUPREF_EXISTS}:
        raise PatternRefusal("back-reference", "a back-reference needs more than a finite automaton")
    raise PatternRefusal("atomic group", "possessive repetitions and atomic groups are not supported")


def _assertion(op: Any, argument: Any, flags: int) -> Tree:
    direction, inner = argument
    name = "look-ahead" if direction > 0 else "look-behind"
    if len(inner) == 0 and op is sre.ASSERT_NOT:
        return Alternatives(())
    try:
        tree = _series(inner, flags)
    except PatternRefusal:
        tree = Series(())
    ranges = _one_character(tree)
    if ranges is None:
        raise PatternRefusal(name, f"a {name} at anything but one character is not supported")
    if op is sre.ASSERT:
        return LookAhead(ranges, at_end=False) if direction > 0 else LookBehind(ranges)
    return LookAhead(complement(ranges), at_end=True) if direction > 0 else LookBehind(complement(ranges))


def _one_character(tree: Tree) -> Ranges | None:
    if isinstance(tree, CharacterSet):
        return tree.ranges
    if isinstance(tree, Alternatives) and tree.items:
        found = [_one_character(item) for item in tree.items]
        if all(ranges is not None for ranges in found):
            return union(*(ranges for ranges in found if ranges is not None))
    return None


def _position(where: Any, flags: int) -> Tree:
    if where in {sre.AT_BOUNDARY, sre.AT_NON_BOUNDARY}:
        word = ASCII_WORD if flags & re.ASCII else python_word()
        other = complement(word)
        inside = Series((LookBehind(word), LookAhead(word, at_end=False)))
        outside = Series((LookBehind(other), LookAhead(other, at_end=True)))
        leaves = Series((LookBehind(word), LookAhead(other, at_end=True)))
        enters = Series((LookBehind(other), LookAhead(word, at_end=False)))
        return Alternatives((leaves, enters) if where is sre.AT_BOUNDARY else (inside, outside))
    if where is sre.AT_END_STRING:
        return LookAhead((), at_end=True)
    if where is sre.AT_END and flags & re.MULTILINE:
        return LookAhead(((0x0A, 0x0A),), at_end=True)
    sign = "$" if where is sre.AT_END else "^"
    raise PatternRefusal("anchor", f"the anchor {sign} looks at the text beside its terminal")


def _class(op: Any, argument: Any, flags: int) -> Ranges:
    if op is sre.ANY:
        return ALL if flags & re.DOTALL else _NOT_NEWLINE
    if op is not sre.IN:
        ranges = _caseless(((argument, argument),), flags)
        return complement(ranges) if op is sre.NOT_LITERAL else ranges
    characters: list[tuple[int, int]] = []
    categories: list[Ranges] = []
    is_negated = False
    for kind, value in argument:
        if kind is sre.NEGATE:
            is_negated = True
        elif kind is sre.LITERAL:
            characters.append((value, value))
        elif kind is sre.RANGE:
            characters.append(value)
        else:
            categories.append(_category(value, flags))  # these regard case: U+0345 is no word character, iota is
    ranges = union(_caseless(union(characters), flags), *categories)
    return complement(ranges) if is_negated else ranges


def _caseless(ranges: Ranges, flags: int) -> Ranges:
    if not flags & re.IGNORECASE:
        return ranges
    return close_under_case(ranges, CaseRule.ASCII if flags & re.ASCII else CaseRule.PYTHON)


def _category(name: Any, flags: int) -> Ranges:
    is_ascii = bool(flags & re.ASCII)
    match name:
        case sre.CATEGORY_DIGIT | sre.CATEGORY_NOT_DIGIT:
            ranges = ASCII_DIGIT if is_ascii else decimal_digits()
        case sre.CATEGORY_SPACE | sre.CATEGORY_NOT_SPACE:
            ranges = ASCII_SPACE if is_ascii else python_space()
        case _:
            ranges = ASCII_WORD if is_ascii else python_word()
    return complement(ranges) if "NOT" in str(name) else ranges


def classes_of(tree: Tree) -> list[Ranges]:
    """Return the character classes of a tree."""
    found: list[Ranges] = []
    stack = [tree]
    while stack:
        part = stack.pop()
        match part:
            case CharacterSet() | LookAhead() | LookBehind():
                found.append(part.ranges)
            case Series() | Alternatives():
                stack.extend(part.items)
            case Loop():
                stack.append(part.item)
    return found


def character(ranges: Ranges) -> Grammar:
    """Return the term of one character of a class."""
    is_single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return literal(chr(ranges[0][0])) if is_single else CharClass(ranges)


def term_of(tree: Tree) -> Grammar | None:
    """Return the term of the strings that a tree matches as a whole; None if it has look-around."""
    match tree:
        case CharacterSet():
            return character(tree.ranges)
        case LookAhead() | LookBehind():
            return None
        case Loop():
            item = term_of(tree.item)
            return None if item is None else Repeat(item, tree.min, tree.max)
        case _:
            parts = [term_of(item) for item in tree.items]
            terms = [part for part in parts if part is not None]
            if len(terms) < len(parts):
                return None
            return joined(terms) if isinstance(tree, Series) else either(terms)


class LetterAlphabet:
    """The letters of a grammar.

    Attributes:
        size: the number of letters.
        end: the bit of the end of the text.
        all: the bits of all letters and of the end.
    """

    def __init__(self, classes: Iterable[Ranges]) -> None:
        """Divide the characters by ``classes``.

        Complexity: O(n log n + n k) for n ranges in all and at most k overlapping classes.
        """
        distinct = list(dict.fromkeys(classes))
        events: dict[int, list[int]] = {0: [], MAX_CODE_POINT + 1: []}
        for index, ranges in enumerate([*distinct, (SURROGATES,)]):
            for low, high in ranges:
                events.setdefault(low, []).append(index)
                events.setdefault(high + 1, []).append(index)
        points = sorted(events)
        letters: dict[frozenset[int], list[tuple[int, int]]] = {}
        inside: set[int] = set()
        for low, following in pairwise(points):
            inside.symmetric_difference_update(events[low])
            if len(distinct) not in inside:  # no text has surrogates
                letters.setdefault(frozenset(inside), []).append((low, following - 1))
        self._ranges = [union(ranges) for ranges in letters.values()]
        self.size = len(self._ranges)
        self.end = 1 << self.size
        self.all = (self.end << 1) - 1
        self._masks = dict.fromkeys(distinct, 0)
        for letter, key in enumerate(letters):
            for index in key:
                self._masks[distinct[index]] |= 1 << letter
        self._terms: dict[int, Grammar] = {}

    def mask(self, ranges: Ranges) -> int:
        """Return the bits of a class that the alphabet was made with."""
        return self._masks[ranges]

    def term(self, mask: int) -> Grammar:
        """Return the term of one character of the letters of ``mask``."""
        found = self._terms.get(mask)
        if found is None:
            pairs = [pair for letter in bits(mask & ~self.end) for pair in self._ranges[letter]]
            found = self._terms[mask] = character(union(pairs))
        return found
