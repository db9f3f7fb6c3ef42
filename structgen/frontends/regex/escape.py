r"""Reading one backslash escape: a code point (``\n``, ``\x41``, ``\-``) or a class (``\d``, ``\p{Lu}``)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from structgen.frontends.regex.code_point import (
    CATEGORY_NAMES,
    Ranges,
    close_under_case,
    complement,
    find_listed,
    find_property,
    listed_names,
)
from structgen.frontends.regex.dialect import NO_REFERENCE, Dialect, Flag, malformed, refused
from structgen.grammar.nodes import MAX_CODE_POINT

__all__ = ["Scalar", "read_escape", "skip_space"]

Scalar = int | Ranges
"""A code point (surrogates included), or a class of them."""

_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_BRACED: Final = re.compile(r"\{([0-9a-fA-F]{1,8})\}")
_OCTAL: Final = re.compile(r"[0-7]{1,3}")
_DIGITS: Final = re.compile(r"[0-9]+")
_LOW_SURROGATE: Final = re.compile(r"\\u(?:([dD][c-fC-F][0-9a-fA-F]{2})|\Z)")
_PROPERTY: Final = re.compile(r"\{([^{}]*)\}")
_ASSIGNMENT: Final = re.compile(r"(\w+)(?:=|:)([\w -]+)", re.ASCII)
_COMMENT: Final = re.compile(r"[^\n]*\n?")
_NAME: Final = re.compile(r"\{([^{}]+)\}")
_FINAL_BACKSLASH: Final = "double the backslash to mean the character"

_FOREIGN: Final = {
    "h": ("horizontal white space \\h", "write [ \\t]"),
    "H": ("negated horizontal white space \\H", "write [^ \\t]"),
    "R": ("line break sequence \\R", "write (?:\\r\\n|\\n|\\r)"),
    "X": ("grapheme cluster \\X", "spell out the characters that you mean"),
    "K": ("match reset \\K", "leave it out: the whole text is matched"),
    "G": ("last match anchor \\G", "write ^ for the start of the text"),
    "Q": ("quoted text \\Q...\\E", "escape each special character"),
    "E": ("quoted text \\Q...\\E", "escape each special character"),
    "k": ("back-reference", NO_REFERENCE),
    "g": ("back-reference", NO_REFERENCE),
    "c": ("control character \\cX", "write \\x01 for \\cA and so on, or use dialect='ecma'"),
    "C": ("single byte \\C", "write [^] or (?s:.) for one character"),
    "p": ("Unicode property \\p", "write the class out, or use dialect='ecma' or dialect='rust'"),
    "P": ("Unicode property \\P", "write the class out, or use dialect='ecma' or dialect='rust'"),
}


def read_escape(text: str, start: int, dialect: Dialect, flags: Flag, *, in_class: bool) -> tuple[Scalar, int]:
    r"""Read the escape whose backslash is ``text[start]``; return its meaning and the offset after it.

    The parser reads assertions (``\b``, ``\A`` ...); here they are errors.

    Raises:
        GrammarSyntaxError: the dialect has no such escape.
        UnsupportedFeature: a back-reference, or an unsupported property.
    """
    if start + 1 >= len(text):
        raise malformed(text, (start, start + 1), "the pattern ends in a backslash", _FINAL_BACKSLASH)
    letter = text[start + 1]
    if letter in "dwsDWS":
        return _class_of_letter(letter, dialect, flags), start + 2
    point = dialect.control_escapes.get(letter)
    if point is not None:
        return point, start + 2
    if letter in dialect.hex_escapes:
        return _hexadecimal(text, start, dialect)
    if letter in "0123456789":
        return _numeric(text, start, dialect, in_class=in_class)
    if letter in "pP" and dialect.has_properties:
        return _property(text, start, dialect, flags)
    if letter == "N" and dialect.has_named_characters:
        return _named_character(text, start)
    if letter == "c" and dialect.has_control_letter:
        return _control_letter(text, start)
    if letter == "b" and in_class and not dialect.has_set_operations:
        return 0x08, start + 2
    return _identity(text, start, dialect, in_class=in_class), start + 2


def _class_of_letter(letter: str, dialect: Dialect, flags: Flag) -> Ranges:
    ranges = dialect.class_ranges(letter.lower(), flags)
    rule = dialect.rule_of_case(flags)
    if rule is not None and dialect.case_applies_to_classes:
        ranges = close_under_case(ranges, rule)
    return complement(ranges) if letter.isupper() else ranges


def _identity(text: str, start: int, dialect: Dialect, *, in_class: bool) -> int:
    letter = text[start + 1]
    span = (start, start + 2)
    if dialect.identity is not None:
        literal = letter in dialect.identity
    else:
        literal = not (letter.isascii() and letter.isalnum())
    if literal:
        return ord(letter)
    if letter in _FOREIGN:
        feature, remedy = _FOREIGN[letter]
        raise refused(text, span, feature, remedy, reason=f"is not part of the {dialect.title} dialect here")
    remedy = "write the character itself without a backslash, or double the backslash"
    if letter in "AZz" and not in_class:
        remedy = "write ^ for the start of the text and $ for its end"
    where = " in a class" if in_class else ""
    raise malformed(text, span, f"\\{letter} is not an escape of the {dialect.title} dialect{where}", remedy)


def _hexadecimal(text: str, start: int, dialect: Dialect) -> tuple[int, int]:
    letter = text[start + 1]
    after = start + 2
    if letter in dialect.braced_escapes and text.startswith("{", after):
        found = _HEX.match(text, after + 1)
        end = found.end() if found else after + 1
        if found is None or not text.startswith("}", end):
            raise malformed(text, (start, end), f"\\{letter}{{ lacks hexadecimal digits or the closing brace")
        digits = found.group().lstrip("0") or "0"
        end += 1
    else:
        width = dialect.hex_escapes[letter]
        found = _HEX.match(text, after, after + width)
        end = after + width
        if found is None or found.end() != end:
            have = found.end() if found else after
            remedy = _without_braces(text, after, letter, dialect)
            raise malformed(text, (start, have), f"\\{letter} takes exactly {width} hexadecimal digits", remedy)
        digits = found.group()
    if len(digits) > 8 or (point := int(digits, 16)) > MAX_CODE_POINT:
        raise malformed(text, (start, end), "the escape is above U+10FFFF, the last character of Unicode")
    if 0xD800 <= point <= 0xDFFF:
        return _surrogate(text, start, end, point, dialect)
    return point, end


def _without_braces(text: str, after: int, letter: str, dialect: Dialect) -> str:
    r"""How to write ``\u{...}`` and ``\x{...}`` in a dialect that has no braces there."""
    found = _BRACED.match(text, after)
    if found is None:
        return ""
    point = int(found.group(1), 16)
    if letter in "uU" and "U" in dialect.hex_escapes:
        return f"write \\u{point:04x} or \\U{point:08x}; braces are of dialect='ecma' and dialect='rust'"
    braced = "".join(dialect.braced_escapes[:1])
    return f"write \\x{point:02x}" + (f", or \\{braced}{{{point:x}}} for a longer number" if braced else "")


def _surrogate(text: str, start: int, end: int, point: int, dialect: Dialect) -> tuple[int, int]:
    if dialect.has_set_operations:
        raise malformed(text, (start, end), "a surrogate is not a Unicode character")
    if dialect.joins_surrogates and point <= 0xDBFF:
        low = _LOW_SURROGATE.match(text, end)
        if low is not None and low.group(1):
            return 0x10000 + ((point - 0xD800) << 10) + int(low.group(1), 16) - 0xDC00, low.end()
    return point, end


def _numeric(text: str, start: int, dialect: Dialect, *, in_class: bool) -> tuple[int, int]:
    zero = text[start + 1] == "0"
    if dialect.has_octal:
        octal = _OCTAL.match(text, start + 1)
        if octal is not None and (zero or in_class or len(octal.group()) == 3):
            point = int(octal.group(), 8)
            if point > 0o377:
                raise malformed(text, (start, octal.end()), "the octal escape is above \\377", "write \\x or \\u")
            return point, octal.end()
    elif zero and dialect.has_control_letter:
        following = _DIGITS.match(text, start + 2)
        if following is not None:
            raise malformed(text, (start, following.end()), "\\0 must not be followed by a digit", "write \\x00")
        return 0, start + 2
    digits = _DIGITS.match(text, start + 1)
    span = (start, digits.end() if digits else start + 2)
    if in_class or zero:
        raise malformed(text, span, f"{text[slice(*span)]} is not an escape of the {dialect.title} dialect here")
    raise refused(text, span, "back-reference", NO_REFERENCE)


def _control_letter(text: str, start: int) -> tuple[int, int]:
    letter = text[start + 2 : start + 3]
    if not (letter.isascii() and letter.isalpha()):
        raise malformed(text, (start, start + 2), "\\c takes a letter, as in \\cJ")
    return ord(letter) & 0x1F, start + 3


def _named_character(text: str, start: int) -> tuple[int, int]:
    name = _NAME.match(text, start + 2)
    if name is None:
        raise malformed(text, (start, start + 2), "\\N takes a name in braces, as in \\N{EM DASH}")
    try:
        found = unicodedata.lookup(name.group(1))
    except KeyError:
        found = ""
    if len(found) != 1:
        raise malformed(text, (start, name.end()), "no character has this name", "write its code point, \\uXXXX")
    return ord(found), name.end()


def _property(text: str, start: int, dialect: Dialect, flags: Flag) -> tuple[Ranges, int]:
    negated = text[start + 1] == "P"
    braced = _PROPERTY.match(text, start + 2)
    if braced is not None:
        name, end = braced.group(1), braced.end()
    elif dialect.has_loose_properties and text[start + 2 : start + 3].isalpha():
        name, end = text[start + 2], start + 3
    else:
        raise malformed(text, (start, start + 2), "\\p takes a property in braces, as in \\p{Lu}")
    ranges = _look_up(text, (start, end), name, dialect)
    rule = dialect.rule_of_case(flags)
    if rule is not None and not dialect.negates_property_first:
        ranges = close_under_case(ranges, rule)
    if negated:
        ranges = complement(ranges)
    if rule is not None and dialect.negates_property_first:
        ranges = close_under_case(ranges, rule)
    return ranges, end


def _look_up(text: str, span: tuple[int, int], name: str, dialect: Dialect) -> Ranges:
    """The ranges of the property ``name``."""
    loose = dialect.has_loose_properties
    assignment = _ASSIGNMENT.fullmatch(name)
    if assignment is None or (not loose and ":" in name):
        ranges = _loose_property(name) if loose else find_property(name)
    else:
        key, value = assignment.groups()
        kind = _LOOSE_KEYS.get(_squeezed(key)) if loose else _KEYS.get(key)
        known = CATEGORY_NAMES if kind == "gc" else listed_names(kind) if kind is not None else {}
        exact = _loose(kind or "").get(_squeezed(value), "") if loose else value
        ranges = None if kind is None or exact not in known else _property_of(kind, exact)
    if ranges is None:
        raise refused(
            text,
            span,
            f"Unicode property {name!r}",
            "use a general category such as \\p{L}, a script such as \\p{Script=Greek}, or write the ranges out",
            reason="is not a general category, a script or a binary property that is known",
        )
    return ranges


def _property_of(kind: str, name: str) -> Ranges | None:
    return find_property(name) if kind == "gc" else find_listed(kind, name)


def _loose_property(name: str) -> Ranges | None:
    """A general category, binary property or script, as the crate ``regex`` looks them up."""
    squeezed = _squeezed(name)
    for kind in ("gc", "bin", "sc"):
        exact = _loose(kind).get(squeezed)
        if exact is not None:
            return _property_of("gc" if kind == "bin" else kind, exact)
    return None


@cache
def _loose(kind: str) -> Mapping[str, str]:
    """The names of a kind without regard to case, space, ``-`` and ``_`` -> the exact names."""
    if kind == "bin":
        names: Iterable[str] = (*_BINARY, *(name for name in listed_names(kind) if name not in _NOT_IN_RUST))
    else:
        names = CATEGORY_NAMES if kind == "gc" else listed_names(kind)
    known = {_squeezed(name): name for name in names}
    return known | {"wspace": "White_Space"} if kind == "bin" else known


def skip_space(text: str, index: int, dialect: Dialect) -> int:
    """The offset after the white space and comments at ``index``, by the rules of flag ``x``."""
    while index < len(text):
        if text[index] in dialect.verbose_space:
            index += 1
        elif text[index] == "#" and (comment := _COMMENT.match(text, index)) is not None:
            index = comment.end()
        else:
            break
    return index


def _squeezed(name: str) -> str:
    """A name as the crate ``regex`` compares it: ``is`` at the start counts for nothing, except in ``isc``."""
    bare = name[2:] if name[:2].lower() == "is" else name
    squeezed = re.sub(r"[\s_-]", "", bare).lower()
    return "isc" if squeezed == "c" and bare is not name else squeezed


_KEYS: Final = {
    "General_Category": "gc", "gc": "gc", "Script": "sc", "sc": "sc", "Script_Extensions": "scx", "scx": "scx",
}  # fmt: skip
_LOOSE_KEYS: Final = {_squeezed(key): kind for key, kind in _KEYS.items()}
_BINARY: Final = (
    "Any", "ASCII", "Assigned", "Lowercase", "Lower", "Uppercase", "Upper", "White_Space", "space",
    "XID_Start", "XIDS", "XID_Continue", "XIDC",
)  # fmt: skip
_NOT_IN_RUST: Final = frozenset({"Changes_When_NFKC_Casefolded", "CWKCF"})
