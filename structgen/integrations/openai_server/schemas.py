"""JSON Schemas translated to the subset that a server enforces, with a report of the losses.

Sources, as of this version:

* OpenAI: https://developers.openai.com/api/docs/guides/structured-outputs#supported-schemas, of October 2026:
  ``pattern`` and nine values of ``format`` for strings, ``multipleOf`` and the bounds for numbers, ``minItems`` and
  ``maxItems``, ``enum``, ``const``, ``anyOf``, ``$defs`` with recursion, an object at the root; neither ``allOf``,
  ``not``, ``dependentRequired``, ``dependentSchemas`` nor ``if``.
* xgrammar, by default in vLLM and SGLang: ``has_xgrammar_unsupported_json_features`` in
  ``vllm/v1/structured_output/backend_xgrammar.py``.  vLLM gives a schema with such features to llguidance, which
  refuses keywords and formats that it does not know: seen at vLLM 0.32 with llguidance 1.7.
* llama.cpp: ``grammars/README.md``, section "JSON Schemas → GBNF".

A keyword in none of the lists is reported as lost, even if the server enforces it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

from structgen.errors import UnsupportedFeature
from structgen.frontends.json_schema.source.location import escaped
from structgen.program import Loss

__all__ = ["LLAMA_SERVER", "OPENAI", "XGRAMMAR", "Subset", "translated", "wrapped"]

WRAPPER: Final = "answer"
"""The only property of the object around an answer that is none: OpenAI's roots must be objects."""

