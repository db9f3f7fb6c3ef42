"""The arguments of ``json_schema``: text, values, Python types; and invalid ones."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import subprocess
import sys
import uuid
from typing import Annotated, Any, Literal, NamedTuple, Required

import pytest
from hypothesis import given, strategies as st
from machine_load import at_most
from pydantic import BaseModel, Field, TypeAdapter
from schema_as_written import as_written as json_schema
from structgen_kernels import _native
from typing_extensions import TypedDict

from structgen.errors import (
    GrammarError,
    GrammarSyntaxError,
    LimitExceeded,
    StructgenError,
    UnsatisfiableGrammar,
    UnsupportedFeature,
)
from structgen.frontends.json_schema.source.json_value import SchemaText, parse_json
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.testing.reference import ReferenceMatcher

DEEP = 100_000


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is accepted, by the reference implementation."""
    matcher = ReferenceMatcher(grammar)
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


# Text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Text(str):
    """A string of another class."""


@pytest.mark.parametrize(
    "value",
    [
        {1: "a"},
        {None: 1},
        {"a": {1}},
        {"a": b"bytes"},
        {Text("a"): 1},
        [Text("a")],
        {"a": float("nan")},
        [float("-inf")],
        {"\ud800": 1},
        ["\udfff"],
        {"a": decimal.Decimal(1)},
        [enum.IntEnum("One", ["ONE"]).ONE],  # type: ignore[attr-defined]  # made here
        [10**5000],
        [[[[]]]],
        ["four bytes too many"] * 60,
    ],
)
def test_what_is_no_plain_json_is_not_written(value: object) -> None:
    """Other classes and keys, non-finite numbers, lone surrogates, and too deep or long values take the slow path."""
    assert _native.json_text(value, 3, 1_000) is None


def test_parts_that_are_one_object_are_not_written_without_end() -> None:
    """Cycles, and shared parts that would expand to a billion objects, are not written out."""
    loop: dict[str, Any] = {}
    loop["a"] = [loop]
    assert _native.json_text(loop, 200, 1 << 20) is None
    references: Any = {}
    for _ in range(30):
        references = {"a": references, "b": references}
    assert _native.json_text(references, 200, 1 << 20) is None


@pytest.mark.parametrize("kind", [str, str.encode, lambda text: bytearray(text.encode())])
def test_text_beside_a_registry(kind: Any) -> None:
    """Text is read as text, whatever else is given."""
    grammar = json_schema(kind('{"$ref": "urn:a"}'), registry={"urn:a": {"enum": ["x"]}})
    assert accepts(grammar, '"x"')
    assert not accepts(grammar, '"y"')


@given(value=VALUES, indent=st.none() | st.integers(0, 4), ascii_only=st.booleans())
def test_json_text_is_read_as_json_does(value: Any, indent: int | None, ascii_only: bool) -> None:
    """The native reader and the one for unusual texts agree with ``json.loads``; what is kept is the text itself."""
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert parse_json(text, "test", Limits()) == json.loads(text)
    assert _native.json_text(value, 200, 1 << 20) == json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert parse_json(f'["\\ud800", {text}]', "test", Limits())[1] == json.loads(text)
    part = f'{{"x": {text}}}'
    kept = parse_json(f'[{{"kept": {part}, "x": {text}}}, {part}]', "test", Limits(), kept=("kept",))
    assert kept == [{"kept": part, "x": json.loads(text)}, json.loads(part)]
    assert isinstance(kept[0]["kept"], SchemaText)


@given(text=st.text('{}[]",:0e1.-+ truefalsn\\u"', max_size=12))
def test_what_is_not_json_is_an_error_with_a_span(text: str) -> None:
    """Text is read iff ``json.loads`` reads it strictly; otherwise the error has a span in the text."""
    try:
        expected = [json.loads(text, object_pairs_hook=_strict, parse_constant=_never)]
    except ValueError:
        expected = []
    try:
        found = [parse_json(text, "test", Limits())]
    except GrammarSyntaxError as error:
        found = []
        assert 0 <= error.span[0] <= len(text)  # noqa: PT017  # the error is not the point of the test
    assert found == expected


