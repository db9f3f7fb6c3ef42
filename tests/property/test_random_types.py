"""Random types: written values are in the language and read back, and strings of the language pass validation."""

from __future__ import annotations

import json
import random
import unicodedata
from typing import Any

import pytest
from byte_membership import BYTES, is_member, random_member
from pydantic import TypeAdapter
from schema_as_written import as_written as json_schema
from type_universe import Universe, spaced, written

from structgen.engine import compile

VALUES = 4
EDITS = 8
WALKS = 6
LONGEST_WALK = 150
MODELS_AT_ONCE = 25


def edited(text: bytes, rng: random.Random) -> bytes:
    """The text with one byte left out, put in or replaced."""
    at = rng.randrange(len(text))
    byte = bytes([rng.choice(text + b'0"-,:.9a')])
    return text[:at] + rng.choice([b"", byte]) + text[at + rng.randint(0, 1) :]


def is_read(adapter: TypeAdapter[Any], text: bytes) -> bool:
    try:
        adapter.validate_json(text)
    except ValueError:
        return False
    return True


def has_unassigned(text: bytes) -> bool:
    """Whether the text has characters that Python's Unicode does not know: pydantic's may count them as letters."""
    return any(
        unicodedata.category(character) == "Cn" for character in json.dumps(json.loads(text), ensure_ascii=False)
    )


def check(seed: int) -> None:
    universe = Universe(seed)
    kind = universe.model()
    adapter: TypeAdapter[Any] = TypeAdapter(kind.annotation)
    start = compile(json_schema(kind.annotation), BYTES).matcher()
    for _ in range(VALUES):
        value = kind.make()
        text = written(adapter, value)
        assert is_member(start, text), (seed, text)
        assert is_member(start, spaced(text)), (seed, text)
        assert adapter.validate_json(text) == value, (seed, text)
        for _ in range(EDITS):
            other = edited(text, universe.rng)
            assert not is_member(start, other) or is_read(adapter, other), (seed, other)
    for _ in range(WALKS):
        text = random_member(start, universe.rng, LONGEST_WALK)
        assert is_read(adapter, text) or has_unassigned(text), (seed, text)


@pytest.mark.parametrize("first", range(0, 500, MODELS_AT_ONCE))
def test_random_models(first: int) -> None:
    """Values of random models are accepted, with spaces too, and read back; random and edited texts are valid."""
    for seed in range(first, first + MODELS_AT_ONCE):
        check(seed)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("first", range(1_000, 11_000, 1_000))
def test_more_random_models(first: int) -> None:
    """The same holds for ten thousand other models."""
    for seed in range(first, first + 1_000):
        check(seed)