_ANNOTATIONS: Final = frozenset(
    {
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "discriminator"),
    }
)
_MAPS: Final = ("properties", "$defs", "definitions")
_LISTS: Final = ("prefixItems", "anyOf", "oneOf", "allOf")
_SINGLE: Final = ("items", "additionalProperties")
_COMMON: Final = frozenset(
    {
        *("type", "enum", "const", "properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    }
)
_JSON_TYPES: Final = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_ALTERNATIVES: Final = ("enum", "const", "anyOf", "oneOf")
# Servers read these where there is nothing but one type, or a list of types.
_OF_ONE_TYPE: Final = frozenset(
    {
        *("properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
        *("minLength", "maxLength", "pattern", "format"),
    }
)
_BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LENGTHS: Final = ("minLength", "maxLength")
# What types call their dates (``structgen.frontends.python_types.pydantic_schema``): RFC 3339 except for bounds
# and the year 0.
_DATE: Final = re.compile("date [0-9a-f]{12}")


@final
@dataclass(frozen=True, slots=True)
class Subset:
    """The part of JSON Schema that a server enforces.

    Attributes:
        keywords: those that it enforces.
        formats: likewise the values of ``format``.
        is_strict: whether objects must be closed and name all properties as required, and nothing else may be sent.
        exception: says what is wrong with one of ``keywords`` in its schema; None: nothing.
        refused: keywords that would be an error.
    """

    keywords: frozenset[str]
    formats: frozenset[str]
    is_strict: bool
    exception: Callable[[str, dict[str, Any]], str | None]
    refused: frozenset[str] = frozenset()


def _of_xgrammar(keyword: str, schema: dict[str, Any]) -> str | None:
    if keyword in _LENGTHS and ("pattern" in schema or "format" in schema):
        return "is not enforced beside 'pattern' and 'format'"
    if keyword == "pattern" and not _is_anchored(schema["pattern"]):
        return "is read as if it stood between '^' and '$'"
    return None


def _of_llama_server(keyword: str, schema: dict[str, Any]) -> str | None:
    if keyword in _BOUNDS and schema.get("type") != "integer":
        return "is enforced for integers only"
    if keyword == "pattern" and not _is_anchored(schema["pattern"]):
        return "is not sent, for it does not begin with '^' and end with '$'"
    if keyword in _LENGTHS and ("pattern" in schema or "format" in schema):
        return "is not enforced beside 'pattern' and 'format'"
    return None


def _of_openai(keyword: str, schema: dict[str, Any]) -> str | None:
    return None


OPENAI: Final = Subset(
    (_COMMON | {"pattern", "format", "multipleOf"}) - {"allOf"},
    frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
    is_strict=True,
    exception=_of_openai,
)
XGRAMMAR: Final = Subset(
    _COMMON | {"prefixItems", "pattern", "format", *_LENGTHS},
    frozenset(
        {
            *("email", "date", "time", "date-time", "duration", "ipv4", "ipv6", "hostname", "uuid", "uri"),
            *("uri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
        }
    ),
    is_strict=False,
    exception=_of_xgrammar,
    refused=frozenset(
        {
            *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "propertyNames"),
            *("dependencies", "dependentRequired", "dependentSchemas", "unevaluatedItems", "unevaluatedProperties"),
            *("$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor"),
        }
    ),
)
LLAMA_SERVER: Final = Subset(
    _COMMON | {"pattern", "format", *_LENGTHS},
    frozenset({"date", "time", "date-time", "uuid"}),
    is_strict=False,
    exception=_of_llama_server,
)


def translated(schema: Any, subset: Subset, *, closes: bool = True) -> tuple[Any, tuple[Loss, ...]]:
    """A schema as a server takes it, and what it will not enforce.

    Servers that are not strict are sent what they do not enforce as well, unless it would be an error there.  With
    ``closes``, objects have no members but those that they declare, as the default of ``JsonPolicy`` has it.

    Raises:
        UnsupportedFeature: a strict server has no form for it.

    Complexity: linear.
    """
    losses: list[Loss] = []
    made: list[Any] = [None]
    work: list[tuple[Any, Any, Any, str]] = [(made, 0, schema, "#")]
    while work:
        home, key, held, where = work.pop()
        if not isinstance(held, dict):
            if subset.is_strict:
                raise _without_form(where, "a schema of any value" if held else "a schema of no value")
            home[key] = held
            continue
        held = _with_names(_closed(held, where) if closes else held)
        copy = home[key] = _sent_keywords(held, subset, where, losses)
        if subset.is_strict:
            _close(copy, held, where, losses)
        for name in _MAPS:
            if isinstance(copy.get(name), dict):
                copy[name] = dict(copy[name])
                work += [
                    (copy[name], part, value, f"{where}/{name}/{escaped(part)}") for part, value in copy[name].items()
                ]
        for name in _LISTS:
            if isinstance(copy.get(name), list):
                copy[name] = list(copy[name])
                work += [(copy[name], at, value, f"{where}/{name}/{at}") for at, value in enumerate(copy[name])]
        for name in _SINGLE:
            if isinstance(copy.get(name), dict):
                work.append((copy, name, copy[name], f"{where}/{name}"))
    return made[0], tuple(sorted(losses, key=lambda loss: (loss.where, loss.keyword)))


def wrapped(schema: Any) -> dict[str, Any]:
    """An object with ``schema`` as its only property, and the definitions next to it."""
    inner = dict(schema)
    definitions = {name: inner.pop(name) for name in ("$defs", "definitions") if name in inner}
    return {
        "type": "object",
        "properties": {WRAPPER: inner},
        "required": [WRAPPER],
        "additionalProperties": False,
        **definitions,
    }


_OF_OTHERS: Final = (
    *("additionalProperties", "patternProperties", "propertyNames", "unevaluatedProperties", "$ref", "not", "if"),
    *_LISTS,
)


def _closed(schema: dict[str, Any], where: str) -> dict[str, Any]:
    """The schema without undeclared members, as answers are written, where no other schema may name some."""
    if "properties" not in schema or "/allOf/" in where or any(name in schema for name in _OF_OTHERS):
        return schema
    return schema | {"additionalProperties": False}


def _with_names(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with a property for each name that ``propertyNames`` lists.

    Servers read properties but not ``propertyNames``.
    """
    names = schema.get("propertyNames")
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return schema
    if names.keys() - _ANNOTATIONS - {"type"} not in ({"const"}, {"enum"}):
        return schema
    listed = [each for each in names.get("enum", [names.get("const")]) if isinstance(each, str)]
    properties = schema.get("properties", {})
    if "patternProperties" in schema or "unevaluatedProperties" in schema or "$ref" in schema:
        return schema
    if not {*properties, *schema.get("required", ())} <= set(listed):
        return schema
    rest = schema.get("additionalProperties", True)
    others = {name: rest for name in listed if name not in properties}
    kept = {keyword: value for keyword, value in schema.items() if keyword != "propertyNames"}
    return kept | {"properties": properties | (others if rest is not False else {}), "additionalProperties": False}


def _sent_keywords(schema: dict[str, Any], subset: Subset, where: str, losses: list[Loss]) -> dict[str, Any]:
    """The keywords that are sent; what becomes of the others goes to ``losses``."""
    kept: dict[str, Any] = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS:
            if not subset.is_strict or (keyword == "description" and "$ref" not in schema):
                kept[keyword] = value
            continue
        is_date = keyword == "format" and isinstance(value, str) and _DATE.fullmatch(value) is not None
        sent = "date" if is_date else value
        problem = _problem(keyword, sent, schema, subset)
        if problem is not None or is_date:
            losses.append(Loss(where, keyword, problem or f"{value!r} is enforced as 'date'"))
        if keyword == "oneOf" and subset.is_strict:
            kept["anyOf"] = value
        elif problem is None or (not subset.is_strict and "not sent" not in problem):
            kept[keyword] = sent
    return kept


def _problem(keyword: str, value: Any, schema: dict[str, Any], subset: Subset) -> str | None:
    """The loss at a keyword, which the server does not enforce; None if it does."""
    if "$ref" in schema and keyword not in ("$ref", "$defs", "definitions"):
        return "is not enforced beside '$ref'"
    if keyword in subset.refused:
        return "is not sent, for it would be an error"
    if keyword not in subset.keywords:
        return "is not enforced"
    if keyword == "format" and value not in subset.formats:
        return f"{value!r} is not sent, for the server does not know it"
    if keyword == "oneOf" and "discriminator" not in schema:
        return "is read as 'anyOf'"
    if keyword == "allOf" and (len(value) > 1 or _beside_all_of(schema)):
        return "is enforced only where it is one schema with nothing beside it"
    if keyword == "type" and not _fits(value, schema):
        return "is not enforced beside alternatives of other types"
    if keyword in _OF_ONE_TYPE:
        beside = [name for name in _ALTERNATIVES if name in schema]
        if beside:
            return f"is not enforced beside {beside[0]!r}"
        if "type" not in schema:
            return "is not enforced without 'type'"
    return subset.exception(keyword, schema)


def _beside_all_of(schema: dict[str, Any]) -> bool:
    return any(name not in _ANNOTATIONS and name not in ("allOf", "$defs", "definitions") for name in schema)


def _close(copy: dict[str, Any], schema: dict[str, Any], where: str, losses: list[Loss]) -> None:
    """Bring a schema into the form of a strict server."""
    if not any(name in copy for name in ("type", "enum", "const", "anyOf", "$ref")):
        raise _without_form(where, "a schema without a type")
    if "array" in _types(copy) and "items" not in copy:
        raise _without_form(where, "a tuple" if "prefixItems" in schema else "an array of anything")
    if "object" not in _types(copy):
        return
    if schema.get("additionalProperties", True) is not False or "patternProperties" in schema:
        raise _without_form(where, "an object with undeclared members")
    properties = copy.setdefault("properties", {})
    optional = [name for name in properties if name not in schema.get("required", ())]
    if optional:
        names = ", ".join(map(repr, optional))
        losses.append(Loss(where, "required", f"names all properties, so {names} can't be left out"))
    copy["required"] = list(properties)
    copy["additionalProperties"] = False


def _fits(held: Any, schema: dict[str, Any]) -> bool:
    """Whether the alternatives beside a type are all plainly of it."""
    if "anyOf" in schema or "oneOf" in schema:
        return False
    values = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    types = (held,) if isinstance(held, str) else tuple(held)
    return all(_JSON_TYPES.get(type(value)) in types or (type(value) is int and "number" in types) for value in values)


def _types(schema: dict[str, Any]) -> tuple[str, ...]:
    held = schema.get("type", ())
    return (held,) if isinstance(held, str) else tuple(held)


def _is_anchored(pattern: str) -> bool:
    return pattern.startswith("^") and pattern.endswith("$") and not pattern.endswith("\\$")


def _without_form(where: str, what: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"json schema {where}",
        what,
        where=where,
        problem=f"OpenAI's strict mode has no form for {what}",
        remedy="name all members and give each a type, or use a server that takes any schema (vLLM, SGLang, "
        "llama-server)",
    )
