"""Times of crontabs: the package ``croniter``, and a reader that splits entries and compares numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from checked_language import Language, everything
from croniter import croniter

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
FIELDS = [(0, 59, []), (0, 23, []), (1, 31, []), (1, 12, MONTHS), (0, 7, DAYS)]
NICKNAMES = {"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}


def is_value(text: str, low: int, high: int, names: list[str]) -> bool:
    if text.lower() in names:
        return True
    return text.isascii() and text.isdigit() and len(text) <= 2 and low <= int(text) <= high


def is_part(text: str, low: int, high: int, names: list[str]) -> bool:
    items, slash, step = text.partition("/")
    if slash and not (is_value(step, 1, 99, []) and step[0] != "0" and (items == "*" or "-" in items)):
        return False
    ends = items.split("-")
    return items == "*" or (len(ends) <= 2 and all(is_value(end, low, high, names) for end in ends))


def problem(text: str) -> str | None:
    if text in NICKNAMES:
        return None if croniter.is_valid(text) else "croniter refuses it"
    fields = re.split("[ \t]{1,8}", text)
    if len(fields) != 5 or not text.isascii():
        return f"{len(fields)} fields"
    for field, limits in zip(fields, FIELDS, strict=True):
        parts = field.split(",")
        if len(parts) > 31 or not all(is_part(part, *limits) for part in parts):
            return f"field {field!r}"
    return None if croniter.is_valid(text) else "croniter refuses it"


def documents(rng: random.Random) -> Iterator[str]:
    def part(low: int, high: int, names: list[str]) -> str:
        first, last = sorted(rng.sample(range(low, high + 1), 2))
        if names and rng.random() < 0.3:
            return rng.choice(names).upper()
        span = rng.choice((f"{first}-{last}", "*", str(first)))
        return f"{span}/{rng.randint(1, 15)}" if not span.isdigit() and rng.random() < 0.4 else span

    while True:
        fields = [",".join(part(*limits) for _ in range(rng.choice((1, 1, 1, 2, 5)))) for limits in FIELDS]
        text = rng.choice((" ", " ", "\t")).join(fields)
        if croniter.is_valid(text):  # it refuses days that no month has
            yield text


LANGUAGE = Language(problem, documents, everything, alphabet="?LW#x")
