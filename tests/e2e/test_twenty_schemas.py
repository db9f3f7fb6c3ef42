"""The embedded model on twenty schemas: every output is valid, greedy and sampled, also at the exact minimum."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from structgen.decode import Greedy, Multinomial, Sampler, generate
from structgen.engine import compile
from structgen.frontends.json_schema import json_schema
from structgen.models import LanguageModel, load_model

pytestmark = pytest.mark.model

PROMPT = "Reply in JSON. Ada Lovelace, 36, of 12 Rue Cler, Paris (ada@example.org) ordered 3 lamps on 2024-03-12."


def record(**properties: Any) -> dict[str, Any]:
    """A closed object with all properties required."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SHORT = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, Any] = {
    "record": record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 130}),
    "optional": {**record(name=SHORT, email={"type": "string", "format": "email", "maxLength": 24}), "required": []},
    "open": {"type": "object", "properties": {"name": SHORT}, "required": ["name"], "additionalProperties": SHORT},
    "enum": {"enum": ["lamp", "chair", 3, None, {"kind": "table"}]},
    "const": {"const": {"ok": True, "items": [1, 2.5, "x"]}},
    "date": record(day={"type": "string", "format": "date"}),
    "moment": record(at={"type": "string", "format": "date-time"}),
    "uuid": {"type": "string", "format": "uuid"},
    "address": record(host={"type": "string", "format": "ipv4"}),
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "number": record(price={"type": "number", "minimum": 0, "exclusiveMaximum": 1000}),
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 500},
    "list": {"type": "array", "items": SHORT, "minItems": 1, "maxItems": 3},
    "tuple": {"type": "array", "prefixItems": [SHORT, {"type": "integer"}], "items": False, "minItems": 2},
    "union": {
        "anyOf": [
            record(kind={"const": "person"}, name=SHORT),
            record(kind={"const": "thing"}, count={"type": "integer"}),
        ]
    },
    "exclusive": {"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 1, "maximum": 9}]},
    "merged": {"allOf": [record(a=SHORT, b={"type": "integer"}), {"properties": {"b": {"minimum": 5, "maximum": 99}}}]},
    "nullable": record(note={"type": ["string", "null"], "maxLength": 10}),
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": record(
                value={"type": "integer"}, children={"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
            )
        },
    },
    "nested": record(
        order=record(items={"type": "array", "items": record(name=SHORT, count={"type": "integer"}), "maxItems": 2})
    ),
}
SAMPLERS: list[tuple[Sampler, int]] = [(Greedy(), 0), *((Multinomial(), seed) for seed in range(1, 6))]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """The embedded model."""
    return load_model(device="cpu", threads=1)


def check(schema: Any, text: str) -> None:
    """Check with the standard library and ``jsonschema``, formats asserted."""
    validator = jsonschema.Draft202012Validator
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(json.loads(text))


def run(model: LanguageModel, name: str, samplers: list[tuple[Sampler, int]]) -> None:
    """Generate with a large budget and at the exact minimum."""
    constraint = compile(json_schema(SCHEMAS[name]), model.vocabulary)
    least = constraint.min_tokens()
    for budget in (least + 40, least):
        for sampler, seed in samplers:
            result = generate(model, PROMPT, constraint, max_tokens=budget, sampler=sampler, seed=seed)
            check(SCHEMAS[name], result.text)
            assert len(result.tokens) <= budget


def test_there_are_twenty_schemas():
    """The list has twenty schemas."""
    assert len(SCHEMAS) == 20


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["open", "union"])
def test_some_schemas(model: LanguageModel, name: str):
    """Greedy outputs and those of one seed are valid within the budget and at the minimum."""
    run(model, name, SAMPLERS[:2])


@pytest.mark.nightly
@pytest.mark.parametrize("name", SCHEMAS)
def test_all_schemas(model: LanguageModel, name: str):
    """Greedy outputs and those of five seeds are valid within the budget and at the minimum."""
    run(model, name, SAMPLERS)
