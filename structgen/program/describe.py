"""Types as prompts show them: a sketch of the JSON with the descriptions of its fields."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from structgen.program.answer import Answer

__all__ = ["description_of", "sketch_of"]

_MOST_CHOICES: Final = 50
_DEEPEST: Final = 8
_HASH: Final = re.compile(" [0-9a-f]{12}$")  # at the end of the names of grammars, which tells those of one kind apart
_NAMES: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}


def description_of(answer: Answer) -> str:
    """Say how the answer is to be written; ``""`` where there is nothing to say."""
    if answer.form == "text":
        if not answer.choices or len(answer.choices) > _MOST_CHOICES:
            return ""
        return f"Answer with one of: {', '.join(answer.choices)}."
    if answer.adapter is None:
        return ""
    sketch = sketch_of(answer.adapter)
    return f"Answer with JSON like this:\n{sketch}" if "\n" in sketch else f"Answer with JSON: {sketch}"


def sketch_of(adapter: TypeAdapter[Any]) -> str:
    """The form of the JSON of a type."""
    schema = adapter.json_schema(mode="validation")
    return _sketch(schema, schema.get("$defs", {}), 0, ())


def _sketch(schema: Any, definitions: Any, depth: int, open_names: tuple[str, ...]) -> str:
    """The form of the values of a schema, indented for ``depth``."""
    if schema is True or not isinstance(schema, dict):
        return "any value"
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if name in open_names or depth > _DEEPEST or name not in definitions:
            return f"another {name}"
        return _sketch(definitions[name], definitions, depth, (*open_names, name))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        shown = schema["enum"][:_MOST_CHOICES]
        more = " or ..." if len(schema["enum"]) > _MOST_CHOICES else ""
        return " or ".join(json.dumps(value, ensure_ascii=False) for value in shown) + more
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            parts = [_sketch(part, definitions, depth, open_names) for part in schema[keyword]]
            return " or ".join(dict.fromkeys(parts))
    if len(schema.get("allOf", ())) == 1:
        return _sketch(schema["allOf"][0], definitions, depth, open_names)
    kind = schema.get("type")
    if kind == "array":
        return _array(schema, definitions, depth, open_names)
    if kind == "object":
        return _object(schema, definitions, depth, open_names)
    name = _NAMES.get(kind, "any value") if isinstance(kind, str) else "any value"
    return f"{name} ({_HASH.sub('', schema['format'])})" if "format" in schema else name


def _array(schema: Any, definitions: Any, depth: int, open_names: tuple[str, ...]) -> str:
    if "prefixItems" in schema:
        parts = [_sketch(part, definitions, depth, open_names) for part in schema["prefixItems"]]
        return f"[{', '.join(parts)}]"
    return f"[{_sketch(schema.get('items', True), definitions, depth, open_names)}, ...]"


def _object(schema: Any, definitions: Any, depth: int, open_names: tuple[str, ...]) -> str:
    properties = schema.get("properties", {})
    indent = "  " * (depth + 1)
    lines = []
    for key, part in properties.items():
        note = part.get("description", "") if isinstance(part, dict) else ""
        optional = "" if key in schema.get("required", ()) else " (optional)"
        comment = f"  // {' '.join(note.split())}" if note else ""
        value = _sketch(part, definitions, depth + 1, open_names)
        lines.append(f"{indent}{json.dumps(key, ensure_ascii=False)}: {value}{optional}{comment}")
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        lines.append(f"{indent}any other name: {_sketch(others, definitions, depth + 1, open_names)}")
    if not lines:
        return "{}"
    return "{\n" + "\n".join(lines) + "\n" + "  " * depth + "}"
