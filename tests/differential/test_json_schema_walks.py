"""Random walks under the mask of real schemas, judged by ``json.loads`` and ``jsonschema``; spellings of instances."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.json_schema import json_schema
from structgen.testing.instance_order import declared_order

SCHEMAS = 300


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict[str, Any]]:
    """A fixed sample of the schemas, as many as compile."""
    with gzip.open(shared_data / "maskbench_dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        every = [json.loads(line) for line in lines]
    return random.Random(300).sample(every, SCHEMAS + 80)


@pytest.fixture(scope="module")
def constraints(
    cases: list[dict[str, Any]], deepseek_vocabulary: Vocabulary
) -> list[tuple[dict[str, Any], Constraint]]:
    """The first ``SCHEMAS`` that are not refused."""
    made: list[tuple[dict[str, Any], Constraint]] = []
    for case in cases:
        try:
            made.append((case, compile(json_schema(case["schema"]), deepseek_vocabulary)))
        except (GrammarError, LimitExceeded):
            continue
        if len(made) == SCHEMAS:
            break
    assert len(made) == SCHEMAS, "too many schemas are refused"
    return made


def walk(constraint: Constraint, rng: random.Random, spare: int) -> bytes:
    """Take random allowed tokens until EOS, within ``spare`` tokens over the shortest member."""
    vocabulary = constraint.vocabulary
    words = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    matcher = constraint.matcher()
    taken: list[int] = []
    left = matcher.min_tokens() + spare
    while True:
        if matcher.needs_budget_mask(left):
            matcher.fill_mask_within(words, 0, left)
        else:
            matcher.fill_mask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        assert allowed.size, f"dead end after {vocabulary.decode(taken)!r}"
        token = int(allowed[rng.randrange(allowed.size)])
        assert matcher.accept(token)
        if matcher.is_terminated:
            return vocabulary.decode(taken)
        taken.append(token)
        left -= 1


def check(schema: Any, value: Any) -> None:
    """Validate with the draft that the schema names (2020-12 by default), formats asserted."""
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    validator(schema, format_checker=validator.FORMAT_CHECKER).validate(value)


def test_random_walks_are_valid(constraints: list[tuple[dict[str, Any], Constraint]]):
    """Every text that the masks let through parses and validates."""
    rng = random.Random(7)
    for case, constraint in constraints:
        for spare in (0, 25):
            text = walk(constraint, rng, spare).decode()
            try:
                check(case["schema"], json.loads(text))
            except (ValueError, jsonschema.ValidationError) as error:
                pytest.fail(f"{case['name']}: {text!r} is let through, but: {str(error)[:300]}")


def test_random_walks_in_any_order_are_valid(cases: list[dict[str, Any]], deepseek_vocabulary: Vocabulary):
    """The same where the members of objects come in any order."""
    rng = random.Random(11)
    walked = 0
    for case in cases[: SCHEMAS // 2]:
        try:
            constraint = compile(json_schema(case["schema"], order="any"), deepseek_vocabulary)
        except (GrammarError, LimitExceeded):
            continue
        for spare in (0, 25):
            text = walk(constraint, rng, spare).decode()
            try:
                check(case["schema"], json.loads(text))
            except (ValueError, jsonschema.ValidationError) as error:
                pytest.fail(f"{case['name']}: {text!r} is let through, but: {str(error)[:300]}")
            walked += 1
    assert walked > SCHEMAS // 2


def spellings(text: str, vocabulary: Vocabulary, rng: random.Random) -> list[list[int]]:
    """Canonical tokens, one token a byte, and a random segmentation into tokens."""
    index = {token: number for number, token in enumerate(vocabulary.tokens) if token}
    data = text.encode()
    mixed: list[int] = []
    position = 0
    while position < len(data):
        sizes = [
            size for size in range(1, 9) if data[position : position + size] in index and position + size <= len(data)
        ]
        size = rng.choice(sizes)
        mixed.append(index[data[position : position + size]])
        position += size
    return [vocabulary.tokenize(text), [index[data[place : place + 1]] for place in range(len(data))], mixed]


def test_instances_in_three_tokenizations(constraints: list[tuple[dict[str, Any], Constraint]]):
    """Valid instances are accepted and invalid ones refused, however they are split into tokens."""
    rng = random.Random(8)
    vocabulary = constraints[0][1].vocabulary
    counted = {True: 0, False: 0}
    for case, constraint in constraints:
        for test in case["tests"]:
            data = declared_order(test["data"], case["schema"]) if test["valid"] else test["data"]
            text = json.dumps(data, ensure_ascii=False)
            if len(text) > 2_000:
                continue
            counted[test["valid"]] += 1
            for tokens in spellings(text, vocabulary, rng):
                matcher = constraint.matcher()
                accepted = all(matcher.accept(token) for token in tokens) and matcher.is_accepting
                assert accepted == test["valid"], f"{case['name']}: {text[:300]!r}"
    assert min(counted.values()) > 100
