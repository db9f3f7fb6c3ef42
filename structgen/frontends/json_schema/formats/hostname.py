"""Host names (RFC 1034, 1123, 5890), internationalised ones (RFC 5890 to 5893), mail addresses (RFC 5321, 6531).

A label with an ``xn--`` prefix or with contextual characters is written only where it is certainly valid.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final

from structgen.frontends.json_schema.formats.identifier import (
    GREEK,
    HEBREW,
    IPV4,
    IPV6,
    JAPANESE,
    JOINS_LEFT,
    JOINS_RIGHT,
    valid_characters,
)
from structgen.frontends.json_schema.json_string import clipped, escapable, escaped
from structgen.frontends.json_schema.term import ALPHA, ALPHANUMERIC, characters, optional
from structgen.grammar.nodes import (
    ANY_CHAR,
    EMPTY,
    ByteClass,
    CharClass,
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Label,
    LabelKind,
    Repeat,
    Shared,
    choice,
    repeat,
    sequence,
)

__all__ = [
    "a_label",
    "any_email",
    "ascii_label",
    "email",
    "hostname",
    "hostname_string",
    "idn_email",
    "idn_hostname",
    "idn_hostname_string",
    "judged_names",
    "mail_domain",
    "plain_hostname",
]

_BASIC_PLANE: Final = 13
_WINDOWS: Final = (
    (0xDF, 0x2AF, 22),
    (0x370, 0x3FF, 25),
    (0x400, 0x52F, 23),
    (0xE00, 0xEFF, 24),
    (0x10A0, 0x10FF, 26),
    (0xAC00, 0xD7A3, 16),
    (0x3005, 0x9FFF, 15),
    (0x80, 0xFFFF, _BASIC_PLANE),
    (0x80, 0x3FFFF, 11),
)
"""First and last non-ASCII character, and the maximum length for which every label fits in 63 octets."""
_HEBREW_LENGTH: Final = 26
_ARABIC_LENGTH: Final = 24
_FEW: Final = 4
"""Units of up to three characters of the basic plane that always fit in 63 octets."""

_ALPHABETS: Final = ((0x380, 0x3FF, 26), (0x400, 0x4FF, 24))
"""Greek and Cyrillic letters of two bytes, and the minimum length of a label that may not fit; see ``_WINDOWS``."""

_SEPARATOR: Final = characters(".", "\u3002", "\uff0e", "\uff61")
_FULL_STOP: Final = characters(".")
_MAX_ASCII: Final = 60
_MAX_LABELS: Final = 3
_SMALL: Final = ((0x61, 0x7A),)
_DIGITS: Final = ((0x30, 0x39),)
_HYPHEN: Final = ((0x2D, 0x2D),)
_EXTENDED_DIGITS: Final = ((0x6F0, 0x6F9),)
_ARABIC_DIGITS: Final = ((0x660, 0x669),)
_Ranges = tuple[tuple[int, int], ...]


@cache
def idn_hostname() -> Grammar:
    """Names of internationalised labels, with all four separators."""
    plain = ascii_label(ALPHANUMERIC)
    ascii_name = Intersection((_dotted(plain, None), Repeat(ANY_CHAR, 1, 253)))
    tail = Intersection((sequence(_SEPARATOR, _dotted(plain, None)), Repeat(ANY_CHAR, 1, _MAX_ASCII)))
    left_to_right = sequence(_dotted(choice(plain, *_left_to_right()), 3), optional(tail))
    return choice(ascii_name, left_to_right, _dotted(choice(ascii_label(ALPHA), *_right_to_left()), 3))


@cache
def idn_hostname_string() -> Grammar:
    """The JSON strings of these names, with A-labels and long labels of letters among the first three labels."""
    left_to_right = judged_names(choice(*_left_to_right()), ALPHANUMERIC, _long_label, _SEPARATOR)
    bidi = judged_names(choice(*_right_to_left()), ALPHA, lambda end: a_label(end, "bidi"), _SEPARATOR)
    return Shared(choice(JsonString(idn_hostname()), sequence('"', choice(left_to_right, bidi))))


def judged_names(
    label: Grammar, first: CharClass, checked: Callable[[str], Grammar], separator: CharClass = _FULL_STOP
) -> Grammar:
    """The spellings of names with a label that is checked while it is written, and the closing quote.

    Args:
        label: the non-ASCII labels among the first three, written without escapes.
        first: the first character of ASCII labels.
        checked: makes the labels that are checked, with the character that ends them.
        separator: the separator of labels.
    """
    stop, last = escapable(separator), checked('"')
    short = ascii_label(first, 14, escapable)
    following = sequence(short, repeat(sequence(stop, short), 0, 3), '"')
    divided = choice(*(checked(chr(code)) for code, _ in separator.ranges))
    others = sequence(choice(ascii_label(first, 63, escapable), label), stop)
    names: Grammar = EMPTY
    for _ in range(_MAX_LABELS):
        names = choice(last, sequence(divided, choice(following, names)), sequence(others, names))
    return names


def a_label(end: str, kind: LabelKind) -> Grammar:
    """An A-label and the character that ends it."""
    hyphen = escapable(characters("-"))
    prefix = sequence(escapable(characters("x", "X")), escapable(characters("n", "N")), hyphen, hyphen)
    return _judged(sequence(prefix, repeat(escapable(characters("a-z", "A-Z", "0-9", "-")), 1, 59)), end, kind)


def _judged(text: Grammar, end: str, kind: LabelKind) -> Grammar:
    """A label with its end, which is one byte or an escape."""
    data = end.encode()
    raw = sequence(Label(sequence(text, data[:1]), kind), data[1:])
    return raw if end == '"' else choice(raw, Label(sequence(text, escaped(characters(end))), kind))


def _long_label(end: str) -> Grammar:
    """An A-label or a long label of letters of one alphabet, with its end."""
    plain, _ = _characters()
    alphabets = ((CharClass(clipped(plain, low, high)), longest) for low, high, longest in _ALPHABETS)
    letters = (_judged(repeat(escapable(one), longest, 59), end, "u-label") for one, longest in alphabets)
    return choice(a_label(end, "a-label"), *letters)


@cache
def mail_domain() -> Grammar:
    """Internationalised names with full stops only, for mail addresses; labels need not be in normal form C."""
    plain, marks = _characters(with_composing=True)
    first = CharClass((*_SMALL, *_DIGITS, *clipped(plain, 0, 0xFFFF)))
    solid = CharClass((*first.ranges, *clipped(marks, 0, 0xFFFF)))
    decomposed = _label(first, CharClass((*solid.ranges, *_HYPHEN)), solid, _BASIC_PLANE)
    labels = choice(ascii_label(ALPHANUMERIC), decomposed, *_left_to_right())
    return choice(_dotted(labels, 3, "."), _dotted(choice(ascii_label(ALPHA), *_right_to_left()), 3, "."))


def _dotted(label: Grammar, max_count: int | None, separator: Grammar | str = _SEPARATOR) -> Grammar:
    return sequence(label, repeat(sequence(separator, label), 0, max_count and max_count - 1))


def ascii_label(
    first: CharClass, longest: int = 63, spelled: Callable[[CharClass], Grammar] = lambda plain: plain
) -> Grammar:
    """The labels of letters, digits and hyphens that RFC 5890 does not reserve, with the given first characters."""
    inner = spelled(characters("a-z", "A-Z", "0-9", "-"))
    return _label(spelled(first), inner, spelled(ALPHANUMERIC), longest, spelled(characters("-")))


def _label(
    first: Grammar,
    inner: Grammar,
    solid: Grammar,
    longest: int,
    hyphen: Grammar = CharClass(_HYPHEN),  # noqa: B008
) -> Grammar:
    """A label that does not end in a hyphen and does not have hyphens as both third and fourth character."""

    def end(done: int) -> Grammar:
        return optional(sequence(repeat(inner, 0, longest - done - 1), solid))

    third_is_hyphen = sequence(first, inner, hyphen, solid, end(4))
    return choice(sequence(first, optional(solid)), sequence(first, inner, solid, end(3)), third_is_hyphen)


def _left_to_right() -> Iterator[Grammar]:
    """The labels without any right-to-left character."""
    plain, marks = _characters()
    for low, high, longest in _WINDOWS:
        letters = clipped(plain, low, high) + (_EXTENDED_DIGITS if low == 0x80 else ())
        solid = (*_SMALL, *_DIGITS, *letters, *clipped(marks, low, high))
        first = CharClass((*_SMALL, *_DIGITS, *letters))
        yield _label(first, CharClass((*solid, *_HYPHEN)), CharClass(solid), longest)
    yield from _contextual(plain)


def _contextual(plain: _Ranges) -> Iterator[Grammar]:
    """Labels with characters that are only valid in a context (RFC 5892, appendix A)."""
    small = CharClass(_SMALL)
    greek = CharClass(pair for low, high in GREEK for pair in clipped(plain, low, high))
    japanese = CharClass((*_SMALL, *_DIGITS, *JAPANESE))
    yield repeat(choice(small, "l\u00b7l"), 1, _FEW)
    yield repeat(choice(greek, sequence("\u0375", greek)), 1, _FEW)
    dot = "\u30fb"
    start = choice(CharClass(JAPANESE), sequence(dot, CharClass(JAPANESE)))
    yield sequence(start, repeat(choice(japanese, dot), 0, _FEW))
    for base in range(0x900, 0xE00, 0x80):
        letters = CharClass(clipped(plain, base, base + 0x7F))
        virama = chr(base + 0x4D)
        if letters.ranges and unicodedata.combining(virama) == 9:
            # A virama ends the label or precedes a letter, perhaps after a joiner.
            joined = sequence(letters, virama, optional(characters("\u200c", "\u200d")), letters)
            yield repeat(choice(letters, joined, sequence(letters, virama)), 1, 3)


def _right_to_left() -> Iterator[Grammar]:
    """Labels that obey the rule of RFC 5893 in a name with right-to-left characters."""
    hebrew = _of_kinds("R", 0x590, 0x5FF)
    solid = CharClass((*hebrew, *_DIGITS))
    yield _label(CharClass(hebrew), CharClass((*hebrew, *_DIGITS, *_HYPHEN)), solid, _HEBREW_LENGTH)
    letters = CharClass(HEBREW)
    yield sequence(letters, repeat(choice(letters, sequence(letters, characters("\u05f3", "\u05f4"))), 0, _FEW))
    yield sequence(letters, characters("\u05f3", "\u05f4"), repeat(letters, 0, _FEW))
    arabic = _of_kinds("AL", 0x600, 0x6FF)
    for digits in ((*_DIGITS, *_EXTENDED_DIGITS), _ARABIC_DIGITS):
        inner = CharClass((*arabic, *digits, *_HYPHEN))
        yield _label(CharClass(arabic), inner, CharClass((*arabic, *digits)), _ARABIC_LENGTH)
    unjoined = sequence(CharClass(JOINS_LEFT), "\u200c", CharClass(JOINS_RIGHT))
    yield repeat(choice(CharClass(arabic), unjoined), 1, _FEW)


def _of_kinds(kind: str, low: int, high: int) -> _Ranges:
    """Characters of one direction that need no context, are not marks and never compose."""
    composing = _composing()
    return tuple(
        (code, code)
        for first, last in clipped(valid_characters(), low, high)
        for code in range(first, last + 1)
        if unicodedata.bidirectional(chr(code)) == kind
        and unicodedata.category(chr(code))[0] != "M"
        and code not in composing
    )


@cache
def _composing() -> frozenset[int]:
    """The characters that compose with a preceding character."""
    codes = set()
    for low, high in valid_characters():
        for code in range(low, high + 1):
            parts = unicodedata.decomposition(chr(code)).split()
            if len(parts) == 2:
                codes.add(int(parts[1], 16))
    return frozenset(codes)


@cache
def _characters(*, with_composing: bool = False) -> tuple[_Ranges, _Ranges]:
    """The left-to-right characters that may be first, and the marks.

    Without ``with_composing`` only characters that never compose or change order.
    """
    plain: list[tuple[int, int]] = []
    marks: list[tuple[int, int]] = []
    composing = _composing()
    for low, high in valid_characters():
        for code in range(low, high + 1):
            character = chr(code)
            if not with_composing and (unicodedata.combining(character) or code in composing):
                continue
            if unicodedata.bidirectional(character) not in ("R", "AL", "AN"):
                (marks if unicodedata.category(character)[0] == "M" else plain).append((code, code))
    return CharClass(plain).ranges, CharClass(marks).ranges


_BEYOND_ASCII: Final = (0x80, 0x10FFFF)


@cache
def plain_hostname() -> Grammar:
    """Labels of letters, digits and inner hyphens, of at most 63 characters, 253 in all."""
    inner = characters("a-z", "A-Z", "0-9", "-")
    label = sequence(ALPHANUMERIC, optional(sequence(repeat(inner, 0, 61), ALPHANUMERIC)))
    return Intersection((sequence(label, repeat(sequence(".", label))), Repeat(ANY_CHAR, 1, 253)))


@cache
def hostname() -> Grammar:
    """``plain_hostname`` without labels that begin with ``xn--``.

    Their validity depends on the decoded label, which a finite automaton cannot check.
    """
    anything = repeat(ANY_CHAR)
    encoded = sequence(characters("x", "X"), characters("n", "N"), "--", anything)
    return Intersection((plain_hostname(), Complement(sequence(optional(sequence(anything, ".")), encoded))))


@cache
def hostname_string() -> Grammar:
    """The JSON strings of host names, with A-labels among the first three labels."""
    left_to_right = judged_names(EMPTY, ALPHANUMERIC, lambda end: a_label(end, "a-label"))
    bidi = judged_names(EMPTY, ALPHA, lambda end: a_label(end, "bidi"))
    return Shared(choice(JsonString(hostname()), sequence('"', choice(left_to_right, bidi))))


@cache
def email() -> Grammar:
    """RFC 5321 ``Mailbox``, with the lengths of its section 4.5.3.1; no general address literals."""
    return _mailbox((), choice(plain_hostname(), _bracketed(choice(IPV4, sequence("IPv6:", IPV6)))))


@cache
def any_email() -> Grammar:
    """``email`` with every address literal, also of unregistered forms."""
    return _mailbox((), choice(plain_hostname(), _bracketed(repeat(CharClass([(33, 90), (94, 126)]), 1))))


@cache
def idn_email() -> Grammar:
    """RFC 6531 ``Mailbox``: ``email`` with non-ASCII characters; lengths count octets of UTF-8."""
    domain = choice(plain_hostname(), Intersection((mail_domain(), _octets(253))))
    return _mailbox((_BEYOND_ASCII,), choice(domain, _bracketed(choice(IPV4, sequence("IPv6:", IPV6)))))


def _bracketed(address: Grammar) -> Grammar:
    return sequence("[", address, "]")


def _mailbox(more: tuple[tuple[int, int], ...], domain: Grammar) -> Grammar:
    atext = CharClass([*characters("a-z", "A-Z", "0-9", *"!#$%&'*+-/=?^_`{|}~").ranges, *more])
    dotted = sequence(repeat(atext, 1), repeat(sequence(".", repeat(atext, 1))))
    quoted_text = CharClass([(32, 33), (35, 91), (93, 126), *more])
    quoted = sequence('"', repeat(choice(quoted_text, sequence("\\", CharClass([(32, 126)])))), '"')
    local = Intersection((choice(dotted, quoted), _octets(64)))
    return sequence(local, "@", domain)


def _octets(max_count: int) -> Grammar:
    return Repeat(ByteClass([(0, 255)]), 1, max_count)
