"""Values of JSON scalars, and the possible values of a scalar's prefix.

Numbers are compared exactly, however large: a number has a key ``(sign, magnitude, digits)`` in the same order.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Final, NamedTuple, TypeAlias

__all__ = [
    "Key",
    "Moment",
    "NumberInterval",
    "canonical",
    "digest_of",
    "may_be",
    "moment_of",
    "moments_from",
    "number_of",
    "numbers_from",
    "partial_string",
    "string_of",
    "units",
]

Key: TypeAlias = tuple[int, int, str]

_ZERO: Final[Key] = (0, 0, "")
_MAX_EXPONENT: Final = 18
_NUMBER: Final = re.compile(rb"(-?)(\d*)(?:(\.)(\d*))?(?:([eE])([+-]?)(\d*))?")
_INVERTED: Final = str.maketrans("0123456789", "9876543210")


class NumberInterval(NamedTuple):
    """An interval of numbers; None is infinity.  By default the lower bound is included, and there is no upper bound.

    Attributes:
        low: the lower bound.
        includes_low: whether the lower bound is included.
        high: the upper bound.
        includes_high: whether the upper bound is included.
    """

    low: Key | None
    includes_low: bool = True
    high: Key | None = None
    includes_high: bool = False

    def holds(self, value: Key) -> bool:
        """Whether it contains ``value``."""
        above = self.low is None or value > self.low or (self.includes_low and value == self.low)
        below = self.high is None or value < self.high or (self.includes_high and value == self.high)
        return above and below


class _Parts(NamedTuple):
    """The spelling of a number, or of its prefix."""

    negative: bool
    integer: str
    fraction: str | None
    exponent_sign: str | None
    exponent: str


def number_of(raw: bytes) -> Key | None:
    """Return the key of a number; None if its exponent has more than 18 digits."""
    parts = _parts(raw)
    exponent = parts.exponent.lstrip("0")
    if len(exponent) > _MAX_EXPONENT:
        return None
    power = int(exponent or "0") * (-1 if parts.exponent_sign == "-" else 1)
    key = _key(parts.integer, parts.fraction or "", power)
    return _negative(key) if parts.negative else key


def numbers_from(raw: bytes, *, exponents: bool) -> NumberInterval:
    """Return the smallest interval that contains all numbers with this prefix.

    Args:
        raw: at least one byte of a number.
        exponents: whether an exponent may follow, if there is none yet.
    """
    parts = _parts(raw)
    span = _magnitudes(parts, exponents=exponents)
    if not parts.negative:
        return span
    low, high = (None if edge is None else _negative(edge) for edge in (span.low, span.high))
    return NumberInterval(high, span.includes_high, low, span.includes_low)


def may_be(raw: bytes, value: Key) -> bool:
    """Whether a number with this prefix may equal ``value``: sign and digits match, and the interval contains it."""
    parts = _parts(raw)
    written = (parts.integer + (parts.fraction or "")).lstrip("0")
    digits = value[2] if value[0] >= 0 else value[2][:-1].translate(_INVERTED)
    if parts.exponent_sign is None:
        fits = (digits + "0" * len(written)).startswith(written)
    else:
        fits = written.rstrip("0") == digits
    return fits and numbers_from(raw, exponents=True).holds(value)


def string_of(raw: bytes) -> str:
    """Return the value of a string, quotes included; unpaired surrogates stay unchanged."""
    return str(json.loads(raw.decode("utf-8", "replace"), strict=False))


class _Partial(NamedTuple):
    """The prefix of a string.

    Attributes:
        text: its complete characters.
        escape: an incomplete escape.
        half: the bytes of an incomplete character.
    """

    text: str
    escape: str
    half: bytes


_ESCAPE_END: Final = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")


def partial_string(raw: bytes) -> _Partial:
    """Return the characters of an unclosed string; ``raw`` begins with its quote."""
    body = raw[1:]
    for match in re.finditer(rb"\\(?:u[0-9a-fA-F]{4}|[^u]|u[0-9a-fA-F]{0,3}\Z|\Z)", body, re.DOTALL):
        if match.end() == len(body) and _ESCAPE_END.fullmatch(match[0]):
            return _Partial(string_of(b'"' + body[: match.start()] + b'"'), match[0].decode(), b"")
    half = b""
    for count in range(1, 4):
        lead = body[-count : -count + 1 or None] if len(body) >= count else b""
        if lead and lead[0] >= 0xC2:
            needed = 2 if lead[0] < 0xE0 else 3 if lead[0] < 0xF0 else 4
            half = body[-count:] if count < needed else b""
            break
        if not lead or lead[0] < 0x80:
            break
    return _Partial(string_of(b'"' + body[: len(body) - len(half)] + b'"'), "", half)


def canonical(text: str) -> bytes:
    """Return the shortest spelling of a string's characters, without quotes; escapes where JSON requires them."""
    try:
        return json.dumps(text, ensure_ascii=False)[1:-1].encode()
    except UnicodeEncodeError:  # unpaired surrogates
        return json.dumps(text)[1:-1].encode()


