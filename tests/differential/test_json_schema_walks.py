"""Random walks under the mask of real schemas, judged by two validators; spellings of instances."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from data_folder import real_schemas, sampled_schemas
from json_validators import Judge
from mask_walks import walk
from schema_as_written import as_written as json_schema

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded
from structgen.frontends.json_schema import JsonPolicy
from structgen.testing.instance_order import declared_order

SCHEMAS = 300
WALK_STEP = 10
"""Every tenth of them is walked in an ordinary run."""
BYTE_STEP = 86
"""Every 86th schema is walked byte by byte in an ordinary run: about 80."""


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> list[dict[str, Any]]:
    """A fixed sample of the schemas, as many as compile."""
    return sampled_schemas(shared_data, 300, SCHEMAS + 80)


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


def check(case: dict[str, Any], constraint: Constraint, rng: random.Random, spares: tuple[int, ...]) -> int:
    """Write texts under the masks: they parse, repeat no declared name, and are valid by both validators.

    Returns:
        how many texts did not end, since they reached a limit.
    """
    judge = Judge(case["schema"])
    limited = 0
    for spare in spares:
        try:
            text = walk(constraint, rng, spare).decode()
        except LimitExceeded:
            limited += 1
            continue
        assert judge.is_valid(text), f"{case['name']}: {text!r} is let through"
        repeated = list(repeated_names(json.loads(text, object_pairs_hook=Members), case["schema"], case["schema"]))
        assert not repeated, f"{case['name']}: {text!r} repeats {repeated}"
    return limited


class Members(list[tuple[str, Any]]):
    """The members of an object as a list, repeated names included."""


def repeated_names(value: Any, schema: Any, root: Any, depth: int = 0) -> Iterator[str]:
    """Yield declared names that repeat, in all places where ``properties``, ``items``, ``allOf`` and ``$ref`` lead."""
    if not isinstance(schema, dict) or depth > 60:
        return
    for inner in (*schema.get("allOf", []), *local_target(schema.get("$ref"), root)):
        yield from repeated_names(value, inner, root, depth + 1)
    if isinstance(value, Members):
        declared = schema.get("properties", {})
        counted = Counter(name for name, _ in value)
        yield from (name for name in {*declared, *schema.get("required", [])} if counted[name] > 1)
        for name, item in value:
            yield from repeated_names(item, declared.get(name, schema.get("additionalProperties")), root, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from repeated_names(item, schema.get("items"), root, depth + 1)


def local_target(reference: Any, root: Any) -> list[Any]:
    """The schema that a plain JSON Pointer leads to, or None."""
    if not isinstance(reference, str) or not reference.startswith("#/") or set("~%") & set(reference):
        return []
    found = root
    for name in reference[2:].split("/"):
        if not isinstance(found, dict) or name not in found:
            return []
        found = found[name]
    return [found]


@pytest.mark.parametrize("step", [WALK_STEP, pytest.param(1, marks=pytest.mark.nightly)])
def test_random_walks_are_valid(constraints: list[tuple[dict[str, Any], Constraint]], step: int):
    """Every text that is written under the masks is valid."""
    rng = random.Random(7)
    for case, constraint in constraints[::step]:
        assert check(case, constraint, rng, (0, 25)) == 0


@pytest.mark.parametrize("step", [WALK_STEP, pytest.param(1, marks=pytest.mark.nightly)])
def test_random_walks_in_any_order_are_valid(cases: list[dict[str, Any]], deepseek_vocabulary: Vocabulary, step: int):
    """The same holds where the members of objects may come in any order."""
    rng = random.Random(11)
    walked = 0
    for case in cases[: SCHEMAS // 2 : step]:
        try:
            constraint = compile(json_schema(case["schema"], order="any"), deepseek_vocabulary)
        except (GrammarError, LimitExceeded):
            continue
        assert check(case, constraint, rng, (0, 25)) == 0
        walked += 1
    assert walked > SCHEMAS // 4 // step


@pytest.mark.parametrize("step", [BYTE_STEP, pytest.param(1, marks=[pytest.mark.nightly, pytest.mark.timeout(3_600)])])
def test_random_walks_byte_by_byte_are_valid(shared_data: Path, step: int):
    """The same holds with one token per byte and longer texts, also in all spellings; nightly for all schemas."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    every = JsonPolicy("flexible", order="any", numbers="all", escapes="all")
    walked = limited = 0
    for case in real_schemas(shared_data, step):
        for policy, spares in ((JsonPolicy("flexible"), (0, 30, 120)), (every, (0, 60))):
            try:
                constraint = compile(json_schema(case["schema"], policy=policy), vocabulary)
            except (GrammarError, LimitExceeded):
                continue
            limited += check(case, constraint, random.Random(case["name"]), spares)
            walked += 1
    assert walked > 150 // (1 + (step > 1))
    assert limited < walked / 1_000


@pytest.mark.nightly
@pytest.mark.timeout(3_600)
def test_random_walks_of_all_schemas_are_valid(shared_data: Path, deepseek_vocabulary: Vocabulary):
    """The same holds for every schema of the data, with a real vocabulary."""
    limited = 0
    for case in real_schemas(shared_data):
        try:
            constraint = compile(json_schema(case["schema"]), deepseek_vocabulary)
        except (GrammarError, LimitExceeded):
            continue
        limited += check(case, constraint, random.Random(case["name"]), (0, 40))
    assert limited < 10


def spellings(text: str, vocabulary: Vocabulary, index: dict[bytes, int], rng: random.Random) -> list[list[int]]:
    """Canonical tokens, one token a byte, and a random segmentation into tokens; ``index`` has the ids by bytes."""
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
    index = {token: number for number, token in enumerate(vocabulary.tokens) if token}
    counted = {True: 0, False: 0}
    for case, constraint in constraints[::4]:
        for test in case["tests"]:
            data = declared_order(test["data"], case["schema"]) if test["valid"] else test["data"]
            text = json.dumps(data, ensure_ascii=False)
            if len(text) > 2_000:
                continue
            counted[test["valid"]] += 1
            for tokens in spellings(text, vocabulary, index, rng):
                matcher = constraint.matcher()
                accepted = all(matcher.accept(token) for token in tokens) and matcher.is_accepting
                assert accepted == test["valid"], f"{case['name']}: {text[:300]!r}"
    assert min(counted.values()) > 50
