"""A rewritten schema with the same meaning has the same masks, bit for bit, along random walks."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from data_folder import real_schemas
from mask_walks import sampled
from schema_rewrites import REWRITES, rewritten
from schema_universe import Universe

from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.errors import LimitExceeded, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.json_schema import json_schema

SAMPLE_STEP = 29
"""Every 29th schema is rewritten in all ways in an ordinary run: about 230."""
WALKS, STEPS = 2, 50


@pytest.mark.parametrize("name", REWRITES)
def test_masks_of_real_schemas_stay(name: str, shared_data: Path, json_vocabulary: Vocabulary) -> None:
    """The masks of a sample of the data stay the same."""
    cases = real_schemas(shared_data, SAMPLE_STEP)
    rewrite_all([case["schema"] for case in cases], name, json_vocabulary)


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", REWRITES)
def test_masks_of_all_real_schemas_stay(name: str, shared_data: Path, smollm_vocabulary: Vocabulary) -> None:
    """The masks of all schemas of the data stay the same, with a real vocabulary."""
    rewrite_all([case["schema"] for case in real_schemas(shared_data)], name, smollm_vocabulary)


@pytest.mark.parametrize("name", REWRITES)
def test_masks_of_random_schemas_stay(name: str, json_vocabulary: Vocabulary) -> None:
    """The masks of small random schemas stay the same; each rewrite applies to some of them."""
    universe = Universe(len(name))
    definitions = {"one": {"type": "integer"}, "two": {"enum": ["a"], "title": "t"}}
    schemas = [universe.schema(3) for _ in range(60)]
    schemas += [
        {"$defs": definitions, "properties": {"a": {"$ref": "#/$defs/one"}, "b": schema}}
        for schema in (*schemas[:10], {"$ref": "#/$defs/two"})
    ]
    schemas += [
        {"allOf": [{"type": ["array", "null"]}, {"items": {"anyOf": [{"type": "string"}, {"type": "null"}]}}]},
        {
            "items": [{"const": "a"}, {"anyOf": [{"anyOf": [{"const": 1}, {"const": 2}]}, {"type": "null"}]}],
            "type": "array",
        },
        {"type": "object", "dependencies": {"a": ["b"], "b": {"required": ["c"]}}, "additionalProperties": {}},
    ]
    assert rewrite_all(schemas, name, json_vocabulary) > 0


def test_a_difference_is_found(json_vocabulary: Vocabulary) -> None:
    """Schemas that differ in one place get different masks on the walks, so the comparison can fail."""
    texts = [compile(json_schema({"items": {"maxLength": count}, "minItems": 1}), json_vocabulary) for count in (4, 5)]
    assert any(first_difference(*texts, random.Random(seed)) for seed in range(100))


def rewrite_all(schemas: list[Any], name: str, vocabulary: Vocabulary) -> int:
    """Compare the masks of all schemas that a rewrite applies to; return their number."""
    done = limited = 0
    for schema in schemas:
        other = rewritten(schema, name)
        if other is None:
            continue
        first, second = compiled(schema, vocabulary), compiled(other, vocabulary)
        about = f"{json.dumps(schema)[:2000]} as {json.dumps(other)[:2000]}"
        if isinstance(first, Constraint) and isinstance(second, Constraint):
            for seed in range(WALKS):
                try:
                    difference = first_difference(first, second, random.Random(seed))
                except LimitExceeded:
                    limited += 1
                    continue
                assert difference is None, f"after {difference!r}: {about}"
            done += 1
        else:
            refused = {type(one) for one in (first, second) if not isinstance(one, Constraint)}
            assert UnsatisfiableGrammar not in refused or (len(refused) == 1 and isinstance(first, type(second))), about
    assert limited <= done / 500
    return done


def compiled(schema: Any, vocabulary: Vocabulary) -> Constraint | Exception:
    try:
        return compile(json_schema(schema), vocabulary)
    except (UnsupportedFeature, LimitExceeded, UnsatisfiableGrammar) as error:
        return error


def first_difference(one: Constraint, other: Constraint, rng: random.Random) -> bytes | None:
    """The text after which the masks differ, on one walk of at most ``STEPS`` tokens through both."""
    matchers = (one.matcher(), other.matcher())
    taken: list[int] = []
    for _ in range(STEPS):
        masks = [mask_of(matcher) for matcher in matchers]
        if not np.array_equal(*masks):
            return one.vocabulary.decode(taken)
        token = sampled(np.flatnonzero(masks[0]), one.vocabulary, rng)
        assert all(matcher.accept(token) for matcher in matchers)
        if matchers[0].is_terminated:
            break
        taken.append(token)
    return None


def mask_of(matcher: Matcher) -> np.ndarray:
    size = matcher.constraint.vocabulary.size
    words = np.zeros((1, (size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(words)
    return np.unpackbits(words.view(np.uint8), bitorder="little")[:size]
