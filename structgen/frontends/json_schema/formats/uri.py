"""IP addresses, URIs (RFC 3986), IRIs (RFC 3987) and URI templates (RFC 6570), production by production."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from structgen.frontends.json_schema.term import ALPHA, ALPHANUMERIC, HEX, characters, optional
from structgen.grammar.nodes import CharClass, Grammar, choice, repeat, sequence

__all__ = ["IPV4", "IPV6", "iri", "iri_reference", "uri", "uri_reference", "uri_template"]


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

    def before(most: int) -> Grammar:
        return optional(sequence(repeat(leading, 0, most), group)) if most else optional(group)

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
    """The generic syntax, with the characters beyond ASCII that IRIs add.

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
    """``URI-Template`` of RFC 6570, operators of level 4 and the reserved ones included."""
    allowed = [0x21, *range(0x23, 0x25), *range(0x26, 0x3C), 0x3D, *range(0x3F, 0x5C)]
    allowed += [0x5D, 0x5F, *range(0x61, 0x7B), 0x7E]
    plain = choice(CharClass([*((code, code) for code in allowed), *_UCS, *_PRIVATE]), _PERCENT)
    varchar = choice(ALPHANUMERIC, "_", _PERCENT)
    name = sequence(varchar, repeat(sequence(optional(sequence(".")), varchar)))
    prefix = sequence(":", characters("1-9"), repeat(characters("0-9"), 0, 3))
    variable = sequence(name, optional(choice(prefix, "*")))
    variables = sequence(variable, repeat(sequence(",", variable)))
    return repeat(choice(plain, sequence("{", optional(characters(*"+#./;?&=,!@|")), variables, "}")))
