"""Arguments between tags: what each style accepts, against a writer of the test's own and jsonschema; and reading."""

from __future__ import annotations

import html
import itertools
import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from data_folder import REAL_SCHEMAS, data_folder, real_schemas
from grammar_library import walked_member
from jsonschema import Draft202012Validator, exceptions

from structgen import Vocabulary, compile
from structgen.errors import GrammarError, StructgenError, UnsatisfiableGrammar, UnsupportedFeature
from structgen.frontends.chat import tool_calls
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.xml_arguments import STYLES, read_xml_arguments, xml_arguments
from structgen.grammar.flattening import recognizes

Pairs = list[tuple[str, Any]]
M3 = "]<]minimax[>["


def kind(value: Any) -> str:
    """The name of the type of a value, as schemas have it."""
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "number", float: "number", type(None): "null", list: "array", dict: "object"}
    return names[type(value)]


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def qwen(name: str, value: Any) -> str:
    return f"<parameter={name}>{raw(value)}</parameter>"


def minimax(name: str, value: Any) -> str:
    return f'<parameter name="{name}">{raw(value)}</parameter>'


def deepseek(name: str, value: Any, tag: str = "｜DSML｜parameter") -> str:
    return f'<{tag} name="{name}" string="{str(isinstance(value, str)).lower()}">{raw(value)}</{tag}>'


def deepseek_v4_1(name: str, value: Any) -> str:
    return deepseek(name, value, "｜DSML｜ parameter")


def glm(name: str, value: Any) -> str:
    return f"<arg_key>{name}</arg_key><arg_value>{raw(value)}</arg_value>"


def kimi(name: str, value: Any) -> str:
    return f'<|open|>argument key="{name}" type="{kind(value)}"<|sep|>{raw(value)}<|close|>argument<|sep|>'


def cohere(name: str | None, value: Any) -> str:
    mark = {"string": "raw", "array": "list", "object": "dict"}.get(kind(value), "json")
    inner = raw(value)
    if isinstance(value, dict):
        inner = "".join(itertools.starmap(cohere, value.items()))
    if isinstance(value, list):
        inner = "".join(cohere(None, item) for item in value)
    named = "" if name is None else f' name="{html.escape(name, quote=False).replace(chr(34), "&quot;")}"'
    return f'<cofl:value{named} type="{mark}">{inner}</cofl:value>'


def minimax_m3(name: str, value: Any) -> str:
    inner = raw(value)
    if isinstance(value, dict):
        inner = "".join(itertools.starmap(minimax_m3, value.items()))
    if isinstance(value, list):
        inner = "".join(minimax_m3("item", item) for item in value)
    return f"{M3}<{name}>{inner}{M3}</{name}>"


WRITERS: dict[str, Callable[[str, Any], str]] = {
    "qwen_xml": qwen, "minimax_xml": minimax, "deepseek_xml": deepseek, "deepseek_v4_1_xml": deepseek_v4_1,
    "glm_xml": glm, "kimi_k3_xml": kimi, "cohere_xml": cohere, "minimax_m3_xml": minimax_m3,
}  # fmt: skip


def written(style: str, pairs: Pairs) -> str:
    return "".join(WRITERS[style](name, value) for name, value in pairs)


UNTYPED = ("qwen_xml", "minimax_xml", "glm_xml", "minimax_m3_xml")
"""Without marks of the types."""
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 20},
        "t": {"type": "string", "minLength": 1, "maxLength": 4, "pattern": "^[a-z<\n]*$"},
        "e": {"enum": ["x", "y/z", 7, None, [1], {"k": 1}]},
        "u": {"anyOf": [{"type": "string", "pattern": "^[a-z]+$"}, {"type": "number", "minimum": 5}]},
        "o": {"$ref": "#/$defs/node"},
        "l": {"type": "array", "items": {"type": ["string", "boolean"]}, "minItems": 1, "maxItems": 2},
    },
    "required": ["a", "t"],
    "additionalProperties": False,
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"v": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
            "required": ["v"],
            "additionalProperties": False,
        }
    },
}
VALUES: dict[str, list[Any]] = {
    "a": [0, 20, 21, -1, "1", True, 1.5],
    "t": ["x", "<a\nb", "", "abcde", "X", 3, None],
    "e": ["x", "y/z", "z", 7, 8, None, [1], [2], {"k": 1}, {"k": 2}, {}, "7x"],
    "u": ["ab", "A", 5, 5.5, 4, None, ["ab"]],
    "o": [{"v": True}, {"v": True, "next": {"v": False}}, {}, {"next": {"v": True}}, {"v": 1}, {"v": True, "x": 1}, []],
    "l": [["p"], [True, "p"], [], ["p", "q", "r"], [1], "p"],
}  # fmt: skip
BASE: Pairs = [("a", 3), ("t", "ab"), ("e", "x"), ("u", 6), ("o", {"v": True}), ("l", ["p"])]


