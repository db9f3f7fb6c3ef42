"""Dates, times and durations of RFC 3339, with the lengths of the months, leap years and leap seconds."""

from __future__ import annotations

from functools import cache

from structgen.grammar.json_schema.format_terms import DIGITS, characters, optional, padded
from structgen.grammar.nodes import Grammar, choice, choice_of, literal, repeat, sequence, sequence_of

__all__ = ["date", "date_time", "duration", "time"]


@cache
def date() -> Grammar:
    """``full-date``: a day that exists in the proleptic Gregorian calendar."""
    digit = characters("0-9")
    year = repeat(digit, 4, 4)
    # Divisible by four: an even digit and 0, 4, 8, or an odd one and 2, 6.  A century counts if its number does.
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
    """Second 60 of each local minute, with the two offsets that make it 23:59 in UTC, and ``Z`` where it is.

    There are thousands of these, so they are spelled digit by digit, from terms that they share.
    """
    digits = [literal(str(digit)) for digit in range(10)]
    clocks = [f"{minute:02}" for minute in range(60)]
    pairs = [literal(clock) for clock in clocks]
    ahead = [sequence_of((second, literal(f"+{hour:02}:"))) for hour in range(24)]
    behind = [sequence_of((second, literal(f"-{hour:02}:"))) for hour in range(24)]

    def tens(hour: int, ten: int) -> Grammar:
        found: list[Grammar] = []
        for digit in range(10):
            minute = 10 * ten + digit
            carry, next_minute = divmod(minute + 1, 60)
            found.append(sequence_of((digits[digit], ahead[(hour + carry) % 24], pairs[next_minute])))
            found.append(sequence_of((digits[digit], behind[23 - hour], pairs[59 - minute])))
        if (hour, ten) == (23, 5):
            found.append(sequence_of((digits[9], second, characters("Z", "z"))))
        return sequence_of((digits[ten], choice_of(tuple(found))))

    hours = [sequence(f"{hour:02}:", choice_of(tuple([tens(hour, ten) for ten in range(6)]))) for hour in range(24)]
    return choice_of(tuple(hours))


@cache
def date_time() -> Grammar:
    """``date-time``: a date and a time with ``T`` or ``t`` between."""
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
