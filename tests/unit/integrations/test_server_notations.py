"""Schemas and grammars in the notations of servers: what is kept, what is lost, and no silent losses."""

from __future__ import annotations

import copy
import itertools
import json
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from schema_as_written import as_written as json_schema

from structgen.errors import GrammarError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.lark import lark
from structgen.frontends.python_types.markers import Regex
from structgen.frontends.regex import regex
from structgen.grammar import nodes as ir
from structgen.grammar.nodes import Grammar, literal
from structgen.integrations.openai_server import gbnf_of, translation_of
from structgen.integrations.openai_server.schemas import LLAMA_SERVER, OPENAI, XGRAMMAR, Subset, translated
from structgen.program import answer_of
from structgen.testing import language, small_terms

LISTS = 'start: "[" (start ("," start)*)? "]" | /[a-c]+/'


def words(letters: str, longest: int) -> list[str]:
    found = [""]
    for word in found:
        if len(word) == longest:
            break
        found += [word + letter for letter in letters]
    return found


class Peer:
    """What xgrammar, the default of vLLM and SGLang, accepts for a GBNF grammar."""

    def __init__(self) -> None:
        self.library = pytest.importorskip("xgrammar", reason="xgrammar is not installed")
        tokens = [b"</s>", *(bytes([value]) for value in range(256))]
        info = self.library.TokenizerInfo(tokens, stop_token_ids=[0])
        self.compiler = self.library.GrammarCompiler(info)

    def members(self, gbnf: str, texts: list[str]) -> set[str]:
        compiled = self.compiler.compile_grammar(self.library.Grammar.from_ebnf(gbnf))
        found = set()
        for text in texts:
            matcher = self.library.GrammarMatcher(compiled)
            if (not text or matcher.accept_string(text)) and matcher.accept_token(0):
                found.add(text)
        return found


@pytest.fixture(scope="module")
def peer() -> Peer:
    return Peer()


def test_small_terms_mean_the_same_in_gbnf(peer: Peer) -> None:
    texts = words("ab", 3)
    for term in small_terms(3, [literal("a"), literal("b"), ir.EPSILON]):
        expected = {word.decode() for word in language(term, 3, b"ab")}
        assert peer.members(gbnf_of(term), texts) == expected, term


@pytest.mark.parametrize(
    "ranges",
    [
        [(ord(character), ord(character))] if first is None else [(first, first), (ord(character), ord(character) + 2)]
        for character in '-]^[\\"aA0 \n\x01é'
        for first in (None, ord("!"))
    ]
    + [
        [(0, 9)],
        [(0, 2), (0x30, 0x39), (0x7F, 0x80)],
        [(0x5E, 0x5E), (0x1F, 0x1F)],
        [(0x2A, 0x2D)],
        [(0x2D, 0x39), (0x5E, 0x5E)],
        [(0, 0x10FFFF)],
        [(0x2D, 0x2D)],
        [(0x20, 0x7E)],
        [(0x5B, 0x5E)],
    ],
)
def test_classes_mean_the_same_in_gbnf(peer: Peer, ranges: list[tuple[int, int]]) -> None:
    texts = [chr(value) for value in (*range(0x180), 0xD7FF, 0xE000, 0x1F600, 0x10FFFF)]
    expected = {text for text in texts if any(first <= ord(text) <= last for first, last in ranges)}
    assert peer.members(gbnf_of(ir.CharClass(ranges)), texts) == expected


@pytest.mark.parametrize(
    "text",
    ['"', "\\", "a\nb", "\x01x", "\x011", "é1", "ÿf", "😀a", "é😀", '" "', 'a" "b', "]-^[", "\x7f1", "#", "{1,2}", ""],
)
def test_literals_mean_the_same_in_gbnf(peer: Peer, text: str) -> None:
    assert peer.members(gbnf_of(literal(text)), [text, text + "a", text[:-1] + "b"]) == {text}


