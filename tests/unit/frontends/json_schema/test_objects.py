"""Objects: the order of members, names that repeat, counts, and regions of names."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given, settings, strategies as st
from schema_as_written import as_written as json_schema

from structgen.engine import Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar, UnsupportedFeature
from structgen.grammar.nodes import Grammar, Repeat, postorder
from structgen.grammar.nodes.description import Described, Status
from structgen.testing.reference import ReferenceMatcher


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether ``text`` is accepted, by the reference implementation."""
    matcher = ReferenceMatcher(grammar)
    data = text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
THREE = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]}


def test_declared_names_come_in_declared_order() -> None:
    """Of all orders of the declared names only the declared one is accepted."""
    grammar = json_schema(THREE)
    for names in permutations("abc"):
        text = json.dumps(dict.fromkeys(names, 1))
        assert accepts(grammar, text) == (names == ("a", "b", "c"))


def test_other_names_stand_anywhere() -> None:
    """Undeclared names may come before, between and after the declared ones."""
    grammar = json_schema(THREE)
    for place in range(3):
        names = ["a", "b"]
        names.insert(place, "z")
        assert accepts(grammar, json.dumps(dict.fromkeys(names, 1)))


def test_required_undeclared_names_come_last_in_their_order() -> None:
    """Names that only ``required`` lists come after the declared ones, in its order."""
    grammar = json_schema({"type": "object", "properties": {"a": {}}, "required": ["y", "x"]})
    assert accepts(grammar, '{"a": 1, "y": 1, "x": 1}')
    assert not accepts(grammar, '{"a": 1, "x": 1, "y": 1}')
    assert not accepts(grammar, '{"y": 1, "a": 1, "x": 1}')


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1, "b": 1}', '{"b": 1, "\\u0062": 1}', '{"\\u0061": 1, "b": 1}'])
def test_declared_name_neither_repeats_nor_hides_after_an_escape(text: str) -> None:
    """A declared name occurs at most once, in canonical spelling."""
    assert not accepts(json_schema(THREE), text)


def test_order_of_merged_schemas_is_that_of_their_keywords() -> None:
    """Names of ``allOf`` and of ``properties`` come in the order in which the schema mentions them."""
    first: dict[str, Any] = {"properties": {"a": {}}}
    second: dict[str, Any] = {"properties": {"b": {}, "a": {}}}
    before = json_schema({"type": "object", "allOf": [second], **first})
    after = json_schema({"type": "object", **first, "allOf": [second]})
    assert [accepts(before, text) for text in ('{"b": 1, "a": 1}', '{"a": 1, "b": 1}')] == [True, False]
    assert [accepts(after, text) for text in ('{"b": 1, "a": 1}', '{"a": 1, "b": 1}')] == [False, True]


def test_names_and_constants_are_written_canonically() -> None:
    """Names and constants with quotes, controls and non-ASCII text are written as ``json.dumps`` writes them."""
    name = 'qu"o\\te\n\x01é\u2028😀'
    grammar = json_schema({"type": "object", "properties": {name: {"const": name}}, "required": [name]})
    assert accepts(grammar, json.dumps({name: name}, ensure_ascii=False))
    assert not accepts(grammar, json.dumps({name: name}, ensure_ascii=True))


NAMES = st.sampled_from(["a", "b", "c", "xa", "x_1", "q"])
INTEGER: dict[str, Any] = {"type": "integer"}
OBJECTS = st.fixed_dictionaries(
    {"type": st.just("object")},
    optional={
        "properties": st.dictionaries(NAMES, st.sampled_from([INTEGER, {}, False, {"minimum": 2}]), max_size=4),
        "required": st.lists(NAMES, unique=True, max_size=3),
        "additionalProperties": st.sampled_from([False, True, INTEGER]),
        "patternProperties": st.dictionaries(
            st.sampled_from(["^x", "_", "1$", "a"]), st.sampled_from([INTEGER, False, {"maximum": 1}]), max_size=2
        ),
        "propertyNames": st.sampled_from([{"maxLength": 1}, {"pattern": "^[a-x]"}, {"enum": ["a", "b", "q"]}, False]),
        "minProperties": st.integers(0, 3),
        "maxProperties": st.integers(0, 3),
    },
)


@given(schema=OBJECTS, names=st.lists(NAMES, unique=True, max_size=4), value=st.sampled_from([1, 2, "s"]))
def test_objects_agree_with_jsonschema(schema: dict[str, Any], names: list[str], value: Any) -> None:
    """With any mix of object keywords an object in declared order is accepted iff ``jsonschema`` accepts it."""
    declared = [*schema.get("properties", {}), *schema.get("required", [])]
    ordered = sorted(names, key=lambda name: declared.index(name) if name in declared else 99)
    instance = dict.fromkeys(ordered, value)
    is_valid = jsonschema.Draft202012Validator(schema).is_valid(instance)
    is_member = False
    try:
        matcher = compile(json_schema(schema), BYTES).matcher()  # the reference is slow where names are compared
        data = json.dumps(instance).encode()
        is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
    except UnsatisfiableGrammar:
        pass  # no instance is valid
    except UnsupportedFeature as refusal:
        assume(refusal.feature != "minProperties")
        raise
    assert is_member == is_valid


