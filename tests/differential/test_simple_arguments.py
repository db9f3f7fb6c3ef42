"""The native planner of arguments between tags makes the terms of the planner in Python, grouped in another way."""

from __future__ import annotations

import json
import random
from typing import Any, Final

import pytest
from nearly_simple_schemas import LEAVES, schema_of

from structgen.engine import Vocabulary, compile
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import StructgenError
from structgen.frontends.json_schema import JsonPolicy, forget_known
from structgen.frontends.xml_arguments import Spacing, xml_arguments
from structgen.frontends.xml_arguments.style import STYLES
from structgen.frontends.xml_arguments.writing import xml_term
from structgen.grammar.flattening import flatten
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, literal
from structgen.grammar.nodes.description import Described

_LITERAL, _BYTES, _CHARS, _SEQUENCE, _CHOICE, _CALL, _SET_RULE, _SHARE = 0, 1, 2, 5, 6, 12, 13, 14
_LIMITS: Final = Limits()
_VOCABULARY: Final = Vocabulary([bytes([byte]) for byte in range(256)], eos=())
NAMES: Final = ("a", "b", "c d", 'q"u\\o', "é€😀", "~/%", "", "a>b", "<b", "</arg_key>")
TEXTS: Final[list[dict[str, Any]]] = [
    {"enum": ["a", "b c", ""]},
    {"enum": ["a\nb", "<c>", "é"], "type": ["string", "null"]},
    {"enum": ["\na", "b"]},
    {"const": "b\n"},
    {"enum": ["a</parameter>", "b"]},
    {"enum": ["a", "a", 1, None, True, [1]]},
    {"enum": [1, 2, 3]},
    {"enum": ["a", "bcd", "é"], "maxLength": 2, "type": "string"},
    {"type": "string", "pattern": "^\n?x$"},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "null"}]},
    {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array", "items": {"type": "string"}}]},
    {"anyOf": [{"enum": ["x", "y"]}, {"type": "null"}]},
    {"oneOf": [{"type": "string"}, {"type": "object", "properties": {"a": {"type": "string"}}}]},
    {"type": ["string", "integer"], "maxLength": 3, "minimum": 2},
    {"properties": {"a": {"type": "string"}}},
]


class Terms:
    """The terms of one program as trees, each with a number: equal terms have equal numbers.

    Sequences inside sequences are spliced, and literals side by side joined; a rule stands for its body, unless it is
    recursive.
    """

    _numbers: Final[dict[object, int]] = {}

    def __init__(self, grammar: Grammar) -> None:
        flat = flatten(grammar, {}, _VOCABULARY, _LIMITS.grammar_nodes)
        self._instructions, self._names = flat.instructions, flat.rules
        self._bodies = {low: parts[0] for kind, _, parts, low, _, _ in self._instructions if kind == _SET_RULE}
        self._made: dict[int, tuple[object, ...]] = {}
        self._open: set[int] = set()
        self.is_recursive = False
        self.root = self._number(self._parts(flat.result))

    def _number(self, key: object) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _parts(self, at: int) -> tuple[object, ...]:
        """What stands one after the other: texts, and numbers of other terms."""
        if at not in self._made:
            self._made[at] = self._read(at)
        return self._made[at]

    def _read(self, at: int) -> tuple[object, ...]:
        kind, decoded, operands, low, high, required = self._instructions[at]
        if kind == _CALL:
            if low in self._open:
                self.is_recursive = True
                return (self._number(("rule", self._names[low])),)
            self._open.add(low)
            body = self._parts(self._bodies[low])
            self._open.discard(low)
            return body
        if kind == _LITERAL and not decoded:
            return (operands,) if operands else ()
        if kind in (_LITERAL, _BYTES, _CHARS):
            return (self._number((kind, decoded, operands)),)
        inner = [self._parts(one) for one in operands]
        if kind == _SEQUENCE and not decoded:
            joined: list[object] = []
            for part in (part for parts in inner for part in parts):
                last = joined[-1] if joined else None
                if isinstance(part, bytes) and isinstance(last, bytes):
                    joined[-1] = last + part
                else:
                    joined.append(part)
            return tuple(joined)
        if kind == _CHOICE:
            parts = tuple(sorted({self._number(each) for each in inner}))
            if len(parts) == 1:
                return inner[0]
            return (self._number((kind, parts)),)
        return (self._number((kind, decoded, tuple(map(self._number, inner)), low, high, required)),)


def assert_references(schema: object, style: str, **options: Any) -> bool:
    """Compare the two planners; return whether the native one planned the schema."""
    grammar = xml_arguments(json.dumps(schema), style, **options)
    assert isinstance(grammar, Described)
    if grammar.plain is None:
        return False
    native, reference = Terms(grammar), Terms(grammar.item)
    if native.root != reference.root:  # of recursive rules, another one may have the name
        assert native.is_recursive, (style, schema)
        assert reference.is_recursive, (style, schema)
        assert_walks(grammar, grammar.item)
    return True


