"""The meaning of characters in a pattern: bracketed classes ``[...]``, and a lexicon for each set of flags.

A bracketed class is read into a set of code points. The lexicon maps single characters and short escapes to terms; it
is made once for each set of flags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.regex.code_point import (
    ALL,
    NONE,
    CaseRule,
    Ranges,
    close_under_case,
    complement,
    difference,
    intersection,
    ranges_bytes,
    symmetric_difference,
    union,
)
from structgen.frontends.regex.dialect import DIALECTS, LARK, Dialect, Flag, malformed, refused
from structgen.frontends.regex.escape import Scalar, read_escape, skip_space
from structgen.frontends.regex.syntax import ANYTHING, Boundary, Side
from structgen.grammar.nodes import CharClass, Grammar
from structgen.memory_cache import TERMS, cached

__all__ = ["Lexicon", "lexicon", "read_class"]

_MEMBERS: Final = re.compile(r"[^\\\[\]&~\s#-]+")
_POSIX: Final = re.compile(r"\[([:=.])(\^?)([A-Za-z]+)\1\]")
_OPERATORS: Final = {"&&": intersection, "--": difference, "~~": symmetric_difference}

_ALPHA: Final[Ranges] = ((0x41, 0x5A), (0x61, 0x7A))
_POSIX_CLASSES: Final[dict[str, Ranges]] = {
    "alnum": ((0x30, 0x39), *_ALPHA),
    "alpha": _ALPHA,
    "ascii": ((0, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0, 0x1F), (0x7F, 0x7F)),
    "digit": ((0x30, 0x39),),
    "graph": ((0x21, 0x7E),),
    "lower": ((0x61, 0x7A),),
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": ((0x41, 0x5A),),
    "word": ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)),
    "xdigit": ((0x30, 0x39), (0x41, 0x46), (0x61, 0x66)),
}


@dataclass(slots=True, eq=False)
class _Level:
    """An open bracket and its content so far."""

    start: int
    negated: bool
    members: list[tuple[int, int]] = field(default_factory=list)
    classes: list[tuple[int, int]] = field(default_factory=list)
    left: Ranges = NONE
    operator: str = ""


def read_class(
    text: str, start: int, dialect: Dialect, flags: Flag, *, max_nesting: int, depth: int = 0
) -> tuple[Ranges, int]:
    """Read the class whose bracket is ``text[start]``; return its code points and the offset after it.

    ``max_nesting`` is the limit on the nesting of groups and classes, ``depth`` the number of open groups.

    Raises:
        GrammarSyntaxError: the class is not closed, or holds a bad range or escape.
        UnsupportedFeature: a POSIX class in a dialect without them, or an unsupported property.
        LimitExceeded: groups and classes nest more than ``max_nesting`` deep.

    Complexity: linear in the length of the class, except for sorting its members.
    """
    return _ClassReader(text, dialect, flags, max_nesting, depth).read(start)


class _ClassReader:
    __slots__ = ("depth", "dialect", "flags", "index", "levels", "max_nesting", "rule", "skips_space", "text")

    def __init__(self, text: str, dialect: Dialect, flags: Flag, max_nesting: int, depth: int) -> None:
        self.text = text
        self.dialect = dialect
        self.flags = flags
        self.max_nesting = max_nesting
        self.depth = depth
        self.rule: CaseRule | None = dialect.rule_of_case(flags)
        self.skips_space = dialect.verbose_everywhere and bool(flags & Flag.VERBOSE)
        self.levels: list[_Level] = []
        self.index = 0

    def read(self, start: int) -> tuple[Ranges, int]:
        self.index = start
        self._open()
        while True:
            self._skip_space()
            character = self._current()
            if character == "]":
                self.index += 1
                ranges = self._closed(self.levels.pop())
                if not self.levels:
                    return ranges, self.index
                self.levels[-1].classes.extend(ranges)
            elif character == "[":
                self._bracket()
            elif self.dialect.has_set_operations and self.text[self.index : self.index + 2] in _OPERATORS:
                self._operator()
            else:
                self._members()

    def _current(self) -> str:
        if self.index >= len(self.text):
            start = self.levels[0].start
            raise malformed(self.text, (start, start + 1), "unclosed class", "add ']' or write \\[")
        return self.text[self.index]

    def _skip_space(self) -> None:
        if self.skips_space:
            self.index = skip_space(self.text, self.index, self.dialect)

    def _open(self) -> None:
        if self.depth + len(self.levels) >= self.max_nesting:
            raise LimitExceeded(
                "regex", limit="nesting", maximum=self.max_nesting, evidence=f"classes nest at character {self.index}"
            )
        level = _Level(self.index, negated=False)
        self.index += 1
        self._skip_space()
        self.levels.append(level)
        if self.text.startswith("^", self.index):
            level.negated = True
            self.index += 1
            self._skip_space()
        if not self.dialect.leading_bracket_is_literal:
            return
        while self.dialect.has_set_operations and self.text.startswith("-", self.index):
            level.members.append((0x2D, 0x2D))
            self.index += 1
            self._skip_space()
        if not level.members and self.text.startswith("]", self.index):
            self._range_from(0x5D, self.index, self.index + 1)

    def _bracket(self) -> None:
        posix = _POSIX.match(self.text, self.index)
        name = posix.group(3) if posix else ""
        if not self.dialect.has_set_operations:
            if posix is not None and name in _POSIX_CLASSES:
                raise refused(
                    self.text,
                    posix.span(),
                    f"POSIX class {posix.group()}",
                    "write its characters out, or escape the bracket to mean it: \\[",
                    reason=f"is not part of the {self.dialect.title} dialect",
                )
            self._range_from(0x5B, self.index, self.index + 1)
        elif posix is not None and posix.group(1) == ":" and name in _POSIX_CLASSES:
            ranges = self._close_case(_POSIX_CLASSES[name])
            self.levels[-1].classes.extend(complement(ranges) if posix.group(2) else ranges)
            self.index = posix.end()
        else:
            self._open()

    def _operator(self) -> None:
        level = self.levels[-1]
        level.left = self._operand(level)
        level.operator = self.text[self.index : self.index + 2]
        level.members, level.classes = [], []
        self.index += 2

    def _members(self) -> None:
        """Read plain members up to one that may begin a range, and that range."""
        run = _MEMBERS.match(self.text, self.index)
        if run is not None and run.end() - run.start() > 1:
            points = set(map(ord, run.group()[:-1]))
            self.levels[-1].members.extend((point, point) for point in points)
            self.index = run.end() - 1
        start = self.index
        first, after = self._scalar(start)
        self._range_from(first, start, after)

    def _scalar(self, start: int) -> tuple[Scalar, int]:
        if self.text[start] == "\\":
            return read_escape(self.text, start, self.dialect, self.flags, in_class=True)
        return ord(self.text[start]), start + 1

    def _range_from(self, first: Scalar, start: int, after: int) -> None:
        """Add ``first``, or the range that begins with it."""
        self.index = after
        self._skip_space()
        if not self._hyphen_makes_range():
            self._add(first)
            return
        hyphen = self.index
        self.index += 1
        self._skip_space()
        self._current()
        last, self.index = self._scalar(self.index)
        span = (start, self.index)
        if isinstance(first, int) and isinstance(last, int):
            if first > last:
                raise malformed(
                    self.text, span, f"the range {self.text[start : self.index]} runs backwards", "swap its ends"
                )
            self.levels[-1].members.append((first, last))
        elif self.dialect.class_in_range_is_literal:
            self._add(first)
            self._add(ord("-"))
            self._add(last)
        else:
            raise malformed(
                self.text, span, "a range runs from one character to another", f"escape the hyphen at {hyphen}: \\-"
            )

    def _hyphen_makes_range(self) -> bool:
        text, index = self.text, self.index
        if not text.startswith("-", index):
            return False
        following = text[index + 1 : index + 2]
        if self.dialect.has_set_operations and following == "-":
            return False
        return following != "]"

    def _add(self, scalar: Scalar) -> None:
        level = self.levels[-1]
        if isinstance(scalar, int):
            level.members.append((scalar, scalar))
        else:
            level.classes.extend(scalar)

    def _close_case(self, ranges: Ranges) -> Ranges:
        return ranges if self.rule is None else close_under_case(ranges, self.rule)

    def _operand(self, level: _Level) -> Ranges:
        """The set of the members so far, combined with the operator before them."""
        if self.dialect.case_applies_to_classes:
            ranges = self._close_case(union(level.members, level.classes))
        else:
            ranges = union(self._close_case(union(level.members)), level.classes)
        if level.operator:
            ranges = _OPERATORS[level.operator](level.left, ranges)
        return ranges

    def _closed(self, level: _Level) -> Ranges:
        ranges = self._operand(level)
        return complement(ranges) if level.negated else ranges


_Item = str | Grammar
_MAX_CACHED_CLASS = 256

_AT_EDGE = Side(at_edge=True, characters=NONE)


class _Letters(dict[str, _Item]):
    """The terms of literal characters, made on first use."""

    __slots__ = ("_lexicon",)

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    def __missing__(self, character: str) -> _Item:
        item = self._lexicon.character(ord(character))
        self[character] = item
        return item


class Lexicon:
    r"""The reading of characters in one dialect under one set of flags.

    Attributes:
        ordinary: matches a run of literal characters.
        group_marks: the characters after a parenthesis that make it a special group.
        letters: literal character -> term.
        short_escapes: letter after a backslash -> term, for the escapes of one letter used so far.
        dot: the term of ``.``.
        is_caseless: whether case is ignored.
        caret: the assertion ``^``.
        dollar: the assertion ``$``.
    """

    def __init__(self, dialect: Dialect, flags: Flag) -> None:
        self.dialect = dialect
        self.flags = flags
        skipped = re.escape(dialect.verbose_space) + "#" if flags & Flag.VERBOSE else ""
        self.ordinary = re.compile(rf"[^\\^$.|?*+(){{\[{skipped}]+")
        # A class without inner brackets ends at its first unescaped closing one.
        self._simple_class = re.compile(r"\[\^?(?:[^\\\[\]^]|\\.)(?:[^\\\[\]]|\\.)*\]", re.DOTALL)
        self.dot = CharClass(ALL if flags & Flag.DOT_ALL else complement(dialect.newline))
        self.is_caseless = bool(flags & Flag.IGNORE_CASE)
        start, end = _AT_EDGE, Side(at_edge=True, characters=NONE, last_newline=dialect.end_before_last_newline)
        if flags & Flag.MULTILINE:
            start = end = Side(at_edge=True, characters=dialect.newline)
        self.caret = Boundary(((start, ANYTHING),))
        self.dollar = Boundary(((ANYTHING, end),))
        spaced = dialect.verbose_everywhere and flags & Flag.VERBOSE
        self.group_marks = frozenset("?*#" + dialect.verbose_space if spaced else "?*")
        self.letters = _Letters(self)
        self.short_escapes: dict[str, _Item] = {}
        self._boundaries: dict[str, Boundary] = {}

    def item(self, scalar: Scalar) -> _Item:
        """The term of a code point or a class; a single character is text, and surrogates match nothing."""
        if isinstance(scalar, int):
            scalar = ((scalar, scalar),)
        if len(scalar) == 1 and scalar[0][0] == scalar[0][1] and not 0xD800 <= scalar[0][0] <= 0xDFFF:
            return chr(scalar[0][0])
        return CharClass(scalar) if len(scalar) < _MANY_RANGES else _class_of(scalar)

    def escape(self, text: str, start: int) -> tuple[_Item, int]:
        """The term of the escape at ``start`` outside a class, and the offset after it."""
        scalar, end = read_escape(text, start, self.dialect, self.flags, in_class=False)
        item = self.character(scalar) if isinstance(scalar, int) else self.item(scalar)
        letter = text[start + 1]
        if end == start + 2 and letter.isascii() and not letter.isdigit():
            self.short_escapes[letter] = item
        return item, end

    def character(self, point: int) -> _Item:
        """The term of a code point, under the case flag."""
        rule = self.dialect.rule_of_case(self.flags)
        return self.item(point if rule is None else close_under_case(((point, point),), rule))

    def bracketed(self, text: str, start: int, *, max_nesting: int, depth: int) -> tuple[_Item, int]:
        """The term of the class at ``start``, and the offset after it."""
        simple = self._simple_class.match(text, start, start + _MAX_CACHED_CLASS)
        if simple is not None:
            known = _cached_class(simple.group(), self.dialect.name, self.flags)
            if known is not None:
                return known, simple.end()
        ranges, end = read_class(text, start, self.dialect, self.flags, max_nesting=max_nesting, depth=depth)
        return self.item(ranges), end

    def _word(self) -> Ranges:
        word = self.dialect.class_ranges("w", self.flags)
        rule = self.dialect.rule_of_case(self.flags)
        if rule is not None and self.dialect.case_applies_to_classes:
            return close_under_case(word, rule)
        return word

    def boundary(self, letter: str) -> Boundary | None:
        r"""The assertion of a backslash and ``letter`` (``\b``, ``\A`` ...), or ``None``."""
        known = self._boundaries.get(letter)
        if known is None and (letter in ("b", "B") or letter in self.dialect.text_anchors):
            known = self._boundaries[letter] = self._boundary(letter)
        return known

    def _boundary(self, letter: str) -> Boundary:
        is_start = self.dialect.text_anchors.get(letter)
        if is_start is not None:
            return Boundary(((_AT_EDGE, ANYTHING) if is_start else (ANYTHING, _AT_EDGE),))
        characters = self._word()
        word = Side(at_edge=False, characters=characters)
        other = Side(at_edge=True, characters=complement(characters))
        if letter == "b":
            return Boundary(((word, other), (other, word)))
        outside: tuple[tuple[Side, Side], ...] = ((other, other),)
        if self.dialect.empty_is_no_boundary:
            inner = Side(at_edge=False, characters=other.characters)
            outside = ((inner, other), (_AT_EDGE, inner))
        return Boundary(((word, word), *outside))


_MANY_RANGES: Final = 16


@lru_cache(maxsize=64)
def _class_of(ranges: Ranges) -> CharClass:
    """The term of a class of many ranges, such as the letters."""
    return CharClass(ranges)


@lru_cache(maxsize=128)
def lexicon(name: str, flags: Flag) -> Lexicon:
    """The lexicon of the dialect called ``name`` under ``flags``."""
    return Lexicon(LARK if name == LARK.name else DIALECTS[name], flags)


def _item_bytes(item: _Item | None) -> int:
    return ranges_bytes(item.ranges) if isinstance(item, CharClass) else _SMALL_ITEM_BYTES


_SMALL_ITEM_BYTES: Final = 512


@cached(TERMS, _item_bytes)
def _cached_class(text: str, name: str, flags: Flag) -> _Item | None:
    """The term of the class ``text``; ``None`` if it is malformed or ends elsewhere."""
    shared = lexicon(name, flags)
    try:
        ranges, end = read_class(text, 0, shared.dialect, flags, max_nesting=1)
    except GrammarError:
        return None
    return shared.item(ranges) if end == len(text) else None
