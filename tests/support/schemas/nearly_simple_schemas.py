"""Random schemas that the native planner plans, or nearly so."""

from __future__ import annotations

import random
from typing import Any, Final

LEAVES: Final[list[dict[str, Any]]] = [
    {"type": "string"},
    {"type": "string", "maxLength": 3},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^a+$", "title": "t"},
    {"type": "integer", "minimum": -3},
    {"type": ["number", "null"]},
    {"type": "boolean"},
    {"type": "object"},
    {"type": "array"},
    {"type": "string", "nullable": True},
    {"minLength": 2},
    {},
    {"description": "anything"},
    {"enum": ["a", 'b"\\\n\x01', "é", None, True, 3]},
    {"type": ["string", "integer"], "enum": ["a", 1, None, "a"]},
    {"const": -7},
    {"type": "string", "const": "x"},
    {"type": "string", "enum": ["a", "bcd", "é"], "maxLength": 2},
    {"type": ["number", "array"], "enum": [1.5, 2.0, -0, [1, {"a": None}], {}]},
]
PATTERNS: Final = ("^a", "^b", "b$", "^c d$", ".", "^x-", "^(y|z)", "é", "^[a-c]", "")
NAMES: Final = ("a", "b", "c d", 'q"u\\o', "é€😀", "~/%", "")


def schema_of(chance: random.Random, depth: int, definitions: tuple[str, ...]) -> Any:
    """A random schema: simple, or almost."""
    if chance.random() < 0.02:
        return chance.choice((True, False, {"not": {}}, {"allOf": [{}]}, {"type": "strin"}, {"$id": "http://a/b"}))
    if depth == 0 or chance.random() < 0.25:
        return chance.choice(LEAVES)
    kind = chance.random()
    if kind < 0.15 and definitions:
        name = chance.choice(definitions)
        return {"$ref": chance.choice((f"#/definitions/{name}", "#")), **({"title": "x"} if kind < 0.05 else {})}
    if kind < 0.25:
        keyword = chance.choice(("anyOf", "anyOf", "oneOf", "oneOf", "allOf"))
        most = 1 if keyword == "allOf" else 3
        return {keyword: [schema_of(chance, depth - 1, definitions) for _ in range(chance.randint(1, most))]}
    if kind < 0.4:
        return conjunction_of(chance, depth, definitions)
    return container_of(chance, depth, definitions)


def conjunction_of(chance: random.Random, depth: int, definitions: tuple[str, ...]) -> dict[str, Any]:
    """A random schema that constrains a value in more than one way."""
    base = chance.choice(
        (dict(chance.choice(LEAVES)), {}, {"type": "object"}, container_of(chance, depth, definitions))
    )
    parts = {}
    for keyword in chance.sample(("anyOf", "oneOf", "allOf"), chance.choice((1, 1, 1, 2))):
        one = chance.choice((branch_of, labelled_of, lambda chance, _: chance.choice(LEAVES)))
        count = chance.randint(1, 3)
        parts[keyword] = [
            schema_of(chance, depth - 1, definitions) if chance.random() < 0.3 else one(chance, index)
            for index in range(count)
        ]
    if chance.random() < 0.5:
        parts |= condition_of(chance, depth, definitions)
    if definitions and chance.random() < 0.2:
        parts["$ref"] = f"#/definitions/{chance.choice(definitions)}"
    members = [*base.items(), *parts.items()]
    chance.shuffle(members)
    return dict(members)


def condition_of(chance: random.Random, depth: int, definitions: tuple[str, ...]) -> dict[str, Any]:
    """Random schemas that hold, or not, under conditions."""

    def inner() -> Any:
        kind = chance.random()
        if kind < 0.5:
            return branch_of(chance, 0)
        if kind < 0.6:
            return {"type": chance.choice(("string", "integer", "object", ["null", "object"]))}
        return schema_of(chance, min(depth - 1, 1), definitions)

    kind = chance.random()
    if kind < 0.4:
        return {"not": inner()}
    if kind < 0.6:
        return {"if": inner(), **{name: inner() for name in chance.sample(("then", "else"), chance.randint(0, 2))}}
    keyword = chance.choice(("dependencies", "dependentRequired", "dependentSchemas"))
    named: dict[str, Any] = {}
    for name in chance.sample(NAMES, chance.randint(0, 3)):
        lists = keyword == "dependentRequired" or (keyword == "dependencies" and chance.random() < 0.7)
        named[name] = chance.sample(NAMES, chance.randint(0, 2)) if lists else inner()
    return {keyword: named}


