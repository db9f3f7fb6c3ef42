"""Mutations of JSON Schemas and of other JSON documents, as values: the results are JSON, and most are schemas."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

__all__ = [
    "PATTERNS",
    "Json",
    "Maker",
    "Place",
    "change_value",
    "made_members",
    "made_schema",
    "mutated_json",
    "mutated_schema",
    "parsed",
    "places_in",
]

Json: TypeAlias = Any
Place: TypeAlias = tuple[Any, Any]
"""A dict or list, and a key or index in it."""

_NAMES: Final = ("a", "b", "ab", "", "é", "kind", "a/b", "~", "$ref", 'q"', "\ud800", "x" * 40)
_NUMBERS: Final = (0, 1, 2, 3, 7, -1, 10, 255, 0.5, -2.5, 0.1, 1e2, 1e-7, 2**53 + 1, -(10**20), 1e300, True, None)
PATTERNS: Final = (
    "^a",
    "b$",
    "^[a-z]+$",
    "^\\d{2,4}$",
    "",
    ".",
    "a|b",
    "^(a|b)*$",
    '[^"\\\\]',
    "(?=a)b",
    "\\bx",
    "^\\p{L}{1,3}$",
    "(",
    "^x{3}",
)
_FORMATS: Final = (
    *("date", "time", "date-time", "duration", "email", "idn-email", "hostname", "idn-hostname", "ipv4", "ipv6", "uri"),
    *(
        "uri-reference",
        "iri",
        "uuid",
        "json-pointer",
        "relative-json-pointer",
        "regex",
        "uri-template",
        "nothing",
        "byte",
    ),
)
_TYPES: Final = ("null", "boolean", "integer", "number", "string", "array", "object")
_REFERENCES: Final = (
    "#",
    "#/$defs/a",
    "#/$defs/b",
    "#/definitions/a",
    "#a",
    "#/properties/a",
    "other.json",
    "http://json-schema.org/draft-07/schema#",
)

Maker: TypeAlias = Callable[[random.Random, int], Json]


def _count(rng: random.Random, _: int) -> Json:
    return rng.choice((0, 1, 2, 3, 5, 17, 2.0))


def _number(rng: random.Random, _: int) -> Json:
    return rng.choice(_NUMBERS)


def _value(rng: random.Random, depth: int) -> Json:
    if depth and rng.random() < 0.3:
        items = [_value(rng, depth - 1) for _ in range(rng.randrange(3))]
        return items if rng.random() < 0.5 else {rng.choice(_NAMES): item for item in items}
    return rng.choice((*_NUMBERS, *_NAMES, "a", "b"))


def made_schema(rng: random.Random, depth: int) -> Json:
    if depth <= 0 or rng.random() < 0.1:
        return rng.choice(
            (True, False, {}, {"type": "integer"}, {"type": "string"}, {"const": "a"}, {"enum": [1, "a", None]})
        )
    made: dict[str, Json] = {}
    if rng.random() < 0.6:
        kind = made["type"] = rng.choice((*_TYPES, "string", "object", "array"))
        keywords = _OF_TYPE.get(kind, _ANY)
    else:
        keywords = rng.choice((_ANY, *_OF_TYPE.values()))
    for keyword in rng.sample(sorted(keywords), rng.randint(0, min(3, len(keywords)))):
        made[keyword] = keywords[keyword](rng, depth - 1)
    return made


def _schemas(rng: random.Random, depth: int) -> Json:
    return [made_schema(rng, depth) for _ in range(rng.randint(1, 3))]


def made_members(rng: random.Random, depth: int) -> Json:
    return {rng.choice(_NAMES[:6]): made_schema(rng, depth) for _ in range(rng.randint(0, 3))}


def _patterned(rng: random.Random, depth: int) -> Json:
    return {rng.choice(PATTERNS): made_schema(rng, depth) for _ in range(rng.randint(1, 2))}


def _names(rng: random.Random, _: int) -> Json:
    return rng.sample(_NAMES[:6], rng.randint(0, 3))


_ANY: Final[dict[str, Maker]] = {
    "const": _value,
    "enum": lambda rng, depth: [_value(rng, depth) for _ in range(rng.randint(1, 4))],
    "anyOf": _schemas,
    "oneOf": _schemas,
    "allOf": _schemas,
    "not": made_schema,
    "if": made_schema,
    "then": made_schema,
    "else": made_schema,
    "$ref": lambda rng, _: rng.choice(_REFERENCES),
    "$defs": lambda rng, depth: {name: made_schema(rng, depth) for name in ("a", "b")},
    "type": lambda rng, _: rng.choice((*_TYPES, rng.sample(_TYPES, 2))),
    "title": lambda rng, _: "a title",
    "default": _value,
    "$anchor": lambda rng, _: "a",
    "$schema": lambda rng, _: rng.choice(
        (
            "https://json-schema.org/draft/2020-12/schema",
            "http://json-schema.org/draft-07/schema#",
            "http://json-schema.org/draft-04/schema#",
        )
    ),
}
_OF_TYPE: Final[dict[str, dict[str, Maker]]] = {
    "string": {
        "minLength": _count,
        "maxLength": _count,
        "pattern": lambda rng, _: rng.choice(PATTERNS),
        "format": lambda rng, _: rng.choice(_FORMATS),
        "contentEncoding": lambda rng, _: "base64",
    },
    "number": {
        "minimum": _number,
        "maximum": _number,
        "exclusiveMinimum": _number,
        "exclusiveMaximum": _number,
        "multipleOf": lambda rng, _: rng.choice((1, 2, 3, 7, 0.5, 0.01, 2.5, 100, 0, 1e-3)),
    },
    "array": {
        "items": lambda rng, depth: rng.choice((made_schema, _schemas))(rng, depth),
        "prefixItems": _schemas,
        "additionalItems": made_schema,
        "minItems": _count,
        "maxItems": _count,
        "uniqueItems": lambda rng, _: rng.random() < 0.8,
        "contains": made_schema,
        "minContains": _count,
        "maxContains": _count,
        "unevaluatedItems": made_schema,
    },
    "object": {
        "properties": made_members,
        "required": _names,
        "additionalProperties": made_schema,
        "patternProperties": _patterned,
        "propertyNames": made_schema,
        "minProperties": _count,
        "maxProperties": _count,
        "dependentRequired": lambda rng, depth: {name: _names(rng, depth) for name in ("a", "b")},
        "dependentSchemas": made_members,
        "dependencies": lambda rng, depth: {"a": rng.choice((_names, made_schema))(rng, depth)},
        "unevaluatedProperties": made_schema,
    },
}
_OF_TYPE["integer"] = _OF_TYPE["number"]
_ALL: Final[dict[str, Maker]] = {**_ANY, **{name: make for each in _OF_TYPE.values() for name, make in each.items()}}


def places_in(value: Json) -> Iterator[Place]:
    stack = [value]
    while stack:
        holder = stack.pop()
        entries = list(holder.items()) if isinstance(holder, dict) else list(enumerate(holder))
        for key, inner in entries:
            yield holder, key
            if isinstance(inner, (dict, list)):
                stack.append(inner)


_HOLDS_MEMBERS: Final = frozenset(
    {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies"}
)
_HOLDS_VALUES: Final = frozenset({"const", "enum", "default", "examples", "required", "dependentRequired"})
_HOLDS_LISTS: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})


def _schema_places(top: list[Json]) -> list[Place]:
    """Where schemas stand, as far as the keywords above them tell; ``top`` has the schema as its only item."""
    found: list[Place] = []
    agenda: list[Place] = [(top, 0)]
    while agenda:
        holder, key = place = agenda.pop()
        found.append(place)
        schema = holder[key]
        if not isinstance(schema, dict):
            continue
        for keyword, below in schema.items():
            if keyword in _HOLDS_VALUES:
                continue
            if (keyword in _HOLDS_MEMBERS or keyword in _HOLDS_LISTS) and isinstance(below, (dict, list)):
                agenda.extend((below, each) for each in (below if isinstance(below, dict) else range(len(below))))
            elif keyword in _ALL and isinstance(below, dict):
                agenda.append((schema, keyword))
    return found


def mutated_schema(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Change a schema, given as JSON text, in a few places; ``others`` are schemas whose parts it may take."""
    schema = parsed(text)
    top = [schema if schema is not None and rng.random() > 0.03 else made_schema(rng, 3)]
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        _edit(top, others, rng)
    return json.dumps(top[0], ensure_ascii=rng.random() < 0.5)