def test_repetitions_mean_the_same_in_gbnf(peer: Peer) -> None:
    texts = ["a" * count for count in range(8)]
    for least in range(4):
        for most in (None, *range(least, 6)):
            expected = {text for text in texts if least <= len(text) <= (8 if most is None else most)}
            assert peer.members(gbnf_of(ir.Repeat(literal("a"), least, most)), texts) == expected


@pytest.mark.parametrize("text", ["ab", "é1", '"'])
def test_a_repetition_is_one_of_the_whole_text(peer: Peer, text: str) -> None:
    texts = [text * count for count in range(5)]
    assert peer.members(gbnf_of(ir.Repeat(literal(text), 2, 3)), texts) == {text * 2, text * 3}


def test_recursion_and_scopes(peer: Peer) -> None:
    texts = ["[]", "[a]", "[a,[b]]", "[a,]", "[[[]]]", "abc", "", "[", "d"]
    assert peer.members(gbnf_of(lark(LISTS)), texts) == {"[]", "[a]", "[a,[b]]", "[[[]]]", "abc"}
    shared = ir.Reference("x")
    nested = ir.Rules(
        {"x": literal("a")}, ir.Sequence([shared, ir.Rules({"x": literal("b")}, shared), shared.named("name")])
    )
    assert peer.members(gbnf_of(nested), ["aba", "aaa", "bbb"]) == {"aba"}


def test_deep_terms_are_written() -> None:
    term: Grammar = literal("a")
    for _ in range(20_000):
        term = ir.Repeat(term, 0, 1)
    assert gbnf_of(term).count("?") == 20_000


@pytest.mark.parametrize(
    ("term", "named"),
    [
        (ir.Permutation([literal(letter) for letter in "abcdef"]), "Permutation"),
        (ir.SpecialToken("x"), "SpecialToken"),
        (ir.Distinct(literal("[]")), "Distinct"),
        (ir.Literal(b"\xff"), "no text"),
        (ir.ByteClass([(0x80, 0xFF)]), "ByteClass"),
        (literal("a\0"), "U\\+0000"),
        (ir.CharClass([(0, 0), (9, 9)]), "U\\+0000"),
    ],
)
def test_what_has_no_gbnf_is_refused_by_name(term: Grammar, named: str) -> None:
    with pytest.raises(UnsupportedFeature, match=named) as caught:
        gbnf_of(ir.Sequence([literal("x"), term]))
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("term", "members"),
    [
        (regex("a+") & regex("[ab]{2}"), {"aa"}),
        (ir.Complement(ir.Repeat(ir.CharClass([(97, 97)]), 0, 2)) & ir.Repeat(literal("a"), 0, 3), {"aaa"}),
        (ir.Permutation([literal("a"), literal("b")]), {"ab", "ba"}),
        (ir.JsonString(literal("a")), {'"a"', '"\\u0061"'}),
    ],
)
def test_what_gbnf_has_no_operator_for_is_said_otherwise(peer: Peer, term: Grammar, members: set[str]) -> None:
    texts = [*words("ab", 3), '"a"', '"\\u0061"', '"b"', '"\\u0062"']
    assert peer.members(gbnf_of(term), texts) == members


def test_nothing_is_no_gbnf() -> None:
    with pytest.raises(UnsatisfiableGrammar):
        gbnf_of(ir.Sequence([literal("x"), ir.EMPTY]))


def test_a_reference_to_nowhere() -> None:
    with pytest.raises(GrammarError, match="'x'"):
        gbnf_of(ir.Reference("x"))


# --- schemas ---

SUBSETS = [OPENAI, XGRAMMAR, LLAMA_SERVER]


def losses(schema: Any, subset: Subset) -> list[tuple[str, str]]:
    return [(loss.where, loss.keyword) for loss in translated(schema, subset)[1]]


def closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    ("part", "openai", "xgrammar", "llama"),
    [
        ({"type": "string", "maxLength": 3, "minLength": 1}, ["maxLength", "minLength"], [], []),
        ({"type": "string", "pattern": "^a+$"}, [], [], []),
        ({"type": "string", "pattern": "a+"}, [], ["pattern"], ["pattern"]),
        ({"type": "string", "pattern": "^a+$", "maxLength": 3}, ["maxLength"], ["maxLength"], ["maxLength"]),
        ({"type": "string", "format": "date"}, [], [], []),
        ({"type": "string", "format": "uri"}, ["format"], [], ["format"]),
        ({"type": "string", "format": "idn-email"}, ["format"], ["format"], ["format"]),
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 9}, [], [], []),
        ({"type": "number", "minimum": 1}, [], [], ["minimum"]),
        ({"type": "integer", "multipleOf": 3}, [], ["multipleOf"], ["multipleOf"]),
        (
            {"type": "array", "items": {"type": "null"}, "uniqueItems": True},
            ["uniqueItems"] * 1,
            ["uniqueItems"],
            ["uniqueItems"],
        ),
        ({"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 2}, [], [], []),
        (
            {"oneOf": [{"type": "null"}, {"type": "string"}], "type": "string"},
            ["oneOf", "type"],
            ["oneOf", "type"],
            ["oneOf", "type"],
        ),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, [], [], []),
        ({"$ref": "#/$defs/x", "minLength": 3}, ["minLength"], ["minLength"], ["minLength"]),
        ({"type": "string", "not": {"const": "a"}}, ["not"], ["not"], ["not"]),
        ({"type": "string", "frobnicate": 1}, ["frobnicate"], ["frobnicate"], ["frobnicate"]),
        ({"enum": ["a", 1]}, [], [], []),
        ({"enum": ["a", "b"], "type": "string"}, [], [], []),
        ({"enum": ["a", 1], "type": "string"}, ["type"], ["type"], ["type"]),
        ({"enum": [1, 2], "type": "integer", "minimum": 2}, ["minimum"], ["minimum"], ["minimum"]),
        ({"anyOf": [{"type": "null"}], "maxLength": 2}, ["maxLength"], ["maxLength"], ["maxLength"]),
    ],
)
def test_what_is_lost_is_named_with_its_place(
    part: dict[str, Any], openai: list[str], xgrammar: list[str], llama: list[str]
) -> None:
    schema = {**closed(**{"a/b": part}), "$defs": {"x": {"type": "string"}}}
    before = copy.deepcopy(schema)
    for subset, expected in zip(SUBSETS, (openai, xgrammar, llama), strict=True):
        assert losses(schema, subset) == [("#/properties/a~1b", keyword) for keyword in sorted(expected)]
    assert schema == before


def test_others_are_sent_all_but_what_would_be_an_error() -> None:
    part = {"type": "string", "minLength": 2, "pattern": "a", "not": {"const": "a"}, "title": "A"}
    assert translated(part, XGRAMMAR)[0] == {name: value for name, value in part.items() if name != "not"}
    assert translated(part, LLAMA_SERVER)[0] == {name: value for name, value in part.items() if name != "pattern"}
    assert translated(part, OPENAI)[0] == {"type": "string", "pattern": "a"}


@pytest.mark.parametrize("subset", SUBSETS)
def test_formats_are_sent_by_names_that_servers_know(subset: Subset) -> None:
    """Dates are sent as dates, with their bounds among the losses; other names of types and callers are not sent."""
    dates = translated(answer_of(Annotated[date, Field(ge=date(2020, 1, 1))]).schema, subset)
    assert dates[0]["format"] == "date"
    assert [loss.keyword for loss in dates[1]] == ["format"]
    for kind in (datetime, timedelta, Annotated[str, Regex("a+")]):
        sent, lost = translated(answer_of(list[kind]).schema, subset)  # type: ignore[valid-type]
        assert "format" not in sent["items"]
        assert [loss.keyword for loss in lost] == ["format"]
    for name in ("date of birth", "date 12345678901x"):
        assert translated({"type": "string", "format": name}, subset)[0] == {"type": "string"}