def cases() -> list[Pairs]:
    """Objects that differ from a valid one in one value, in presence, or in one name."""
    found: list[Pairs] = []
    for name, values in VALUES.items():
        kept = [(each, held) for each, held in BASE if each in ("a", "t", name)]
        found += [[(each, value if each == name else held) for each, held in kept] for value in values]
    found += [[*BASE, ("z", 1)], [*BASE[:2], ("t", "b")], [("a", 1), *BASE[:2]]]
    found += [list(chosen) for count in range(4) for chosen in itertools.combinations(BASE, count)]
    return found


def is_valid(pairs: Pairs) -> bool:
    names = [name for name, _ in pairs]
    return len(set(names)) == len(names) and Draft202012Validator(SCHEMA).is_valid(dict(pairs))


@pytest.mark.parametrize("style", sorted(STYLES))
def test_accepts_what_is_valid(style: str) -> None:
    """A text is accepted just where its values are valid, and is read back into them."""
    grammar = xml_arguments(SCHEMA, style)
    verdicts = []
    for pairs in cases():
        text = written(style, pairs)
        meant = [(name, reread(style, name, value)) for name, value in pairs] if style in UNTYPED else pairs
        expected = is_valid(meant)
        assert recognizes(grammar, text) is expected, text
        verdicts.append(expected)
        if expected:
            assert read_xml_arguments(text, style, SCHEMA) == dict(meant)
    assert 20 < sum(verdicts) < len(verdicts) - 20


def reread(style: str, name: str, value: Any) -> Any:
    """What a text means where nothing marks its type: the only valid value with that text."""
    text = raw(value)
    if style == "minimax_m3_xml" and value in ([], {}) and name in ("o", "l"):
        return [] if name == "l" else {}
    if style == "minimax_m3_xml" and isinstance(value, list) and name == "l":
        return [raw(item) if kind(item) == "number" else item for item in value]
    if style == "minimax_m3_xml" and isinstance(value, (list, dict)):
        return value
    others = [json.loads(text)] if re.fullmatch(r"-?[0-9.]+|true|false|null|[\[{].*[\]}]", text) else []
    schema = {**SCHEMA["properties"].get(name, {}), "$defs": SCHEMA["$defs"]}
    valid = [one for one in (*others, text) if Draft202012Validator(schema).is_valid(one)]
    return valid[0] if valid else value


@pytest.mark.parametrize("style", sorted(STYLES))
def test_any_order_keeps_presence_and_uniqueness(style: str) -> None:
    """Required members occur once and others at most once, in every order."""
    schema = {
        "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "null"}},
        "required": ["a", "c"],
    }
    values = {"a": 1, "b": "x", "c": None}
    for any_order in (False, True):
        grammar = xml_arguments(schema, style, any_order=any_order)
        for length in range(5):
            for names in itertools.product("abc", repeat=length):
                once = len(set(names)) == len(names) and {"a", "c"} <= set(names)
                expected = once and (any_order or list(names) == sorted(names))
                assert recognizes(grammar, written(style, [(name, values[name]) for name in names])) is expected, names


