"""Random schemas made of all the keywords that combine schemas, against an independent validator.

Schemas are drawn from a small universe in which everything meets everything; documents too, so that many of them are
valid.  Member order is part of our language and not of JSON Schema: a document counts as accepted if one of its
orders is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import jsonschema
import pytest
from schema_universe import Universe

from structgen.engine.constraint import Constraint
from structgen.engine.constraint import compile as couple
from structgen.engine.vocabulary import Vocabulary
from structgen.errors import LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.grammar.json_schema import json_schema

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
    """The value with the members of its objects in every order; nested objects keep theirs."""
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
    """Compare on all documents; say how the schema was treated."""
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
    """Twelve schemas a seed; nearly all of them are enforced.

    A negated ``maxProperties`` asks for two names that may repeat, refused beside patterns; it is drawn often.
    """
    universe = Universe(seed)
    treated = [check(universe.schema(3), vocabulary) for _ in range(12)]
    refused = [one for one in treated if one.startswith("refused") and one != "refused: minProperties"]
    assert len(refused) <= 2, refused


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 1_400))
def test_many_random_schemas_agree_with_jsonschema(seed: int, vocabulary: Vocabulary) -> None:
    """The same, deeper and more of them."""
    universe = Universe(seed)
    for _ in range(12):
        check(universe.schema(4), vocabulary)
