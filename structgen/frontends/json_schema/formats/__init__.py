"""The asserted formats of the specification, as languages of the decoded string."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Final, NamedTuple

from structgen.frontends.json_schema.formats.hostname import (
    any_email,
    email,
    hostname,
    hostname_string,
    idn_email,
    idn_hostname,
    idn_hostname_string,
    plain_hostname,
)
from structgen.frontends.json_schema.formats.identifier import (
    IPV4,
    IPV6,
    iri,
    iri_reference,
    is_valid_name,
    uri,
    uri_reference,
    uri_template,
)
from structgen.frontends.json_schema.formats.regex import regex_language, regex_string
from structgen.frontends.json_schema.term import DIGITS, HEX, belongs, characters, optional, padded
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Grammar,
    JsonString,
    Repeat,
    Shared,
    choice,
    choice_of,
    literal,
    repeat,
    sequence,
    sequence_of,
)

__all__ = [
    "ASSERTED",
    "PLAIN_HOSTNAME",
    "STANDARD",
    "StandardFormat",
    "date",
    "date_time",
    "duration",
    "format_admits",
    "format_language",
    "time",
]


@cache
def date() -> Grammar:
    """``full-date``: a day that exists in the proleptic Gregorian calendar."""
    digit = characters("0-9")
    year = repeat(digit, 4, 4)
    # Divisible by four: an even digit and 0, 4, 8, or an odd digit and 2, 6; a century if its number is.
    even, odd = characters(*"02468"), characters(*"13579")
    fourth = choice(sequence(even, characters(*"048")), sequence(odd, characters(*"26")))
    fourth_not_zero = choice(
        sequence("0", characters(*"48")),
        sequence(characters(*"2468"), characters(*"048")),
        sequence(odd, characters(*"26")),
    )
    leap = choice(sequence(fourth, "00"), sequence(digit, digit, fourth_not_zero))
    long = choice(*(f"{month:02}" for month in (1, 3, 5, 7, 8, 10, 12)))
    short = choice(*(f"{month:02}" for month in (4, 6, 9, 11)))
    month_day = choice(
        sequence(long, "-", padded(1, 31)), sequence(short, "-", padded(1, 30)), sequence("02-", padded(1, 28))
    )
    return choice(sequence(year, "-", month_day), sequence(leap, "-02-29"))


@cache
def time() -> Grammar:
    """``full-time``: second 60 only where it is 23:59 in UTC."""
    fraction = optional(sequence(".", DIGITS))
    hour_minute = sequence(padded(0, 23), ":", padded(0, 59))
    offset = choice(characters("Z", "z"), sequence(characters("+", "-"), hour_minute))
    ordinary = sequence(hour_minute, ":", padded(0, 59), fraction, offset)
    return choice(ordinary, _leap_seconds(sequence(":60", fraction)))


def _leap_seconds(second: Grammar) -> Grammar:
    """Second 60 of each local minute with the offsets for which UTC is 23:59, or ``Z``.

    There are thousands of them, so they are built digit by digit from shared terms.
    """
    digits = [literal(str(digit)) for digit in range(10)]
    clocks = [f"{minute:02}" for minute in range(60)]
    pairs = [literal(clock) for clock in clocks]
    ahead = [sequence_of((second, literal(f"+{hour:02}:"))) for hour in range(24)]
    after = [sequence_of((second, literal(f"-{hour:02}:"))) for hour in range(24)]

    def tens(hour: int, ten: int) -> Grammar:
        result: list[Grammar] = []
        for digit in range(10):
            minute = 10 * ten + digit
            carry, next_minute = divmod(minute + 1, 60)
            result.append(sequence_of((digits[digit], ahead[(hour + carry) % 24], pairs[next_minute])))
            result.append(sequence_of((digits[digit], after[23 - hour], pairs[59 - minute])))
        if (hour, ten) == (23, 5):
            result.append(sequence_of((digits[9], second, characters("Z", "z"))))
        return sequence_of((digits[ten], choice_of(tuple(result))))

    hours = [sequence(f"{hour:02}:", choice_of(tuple([tens(hour, ten) for ten in range(6)]))) for hour in range(24)]
    return choice_of(tuple(hours))


@cache
def date_time() -> Grammar:
    """``date-time``: a date, ``T`` or ``t``, and a time."""
    return sequence(date(), characters("T", "t"), time())


@cache
def duration() -> Grammar:
    """``duration`` of RFC 3339 appendix A: units in order and without gaps, weeks alone."""
    seconds = sequence(DIGITS, "S")
    minutes = sequence(DIGITS, "M", optional(seconds))
    hours = sequence(DIGITS, "H", optional(minutes))
    clock = sequence("T", choice(hours, minutes, seconds))
    days = sequence(DIGITS, "D")
    months = sequence(DIGITS, "M", optional(days))
    years = sequence(DIGITS, "Y", optional(months))
    calendar = sequence(choice(days, months, years), optional(clock))
    return sequence("P", choice(calendar, clock, sequence(DIGITS, "W")))


PLAIN_HOSTNAME: Final = "hostname of RFC 1034"
"""``hostname`` up to draft 6, where labels that begin with ``xn--`` are not special."""


class _Format(NamedTuple):
    """A format.

    Attributes:
        language: makes the language of the texts that may be written.
        left_out: what the language omits, for the report; empty where it is the whole format.
        outer: makes a superset of the format.
        decide: whether a text has the format; ``None`` if unknown.
        string: makes the JSON strings, where there are more than those of ``language``.
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


