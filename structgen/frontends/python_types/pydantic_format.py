"""The strings that pydantic reads as dates, durations, decimals, addresses and so on.

JSON Schema has no names for most of them, or defines them by RFC 3339 and RFC 3986, which differ: Python has no year 0
and no second 60, reads times without an offset, and writes durations with fractions. Every language here is a subset of
what validation accepts and contains what serialization writes; ``docs/reference/types.md`` lists the omissions.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import cache
from typing import Final

from structgen.frontends.json_schema.formats import date as any_date
from structgen.frontends.json_schema.formats.identifier import IPV4, IPV6
from structgen.frontends.json_schema.term import HEX, characters
from structgen.frontends.regex import regex
from structgen.grammar.algebra import undescribed
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    ByteClass,
    CharClass,
    Grammar,
    Intersection,
    Repeat,
    choice,
    literal,
    repeat,
    sequence,
)

__all__ = [
    "FORMATS",
    "base64_text",
    "complex_text",
    "date_text",
    "datetime_text",
    "decimal_text",
    "duration_text",
    "encoded_length",
    "hex_text",
    "stripped_text",
    "time_text",
    "url_text",
]

_DIGIT: Final = characters("0-9")
_CLOCK: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]{{1,9}})?"
_OFFSET: Final = rf"(?:[Zz]|[+-]{_CLOCK})"


@cache
def _matching(pattern: str) -> Grammar:
    """The strings that a pattern matches from end to end."""
    return undescribed(regex(pattern))


@cache
def _any_date() -> Grammar:
    return any_date() & ~("0000" + Repeat(ANY_CHAR))


def date_text(minimum: date | None = None, maximum: date | None = None) -> Grammar:
    """Dates of the years 1 to 9999, within bounds."""
    parts = [_any_date()]
    if minimum is not None:
        parts.append(_compared(minimum.isoformat(), is_above=True))
    if maximum is not None:
        parts.append(_compared(maximum.isoformat(), is_above=False))
    return parts[0] if len(parts) == 1 else Intersection(parts)


def _compared(bound: str, *, is_above: bool) -> Grammar:
    """The strings of the length of ``bound`` at or above it, or at or below it, compared digit by digit."""
    forms: list[Grammar] = [literal(bound)]
    for index, mark in enumerate(bound):
        low, high = (ord(mark) + 1, ord("9")) if is_above else (ord("0"), ord(mark) - 1)
        if mark.isdigit() and low <= high:
            rest = len(bound) - index - 1
            forms.append(sequence(bound[:index], CharClass([(low, high)]), repeat(ANY_CHAR, rest, rest)))
    return choice(*forms)


def time_text(offset: str = "any") -> Grammar:
    """A time of the day; with an offset (``"aware"``), without one (``"naive"``), or ``"any"``."""
    return _matching(_TIME + _offset(offset))


def datetime_text(offset: str = "any") -> Grammar:
    """A date and a time; ``offset`` as in :func:`time_text`."""
    return sequence(_any_date(), _matching("[Tt ]" + _TIME + _offset(offset)))


def _offset(offset: str) -> str:
    return {"aware": _OFFSET, "naive": "", "any": f"{_OFFSET}?"}[offset]


@cache
def duration_text() -> Grammar:
    """Durations of ISO 8601 as Python writes them (a year has 365 days), up to ``timedelta.max``.

    Durations above a million years have one form only, the serialized one.
    """
    seconds = r"[0-9]{1,7}(?:\.[0-9]{1,6})?S"
    time = rf"T(?:[0-9]{{1,4}}H(?:[0-9]{{1,5}}M)?(?:{seconds})?|[0-9]{{1,5}}M(?:{seconds})?|{seconds})"
    days = rf"(?:[0-9]{{1,6}}Y(?:[0-9]{{1,8}}D)?|[0-9]{{1,8}}D)(?:{time})?|{time}|[0-9]{{1,6}}W"
    clock = r"T(?=[0-9])(?:(?:1?[0-9]|2[0-3])H)?(?:[1-5]?[0-9]M)?(?:[1-5]?[0-9](?:\.[0-9]{1,6})?S)?"
    years = "1[0-9]{6}|2[0-6][0-9]{5}|27[0-2][0-9]{4}|273[0-8][0-9]{3}|2739[0-6][0-9]{2}|27397[01][0-9]|273972[0-5]"
    of_year = "(?:[1-9]?[0-9]|[12][0-9]{2}|3[0-5][0-9]|36[0-4])D"
    long = rf"(?:{years})Y(?:{of_year})?(?:{clock})?|2739726Y(?:[0-8]D)?(?:{clock})?"
    return _matching(rf"-?P(?:{days}|{long}|2739726Y9D)|P2739726Y9D{clock}")


def decimal_text(max_digits: int | None, places: int | None) -> Grammar:
    """Finite decimals, of at most ``max_digits`` digits and ``places`` decimal places."""
    if max_digits is None and places is None:
        return _matching(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,6})?")
    if max_digits is None:
        some = rf"|\.[0-9]{{1,{places}}}" if places else ""
        exponent = r"(?:[eE]\+?[0-9]{1,6})?"
        return _matching(rf"[+-]?(?:[0-9]+(?:\.[0-9]{{0,{places}}})?{some}){exponent}")
    fraction = max_digits if places is None else min(places, max_digits)
    whole = max_digits if places is None else max(max_digits - places, 0)
    forms = [rf"0+(?:\.[0-9]{{0,{fraction}}})?"]
    forms += [rf"\.[0-9]{{1,{fraction}}}"] if fraction else []
    for count in range(1, whole + 1):
        forms.append(rf"0*[0-9]{{{count}}}(?:\.[0-9]{{0,{min(fraction, max_digits - count)}}})?")
    return _matching(f"[+-]?(?:{'|'.join(forms)})")


def complex_text() -> Grammar:
    """Complex numbers as Python writes and reads them."""
    number = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?"
    return _matching(rf"[+-]?{number}(?:[+-]{number}j|j)?")


@cache
def stripped_text() -> Grammar:
    """The strings that neither begin nor end with white space."""
    spaces = [code for code in range(0x3001) if chr(code).isspace()]
    outer = ANY_CHAR & ~CharClass([(code, code) for code in spaces])
    return choice(EPSILON, outer, sequence(outer, Repeat(ANY_CHAR), outer))


def encoded_length(minimum: int, maximum: int | None) -> Grammar:
    """Strings by their number of bytes in UTF-8."""
    return Intersection([Repeat(ANY_CHAR), Repeat(ByteClass([(0, 0xFF)]), minimum, maximum)])


def hex_text(minimum: int, maximum: int | None) -> Grammar:
    """Bytes in hexadecimal digits, by their number."""
    return repeat(sequence(HEX, HEX), minimum, maximum)


def base64_text(minimum: int = 0, maximum: int | None = None, *, is_url: bool) -> Grammar:
    """Bytes in padded Base 64, by their number."""
    mark = "[A-Za-z0-9_-]" if is_url else "[A-Za-z0-9+/]"
    forms = []
    for rest, tail in enumerate(("", f"{mark}[AQgw]==", f"{mark}{mark}[AEIMQUYcgkosw048]=")):
        if maximum is None or maximum >= rest:
            fewest = max(0, -((rest - minimum) // 3))
            longest = None if maximum is None else (maximum - rest) // 3
            if longest is None or longest >= fewest:
                forms.append(sequence(repeat(_matching(mark * 4), fewest, longest), _matching(tail)))
    return choice(*forms)


def url_text(schemes: tuple[str, ...], *, is_multiple: bool) -> Grammar:
    """URLs with a host, of the given schemes or of any.

    Hosts are addresses, and ASCII names without ``--`` (as in A-labels) whose last label begins with a letter; several
    hosts with ``is_multiple``.
    """
    scheme = choice(*schemes) if schemes else _matching("[a-z][a-z0-9]*(?:[+.-][a-z0-9]+)*")
    escape = "%[0-9A-Fa-f]{2}"
    label = "[A-Za-z0-9](?:-?[A-Za-z0-9])*"
    name = _matching(rf"(?:{label}\.)*[A-Za-z](?:-?[A-Za-z0-9])*")
    host = choice(name, IPV4, sequence("[", IPV6, "]"))
    number = "[1-5]?[0-9]{1,4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
    authority = sequence(host, repeat(_matching(f":(?:{number})"), 0, 1))
    if is_multiple:
        authority = sequence(authority, repeat(sequence(",", authority)))
    user = _matching(rf"(?:(?:[A-Za-z0-9._~!$&'()*+;=-]|{escape})+(?::(?:[A-Za-z0-9._~!$&'()*+;=-]|{escape})+)?@)?")
    mark = rf"[A-Za-z0-9._~!$&'()*+,;=:@-]|{escape}"
    path = _matching(rf"(?:/(?:{mark})*)*(?:\?(?:{mark}|[/?])*)?(?:#(?:{mark}|[/?])*)?")
    forms = [sequence(scheme, "://", user, authority, path)]
    if not schemes or "file" in schemes:
        forms = [sequence(scheme & ~literal("file"), "://", user, authority, path)] if schemes != ("file",) else []
        forms.append(sequence("file://", repeat(name, 0, 1), "/", path))
    return choice(*forms)


def _uuid_text(version: int) -> Callable[[], Grammar]:
    mark = "[0-9A-Fa-f]"
    return lambda: _matching(f"{mark}{{8}}-{mark}{{4}}-{version}{mark}{{3}}-[89abAB]{mark}{{3}}-{mark}{{12}}")


def _prefix(maximum: int) -> Grammar:
    """``/`` and a number of bits."""
    return sequence("/", choice(*map(str, range(maximum + 1))))


def _ipv4_interface() -> Grammar:
    return sequence(IPV4, repeat(_prefix(32), 0, 1))


def _ipv6_interface() -> Grammar:
    return sequence(IPV6, repeat(_prefix(128), 0, 1))


def _ipv4_network() -> Grammar:
    """An address whose bits after the prefix are 0."""
    any_octet = choice(*map(str, range(256)))
    forms = [IPV4]
    for bits in range(33):
        whole, part = divmod(bits, 8)
        octets = [any_octet] * whole
        if whole < 4:
            octets.append(choice(*map(str, range(0, 256, 1 << 8 - part))) if part else literal("0"))
            octets += [literal("0")] * (3 - whole)
        dots = [item for octet in octets for item in (".", octet)][1:]
        forms.append(sequence(*dots, f"/{bits}"))
    return choice(*forms)


def _ipv6_network() -> Grammar:
    """The same, if the last groups of zeros are omitted, or the prefix has all bits."""
    group = repeat(HEX, 1, 4)
    forms = [IPV6, sequence(IPV6, "/128")]
    for bits in range(113):
        whole, part = divmod(bits, 16)
        groups = [group] * whole
        last = _masked_group(part) if part else None
        for count in range(whole + 1):  # the number of written groups; the others are 0
            items = groups[:count] if count < whole or last is None else [*groups, last]
            separated = [item for one in items for item in (":", one)][1:]
            forms.append(sequence(*separated, f"::/{bits}"))
    return choice(*forms)


def _masked_group(bits: int) -> Grammar:
    """A group of four digits whose bits after the first ``bits`` are 0.

    Without leading zeros or with all four digits.
    """
    whole, part = divmod(bits, 4)
    step = 1 << 4 - part
    last = CharClass([(ord(mark), ord(mark)) for n in range(0, 16, step) for mark in {f"{n:x}", f"{n:X}"}])
    digits = [HEX] * whole + ([last] if part else [])
    return choice("0", sequence(*digits, "0" * (4 - len(digits))))


FORMATS: Final[dict[str, Callable[[], Grammar]]] = {
    **{f"uuid{version}": _uuid_text(version) for version in range(1, 9)},
    "ipv4interface": _ipv4_interface,
    "ipv6interface": _ipv6_interface,
    "ipv4network": _ipv4_network,
    "ipv6network": _ipv6_network,
    "ipvanyaddress": lambda: choice(IPV4, IPV6),
    "ipvanyinterface": lambda: choice(_ipv4_interface(), _ipv6_interface()),
    "ipvanynetwork": lambda: choice(_ipv4_network(), _ipv6_network()),
    "base64": lambda: base64_text(is_url=False),
    "base64url": lambda: base64_text(is_url=True),
    "fraction": lambda: _matching("[+-]?[0-9]{1,64}(?:/0*[1-9][0-9]{0,63})?"),
}
"""The meaning of pydantic's own format names."""
