"""Other ways to write a schema that keep its meaning and the order of names."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, Final, TypeAlias

__all__ = ["REWRITES", "rewritten"]

Rewrite: TypeAlias = Callable[[dict[str, Any]], Any]
"""Takes a schema object whose own subschemas are rewritten; returns it as it was where there is nothing to do."""

_ONE: Final = (
    *("items", "additionalItems", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_SEVERAL: Final = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_NAMED: Final = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
_ANNOTATIONS: Final = ("title", "description", "default", "examples", "$comment", "readOnly", "writeOnly", "deprecated")
_AT_THE_ROOT: Final = ("$schema", "$id", "id", "$defs", "definitions")
# The meaning of one of these keywords depends on others of its group.
_GROUPS: Final = (
    *(("properties", "patternProperties", "additionalProperties"), ("items", "prefixItems", "additionalItems")),
    *(("contains", "minContains", "maxContains"), ("if", "then", "else"), ("type", "nullable")),
    *(("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")),
)
_DRAFT_4: Final = "draft-04"
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_LONGEST: Final = 60_000


def rewritten(schema: Any, name: str) -> Any:
    """Return ``schema`` with the rewrite of this name applied wherever possible; None if it applies nowhere."""
    if not isinstance(schema, dict) or not _is_movable(schema):
        return None
    made = REWRITES[name](schema)
    return made if made != schema or json.dumps(made) != json.dumps(schema) else None


def _is_movable(schema: Any) -> bool:
    """Whether references point only to definitions of the root or to the root, so that other places may change."""
    text = json.dumps(schema)
    if any(f'"{keyword}"' in text for keyword in ("$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "id")):
        return False
    return all(reference == "#" or _definition(schema, reference) is not None for reference in _references(schema))


def _references(part: Any) -> list[Any]:
    if isinstance(part, list):
        return [found for item in part for found in _references(item)]
    if not isinstance(part, dict):
        return []
    own = [part[keyword] for keyword in _REFERENCES if keyword in part]
    return own + [found for value in part.values() for found in _references(value)]


def _definition(schema: dict[str, Any], reference: Any) -> Any:
    """The schema under ``definitions`` or ``$defs`` that a reference names, if it is one."""
    if not isinstance(reference, str) or set("~%") & set(reference):
        return None
    place = reference.split("/")
    if len(place) != 3 or place[0] != "#" or place[1] not in ("definitions", "$defs"):
        return None
    return schema.get(place[1], {}).get(place[2])


def _everywhere(rewrite: Rewrite) -> Callable[[dict[str, Any]], Any]:
    """Apply a rewrite to all schemas of a document, inner ones first."""

    def applied(schema: Any) -> Any:
        if not isinstance(schema, dict):
            return schema
        found = dict(schema)
        for keyword, value in schema.items():
            if keyword in _ONE and isinstance(value, dict):
                found[keyword] = applied(value)
            elif keyword in _SEVERAL and isinstance(value, list):
                found[keyword] = [applied(inner) for inner in value]
            elif keyword in _NAMED and isinstance(value, dict):
                found[keyword] = {name: applied(inner) for name, inner in value.items()}
        # Up to draft 7 nothing beside a reference counts.
        return found if any(keyword in found for keyword in _REFERENCES) else rewrite(found)

    return applied


def _inline_references(root: dict[str, Any]) -> Any:
    """Replace references that stand alone by their targets, except recursive ones."""

    def inlined(part: Any, open_: tuple[str, ...]) -> Any:
        if isinstance(part, list):
            return [inlined(item, open_) for item in part]
        if not isinstance(part, dict):
            return part
        reference = part.get("$ref")
        if set(part) == {"$ref"} and reference not in open_ and _definition(root, reference) is not None:
            return inlined(_definition(root, reference), (*open_, reference))
        return {name: inlined(value, open_) for name, value in part.items()}

    if len(json.dumps(root)) > _LONGEST // 10 or _expands_too_far(root):
        return root
    return inlined(root, ())


def _expands_too_far(root: dict[str, Any]) -> bool:
    """Whether there are so many references that inlining them in each other would explode."""
    return len(_references(root)) > 12


def _move_definitions(root: dict[str, Any]) -> Any:
    """Exchange ``definitions`` and ``$defs``, and rename and reorder their entries."""
    other = {"definitions": "$defs", "$defs": "definitions"}
    if _DRAFT_4 in str(root.get("$schema", "")):
        other = {"definitions": "definitions", "$defs": "$defs"}

    def moved(part: Any) -> Any:
        if isinstance(part, list):
            return [moved(item) for item in part]
        if not isinstance(part, dict):
            return part
        found = {name: moved(value) for name, value in part.items()}
        for keyword in _REFERENCES:
            if (place := str(found.get(keyword)).split("/")) and len(place) == 3:
                found[keyword] = f"#/{other[place[1]]}/moved {place[2]}".replace(" ", "%20")
        return found

    found = moved(root)
    if any(keyword in root.get("properties", {}) for keyword in other):
        return root
    for keyword in [keyword for keyword in other if keyword in root]:
        held = {f"moved {name}": inner for name, inner in reversed(found.pop(keyword).items())}
        found = {other[keyword]: held, **found}
    return found


def _wrap(schema: dict[str, Any]) -> Any:
    return _kept_at_the_root(schema, lambda rest: {"allOf": [rest]})


def _split(schema: dict[str, Any]) -> Any:
    """One schema of ``allOf`` for each group of keywords."""
    if any(keyword.startswith("unevaluated") for keyword in schema):
        return schema
    parts: dict[Any, dict[str, Any]] = {}
    for keyword, value in schema.items():
        group = next((group for group in _GROUPS if keyword in group), keyword)
        parts.setdefault(group, {})[keyword] = value
    return _kept_at_the_root(
        schema, lambda rest: {"allOf": [part for part in parts.values() if part.keys() <= rest.keys()]}
    )


def _kept_at_the_root(schema: dict[str, Any], make: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    rest = {keyword: value for keyword, value in schema.items() if keyword not in _AT_THE_ROOT}
    kept = {keyword: value for keyword, value in schema.items() if keyword in _AT_THE_ROOT}
    return {**kept, **make(rest)} if rest else schema


def _merge(schema: dict[str, Any]) -> Any:
    """Merge the schemas of ``allOf`` into the one around them, where no keyword occurs twice."""
    parts = schema.get("allOf")
    own = [keyword for keyword in schema if keyword != "allOf"]
    if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts) or own[-1:] != own[:1]:
        return schema
    keywords = [keyword for part in parts for keyword in part] + own
    groups = [next((group for group in _GROUPS if keyword in group), keyword) for keyword in keywords]
    apart = len(set(groups)) == len({id(part) for part in parts} | set(own)) and len(set(keywords)) == len(keywords)
    if not apart or any(keyword in _REFERENCES or keyword.startswith("unevaluated") for keyword in keywords):
        return schema
    return {name: value for part in ({k: schema[k] for k in own}, *parts) for name, value in part.items()}


def _reorder(schema: dict[str, Any]) -> Any:
    lists = ("anyOf", "oneOf", "enum", "type")
    return {name: value[::-1] if name in lists and isinstance(value, list) else value for name, value in schema.items()}


def _nest(schema: dict[str, Any]) -> Any:
    """Put all alternatives but the last in a nested ``anyOf``."""
    alternatives = schema.get("anyOf", [])
    return schema | {"anyOf": [{"anyOf": alternatives[:-1]}, alternatives[-1]]} if len(alternatives) > 1 else schema


def _flatten(schema: dict[str, Any]) -> Any:
    alternatives = schema.get("anyOf", [])
    flat = []
    for one in alternatives:
        flat += one["anyOf"] if isinstance(one, dict) and set(one) == {"anyOf"} else [one]
    return schema | {"anyOf": flat} if alternatives else schema


def _const_as_enum(schema: dict[str, Any]) -> Any:
    if "const" in schema and "enum" not in schema:
        return {
            ("enum" if name == "const" else name): [value] if name == "const" else value
            for name, value in schema.items()
        }
    return schema


def _enum_as_const(schema: dict[str, Any]) -> Any:
    if len(schema.get("enum", [])) == 1 and "const" not in schema:
        return {
            ("const" if name == "enum" else name): value[0] if name == "enum" else value
            for name, value in schema.items()
        }
    return schema


def _types_as_alternatives(schema: dict[str, Any]) -> Any:
    kinds = schema.get("type")
    if not isinstance(kinds, list) or "anyOf" in schema or "nullable" in schema:
        return schema
    rest = {name: value for name, value in schema.items() if name != "type"}
    return {"anyOf": [{"type": kind} for kind in kinds], **rest}


def _alternatives_as_types(schema: dict[str, Any]) -> Any:
    alternatives = schema.get("anyOf", [])
    if (
        "type" in schema
        or not alternatives
        or any(not isinstance(one, dict) or set(one) != {"type"} for one in alternatives)
    ):
        return schema
    kinds = [kind for one in alternatives for kind in (one["type"] if isinstance(one["type"], list) else [one["type"]])]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {"type": list(dict.fromkeys(kinds)), **rest}


def _booleans_as_objects(schema: dict[str, Any]) -> Any:
    def written(inner: Any) -> Any:
        return {True: {}, False: {"not": {}}}[inner] if isinstance(inner, bool) else inner

    found = dict(schema)
    for keyword, value in schema.items():
        if keyword in _NAMED and isinstance(value, dict):
            found[keyword] = {name: written(inner) for name, inner in value.items()}
        elif keyword in _SEVERAL and isinstance(value, list):
            found[keyword] = [written(inner) for inner in value]
        elif keyword in _ONE:
            found[keyword] = written(value)
    return found


def _objects_as_booleans(schema: dict[str, Any]) -> Any:
    found = dict(schema)
    for keyword, value in schema.items():
        if keyword in _ONE and value in ({}, {"not": {}}):
            found[keyword] = value == {}
        elif keyword in ("properties", "patternProperties") and isinstance(value, dict):
            found[keyword] = {name: True if inner == {} else inner for name, inner in value.items()}
    return found


def _drop_annotations(schema: dict[str, Any]) -> Any:
    return {name: value for name, value in schema.items() if name not in _ANNOTATIONS}


def _add_annotations(schema: dict[str, Any]) -> Any:
    return {"title": "t", "$comment": "c", **schema, "description": "d", "default": {"type": 1}, "x-unknown": [{}]}


def _newer_keywords(schema: dict[str, Any]) -> Any:
    """``dependencies`` and arrays under ``items`` as draft 2020-12 writes them."""
    found: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword == "dependencies":
            names = {name: inner for name, inner in value.items() if isinstance(inner, list)}
            schemas = {name: inner for name, inner in value.items() if not isinstance(inner, list)}
            found |= {"dependentRequired": names} if names else {}
            found |= {"dependentSchemas": schemas} if schemas else {}
        elif keyword == "items" and isinstance(value, list):
            found["prefixItems"] = value
            if "additionalItems" in schema:
                found["items"] = schema["additionalItems"]
        elif keyword != "additionalItems":
            found[keyword] = value
    return found


def _for_new_drafts(rewrite: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """Do not apply the rewrite where the declared draft has other keywords."""
    return lambda schema: schema if "draft-0" in str(schema.get("$schema", "")) else rewrite(copy.deepcopy(schema))


def _from_draft_6(rewrite: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda schema: schema if _DRAFT_4 in str(schema.get("$schema", "")) else rewrite(schema)


REWRITES: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    "references inlined": _inline_references,
    "definitions moved": _move_definitions,
    "wrapped in allOf": _everywhere(_wrap),
    "split by allOf": _everywhere(_split),
    "allOf merged": _everywhere(_merge),
    "alternatives reordered": _everywhere(_reorder),
    "anyOf nested": _everywhere(_nest),
    "anyOf flattened": _everywhere(_flatten),
    "const as enum": _from_draft_6(_everywhere(_const_as_enum)),
    "enum as const": _from_draft_6(_everywhere(_enum_as_const)),
    "types as anyOf": _everywhere(_types_as_alternatives),
    "anyOf as types": _everywhere(_alternatives_as_types),
    "booleans as objects": _everywhere(_booleans_as_objects),
    "objects as booleans": _from_draft_6(_everywhere(_objects_as_booleans)),
    "annotations dropped": _everywhere(_drop_annotations),
    "annotations added": _everywhere(_add_annotations),
    "newer keywords": _for_new_drafts(_everywhere(_newer_keywords)),
}