@pytest.mark.parametrize("style", sorted(STYLES))
def test_text_ends_before_the_closing_mark(style: str) -> None:
    """Raw text is everything up to the first closing mark, and nothing that holds it."""
    whole = WRITERS[style]("t", "@")
    opening, close = whole.split("@")
    stop = M3 if style == "minimax_m3_xml" else close
    schema = {"properties": {"t": {"type": "string"}}, "required": ["t"]}
    grammar = xml_arguments(schema, style, whitespace=0)
    pieces = ["", "<", stop[:-1], stop[0], stop[1:], stop, "a", "&lt;"]
    for first, second in itertools.product(pieces, repeat=2):
        text = first + second
        expected = (text + close).find(stop) == len(text)
        assert recognizes(grammar, opening + text + close) is expected, text
        if expected:
            assert read_xml_arguments(opening + text + close, style, {"properties": {"t": {"type": "string"}}}) == {
                "t": text
            }


def test_line_breaks_of_qwen() -> None:
    """One line break at each end of a text is not part of the value, whatever the schema says about strings."""
    for schema, holds in (
        ({"enum": ["", "a", "\n", "\na", "a\n"]}, {"", "a", "\n", "\na", "a\n"}.__contains__),
        ({"type": "string", "maxLength": 1}, lambda text: len(text) <= 1),
        ({"type": "string", "pattern": "^a"}, lambda text: text.startswith("a")),
    ):
        grammar = xml_arguments({"properties": {"t": schema}, "required": ["t"]}, "qwen_xml")
        for size in range(6):
            for letters in itertools.product("a\n", repeat=size):
                text = "".join(letters)
                value = text.removeprefix("\n").removesuffix("\n")
                whole = f"<parameter=t>{text}</parameter>"
                assert recognizes(grammar, whole) is holds(value), repr(text)
                assert read_xml_arguments(whole, "qwen_xml", {"properties": {"t": schema}}) == {"t": value}


def test_white_space() -> None:
    schema = {"properties": {"a": {"type": "integer"}, "b": {"type": "null"}}, "required": ["a", "b"]}
    for whitespace, longest in ((None, 1), (0, 0), (3, 3), ("single", 1), ("compact", 0)):
        grammar = xml_arguments(schema, "glm_xml", whitespace=whitespace)
        for count in range(5):
            space = "\n" * count
            text = glm("a", 1) + glm("b", None)
            for place in ("<arg_key>", "<arg_value>", "</arg_value>", "1"):
                assert recognizes(grammar, text.replace(place, space + place)) is (count <= longest), (place, count)
            spaced = text.replace("<arg", space + "<arg").replace("</arg_value", space + "</arg_value")
            assert read_xml_arguments(spaced, "glm_xml", schema) == {"a": 1, "b": None}
    indented = xml_arguments(schema, "glm_xml", whitespace="flexible")
    assert recognizes(indented, "\n    " + glm("a", 1) + " \n\t" + glm("b", None) + "\n")
    assert not recognizes(indented, "\n\n" + glm("a", 1) + glm("b", None))


