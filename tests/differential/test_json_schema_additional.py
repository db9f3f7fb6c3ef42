"""The policy that forbids members which a schema does not name, against validators and a recursion over the value."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from byte_membership import BYTES, is_member, random_member
from data_folder import real_schemas
from json_validators import Disagreement, Judge, python_pattern
from schema_universe import Universe

from structgen.engine import Constraint, compile
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy, json_schema

FORBIDDEN = JsonPolicy(additional="forbidden", whitespace="single", order="any")
ALLOWED = replace(FORBIDDEN, additional="written")
SAMPLE_STEP = 11
"""Every eleventh real schema is tried: about 620."""

SCALARS: tuple[Any, ...] = (None, True, 1, 2, "", "a", "ab")
MEMBERS: tuple[Any, ...] = (1, "a", [], [1], {}, {"a": 1}, {"b": "a"}, {"x": 1}, {"a": 1, "b": 2}, {"a": {"x": 1}})
OBJECTS: tuple[Any, ...] = (
    *({}, *({name: value} for name in ("a", "b", "c", "x") for value in MEMBERS)),
    *({"a": 1, "b": value} for value in MEMBERS),
    *({"a": {"a": 1}, "c": value} for value in MEMBERS),
    *({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3, "x": 4}, {"b": 1, "x": 1}, {"x": "a", "y": 1}),
)
DOCUMENTS: tuple[Any, ...] = (
    *SCALARS,
    *OBJECTS,
    [],
    *([value] for value in OBJECTS[::3]),
    [{"a": 1}, {"a": 1, "x": 2}],
)


class Unclear(Exception):
    """A schema that is too complex for the recursion."""


@dataclass(frozen=True)
class Reading:
    """What the schemas that hold for a value say about its members or items, for one choice of alternatives.

    Attributes:
        names: the names that they mention.
        patterns: likewise.
        speaks: whether one of them speaks of all other members.
        says_none: whether one of them says that there are none: ``properties`` is there and empty.
        lists: whether one of them lists the value.
        inner: members and items, each with a schema that holds for it.
    """

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    speaks: bool = False
    says_none: bool = False
    lists: bool = False
    inner: tuple[tuple[str | int, Any], ...] = ()

    def __and__(self, other: Reading) -> Reading:
        return Reading(
            self.names | other.names,
            self.patterns | other.patterns,
            self.speaks or other.speaks,
            self.says_none or other.says_none,
            self.lists or other.lists,
            self.inner + other.inner,
        )


class Recursion:
    """Decides whether valid values have only members that the schema names, where it says nothing about others."""

    def __init__(self, root: Any) -> None:
        self.root = root
        declared = root.get("$schema", "") if isinstance(root, dict) else ""
        found = re.search(r"draft-0([467])|draft/(2019|2020)", declared)
        self.draft = int(found[1] or found[2]) if found else 2020

    @cached_property
    def validator(self) -> Any:
        kind = jsonschema.validators.validator_for(self.root, default=jsonschema.Draft202012Validator)
        return kind(self.root, format_checker=kind.FORMAT_CHECKER)

    def keeps(self, value: Any, *schemas: Any) -> bool:
        """Whether this holds for a value that is valid against the schemas."""
        choices = [list(self.readings(schema, value)) for schema in schemas]
        return any(self.keeps_to(value, chosen) for chosen in product(*choices))

    def keeps_to(self, value: Any, chosen: tuple[Reading, ...]) -> bool:
        whole = Reading()
        for reading in chosen:
            whole &= reading
        if whole.lists or not isinstance(value, (dict, list)):
            return True
        if isinstance(value, dict) and not whole.speaks and (whole.names or whole.patterns or whole.says_none):
            unnamed = value.keys() - whole.names
            if any(not any(re.search(python_pattern(text), name) for text in whole.patterns) for name in unnamed):
                return False
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return all(self.keeps(part, *(held for at, held in whole.inner if at == step)) for step, part in parts)

    def readings(self, schema: Any, value: Any) -> Iterator[Reading]:
        """What a schema that holds for ``value`` says, once for each choice of alternatives that hold."""
        if isinstance(schema, bool):
            yield Reading()
            return
        if {"$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems", "contains"} & schema.keys():
            raise Unclear
        if "$ref" in schema and self.draft <= 7:
            yield from self.readings(self.target(schema["$ref"]), value)
            return
        own = Reading(lists="const" in schema or "enum" in schema)
        if isinstance(value, dict):
            own &= self.members(schema, value)
        elif isinstance(value, list):
            own &= self.items(schema, value)
        parts = [[own]]
        applied = [*schema.get("allOf", ()), *self.conditional(schema, value)]
        if "$ref" in schema:
            applied.append(self.target(schema["$ref"]))
        parts += [list(self.readings(inner, value)) for inner in applied]
        for alternatives in (schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema):
            valid = (inner for inner in alternatives if self.holds(inner, value))
            parts.append([reading for inner in valid for reading in self.readings(inner, value)])
        for chosen in product(*parts):
            whole = Reading()
            for reading in chosen:
                whole &= reading
            yield whole

    def members(self, schema: Any, value: Any) -> Reading:
        properties, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        names = {name for name, inner in properties.items() if inner is not False}
        names.update(schema.get("required", ()))
        for name, held in self.dependent(schema):
            if isinstance(held, list) and set(held) - {name}:
                names.update((name, *held))
        inner: list[tuple[str | int, Any]] = []
        for name in value:
            own = [properties[name]] if name in properties else []
            own += [patterns[text] for text in patterns if re.search(python_pattern(text), name)]
            inner += [(name, held) for held in own or [schema.get("additionalProperties", True)]]
        mentioned = frozenset(text for text, inner in patterns.items() if inner is not False)
        says_none = schema.get("properties") == {}
        return Reading(frozenset(names), mentioned, "additionalProperties" in schema, says_none, inner=tuple(inner))

    def items(self, schema: Any, value: Any) -> Reading:
        items = schema.get("items", True)
        prefix, rest = schema.get("prefixItems", []), items
        if isinstance(items, list):
            prefix, rest = items, schema.get("additionalItems", True)
        return Reading(inner=tuple((at, prefix[at] if at < len(prefix) else rest) for at in range(len(value))))

    def dependent(self, schema: Any) -> Iterator[tuple[str, Any]]:
        for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
            yield from schema.get(keyword, {}).items()

    def conditional(self, schema: Any, value: Any) -> Iterator[Any]:
        """The schemas that hold for ``value`` because of a condition."""
        if "if" in schema and ("then" in schema or "else" in schema):
            if self.holds(schema["if"], value):
                yield schema["if"]
                yield schema.get("then", True)
            else:
                yield schema.get("else", True)
        for name, held in self.dependent(schema):
            if not isinstance(held, list) and isinstance(value, dict) and name in value:
                yield held

    def holds(self, schema: Any, value: Any) -> bool:
        return bool(self.validator.evolve(schema=schema).is_valid(value))

    def target(self, reference: str) -> Any:
        if not reference.startswith("#") or set("~%") & set(reference):
            raise Unclear
        found = self.root
        for step in reference[1:].split("/")[1:]:
            if not isinstance(found, dict) or step not in found:
                raise Unclear
            found = found[step]
        return found


def has_nested_negation(schema: Any, *, inside: bool = False) -> bool:
    """Whether a schema that may be negated holds another negated one: its complement needs schemas without negation."""
    if isinstance(schema, list):
        return any(has_nested_negation(part, inside=inside) for part in schema)
    if not isinstance(schema, dict):
        return False
    for name, part in schema.items():
        negates = name in ("not", "if", "oneOf", "then", "else", "dependentSchemas")
        if (negates and inside) or has_nested_negation(part, inside=inside or negates):
            return True
    return False


def compiled(schema: Any, policy: JsonPolicy = FORBIDDEN) -> Constraint | None:
    """The constraint, or ``None`` where nothing is valid."""
    try:
        return compile(json_schema(schema, policy=policy), BYTES)
    except UnsatisfiableGrammar:
        return None


def accepts(constraint: Constraint | None, value: Any) -> bool:
    return constraint is not None and is_member(constraint.matcher(), json.dumps(value).encode())


def check(schema: Any, documents: tuple[Any, ...] = DOCUMENTS) -> Counter[str]:
    """Compare on documents: the policy accepts exactly the valid documents without undeclared members."""
    validator, recursion = jsonschema.Draft202012Validator(schema), Recursion(schema)
    constraint = compiled(schema)
    counts = Counter[str]()
    for value in documents:
        is_valid = validator.is_valid(value)
        accepted = accepts(constraint, value)
        assert is_valid or not accepted, (schema, value)
        if has_nested_negation(schema):
            continue
        try:
            expected = is_valid and recursion.keeps(value, schema)
        except Unclear:
            counts["unclear"] += 1
            continue
        assert accepted == expected, (schema, value, "accepted" if accepted else "rejected")
        counts["accepted" if accepted else "forbidden" if is_valid else "invalid"] += 1
    return counts


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(3, 8))])
def test_random_schemas(seed: int) -> None:
    """For any schema, the policy removes undeclared members, keeps all others, and adds nothing."""
    universe = Universe(seed)
    counts, refused = Counter[str](), 0
    for _ in range(150):
        schema = universe.schema(3)
        try:
            counts += check(schema)
        except (UnsupportedFeature, LimitExceeded):
            refused += 1
    assert counts["forbidden"] > 100, counts
    assert counts["accepted"] > 1_000, counts
    assert refused < 15, refused


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict[str, Any]]:
    """A sample of the real schemas with their instances."""
    return real_schemas(shared_data, SAMPLE_STEP)


def with_a_stranger(value: Any, rng: random.Random) -> Any:
    """The value with one extra member in one of its objects."""
    changed = json.loads(json.dumps(value))
    waiting, objects = [changed], []
    for part in waiting:
        if isinstance(part, dict):
            objects.append(part)
        if isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part
    if objects:
        rng.choice(objects)["a stranger"] = rng.choice([1, "x", {}])
    return changed


def test_real_schemas(cases: list[dict[str, Any]]) -> None:
    """Exactly the instances that are valid and have no undeclared member are accepted."""
    rng = random.Random(5)
    counts = Counter[str]()
    wrong: list[tuple[str, str]] = []
    for case in cases:
        try:
            constraint, judge = compiled(case["schema"]), Judge(case["schema"])
        except (GrammarError, LimitExceeded):
            counts["refused"] += 1
            continue
        recursion = Recursion(case["schema"])
        instances = [(test["data"], test["valid"]) for test in case["tests"]]
        for data, _ in instances[:]:
            changed = with_a_stranger(data, rng)
            instances.append((changed, judge.is_valid(json.dumps(changed))))
        for data, is_valid in instances:
            try:
                expected = is_valid and recursion.keeps(data, case["schema"])
            except Unclear:
                counts["unclear"] += 1
                continue
            counts["accepted" if expected else "forbidden" if is_valid else "invalid"] += 1
            if accepts(constraint, data) != expected:
                wrong.append((case["name"], json.dumps(data)[:300]))
    assert wrong == [], counts
    assert counts["refused"] < 0.02 * len(cases), counts
    assert counts["accepted"] > 700, counts
    assert counts["forbidden"] > 300, counts


def test_random_walks_of_real_schemas(cases: list[dict[str, Any]]) -> None:
    """Every text that is written byte by byte is valid and has no undeclared member."""
    rng = random.Random(6)
    walked = 0
    for case in cases[::2]:
        try:
            constraint, judge = compiled(case["schema"], replace(FORBIDDEN, order="declared")), Judge(case["schema"])
            texts = [random_member(constraint.matcher(), rng, 120) for _ in range(4)] if constraint else []
        except (GrammarError, LimitExceeded):
            continue
        for text in texts:
            try:
                assert judge.is_valid(text), (case["name"], text)
                assert Recursion(case["schema"]).keeps(json.loads(text), case["schema"]), (case["name"], text)
            except (Unclear, Disagreement):  # an invalid date may be the year 0000, which Python does not have
                continue
            walked += 1
    assert walked > 800, walked


def spelled_out(schema: Any) -> Any:
    """A copy in which every object that names members says ``additionalProperties``."""
    if isinstance(schema, list):
        return [spelled_out(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {name: part if name in ("enum", "const") else spelled_out(part) for name, part in schema.items()}
    return {**copy, "additionalProperties": copy.get("additionalProperties", True)}


@pytest.mark.parametrize("order", ["declared", "any"])
def test_schemas_that_say_it_mean_the_same(order: Any, cases: list[dict[str, Any]]) -> None:
    """Where every schema has ``additionalProperties``, the policy changes no mask."""
    rng = random.Random(7)
    compared = 0
    for case in cases[::4]:
        schema = spelled_out(case["schema"])
        try:
            one, other = (
                compile(json_schema(schema, policy=replace(policy, order=order)), BYTES).matcher()
                for policy in (ALLOWED, FORBIDDEN)
            )
        except (GrammarError, LimitExceeded):
            continue
        for _ in range(2):
            one.reset()
            other.reset()
            for _ in range(80):
                live = one.live_bytes()
                assert live == other.live_bytes(), case["name"]
                assert one.is_accepting == other.is_accepting, case["name"]
                if not live:
                    break
                byte = rng.choice(live)
                assert one.accept(byte)
                assert other.accept(byte)
                compared += 1
    assert compared > 10_000, compared
