"""Documents that ``hypothesis-jsonschema``, which knows nothing of structgen, makes for a schema are accepted."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from data_folder import real_schemas
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.errors import HypothesisWarning
from json_validators import Disagreement, Judge
from schema_as_written import as_written as json_schema

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy
from structgen.testing.instance_order import declared_orders

pytest.importorskip("hypothesis_jsonschema", reason="hypothesis-jsonschema is not installed")
from schema_documents import SCHEMAS, documents

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
EVERY_SPELLING = JsonPolicy("flexible", order="any", numbers="all", escapes="all")
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
SAMPLE_STEP = 61
"""Every 61st schema is looked at in an ordinary run: about 110."""
AT_NIGHT = (pytest.mark.nightly, pytest.mark.timeout(3_600))
LONGEST = 600
"""Schemas whose text is longer are left out: drawing for them takes minutes."""


class Wrong(Exception):
    """structgen and the validators disagree about a document."""


def compiled(schema: Any, policy: JsonPolicy) -> Constraint | None:
    try:
        return compile(json_schema(schema, policy=policy), BYTES)
    except (UnsupportedFeature, LimitExceeded):
        return None


def accepts(constraint: Constraint, value: Any) -> bool:
    text = json.dumps(value, ensure_ascii=False).encode()
    matcher = constraint.matcher()
    return matcher.accept_bytes(text) == len(text) and matcher.is_accepting


def tamed(value: Any) -> Any:
    """The value with other numbers in place of very long ones: how many digits are allowed depends on the policy."""
    if isinstance(value, list):
        return [tamed(item) for item in value]
    if isinstance(value, dict):
        return {name: tamed(item) for name, item in value.items()}
    if isinstance(value, float):
        return round(value % 1_000, 3)
    return value % 10**15 if isinstance(value, int) and abs(value) > 10**15 else value


def canonical(value: Any) -> Any:
    """The value with integers written as in the default policy, where a schema treats integers specially."""
    if isinstance(value, list):
        return [canonical(item) for item in value]
    if isinstance(value, dict):
        return {name: canonical(item) for name, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@pytest.mark.nightly
@given(SCHEMAS, st.data())
@settings(max_examples=max(200, settings().max_examples), suppress_health_check=list(HealthCheck))
def test_documents_of_random_schemas_are_members(schema: Any, data: st.DataObject) -> None:
    """Exactly the valid documents are accepted in any order, and in declared order by the default policy too."""
    schema = {"$schema": DRAFT_7, **schema} if isinstance(schema, dict) else schema
    value = tamed(data.draw(documents(schema)))
    expected = Judge(schema).is_valid(json.dumps(value))  # tamed, or sampled for a format, it may be invalid
    try:
        constraint = compiled(schema, EVERY_SPELLING)
        declared = compiled(schema, JsonPolicy("flexible"))
    except UnsatisfiableGrammar:
        assert not expected, value
        return
    if constraint is not None:
        assert accepts(constraint, value) == expected
    if declared is not None:
        assert any(accepts(declared, one) for one in declared_orders(canonical(value), schema)) == expected


@pytest.mark.parametrize(
    "step", [SAMPLE_STEP, pytest.param(5, marks=[pytest.mark.nightly, pytest.mark.timeout(3_600)])]
)
def test_documents_of_real_schemas_are_members(step: int, shared_data: Path) -> None:
    """Every document that the library can draw for a schema is accepted."""
    outcomes = Counter[str]()
    for case in real_schemas(shared_data, step):
        schema = case["schema"]
        if len(json.dumps(schema)) > LONGEST:
            continue
        try:
            constraint = compiled(schema, EVERY_SPELLING)
        except GrammarError:
            continue
        if constraint is not None:
            outcomes[sampled_for(schema, constraint, case["name"])] += 1
    assert outcomes["sampled"] > outcomes["not sampled"], outcomes


def sampled_for(schema: Any, constraint: Constraint, name: str) -> str:
    """Whether the library can draw documents for a schema; a few are tried."""
    judge = Judge(schema)
    seen = 0

    @given(documents(schema))
    @settings(max_examples=2, phases=[Phase.generate], database=None, suppress_health_check=list(HealthCheck))
    def look(value: Any) -> None:
        nonlocal seen
        seen += 1
        value = tamed(value)
        text = json.dumps(value)
        try:
            is_right = accepts(constraint, value) == judge.is_valid(text)
        except Disagreement as disagreement:
            raise Wrong(name) from disagreement
        if not is_right:
            raise Wrong(f"{name}: {text}")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HypothesisWarning)
            look()
    except Wrong:
        raise
    except Exception:  # it gives up in many ways: recursion, patterns, references, assertions of its own
        return "not sampled"
    return "sampled" if seen else "not sampled"