@pytest.mark.parametrize(
    ("style", "schema", "error", "message"),
    [
        (
            "qwen_xml",
            {"properties": {"a>b": {}}},
            UnsupportedFeature,
            r"#/properties/a%3Eb: .*'a>b' cannot be written",
        ),
        ("minimax_xml", {"required": ['a"b']}, UnsupportedFeature, r"#/required.*cannot be written"),
        ("glm_xml", {"properties": {"": {}}}, UnsupportedFeature, r"#/properties.*'' cannot be written"),
        ("minimax_m3_xml", {"properties": {"/a": {}}}, UnsupportedFeature, "'/a' cannot be written"),
        (
            "minimax_m3_xml",
            {"additionalProperties": True},
            UnsupportedFeature,
            "#/additionalProperties.*repeats",
        ),
        (
            "minimax_m3_xml",
            {"properties": {"a": {"type": "object"}}},
            UnsupportedFeature,
            "#/properties/a/additional",
        ),
        (
            "minimax_m3_xml",
            {"properties": {"a": {"type": "array"}}},
            UnsupportedFeature,
            "#/properties/a/additional",
        ),
        (
            "minimax_m3_xml",
            {"patternProperties": {"^a": {}}},
            UnsupportedFeature,
            "#/patternProperties.*repeats",
        ),
        (
            "qwen_xml",
            {"properties": {"a": {"enum": ["x", "</parameter>"]}}},
            UnsupportedFeature,
            "#/properties/a/enum",
        ),
        (
            "cohere_xml",
            {"properties": {"a": {"type": "array", "uniqueItems": True}}},
            UnsupportedFeature,
            "uniqueItems",
        ),
        ("qwen_xml", {"minProperties": 2}, UnsupportedFeature, "#/minProperties.*compared only in JSON"),
        ("qwen_xml", {"type": "array"}, UnsatisfiableGrammar, "arguments are an object"),
        ("qwen_xml", {"properties": {"a": {"type": "nothing"}}}, GrammarError, "#/properties/a/type"),
        ("html", {}, GrammarError, "no such style.*cohere_xml, deepseek_v4_1_xml"),
    ],
)
def test_what_is_refused(style: str, schema: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        xml_arguments(schema, style)


def test_white_space_of_policies() -> None:
    """Between marks it is what the policy has in JSON, bounded as there; what depends on a depth is refused."""
    schema = {"properties": {"a": INTEGER}, "required": ["a"]}
    spaces = ["", "\n", "\n  ", "\n" + " " * 256, "\n" + " " * 257, "\t\t", "\t\n\n\n", " \n\t"]
    for policy, expected in (
        (JsonPolicy("single"), "TT......"),
        (JsonPolicy("compact"), "T......."),
        (JsonPolicy("flexible"), "TTTT...T"),
        (JsonPolicy("flexible", indent=2), "TTT....T"),
        (JsonPolicy("runs", indent=2), "TT...T.."),
        (JsonPolicy("any"), "TTTTTTTT"),
    ):
        grammar = xml_arguments(schema, "qwen_xml", policy=policy)
        found = [recognizes(grammar, space + "<parameter=a>5</parameter>") for space in spaces]
        assert found == [each == "T" for each in expected], policy
    for policy in (JsonPolicy("indented"), JsonPolicy("indented", indent="\t")):
        for make in (lambda policy: xml_arguments(schema, "qwen_xml", policy=policy),
                     lambda policy: tool_calls([{"name": "f"}], family="llama-python", policy=policy)):  # fmt: skip
            with pytest.raises(ValueError, match="'indented' depends on the depth"):
                make(policy)


def test_negative_white_space() -> None:
    with pytest.raises(ValueError, match="whitespace is a number of characters from 0 on"):
        xml_arguments({}, "qwen_xml", whitespace=-1)
    for wrong in (2.5, True):
        with pytest.raises(ValueError, match=f"from 0 on; found {wrong}"):
            xml_arguments({}, "qwen_xml", whitespace=wrong)  # type: ignore[arg-type]


def test_undeclared_names() -> None:
    """Patterns and additional members hold for raw names too."""
    schema = {
        "properties": {"a": {"type": "integer"}},
        "patternProperties": {"^n_": {"type": "null"}},
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    }
    for style in sorted(STYLES - {"minimax_m3_xml"}):
        grammar = xml_arguments(schema, style)
        for pairs in (
            *([("n_1", None)], [("x", True)], [("n_1", True)], [("x", None)], [("a", True)], [("a", 1), ("y", False)]),
            *([("x", True), ("a", 1)], [("a", 1), ("x", True), ("n_", None)], []),
        ):
            expected = Draft202012Validator(schema).is_valid(dict(pairs))
            text = written(style, pairs)
            assert recognizes(grammar, text) is expected, text
            if expected:
                assert read_xml_arguments(text, style, schema) == dict(pairs)


def test_any_value_is_not_restricted_by_what_is_around_it() -> None:
    """Also where the arguments name none themselves."""
    for schema in ({"properties": {}, "additionalProperties": True}, {"properties": {"a": {}}}):
        grammar = xml_arguments(schema, "cohere_xml")
        for value in ({"x": 1}, {"x": {"y": {}}}, [{"x": []}], {}, 1, "b"):
            text = written("cohere_xml", [("a", value)])
            assert recognizes(grammar, text), text
            assert read_xml_arguments(text, "cohere_xml", schema) == {"a": value}


INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


def closed(**members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": members, "additionalProperties": False}


def of_kinds(*kinds: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{**closed(**kind), "required": list(kind)} for kind in kinds]}


@pytest.mark.parametrize(
    ("style", "schema", "pairs", "value"),
    [
        ("qwen_xml", of_kinds({"k": {"const": "a"}, "v": {}}, {"k": {"const": "b"}, "v": TEXT}), "k=a v=5", 5),
        ("qwen_xml", of_kinds({"k": {"const": "a"}, "v": {}}, {"k": {"const": "b"}, "v": TEXT}), "k=b v=5", "5"),
        ("glm_xml", of_kinds({"v": TEXT, "k": {"const": "b"}}, {"v": INTEGER, "k": {"const": "a"}}), "v=5 k=b", "5"),
        (
            "minimax_xml",
            {**closed(v={"type": ["string", "integer"]}, w={}), "not": {"properties": {"v": INTEGER}}},
            "v=5 w=5",
            "5",
        ),
        ("minimax_m3_xml", closed(v={"anyOf": [{**TEXT, "minLength": 1}, {"type": "array", "items": TEXT}]}), "v=", []),
        ("minimax_m3_xml", closed(v={"anyOf": [{"type": "array", "minItems": 1, "items": TEXT}, closed()]}), "v=", {}),
        ("minimax_m3_xml", closed(v={"type": ["array", "string"], "items": TEXT}), "v=", ""),
        ("minimax_m3_xml", closed(v={"const": {"x": "5"}}), f"v={M3}<x>5{M3}</x>", {"x": "5"}),
        ("minimax_m3_xml", closed(v={"const": ["5"]}), f"v={M3}<item>5{M3}</item>", ["5"]),
        ("minimax_m3_xml", closed(v={"anyOf": [TEXT, closed(x=TEXT)]}), f"v={M3}<x>5{M3}</x>", {"x": "5"}),
        *(
            (
                "minimax_m3_xml",
                closed(v={"anyOf": [{"type": "array", "items": INTEGER}, closed(item=TEXT)]}),
                f"v={M3}<item>{item}{M3}</item>",
                value,
            )
            for item, value in (("5", [5]), ("x", {"item": "x"}))
        ),
    ],
)
def test_readings_are_valid(style: str, schema: Any, pairs: str, value: Any) -> None:
    """Of the values that a text can be, the schema as a whole decides."""
    found = [(name, text) for name, _, text in (pair.partition("=") for pair in pairs.split(" "))]
    text = written(style, found)
    assert recognizes(xml_arguments(schema, style), text)
    read = read_xml_arguments(text, style, schema)
    assert read["v"] == value
    assert type(read["v"]) is type(value)
    assert Draft202012Validator(schema).is_valid(read)


def test_readings_are_bounded() -> None:
    """Tags that can be arrays as well as objects, and many members of two types, take no time out of proportion."""
    either = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/n"}}, {"type": "object", "required": ["x"]}]}
    nested = {"properties": {"t": {"$ref": "#/$defs/n"}}, "$defs": {"n": either}}
    deep = f"{M3}<t>" + f"{M3}<item>" * 150 + f"{M3}</item>" * 150 + f"{M3}</t>"
    names = [f"p{at}" for at in range(100)]
    many = {"properties": {name: {"type": ["string", "integer"]} for name in names}, "required": ["no"]}
    began = time.process_time()
    assert list(read_xml_arguments(deep, "minimax_m3_xml", nested)) == ["t"]
    assert read_xml_arguments(written("qwen_xml", [(name, 5) for name in names]), "qwen_xml", many)["p99"] == 5
    assert time.process_time() - began < 5


def test_names_that_hold_a_part_of_a_mark() -> None:
    for style, name in (("glm_xml", "a<b</arg"), ("cohere_xml", "/a"), ("kimi_k3_xml", "/a<b>"), ("qwen_xml", "é \n")):
        schema = closed(**{name: INTEGER})
        text = written(style, [(name, 5)])
        assert recognizes(xml_arguments(schema, style), text)
        assert read_xml_arguments(text, style, schema) == {name: 5}


ANYTHING: dict[str, Any] = {"type": ["string", "number", "boolean", "null"]}
WALKED: list[dict[str, Any]] = [
    closed(t={"type": ["string", "integer"], "minLength": 1}, u={"enum": ["5", 5, "true", True, None, "null", ""]}),
    closed(t={"anyOf": [{**TEXT, "maxLength": 3}, {**INTEGER, "minimum": 1000}]}, u=ANYTHING),
    closed(t={"type": ["array", "object", "null"], "properties": {"a": TEXT}, "additionalProperties": False,
              "items": {"type": ["string", "integer"]}}),
    closed(t={"type": "array", "items": {"type": "array", "items": TEXT, "maxItems": 2}, "maxItems": 3}),
    closed(t={"type": "array", "prefixItems": [TEXT, INTEGER], "items": False, "minItems": 2}, item=TEXT),
    closed(t={"type": "array", "contains": {"const": 1}, "items": {"type": ["integer", "string"]}, "maxItems": 3}),
    of_kinds({"k": {"const": "a"}, "v": ANYTHING}, {"k": {"const": "b"}, "v": TEXT}, {"k": {"const": "c"}}),
    {**closed(v={"type": ["integer", "string"]}, k={"enum": ["b", "c"]}), "required": ["v", "k"],
     "if": {"properties": {"k": {"const": "b"}}}, "then": {"properties": {"v": TEXT}}},
    {"type": "object", "additionalProperties": {"type": ["string", "integer"]}, "maxProperties": 1},
    {**closed(a={"$ref": "#/$defs/n"}),
     "$defs": {"n": {**closed(t=ANYTHING, n={"$ref": "#/$defs/n"}), "required": ["t"]}}},
]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("style", sorted(STYLES))
def test_what_is_written_is_read(style: str) -> None:
    """Random arguments under the masks are read into values that jsonschema calls valid."""
    vocabulary = Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])
    rng = random.Random(7)
    for schema in WALKED:
        if style == "minimax_m3_xml" and "properties" not in schema and "anyOf" not in schema:
            continue
        grammar = xml_arguments(schema, style, any_order=rng.random() < 0.5, whitespace=rng.choice([None, 0, 2, "any"]))
        constraint = compile(grammar, vocabulary)
        for length in (20, 100):
            text = walked_member(constraint, rng, length)
            value = read_xml_arguments(text, style, schema)
            assert Draft202012Validator(schema).is_valid(value), (text, value)


