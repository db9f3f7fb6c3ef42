"""The differences between the three dialects, as data, and errors with a caret under the position in the pattern."""

from __future__ import annotations

import string
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntFlag
from typing import Final

from structgen.errors import GrammarSyntaxError, UnsupportedFeature, caret
from structgen.frontends.regex.code_point import (
    ASCII_DIGIT,
    ASCII_SPACE,
    ASCII_WORD,
    CaseRule,
    Ranges,
    decimal_digits,
    python_space,
    python_word,
    rust_word,
    white_space,
)

__all__ = ["DIALECTS", "LARK", "NO_REFERENCE", "Dialect", "Flag", "malformed", "refused"]


class Flag(IntFlag):
    """The flags that change what a pattern means."""

    NONE = 0
    IGNORE_CASE = 1
    DOT_ALL = 2
    MULTILINE = 4
    VERBOSE = 8
    ASCII = 16


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Dialect:
    r"""A dialect of regular expressions; a feature that it does not name does not exist in it.

    Attributes:
        name: its name in options.
        title: its name in messages.
        newline: the line terminators: excluded from ``.``, and used by anchors under ``(?m)``.
        end_before_last_newline: whether ``$`` also holds before a newline at the very end.
        empty_is_no_boundary: whether ``\B`` fails in the empty string.
        classes: the sets of ``\d``, ``\w``, ``\s``.
        case_rule: how letters are compared without regard to case.
        case_applies_to_classes: whether ``\w`` and the like are closed under case too.
        negates_property_first: whether caseless ``\P{Lu}`` is the complement, closed under case, or else the complement
            of the closure.
        joins_surrogates: ``\ud83d\ude00`` is one character.
        control_escapes: letter -> code point, for ``\n`` and the like.
        text_anchors: letter -> whether it is the start (else the end), for ``\A`` and the like.
        identity: the characters that a backslash makes literal.
        hex_escapes: letter -> number of digits, for ``\x41`` and the like.
        braced_escapes: the letters of ``hex_escapes`` that may also take ``{...}``.
        has_octal: ``\0``, ``\012`` and the like.
        has_properties: ``\p{...}``.
        has_loose_properties: names of properties ignore case, space, ``-`` and ``_``; ``\pL`` is allowed.
        has_control_letter: ``\cX``.
        has_named_characters: ``\N{...}``.
        has_set_operations: nested classes, POSIX classes, ``&&``, ``--`` and ``~~``.
        leading_bracket_is_literal: ``]`` right after ``[`` or ``[^`` is a member.
        class_in_range_is_literal: in ``[\w-z]`` the hyphen is literal.
        lone_brace_is_literal: ``{`` that starts no count is literal.
        omits_lower_count: ``{,n}`` is a count.
        spaces_in_counts: white space around the numbers of a count is ignored.
        repeats_repeats: ``a**`` is allowed, and ``+`` after a quantifier repeats it once more.
        repeats_anchors: ``^*`` is allowed.
        has_lookaround: ``(?=...)``, ``(?!...)``, ``(?<=...)`` and ``(?<!...)``.
        fixed_lookbehind: the alternatives of a look-behind must have one width.
        name_characters: additional characters of names -> whether a name may begin with it.
        named_groups: the possible texts between ``(`` and the name.
        has_comments: ``(?#...)``.
        flags: letter -> flag, for those that change the meaning.
        idle_flags: letters that are accepted and change nothing.
        repeats_flags: a letter may be repeated in ``(?flags)``.
        scoped_flags: letters that ``(?flags:...)`` may turn on.
        unset_flags: letters that may follow ``-``.
        open_flags: where ``(?flags)`` is allowed: ``"start"``, ``"anywhere"`` or ``"nowhere"``.
        verbose_everywhere: ``x`` also ignores white space in classes and after an opening parenthesis.
        verbose_space: the white space under ``x``.
    """

    name: str
    title: str
    newline: Ranges
    end_before_last_newline: bool = False
    empty_is_no_boundary: bool = False
    classes: Mapping[str, Callable[[], Ranges]]
    case_rule: CaseRule
    case_applies_to_classes: bool = False
    negates_property_first: bool = False
    joins_surrogates: bool = False
    control_escapes: Mapping[str, int]
    text_anchors: Mapping[str, bool] = field(default_factory=dict)
    identity: frozenset[str] | None = None
    hex_escapes: Mapping[str, int]
    braced_escapes: str = ""
    has_octal: bool = False
    has_properties: bool = False
    has_loose_properties: bool = False
    has_control_letter: bool = False
    has_named_characters: bool = False
    has_set_operations: bool = False
    leading_bracket_is_literal: bool = False
    class_in_range_is_literal: bool = False
    lone_brace_is_literal: bool = False
    omits_lower_count: bool = False
    spaces_in_counts: bool = False
    repeats_repeats: bool = False
    repeats_anchors: bool = False
    has_lookaround: bool = False
    fixed_lookbehind: bool = False
    name_characters: Mapping[str, bool] = field(default_factory=dict)
    named_groups: tuple[str, ...]
    has_comments: bool = False
    flags: Mapping[str, Flag]
    idle_flags: str
    repeats_flags: bool = False
    scoped_flags: str
    unset_flags: str
    open_flags: str
    verbose_everywhere: bool = False
    verbose_space: str = ""

    def class_ranges(self, letter: str, flags: Flag) -> Ranges:
        r"""The set of ``\d``, ``\w`` or ``\s`` (``letter`` in lower case) under ``flags``."""
        table = _ASCII_CLASSES if flags & Flag.ASCII else self.classes
        return table[letter]()

    def rule_of_case(self, flags: Flag) -> CaseRule | None:
        """The case rule under ``flags``, or ``None`` if case matters."""
        if not flags & Flag.IGNORE_CASE:
            return None
        return CaseRule.ASCII if flags & Flag.ASCII else self.case_rule


