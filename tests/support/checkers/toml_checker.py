"""TOML: ``tomllib``."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from datetime import datetime, timedelta

import tomli_w
from checked_language import Language
from installed_documents import files
from json_checker import value

DEFINED_TWICE = ("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate inline table key", "Cannot redefine")


def complaint(text: str) -> str | None:
    try:
        tomllib.loads(text)
    except ValueError as error:
        return str(error)
    return None


def problem(text: str) -> str | None:
    found = complaint(text)
    return None if found is None or found.startswith(DEFINED_TWICE) else found


def covers(text: str) -> bool | None:
    if complaint(text) is not None:  # after a duplicate definition nothing was read
        return None
    return re.search(r"\d-\d\dt|:\d\d(\.\d+)?z|:\d\d\.\d{10}", text) is None


def without_null(item: object, rng: random.Random) -> object:
    """The part of a JSON value that TOML can express, with dates."""
    if isinstance(item, dict):
        return {key: without_null(inner, rng) for key, inner in item.items()}
    if isinstance(item, list):
        return [without_null(inner, rng) for inner in item]
    return datetime(1990, 1, 1) + timedelta(seconds=rng.randrange(10**9)) if item is None else item


def documents(rng: random.Random) -> Iterator[str]:
    yield from (
        text
        for text in files("*.toml", max_bytes=12_000, count=60)
        if problem(text) is None and covers(text) is not False
    )
    while True:
        table = {f"key {i}" if rng.random() < 0.2 else f"k{i}": without_null(value(rng), rng) for i in range(4)}
        yield tomli_w.dumps(table, multiline_strings=rng.random() < 0.5)


LANGUAGE = Language(problem, documents, covers, alphabet="\"'\\\r{}e")
