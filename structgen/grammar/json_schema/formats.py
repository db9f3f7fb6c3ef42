"""The values of ``format`` that are asserted, each a regular language over the decoded text.

Languages are made at first use and shared by all grammars.  Dates are in ``format_dates``, names and mail addresses in
``format_names``, URIs in ``format_uris``, regular expressions in ``format_regex``.

Some formats are beyond a finite automaton.  Their language here lies within the format; beside it stands one that
holds the format, for proofs that two schemas have nothing in common, and a procedure that judges constants.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from structgen.grammar.json_schema import format_dates, format_idn, format_names, format_regex, format_uris
from structgen.grammar.json_schema.format_terms import HEX, IPV4, IPV6, characters
from structgen.grammar.json_schema.idna import is_valid_name
from structgen.grammar.json_schema.membership import belongs
from structgen.grammar.nodes import ANY_CHAR, CharClass, Grammar, JsonString, Repeat, Shared, choice, repeat, sequence

__all__ = [
    "ASSERTED",
    "PLAIN_HOSTNAME",
    "STANDARD",
    "StandardFormat",
    "format_admits",
    "format_language",
    "format_string",
    "is_bounded",
    "outer_language",
]

PLAIN_HOSTNAME: Final = "hostname of RFC 1034"
"""What ``hostname`` means up to draft 6: labels that begin with ``xn--`` are like any other."""


class _Format(NamedTuple):
    """A format.

    Attributes:
        language: makes the texts that are written.
        left_out: what is left out of the format, for the report; nothing where the language is the format.
        outer: makes a language that holds the whole format.
        decide: whether a text belongs to the format, or ``None`` if that is not known.
        string: makes the JSON strings, where they are more than those of ``language``.
    """

    language: Callable[[], Grammar]
    left_out: str = ""
    outer: Callable[[], Grammar] | None = None
    decide: Callable[[str], bool | None] | None = None
    string: Callable[[], Grammar] | None = None


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


def _anything() -> Grammar:
    return Repeat(ANY_CHAR)


def _is_hostname(text: str) -> bool:
    return is_valid_name(text, international=False)


def _is_idn_hostname(text: str) -> bool:
    return is_valid_name(text, international=True)


def _is_regex(text: str) -> bool | None:
    return True if belongs(text, format_regex.regex_language()) else None


def _is_email(text: str) -> bool | None:
    return belongs(text, format_language("email")) or (None if belongs(text, outer_language("email")) else False)


def _is_idn_email(text: str) -> bool | None:
    return True if belongs(text, format_language("idn-email")) else None if "@" in text else False


_ADDRESS_LITERALS: Final = "general address literals are not written"

ASSERTED: Final[dict[str, _Format]] = {
    "date": _Format(format_dates.date),
    "time": _Format(format_dates.time),
    "date-time": _Format(format_dates.date_time),
    "duration": _Format(format_dates.duration),
    "email": _Format(format_names.email, _ADDRESS_LITERALS, format_names.any_email, _is_email),
    "idn-email": _Format(
        format_names.idn_email,
        f"{_ADDRESS_LITERALS}, nor long labels and some with marks or contextual characters",
        _anything,
        _is_idn_email,
    ),
    "hostname": _Format(
        format_names.hostname,
        "labels that begin with xn-- are written among the first three, without characters that compose",
        format_names.plain_hostname,
        _is_hostname,
        format_names.hostname_string,
    ),
    "idn-hostname": _Format(
        format_idn.idn_hostname,
        "most long labels, some with marks or contextual characters, and xn-- after the third label are not written",
        _anything,
        _is_idn_hostname,
        format_idn.idn_hostname_string,
    ),
    "ipv4": _Format(lambda: IPV4),
    "ipv6": _Format(lambda: IPV6),
    "uuid": _Format(_uuid),
    "uri": _Format(format_uris.uri),
    "uri-reference": _Format(format_uris.uri_reference),
    "iri": _Format(format_uris.iri),
    "iri-reference": _Format(format_uris.iri_reference),
    "uri-template": _Format(format_uris.uri_template),
    "json-pointer": _Format(_json_pointer),
    "relative-json-pointer": _Format(_relative_json_pointer),
    "regex": _Format(
        format_regex.regex_language,
        "ECMA-262 with the flag u; named groups, back references and ranges only where they are certain",
        _anything,
        _is_regex,
        format_regex.regex_string,
    ),
}
"""The formats that are asserted, by the name that a schema gives them."""

_BY_NAME: Final = ASSERTED | {PLAIN_HOSTNAME: _Format(format_names.plain_hostname)}


@cache
def format_language(name: str) -> Grammar:
    """The decoded texts of an asserted format; not all of them where the format is not regular."""
    return _BY_NAME[name].language()


def is_bounded(name: str) -> bool:
    """Whether a language is known that holds all of an asserted format and is not that of all texts."""
    return _BY_NAME[name].outer is not _anything


@cache
def outer_language(name: str) -> Grammar:
    """A language that holds every text of an asserted format."""
    outer = _BY_NAME[name].outer
    return format_language(name) if outer is None else outer()


@cache
def format_string(name: str) -> Grammar:
    """The JSON strings of an asserted format."""
    string = _BY_NAME[name].string
    return Shared(JsonString(format_language(name))) if string is None else string()


def format_admits(name: str, text: str) -> bool | None:
    """Whether ``text`` belongs to an asserted format; ``None``: that is not known."""
    decide = _BY_NAME[name].decide
    return belongs(text, format_language(name)) if decide is None else decide(text)


class StandardFormat:
    """An asserted format, as :class:`~structgen.grammar.json_schema.user_formats.StringFormat` says."""

    __slots__ = ("is_regular", "name", "unbounded")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_regular = True
        self.unbounded = "" if is_bounded(name) else "of which only a part is known"

    @property
    def language(self) -> Grammar:
        """The decoded texts that are written, regular."""
        return format_language(self.name)

    @property
    def outer(self) -> Grammar:
        """A regular language that holds all texts of the format."""
        return outer_language(self.name)

    @property
    def string(self) -> Grammar:
        """The JSON strings."""
        return format_string(self.name)

    def admits(self, text: str) -> bool | None:
        """Whether ``text`` belongs to the format; ``None``: that is not known."""
        return format_admits(self.name, text)


STANDARD: Final = {name: StandardFormat(name) for name in _BY_NAME}
"""The asserted formats by name, each one object."""