_ASCII_CLASSES: Final[Mapping[str, Callable[[], Ranges]]] = {
    "d": lambda: ASCII_DIGIT,
    "w": lambda: ASCII_WORD,
    "s": lambda: ASCII_SPACE,
}
# WhiteSpace and LineTerminator of ECMA-262, with general category Zs.
_ECMA_SPACE: Final[Ranges] = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
_LINE_FEED: Final[Ranges] = ((0x0A, 0x0A),)
_C_ESCAPES: Final = {"a": 0x07, "f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
_FLAGS: Final = {"i": Flag.IGNORE_CASE, "s": Flag.DOT_ALL, "m": Flag.MULTILINE}

_PYTHON: Final = Dialect(
    name="python",
    title="Python",
    newline=_LINE_FEED,
    end_before_last_newline=True,
    # Python 3.14 lets \B match in the empty string.
    empty_is_no_boundary=sys.version_info < (3, 14),
    classes={"d": decimal_digits, "w": python_word, "s": python_space},
    case_rule=CaseRule.PYTHON,
    control_escapes=_C_ESCAPES,
    text_anchors={"A": True, "Z": False, "z": False},
    hex_escapes={"x": 2, "u": 4, "U": 8},
    has_octal=True,
    has_named_characters=True,
    leading_bracket_is_literal=True,
    lone_brace_is_literal=True,
    omits_lower_count=True,
    has_lookaround=True,
    fixed_lookbehind=True,
    named_groups=("?P<",),
    has_comments=True,
    flags={**_FLAGS, "x": Flag.VERBOSE, "a": Flag.ASCII},
    idle_flags="u",
    repeats_flags=True,
    scoped_flags="aimsux",
    unset_flags="imsx",
    open_flags="start",
    verbose_space=" \t\n\r\v\f",
)

_ECMA: Final = Dialect(
    name="ecma",
    title="ECMA-262",
    newline=((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)),
    classes={**_ASCII_CLASSES, "s": lambda: _ECMA_SPACE},
    case_rule=CaseRule.SIMPLE,
    case_applies_to_classes=True,
    negates_property_first=True,
    joins_surrogates=True,
    control_escapes={letter: point for letter, point in _C_ESCAPES.items() if letter != "a"},
    hex_escapes={"x": 2, "u": 4},
    braced_escapes="u",
    has_properties=True,
    has_control_letter=True,
    class_in_range_is_literal=True,
    lone_brace_is_literal=True,
    has_lookaround=True,
    name_characters={"$": True},
    named_groups=("?<",),
    flags=_FLAGS,
    idle_flags="u",
    scoped_flags="ims",
    unset_flags="ims",
    open_flags="nowhere",
)

_RUST: Final = Dialect(
    name="rust",
    title="Rust",
    newline=_LINE_FEED,
    classes={"d": decimal_digits, "w": rust_word, "s": white_space},
    case_rule=CaseRule.SIMPLE,
    case_applies_to_classes=True,
    control_escapes=_C_ESCAPES,
    text_anchors={"A": True, "z": False},
    # \< and \> are word boundaries of newer versions.
    identity=frozenset(map(chr, range(128))) - frozenset(string.ascii_letters + string.digits + "<>"),
    hex_escapes={"x": 2, "u": 4, "U": 8},
    braced_escapes="xuU",
    has_properties=True,
    has_loose_properties=True,
    has_set_operations=True,
    leading_bracket_is_literal=True,
    spaces_in_counts=True,
    repeats_repeats=True,
    repeats_anchors=True,
    name_characters=dict.fromkeys(".[]", False),
    named_groups=("?P<", "?<"),
    flags={**_FLAGS, "x": Flag.VERBOSE},
    idle_flags="uU",
    scoped_flags="imsuxU",
    unset_flags="imsxU",
    open_flags="anywhere",
    verbose_everywhere=True,
    verbose_space=" \t\n\v\f\r\x85\u200e\u200f\u2028\u2029",
)

DIALECTS: Final[Mapping[str, Dialect]] = {dialect.name: dialect for dialect in (_PYTHON, _ECMA, _RUST)}
LARK: Final = replace(_PYTHON, name="lark", title="Lark", has_properties=True, has_loose_properties=True)
"""Python's, with the properties of the package ``regex``, which Lark can use in place of ``re``."""


NO_REFERENCE: Final = "list the texts that may repeat, or write the group again if any of its texts will do"
"""The remedy for every kind of back-reference."""


def malformed(text: str, span: tuple[int, int], problem: str, remedy: str = "") -> GrammarSyntaxError:
    """The error for a pattern that its dialect does not allow."""
    return GrammarSyntaxError("regex", f"{problem} at character {span[0]}", text=text, span=span, remedy=remedy)


def refused(
    text: str, span: tuple[int, int], feature: str, remedy: str, *, reason: str = "is not regular"
) -> UnsupportedFeature:
    """The error for a construct that is refused by name; the message ends with the caret."""
    return UnsupportedFeature(
        "regex",
        feature,
        where=f"character {span[0]}",
        problem=f"{feature} at character {span[0]} {reason}",
        remedy=f"{remedy}\n{caret(text, span)}",
    )