def test_names_with_entities() -> None:
    schema = {"properties": {'a<"&>': {"type": "integer"}}, "required": ['a<"&>']}
    text = cohere('a<"&>', 1)
    assert "a&lt;&quot;&amp;&gt;" in text
    assert recognizes(xml_arguments(schema, "cohere_xml"), text)
    assert read_xml_arguments(text, "cohere_xml", schema) == {'a<"&>': 1}
    more = xml_arguments({**schema, "additionalProperties": {"type": "null"}}, "cohere_xml")
    for name, expected in (("b&", True), ('"', True), ("a", True), ('a<"&>', False), ("b\n", False), ("", False)):
        assert recognizes(more, text + cohere(name, None)) is expected
    assert not recognizes(more, text + cohere("b&", None).replace("amp;", ""))


def test_dependencies_and_alternatives() -> None:
    """What needs memory from member to member holds for tags as for JSON."""
    schema = {
        "properties": {name: {"type": "integer"} for name in "abc"},
        "dependentRequired": {"a": ["c"], "c": ["b"]},
        "not": {"required": ["b"], "maxProperties": 1},
        "additionalProperties": False,
    }
    for style in ("qwen_xml", "minimax_m3_xml"):
        grammar = xml_arguments(schema, style)
        for count in range(4):
            for names in itertools.combinations("abc", count):
                pairs: Pairs = [(name, 1) for name in names]
                assert recognizes(grammar, written(style, pairs)) is Draft202012Validator(schema).is_valid(dict(pairs))