def _edit(top: list[Json], others: Sequence[str], rng: random.Random) -> None:
    places = _schema_places(top)
    holder, key = rng.choice(places)
    schema = holder[key]
    match rng.randrange(9):
        case 0 | 1:
            if not isinstance(schema, dict):
                holder[key] = schema = {}
            suited = _OF_TYPE.get(str(schema.get("type")), _ALL)
            keywords = suited if rng.random() < 0.7 else _ALL
            keyword = rng.choice(sorted(keywords))
            schema[keyword] = keywords[keyword](rng, 2)
        case 2:
            if isinstance(schema, dict) and schema:
                del schema[rng.choice(list(schema))]
        case 3:
            holder[key] = made_schema(rng, 2)
        case 4:
            holder[key] = {rng.choice(("anyOf", "oneOf", "allOf")): [schema, made_schema(rng, 1)]}
        case 5:
            holder[key] = rng.choice(
                ({"not": schema}, {"type": "array", "items": schema}, {"type": "object", "properties": {"a": schema}})
            )
        case 6:
            source = [parsed(rng.choice(others))] if others else top
            from_holder, from_key = rng.choice(_schema_places(source))
            holder[key] = copy.deepcopy(from_holder[from_key])
        case 7:
            from_holder, from_key = rng.choice(places)
            holder[key] = copy.deepcopy(from_holder[from_key])
        case _:
            change_value(top, rng)