@cache
def _anything() -> Grammar:
    return Repeat(ANY_CHAR)


def _is_hostname(text: str) -> bool:
    return is_valid_name(text, international=False)


def _is_idn_hostname(text: str) -> bool:
    return is_valid_name(text, international=True)


def _is_regex(text: str) -> bool | None:
    return True if belongs(text, regex_language()) else None


def _is_email(text: str) -> bool | None:
    return belongs(text, format_language("email")) or (None if belongs(text, any_email()) else False)


def _is_idn_email(text: str) -> bool | None:
    return True if belongs(text, format_language("idn-email")) else None if "@" in text else False


_ADDRESS_LITERALS: Final = "general address literals are not written"

ASSERTED: Final[dict[str, _Format]] = {
    "date": _Format(date),
    "time": _Format(time),
    "date-time": _Format(date_time),
    "duration": _Format(duration),
    "email": _Format(email, _ADDRESS_LITERALS, any_email, _is_email),
    "idn-email": _Format(
        idn_email,
        f"{_ADDRESS_LITERALS}, nor long labels and some with marks or contextual characters",
        _anything,
        _is_idn_email,
    ),
    "hostname": _Format(
        hostname,
        "labels that begin with xn-- are written among the first three, without characters that compose",
        plain_hostname,
        _is_hostname,
        hostname_string,
    ),
    "idn-hostname": _Format(
        idn_hostname,
        "most long labels, some with marks or contextual characters, and xn-- after the third label are not written",
        _anything,
        _is_idn_hostname,
        idn_hostname_string,
    ),
    "ipv4": _Format(lambda: IPV4),
    "ipv6": _Format(lambda: IPV6),
    "uuid": _Format(_uuid),
    "uri": _Format(uri),
    "uri-reference": _Format(uri_reference),
    "iri": _Format(iri),
    "iri-reference": _Format(iri_reference),
    "uri-template": _Format(uri_template),
    "json-pointer": _Format(_json_pointer),
    "relative-json-pointer": _Format(_relative_json_pointer),
    "regex": _Format(
        regex_language,
        "ECMA-262 with the flag u; named groups, back references and ranges only where they are certain",
        _anything,
        _is_regex,
        regex_string,
    ),
}
"""The asserted formats by name."""

_BY_NAME: Final = ASSERTED | {PLAIN_HOSTNAME: _Format(plain_hostname)}


@cache
def format_language(name: str) -> Grammar:
    """The decoded texts of an asserted format; a subset where the format is not regular."""
    return _BY_NAME[name].language()


def format_admits(name: str, text: str) -> bool | None:
    """Whether ``text`` has an asserted format; ``None`` if unknown."""
    decide = _BY_NAME[name].decide
    return belongs(text, format_language(name)) if decide is None else decide(text)


class StandardFormat:
    """An asserted format; a :class:`~structgen.frontends.json_schema.formats.user_format.StringFormat`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_regular = True
        self._made = _BY_NAME[name]
        self.unbounded = "which is known only in part" if self._made.outer is _anything else ""

    @property
    def language(self) -> Grammar:
        """The regular language of the decoded texts that may be written."""
        return format_language(self.name)

    @property
    def outer(self) -> Grammar:
        """A regular superset of the texts of the format."""
        return self.language if self._made.outer is None else self._made.outer()

    @cached_property
    def string(self) -> Grammar:
        """The JSON strings; always the same object, so that an engine can cache it."""
        return Shared(JsonString(self.language)) if self._made.string is None else self._made.string()

    def admits(self, text: str) -> bool | None:
        """Whether ``text`` has the format; ``None`` if unknown."""
        return format_admits(self.name, text)


STANDARD: Final = {name: StandardFormat(name) for name in _BY_NAME}
"""The asserted formats by name; one object for each name."""
