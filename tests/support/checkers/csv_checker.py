"""CSV: the strict reader of Python's module, and the rules of RFC 4180, section 2, as a regular expression."""

from __future__ import annotations

import csv
import io
import random
import re
from collections.abc import Iterator

from checked_language import Language, everything
from installed_documents import files

FIELD = r'(?:"(?:[^"]|"")*"|[^",\r\n]*)'
RECORD = rf"{FIELD}(?:,{FIELD})*"
TEXT = re.compile(rf"{RECORD}(?:\r?\n{RECORD})*")


def problem(text: str) -> str | None:
    if TEXT.fullmatch(text) is None:
        return "RFC 4180 has no such text"
    try:
        records = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        return str(error)
    written = io.StringIO(newline="")
    csv.writer(written).writerows(records)
    again = list(csv.reader(io.StringIO(written.getvalue(), newline=""), strict=True))
    return None if again == records else "it is read as something else when it is written again"


def documents(rng: random.Random) -> Iterator[str]:
    yield from (text for text in files("*.csv", max_bytes=4_000, count=20) if problem(text) is None)
    words = ["Ada", "Grace Hopper", 'a "b" c', "x, y", "two\nlines", "", "é", "-1.5", " padded ", "漢"]
    while True:
        out = io.StringIO(newline="")
        writer = csv.writer(
            out, lineterminator=rng.choice(("\n", "\r\n")), quoting=rng.choice((csv.QUOTE_MINIMAL, csv.QUOTE_ALL))
        )
        width = rng.randint(1, 5)
        writer.writerows([rng.choices(words, k=width) for _ in range(rng.randint(1, 6))])
        yield out.getvalue()


LANGUAGE = Language(problem, documents, everything, alphabet='"\r\t')