def _strict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("repeated name")
    return dict(pairs)


def _never(constant: str) -> None:
    raise ValueError(constant)


@pytest.mark.parametrize(
    ("text", "problem", "span"),
    [
        ('{"type": "string"', "expected ',' or the end of the object; the text ends here", (17, 18)),
        ('{"a": 1, "a": 2}', "name 'a' occurs twice in this object", (9, 12)),
        ('{"enum": [NaN]}', "expected a JSON value, found 'NaN'", (10, 13)),
        ('{"enum": ["\\q"]}', "escape is not known", (11, 12)),
        ('{"enum": ["\x00"]}', "control character must be escaped", (11, 12)),
        ('{"enum": ["x]}', "string is not closed", (10, 11)),
        ("{'a': 1}", "expected a name in double quotes", (1, 2)),
        ("{} {}", "expected the end of the text", (3, 4)),
        ("", "expected a JSON value; the text ends here", (0, 1)),
    ],
)
def test_faults_of_text_are_located(text: str, problem: str, span: tuple[int, int]) -> None:
    """An error in the text has its problem and its span."""
    with pytest.raises(GrammarSyntaxError) as caught:
        json_schema(text)
    found = caught.value.problem.removeprefix("not valid JSON: ")
    assert (found, caught.value.span) == (problem, span)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ('{"a": 1,}', "remove the comma before it"),
        ("{'a': 1}", "JSON has double quotes"),
        ('{"a": True}', "JSON writes true"),
        ('{"a": 1 // one\n}', "JSON has no comments"),
        ("# a schema\n{}", "JSON has no comments"),
        ('{"type": "string"} {}', "one JSON document"),
        ('{"type": "string" "maxLength": 3}', "put a comma before it"),
        ("{\u201ctype\u201d: 1}", "straight double quotes"),
        ("type: object\n", "looks like YAML"),
        ("---\ntype: object\n", "looks like YAML"),
        ('{"type": ', "close what is open"),
        ("schemas/user.json", "sg.load"),
        ('{"a": @}', "json.tool"),
    ],
)
def test_a_text_that_is_not_json_says_what_to_do(text: str, remedy: str) -> None:
    """What stands where the text ceases to be JSON decides on the remedy."""
    with pytest.raises(GrammarSyntaxError) as caught:
        json_schema(text)
    assert caught.value.problem.startswith("not valid JSON: ")
    assert remedy in caught.value.remedy


def test_bytes_are_utf_8() -> None:
    """Bytes are read as UTF-8 with or without a mark; other bytes are an error at their place."""
    assert accepts(json_schema(b'\xef\xbb\xbf{"const": "\xc3\xa9"}'), '"é"')
    with pytest.raises(GrammarSyntaxError) as caught:
        json_schema(b'{"const": "\xc3\xa9\xff"}')
    assert caught.value.span == (12, 13)
    assert "0xff" in caught.value.problem


# Values


@pytest.mark.parametrize("schema", [5, 1.5, [], [{}], ("type",), '"type"', "5", "null"])
def test_what_is_no_schema(schema: Any) -> None:
    """Numbers, arrays and strings of JSON are no schemas."""
    with pytest.raises(GrammarError) as caught:
        json_schema(schema)
    assert caught.value.problem == "a schema must be an object or a boolean"


