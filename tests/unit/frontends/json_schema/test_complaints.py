"""Common complaints about constrained decoding; each test is named after one."""

from __future__ import annotations

import itertools
import json
import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from json_validators import Judge
from machine_load import at_most
from schema_as_written import as_written as json_schema

from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.frontends.json_schema import JsonPolicy

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
BLANK = b" \n\t\r"
EVERY_SPELLING = JsonPolicy(order="any", numbers="all", escapes="all")


def compiled(schema: Any, policy: JsonPolicy | None = None) -> Constraint:
    return compile(json_schema(schema, policy=policy or JsonPolicy()), BYTES)


def accepts(constraint: Constraint, text: str | bytes) -> bool:
    data = text.encode() if isinstance(text, str) else text
    matcher = constraint.matcher()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def allowed_bytes(matcher: Matcher) -> bytes:
    """The bytes that the mask allows, without EOS."""
    words = np.zeros((1, (BYTES.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(words)
    found = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
    return b"".join(BYTES.tokens[token] for token in found)


def compare(schema: Any, texts: list[str], policy: JsonPolicy | None = None) -> None:
    """Check that each text is accepted iff two validators call it valid, and that both cases occur."""
    constraint, judge = compiled(schema, policy), Judge(schema)
    found = {text: accepts(constraint, text) for text in texts}
    assert found == {text: judge.is_valid(text) for text in texts}
    assert len(set(found.values())) == 2


@pytest.mark.parametrize("schema", [{}, {"type": "array", "items": {"type": "object"}}, {"properties": {"a": {}}}])
def test_model_is_trapped_in_endless_whitespace(schema: Any) -> None:
    """A model that writes white space wherever it may reaches the end of the document after at most 258 bytes."""
    for seed in range(10):
        rng = random.Random(seed)
        matcher, run, text = compiled(schema).matcher(), 0, b""
        while (allowed := allowed_bytes(matcher)) and len(text) < 3_000:
            in_string = text.replace(b'\\"', b"").count(b'"') % 2
            blanks = b"" if in_string else bytes(byte for byte in allowed if byte in BLANK)
            byte = rng.choice(blanks or allowed)
            run = run + 1 if blanks else 0
            assert run <= 258, text[-300:]
            assert matcher.accept(byte + 1)
            text += bytes([byte])
        assert not text.startswith(tuple(BLANK[place : place + 1] for place in range(4)))


def test_required_without_properties_is_ignored() -> None:
    """A required name that is declared nowhere must still come, first, last or alone."""
    texts = ['{"a": 1}', '{"b": 1, "a": 2}', '{"a": [], "b": 1}', "{}", '{"b": 1}', '{"aa": 1}', '{"A": 1}', "[]"]
    compare({"type": "object", "required": ["a"]}, texts)
    matcher = compiled({"type": "object", "required": ["a"]}).matcher()
    matcher.accept_bytes(b'{"b":{"a":1}')
    assert b"}" not in allowed_bytes(matcher)


@pytest.mark.parametrize("pattern", ["^[ab]+$", "b", "a$", "^b", "a.*b", "^(ab)*$", "(a|bb)$"])
@pytest.mark.parametrize(("least", "most"), [(0, 3), (2, 2), (3, 4)])
def test_pattern_is_dropped_beside_a_length_or_anchored_by_force(pattern: str, least: int, most: int) -> None:
    """For all strings over three letters, the pattern is searched, not matched, and both lengths hold."""
    schema = {"type": "string", "pattern": pattern, "minLength": least, "maxLength": most}
    texts = ["".join(letters) for size in range(6) for letters in itertools.product("abé", repeat=size)]
    compare(schema, [json.dumps(text, ensure_ascii=False) for text in texts])


@pytest.mark.parametrize("order", ["declared", "any"])
def test_all_of_two_objects_forbids_both_or_forgets_one(order: Any) -> None:
    """Names of either schema are allowed, and a common name satisfies both."""
    schema = {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"minimum": 2}}, "required": ["a"]},
            {"properties": {"b": {"type": "number"}, "c": {"const": None}}, "required": ["b"]},
        ]
    }
    values = (1, 2.5, "x", None, ...)
    members = [zip("abc", found, strict=True) for found in itertools.product(values, repeat=3)]
    objects = [{name: value for name, value in pairs if value is not ...} for pairs in members]
    compare(schema, [json.dumps(one) for one in objects], JsonPolicy(order=order))


