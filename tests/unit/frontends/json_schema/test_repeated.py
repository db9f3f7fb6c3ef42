"""No object has a name twice: texts and masks, against ``json.loads`` and ``jsonschema`` on every small text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Final

import jsonschema
import pydantic
import pytest
from byte_membership import BYTES, is_member

from structgen.engine import Vocabulary, compile
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import UnsupportedFeature
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.nodes import Distinct, postorder
from structgen.grammar.nodes.description import Described, Status

STRICT: Final = JsonPolicy(repeated="forbidden", whitespace="compact", order="any", escapes="all", additional="written")
MEMBERS: Final = (
    '"a":0',
    r'"\u0061":0',
    '"b":0',
    '"b":{"c":0,"c":0}',
    '"b":[{"a":0,"c":0}]',
    r'"c":{"\u0063":0,"a":0}',
)
OPEN: Final = {"type": "object"}
CLOSED: Final = {"properties": {"a": {}}, "additionalProperties": False}


def _checked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _texts() -> Iterator[str]:
    for count in range(4):
        for members in product(MEMBERS, repeat=count):
            yield f"{{{','.join(members)}}}"
    for members in product(MEMBERS[:3], repeat=2):
        yield f"[{{{','.join(members)}}},{{{members[0]}}}]"


def _accepted(schema: Any, policy: JsonPolicy) -> set[str]:
    constraint = compile(json_schema(schema, policy=policy), BYTES)
    return {text for text in _texts() if is_member(constraint.matcher(), text.encode())}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        OPEN,
        {"type": ["object", "array"]},
        {"properties": {"a": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"additionalProperties": {"type": "integer"}},
        {"patternProperties": {"^[ab]$": {}}, "additionalProperties": False},
        {"patternProperties": {"^[ac]$": {}, "b": {"type": "object"}}},
        {"propertyNames": {"enum": ["a", "b"]}},
        {"type": "object", "minProperties": 1},
        {"type": "object", "minProperties": 2},
        {"type": "object", "maxProperties": 1},
        {"type": "object", "maxProperties": 2, "minProperties": 1},
        {"properties": {"b": CLOSED}, "unevaluatedProperties": {}},
        {"properties": {"b": OPEN}},
        {"anyOf": [CLOSED, {**OPEN, "required": ["b"]}]},
        {"anyOf": [{"additionalProperties": {"type": "integer"}}, {"additionalProperties": OPEN}]},
        {"dependentRequired": {"a": ["b"]}},
        {"type": "object", "not": {"required": ["a"]}},
        {"type": "object", "not": {"additionalProperties": {"type": "integer"}}},
        {"type": "object", "not": {"propertyNames": {"not": {"const": "b"}}}},
        {
            "type": "array",
            "items": {"additionalProperties": {"$ref": "#/$defs/n"}},
            "$defs": {"n": {"type": "integer"}},
        },
        {"additionalProperties": {"$ref": "#"}, "type": ["object", "integer"]},
    ],
    ids=str,
)
def test_valid_texts_without_repeated_names_are_the_language(schema: Any) -> None:
    """A text is accepted iff its value is valid and no object in it has two names of one spelling or another."""
    validator = jsonschema.Draft202012Validator(schema)
    strict, loose = set(), set()
    for text in _texts():
        if validator.is_valid(json.loads(text)):
            loose.add(text)
            try:
                json.loads(text, object_pairs_hook=_checked)
            except ValueError:
                continue
            strict.add(text)
    assert strict
    assert strict < loose
    assert _accepted(schema, STRICT) == strict


def test_names_may_repeat_by_default() -> None:
    """By default an undeclared name may be written twice, and a declared one may not."""
    schema = {"properties": {"a": {}}, "additionalProperties": True}
    accepted = _accepted(schema, JsonPolicy(whitespace="compact"))
    assert '{"a":0,"b":0,"b":0}' in accepted
    assert '{"a":0,"a":0}' not in accepted


@pytest.mark.parametrize("order", ["any", "declared"])
@pytest.mark.parametrize(
    "bound", [{"max_depth": 2}, {"max_members": 2}, {"max_members": 1}, {"max_length": 3}], ids=str
)
def test_bounds_of_the_policy_and_names_are_kept_together(bound: dict[str, int], order: Any) -> None:
    """With a bound of the policy, the texts are those that the bound allows, without those that repeat a name."""
    policies = [
        JsonPolicy(repeated=repeated, whitespace="compact", order=order, **bound)
        for repeated in ("allowed", "forbidden")
    ]
    for schema in ({}, OPEN, {"properties": {"a": {}}, "additionalProperties": True}):
        loose, strict = (_accepted(schema, policy) for policy in policies)
        unrepeated = set()
        for text in loose:
            try:
                json.loads(text, object_pairs_hook=_checked)
            except ValueError:
                continue
            unrepeated.add(text)
        assert unrepeated
        assert strict == unrepeated


PIECES: Final = (b'"a', b'":0', b',"', b',"b"', b'":0,"', b'{"a":0,"', b"0}", b'b":0}', rb"\u006", rb"1\u", b":0,")


@pytest.mark.parametrize(
    ("schema", "fewest", "most"),
    [({}, 0, 2), ({"minProperties": 1}, 1, 2), ({"maxProperties": 1}, 0, 1), ({"required": ["a"]}, 1, 2)],
    ids=str,
)
def test_masks_have_the_tokens_that_begin_a_text_without_repeated_names(
    schema: dict[str, Any], fewest: int, most: int
) -> None:
    """After every prefix in tokens, the mask has exactly the tokens that begin the rest of one of all texts."""
    spellings = {"a": ('"a"', r'"\u0061"'), "b": ('"b"', r'"\u0062"')}
    words: set[bytes] = set()
    for count in range(fewest, most + 1):
        for keys in product([key for spelled in spellings.values() for key in spelled], repeat=count):
            text = f"{{{','.join(f'{key}:0' for key in keys)}}}"
            try:
                value = json.loads(text, object_pairs_hook=_checked)
            except ValueError:
                continue
            if "a" in value or "required" not in schema:
                words.add(text.encode())
    # The name `a` is declared where it is required, and then has one spelling.
    if "required" in schema:
        words = {word for word in words if rb"\u0061" not in word and not word.startswith(b'{"b":0,"b')}
    tokens = [b"", *(bytes([byte]) for byte in sorted(set(b"".join(words)) | set(b'"{}:,0ab'))), *PIECES]
    vocabulary = Vocabulary(tokens, eos=[0])
    closed = {"type": "object", "patternProperties": {"^[ab]$": {"const": 0}}, "additionalProperties": False, **schema}
    policy = JsonPolicy(repeated="forbidden", whitespace="compact", order="any")
    constraint = compile(json_schema(closed, policy=policy), vocabulary)
    prefixes = {word[:length] for word in words for length in range(len(word) + 1)}
    seen = {b""}
    waiting = [(b"", constraint.matcher())]
    mask = empty_masks(vocabulary.size)
    while waiting:
        text, matcher = waiting.pop()
        matcher.fill_mask(mask)
        allowed = set(allowed_ids(mask))
        following = {token for token in range(1, vocabulary.size) if text + tokens[token] in prefixes}
        assert allowed == following | ({0} if text in words else set()), text
        for token in following:
            after = text + tokens[token]
            if after not in seen:
                seen.add(after)
                fork = matcher.fork()
                assert fork.accept(token)
                waiting.append((after, fork))
    assert words <= seen


def test_only_objects_that_could_repeat_a_name_are_marked() -> None:
    """A closed object, and one with room for one undeclared member, stay as they are; a policy line says the choice."""
    single = {"type": "object", "maxProperties": 1, "additionalProperties": {"type": "null"}}
    closed = {"properties": {"a": {"type": "null"}}, "additionalProperties": False, "type": "object"}
    for schema in (closed, single, {"type": "array", "items": closed}, {"type": ["integer", "string"]}):
        grammar = json_schema(schema, policy=JsonPolicy(repeated="forbidden"))
        assert not any(isinstance(node, Distinct) for node in postorder(grammar))
    marked = json_schema(
        {"additionalProperties": {"type": "integer"}, "minProperties": 1, "type": "object"}, policy=STRICT
    )
    assert isinstance(marked, Described)
    assert {entry.status for entry in marked.description.entries} == {Status.ENFORCED}
    assert dict(marked.description.policies)["repeated names"].startswith("never;")


def test_models_with_extra_members_do_not_repeat_them() -> None:
    """What ``extra="allow"`` opens is compared too."""

    class Tags(pydantic.BaseModel, extra="allow"):
        a: int
        __pydantic_extra__: dict[str, int]

    matcher = compile(json_schema(Tags, policy=JsonPolicy(repeated="forbidden")), BYTES).matcher
    assert is_member(matcher(), b'{"a": 0, "b": 0, "c": 0}')
    assert not is_member(matcher(), b'{"a": 0, "b": 0, "b": 0}')
    assert not is_member(matcher(), rb'{"a": 0, "b": 0, "\u0062": 0}')


def test_names_that_may_run_out_where_a_member_is_owed_are_refused() -> None:
    """Where a member must violate a schema, and few names are left for it, the policy is refused by name."""
    schema = {"type": "object", "not": {"patternProperties": {"^b$": {"type": "object"}}}}
    with pytest.raises(UnsupportedFeature, match='use repeated="allowed"') as caught:
        json_schema(schema, policy=STRICT)
    assert (caught.value.feature, caught.value.where) == ("repeated", "#/not")
    assert '{"a":0,"b":0}' in _accepted(schema, replace(STRICT, repeated="allowed"))


def test_unknown_choice_is_refused() -> None:
    """A choice that does not exist is named with those that do."""
    with pytest.raises(ValueError, match="repeated is 'never'; give one of allowed, forbidden"):
        JsonPolicy(repeated="never")  # type: ignore[arg-type]