def units(text: str) -> bytes:
    """Return the UTF-16 code units of a text, two bytes each, as escapes spell them."""
    return text.encode("utf-16-be", "surrogatepass")


# moments


class Moment(NamedTuple):
    """A date, a time of day, or both.

    Attributes:
        kind: its fields; only moments of one kind can be compared.
        seconds: since a fixed origin, in UTC if there is an offset.
        fraction: the digits after the seconds, without trailing zeros.
    """

    kind: str
    seconds: int
    fraction: str = ""


_DATE: Final = r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)"
_TIME: Final = (
    r"(?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?"
    r"(?P<offset>[Zz]|[+-]\d\d(?::?\d\d)?)?"
)
_MOMENT: Final = re.compile(rf"(?:{_DATE})?(?P<separator>(?<=\d)[Tt ])?(?:{_TIME})?", re.ASCII)
_DAY: Final = 86_400
_TAIL: Final = re.compile(r"(?:\.(?P<fraction>\d*))?(?P<offset>[Zz]|[+-](?:\d\d?(?::?\d{0,2})?)?)?", re.ASCII)


def moment_of(text: str) -> Moment | None:
    """Return the date, time or date-time of a text (ISO 8601 as in RFC 3339; seconds and offset are optional)."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        return None
    fields = match.groupdict()
    has_date, has_time = fields["year"] is not None, fields["hour"] is not None
    if (has_date and has_time) != (fields["separator"] is not None) or not (has_date or has_time):
        return None
    seconds = 0
    if has_date:
        year, month, day = int(fields["year"]), int(fields["month"]), int(fields["day"])
        if not 1 <= month <= 12 or not 1 <= day <= _days(year, month):
            return None
        seconds = _day_number(year, month, day) * _DAY
    offset = fields["offset"]
    if has_time:
        hour, minute, second = int(fields["hour"]), int(fields["minute"]), int(fields["second"] or 0)
        if hour > 23 or minute > 59 or second > 60:
            return None
        seconds += hour * 3600 + minute * 60 + second
        if offset is not None and offset not in "Zz":
            hours, minutes = int(offset[1:3]), int(offset[-2:] if len(offset) > 3 else 0)
            if hours > 23 or minutes > 59:
                return None
            seconds -= (hours * 3600 + minutes * 60) * (1 if offset[0] == "+" else -1)
    kind = "date" * has_date + "time" * has_time + " with offset" * (offset is not None)
    return Moment(kind, seconds, (fields["fraction"] or "").rstrip("0"))


def moments_from(text: str, kind: str) -> tuple[int, int] | None:
    """Return the range of seconds of the moments of ``kind`` that begin with ``text``; None if there are none.

    Exact for dates; up to a second too wide for times, and up to a day for offsets.
    """
    fields: list[tuple[str, int]] = []
    if kind.startswith("date"):
        fields += [("year", 4), ("-", 1), ("month", 2), ("-", 1), ("day", 2)]
    if kind.startswith("datetime"):
        fields.append(("Tt ", 1))
    if "time" in kind:
        fields += [("hour", 2), (":", 1), ("minute", 2)]
    low: dict[str, int] = {"year": 0, "month": 1, "day": 1, "hour": 0, "minute": 0, "second": 0}
    high = {"year": 9999, "month": 12, "day": 31, "hour": 23, "minute": 59, "second": 60}
    rest = text
    for field, width in fields:
        part, rest = rest[:width], rest[width:]
        if len(field) < 4 and field not in low:
            if part and part not in field:
                return None
            continue
        last = _days(low["year"], low["month"]) if field == "day" and part else high[field]
        fitting = [value for value in range(low[field], last + 1) if f"{value:0{width}}".startswith(part)]
        if not fitting:
            return None
        low[field], high[field] = fitting[0], fitting[-1]
    if rest and not _tail_fits(rest, kind, low, high):
        return None
    if "date" in kind:
        high["day"] = min(high["day"], _days(high["year"], high["month"]))
    return _seconds(low, kind) - _slack(kind), _seconds(high, kind) + _slack(kind) + ("time" in kind)


def _tail_fits(rest: str, kind: str, low: dict[str, int], high: dict[str, int]) -> bool:
    """Whether the part after the minutes is a valid prefix; stores the seconds in ``low`` and ``high``."""
    if "time" not in kind:
        return False
    if rest.startswith(":"):
        part, rest = rest[1:3], rest[3:]
        fitting = [value for value in range(61) if f"{value:02}".startswith(part)]
        if not fitting or (rest and len(part) < 2):
            return False
        low["second"], high["second"] = fitting[0], fitting[-1]
    elif rest[0] == ".":
        return False
    else:
        high["second"] = 0
    match = _TAIL.fullmatch(rest)
    return match is not None and (match["offset"] is None or kind.endswith("offset"))


def _slack(kind: str) -> int:
    return _DAY if kind.endswith("offset") else 0


def _seconds(fields: dict[str, int], kind: str) -> int:
    days = _day_number(fields["year"], fields["month"], fields["day"]) if kind.startswith("date") else 0
    clock = fields["hour"] * 3600 + fields["minute"] * 60 + fields["second"] if "time" in kind else 0
    return days * _DAY + clock


def _days(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def _day_number(year: int, month: int, day: int) -> int:
    """Return the number of a day in the Gregorian calendar; years begin in March, so that leap days come last."""
    if month < 3:
        year, month = year - 1, month + 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day


# whole values


_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[-+.0-9eE]+|true|false|null|[\[\]{}]', re.DOTALL)


def digest_of(raw: bytes) -> bytes:
    """Return a digest (BLAKE2b, 16 bytes) of a JSON value: equal exactly for equal values.

    Numbers are equal by value, objects regardless of the order of their members.
    """
    stack: list[tuple[bool, list[bytes]]] = []
    done = b""
    for match in _TOKENS.finditer(raw):
        token = match[0]
        if token in (b"[", b"{"):
            stack.append((token == b"{", []))
            continue
        if token in (b"]", b"}"):
            is_object, parts = stack.pop()
            if is_object:
                parts = sorted(b"".join(pair) for pair in dict(zip(parts[::2], parts[1::2], strict=True)).items())
            done = _digest(token + b"".join(parts))
        else:
            done = _digest(_scalar_text(token))
        if stack:
            stack[-1][1].append(done)
    return done


def _scalar_text(token: bytes) -> bytes:
    if token.startswith(b'"'):
        return b'"' + units(string_of(token))
    if token[:1] in (b"t", b"f", b"n"):
        return token
    return repr(number_of(token) or token).encode()


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


# numbers


def _parts(raw: bytes) -> _Parts:
    match = _NUMBER.fullmatch(raw)
    if match is None:
        raise ValueError(f"{raw!r} is not a prefix of a number")
    minus, integer, point, fraction, mark, sign, exponent = match.groups()
    return _Parts(
        bool(minus),
        integer.decode(),
        fraction.decode() if point else None,
        sign.decode() if mark else None,
        exponent.decode() if mark else "",
    )


def _key(integer: str, fraction: str, power: int) -> Key:
    """Return the key of a number without a sign."""
    digits = (integer + fraction).lstrip("0")
    if not digits:
        return _ZERO
    magnitude = len(integer) - (len(integer) + len(fraction) - len(digits)) + power
    return 1, magnitude, digits.rstrip("0")


def _negative(key: Key) -> Key:
    """Return the key of a number's negation; ``:`` sorts after the digits, so that longer numbers come first."""
    if key[0] == 0:
        return key
    return -1, -key[1], key[2].translate(_INVERTED) + ":"


