"""The values of ``format`` that are asserted, each a regular language over the decoded text.

Languages are made at first use and shared by all grammars.  Internet names follow RFC 1123 and 5321, addresses
RFC 2673 and 4291; dates are in ``format_dates``, URIs in ``format_uris``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final

from structgen.grammar.json_schema import format_dates, format_uris
from structgen.grammar.json_schema.format_terms import (
    ALPHANUMERIC,
    HEX,
    IPV4,
    IPV6,
    characters,
    optional,
)
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Grammar,
    Intersection,
    JsonString,
    Repeat,
    Shared,
    choice,
    repeat,
    sequence,
)

__all__ = ["ASSERTED", "NARROWED", "NOT_REGULAR", "format_language", "format_string"]

NARROWED: Final = frozenset(("email", "hostname", "ipv6", "iri", "iri-reference", "uri", "uri-reference"))
"""Formats of which only a part is written; what is not written may be valid all the same."""

NOT_REGULAR: Final = {
    "regex": "balanced parentheses are beyond a finite automaton",
    "idn-email": "validity of an internationalised name depends on Unicode tables and on the whole label",
    "idn-hostname": "validity of an internationalised name depends on Unicode tables and on the whole label",
}
"""Formats of the specification that are refused, with the reason."""


def _hostname() -> Grammar:
    """RFC 1123 names: labels of at most 63 characters, 253 in all.

    Labels with hyphens in the third and fourth place are left out: RFC 5890 reserves them, and whether an
    ``xn--`` label is valid is beyond a finite automaton.
    """
    inner = characters("a-z", "A-Z", "0-9", "-")
    solid = ALPHANUMERIC
    short = sequence(solid, optional(solid))
    # From the third character on: not both the third and the fourth are hyphens; the last is none.
    third_solid = sequence(solid, inner, solid, optional(sequence(repeat(inner, 0, 59), solid)))
    third_hyphen = sequence(solid, inner, "-", solid, optional(sequence(repeat(inner, 0, 58), solid)))
    label = choice(short, third_solid, third_hyphen)
    name = sequence(label, repeat(sequence(".", label)))
    return Intersection((name, Repeat(ANY_CHAR, 1, 253)))


def _email() -> Grammar:
    """RFC 5321 ``Mailbox``, with the lengths of its section 4.5.3.1; no general address literals."""
    atext = characters("a-z", "A-Z", "0-9", *"!#$%&'*+-/=?^_`{|}~")
    atom = repeat(atext, 1)
    dotted = sequence(atom, repeat(sequence(".", atom)))
    quoted_pair = sequence("\\", CharClass([(32, 126)]))
    quoted = sequence('"', repeat(choice(CharClass([(32, 33), (35, 91), (93, 126)]), quoted_pair)), '"')
    local = Intersection((choice(dotted, quoted), Repeat(ANY_CHAR, 1, 64)))
    literal_address = sequence("[", choice(IPV4, sequence("IPv6:", IPV6)), "]")
    return sequence(local, "@", choice(format_language("hostname"), literal_address))


def _uuid() -> Grammar:
    """RFC 4122 section 3: groups of 8, 4, 4, 4 and 12 hexadecimal digits."""
    groups = [repeat(HEX, count, count) for count in (8, 4, 4, 4, 12)]
    return sequence(groups[0], *(part for group in groups[1:] for part in ("-", group)))


def _json_pointer() -> Grammar:
    """RFC 6901."""
    plain = CharClass([(0, 0x2E), (0x30, 0x7D), (0x7F, 0x10FFFF)])
    return repeat(sequence("/", repeat(choice(plain, "~0", "~1"))))


def _relative_json_pointer() -> Grammar:
    """The relative JSON Pointers of the drafts: how many levels up, then a pointer or ``#``."""
    levels = choice("0", sequence(characters("1-9"), repeat(characters("0-9"))))
    return sequence(levels, choice("#", _json_pointer()))


ASSERTED: Final[dict[str, Callable[[], Grammar]]] = {
    "date": format_dates.date,
    "time": format_dates.time,
    "date-time": format_dates.date_time,
    "duration": format_dates.duration,
    "email": _email,
    "hostname": _hostname,
    "ipv4": lambda: IPV4,
    "ipv6": lambda: IPV6,
    "uuid": _uuid,
    "uri": format_uris.uri,
    "uri-reference": format_uris.uri_reference,
    "iri": format_uris.iri,
    "iri-reference": format_uris.iri_reference,
    "uri-template": format_uris.uri_template,
    "json-pointer": _json_pointer,
    "relative-json-pointer": _relative_json_pointer,
}
"""The formats that are asserted, each with the maker of its language."""


@cache
def format_language(name: str) -> Grammar:
    """The decoded texts of an asserted format."""
    return ASSERTED[name]()


@cache
def format_string(name: str) -> Grammar:
    """The JSON strings of an asserted format."""
    return Shared(JsonString(format_language(name)))