@pytest.mark.parametrize("keyword", sorted(XGRAMMAR.refused))
def test_what_llguidance_refuses_is_not_sent(keyword: str) -> None:
    """vLLM passes to it what xgrammar does not support, a ``multipleOf`` for instance."""
    part = {"type": "integer", "multipleOf": 3, keyword: {}}
    sent, lost = translated(part, XGRAMMAR)
    assert sent == {"type": "integer", "multipleOf": 3}
    assert [loss.keyword for loss in lost] == sorted(["multipleOf", keyword])


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "propertyNames": {"const": "a"}, "additionalProperties": {"type": "integer"}},
        {"type": "object", "propertyNames": {"enum": ["a", "b", 1]}, "properties": {"a": {"type": "string"}}},
        {"type": "object", "propertyNames": {"enum": ["a", "b"], "type": "string"}, "additionalProperties": False},
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "properties": {"b": True}, "required": ["a"]},
        {"type": "object", "propertyNames": {"enum": []}},
    ],
)
def test_names_that_are_listed_become_properties(schema: dict[str, Any]) -> None:
    """Servers enforce properties; a validator accepts the same objects, and nothing is lost."""
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    sent, lost = translated(schema, XGRAMMAR)
    assert not lost
    assert "propertyNames" not in sent
    before, after = (jsonschema.Draft202012Validator(each) for each in (schema, sent))
    choices: list[list[Any]] = [[None, 1, "x"]] * 3
    for values in itertools.product(*choices):
        held = {name: value for name, value in zip("abc", values, strict=True) if value is not None}
        assert before.is_valid(held) == after.is_valid(held), held


@pytest.mark.parametrize(
    "more",
    [
        {"propertyNames": {"pattern": "a"}},
        {"propertyNames": {"enum": ["a"], "minLength": 1}},
        {"propertyNames": {"enum": ["a"], "type": ["integer", "string"]}},
        {"propertyNames": {"enum": ["a"]}, "required": ["b"]},
        {"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": True}},
    ],
)
def test_other_names_are_lost(more: dict[str, Any]) -> None:
    assert ("#", "propertyNames") in losses({"type": "object", **more}, XGRAMMAR)


class Leaf(BaseModel):
    kind: Literal["leaf"]
    value: int = 3


class Branch(BaseModel):
    kind: Literal["branch"] = Field(description="which")
    items: list[Annotated[Leaf | Branch, Field(discriminator="kind")]] = Field(description="below")


def test_openai_s_rules_hold_for_what_it_is_sent() -> None:
    """Its rules are checked one by one on all parts of a request for a recursive type with options and unions."""
    translation = translation_of(answer_of(Branch), "openai")
    root = translation.parameters["response_format"]["json_schema"]["schema"]
    assert translation.is_wrapped  # since the root is a reference
    assert root["type"] == "object"
    assert "$defs" in root
    stack = [root]
    while stack:
        held = stack.pop()
        if isinstance(held, list):
            stack += held
        if not isinstance(held, dict):
            continue
        stack += held.values()
        if held.get("type") == "object" and isinstance(held.get("properties"), dict):
            assert held["additionalProperties"] is False
            assert held["required"] == list(held["properties"])
        assert not held.keys() & {"oneOf", "default", "title", "discriminator", "allOf"}
        if "$ref" in held:
            assert held.keys() <= {"$ref", "$defs"}
    assert [str(loss) for loss in translation.losses] == [
        "#/$defs/Branch/properties/items/items: 'required' is not enforced beside 'oneOf'",
        "#/$defs/Leaf: 'required' names all properties, so 'value' can't be left out",
    ]


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        (dict[str, int], "undeclared"),
        (tuple[int, str], "tuple"),
        (list[Any], "without a type"),
        (Any, "without a type"),
    ],
)
def test_what_openai_has_no_form_for_is_refused(kind: Any, named: str) -> None:
    with pytest.raises(UnsupportedFeature, match=named) as caught:
        translation_of(answer_of(kind), "openai")
    assert "vLLM" in caught.value.remedy
    translation_of(answer_of(kind), "vllm")