MALFORMED: list[tuple[Any, str, str]] = [
    ({"type": "any"}, "#/type", "'type' must be one of null"),
    ({"type": []}, "#/type", "'type' must be one of null"),
    ({"type": ["string", 3]}, "#/type/1", "must be one of null"),
    ({"enum": {}}, "#/enum", "'enum' must be an array of values"),
    ({"const": {1: 2}}, "#/const", "1 is not a name of a JSON object"),
    ({"const": object}, "#/const", "type is not a JSON value"),
    ({"const": float("nan")}, "#/const", "nan is not a JSON number"),
    ({"const": "\ud800"}, "#/const", "lone surrogate '\\ud800' cannot be written in UTF-8"),
    ({"properties": []}, "#/properties", "'properties' must be an object of schemas"),
    ({"properties": {"a": 1}}, "#/properties/a", "must be a schema"),
    ({"properties": {1: {}}}, "#/properties", "'properties' must be an object whose names are strings"),
    ({"properties": {"a": {"required": True}}}, "#/properties/a/required", "'required' must be an array of names"),
    ({"required": ["a", 1]}, "#/required/1", "must be a name"),
    ({"additionalProperties": 0}, "#/additionalProperties", "'additionalProperties' must be a schema"),
    ({"patternProperties": {"a": []}}, "#/patternProperties/a", "must be a schema"),
    ({"items": 5}, "#/items", "'items' must be a schema or an array of schemas"),
    ({"items": [5]}, "#/items/0", "a schema must be an object or a boolean"),
    ({"items": [{}], "prefixItems": []}, "#/items", "'items' must be a schema where 'prefixItems' is given too"),
    ({"minItems": -1}, "#/minItems", "'minItems' must be a non-negative integer"),
    ({"uniqueItems": 1}, "#/uniqueItems", "'uniqueItems' must be true or false"),
    ({"anyOf": []}, "#/anyOf", "'anyOf' must be a non-empty array of schemas"),
    ({"allOf": [1]}, "#/allOf/0", "must be a schema"),
    ({"not": 1}, "#/not", "'not' must be a schema"),
    ({"if": 1}, "#/if", "'if' must be a schema"),
    ({"if": {}, "then": 1}, "#/then", "'then' must be a schema"),
    ({"if": {}, "else": []}, "#/else", "'else' must be a schema"),
    ({"contains": 1}, "#/contains", "'contains' must be a schema"),
    ({"contains": {}, "minContains": -1}, "#/minContains", "'minContains' must be a non-negative integer"),
    ({"dependentRequired": {"a": 1}}, "#/dependentRequired/a", "must be an array of names"),
    ({"dependentRequired": {"a": [1]}}, "#/dependentRequired/a/0", "must be a name"),
    ({"dependentSchemas": {"a": 1}}, "#/dependentSchemas/a", "must be a schema"),
    ({"dependencies": {"a": "b"}}, "#/dependencies/a", "must be a schema or an array of names"),
    ({"unevaluatedItems": 1}, "#/unevaluatedItems", "'unevaluatedItems' must be a schema"),
    ({"$ref": 1}, "#/$ref", "'$ref' must be a URI reference"),
    ({"$ref": "#/$defs/x"}, "#/$ref", "reference '#/$defs/x' leads nowhere"),
    ({"$ref": "#/type", "type": "string"}, "#/$ref", "reference '#/type' leads nowhere"),
    ({"$ref": "#nowhere"}, "#/$ref", "reference '#nowhere' leads nowhere"),
    ({"nullable": 1, "type": "null"}, "#/nullable", "'nullable' must be true or false"),
]


@pytest.mark.parametrize(("schema", "pointer", "problem"), MALFORMED)
def test_wrong_shapes_are_located(schema: Any, pointer: str, problem: str) -> None:
    """A keyword of the wrong shape is an error with its pointer."""
    with pytest.raises(GrammarError) as caught:
        json_schema(schema)
    assert not isinstance(caught.value, (UnsupportedFeature, UnsatisfiableGrammar))
    assert caught.value.subject == f"json schema {pointer}"
    assert caught.value.problem.startswith(problem)


REFUSED: list[tuple[Any, str, str]] = [
    ({"$recursiveRef": "#"}, "$recursiveRef", "#/$recursiveRef"),
    ({"$dynamicAnchor": "a", "$dynamicRef": "#a"}, "$dynamicRef", "#/$dynamicRef"),
    ({"$ref": "https://example.org/x.json#/a"}, "$ref", "#/$ref"),
    ({"$schema": "http://json-schema.org/draft-03/schema#"}, "$schema", "#/$schema"),
    ({"$ref": "#"}, "$ref", "#/$ref"),
    (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "items": {"$ref": "#/$defs/a"}},
        "$ref", "#/$defs/b/$ref",
    ),
    (
        {"$defs": {"a": {"anyOf": [{}, {"allOf": [{"$ref": "#/$defs/a"}]}]}}, "$ref": "#/$defs/a"},
        "$ref", "#/$defs/a/anyOf/1/allOf/0/$ref",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "feature", "pointer"), REFUSED)
def test_what_is_not_enforced_is_refused_by_name(schema: Any, feature: str, pointer: str) -> None:
    """Every keyword that the automaton cannot enforce is refused with name, place and a solution."""
    with pytest.raises(UnsupportedFeature) as caught:
        json_schema(schema)
    assert (caught.value.feature, caught.value.where) == (feature, pointer)
    assert caught.value.remedy


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "uniqueItems": True, "dependentRequired": {"a": ["b"]}},
        {"type": "array", "uniqueItems": False},
        {"dependencies": {}, "unevaluatedProperties": True, "not": False, "if": {}},
        {"anyOf": [{"type": "string"}, {"type": "integer", "allOf": [{"type": "null", "not": {"const": 1}}]}]},
        {"$defs": {"unused": {"not": {}}}, "type": "string"},
    ],
)
def test_refusal_is_a_property_of_the_place(schema: Any) -> None:
    """A keyword that cannot exclude anything where it stands is not refused."""
    assert isinstance(json_schema(schema), Grammar)


# Size


def nested(keyword: str, depth: int) -> Any:
    """A schema in a schema in a schema."""
    schema: Any = {}
    for _ in range(depth):
        schema = {keyword: [schema]} if keyword.endswith("Of") else {keyword: schema}
    return schema


@pytest.mark.exhaustive
@pytest.mark.parametrize("keyword", ["items", "additionalProperties", "allOf", "anyOf", "oneOf", "not"])
def test_deep_nesting_is_a_limit_error_or_refused(keyword: str) -> None:
    """A hundred thousand levels give one clear error, quickly."""
    schema = nested(keyword, DEEP)
    with at_most(2), pytest.raises((LimitExceeded, UnsupportedFeature)) as caught:
        json_schema(schema)
    assert len(str(caught.value)) < 1_000
    if keyword != "not":
        assert isinstance(json_schema(nested(keyword, 500)), Grammar)


@pytest.mark.parametrize("text", ["[" * DEEP, '{"items":' * DEEP + "{}" + "}" * DEEP, '{"const":' + "[" * DEEP])
def test_deep_text_is_a_limit_error(text: str) -> None:
    """Deep text is an error that names the limit."""
    with pytest.raises(LimitExceeded) as caught:
        json_schema(text)
    assert (caught.value.limit, caught.value.maximum) == ("nesting", 2_000)


def test_deep_constants() -> None:
    """A constant may be nested, up to a limit."""
    constant: Any = 1
    for _ in range(1_000):
        constant = [constant]
    assert accepts(json_schema({"const": constant, "type": "array", "items": {}}), "[" * 1_000 + "1" + "]" * 1_000)
    for _ in range(DEEP):
        constant = [constant]
    with pytest.raises(LimitExceeded):
        json_schema({"const": constant})


def test_large_enum() -> None:
    """A hundred thousand strings become a grammar in less than two seconds."""
    with at_most(2):
        assert isinstance(json_schema({"enum": [f"value {i}" for i in range(100_000)]}), Grammar)


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"anyOf": [{"required": [f"{i}.{j}"]} for j in range(4)]} for i in range(30)]},
        {"allOf": [{"oneOf": [{"const": f"{i}.{j}"} for j in range(4)]} for i in range(30)]},
        {"type": "object", "properties": {f"p{i}": {} for i in range(3_000)}, "maxProperties": 1_500},
    ],
)
def test_products_end_at_a_limit(schema: Any) -> None:
    """Products of alternatives and counts end quickly with a result or a limit error."""
    with at_most(2), pytest.raises((LimitExceeded, UnsatisfiableGrammar)):
        json_schema(schema)


