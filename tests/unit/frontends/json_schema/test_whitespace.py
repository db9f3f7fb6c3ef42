"""White space by policy: what ``json.dumps`` writes is read, and what is read is JSON by ``json``, ``jsonschema``."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner

from structgen.cli.main import cli
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GrammarError, UnsatisfiableGrammar
from structgen.frontends.json_schema import JsonPolicy, json_schema

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
TREE = {
    "$defs": {"tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "items": {"type": "array"}}}},
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "kind": {"enum": ["a", {"deep": [1, {"x": []}]}, [], [[]]]},
        "tags": {"type": "array", "uniqueItems": True, "items": {"enum": [[1, 2], {"q": 1}, "t"]}},
        "pair": {"prefixItems": [{"type": "string"}, {"type": "object"}], "items": False, "type": "array"},
        "some": {"type": "array", "contains": {"type": "array"}},
        "tree": {"$ref": "#/$defs/tree"},
        "free": {},
    },
    "not": {"required": ["count"], "properties": {"count": {"const": 13}}},
}


def reads(constraint: Constraint, text: str) -> bool:
    matcher, data = constraint.matcher(), text.encode()
    return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


def a_value(random: Random, depth: int) -> Any:
    kind = random.randrange(7 if depth else 4)
    if kind > 4:
        return [a_value(random, depth - 1) for _ in range(random.randrange(3))]
    if kind == 4:
        return {name: a_value(random, depth - 1) for name in random.sample(["k", "l", ", :"], random.randrange(3))}
    return [None, True, random.randrange(99), random.choice(["", "a: b, {c}", "\n\t", "é"])][kind]


def a_tree(random: Random, depth: int) -> dict[str, Any]:
    tree: dict[str, Any] = {} if depth == 0 or random.random() < 0.4 else {"left": a_tree(random, depth - 1)}
    return tree | ({"items": [a_value(random, 1) for _ in range(random.randrange(3))]} if random.random() < 0.5 else {})


def a_document(random: Random) -> dict[str, Any]:
    tags = random.sample([[1, 2], {"q": 1}, "t"], random.randrange(4))
    whole = {
        "count": random.choice([0, 12, 14]),
        "kind": random.choice(TREE["properties"]["kind"]["enum"]),  # type: ignore[index]
        "tags": tags,
        "pair": random.choice([[], ["p"], ["p", {"n": [1]}]]),
        "some": random.choice([[[]], [1, [2, 3]]]),
        "tree": a_tree(random, 3),
        "free": a_value(random, 3),
    }
    return {name: value for name, value in whole.items() if random.random() < 0.7}


def documents(count: int, seed: int) -> list[dict[str, Any]]:
    random = Random(seed)
    found = [a_document(random) for _ in range(count)]
    for document in found:
        jsonschema.validate(document, TREE)
    return found


STYLES: list[tuple[JsonPolicy, dict[str, Any]]] = [
    (JsonPolicy(whitespace="indented"), {"indent": 2}),
    (JsonPolicy(whitespace="indented", indent=0), {"indent": 0}),
    (JsonPolicy(whitespace="indented", indent=3, order="any"), {"indent": 3}),
    (JsonPolicy(whitespace="indented", indent="\t", separators=(",", ":")), {"indent": "\t", "separators": (",", ":")}),
    (JsonPolicy(separators=(",", ": ")), {"separators": (",", ": ")}),
    (JsonPolicy(whitespace="compact", separators=(" ,", "\n:")), {"separators": (" ,", "\n:")}),
]


@pytest.mark.parametrize(("policy", "style"), STYLES)
def test_a_fixed_style_is_what_json_dumps_writes(policy: JsonPolicy, style: dict[str, Any]) -> None:
    constraint = compile(json_schema(TREE, policy=policy), BYTES)
    for document in documents(8, seed=1):
        written = json.dumps(document, ensure_ascii=False, **style)
        assert reads(constraint, written), written
        for other in ({}, {"indent": 1}, {"indent": 4}, {"indent": 2, "separators": (" ,", ":")}):
            text = json.dumps(document, ensure_ascii=False, **other)
            assert reads(constraint, text) == (text == written), text


@pytest.mark.parametrize("whitespace", ["any", "runs", "flexible"])
def test_a_free_style_reads_every_style(whitespace: Any) -> None:
    constraint = compile(json_schema(TREE, whitespace=whitespace), BYTES)
    for document in documents(6, seed=2):
        for style in ({}, {"separators": (",", ":")}, {"indent": 0}, {"indent": 7}, {"indent": "\t"}):
            assert reads(constraint, json.dumps(document, ensure_ascii=False, **style))


def test_any_white_space_is_that_of_the_json_module() -> None:
    """Texts with white space put in and characters taken out are read just where ``json`` and ``jsonschema`` do."""
    reading = JsonPolicy(whitespace="any", around=True, order="any", numbers="all", escapes="all", additional="written")
    constraint = compile(json_schema(TREE, policy=reading), BYTES)
    validator = jsonschema.Draft202012Validator(TREE)
    random, verdicts = Random(3), []
    for document in documents(24, seed=4):
        text = json.dumps(document, ensure_ascii=False)
        for _ in range(random.randrange(5)):
            place = random.randrange(len(text) + 1)
            space = random.choice(
                [" ", "\n\n", "\r\n\t", " " * 300, "\f", "\xa0", "\v", "\x00"][: random.choice([4, 4, 8])]
            )
            text = text[:place] + space + text[place + random.choice([0, 0, 0, 1]) :]
        try:
            valid = validator.is_valid(json.loads(text))
        except ValueError:
            valid = False
        verdicts.append(valid)
        assert reads(constraint, text) == valid, text
    assert 4 < sum(verdicts) < 20


def spelled(ws: str, comma: str, around: str) -> re.Pattern[str]:
    """The arrays of ones, written by hand."""
    return re.compile(rf"{around}\[{ws}(1({ws}{comma}{ws}1)*{ws})?\]{around}")


CASES = {
    "any": (JsonPolicy(whitespace="any"), spelled(r"[ \n]*", ",", "")),
    "any around": (JsonPolicy(whitespace="any", around=True), spelled(r"[ \n]*", ",", r"[ \n]*")),
    "runs": (JsonPolicy(whitespace="runs", indent=1), spelled(r"[ \n]?", ",", "")),
    "runs around": (JsonPolicy(whitespace="runs", indent=2, around=True), spelled(r"[ \n]{,2}", ",", r"[ \n]{,2}")),
    "fixed around": (JsonPolicy(indent=1, around=True), spelled("", ", ", r"[ \n]?")),
    "single": (JsonPolicy(indent=1), spelled("", ", ", "")),
    "pattern": (JsonPolicy(space="  |\\n"), spelled("(  |\n)?", ",", "")),
    "pattern around": (JsonPolicy(space="\\n+", around=True), spelled("(\n+)?", ",", "(\n+)?")),
    "separators": (JsonPolicy(whitespace="compact", separators=(" ?,", ":")), spelled("", " ?,", "")),
    "both": (JsonPolicy(whitespace="runs", indent=1, separators=(",\\n", ":")), spelled(r"[ \n]?", ",\n", "")),
}


@pytest.mark.parametrize("name", CASES)
def test_short_texts_by_a_regular_expression(name: str) -> None:
    policy, pattern = CASES[name]
    constraint = compile(json_schema({"type": "array", "items": {"const": 1}}, policy=policy), BYTES)
    texts = ("".join(letters) for size in range(7) for letters in product("[],1 \n", repeat=size))
    wanted = {text for text in texts if pattern.fullmatch(text)}
    matcher, found, waiting = constraint.matcher(), set(), [""]
    while waiting:
        text = waiting.pop()
        matcher.reset()
        assert matcher.accept_bytes(text.encode()) == len(text)
        if matcher.is_accepting:
            found.add(text)
        if len(text) < 6:
            live = set(matcher.live_bytes())
            waiting += [text + letter for letter in "[],1 \n" if ord(letter) in live]
    assert found == wanted


def test_depth_is_bounded_where_lines_are_indented() -> None:
    nested = {"type": "array", "items": {"$ref": "#"}}
    constraint = compile(json_schema(nested, whitespace="indented"), BYTES)
    value: list[Any] = []
    for _ in range(31):
        value = [value]
    assert reads(constraint, json.dumps(value, indent=2))
    assert not reads(constraint, json.dumps([value], indent=2))
    assert ("nesting", "at most 32 arrays and objects around each other") in JsonPolicy(whitespace="indented").lines()
    with pytest.raises(UnsatisfiableGrammar, match="max_depth=1"):
        json_schema({"type": "array", "minItems": 1, "items": nested}, policy=JsonPolicy("indented", max_depth=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indent": "\t"}, "indent is"),
        ({"whitespace": "indented", "indent": "--"}, "indent is"),
        ({"indent": True}, "indent is True"),
        ({"indent": -1}, "indent is -1"),
        ({"separators": ","}, "give a pair of strings"),
        ({"separators": (",", 1)}, "give a pair of strings"),
        ({"around": 1}, "around is 1"),
        ({"space": " ", "whitespace": "indented"}, "space is ' '"),
    ],
)
def test_bad_policies(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        JsonPolicy(**arguments)


@pytest.mark.parametrize("pattern", [";", ",,", "", " ", ",x", "[,;]", "(", ".", ",\\s", ",\\n*.?", "[^a],"])
def test_separators_that_are_no_json(pattern: str) -> None:
    """Each of these has a text that is no comma with white space around it, or is malformed."""
    with pytest.raises(GrammarError, match="JsonPolicy: separators"):
        JsonPolicy(separators=(pattern, ":"))


@pytest.mark.parametrize("pattern", [",", " ,", "[ \\n]*,[ \\t]?", "(?s:, |\\n,)", ",\\x20{0,3}"])
def test_separators_that_are_json(pattern: str) -> None:
    policy = JsonPolicy("compact", separators=(pattern, ":"))
    constraint = compile(json_schema({"type": "array", "items": {"const": 1}}, policy=policy), BYTES)
    for text in map("".join, product(" \n\t,", repeat=2)):
        assert reads(constraint, f"[1{text}1]") == bool(re.fullmatch(pattern, text))


@pytest.mark.parametrize(
    ("text", "options", "status"),
    [
        ('\r\n {\t"a"\n\n:  1 }\n\n', [], 0),
        ('\r\n {\t"a"\n\n:  1 }\n\n', ["--exact"], 0),
        ('\r\n {\t"a"\n\n:  1 }\n\n', ["--whitespace", "flexible"], 1),
        ('{"a": 1}\f', [], 1),
        ('{\n    "a": 1\n}\n', ["--whitespace", "indented", "--indent", "4"], 0),
        ('{\n  "a": 1\n}\n', ["--whitespace", "indented", "--indent", "4"], 1),
        ("{   }", ["--whitespace", "runs", "--indent", "3"], 0),
        ("{    }", ["--whitespace", "runs", "--indent", "3"], 1),
    ],
)
def test_match_reads_any_white_space(tmp_path: Path, text: str, options: list[str], status: int) -> None:
    schema, document = tmp_path / "s.json", tmp_path / "d.json"
    schema.write_text('{"type": "object", "properties": {"a": {"type": "integer"}}}')
    document.write_bytes(text.encode())
    answer = CliRunner().invoke(cli, ["match", str(schema), str(document), *options], standalone_mode=False)
    assert answer.return_value == status, answer.output