def test_a_grammar_of_json_is_sent_as_a_grammar(peer: Peer) -> None:
    """Its values are spelled out; what no grammar can express is refused with an alternative."""
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
    sent = translation_of(answer_of(json_schema(schema)), "vllm").parameters["structured_outputs"]["grammar"]
    texts = ['{"a": "x"}', '{"a": "\\u00E9"}', '{"a": "\\ud800"}', '{"a": 1}', '{"b": "x"}', "{}"]
    assert peer.members(sent, texts) == {'{"a": "x"}', '{"a": "\\u00E9"}', "{}"}
    with pytest.raises(UnsupportedFeature, match="Distinct") as caught:
        translation_of(
            answer_of(json_schema({"type": "array", "items": {"type": "integer"}, "uniqueItems": True})), "vllm"
        )
    assert caught.value.remedy


def test_translations_are_json() -> None:
    for dialect in ("vllm", "vllm_guided", "sglang", "llama_server", "openai"):
        for kind in (Branch, Literal["a", "b"], int, str):
            json.dumps(translation_of(answer_of(kind), dialect).parameters)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schema", "violation"),
    [
        ({"type": "string", "minLength": 2}, '"a"'),
        ({"type": "string", "maxLength": 2}, '"abc"'),
        ({"type": "string", "pattern": "^a+$"}, '"ab"'),
        ({"type": "string", "format": "uuid"}, '"x"'),
        ({"type": "integer", "minimum": 3}, "2"),
        ({"type": "number", "exclusiveMaximum": 3}, "3"),
        ({"type": "integer", "multipleOf": 3}, "4"),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1]"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, "[1, 1]"),
        ({"type": "array", "prefixItems": [{"type": "integer"}], "items": False}, '["a"]'),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}, '{"b": null}'),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, "{}"),
        ({"enum": [1, "a"]}, '"b"'),
        ({"enum": [1, 2], "type": "integer", "minimum": 2}, "1"),
        ({"enum": ["a", "bb"], "type": "string", "minLength": 2}, '"a"'),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}], "minimum": 2}, "1"),
        ({"minLength": 2}, '"a"'),
        ({"type": ["string", "null"], "minLength": 2}, '"a"'),
        ({"type": "object", "properties": {"a": {"type": "null"}}, "anyOf": [{"required": ["a"]}]}, "{}"),
        ({"type": "string", "not": {"const": "a"}}, '"a"'),
    ],
)
def test_what_xgrammar_lets_pass_is_among_the_losses(peer: Peer, schema: dict[str, Any], violation: str) -> None:
    compiled = peer.compiler.compile_json_schema(json.dumps(schema))
    matcher = peer.library.GrammarMatcher(compiled)
    if matcher.accept_string(violation) and matcher.accept_token(0):
        assert translated(schema, XGRAMMAR)[1]


def test_llama_server_gets_a_grammar_where_its_reader_would_leave_something_out(peer: Peer) -> None:
    tens = Annotated[int, Field(multiple_of=10, ge=0, le=40)]
    assert list(translation_of(answer_of(Annotated[int, Field(ge=3, le=7)]), "llama_server").parameters) == [
        "response_format"
    ]
    sent = translation_of(answer_of(tens), "llama_server")
    assert (list(sent.parameters), sent.losses) == (["grammar"], ())
    assert peer.members(sent.parameters["grammar"], [str(number) for number in range(-20, 60)]) == {
        *("0", "10", "20", "30", "40")
    }
    distinct = Annotated[list[int], Field(json_schema_extra={"uniqueItems": True})]
    sent = translation_of(answer_of(distinct), "llama_server")  # has no GBNF
    assert list(sent.parameters) == ["response_format"]
    assert sent.losses