def _magnitudes(parts: _Parts, *, exponents: bool) -> NumberInterval:
    """Return the interval of the absolute values."""
    integer, fraction = parts.integer, parts.fraction
    if not integer:
        return NumberInterval(_ZERO)
    mantissa = _key(integer, fraction or "", 0)
    if parts.exponent_sign is None and not exponents:
        if fraction is None and integer != "0":
            return NumberInterval(mantissa)
        return NumberInterval(mantissa, high=_next(integer, fraction or ""))
    if mantissa == _ZERO:
        return (
            NumberInterval(_ZERO)
            if parts.exponent_sign is None
            else NumberInterval(_ZERO, high=_ZERO, includes_high=True)
        )
    if parts.exponent_sign is None or (not parts.exponent_sign and not parts.exponent):
        return NumberInterval(_ZERO, includes_low=False)
    power = parts.exponent.lstrip("0")
    if len(power) > _MAX_EXPONENT:
        return NumberInterval(_ZERO, includes_low=False, high=_ZERO)
    shift = int(power or "0")
    if parts.exponent_sign == "-":
        return NumberInterval(_ZERO, includes_low=False, high=_key(integer, fraction or "", -shift), includes_high=True)
    return NumberInterval(_key(integer, fraction or "", shift))


def _next(integer: str, fraction: str) -> Key:
    """Return the number with its last digit increased by one."""
    digits = integer + fraction
    stem = digits.rstrip("9")
    if not stem:
        return _key("1" + "0" * len(integer), "", 0)
    more = stem[:-1] + str(int(stem[-1]) + 1) + "0" * (len(digits) - len(stem))
    return _key(more[: len(integer)], more[len(integer) :], 0)
