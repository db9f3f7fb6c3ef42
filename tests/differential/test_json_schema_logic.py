"""Random schemas that use all the keywords that combine schemas, against an independent validator.

Schemas are sampled from a small universe in which all keywords meet; so are documents, so that many of them are valid.
Member order is part of our language and not of JSON Schema: a document counts as accepted if one of its orders is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import jsonschema
import pytest
from schema_as_written import as_written as json_schema
from schema_universe import Universe

from structgen.engine.constraint import Constraint, compile as couple
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature

SCALARS: tuple[Any, ...] = (None, True, False, 0, 1, 2, 3, -1, 1.5, "", "a", "ab", "b")
DOCUMENTS: tuple[Any, ...] = (
    *SCALARS,
    *([], [1], ["a"], [1, 2], [1, "a"], ["a", 1], [1, 1, 1], [1, 2, 3], ["a", "a"], [[]], [[1]], [[1], ["a"]]),
    *({}, {"a": 1}, {"a": "a"}, {"b": 1}, {"c": 2}, {"x": 1}, {"a": 1, "b": 2}, {"a": "ab", "b": "b"}),
    *({"a": 1, "c": 1}, {"b": None, "c": "a"}, {"a": 1, "b": 2, "c": 3}, {"a": 1, "x": 1}, {"x": "a", "y": 1}),
    *({"a": {"a": 1}}, {"a": {"b": "a"}}, {"a": [1]}, {"b": {}}, [{"a": 1}], [{"b": 1}, {"a": "a"}]),
)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])


def orders(value: Any) -> Iterator[Any]:
    """The value with the members of the outermost object in every order; nested objects keep their order."""
    if isinstance(value, dict):
        yield from (dict(members) for members in permutations(value.items()))
    else:
        yield value


def accepts(constraint: Constraint, value: Any) -> bool:
    for written in orders(value):
        text = json.dumps(written).encode()
        matcher = constraint.matcher()
        if matcher.accept_bytes(text) == len(text) and matcher.is_accepting:
            return True
    return False


def check(schema: Any, vocabulary: Vocabulary) -> str:
    """Compare on all documents; return how the schema was treated."""
    validator = jsonschema.Draft202012Validator(schema)
    valid = [validator.is_valid(value) for value in DOCUMENTS]
    try:
        constraint = couple(json_schema(schema), vocabulary)
    except UnsatisfiableGrammar:
        assert not any(valid), f"{json.dumps(schema)} admits {DOCUMENTS[valid.index(True)]!r}"
        return "unsatisfiable"
    except (UnsupportedFeature, LimitExceeded) as error:
        return f"refused: {getattr(error, 'feature', '') or getattr(error, 'limit', '')}"
    for value, expected in zip(DOCUMENTS, valid, strict=True):
        assert accepts(constraint, value) == expected, f"{json.dumps(schema)}: {value!r} is valid: {expected}"
    return "enforced"


@pytest.mark.parametrize("seed", range(40))
def test_random_schemas_agree_with_jsonschema(seed: int, vocabulary: Vocabulary) -> None:
    """Each seed gives twelve schemas; nearly all of them are enforced.

    A negated ``maxProperties`` asks for two names that may repeat, which is refused beside patterns; it occurs often.
    """
    universe = Universe(seed)
    treated = [check(universe.schema(3), vocabulary) for _ in range(12)]
    refused = [one for one in treated if one.startswith("refused") and one != "refused: minProperties"]
    assert len(refused) <= 2, refused


def of_copies(rng: random.Random, parts: list[Any], depth: int) -> Any:
    """A schema in which the same parts occur repeatedly, each time written out, side by side and negated."""
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(parts)
    inner = [of_copies(rng, parts, depth - 1) for _ in range(rng.randint(2, 3))]
    made = rng.choice(
        [
            {"allOf": inner[:2]},
            {"anyOf": inner[:2]},
            {"oneOf": inner},
            {"not": inner[0]},
            {"if": inner[0], "then": inner[1]},
            {"properties": {"a": inner[0], "b": inner[1]}},
            {"items": inner[0], "contains": inner[1]},
        ]
    )
    return made if rng.random() < 0.8 else {**made, "type": rng.choice(["object", "array"])}


@pytest.mark.parametrize("seed", range(30))
def test_schemas_that_are_written_alike_agree_with_jsonschema(seed: int, vocabulary: Vocabulary) -> None:
    rng, universe = random.Random(seed), Universe(seed)
    treated = []
    for _ in range(8):
        parts = [universe.schema(rng.randint(1, 2)) for _ in range(2)]
        treated.append(check(json.loads(json.dumps(of_copies(rng, parts, 3))), vocabulary))
    assert sum(one != "refused: minProperties" and one.startswith("refused") for one in treated) <= 2, treated


def about_labels(rng: random.Random) -> Any:
    """A schema that mostly says which constants a member may have, some of them depending on another member."""
    name, other = rng.choice("ab"), rng.choice("abc")
    label: Any = {"properties": {name: rng.choice([{"const": rng.choice([1, "a"])}, {"enum": [1, 2, "ab"]}, True])}}
    if rng.random() < 0.5:
        label["required"] = [name]
    then = {"properties": {other: {"const": rng.choice([1, 2, "b"])}}}
    closed = {"properties": {name: {}, other: {"enum": [1, "a"]}}, "additionalProperties": False}
    made: Any = rng.choice(
        [label, {"not": label}, {"if": label, "then": then}, {"required": [other]}, closed, {"not": closed}]
    )
    if rng.random() < 0.3:
        made = {rng.choice(["anyOf", "oneOf"]): [made, about_labels(rng)]}
    return made if rng.random() < 0.6 else {**made, "type": "object"}


@pytest.mark.parametrize("seed", range(40))
def test_labels_that_meet_agree_with_jsonschema(seed: int, vocabulary: Vocabulary) -> None:
    """Conditions on constants meet in all orders; each further condition narrows the constants."""
    rng = random.Random(seed)
    for _ in range(10):
        treated = check({"allOf": [about_labels(rng) for _ in range(rng.randint(2, 5))]}, vocabulary)
        assert treated in ("enforced", "unsatisfiable", "refused: minProperties")


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_400))
def test_many_random_schemas_agree_with_jsonschema(seed: int, vocabulary: Vocabulary) -> None:
    """The same holds for more and deeper schemas."""
    universe = Universe(seed)
    for _ in range(12):
        check(universe.schema(4), vocabulary)
