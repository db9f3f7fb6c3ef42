"""Real schemas with members in any order: valid instances are accepted in every spelling, invalid ones never.

``test_json_schema_outcomes`` judges instances in the declared order.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_folder import REAL_SCHEMAS, real_schemas
from schema_as_written import as_written as json_schema

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded
from structgen.testing.instance_order import shuffled

SAMPLE_STEP = 11
"""Every eleventh schema is tried in an ordinary run: about 620."""
MIN_COMPILED = 0.98
"""The share of schemas that are not refused; a lower one is a step back."""


@pytest.fixture(scope="session")
def byte_vocabulary() -> Vocabulary:
    """One token a byte."""
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


@pytest.mark.parametrize("step", [SAMPLE_STEP, pytest.param(1, marks=pytest.mark.nightly)])
def test_real_schemas_in_any_order(shared_data: Path, step: int, byte_vocabulary: Vocabulary) -> None:
    """With ``order="any"`` every valid instance is accepted, as given and shuffled, and no invalid one is."""
    path = shared_data / REAL_SCHEMAS
    if not path.is_file():
        pytest.skip(f"no file {path}")
    _compare_shuffled(real_schemas(shared_data, step), byte_vocabulary)


def _compare_shuffled(schemas: list[dict[str, Any]], vocabulary: Vocabulary) -> None:
    rng = random.Random(9)
    outcomes = Counter[str]()
    wrong: list[tuple[str, str]] = []
    for case in schemas:
        try:
            constraint = compile(json_schema(case["schema"], order="any"), vocabulary)
        except (GrammarError, LimitExceeded):
            outcomes["refused"] += 1
            continue
        outcomes["compiled"] += 1
        for test in case["tests"]:
            for data in (test["data"], *(shuffled(test["data"], rng) for _ in range(3))):
                text = json.dumps(data, ensure_ascii=False)
                accepted = _accepts(constraint, text)
                outcomes[f"{'valid' if test['valid'] else 'invalid'} {'accepted' if accepted else 'rejected'}"] += 1
                if accepted != test["valid"]:
                    wrong.append((case["name"], text[:300]))
    assert wrong == [], outcomes
    assert outcomes["compiled"] >= MIN_COMPILED * (outcomes["compiled"] + outcomes["refused"]), outcomes


def _accepts(constraint: Constraint, text: str) -> bool:
    matcher, data = constraint.matcher(), text.encode("utf-8", "surrogatepass")
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting
