"""Formats that the caller defines, and grammars as annotations."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from schema_as_written import as_written as json_schema

import structgen as sg
from structgen.engine import Matcher, Vocabulary, compile
from structgen.engine.parse.captures import has_captures
from structgen.errors import GrammarError, UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.formats.user_format import spelled_content
from structgen.grammar.flattening import recognizes
from structgen.grammar.nodes import (
    ByteClass,
    Distinct,
    Grammar,
    Intersection,
    JsonString,
    SpecialToken,
    literal,
    sequence,
)
from structgen.grammar.nodes.description import Described

BYTES = Vocabulary([bytes([byte]) for byte in range(256)])
CODE = sg.regex("[A-Z]{3}")
NESTED = sg.lark('start: "(" start ")" | "x"')
FORMATS = {"code": CODE, "nested": NESTED}
REFUSED = "which is not regular, is not combined"


def accepts(grammar: Grammar, text: str) -> bool:
    start = compile(grammar, BYTES).matcher()
    return start.accept_bytes(text.encode()) == len(text.encode()) and start.is_accepting


def random_member(start: Matcher, rng: random.Random) -> str:
    start.reset()
    text = bytearray()
    for _ in range(rng.randrange(30)):
        live = start.live_bytes()
        if not live:
            break
        text.append(rng.choice(live))
        assert start.accept(text[-1])
    return (bytes(text) + bytes(start.shortest_completion())).decode()


@pytest.mark.parametrize(
    ("schema", "members", "others"),
    [
        ({"format": "code"}, ['"ABC"', '"\\u0041BC"', "1", "null"], ['"AB"', '"abc"', '"ABCD"']),
        ({"type": "string", "format": "nested"}, ['"x"', '"((x))"', '"\\u0028x)"'], ['"((x)"', '""', "1"]),
        ({"type": "string", "not": {"format": "code"}}, ['"AB"', '""'], ['"ABC"']),
        ({"format": "code", "pattern": "^A", "maxLength": 5}, ['"ABC"'], ['"BBC"']),
        ({"enum": ["((x))", "(x", "x", 5], "format": "nested"}, ['"((x))"', '"x"', "5"], ['"(x"']),
        ({"anyOf": [{"const": 1}, {"type": "string", "format": "nested"}]}, ["1", '"(x)"'], ["2", '"(x"']),
        ({"propertyNames": {"format": "code"}}, ['{"ABC":1}', "{}"], ['{"AB":1}']),
        ({"allOf": [{"format": "nested"}, {"format": "nested", "type": "string"}]}, ['"x"'], ['"y"']),
        ({"oneOf": [{"type": "string", "format": "code"}, {"const": "ABC"}]}, ['"ABD"'], ['"ABC"', '"x"']),
        ({"type": "string", "format": "other"}, ['"anything"'], ["1"]),
    ],
)
def test_a_format_means_its_grammar(schema: dict[str, Any], members: list[str], others: list[str]) -> None:
    """Strings belong to the grammar, in every spelling; other values are not affected."""
    grammar = json_schema(schema, formats=FORMATS)
    assert all(accepts(grammar, text) for text in members)
    assert not any(accepts(grammar, text) for text in others)


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"items": {"format": "nested", "maxLength": 5}}, "#/items/format"),
        ({"format": "nested", "pattern": "x"}, "#/format"),
        ({"allOf": [{"format": "nested"}, {"format": "code"}]}, "#/allOf/0/format"),
        ({"not": {"format": "nested"}}, "#/not/format"),
        ({"properties": {"a": {"propertyNames": {"format": "nested"}}}}, "#/properties/a/propertyNames/format"),
    ],
)
def test_what_is_not_regular_is_not_combined(schema: dict[str, Any], pointer: str) -> None:
    """With lengths, patterns and names, and under ``not``, a recursive grammar is refused with its place."""
    with pytest.raises(UnsupportedFeature, match="not regular") as caught:
        json_schema(schema, formats=FORMATS)
    assert caught.value.where == pointer
    assert caught.value.remedy


def test_a_policy_with_bounds_is_a_length() -> None:
    """``max_length`` bounds regular formats and refuses the others."""
    bounded = JsonPolicy(max_length=2)
    regular = json_schema({"type": "string", "format": "a"}, formats={"a": sg.regex("a*")}, policy=bounded)
    assert accepts(regular, '"aa"')
    assert not accepts(regular, '"aaa"')
    with pytest.raises(UnsupportedFeature, match=REFUSED):
        json_schema({"type": "string", "format": "nested"}, formats=FORMATS, policy=bounded)


def test_the_report_says_so() -> None:
    """A user's format is reported as enforced, whatever the policy says about formats."""
    schema = {"format": "code"}
    for policy in (JsonPolicy(), JsonPolicy(formats="annotation")):
        grammar = json_schema(schema, formats=FORMATS, policy=policy)
        assert isinstance(grammar, Described)
        (entry,) = grammar.description.entries
        assert (entry.status.value, entry.detail) == ("enforced", "as the caller defines it")
        assert not accepts(grammar, '"abc"')


