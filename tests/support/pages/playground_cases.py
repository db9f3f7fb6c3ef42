"""Grammars for the playground, and what Python's front ends and the native engine make of them.

``python playground_cases.py`` prints the cases as JSON; ``playground_judge.js`` compares the module's masks with them.
"""

from __future__ import annotations

import json
import os
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import hostile_grammars
import hostile_schemas
import numpy as np

import structgen as sg
from structgen.models import embedded_folder

_ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = Path(os.environ.get("STRUCTGEN_PLAYGROUND", _ROOT / "build" / "playground")) / "index.html"
"""The page that ``make playground`` builds."""
JUDGE: Final = Path(__file__).with_name("playground_judge.js")
FEWEST: Final = 200
"""Cases that a comparison has."""

NOTATIONS: Final[dict[str, Callable[[str], Any]]] = {
    "schema": sg.json_schema,
    "regex": sg.regex,
    "lark": sg.lark,
    "gbnf": sg.gbnf,
}
_SOURCES: Final = Path(__file__).resolve().parents[2] / "fixtures" / "playground_sources.jsonl"
_STEPS: Final = 10


def _object(properties: dict[str, Any], required: list[str] | None = None, **more: Any) -> dict[str, Any]:
    names = sorted(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": names, **more}


def _schemas() -> Iterator[Any]:
    yield from ({"type": kind} for kind in ("null", "boolean", "integer", "number", "string", "array", "object"))
    yield from ({}, True, {"type": ["string", "null"]}, {"type": "string", "nullable": True})
    for low, high in (
        (0, None),
        (None, 9),
        (0, 9),
        (3, 17),
        (-5, 5),
        (-120, -7),
        (99, 1001),
        (250, 255),
        (0, 0),
        (-1, 0),
    ):
        bounds = {"minimum": low, "maximum": high}
        yield {"type": "integer", **{name: bound for name, bound in bounds.items() if bound is not None}}
    for low, high in ((0, 10), (-10, 10), (9, 101), (-100, -98), (199, 2001)):
        yield {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high}
    yield from (
        {"type": "number", "minimum": 0},
        {"type": "number", "exclusiveMinimum": 0},
        {"type": "number", "minimum": 0, "maximum": 1},
        {"type": "number", "minimum": -90, "maximum": 90},
        {"type": "number", "minimum": 0, "maximum": 100.0},
    )
    for low, high in ((1, None), (0, 3), (2, 2), (5, 40), (None, 1)):
        bounds = {"minLength": low, "maxLength": high}
        yield {"type": "string", **{name: bound for name, bound in bounds.items() if bound is not None}}
    for pattern in (
        "^[a-z]+$", "^a", "b$", "[0-9]{3}", "^$", "^(yes|no)$", "^[A-Z]{2}-\\d{4}$", "^\\S+@\\S+$",
        "^[^\"\\\\]*$", "\\w\\s\\W",
        "^(?:a|b)+(,(?:a|b)+)*$", "^\\u00e9?\\x41*$", "^.{2,4}$", "^[\\w.-]+$", "^(^a|b$)$", "a|^b", "^/([^/]+/)*$",
    ):  # fmt: skip
        yield {"type": "string", "pattern": pattern}
    yield {"type": "string", "pattern": "^[a-z]", "minLength": 3, "maxLength": 6}
    for name in (
        "date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference",
        "json-pointer", "regex", "password", "idn-email",
    ):  # fmt: skip
        yield {"type": "string", "format": name}
    yield {"$schema": "http://json-schema.org/draft-07/schema#", "type": "string", "format": "hostname"}
    yield {"$schema": "http://json-schema.org/draft-04/schema#", **_object({"id": {"type": "string", "format": "uri"}})}
    yield from (
        {"enum": ["a", "ab", "b"]},
        {"const": "x y"},
        {"enum": [1, "1", None, True]},
        {"enum": ["é", "日本", '"']},
    )
    yield _object({"a": {"type": "string"}, "b": {"type": "integer"}})
    yield _object({"a": {"type": "string"}, "b": {"type": "integer"}}, [])
    yield _object({"a": {"type": "string"}}, additionalProperties={"type": "boolean"})
    yield _object({"a": {"type": "string"}}, additionalProperties=True)
    yield {"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 1, "maxProperties": 1}
    yield {"type": "object", "additionalProperties": {"type": "string", "maxLength": 3}}
    yield {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3}
    yield {"type": "array", "items": _object({"x": {"type": "number"}}), "minItems": 2}
    yield {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer"}, {"type": "null"}]}
    yield {"anyOf": [_object({"kind": {"const": f"k{i}"}, f"v{i}": {"type": "boolean"}}) for i in range(5)]}
    yield {"oneOf": [{"type": "string"}, {"type": "integer"}]}
    yield {"allOf": [_object({"a": {"type": "string"}}), _object({"b": {"type": "integer"}})]}
    node = _object({"v": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}}, ["v"])
    yield {"$ref": "#/$defs/node", "$defs": {"node": node}}
    yield _object({"t": {"type": "array", "items": {"$ref": "#"}}})
    yield _object({f"field_{i}": {"type": ["string", "integer"]} for i in range(12)}, ["field_3", "field_7"])
    yield _object({"a": _object({"b": _object({"c": {"enum": [1, 2]}})})})
    yield _object({"s": {"type": "string", "allOf": [{"minLength": 2}, {"maxLength": 4}]}})
    yield from _numbers()
    yield from _texts_and_names()
    yield from _negations()


def _negations() -> Iterator[Any]:
    names = _object({"a": {"type": "string"}, "b": {"type": "integer"}, "c": {}}, [])
    old = {"$schema": "http://json-schema.org/draft-07/schema#"}
    for excluded in (
        {"required": ["a"]}, {"required": ["a", "b"]}, {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"properties": {"b": {"minimum": 3}}},
        {"properties": {"a": {"pattern": "^x"}, "b": {"const": 1}}, "required": ["a"]},
        {"minProperties": 2}, {"maxProperties": 1}, {"not": {"required": ["c"]}}, {"type": "null"},
    ):  # fmt: skip
        yield {**names, "not": excluded}
    yield {"type": "object", "not": {"patternProperties": {"^a": {"type": "string"}}}, "additionalProperties": True}
    for excluded in (
        {"enum": ["a", "b"]}, {"const": "x y"}, {"pattern": "^a", "maxLength": 3}, {"format": "date"}, {"minLength": 2},
        {"type": "string", "pattern": "[0-9]$", "format": "uuid"},
    ):  # fmt: skip
        yield {"type": "string", "not": excluded}
        yield {"type": ["string", "null"], "maxLength": 12, "not": excluded}
    for excluded in ({"const": 1}, {"enum": [0, 5, -3]}, {"minimum": 3}, {"minimum": 3, "exclusiveMaximum": 9.5}):
        yield {"type": "integer", "not": excluded}
        yield {"type": "number", "minimum": -20, "maximum": 20, "not": excluded}
    yield from ({"not": {"type": ["array", "object"]}}, {"not": {"const": True}, "type": ["boolean", "null"]})
    yield from ({"enum": ["a", "b", 1, None], "not": {"enum": ["b", None]}}, {"not": {"enum": ["a", 1, None, False]}})
    yield {**names, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    yield {**names, "oneOf": [{"required": ["a", "b"]}, {"required": ["b", "c"]}, {"required": ["c"]}]}
    yield {"oneOf": [_object({"a": {}, "b": {"type": kind}}, []) for kind in ("string", "integer", "null")]}
    yield {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$", "maxLength": 9}]}
    yield {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}
    yield {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]}
    yield {"oneOf": [{"type": "string", "format": "date"}, {"type": "string", "maxLength": 10}]}
    yield {**names, "dependencies": {"a": ["b"], "b": ["c", "a"]}}
    yield {**names, "dependencies": {"c": {"required": ["a"], "properties": {"a": {"minLength": 2}}}, "a": ["c"]}}
    yield {**names, "dependencies": {name: {"properties": {"a": {"enum": ["x"]}}} for name in "bcde"}}
    yield {"$schema": "https://json-schema.org/draft/2020-12/schema", **names, "dependentRequired": {"c": ["a"]}}
    yield {**old, **names, "if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"maxProperties": 1}}
    yield {**old, **names, "if": {"properties": {"b": {"const": 1}}}, "then": {"properties": {"c": {"type": "null"}}}}
    for items in ({}, {"type": "string"}, {"enum": ["a", "b", 3]}, {"type": ["boolean", "null"]}, {"type": "integer"}):
        yield {"type": "array", "items": items, "uniqueItems": True}
        yield _object({"list": {"type": "array", "items": items, "uniqueItems": True, "minItems": 1, "maxItems": 2}})
    node = {"type": "object", "properties": {"next": {"oneOf": [{"$ref": "#/definitions/n"}, {}]}}}
    yield {"definitions": {"n": node}, "oneOf": [{"$ref": "#/definitions/n"}, {"type": "object", "required": ["next"]}]}


def _numbers() -> Iterator[Any]:
    for low, high in (
        (2.5, 7.25),
        (-459.67, None),
        (None, -0.001),
        (0.1, 0.25),
        (1024, None),
        (-0.5, 0.5),
        (3, 3),
        (1e-9, 2e-7),
        (-1e21, 1e22),
        (99.995, 1200),
        (0, 1e308),
    ):
        bounds = {"minimum": low, "maximum": high}
        yield {"type": "number", **{name: bound for name, bound in bounds.items() if bound is not None}}
    for low, high in ((0, 5), (-7.5, 7.5), (0.03, 0.04), (9, 10), (-2, -1.5)):
        yield {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": high}
        yield {"type": "integer", "exclusiveMinimum": low - 1, "exclusiveMaximum": high + 1}
    yield {"type": ["number", "string"], "minimum": 1, "exclusiveMinimum": 1, "maximum": 9, "exclusiveMaximum": 12}
    old = {"$schema": "http://json-schema.org/draft-04/schema#", "type": "number"}
    yield {**old, "minimum": 0, "exclusiveMinimum": True, "maximum": 10, "exclusiveMaximum": False}
    for kind in ("integer", "number"):
        for step in (1, 7, 10, 250, 0.5, 0.25, 0.01, 1.5, 12, 1000):
            yield {"type": kind, "multipleOf": step}
    yield from (
        {"type": "integer", "multipleOf": 15, "minimum": 100, "maximum": 260},
        {"type": "number", "multipleOf": 0.01, "minimum": 0, "maximum": 99999999999.99},
        {"type": "number", "multipleOf": 0.3, "exclusiveMinimum": -2, "maximum": 2},
        {"type": "integer", "multipleOf": 2, "minimum": -3, "maximum": 3},
    )


def _texts_and_names() -> Iterator[Any]:
    yield from (
        {"type": "string", "format": "email", "maxLength": 12},
        {"type": "string", "format": "uri", "pattern": "^https?://"},
        {"type": "string", "format": "date", "minLength": 3},
        {"type": "string", "allOf": [{"format": "uri"}, {"format": "uri-reference"}, {"minLength": 4}]},
        {"type": "string", "format": "hostname", "maxLength": 5},
        {"type": "string", "format": "unknown", "maxLength": 5},
        {"type": "string", "enum": ["a", "abc", "abcd"], "minLength": 2, "maxLength": 3},
        {"type": "string", "enum": ["AD", "ae", "AF"], "pattern": "^[A-Z]{2}$"},
        {"enum": [1, 5, 9, "x", None, True], "minimum": 2, "maximum": 8},
        {"type": ["integer", "null"], "enum": [None, 3, 6, 7], "multipleOf": 3},
        {"allOf": [{"enum": ["one", "three", "five"]}, {"minLength": 4}]},
        {"allOf": [{"enum": ["one", "two", "three"]}, {"pattern": "e$"}, {"type": "string"}]},
    )
    for patterns in (
        {"^x_": {"type": "integer"}},
        {"^[a-z]+$": {"type": "boolean"}},
        {"^a": {"type": "string"}, "b$": {"maxLength": 2}},
        {"^a_": {"type": "integer"}, "^b_": {"type": "null"}, "^c_[0-9]{2}$": {"type": "boolean"}},
        {".*": {"type": "integer"}},
        {"^(ab|x_y)$": {"type": ["integer", "boolean"]}, "^zc$": False},
        {"^a": {"minimum": 1, "type": "integer"}, "^ab": {"maximum": 5}, "c$": {"multipleOf": 2}},
        {"^ñ\\S*$": {"const": 1}},
    ):
        yield {"type": "object", "patternProperties": patterns}
        yield {"type": "object", "patternProperties": patterns, "additionalProperties": False}
        yield {**_object({"ab": {}, "x_y": {"type": "number"}, "zc": True}, ["ab"]), "patternProperties": patterns}
        yield {
            "patternProperties": patterns,
            "additionalProperties": {"type": "null"},
            "minProperties": 1,
            "type": "object",
        }
    first = {"type": "object", "patternProperties": {"^s": {"type": "string"}}}
    yield {"allOf": [first, {"patternProperties": {"t$": {"maxLength": 3}}, "properties": {"st": {"minLength": 1}}}]}


def sources() -> list[tuple[str, str]]:
    """Pairs of a notation and a text."""
    found = [("schema", json.dumps(schema, ensure_ascii=False)) for schema in _schemas()]
    lines = _SOURCES.read_text("utf-8").splitlines()
    return found + [(notation, text) for notation, text in map(json.loads, lines)]


def vocabulary() -> sg.Vocabulary:
    """That of the page."""
    return sg.Vocabulary.load(embedded_folder())


def walk(grammar: Any, tokens: sg.Vocabulary, seed: int) -> dict[str, Any]:
    """A random text of a grammar in tokens, with a checksum of the mask before each of them and at the end."""
    matcher = sg.compile(grammar, tokens).matcher()
    size = len(tokens.tokens)
    mask = np.zeros((1, (size + 31) // 32), np.int32)
    chosen, masks = [], []
    generator = random.Random(seed)
    eos = set(tokens.eos)
    while True:
        matcher.fill_mask(mask)
        masks.append([zlib.crc32(mask.tobytes()), int(np.unpackbits(mask.view(np.uint8)).sum())])
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        allowed = [int(token) for token in allowed if int(token) not in eos]
        if not allowed or len(chosen) == _STEPS:
            return {
                "tokens": chosen,
                "masks": masks,
                "shortest": matcher.min_tokens(),
                "forced": list(matcher.forced_bytes()),
            }
        token = generator.choice(allowed if generator.random() < 0.6 else allowed[:20])
        matcher.accept(token)
        chosen.append(token)


def cases() -> list[dict[str, Any]]:
    """All cases with what is expected."""
    tokens = vocabulary()
    made = []
    for number, (notation, text) in enumerate(sources()):
        expected = walk(NOTATIONS[notation](text if notation != "schema" else json.loads(text)), tokens, number)
        made.append({"notation": notation, "source": text, **expected})
    return made


_PATTERNS: Final = (
    "(" * 100_000,
    "(a*)*" * 50 + "b",
    "a{1000000000}{1000000000}",
    "(?:a?){500}a{500}",
    "[" + "a-z" * 50_000 + "]",
    "a" * 1_000_000,
    "(a|b|ab)*c" * 200,
    "(.*a){40}",
    "((((a{9}){9}){9}){9}){9}",
)


def hostile() -> list[tuple[str, str]]:
    """Texts that are malformed or ask for too much, in whatever notation, by name."""
    given = [(name, json.dumps(make())) for name, make in hostile_schemas.SCHEMAS.items()]
    for notation in hostile_grammars.NOTATIONS:
        given += [(f"{notation}: {name}", text) for name, text in hostile_grammars.texts(notation).items()]
    return given + [(f"pattern {number}", text) for number, text in enumerate(_PATTERNS)]


if __name__ == "__main__":
    json.dump(cases(), sys.stdout)
