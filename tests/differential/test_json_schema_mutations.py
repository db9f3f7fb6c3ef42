"""Valid instances of real schemas with one change: accepted iff two validators call them valid."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_folder import real_schemas
from json_mutations import mutated
from json_spellings import spellings
from json_validators import Judge

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.json_schema import JsonPolicy, json_schema

EVERY_SPELLING = JsonPolicy(order="any", numbers="all", escapes="all")
SAMPLE_STEP = 9
"""Every ninth schema is tried in an ordinary run: about 750."""
BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict[str, Any]]:
    """All schemas of the data that have a valid instance."""
    return [case for case in real_schemas(shared_data) if any(test["valid"] for test in case["tests"])]


@pytest.mark.nightly
def test_mutations_of_a_sample(cases: list[dict[str, Any]]) -> None:
    """Five mutations per schema are judged alike."""
    compare(cases[::SAMPLE_STEP], count=5)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_mutations_of_all(cases: list[dict[str, Any]]) -> None:
    """Forty mutations per schema are judged alike."""
    compare(cases, count=40)


def compare(cases: list[dict[str, Any]], count: int) -> None:
    """Compare ``count`` mutations of each schema's instances, one in three changed twice, in any spelling."""
    seen = Counter[bool]()
    limited = 0
    for case in cases:
        try:
            constraint = compile(json_schema(case["schema"], policy=EVERY_SPELLING), BYTES)
        except (GrammarError, LimitExceeded):
            continue
        rng = random.Random(case["name"])
        judge = Judge(case["schema"])
        valid = [test["data"] for test in case["tests"] if test["valid"]]
        for _ in range(count):
            value = mutated(rng.choice(valid), rng)
            value = mutated(value, rng) if rng.random() < 0.3 else value
            text = rng.choice(list(spellings(value, rng.choice((frozenset(), None)))))
            expected = judge.is_valid(text)
            seen[expected] += 1
            try:
                assert accepts(constraint, text) == expected, f"{case['name']}: {text!r} is valid: {expected}"
                twice = with_a_member_twice(value, case["schema"])
                assert twice is None or not accepts(constraint, twice), f"{case['name']}: {twice!r}"
            except LimitExceeded:
                limited += 1
    assert limited < len(cases) / 1_000
    assert min(seen[True], seen[False]) > len(cases)


def with_a_member_twice(value: Any, schema: Any) -> bytes | None:
    """The text of an object in which a declared name is repeated at the end, if the object has one."""
    declared = schema.get("properties", {}) if isinstance(schema, dict) else {}
    if not isinstance(value, dict) or not (names := [name for name in declared if name in value]):
        return None
    return f"{json.dumps(value)[:-1]}, {json.dumps({names[0]: value[names[0]]})[1:]}".encode()


def accepts(constraint: Constraint, text: bytes) -> bool:
    matcher = constraint.matcher()
    return matcher.accept_bytes(text) == len(text) and matcher.is_accepting