def test_names_of_the_specification_can_be_defined_anew() -> None:
    """The user's meaning of a name replaces the usual one, in this schema only."""
    schema = {"type": "string", "format": "date"}
    own = json_schema(schema, formats={"date": sg.regex("[0-9]{4}")})
    assert accepts(own, '"2024"')
    assert not accepts(own, '"2024-01-01"')
    assert accepts(json_schema(schema), '"2024-01-01"')


def test_two_meanings_of_a_name_are_told_apart() -> None:
    """Equal schemas with different grammars under one name are different grammars, also in the cache."""
    schema = {"properties": {"a": {"type": "string", "format": "f"}}, "required": ["a"]}
    one, other = (json_schema(schema, formats={"f": sg.regex(text)}, keep=True) for text in ("a+", "b+"))
    plain = json_schema(schema, keep=True)
    assert [accepts(one, f'{{"a":"{text}"}}') for text in "abc"] == [True, False, False]
    assert [accepts(other, f'{{"a":"{text}"}}') for text in "abc"] == [False, True, False]
    assert accepts(plain, '{"a":"c"}')
    assert one != other


@pytest.mark.parametrize("given", [{"a": "x"}, {1: CODE}])
def test_what_is_no_grammar_is_refused(given: Any) -> None:
    """Names must be texts, and their meanings must be grammars."""
    with pytest.raises(TypeError, match="formats: expected names with grammars"):
        json_schema({}, formats=given)


@pytest.mark.parametrize(
    "grammar",
    [
        SpecialToken("<end>"),
        NESTED + ByteClass([(0x80, 0xFF)]),
        NESTED + literal(b"\xff"),
        NESTED + Distinct(literal("[]")),
    ],
)
def test_what_is_no_text_is_refused(grammar: Grammar) -> None:
    """A format is a language of texts."""
    with pytest.raises(GrammarError, match="format 'f'"):
        json_schema({"type": "string", "format": "f"}, formats={"f": grammar})


CONTENTS = [
    literal('a"\\/\b\n\x01é\uffff\U0001f600'),
    sg.regex(r"[\x00-\x25a-z/\u00f0-\u1001]*"),
    sg.regex("[\U0001f5ff-\U00020010]{1,2}"),
    sg.regex("[^a]?"),
    sg.regex("[\ud7ff\ue000\uffff\U00010000\U0010ffff]+"),
    ~sg.regex("[a-z]+"),
    Intersection([sg.regex(".*a.*"), sg.regex("[^\\n]{1,3}")]),
]


@pytest.mark.parametrize("content", CONTENTS)
def test_spelled_contents_are_json_strings(content: Grammar) -> None:
    """For a regular language the rewrite gives what ``JsonString`` gives, and what ``json.loads`` reads."""
    spelled, string = sequence('"', spelled_content(content, "f"), '"'), JsonString(content)
    rng = random.Random(3)
    for one, other in ((spelled, string), (string, spelled)):
        start = compile(one, BYTES).matcher()
        for _ in range(60):
            text = random_member(start, rng)
            assert accepts(other, text), text
            assert recognizes(content, json.loads(text))


def test_strings_in_strings() -> None:
    """JSON inside a JSON string is spelled twice, in every way."""
    grammar = json_schema({"type": "array", "items": {"type": "string", "pattern": '^["x]$'}}, whitespace="compact")
    schema = json_schema({"type": "string", "format": "json"}, formats={"json": grammar})
    for value in ([], ["x"], ['"', "x"]):
        assert accepts(schema, json.dumps(json.dumps(value, separators=(",", ":"))))
    assert accepts(schema, r'"[\"\\u0022\u0022,\"\u005cu0078\"]"')
    for other in (["y"], [1], "x"):
        assert not accepts(schema, json.dumps(json.dumps(other)))
    start = compile(schema, BYTES).matcher()
    rng = random.Random(4)
    for _ in range(40):
        text = random_member(start, rng)
        assert all(item in {'"', "x"} for item in json.loads(json.loads(text))), text


def test_a_spelling_of_each_character() -> None:
    """Every character has all spellings of RFC 8259 and no others, at the boundaries of the kinds of spellings."""
    borders = [0, 8, 9, 10, 12, 13, 31, 32, 34, 47, 92, 127, 128, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x10FFFF, 0x1F600]
    for code in borders:
        character = chr(code)
        grammar = sequence('"', spelled_content(literal(character), "f"), '"')
        canonical = json.dumps(character)
        raw = json.dumps(character, ensure_ascii=False)
        units = character.encode("utf-16-be")
        long = "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))
        for text in (canonical, raw, f'"{long}"', f'"{long.upper()}"'.replace("\\U", "\\u")):
            assert accepts(grammar, text), text
            assert json.loads(text) == character
        assert not accepts(grammar, f'"{long}a"')
        assert not accepts(grammar, '""')


