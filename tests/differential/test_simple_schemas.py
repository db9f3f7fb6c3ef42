"""The native planner of simple schemas makes the same terms as the planner in Python."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from nearly_simple_schemas import schema_of

from structgen.engine import Vocabulary
from structgen.errors import StructgenError
from structgen.frontends.json_schema import JsonPolicy, forget_known, json_schema
from structgen.grammar.flattening import flatten
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, Shared
from structgen.grammar.nodes.description import Described

_LITERAL, _BYTES, _CHARS, _CHOICE, _CALL, _SET_RULE = 0, 1, 2, 6, 12, 13  # kinds of instructions, as program.h has them
_LIMITS: Final = Limits()
_VOCABULARY: Final = Vocabulary([bytes([byte]) for byte in range(256)], eos=())


@pytest.fixture(autouse=True)
def cold() -> None:
    """Clear the cache of schemas that earlier tests filled."""
    forget_known()


@dataclass
class Terms:
    """Numbers of terms; equal terms have equal numbers.

    Attributes:
        known: the number of each term.
        shared: the shared nodes that were met before, which are not flattened again.
    """

    known: dict[object, int] = field(default_factory=dict)
    shared: dict[int, tuple[Grammar, int]] = field(default_factory=dict)


_TERMS: Final = Terms()


def terms_of(grammar: Grammar, terms: Terms) -> tuple[int, dict[str, int]]:
    """The numbers of the terms of a flattened grammar and of its rules."""
    flat = flatten(grammar, terms.shared, _VOCABULARY, _LIMITS.grammar_nodes)
    numbers: list[int] = []
    bodies: dict[int, int] = {}
    instructions, names = flat.instructions, flat.rules
    for kind, decoded, operands, low, high, required in instructions:
        if kind == _SET_RULE:
            bodies[low] = operands[0]
        if kind in (_LITERAL, _BYTES, _CHARS):
            key: object = (kind, decoded, operands)
        elif kind == _CALL:
            key = (kind, names[low])
        else:
            parts = tuple(numbers[one] for one in operands)
            if kind == _CHOICE:  # the native planner knows more equal leaves, and names each once
                parts = tuple(dict.fromkeys(parts))
                if len(parts) == 1:
                    numbers.append(parts[0])
                    continue
            key = (kind, decoded, parts, low, high, required)
        numbers.append(terms.known.setdefault(key, len(terms.known)))
    rules = reached(flat.result, instructions, bodies)
    return numbers[flat.result], {names[rule]: numbers[bodies[rule]] for rule in rules}


def reached(result: int, instructions: list[tuple[Any, ...]], bodies: dict[int, int]) -> set[int]:
    """The rules that an instruction leads to, given where their bodies are."""
    found: set[int] = set()
    seen: set[int] = set()
    waiting = [result]
    while waiting:
        at = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        kind, _, operands, low, _, _ = instructions[at]
        if kind == _CALL:
            found.add(low)
            waiting.append(bodies[low])
        elif kind not in (_LITERAL, _BYTES, _CHARS):
            waiting += operands
    return found


def assert_references(schema: object, **options: Any) -> bool:
    """Compare the two planners; return whether the native one planned the schema, a JSON value or text."""
    text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    grammar = json_schema(text, **options)
    assert isinstance(grammar, Described)
    given = json_schema(schema, **options)
    assert isinstance(given, Described)
    assert (given.plain is None) == (grammar.plain is None)
    if grammar.plain is None:
        return False
    assert terms_of(given, _TERMS) == terms_of(grammar, _TERMS), text
    assert terms_of(grammar, _TERMS) == terms_of(grammar.item, _TERMS), text
    for node in flatten(grammar, _TERMS.shared, _VOCABULARY, _LIMITS.grammar_nodes).shared:
        if isinstance(node, Shared):  # and not a leaf, since leaves are not looked up in the other grammar
            _TERMS.shared[id(node)] = node, len(_TERMS.shared)
    return True


POLICIES: Final = [
    JsonPolicy(),
    JsonPolicy(whitespace="flexible", additional="written"),
    JsonPolicy(whitespace="compact", required="all"),
    JsonPolicy(additional="written", required="all"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=["default", "written", "required", "written-required"])
@pytest.mark.parametrize("step", [28, pytest.param(1, marks=pytest.mark.nightly)])
def test_real_schemas(shared_data: Path, step: int, policy: JsonPolicy) -> None:
    """Most real schemas are simple, and both planners agree."""
    path = shared_data / "maskbench_dev.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"no file {path}")
    count = simple = 0
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in islice(lines, 0, None, step):
            count += 1
            with suppress(StructgenError):  # refused by the planner in Python: the native one leaves all errors to it
                simple += assert_references(json.loads(line)["schema"], policy=policy)
    assert simple > 0.85 * count


def documents(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Random documents with definitions."""
    chance = random.Random(seed)
    for _ in range(count):
        names = tuple(chance.sample(("one", "two", "th ree", "a&b"), chance.randint(0, 3)))
        root = schema_of(chance, 4, names)
        document = dict(root) if isinstance(root, dict) else {}
        if names:
            document["definitions"] = {name: schema_of(chance, 3, names) for name in names}
        if chance.random() < 0.5:
            year = chance.choice(
                ("draft-04/schema#", "draft-07/schema#", "draft/2020-12/schema", "draft/2019-09/schema")
            )
            document["$schema"] = f"http://json-schema.org/{year}"
        if chance.random() < 0.1:
            document[chance.choice(("$id", "id"))] = "http://example.com/x"
        yield document