def test_undeclared_names_that_repeat_count_once() -> None:
    """A repeated name does not count for ``minProperties``; the report says that names are compared."""
    grammar = json_schema({"type": "object", "minProperties": 3, "required": ["a"]})
    for text, is_member in (
        ('{"a":1,"b":1,"c":1}', True),
        ('{"b":1,"c":1,"a":1}', True),
        ('{"a":1,"b":1,"b":1}', False),
        ('{"a":1,"b":1}', False),
        ('{"a":{"b":1,"c":1}}', False),
    ):
        matcher = compile(grammar, BYTES).matcher()
        assert (matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting) == is_member
    assert isinstance(grammar, Described)
    statuses = {entry.keyword: entry.status for entry in grammar.description.entries}
    assert statuses["minProperties"] is Status.CHECKED


def test_names_that_may_run_out_are_not_counted() -> None:
    """Where patterns may exhaust the names, ``minProperties`` is refused by name."""
    closed = {"patternProperties": {"^[abcd]$": {}}, "additionalProperties": False}
    for schema in (
        closed,
        {"propertyNames": {"maxLength": 1}},
        {"patternProperties": {"^a": {}}, "not": {"const": {}}},
    ):
        with pytest.raises(UnsupportedFeature) as caught:
            json_schema({"type": "object", **schema, "minProperties": 2})
        assert (caught.value.feature, caught.value.where) == ("minProperties", "#/minProperties")


def test_patterns_that_may_all_overlap_are_refused_by_name() -> None:
    """Patterns that divide the names into hundreds of regions are refused."""
    patterns = {f"{letter}": INTEGER for letter in "abcdefgh"}
    with pytest.raises(UnsupportedFeature) as caught:
        json_schema({"patternProperties": patterns})
    assert (caught.value.feature, caught.value.where) == ("patternProperties", "#/patternProperties")
    json_schema({"patternProperties": {f"^{letter}_": INTEGER for letter in "abcdefghijkl"}})


def test_chain_of_optional_names_is_linear_and_unambiguous() -> None:
    """The term grows linearly with the number of names; the loop over other names occurs once per name."""

    def nodes(count: int) -> list[Grammar]:
        schema = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(count)}}
        return list(postorder(json_schema(schema)))

    ten, twenty, forty = (len(nodes(count)) for count in (10, 20, 40))
    assert forty - twenty == 2 * (twenty - ten)
    loops = [node for node in nodes(10) if isinstance(node, Repeat) and node.max is None]
    assert len(loops) < 20


KINDS = st.lists(st.sampled_from(["p", "q", "r", 1]), min_size=1, max_size=3, unique=True)
DEPENDENT = st.one_of(
    KINDS.map(lambda kinds: {"properties": {"kind": {"enum": kinds}}}),
    st.just({"properties": {"kind": {"const": "p"}}}),
    st.sampled_from([{"properties": {"a": {"enum": [1]}}}, {"required": ["b"]}]),
)


@settings(max_examples=150, deadline=None)
@given(
    dependents=st.dictionaries(st.sampled_from(["kind", *"abcdef"]), DEPENDENT, min_size=4, max_size=7),
    is_closed=st.booleans(),
    members=st.lists(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1)), min_size=6, max_size=6),
)
def test_many_dependent_schemas_about_one_name(
    dependents: dict[str, dict[str, object]], is_closed: bool, members: list[dict[str, int]]
) -> None:
    """Where names constrain the value of one other name, exactly the objects that a validator accepts remain."""
    names = ["kind", *"abcdef"]
    schema: dict[str, Any] = {"properties": dict.fromkeys(names, True), "dependentSchemas": dependents}
    schema["additionalProperties"] = not is_closed
    validator = jsonschema.Draft202012Validator(schema)
    constraint = compile(json_schema(schema), BYTES)
    for kind in ("p", "q", "r", 1, None, "absent"):
        for held in ({}, *members):
            value = held if kind == "absent" else {"kind": kind, **held}
            data = json.dumps({name: value[name] for name in names if name in value}).encode()
            matcher = constraint.matcher()
            is_member = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
            assert is_member == validator.is_valid(value), data


def test_many_dependent_schemas_are_not_multiplied_out() -> None:
    """Twenty names with one of five values each leave as many cases as there are values."""
    dependents = {f"n{index}": {"properties": {"kind": {"enum": [index % 5]}}} for index in range(20)}
    schema = {"properties": {"kind": {}} | dict.fromkeys(dependents, True), "dependencies": dependents}
    matcher = compile(json_schema(schema, draft="7"), BYTES).matcher()
    for text, is_member in (('{"kind": 3, "n3": 0, "n13": 0', True), (', "n14": 0', False)):
        matcher.accept_bytes(text.encode())
        fork = matcher.fork()
        assert (fork.accept_bytes(b"}") == 1 and fork.is_accepting) == is_member