def assert_walks(one: Grammar, other: Grammar) -> None:
    """Compare the masks of two grammars along random texts."""
    chance = random.Random(1)
    masks = empty_masks(_VOCABULARY), empty_masks(_VOCABULARY)
    constraints = [compile(each, _VOCABULARY) for each in (one, other)]
    for _ in range(12):
        matchers = [each.matcher() for each in constraints]
        for _ in range(80):
            for matcher, mask in zip(matchers, masks, strict=True):
                matcher.fill_mask(mask)
            assert masks[0].tolist() == masks[1].tolist()
            allowed = allowed_ids(masks[0][0]).tolist()
            if not allowed:
                break
            token = chance.choice(allowed)
            assert all(matcher.accept(token) for matcher in matchers)


def arguments(chance: random.Random) -> dict[str, Any]:
    """A random schema of arguments."""
    definitions = tuple(chance.sample(("one", "two"), chance.randint(0, 2)))
    names = chance.sample(NAMES[: chance.choice((4, 4, len(NAMES)))], chance.randint(0, 4))
    kinds = (lambda: chance.choice(LEAVES), lambda: chance.choice(TEXTS), lambda: schema_of(chance, 2, definitions))
    schema: dict[str, Any] = {"properties": {name: chance.choice(kinds)() for name in names}}
    if chance.random() < 0.9:
        schema["type"] = chance.choice(("object", "object", "object", ["object", "null"]))
    if chance.random() < 0.6:
        schema["required"] = chance.sample([*names, "further"], chance.randint(0, len(names)))
    if chance.random() < 0.3:
        schema["additionalProperties"] = chance.choice((False, False, True, {"type": "string"}))
    if chance.random() < 0.2:
        schema[chance.choice(("minProperties", "maxProperties"))] = chance.randint(0, 2)
    if chance.random() < 0.1:
        del schema["properties"]
    if definitions:
        schema["definitions"] = {name: schema_of(chance, 2, definitions) for name in definitions}
    return schema


POLICIES: Final = [
    JsonPolicy(),
    JsonPolicy(whitespace="flexible", additional="written"),
    JsonPolicy(whitespace="compact", required="all"),
    JsonPolicy(additional="written"),
]


@pytest.mark.parametrize("count", [60, pytest.param(1_500, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("style", sorted(STYLES))
def test_random_schemas(style: str, count: int) -> None:
    """What the native planner accepts, it plans alike; and it accepts a good part."""
    forget_known()
    chance = random.Random(style)
    simple = 0
    for index in range(count):
        schema = arguments(chance)
        try:
            simple += assert_references(schema, style, policy=POLICIES[index % len(POLICIES)])
        except StructgenError:  # refused by both: the native planner leaves all errors to the other one
            continue
    assert simple > count // 6


@pytest.mark.parametrize("style", sorted(STYLES))
@pytest.mark.parametrize("schema", [*TEXTS, *LEAVES], ids=json.dumps)
def test_one_value(schema: dict[str, Any], style: str) -> None:
    """The same for one argument of each kind."""
    try:
        assert_references({"properties": {"x": schema}, "required": ["x"]}, style)
    except StructgenError:
        pytest.skip("refused")


@pytest.mark.parametrize(
    "spacing", [Spacing(), Spacing(text=literal("\n")), Spacing(before=literal("\n"), after=literal(" "))]
)
def test_other_spacing(spacing: Spacing) -> None:
    """Marks and white space may be any terms."""
    for schema in TEXTS:
        text = json.dumps({"properties": {"x": schema, "y": {"type": "string"}}})
        try:
            grammar = xml_term(text, "qwen_xml", spacing, policy=JsonPolicy(), spell=lambda mark: literal(f"{mark}!"))
        except StructgenError:
            continue
        assert isinstance(grammar, Described)
        if grammar.plain is not None:
            assert Terms(grammar).root == Terms(grammar.item).root, schema


@pytest.mark.parametrize(
    ("schema", "style"),
    [
        ({"properties": {"a>b": {"type": "string"}}}, "qwen_xml"),
        ({"properties": {"": {"type": "string"}}}, "glm_xml"),
        ({"properties": {"a": {"const": "x</parameter>y"}}}, "minimax_xml"),
        ({"properties": {"a": {"type": "string"}}, "additionalProperties": True}, "deepseek_xml"),
        ({"properties": {"a": {"type": "string"}}, "required": ["b"], "additionalProperties": False}, "kimi_k3_xml"),
        ({"properties": {"a": {"type": "strin"}}}, "qwen_xml"),
        ({"type": "string"}, "qwen_xml"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"type": "object"}}}, "qwen_xml"),
        ({"type": "object", "patternProperties": {"^a": {}}}, "qwen_xml"),
        ({"properties": {"/a": {"type": "string"}}}, "minimax_m3_xml"),
        ({"properties": {"a": {"type": "object"}}}, "minimax_m3_xml"),
        ({"additionalProperties": {"type": "string"}}, "minimax_m3_xml"),
        ({"properties": {"a": {"enum": ["x", [1]]}}}, "cohere_xml"),
        ({"properties": {"a": {"type": "object", "patternProperties": {"^a": {}}}}}, "cohere_xml"),
        (
            {"properties": {"a": {"allOf": [{"items": {"type": "null"}}, {"items": {"type": ["null", "string"]}}]}}},
            "cohere_xml",
        ),
    ],
)
def test_what_is_left_to_the_other_planner(schema: object, style: str) -> None:
    """The native planner plans nothing with a fault, and no names or texts that a style cannot write."""
    try:
        grammar = xml_arguments(json.dumps(schema), style)
    except StructgenError:
        return
    assert isinstance(grammar, Described)
    assert grammar.plain is None
