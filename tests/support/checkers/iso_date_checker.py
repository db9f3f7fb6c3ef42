"""Dates and times: what ``datetime`` reads; durations: what ``isoduration`` reads; spellings as regular expressions."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone

from checked_language import Language, problem_of
from isoduration import parse_duration
from isoduration.parser.exceptions import DurationParsingException

EXTENDED = re.compile(
    r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:[0-5]\d)?)?|\d\d:\d\d(:\d\d(\.\d{1,9})?)?(Z|[+-]\d\d:[0-5]\d)?"
    r"|P(\d{1,9}W|(\d{1,9}[YMD]){0,3}(T(\d{1,9}[HM]){0,2}(\d{1,9}(\.\d{1,9})?S)?)?)",
    re.ASCII,
)
# isoduration checks that the letters of a duration come in the order of the standard.


def parse(text: str) -> object:
    if text.startswith("P"):
        return parse_duration(text)
    if "T" in text:
        return datetime.fromisoformat(text)
    return time.fromisoformat(text) if ":" in text else date.fromisoformat(text)


def covers(text: str) -> bool:
    return bool(EXTENDED.fullmatch(text)) and not text.endswith("-00:00")


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        moment = datetime(1, 1, 1) + timedelta(
            days=rng.randrange(3_652_059), microseconds=rng.randrange(86_400 * 10**6)
        )
        moment = moment.replace(tzinfo=rng.choice((None, UTC, timezone(timedelta(minutes=rng.randint(-840, 840))))))
        yield moment.isoformat(timespec=rng.choice(("minutes", "seconds", "milliseconds", "microseconds")))
        yield moment.date().isoformat()
        yield moment.time().isoformat()
        parts = [f"{rng.randint(0, 400)}{letter}" if rng.random() < 0.5 else "" for letter in "YMDHMS"]
        if any(parts[:3]) or any(parts[3:]):
            yield "P" + "".join(parts[:3]) + ("T" + "".join(parts[3:]) if any(parts[3:]) else "")


LANGUAGE = Language(problem_of(parse, ValueError, DurationParsingException), documents, covers, alphabet="WQ,")
