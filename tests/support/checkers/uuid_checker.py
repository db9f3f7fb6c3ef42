"""UUIDs: Python's own class, in the single spelling of the grammar."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import UUID

from checked_language import Language, everything


def problem(text: str) -> str | None:
    try:
        is_canonical = str(UUID(text)) == text.lower()
    except ValueError as error:
        return str(error)
    return None if is_canonical else "it has another spelling"


def documents(rng: random.Random) -> Iterator[str]:
    while True:
        text = str(UUID(int=rng.getrandbits(128), version=rng.randint(1, 5)))
        yield rng.choice((text, text.upper()))


LANGUAGE = Language(problem, documents, everything, alphabet="gG{}")