@pytest.mark.parametrize("count", [500, pytest.param(1_500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("seed", range(len(POLICIES)))
def test_random_schemas(seed: int, count: int) -> None:
    """What the native planner accepts, it plans alike; and it accepts a good part."""
    simple = 0
    for document in documents(seed, count):
        try:
            simple += assert_references(document, policy=POLICIES[seed])
        except StructgenError:
            continue
    assert simple > count // 5


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {
            "$ref": "#/definitions/a",
            "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}},
        },
        {"anyOf": [{"$ref": "#"}, {"type": "string"}]},
        {"anyOf": [{"allOf": [{"$ref": "#"}]}, {"type": "string"}]},
        {"type": "object", "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": {"$ref": "#/definitions/b"}}, "definitions": {"b": {"$id": "c"}}},
        {"type": "object", "properties": {"a": {"type": "string", "items": 1}}},
        {"type": "object", "properties": {"a": {"type": "string", "required": "a"}}},
        {"type": "object", "pattern": "("},
        {"type": "array", "items": {}, "additionalItems": 1},
        {"type": "array", "items": [{"type": "string"}]},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "minItems": -1},
        {"type": "array", "maxItems": 1.5},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": []},
        {"enum": []},
        {"type": ["string", "null"], "patternProperties": {"a": {}}},
        {"type": "object", "minProperties": 2},
        {"type": "object", "minProperties": 2, "required": ["a"], "maxProperties": 1},
        {"type": "string", "maxProperties": -1},
        {"type": "object", "patternProperties": {"(": {}}},
        {"type": "object", "patternProperties": {"a": 1}},
        {"type": "object", "patternProperties": ["a"]},
        {"properties": {"a": {"allOf": [{"patternProperties": {"(": {}}}, {"type": "null"}]}}},
        {"properties": {"a": {"enum": [1], "pattern": "("}}},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "format": "something"},
        {"type": "string", "enum": [1]},
        {"type": "string", "pattern": "("},
        {"properties": {"a": {"allOf": [{"type": "string", "pattern": "("}, {"type": "integer"}]}}},
        {"properties": {"a": {"allOf": [{"type": "integer", "required": 1}, {"type": "string"}]}}},
        {"properties": {"a": {"type": "null", "anyOf": [{"items": {}, "minItems": -1}, {"type": "null"}]}}},
        {"properties": {"a": {"type": "null", "anyOf": []}}},
        {"properties": {"a": {"type": "null", "allOf": [1]}}},
        {"properties": {"a": {"type": "null", "anyOf": {"type": "null"}}}},
        {"type": "object", "allOf": [{"type": "object", "allOf": [{"$ref": "#"}]}]},
        {
            "allOf": [{"properties": {"a": {"type": "number"}}}, {"properties": {"a": {"minimum": 1}}}],
            "properties": {"b": {"$id": "http://a/b"}},
        },
        {"oneOf": [{"type": "array", "items": {"type": "string"}}, {"type": "array", "minItems": 1}]},
        {"type": "object", "not": {"properties": {"a": {"not": 1}}}},
        {"not": {"minLength": 3, "maxLength": 2}},
        {"not": {"items": {"type": "string"}}},
        {"not": {"allOf": [{"not": {}}, {"pattern": "("}]}},
        {"not": {"enum": [[1]]}},
        {"type": "array", "uniqueItems": 1},
        {"type": "array", "uniqueItems": True, "minItems": 2},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 3}, "uniqueItems": True},
        {"type": "object", "properties": {"a": {"dependencies": {"b": [1]}}}},
        {"type": "object", "dependencies": {"a": "b"}},
        {"type": "object", "dependencies": {"a": {"$ref": "#"}}},
        {"type": "object", "if": {"required": "a"}},
        {"type": "object", "then": 1},
        {"type": "object", "not": {"minProperties": 2}, "properties": {"a": False}, "minProperties": 2},
        {"type": "object", "not": {"maxProperties": 2}, "additionalProperties": True},
        {"$ref": "other.json"},
        {"$ref": "#/definitions/none"},
        {"$schema": "http://json-schema.org/draft-03/schema#"},
        {"properties": {"a": {"$id": "http://a/b", "$schema": "http://json-schema.org/draft-07/schema#"}}},
    ],
)
def test_what_is_left_to_the_other_planner(schema: object) -> None:
    """The native planner plans no text with a fault, a contradiction or an unsupported keyword."""
    try:
        grammar = json_schema(json.dumps(schema))
    except StructgenError:
        return
    assert isinstance(grammar, Described)
    assert grammar.plain is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"a": False}},
        {"type": "object", "properties": {"a": {"type": "string", "enum": [1]}}},
        {"type": "object", "properties": {"a": False, "b": {}}, "required": ["b"], "additionalProperties": False},
        {"type": "array", "items": {"type": "null", "const": 0}},
        {"anyOf": [{"type": "array", "items": False, "minItems": 1}, {"type": "string"}]},
        {"oneOf": [{"type": "string"}, {"type": ["object", "null"], "minProperties": 0}, {"type": "array"}][::2]},
        {
            "allOf": [{"oneOf": [{"type": "string"}, {"$ref": "#/definitions/n"}]}],
            "definitions": {"n": {"type": "null"}},
        },
        {"type": "string", "properties": {"a": {}}, "items": True, "minItems": 2},
        {"enum": [[1], {"a": [{}]}]},
        {"enum": [1.5, "a"]},
        {"type": "string", "enum": ["a", "abc"], "maxLength": 2},
        {"type": "array", "maxItems": 0, "items": False},
        {"type": "string", "minLength": 1, "anyOf": [{"enum": ["", "a"]}]},
        {"type": "object", "minProperties": 1},
        {"minProperties": 1, "maxProperties": 1, "required": ["a"]},
        {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1, "required": ["b"]},
        {"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 2, "additionalProperties": False},
        {
            "properties": {"a": {}, "b": {}, "c": {}},
            "minProperties": 2,
            "maxProperties": 2,
            "additionalProperties": False,
        },
        {
            "allOf": [
                {"minProperties": 1},
                {"maxProperties": 3, "properties": {"a": {}, "b": False}},
                {"maxProperties": 2},
            ]
        },
        {"type": "object", "patternProperties": {"^a": {}}, "minProperties": 1, "additionalProperties": False},
        {"enum": ["a", "abc", 7, None, "", "b"], "allOf": [{"maxLength": 2}, {"minimum": 8, "pattern": "^(a|b)?"}]},
        {
            "properties": {"a": {"anyOf": [{"enum": ["a", "é"]}, {"enum": ["ab", 3]}, {"const": "\u0001"}]}},
            "anyOf": [{"properties": {"a": {"pattern": f"^{text}$"}}} for text in ("a", "b", "é|ab", ".")],
        },
        {
            "type": "object",
            "properties": {"x": {}, "a": {"type": "null"}},
            "patternProperties": {"^x": {"type": "null"}},
        },
        {
            "type": "object",
            "patternProperties": {"^x": {"type": "null"}},
            "additionalProperties": False,
            "required": ["x"],
        },
        {"type": "object", "patternProperties": {"^a": {"minimum": 1}, "b$": {"type": "integer"}, "c": False, "d": {}}},
        {
            "allOf": [
                {"patternProperties": {"^a": {}}, "additionalProperties": False},
                {"properties": {"ab": {}, "b": {}}},
            ]
        },
        {"anyOf": [{"type": "string"}, {"type": "null"}], "maxLength": 3},
        {"oneOf": [{"type": "string"}, {"maxLength": 3}]},
        {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$", "maxLength": 9}]},
        {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]},
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "number", "maximum": 9, "exclusiveMinimum": -2}]},
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "oneOf": [{"required": ["a", "b"]}, {"required": ["b", "c"]}, {"required": ["c"]}]},
        {"oneOf": [{"required": ["a"], "properties": {"a": {"enum": [1, 2]}}}, {"properties": {"a": {"const": 3}}}]},
        {
            "oneOf": [
                {"type": "object", "properties": {"a": {"type": kind}, "b": {}}, "additionalProperties": rest}
                for kind, rest in (("string", False), ("integer", True), ("array", {"type": "null"}))
            ]
        },
        {
            "definitions": {
                "node": {"type": "object", "properties": {"next": {"oneOf": [{"$ref": "#/definitions/node"}, {}]}}}
            },
            "oneOf": [{"$ref": "#/definitions/node"}, {"type": "object", "required": ["next"]}],
        },
        {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 1},
        {"uniqueItems": True, "items": {"enum": ["a", "b", None, 1, "a"]}, "minItems": 2, "maxItems": 3},
        {"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True, "minItems": 3},
        {"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True, "maxItems": 1},
        {"anyOf": [{"type": "array", "items": {"const": 1}, "uniqueItems": True, "minItems": 2}, {"type": "null"}]},
        {
            "allOf": [
                {"items": {"oneOf": [{"const": "a"}, {"type": "null"}, {"enum": ["b", "a"]}]}},
                {"uniqueItems": True},
            ],
            "type": ["array", "object"],
        },
        {"not": {"required": ["a"]}},
        {"type": ["object", "null"], "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]}},
        {
            "type": "object",
            "not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "properties": {"a": {}, "c": {}},
        },
        {"type": "object", "not": {"properties": {"a": {"const": "x"}}, "required": ["a"]}, "properties": {"a": {}}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"minProperties": 2}},
        {"type": "object", "not": {"patternProperties": {"^a": {"type": "string"}}}, "additionalProperties": True},
        {"type": "string", "not": {"enum": ["a", "b"]}},
        {"type": ["string", "integer"], "not": {"enum": ["a", 1, None]}},
        {"not": {"type": ["integer", "array"]}},
        {"not": {"const": True}, "type": ["boolean", "null"]},
        {"type": "string", "not": {"pattern": "^a", "maxLength": 3}},
        {"type": "string", "not": {"format": "date"}},
        {"type": "number", "not": {"minimum": 3, "multipleOf": 2}},
        {"enum": ["a", "b", 1], "not": {"enum": ["b"]}},
        {"not": {"not": {"type": "object", "properties": {"a": {"type": "string"}}}}},
        {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "dependencies": {"b": ["a"], "a": ["c", "a"]}},
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "dependentRequired": {"a": ["b"], "c": ["c"]}},
        {"type": "object", "dependencies": {"a": {"required": ["b"], "properties": {"b": {"minimum": 7}}}, "c": ["d"]}},
        {"type": "object", "dependencies": {name: {"properties": {"t": {"enum": ["x"]}}} for name in "abcde"}},
        {"type": "object", "properties": {"a": {}, "c": {}}, "dependencies": {"a": False}},
        {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"dependencies": {"b": ["a"]}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"enum": [1, 2]}, "b": {}},
            "if": {"properties": {"a": {"const": 1}}, "required": ["a"]},
            "then": {"required": ["b"]},
            "else": {"properties": {"b": False}},
        },
        {"$schema": "http://json-schema.org/draft-07/schema#", "if": {"type": "string"}, "then": {"maxLength": 3}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "not": {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
            "type": "object",
        },
        {"oneOf": [{"const": 1}, {"const": "1"}]},
        {
            "type": ["integer", "array"],
            "oneOf": [{"type": "integer", "enum": [1, 2, 1]}, {"type": "array", "items": {"type": "null"}}],
        },
        {"oneOf": [{"enum": [1, 2]}, {"enum": [2, 3]}, {"enum": [3, 4, 4]}]},
        {"anyOf": [{"const": 1}, {"const": 2}]},
        {"allOf": [{"type": "string"}, {"maxLength": 3}, {"maxLength": 3}, {"pattern": "a"}]},
        {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
        {"allOf": [{"properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}, {"properties": {"a": {"enum": [2]}}}]},
        {"type": ["object", "null"], "allOf": [{"required": ["a"]}, {"additionalProperties": False}]},
        {
            "type": ["array", "null"],
            "allOf": [{"items": {"minimum": 1}}, {"items": {"type": "integer"}, "minItems": 2}],
        },
        {"type": "object", "oneOf": [{"required": ["a"], "properties": {"a": {"const": n}}} for n in (1, "1", True)]},
        {
            "oneOf": [
                {"type": "object", "required": [n], "properties": {n: {}}, "additionalProperties": False} for n in "abc"
            ],
            "type": ["object", "null"],
        },
        {"type": "array", "items": {"type": "string"}, "additionalItems": False, "minLength": 3},
        {"minimum": 1, "properties": {"a": {}}},
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$ref": "#/$defs/a",
            "type": ["string", "array"],
            "minLength": 1,
            "$defs": {"a": {}},
        },
        {"properties": {"a": {"$id": "http://a/b", "type": "string"}}},
        {"properties": {"a": {"$id": "#a", "type": "string"}, "b": {"$ref": "#/properties/a"}}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/properties/x",
            "properties": {"x": {"properties": {"y": {"$ref": "#"}}}},
        },
    ],
)
def test_what_is_simple(schema: object) -> None:
    """Schemas without values, keywords without effect on a type, and unions without overlap are simple."""
    assert assert_references(schema)


@pytest.mark.parametrize(
    "text",
    [
        '{"type": "string", "type": "object"}',
        '{"title": "\\ud800"}',
        '{"title": 01}',
        '{"title": "a\tb"}',
        '{"title": NaN}',
        '{"title": 1.}',
        '{"title": "\\x"}',
        '{"type": "string"',
        '{"type": "string"}}',
        '{"type": "string",}',
        "",
        "[",
        '{"title": ' + "[" * 3_000 + "]" * 3_000 + "}",
        '{"title": ' + "9" * 5_000 + "}",
    ],
)
def test_texts_that_are_not_plain_json(text: str) -> None:
    """Only the strict reader in Python reads or refuses them."""
    try:
        grammar = json_schema(text)
    except StructgenError:
        return
    assert isinstance(grammar, Described)
    assert grammar.plain is None


def test_policies() -> None:
    """The native planner leaves alone spellings that it does not know."""
    for policy in (JsonPolicy(order="any"), JsonPolicy(numbers="all"), JsonPolicy(escapes="all")):
        assert not assert_references({"type": "object", "properties": {"a": {"const": 1}}}, policy=policy)
    assert assert_references(
        {"type": "object", "properties": {"a": {"const": 1}}}, policy=JsonPolicy(indent=3, digits=5)
    )


def test_limits_hold() -> None:
    """A schema that is too large for the planner in Python is not planned natively either."""
    schema = {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(1_000)}}
    assert assert_references(schema)
    with pytest.raises(StructgenError, match="grammar_nodes"):
        json_schema(json.dumps(schema), limits=Limits(grammar_nodes=10_000))
    deep: Any = {"type": "string"}
    for _ in range(60):
        deep = {"type": "array", "items": deep}
    assert assert_references(deep)
    with pytest.raises(StructgenError, match="nesting"):
        json_schema(json.dumps(deep), limits=Limits(nesting=50))


def test_limits_hold_for_random_schemas() -> None:
    """What the native planner plans under small limits, the planner in Python plans too."""
    chance = random.Random(7)
    simple = 0
    for document in documents(7, 600):
        limits = Limits(grammar_nodes=chance.randint(80, 2_000), nesting=chance.choice((2, 4, 200)))
        try:
            grammar = json_schema(json.dumps(document), limits=limits)
        except StructgenError:
            continue
        assert isinstance(grammar, Described)
        if grammar.plain is not None:
            simple += 1
            assert grammar.item is not None  # planned in Python, under the same limits
    assert simple > 100


def test_many_alternatives() -> None:
    """One constant distinguishes many alternatives, or the other planner plans them."""
    labelled = [{"type": "object", "properties": {"a": {"const": n}}, "required": ["a"]} for n in range(600)]
    assert assert_references({"oneOf": labelled})
    assert assert_references({"type": "array", "items": {"oneOf": labelled, "type": "object"}})
    assert not assert_references({"type": "object", "anyOf": labelled[:40], "allOf": [{"anyOf": labelled[:40]}]})


def test_deep_schemas_need_no_stack() -> None:
    """Neither planner recurses."""
    around = '{"type": "object", "properties": {"a": ', '}, "additionalProperties": false}'
    assert assert_references(around[0] * 900 + '{"type": "string"}' + around[1] * 900)


SIMPLE: Final[dict[str, tuple[Any, ...]]] = {
    "type": ("string", "integer", "number", "null", "object", ["string", "null"], ["integer", "string"], ["array"], 0),
    "nullable": (True, False, 1),
    "minLength": (0, 2, -1, 2.0),
    "maxLength": (0, 1, 5, "1"),
    "pattern": ("^a+$", "b", "[", "(?=a)b", "\\w\\d"),
    "format": ("date", "uuid", "ipv4", "unheard-of", 3),
    "minimum": (0, -3, 2.5, 1e300, "0"),
    "maximum": (0, 7, 99.25, -1e-5, True),
    "exclusiveMinimum": (0, -3.5, True),
    "exclusiveMaximum": (10, 0.125, True),
    "multipleOf": (2, 0.5, 0),
}


@pytest.mark.parametrize("draft", ["draft-04", "draft-07"])
def test_leaves_are_planned_alike(draft: str) -> None:
    """A schema of simple keywords has the same term, or the same error, alone as in a document."""
    chance = random.Random(draft)
    alone, planned = Limits(nesting=1_001), Limits(nesting=1_002)  # which share no leaves
    refused = 0
    for _ in range(600):
        names = chance.sample(sorted(SIMPLE), chance.choice((1, 2, 2, 3, 4)))
        schema = {name: chance.choice(SIMPLE[name]) for name in names}
        schema["$schema"] = f"http://json-schema.org/{draft}/schema#"
        try:
            expected = json_schema(schema, limits=planned)
        except StructgenError as error:
            refused += 1
            with pytest.raises(type(error)):
                json_schema(json.dumps(schema), limits=alone)
            continue
        found = json_schema(json.dumps(schema), limits=alone)
        assert isinstance(found, Described)
        assert found.plain is not None, schema
        assert terms_of(found, _TERMS) == terms_of(expected, _TERMS), schema
    assert 60 < refused < 540