def test_limits_are_those_of_the_caller() -> None:
    """Each bound can be set."""
    with pytest.raises(LimitExceeded) as source:
        json_schema('{"type": "string"}', limits=Limits(source_bytes=10))
    assert source.value.limit == "source_bytes"
    with pytest.raises(LimitExceeded) as nesting:
        json_schema({"items": {"items": {"items": {"maxItems": 1}}}}, limits=Limits(nesting=2))
    assert nesting.value.limit == "nesting"
    with pytest.raises(LimitExceeded) as nodes:
        json_schema({"properties": {"a": {}, "b": {}}}, limits=Limits(grammar_nodes=50))
    assert nodes.value.limit == "grammar_nodes"


def test_cyclic_value_is_a_recursive_schema() -> None:
    """A dict that contains itself is read as a recursive schema."""
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    schema["properties"] = {"a": schema}
    grammar = json_schema(schema)
    assert accepts(grammar, '{"a": {"a": {}}}')
    assert not accepts(grammar, '{"a": {"b": {}}}')


# Python types


class Color(enum.Enum):
    """An enumeration."""

    RED = "red"
    BLUE = "blue"


class Cat(BaseModel):
    """One side of a tagged union."""

    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    """The other side."""

    kind: Literal["dog"]
    good: bool


class Node(BaseModel):
    """A recursive model."""

    value: int
    left: Node | None = None
    right: Node | None = None


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: float
    y: float = 0.0


class Movie(TypedDict, total=False):
    """A typed dictionary."""

    title: Required[str]
    year: int


class Pair(NamedTuple):
    """A named tuple."""

    first: int
    second: str = ""


class Everything(BaseModel):
    """Many kinds of fields."""

    count: int = Field(ge=0, le=10)
    name: Annotated[str, Field(min_length=2, pattern="^[a-z]+$")]
    color: Color
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    day: datetime.date
    when: datetime.datetime
    span: datetime.timedelta
    key: uuid.UUID
    price: decimal.Decimal
    pair: tuple[int, str]
    scores: dict[str, float]
    tags: set[str]
    note: str | None = None


TYPES: list[tuple[Any, list[str], list[str]]] = [
    (int, ["1"], ['"1"', "1.5"]),
    (list[int], ["[]", "[1, 2]"], ['["a"]', "{}"]),
    (Color, ['"red"'], ['"green"']),
    (Literal["a", 1], ['"a"', "1"], ["2"]),
    (int | None, ["null", "3"], ['""']),
    (dict[Literal["a", "b"], int], ['{"b": 1}'], ['{"c": 1}', '{"a": "x"}']),
    (Node, ['{"value": 1, "left": {"value": 2, "right": null}}'], ['{"value": 1, "left": {}}']),
    (Point, ['{"x": 1.5}', '{"x": 1, "y": 2}'], ["{}"]),
    (Movie, ['{"title": "x"}', '{"title": "x", "year": 1}'], ['{"year": 1}']),
    (Pair, ['[1, "a"]', "[1]"], ["[]", '["a"]']),
    (Cat | Dog, ['{"kind": "dog", "good": true}', '{"kind": "cat"}'], ['{"kind": "cow"}', '{"kind": "dog"}']),
    (
        Everything,
        [
            '{"count": 1, "name": "ab", "color": "blue", "pet": {"kind": "cat", "lives": 3}, "day": "2020-02-29", '
            '"when": "2020-02-29T10:00:00Z", "span": "P1DT2H", "key": "2eb8aa08-aa98-11ea-b4aa-73b441d16380", '
            '"price": "1.50", "pair": [1, "a"], "scores": {"k": 1.5}, "tags": ["t", "t"], "note": null}'
        ],
        ["{}"],
    ),
]


@pytest.mark.parametrize(("kind", "good", "bad"), TYPES)
def test_python_types(kind: Any, good: list[str], bad: list[str]) -> None:
    """Text is accepted iff it parses into the type, and the type is recorded."""
    grammar = json_schema(kind)
    assert grammar.description.python_type is kind  # type: ignore[attr-defined]  # of Described
    for text in good:
        assert accepts(grammar, text)
        TypeAdapter(kind).validate_json(text)
    for text in bad:
        assert not accepts(grammar, text)


