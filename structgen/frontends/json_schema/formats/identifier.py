"""Identifiers of the Internet: IDNA 2008 labels, IP addresses, URIs, IRIs and URI templates.

Sources: RFC 5890 to 5893 for internationalised labels; RFC 3986, 3987 and 6570, production by production.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Final

from structgen.frontends.json_schema.term import ALPHA, ALPHANUMERIC, HEX, characters, optional
from structgen.grammar.nodes import CharClass, Grammar, choice, repeat, sequence

__all__ = [
    "CONTEXTUAL",
    "GREEK",
    "HEBREW",
    "IPV4",
    "IPV6",
    "JAPANESE",
    "JOINS_LEFT",
    "JOINS_RIGHT",
    "composing_characters",
    "iri",
    "iri_reference",
    "is_a_label",
    "is_valid_name",
    "uri",
    "uri_reference",
    "uri_template",
    "valid_characters",
]

GREEK: Final = ((0x370, 0x373), (0x376, 0x377), (0x37B, 0x37D), (0x3AC, 0x3CE), (0x3D7, 0x3E1), (0x3F3, 0x3F3))
HEBREW: Final = ((0x5D0, 0x5EA), (0x5EF, 0x5F2))
JAPANESE: Final = ((0x3041, 0x3096), (0x30A1, 0x30FA), (0x3005, 0x3007), (0x3400, 0x4DBF), (0x4E00, 0x9FFF))
"""Characters of the scripts in contextual rules: Greek, Hebrew; Hiragana, Katakana and Han."""
JOINS_LEFT: Final = (
    (0x626, 0x626), (0x628, 0x628), (0x62A, 0x62E), (0x633, 0x63F), (0x641, 0x647), (0x649, 0x64A), (0x6CC, 0x6CC),
    (0x679, 0x687), (0x69A, 0x6BF),
)  # fmt: skip
JOINS_RIGHT: Final = (*JOINS_LEFT, (0x622, 0x625), (0x627, 0x627), (0x629, 0x629), (0x62F, 0x632), (0x648, 0x648))
"""Arabic letters that join to the next and to the previous letter, for the zero width non-joiner."""

_EXCEPTIONS: Final = frozenset((0xDF, 0x3C2, 0x6FD, 0x6FE, 0xF0B, 0x3007))
_DISALLOWED: Final = frozenset((0x640, 0x7FA, 0x302E, 0x302F, *range(0x3031, 0x3036), 0x303B))
CONTEXTUAL: Final = frozenset(
    (0xB7, 0x375, 0x5F3, 0x5F4, 0x30FB, 0x200C, 0x200D, *range(0x660, 0x66A), *range(0x6F0, 0x6FA))
)
"""The characters that are only valid in a context."""
_IGNORABLE: Final = (
    (0x34F, 0x34F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x20D0, 0x20FF), (0x3164, 0x3164),
    (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0x1D100, 0x1D24F), (0xE0000, 0xE0FFF),
    (0x1100, 0x11FF), (0xA960, 0xA97C), (0xD7B0, 0xD7FB),
)  # fmt: skip
"""Ignorable characters and blocks, and the old Hangul letters."""
_LETTERS_AND_DIGITS: Final = frozenset(("Lu", "Ll", "Lo", "Nd", "Lm", "Mn", "Mc"))
_VIRAMA: Final = 9


@cache
def valid_characters() -> tuple[tuple[int, int], ...]:
    """The non-ASCII characters that are valid anywhere (``PVALID`` of RFC 5892), as ranges."""
    return tuple(_ranges([code for code in range(0x80, 0x33480) if _is_valid(code)]))


@cache
def composing_characters() -> frozenset[int]:
    """The characters that compose with a preceding character."""
    codes = set()
    for code in range(0x80, 0x33480):
        parts = unicodedata.decomposition(chr(code)).split()
        if len(parts) == 2 and parts[0][0] != "<":
            codes.add(int(parts[1], 16))
    return frozenset(codes)


def _is_valid(code: int) -> bool:
    if code in _EXCEPTIONS:
        return True
    character = chr(code)
    if unicodedata.category(character) not in _LETTERS_AND_DIGITS or code in _DISALLOWED or code in CONTEXTUAL:
        return False
    if 0x4E00 <= code <= 0x9FFF or 0xAC00 <= code <= 0xD7A3:  # stable without the tables
        return True
    if any(low <= code <= high for low, high in _IGNORABLE):
        return False
    normal = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", character).casefold())
    return normal == character


def _ranges(codes: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges


def is_valid_name(text: str, *, international: bool) -> bool:
    """Whether ``text`` is a host name; with ``international`` labels may have non-ASCII characters.

    Complexity: linear.
    """
    if international:
        for separator in "\u3002\uff0e\uff61":
            text = text.replace(separator, ".")
    elif not text.isascii():
        return False
    labels = [_decoded(label, international=international) for label in text.split(".")]
    if any(label is None for label in labels):
        return False
    names = [label for label in labels if label is not None]
    length = sum(len(_encoded(name)) + 1 for name in names) - 1
    is_mixed = any(unicodedata.bidirectional(c) in ("R", "AL", "AN") for name in names for c in name)
    return length <= 253 and (not is_mixed or all(map(_obeys_bidi, names)))


def is_a_label(label: str, *, bidi: bool) -> bool:
    """Whether ``label``, with ``xn--``, is an A-label without composing characters.

    With ``bidi`` it must obey RFC 5893, else it must have no right-to-left characters.
    """
    name = _decoded(label, international=False) if label[:4].lower() == "xn--" else None
    if name is None or any(ord(character) in composing_characters() for character in name):
        return False
    return _obeys_bidi(name) if bidi else all(unicodedata.bidirectional(c) not in ("R", "AL", "AN") for c in name)


def _decoded(label: str, *, international: bool) -> str | None:
    """The decoded label, or ``None`` if it is not valid."""
    if label[:4].lower() == "xn--":
        try:
            name = label[4:].lower().encode("ascii").decode("punycode")
        except UnicodeError:
            return None
        is_fine = not name.isascii() and _encoded(name) == label.lower() and _is_label(name)
        return name if is_fine and len(label) <= 63 else None
    if not label.isascii():
        return label if _is_label(label) and len(_encoded(label)) <= 63 else None
    plain = label.replace("-", "")
    is_plain = plain.isalnum() and label[0] != "-" != label[-1] and len(label) <= 63
    return label if is_plain and not (international and label[2:4] == "--") else None


def _encoded(name: str) -> str:
    return name if name.isascii() else "xn--" + name.encode("punycode").decode("ascii")


def _is_label(name: str) -> bool:
    """Whether a non-ASCII label is valid, apart from its length and direction."""
    if unicodedata.normalize("NFC", name) != name or name[0] == "-" or name[-1] == "-" or name[2:4] == "--":
        return False
    if unicodedata.category(name[0])[0] == "M":
        return False
    return all(_stands_well(name, index) for index in range(len(name)))


def _stands_well(name: str, index: int) -> bool:
    code = ord(name[index])
    if code < 0x80:
        return name[index] in "abcdefghijklmnopqrstuvwxyz0123456789-"
    if code not in CONTEXTUAL:
        return _is_valid(code)
    before = name[index - 1] if index else ""
    after = name[index + 1 :][:1]
    if code in (0x200C, 0x200D):
        is_after_virama = bool(before) and unicodedata.combining(before) == _VIRAMA
        return is_after_virama or (code == 0x200C and _joins(name[:index], name[index + 1 :]))
    if code == 0xB7:
        return before == after == "l"
    if code == 0x375:
        return _within(after, GREEK)
    if code in (0x5F3, 0x5F4):
        return _within(before, HEBREW)
    if code == 0x30FB:
        return any(_within(character, JAPANESE) for character in name)
    other = range(0x6F0, 0x6FA) if code < 0x6F0 else range(0x660, 0x66A)
    return not any(ord(character) in other for character in name)


def _within(character: str, ranges: tuple[tuple[int, int], ...]) -> bool:
    return bool(character) and any(low <= ord(character) <= high for low, high in ranges)


def _joins(before: str, after: str) -> bool:
    """Whether letters around a zero width non-joiner would join without it."""
    left = next((c for c in reversed(before) if unicodedata.category(c) != "Mn"), "")
    right = next((c for c in after if unicodedata.category(c) != "Mn"), "")
    return _within(left, JOINS_LEFT) and _within(right, JOINS_RIGHT)


def _obeys_bidi(name: str) -> bool:
    """The rule of RFC 5893 for labels of a name that has right-to-left characters."""
    kinds = [unicodedata.bidirectional(character) for character in name]
    while kinds and kinds[-1] == "NSM":
        kinds.pop()
    if not kinds or kinds[0] not in ("L", "R", "AL"):
        return False
    result = set(kinds)
    neutral = {"EN", "ES", "CS", "ET", "ON", "BN", "NSM"}
    if kinds[0] == "L":
        return result <= neutral | {"L"} and kinds[-1] in ("L", "EN")
    return result <= neutral | {"R", "AL", "AN"} and kinds[-1] in ("R", "AL", "EN", "AN") and not {"EN", "AN"} <= result


def _ipv4() -> Grammar:
    """Four decimal numbers up to 255 without leading zeros."""
    digit = characters("0-9")
    octet = choice(
        digit,
        sequence(characters("1-9"), digit),
        sequence("1", digit, digit),
        sequence("2", characters("0-4"), digit),
        sequence("25", characters("0-5")),
    )
    return sequence(octet, repeat(sequence(".", octet), 3, 3))


IPV4: Final = _ipv4()


def _ipv6() -> Grammar:
    """``IPv6address`` of RFC 3986: eight groups, one run of zero groups may be left out, the end may be IPv4."""
    group = repeat(HEX, 1, 4)
    last = choice(sequence(group, ":", group), IPV4)
    leading = sequence(group, ":")

    def before(max_count: int) -> Grammar:
        return optional(sequence(repeat(leading, 0, max_count), group)) if max_count else optional(group)

    forms = [sequence(repeat(leading, 6, 6), last), sequence("::", repeat(leading, 5, 5), last)]
    forms += [sequence(before(6 - n - 1), "::", repeat(leading, n - 1, n - 1), last) for n in range(5, 0, -1)]
    forms += [sequence(before(5), "::", group), sequence(before(6), "::")]
    return choice(*forms)


IPV6: Final = _ipv6()


_PERCENT: Final = sequence("%", HEX, HEX)
_SUBDELIMITERS: Final = "!$&'()*+,;="
_UCS: Final = (
    (0xA0, 0xD7FF),
    (0xF900, 0xFDCF),
    (0xFDF0, 0xFFEF),
    *((plane << 16, (plane << 16) + 0xFFFD) for plane in range(1, 14)),
    (0xE1000, 0xEFFFD),
)
_PRIVATE: Final = ((0xE000, 0xF8FF), (0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))
_Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class _Generic:
    """The generic syntax, with the non-ASCII characters of IRIs.

    Attributes:
        wide: further unreserved characters.
        private: further characters of a query.
    """

    wide: _Ranges = ()
    private: _Ranges = ()

    def _character(self, extra: str, more: _Ranges = ()) -> Grammar:
        ascii_part = characters("a-z", "A-Z", "0-9", *"-._~", *_SUBDELIMITERS, *extra).ranges
        return choice(CharClass([*ascii_part, *self.wide, *more]), _PERCENT)

    def _authority(self) -> Grammar:
        user = sequence(repeat(self._character(":")), "@")
        future = sequence(
            characters("v", "V"),
            repeat(HEX, 1),
            ".",
            repeat(characters("a-z", "A-Z", "0-9", *"-._~", *_SUBDELIMITERS, ":"), 1),
        )
        host = choice(sequence("[", choice(IPV6, future), "]"), IPV4, repeat(self._character("")))
        return sequence(optional(user), host, optional(sequence(":", repeat(characters("0-9")))))

    def _hierarchical(self, *, first_may_have_colon: bool) -> Grammar:
        pchar = self._character(":@")
        further = repeat(sequence("/", repeat(pchar)))
        rooted = sequence("/", optional(sequence(repeat(pchar, 1), further)))
        first = pchar if first_may_have_colon else self._character("@")
        rootless = sequence(repeat(first, 1), further)
        return optional(choice(sequence("//", self._authority(), further), rooted, rootless))

    def _suffix(self) -> Grammar:
        query = sequence("?", repeat(self._character(":@/?", self.private)))
        fragment = sequence("#", repeat(self._character(":@/?")))
        return sequence(optional(query), optional(fragment))

    def absolute(self) -> Grammar:
        """``URI``: a scheme, then the rest."""
        scheme = sequence(ALPHA, repeat(characters("a-z", "A-Z", "0-9", *"+-.")))
        return sequence(scheme, ":", self._hierarchical(first_may_have_colon=True), self._suffix())

    def relative(self) -> Grammar:
        """``relative-ref``: no scheme, so no colon in the first segment."""
        return sequence(self._hierarchical(first_may_have_colon=False), self._suffix())


@cache
def uri() -> Grammar:
    """``URI``; no zone identifiers in addresses."""
    return _Generic().absolute()


@cache
def uri_reference() -> Grammar:
    """``URI-reference``."""
    return choice(uri(), _Generic().relative())


@cache
def iri() -> Grammar:
    """``IRI``."""
    return _Generic(_UCS, _PRIVATE).absolute()


@cache
def iri_reference() -> Grammar:
    """``IRI-reference``."""
    return choice(iri(), _Generic(_UCS, _PRIVATE).relative())


@cache
def uri_template() -> Grammar:
    """``URI-Template`` of RFC 6570, with the operators of level 4 and the reserved ones."""
    allowed = [0x21, *range(0x23, 0x25), *range(0x26, 0x3C), 0x3D, *range(0x3F, 0x5C)]
    allowed += [0x5D, 0x5F, *range(0x61, 0x7B), 0x7E]
    plain = choice(CharClass([*((code, code) for code in allowed), *_UCS, *_PRIVATE]), _PERCENT)
    varchar = choice(ALPHANUMERIC, "_", _PERCENT)
    name = sequence(varchar, repeat(sequence(optional(sequence(".")), varchar)))
    prefix = sequence(":", characters("1-9"), repeat(characters("0-9"), 0, 3))
    variable = sequence(name, optional(choice(prefix, "*")))
    variables = sequence(variable, repeat(sequence(",", variable)))
    return repeat(choice(plain, sequence("{", optional(characters(*"+#./;?&=,!@|")), variables, "}")))
