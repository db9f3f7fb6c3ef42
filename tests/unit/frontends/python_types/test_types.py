"""Python types as grammars: written texts are accepted by validation, and read back as the same value."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from byte_membership import BYTES, is_member, random_member
from pydantic import TypeAdapter, ValidationError
from schema_as_written import as_written as json_schema
from type_cases import CASES, Case

from structgen.engine import Matcher, compile

WALKS = 12
LONGEST_WALK = 60


def matcher(kind: Any) -> Matcher:
    return compile(json_schema(kind), BYTES).matcher()


def is_valid(adapter: TypeAdapter[Any], text: bytes | str) -> bool:
    try:
        adapter.validate_json(text)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_values_are_written_and_read_back(case: Case) -> None:
    """What serialization writes is accepted, compact or with spaces, and reads back as an equal value."""
    adapter, start = TypeAdapter(case.kind), matcher(case.kind)
    assert len(case.values) >= 2
    for value in case.values:
        text = adapter.dump_json(value, round_trip=True)
        assert is_member(start, text), text
        assert is_member(start, json.dumps(json.loads(text), ensure_ascii=False).encode())
        read = adapter.validate_json(text)
        assert read == value
        assert type(read) is type(value)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_near_misses_are_refused_by_both(case: Case) -> None:
    """The grammar and validation both refuse texts of no value."""
    adapter, start = TypeAdapter(case.kind), matcher(case.kind)
    assert case.misses
    for text in case.misses:
        assert not is_member(start, text.encode()), text
        assert not is_valid(adapter, text), text


@pytest.mark.parametrize("case", [case for case in CASES.values() if case.is_walked], ids=list(CASES))
def test_members_are_valid(case: Case) -> None:
    """Validation reads random strings of the grammar."""
    adapter, start = TypeAdapter(case.kind), matcher(case.kind)
    rng = random.Random(5)
    for _ in range(WALKS):
        text = random_member(start, rng, LONGEST_WALK)
        assert is_valid(adapter, text), text