def mutated_json(text: str, others: Sequence[str], rng: random.Random) -> str:
    """Change a JSON document in a few places, with no regard to what it means."""
    value = parsed(text)
    top = [value]
    for _ in range(rng.choice((1, 1, 2, 3))):
        if others and rng.random() < 0.3:
            places, more = list(places_in(top)), list(places_in([parsed(rng.choice(others))]))
            (holder, key), (from_holder, from_key) = rng.choice(places), rng.choice(more)
            holder[key] = copy.deepcopy(from_holder[from_key])
        else:
            change_value(top, rng)
    return json.dumps(top[0], ensure_ascii=rng.random() < 0.5)


def change_value(top: list[Json], rng: random.Random) -> None:
    holder, key = rng.choice(list(places_in(top)))
    value = holder[key]
    match rng.randrange(6):
        case 0:
            holder[key] = _value(rng, 1)
        case 1 if isinstance(value, str):
            at = rng.randrange(len(value) + 1)
            holder[key] = (
                value[:at]
                + rng.choice((*_NAMES, "$", "^", "(", "\\", "😀", "\n", "\0"))
                + value[at + rng.randrange(3) :]
            )
        case 1 if isinstance(value, (int, float)):
            holder[key] = rng.choice((value + 1, -value, value * 10, value / 2, value))
        case 2 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(value))
        case 2 if rng.random() < 0.3:
            holder[rng.choice(_NAMES)] = holder.pop(key)
        case 3 if holder is not top:
            del holder[key]
        case 4:
            other, place = rng.choice(list(places_in(top)))
            holder[key] = copy.deepcopy(other[place])
        case _:
            holder[key] = rng.choice(([value], {"a": value}, str(value), None, value))


def parsed(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
