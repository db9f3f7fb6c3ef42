"""Proofs that plans are empty agree with the terms of the plans."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.frontends.json_schema import json_schema, setting_of
from structgen.frontends.json_schema.emit.plan import PlanBuilder
from structgen.frontends.json_schema.emit.planner import Planner
from structgen.frontends.json_schema.normal.normal_form import DocumentSchemas, NormalForm
from structgen.frontends.json_schema.policy import JsonPolicy
from structgen.frontends.json_schema.source.document import Documents, SchemaRegistry
from structgen.frontends.json_schema.source.reference import References
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import EMPTY
from structgen.grammar.nodes.description import Described, Status
from structgen.grammar.visitor import trampoline
from structgen.testing.reference import ReferenceMatcher

NAMES = ("a", "b", "c")


def random_schema(pick: random.Random, depth: int) -> Any:
    """A schema with many empty parts."""
    if depth == 0:
        return pick.choice(
            (
                True,
                False,
                {"type": "string", "minLength": 2, "maxLength": pick.choice((1, 2))},
                {"type": "integer", "minimum": 1, "maximum": pick.choice((0, 1))},
                {"type": "number", "minimum": 1.1, "maximum": pick.choice((1.2, 1.3)), "multipleOf": 0.25},
                {"type": "integer", "exclusiveMinimum": 6, "maximum": pick.choice((12, 14)), "multipleOf": 3.5},
                {"enum": [1, "a"]},
                {"const": "a"},
                {"type": ["array", "object"]},
            )
        )

    def inner() -> Any:
        return random_schema(pick, depth - 1)

    def members() -> dict[str, Any]:
        return {name: inner() for name in pick.sample(NAMES, pick.randint(1, 3))}

    base: dict[str, Any] = pick.choice(
        (
            {"type": "object", "properties": members(), "additionalProperties": inner()},
            {"type": "object", "properties": members(), "additionalProperties": False},
            {"type": "object", "patternProperties": {"^[ab]": inner()}, "additionalProperties": inner()},
            {"type": "object", "properties": members(), "dependentRequired": {"a": ["b"], "b": ["c"]}},
            {"type": "array", "prefixItems": [inner(), inner()], "items": inner()},
            {"type": "array", "items": inner(), "contains": inner(), "maxContains": 1},
            {"type": "array", "items": {"enum": [1, 1.0, True]}, "uniqueItems": True},
            {"type": "array", "prefixItems": [{"const": 1}], "items": inner(), "uniqueItems": True},
            {"anyOf": [inner(), inner()]},
        )
    )
    if base.get("type") == "object":
        base["required"] = pick.sample(NAMES, pick.randint(0, 2))
        if pick.random() < 0.4:
            base["maxProperties"] = pick.randint(0, 3)
        if pick.random() < 0.4:
            base["minProperties"] = pick.randint(0, 3)
    elif base.get("type") == "array":
        base["minItems"] = pick.randint(0, 3)
        if pick.random() < 0.5:
            base["maxItems"] = pick.randint(0, 3)
    if pick.random() < 0.4:
        return {"allOf": [base, {"not": inner()}]}
    return base


@pytest.mark.parametrize("seed", range(12))
def test_proofs_agree_with_terms(seed: int) -> None:
    """A plan is proved empty iff its term is empty; nothing here is recursive, and few are refused."""
    pick = random.Random(seed)
    limits = Limits()
    setting = setting_of(JsonPolicy(), limits)
    agreed = {False: 0, True: 0}
    for _ in range(40):
        schema = random_schema(pick, 3)
        documents = Documents(schema, None, SchemaRegistry(None, limits), setting)
        references = References(documents, tracks_scopes=False)
        planner = Planner(NormalForm(DocumentSchemas(references), setting), setting)
        try:
            root = planner._request((references.start(),))
            planner._explore()
            is_empty = trampoline(planner._prove(root))
            is_nothing = PlanBuilder().build(root) is EMPTY
        except (GrammarError, LimitExceeded):  # some need names that would have to be counted
            continue
        assert is_empty == is_nothing, json.dumps(schema)
        agreed[is_empty] += 1
    assert min(agreed.values()) > 2, agreed


def test_a_proof_looks_only_where_it_must() -> None:
    """Alternatives that differ in one required member are told apart, whatever the others cannot enforce."""
    branches = [
        {
            "type": "object",
            "properties": {
                "kind": {"type": "object", "properties": {"name": {"const": name}}, "required": ["name"]},
                "rest": {"type": "number", "multipleOf": step},
            },
            "required": ["kind"],
        }
        for name, step in (("a", 101), ("b", 103), ("c", 107))
    ]
    term = json_schema({"oneOf": branches})
    assert term.digest == json_schema({"anyOf": branches}).digest


def test_references_are_reported_like_each_other() -> None:
    """Equal schemas are planned once in a conjunction, and all of them are enforced."""
    inner = '{"type": "object", "properties": {"b": {"type": "string", "minLength": 2}}, "required": ["b"]}'
    text = f'{{"allOf": [{{"properties": {{"a": {inner}}}}}, {{"properties": {{"a": {inner}}}}}]}}'
    term = json_schema(text)
    assert isinstance(term, Described)
    found = {entry.where: entry.status for entry in term.description.entries}
    for index in (0, 1):
        for where in ("properties", "properties/b/type", "properties/b/minLength", "required"):
            assert found[f"#/allOf/{index}/properties/a/{where}"] is Status.ENFORCED, (index, where)


def test_true_is_not_one() -> None:
    """Schemas that are equal in Python, with ``true`` and ``1``, are not equal schemas."""
    one, true = ({"type": "array", "items": {"const": value}, "minItems": 1} for value in (1, True))
    with pytest.raises(UnsatisfiableGrammar):
        json_schema({"contains": {"const": 1}, "items": {"const": True}, "minItems": 1, "type": "array"})
    assert json_schema({"oneOf": [one, true]}).digest == json_schema({"anyOf": [one, true]}).digest
    both = {"allOf": [{"properties": {"a": one}}, {"not": {"properties": {"a": true}, "required": ["a"]}}]}
    for text, is_valid in ((b'{"a":[1]}', True), (b'{"a":[true]}', False)):
        matcher = ReferenceMatcher(json_schema(both, whitespace="compact"))
        assert (matcher.accept_bytes(text) == len(text) and matcher.is_accepting) is is_valid