def test_pattern_properties_do_not_hold_for_declared_names() -> None:
    """A declared name that a pattern matches satisfies both; ``additionalProperties`` sees only unmatched names."""
    schema = {
        "properties": {"x1": {"type": "integer"}, "y": {}},
        "patternProperties": {"^x": {"minimum": 2}, "1$": {"maximum": 5}},
        "additionalProperties": {"type": "null"},
    }
    values = (0, 3, 3.5, 9, None)
    names = ("x1", "x2", "y", "y1", "z")
    objects = [{name: value} for name in names for value in values]
    objects += [{"x1": one, "z": None, "y1": other} for one in values for other in values]
    compare(schema, [json.dumps(one) for one in objects])


@pytest.mark.parametrize(
    "bounds", [{"minimum": 0.05, "maximum": 120}, {"exclusiveMinimum": -1e3, "exclusiveMaximum": 1e3}]
)
def test_exponents_get_round_a_range(bounds: dict[str, float]) -> None:
    """A number in any form, with whatever exponent, is accepted iff its value is in the range."""
    digits = ("0", "1", "5", "9.99", "12", "-1", "-9.5", "0.05", "100", "0.0")
    exponents = ("", "e0", "E1", "e2", "e+3", "e-1", "e-02", "e-3")
    texts = [number + exponent for number in digits for exponent in exponents]
    compare({"type": "number", **bounds}, texts, EVERY_SPELLING)


ESCAPED = [
    *('"A"', '"\\u0041"', '"\\u0061"', '"\\u0042"', '"\\u00e9"', '"é"', '"\\u00E9"', '"e\\u0301"'),
    *('"😀"', '"\\ud83d\\ude00"', '"\\uD83D\\uDE00"', '"\\ud83d\\ude01"', '"\\/"', '"/"', '"\\n"', '"\\u000a"'),
]


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": ["A", "é", "😀", "/", "\n"]},
        {"const": "😀"},
        {"pattern": "^[A-C😀]$"},
        {"type": "string", "maxLength": 1},
    ],
)
def test_escapes_are_taken_for_other_characters(schema: Any) -> None:
    """``\\u0041`` is A and a surrogate pair is one character, in constants, patterns and lengths."""
    constraint, judge = compiled(schema, EVERY_SPELLING), Judge(schema)
    assert {text: accepts(constraint, text) for text in ESCAPED} == {text: judge.is_valid(text) for text in ESCAPED}
    named = {"properties": {"A": schema}, "required": ["A"], "additionalProperties": False}
    texts = [f'{{"{name}": {text}}}' for name in ("A", "\\u0041", "\\u0042") for text in ESCAPED]
    compare(named, texts, EVERY_SPELLING)


@pytest.mark.parametrize("policy", [JsonPolicy(), EVERY_SPELLING])
def test_lone_surrogates_break_the_reader(policy: JsonPolicy) -> None:
    """Half a surrogate pair is no character: it is refused, and after a high one only a low one comes."""
    for schema in ({}, {"type": "string", "minLength": 1}, {"type": "object"}):
        for text in ('"\\ud800"', '"\\udc00"', '"\\ud800x"', '"\\ud800\\u0041"', '"\\ude00\\ud83d"', '"\\ud800\\n"'):
            for whole in (text, f'{{"a": {text}}}', f"{{{text}: 1}}"):
                assert not accepts(compiled(schema, policy), whole)
    matcher = compiled({"type": "string"}, policy).matcher()
    for start, following in ((b'"\\ud8', b"0123456789abcdefABCDEF"), (b"3d", b"\\"), (b"\\", b"u"), (b"u", b"dD")):
        matcher.accept_bytes(start)
        assert sorted(allowed_bytes(matcher)) == sorted(following)


