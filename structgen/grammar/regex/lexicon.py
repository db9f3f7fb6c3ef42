"""What single characters and short escapes mean under given flags, prepared once for each set of flags."""

from __future__ import annotations

import re
from functools import lru_cache

from structgen.errors import GrammarError
from structgen.grammar.nodes import CharClass, Grammar
from structgen.grammar.regex.brackets import read_class
from structgen.grammar.regex.caseless import close_under_case
from structgen.grammar.regex.context import ANYTHING, Side
from structgen.grammar.regex.dialect import DIALECTS, Dialect, Flag
from structgen.grammar.regex.escapes import Scalar, read_escape
from structgen.grammar.regex.ranges import ALL, NONE, Ranges, complement
from structgen.grammar.regex.syntax import Boundary

__all__ = ["Lexicon", "lexicon"]

_Item = str | Grammar
_LONGEST_CACHED_CLASS = 256

_AT_EDGE = Side(at_edge=True, characters=NONE)


class _Letters(dict[str, _Item]):
    """What each character that stands for itself matches, found when first asked for."""

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
        ordinary: matches a run of characters that stand for themselves.
        group_marks: the characters after a parenthesis that make it more than a plain group.
        letters: a character that stands for itself -> what it matches.
        short_escapes: the letter after a backslash -> what it stands for, of those met so far that are of one letter.
        dot: what ``.`` stands for.
        is_caseless: whether case is ignored.
        caret: what ``^`` asserts.
        dollar: what ``$`` asserts.
    """

    __slots__ = (
        "_boundaries",
        "_simple_class",
        "caret",
        "dialect",
        "dollar",
        "dot",
        "flags",
        "group_marks",
        "is_caseless",
        "letters",
        "ordinary",
        "short_escapes",
    )

    def __init__(self, dialect: Dialect, flags: Flag) -> None:
        self.dialect = dialect
        self.flags = flags
        skipped = re.escape(dialect.verbose_space) + "#" if flags & Flag.VERBOSE else ""
        self.ordinary = re.compile(rf"[^\\^$.|?*+(){{\[{skipped}]+")
        # A class without inner brackets ends at its first unescaped closing one.
        self._simple_class = re.compile(r"\[\^?[^\\\[\]^](?:[^\\\[\]]|\\.)*\]", re.DOTALL)
        self.dot = CharClass(ALL if flags & Flag.DOT_ALL else complement(dialect.newline))
        self.is_caseless = bool(flags & Flag.IGNORE_CASE)
        start, end = _AT_EDGE, Side(True, NONE, last_newline=dialect.end_before_last_newline)
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
        """The term of a code point or a class; a single character is text, and no surrogate is a character."""
        if isinstance(scalar, int):
            scalar = ((scalar, scalar),)
        if len(scalar) == 1 and scalar[0][0] == scalar[0][1] and not 0xD800 <= scalar[0][0] <= 0xDFFF:
            return chr(scalar[0][0])
        return CharClass(scalar)

    def escape(self, text: str, start: int) -> tuple[_Item, int]:
        """What the escape at ``start`` stands for outside a class, and the offset after it."""
        scalar, end = read_escape(text, start, self.dialect, self.flags, in_class=False)
        item = self.character(scalar) if isinstance(scalar, int) else self.item(scalar)
        letter = text[start + 1]
        if end == start + 2 and letter.isascii() and not letter.isdigit():
            self.short_escapes[letter] = item
        return item, end

    def character(self, point: int) -> _Item:
        """What a code point matches, case ignored if the flags say so."""
        rule = self.dialect.rule_of_case(self.flags)
        return self.item(point if rule is None else close_under_case(((point, point),), rule))

    def bracketed(self, text: str, start: int, *, max_nesting: int, depth: int) -> tuple[_Item, int]:
        """What the class at ``start`` stands for, and the offset after it."""
        simple = self._simple_class.match(text, start, start + _LONGEST_CACHED_CLASS)
        if simple is not None:
            known = _known_class(simple.group(), self.dialect.name, self.flags)
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
        r"""What a backslash and ``letter`` assert (``\b``, ``\A`` ...), or ``None`` if they assert nothing."""
        known = self._boundaries.get(letter)
        if known is None and (letter in ("b", "B") or letter in self.dialect.text_anchors):
            known = self._boundaries[letter] = self._boundary(letter)
        return known

    def _boundary(self, letter: str) -> Boundary:
        is_start = self.dialect.text_anchors.get(letter)
        if is_start is not None:
            return Boundary(((_AT_EDGE, ANYTHING) if is_start else (ANYTHING, _AT_EDGE),))
        characters = self._word()
        word, other = Side(False, characters), Side(True, complement(characters))
        if letter == "b":
            return Boundary(((word, other), (other, word)))
        outside: tuple[tuple[Side, Side], ...] = ((other, other),)
        if self.dialect.empty_is_no_boundary:
            inner = Side(False, other.characters)
            outside = ((inner, other), (_AT_EDGE, inner))
        return Boundary(((word, word), *outside))


@lru_cache(maxsize=128)
def lexicon(name: str, flags: Flag) -> Lexicon:
    """The lexicon of the dialect called ``name`` under ``flags``."""
    return Lexicon(DIALECTS[name], flags)


@lru_cache(maxsize=1024)
def _known_class(text: str, name: str, flags: Flag) -> _Item | None:
    """What the class ``text`` stands for; ``None`` if it is at fault or does not end where it seems to."""
    shared = lexicon(name, flags)
    try:
        ranges, end = read_class(text, 0, shared.dialect, flags, max_nesting=1)
    except GrammarError:
        return None
    return shared.item(ranges) if end == len(text) else None