def test_what_must_be_violated() -> None:
    """A negation alone says what arguments may be; names that no schema lists are written too."""
    schema = {"not": {"properties": {"q": {"maxLength": 2}}, "required": ["q"]}}
    grammar = xml_arguments(schema, "qwen_xml", policy=JsonPolicy(additional="written"))
    for pairs in ([("q", "ab")], [("q", "abc")], [("x", "ab")], []):
        assert recognizes(grammar, written("qwen_xml", pairs)) is Draft202012Validator(schema).is_valid(dict(pairs))


def test_policies() -> None:
    schema = {"properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}, "t": {"type": "string"}}}
    grammar = xml_arguments(schema, "qwen_xml", policy=JsonPolicy(whitespace="compact", max_length=2, required="all"))
    for inner, text, expected in (('{"b":"x"}', "xy", True), ('{"b": "x"}', "xy", False), ('{"b":"xyz"}', "xy", False),
                                  ('{"b":"x"}', "xyz", False), ("{}", "xy", False)):  # fmt: skip
        assert recognizes(grammar, f"<parameter=a>{inner}</parameter><parameter=t>{text}</parameter>") is expected


@pytest.mark.parametrize(
    ("style", "text", "message"),
    [
        ("qwen_xml", "<parameter=a", "character 0: a name does not end with '>'"),
        ("qwen_xml", "<parameter=a>1", "character 13: a value does not end"),
        ("qwen_xml", "<parameter=a>1</parameter><parameter=a>1</parameter>", "character 26: the name 'a' occurs twice"),
        ("qwen_xml", "<parameter=a>x</parameter>", "character 13: a value is no JSON of an allowed type"),
        ("qwen_xml", "<parameter=a>NaN</parameter>", "is no JSON of an allowed type"),
        ("qwen_xml", "<parameter=a>true</parameter>", "is no JSON of an allowed type"),
        ("kimi_k3_xml", '<|open|>argument key="a" type="number"<|sep|>true<|close|>argument<|sep|>', "is no JSON of"),
        ("qwen_xml", "<parameter=a>1</parameter>.", "character 26: expected a member or the end"),
        ("kimi_k3_xml", '<|open|>argument key="a" type="set"<|sep|>', "no known mark of a type"),
        ("cohere_xml", '<cofl:value name="a" type="dict">1</cofl:value>', "expected '</cofl:value>'"),
        ("cohere_xml", '<cofl:value name="a" type="dict">' * 300, "nested deeper than 200"),
        ("minimax_m3_xml", f"{M3}<a>" * 300, "nested deeper than 200"),
    ],
)
def test_what_is_not_read(style: str, text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(message)):
        read_xml_arguments(text, style, {"properties": {"a": {"type": "integer"}}} if style == "qwen_xml" else None)


def test_python_types_and_alternatives_of_objects() -> None:
    """A schema with two kinds of objects gives each its own members; a value is read by those of both."""
    schema = {
        "oneOf": [
            {"properties": {"k": {"const": "i"}, "v": {"type": "integer"}}, "required": ["k", "v"]},
            {"properties": {"k": {"const": "s"}, "v": {"type": "string"}}, "required": ["k", "v"]},
        ]
    }
    grammar = xml_arguments(schema, "glm_xml")
    for key, value, expected in (
        ("i", "5", True),
        ("s", "5", True),
        ("i", "x", False),
        ("s", "x", True),
        ("t", "5", False),
    ):
        assert recognizes(grammar, glm("k", key) + glm("v", value)) is expected
    assert read_xml_arguments(glm("k", "s") + glm("v", "x"), "glm_xml", schema) == {"k": "s", "v": "x"}


@pytest.mark.nightly
@pytest.mark.skipif(not (data_folder() / REAL_SCHEMAS).exists(), reason=f"needs {REAL_SCHEMAS}, see CONTRIBUTING.md")
def test_real_schemas() -> None:
    """The instances of real schemas, between tags that mark types, have the verdicts of the data set."""
    policy = JsonPolicy(order="any", numbers="all", additional="written", formats="annotation")
    agreed = 0
    for case in real_schemas(data_folder(), 40):
        tests = [test for test in case["tests"] if isinstance(test["data"], dict)]
        for style in ("deepseek_xml", "cohere_xml"):
            try:
                grammar = xml_arguments(case["schema"], style, policy=policy)
            except StructgenError:
                continue
            for test in tests[:6]:
                text = written(style, list(test["data"].items()))
                try:
                    expected = Draft202012Validator(case["schema"]).is_valid(test["data"])
                except (exceptions.SchemaError, re.error):
                    continue
                if expected is not test["valid"]:  # another draft, or a format
                    continue
                assert recognizes(grammar, text) is expected, (case["name"], text[:400])
                agreed += 1
                if expected:
                    assert read_xml_arguments(text, style, case["schema"]) == test["data"]
    assert agreed > 500