@pytest.mark.exhaustive
def test_large_enum_takes_minutes_and_gigabytes() -> None:
    """A hundred thousand strings take seconds and some hundred megabytes, and are exact."""
    values = [f"value {number * 7919 % 1_000_003} of {number}" for number in range(100_000)]
    tracemalloc.start()
    with at_most(20):
        constraint = compiled({"enum": values})
        matcher = constraint.matcher()
        assert allowed_bytes(matcher) == b'"'
        for value in values[::997]:
            assert accepts(constraint, json.dumps(value))
            assert not accepts(constraint, json.dumps(value + "0"))
            assert not accepts(constraint, json.dumps(value[:-1] + "x"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500e6


@pytest.mark.parametrize("depth", [100, 5_000])
def test_deep_documents_overflow_the_stack(depth: int) -> None:
    """A recursive schema accepts documents of any depth and their exact closings."""
    schema = {
        "$defs": {
            "tree": {"properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}, "required": ["v"]}
        },
        "$ref": "#/$defs/tree",
    }
    constraint = compiled({"type": "object", **schema}, JsonPolicy(whitespace="flexible", order="any"))
    opening, closing = '{"v":1,"kids":[' * depth, "]}" * depth
    assert accepts(constraint, opening + closing)
    assert not accepts(constraint, opening + closing + "]")
    assert not accepts(constraint, opening + '{"kids":[]}' + closing)
    matcher = constraint.matcher()
    matcher.accept_bytes(opening.encode())
    assert matcher.min_tokens() == len(closing)


@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07", "2019-09", "2020-12"])
def test_siblings_of_a_reference_are_dropped_or_kept_against_the_draft(draft: str) -> None:
    """Up to draft 7 nothing beside ``$ref`` counts; from 2019-09 on all of it does."""
    old = draft.startswith("draft")
    meta = f"http://json-schema.org/{draft}/schema#" if old else f"https://json-schema.org/draft/{draft}/schema"
    schema = {
        "$schema": meta,
        "definitions": {"n": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/definitions/n", "maximum": 5, "enum": [1, 9]}},
    }
    texts = [f'{{"a": {number}}}' for number in ("1", "2", "9", "10", "1.5", '"x"')]
    compare(schema, texts)


@pytest.mark.parametrize("constant", ["1", "1.0", "-0.0", "1e2", '[1.0, {"a": 2}]'])
@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_one_and_one_point_zero_are_different_constants(constant: str, keyword: str) -> None:
    """Constants are compared by value; neither true nor "1" equals 1."""
    schema = json.loads(f'{{"{keyword}": {constant if keyword == "const" else f"[{constant}]"}}}')
    numbers = ["1", "1.0", "10e-1", "0.1E1", "0", "0.0", "-0", "0e5", "100", "1e2", "100.0", "1.1", "true", '"1"']
    lists = [f'[{one}, {{"a": {other}}}]' for one in ("1", "1.0", "true", "2") for other in ("2", "2.0", "20e-1", "1")]
    compare(schema, numbers + lists, EVERY_SPELLING)


@pytest.mark.exhaustive
@pytest.mark.parametrize("keyword", ["anyOf", pytest.param("oneOf", marks=pytest.mark.nightly)])
def test_many_tools_time_out_or_mix_up_their_arguments(keyword: str) -> None:
    """128 tools in one choice take two seconds at most, and the arguments are those of the named tool."""
    kinds = [
        {"type": "string"},
        {"type": "integer", "minimum": 3},
        {"enum": ["a", "b"]},
        {"type": "array", "maxItems": 1},
    ]
    names = [f"tool_{number:03d}{'_more' * (number % 3)}" for number in range(128)]

    def tool(number: int) -> dict[str, Any]:
        given = {f"p{number % 5}": kinds[number % 4], "q": kinds[number // 4 % 4]}
        arguments = {"type": "object", "properties": given, "required": [*given], "additionalProperties": False}
        called = {"name": {"const": names[number]}, "arguments": arguments}
        return {"type": "object", "properties": called, "required": [*called], "additionalProperties": False}

    schema = {keyword: [tool(number) for number in range(128)]}
    with at_most(2):
        constraint = compiled(schema)
        assert allowed_bytes(constraint.matcher()) == b"{"
    values = ("x", "a", 3, 2, [], [1, 2])
    judge, rng = Judge(schema), random.Random(4)
    seen = set()
    for number in range(128):
        for _ in range(2):
            other = rng.choice((number, number, (number + 5) % 128, (number + 1) % 128))
            arguments = {f"p{other % 5}": rng.choice(values), "q": rng.choice(values)}
            text = json.dumps({"name": names[number], "arguments": arguments})
            expected = judge.is_valid(text)
            assert accepts(constraint, text) == expected, text
            seen.add(expected)
    assert seen == {True, False}