@pytest.mark.parametrize("kind", [object(), lambda x: x, print, "no json", complex(1, 2)])
def test_what_is_no_type(kind: Any) -> None:
    """Values that are neither schemas nor types are an error."""
    with pytest.raises(GrammarError):
        json_schema(kind)


def test_pydantic_is_imported_for_types_only() -> None:
    """Making a grammar from a schema imports neither pydantic nor torch."""
    code = (
        "import sys; from structgen.frontends.json_schema import json_schema; json_schema({'type': 'string'}); "
        "print(sorted({'pydantic', 'torch', 'transformers', 'jsonschema'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_error_is_ours() -> None:
    """All errors share the base class, so that a caller can catch them."""
    for schema in (*[case[0] for case in MALFORMED], *[case[0] for case in REFUSED]):
        with pytest.raises(StructgenError):
            json_schema(schema)


# Products of alternatives


def _nested_one_of(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "object", "properties": {"a": schema}}
        schema = {"oneOf": [inner, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
    return schema


def _tools(keyword: str) -> Any:
    arguments = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6)}}
    tools = [
        {"type": "object", "properties": {"name": {"const": f"tool{i}"}, "arguments": arguments}, "required": ["name"]}
        for i in range(128)
    ]
    return {keyword: tools}


def _conditions(count: int) -> Any:
    return {
        "allOf": [
            {"if": {"properties": {"kind": {"const": i}}}, "then": {"required": [f"part{i}"]}} for i in range(count)
        ]
    }


COMPILED: list[Any] = [
    _nested_one_of(50),
    _tools("anyOf"),
    _tools("oneOf"),
    _conditions(60),
    {"oneOf": [{"type": "object", "properties": {f"a{i}": {"type": "string"}}} for i in range(40)]},
    {"dependentRequired": {f"a{i}": [f"a{(i + 7) % 40}"] for i in range(40)}},
]


@pytest.mark.parametrize("schema", COMPILED, ids=range(len(COMPILED)))
def test_many_alternatives_compile(schema: Any) -> None:
    """Schemas that look like a product of alternatives, but are none, compile quickly."""
    with at_most(2):
        assert isinstance(json_schema(schema), Grammar)


EXPLODING: list[Any] = [
    {"allOf": [{"anyOf": [{"required": [f"a{i}{j}"]} for j in range(4)]} for i in range(20)]},
    {"allOf": [{"oneOf": [{"properties": {f"a{i}{j}": {"type": "string"}}} for j in range(4)]} for i in range(10)]},
    {"not": {"anyOf": [{"properties": {f"{x}{i}": {"type": "string"} for x in "ab"}} for i in range(30)]}},
    {"allOf": [{"contains": {"const": i}, "minContains": 3} for i in range(8)]},
    {"contains": {"const": 1}, "minContains": 5_000, "maxContains": 100_000},
    {"maxItems": 100_000, "contains": {"type": "string"}},
    {"anyOf": [{"properties": {f"a{i}": {"type": "string"}}} for i in range(18)], "unevaluatedProperties": False},
]


@pytest.mark.parametrize("schema", EXPLODING, ids=range(len(EXPLODING)))
def test_products_of_alternatives_are_limit_errors(schema: Any) -> None:
    """An exponential product ends quickly with an error that names place and limit."""
    with at_most(4), pytest.raises(LimitExceeded) as caught:
        json_schema(schema)
    assert caught.value.subject.startswith("json schema #")
    assert caught.value.limit in ("grammar_nodes", "states", "readings", "steps")


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "not"),
        ({"$defs": {"a": {"if": {"$ref": "#/$defs/a"}, "then": {"type": "null"}}}, "$ref": "#/$defs/a"}, "if"),
        ({"$defs": {"a": {"dependentSchemas": {"x": {"$ref": "#/$defs/a"}}}}, "$ref": "#/$defs/a"}, "dependentSchemas"),
    ],
)
def test_references_without_content_are_refused(schema: Any, keyword: str) -> None:
    """A schema that is only defined by itself has no meaning."""
    with pytest.raises(UnsupportedFeature) as caught:
        json_schema(schema)
    assert keyword in caught.value.where
