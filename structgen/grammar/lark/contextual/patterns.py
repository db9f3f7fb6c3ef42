"""The regexps of a lexer as trees, read by the parser of ``re`` itself.

Only what a finite automaton can do is taken: beside the usual operators a look-ahead or look-behind at one character
and word boundaries.  The order of alternatives and the greed of repetitions are kept, for they decide which match
``re`` finds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from re import _constants as sre
from re import _parser
from typing import Any, Final, TypeAlias

from structgen.grammar.algebra import either, joined
from structgen.grammar.nodes import CharClass, Grammar, Repeat, literal
from structgen.grammar.regex.caseless import CaseRule, close_under_case
from structgen.grammar.regex.ranges import ALL, Ranges, complement, union
from structgen.grammar.regex.unicode_class import (
    ASCII_DIGIT,
    ASCII_SPACE,
    ASCII_WORD,
    decimal_digits,
    python_space,
    python_word,
)

__all__ = [
    "Alternatives",
    "Behind",
    "Char",
    "Look",
    "Loop",
    "Refusal",
    "Series",
    "Tree",
    "character",
    "classes_of",
    "read",
    "term_of",
]


class Refusal(Exception):
    """A pattern that no finite automaton matches as ``re`` does, or that looks further than is followed here."""

    def __init__(self, feature: str, problem: str, terminal: str = "") -> None:
        super().__init__(problem)
        self.feature = feature
        self.problem = problem
        self.terminal = terminal


@dataclass(frozen=True, slots=True)
class Char:
    """One character of a class."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Look:
    """The next character is of a class, or the text ends where ``at_end``."""

    ranges: Ranges
    at_end: bool


@dataclass(frozen=True, slots=True)
class Behind:
    """The last character is of a class."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Series:
    """The items one after the other."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Alternatives:
    """The first of the items that leads to a match."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """``item`` from ``min`` to ``max`` times, as often as possible where ``is_greedy``, else as rarely."""

    item: Tree
    min: int
    max: int | None
    is_greedy: bool


Tree: TypeAlias = Char | Look | Behind | Series | Alternatives | Loop

_NOT_NEWLINE: Final = complement(((0x0A, 0x0A),))
_FLAGS: Final = re.IGNORECASE | re.DOTALL | re.ASCII | re.UNICODE | re.MULTILINE | re.VERBOSE


def read(pattern: str) -> Tree:
    """Return the tree of a regexp that ``re`` compiles.

    Raises:
        Refusal: it needs more than a finite automaton.
        re.error: it is malformed.
        RecursionError: it is nested too deeply for ``re``.
    """
    parsed = _parser.parse(pattern)
    return _series(parsed, int(parsed.state.flags))


def _series(items: Any, flags: int) -> Tree:
    found = [_item(op, argument, flags) for op, argument in items]
    return found[0] if len(found) == 1 else Series(tuple(found))


def _item(op: Any, argument: Any, flags: int) -> Tree:
    if op in {sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN}:
        return Char(_class(op, argument, flags))
    if op is sre.BRANCH:
        return Alternatives(tuple(_series(branch, flags) for branch in argument[1]))
    if op is sre.SUBPATTERN:
        _, added, removed, inner = argument
        return _series(inner, (flags | added) & ~removed)
    if op in {sre.MAX_REPEAT, sre.MIN_REPEAT}:
        low, high, inner = argument
        most = None if high == sre.MAXREPEAT else int(high)
        return Loop(_series(inner, flags), int(low), most, op is sre.MAX_REPEAT)
    if op in {sre.ASSERT, sre.ASSERT_NOT}:
        return _assertion(op, argument, flags)
    if op is sre.AT:
        return _position(argument, flags)
    if op in {sre.GROUPREF, sre.GROUPREF_EXISTS}:
        raise Refusal("back-reference", "a back-reference needs more than a finite automaton")
    raise Refusal("atomic group", "possessive repetitions and atomic groups are not followed")


def _assertion(op: Any, argument: Any, flags: int) -> Tree:
    direction, inner = argument
    name = "look-ahead" if direction > 0 else "look-behind"
    if len(inner) == 0 and op is sre.ASSERT_NOT:
        return Alternatives(())
    try:
        tree = _series(inner, flags)
    except Refusal:
        tree = Series(())
    ranges = _one_character(tree)
    if ranges is None:
        raise Refusal(name, f"a {name} at anything but one character is not followed")
    if op is sre.ASSERT:
        return Look(ranges, at_end=False) if direction > 0 else Behind(ranges)
    return Look(complement(ranges), at_end=True) if direction > 0 else Behind(complement(ranges))


def _one_character(tree: Tree) -> Ranges | None:
    if isinstance(tree, Char):
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
        inside = Series((Behind(word), Look(word, at_end=False)))
        outside = Series((Behind(other), Look(other, at_end=True)))
        leaves = Series((Behind(word), Look(other, at_end=True)))
        enters = Series((Behind(other), Look(word, at_end=False)))
        return Alternatives((leaves, enters) if where is sre.AT_BOUNDARY else (inside, outside))
    if where is sre.AT_END_STRING:
        return Look((), at_end=True)
    if where is sre.AT_END and flags & re.MULTILINE:
        return Look(((0x0A, 0x0A),), at_end=True)
    sign = "$" if where is sre.AT_END else "^"
    raise Refusal("anchor", f"the anchor {sign} looks at the text beside its terminal")


def _class(op: Any, argument: Any, flags: int) -> Ranges:
    if op is sre.ANY:
        return ALL if flags & re.DOTALL else _NOT_NEWLINE
    if op is not sre.IN:
        ranges = _caseless(((argument, argument),), flags)
        return complement(ranges) if op is sre.NOT_LITERAL else ranges
    parts: list[Ranges] = []
    is_negated = False
    for kind, value in argument:
        if kind is sre.NEGATE:
            is_negated = True
        elif kind is sre.LITERAL:
            parts.append(((value, value),))
        elif kind is sre.RANGE:
            parts.append(((value[0], value[1]),))
        else:
            parts.append(_category(value, flags))
    ranges = _caseless(union(*parts), flags)
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
    """The classes of characters that a tree tells apart."""
    found: list[Ranges] = []
    stack = [tree]
    while stack:
        part = stack.pop()
        match part:
            case Char() | Look() | Behind():
                found.append(part.ranges)
            case Series() | Alternatives():
                stack.extend(part.items)
            case Loop():
                stack.append(part.item)
    return found


def character(ranges: Ranges) -> Grammar:
    """One character of a class."""
    is_single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return literal(chr(ranges[0][0])) if is_single else CharClass(ranges)


def term_of(tree: Tree) -> Grammar | None:
    """All texts that a tree matches from end to end; ``None`` if it looks beside itself."""
    match tree:
        case Char():
            return character(tree.ranges)
        case Look() | Behind():
            return None
        case Loop():
            item = term_of(tree.item)
            return None if item is None else Repeat(item, tree.min, tree.max)
        case _:
            parts = [term_of(item) for item in tree.items]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            return joined(known) if isinstance(tree, Series) else either(known)