@pytest.mark.parametrize(
    ("grammar", "belongs"),
    [
        (sg.regex("(a|b)*abb"), re.compile("(a|b)*abb").fullmatch),
        (sg.lark('start: start "a" | "b"'), re.compile("ba*").fullmatch),
        (
            sg.lark('start: "a" start "b" | "ab"'),
            lambda text: text and text == "a" * (len(text) // 2) + "b" * (len(text) // 2),
        ),
        (literal("a") & literal("b"), lambda _: False),
    ],
)
def test_recognition_against_brute_force(grammar: Grammar, belongs: Any) -> None:
    """Membership agrees with brute force, for all short texts."""
    for length in range(8):
        for letters in itertools.product("ab", repeat=length):
            text = "".join(letters)
            assert recognizes(grammar, text) == bool(belongs(text))


@pytest.mark.parametrize("pattern", ["(?P<x>a+)", "(?P<x>a+)(?P<y>b)?"])
def test_captures_inside_are_left_out(pattern: str) -> None:
    """The output is JSON; the texts of groups would contain escapes."""
    for grammar in (sg.regex(pattern), NESTED + sg.regex(pattern)):
        assert has_captures(grammar)
        assert not has_captures(json_schema({"type": "string", "format": "f"}, formats={"f": grammar}))


def test_lone_surrogates_belong_to_nothing() -> None:
    """They have no UTF-8, so they are not text."""
    assert not recognizes(sg.regex("(?s).*"), "\ud800")


# Annotations


def test_markers_are_values() -> None:
    """Equal markers are equal, hash alike and cannot be changed."""
    assert sg.grammars.Regex("a") == sg.grammars.Regex("a", dialect="python")
    assert (
        len(
            {
                sg.grammars.Regex("a"),
                sg.grammars.Regex("a"),
                sg.grammars.Regex("a", dialect="ecma"),
                sg.grammars.Lark('start: "a"'),
            }
        )
        == 3
    )
    assert repr(sg.grammars.Regex("a")) == "Regex(pattern='a', dialect='python')"
    with pytest.raises(AttributeError):
        sg.grammars.Regex("a").pattern = "b"  # type: ignore[misc]


@pytest.mark.parametrize(
    "make",
    [lambda: sg.grammars.Regex("("), lambda: sg.grammars.Lark("start: other"), lambda: sg.grammars.Lark("", start="x")],
)
def test_markers_are_read_when_they_are_made(make: Any) -> None:
    """A malformed pattern or grammar is an error at once."""
    with pytest.raises(GrammarError):
        make()


@pytest.mark.parametrize("kind", [int, list[str], bytes, str | int, float | None])
def test_markers_stand_beside_texts(kind: Any) -> None:
    """A grammar beside another type is refused with a solution."""
    with pytest.raises(GrammarError, match=r"cannot annotate another type.*Annotated\[str, \.\.\.\]"):
        json_schema(Annotated[kind, sg.grammars.Regex("a")])


def test_values_from_elsewhere_are_validated() -> None:
    """Validation refuses a text that does not belong to the grammar, from JSON and from Python."""
    adapter = TypeAdapter(Annotated[str, sg.grammars.Lark('start: "(" start ")" | "x"')])
    assert adapter.validate_json('"((x))"') == adapter.validate_python("((x))") == "((x))"
    for read in (lambda: adapter.validate_json('"((x)"'), lambda: adapter.validate_python("(x")):
        with pytest.raises(ValidationError, match="the text does not belong to"):
            read()


def test_two_patterns_of_one_model_are_told_apart() -> None:
    """Each field has its own grammar, with the user's formats beside them."""

    class Both(BaseModel):
        one: Annotated[str, sg.grammars.Regex("a+")]
        other: Annotated[str, sg.grammars.Regex("b+")]
        own: str = Field(json_schema_extra={"format": "code"})

    grammar = json_schema(Both, formats=FORMATS)
    assert accepts(grammar, '{"one":"a","other":"b","own":"ABC"}')
    assert not accepts(grammar, '{"one":"b","other":"b","own":"ABC"}')
    assert not accepts(grammar, '{"one":"a","other":"a","own":"ABC"}')
    assert not accepts(grammar, '{"one":"a","other":"b","own":"x"}')


def test_lengths_beside_a_recursive_grammar_are_refused() -> None:
    """The error names the place in the schema and what to do."""

    class Short(BaseModel):
        items: list[Annotated[str, sg.grammars.Lark('start: "(" start ")" | "x"'), Field(max_length=3)]]

    with pytest.raises(UnsupportedFeature, match="not regular") as caught:
        json_schema(Short)
    assert caught.value.where == "#/properties/items/items/format"


def test_other_schemas_name_the_grammar() -> None:
    """The schema that pydantic makes names the grammar as a format, so that it is not lost."""
    described = TypeAdapter(Annotated[str, sg.grammars.Regex("a+")]).json_schema()
    assert described["format"].startswith("Regex(pattern='a+', dialect='python')")