def branch_of(chance: random.Random, _: int) -> dict[str, Any]:
    """A random schema of objects without ``type``."""
    schema: dict[str, Any] = {"required": chance.sample(NAMES, chance.randint(0, 2))}
    if chance.random() < 0.7:
        schema["properties"] = {name: dict(chance.choice(LEAVES)) for name in chance.sample(NAMES, 2)}
    if chance.random() < 0.3:
        schema["additionalProperties"] = chance.choice((False, {"type": "string"}))
    if chance.random() < 0.2:
        schema["patternProperties"] = {chance.choice(PATTERNS): chance.choice((False, *LEAVES))}
    if chance.random() < 0.1:
        schema[chance.choice(("minProperties", "maxProperties"))] = chance.randint(1, 3)
    if chance.random() < 0.3:
        schema["type"] = "object"
    return schema


def labelled_of(chance: random.Random, index: int) -> dict[str, Any]:
    """A random schema of objects that mostly a constant distinguishes."""
    label = chance.choice(({"const": index}, {"enum": [f"{index}", f"{index + chance.randint(0, 4)}"]}))
    properties = {"a": label, chance.choice(NAMES[1:]): chance.choice(LEAVES)}
    return {"type": "object", "properties": properties, "required": ["a"], **branch_of(chance, 0)} | {
        "properties": properties,
        "required": ["a", *chance.sample(NAMES, chance.randint(0, 1))],
    }


def container_of(chance: random.Random, depth: int, definitions: tuple[str, ...]) -> dict[str, Any]:
    """A random schema of objects, arrays or both."""
    kind = chance.random()
    schema: dict[str, Any] = {}
    if kind < 0.5:
        schema["items"] = schema_of(chance, depth - 1, definitions)
        if chance.random() < 0.4:
            schema["minItems"] = chance.randint(0, 3)
        if chance.random() < 0.4:
            schema["maxItems"] = chance.randint(0, 4)
        if chance.random() < 0.2:
            schema["uniqueItems"] = chance.random() < 0.6
    if kind >= 0.45:
        names = chance.sample(NAMES, chance.randint(0, 4))
        schema["properties"] = {name: schema_of(chance, depth - 1, definitions) for name in names}
        if chance.random() < 0.6:
            schema["required"] = chance.sample(NAMES, chance.randint(0, 3))
        if chance.random() < 0.6:
            schema["additionalProperties"] = chance.choice((True, False, False, {"type": "string"}, {"items": {}}))
        if chance.random() < 0.2:
            patterns = chance.sample(PATTERNS, chance.choice((0, 1, 1, 1, 2)))
            schema["patternProperties"] = {text: schema_of(chance, depth - 1, definitions) for text in patterns}
        if chance.random() < 0.15:
            schema["minProperties"] = chance.choice((0, 1, 1, 2, 3))
        if chance.random() < 0.1:
            schema["maxProperties"] = chance.randint(0, 4)
    mark(schema, chance)
    return schema


def mark(schema: dict[str, Any], chance: random.Random) -> None:
    """Add types to a schema, and perhaps keywords that have no effect on them."""
    types = ["object", "array", "string", "null", "integer", "number"]
    if chance.random() < 0.8:
        own = [name for name, keyword in (("object", "properties"), ("array", "items")) if keyword in schema]
        schema["type"] = own[0] if len(own) == 1 and chance.random() < 0.7 else [*own, *chance.sample(types, 2)]
    if chance.random() < 0.1:
        schema |= condition_of(chance, 1, ())
    if chance.random() < 0.1:
        schema["nullable"] = True
    if chance.random() < 0.1:
        schema |= chance.choice(({"minLength": 2}, {"minimum": 3, "pattern": "x"}, {"additionalItems": False}))
    if chance.random() < 0.1:
        schema["$id"] = chance.choice(("#here", "/properties/x", 3))
