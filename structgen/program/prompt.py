"""The prompt of a program: its template, its arguments and the description of the answer."""

from __future__ import annotations

import dis
import inspect
import json
import re
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final, get_args

from structgen.errors import ProgramError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from structgen.program.answer import Answer

__all__ = ["DEFAULT_STYLE", "Style", "Template", "description_of", "has_empty_body", "sketch_of"]

Style: TypeAlias = Literal["fields", "sketch", "schema"]
"""How a prompt tells the form of JSON.

``"fields"``: a line for each field, the default; ``"sketch"``: JSON with words for the values; ``"schema"``: the JSON
Schema.
"""

DEFAULT_STYLE: Final[Style] = "fields"
_MAX_CHOICES: Final = 50
_MAX_DEPTH: Final = 8
_HASH: Final = re.compile(" [0-9a-f]{12}$")  # the end of a grammar's name: those of one kind differ in it
# A small model copies the word for a text as if it were the text: see benchmarks/record/extraction.md.
_UNTOLD: Final = {"text": "", "text or null": "", "null or text": "", "list of text": ": list"}
_NAMES: Final = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "null": "null"}


def description_of(answer: Answer, style: Style | bool = True) -> str:  # noqa: FBT001, FBT002 - a setting
    """Say how the answer is to be written; ``""`` where there is nothing to say.

    ``style`` says how the form of JSON is told: True for the default, False for not at all.

    Raises:
        ValueError: there is no such style.
    """
    if style is False:
        return ""
    chosen = DEFAULT_STYLE if style is True else style
    if chosen not in get_args(Style):
        raise ValueError(f"describe is True, False or one of {', '.join(get_args(Style))}; found {style!r:.40}")
    if answer.form == "text":
        if not answer.choices or len(answer.choices) > _MAX_CHOICES:
            return ""
        return f"Answer with one of: {', '.join(answer.choices)}."
    if answer.adapter is None:
        return ""
    if chosen == "schema":
        schema = answer.adapter.json_schema(mode="validation")
        return f"Answer with JSON that fits this JSON Schema:\n{json.dumps(schema, ensure_ascii=False)}"
    if chosen == "fields":
        schema = answer.adapter.json_schema(mode="validation")
        words = _words(schema, schema.get("$defs", {}), "", ())
        return f"Answer with JSON: {words}"
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
        if name in open_names or depth > _MAX_DEPTH or name not in definitions:
            return f"another {name}"
        return _sketch(definitions[name], definitions, depth, (*open_names, name))
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    if "enum" in schema:
        shown = schema["enum"][:_MAX_CHOICES]
        more = " or ..." if len(schema["enum"]) > _MAX_CHOICES else ""
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


def _words(schema: Any, definitions: Any, indent: str, open_names: tuple[str, ...]) -> str:
    """The values of a schema in words; members of objects on lines of their own."""
    if schema is True or not isinstance(schema, dict):
        return "any value"
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        if name in open_names or len(indent) > 2 * _MAX_DEPTH or name not in definitions:
            return f"another {name}"
        return _words(definitions[name], definitions, indent, (*open_names, name))
    if "const" in schema or "enum" in schema:
        return _sketch(schema, definitions, 0, open_names)
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            parts = dict.fromkeys(_words(part, definitions, indent, open_names) for part in schema[keyword])
            return " or ".join(sorted(parts, key=lambda part: "\n" in part))  # those of several lines last
    if len(schema.get("allOf", ())) == 1:
        return _words(schema["allOf"][0], definitions, indent, open_names)
    kind = schema.get("type")
    if kind == "array" and "prefixItems" not in schema:
        return f"list of {_words(schema.get('items', True), definitions, indent, open_names)}"
    if kind != "object":
        return _sketch(schema, definitions, 0, open_names)
    lines = []
    for key, part in schema.get("properties", {}).items():
        note = " ".join(part.get("description", "").split()) if isinstance(part, dict) else ""
        value = _words(part, definitions, indent + "  ", open_names)
        value = _UNTOLD.get(value, f": {value}")
        lines.append(f"{indent}- {key}{f' ({note})' if note else ''}{value}")
    others = schema.get("additionalProperties")
    if isinstance(others, dict):
        lines.append(f"{indent}- any other name: {_words(others, definitions, indent + '  ', open_names)}")
    return "\n".join(["object with the fields", *lines])


@final
@dataclass(frozen=True, slots=True)
class Template:
    """A text with places in braces: ``{name}``, ``{name.part}``, ``{name[0]}``, ``{name:.2f}``, ``{name!r}``.

    Doubled braces are literal braces.

    Attributes:
        text: the source.
        names: the names that it refers to, in the order of their first places.
    """

    text: str
    names: tuple[str, ...]

    @staticmethod
    def parse(docstring: str, known: Mapping[str, object], *, subject: str) -> Template:
        """Read a docstring, without its indentation; the names in its braces must be ``known``.

        Raises:
            ProgramError: braces are unbalanced, or a name is not known.
        """
        text = inspect.cleandoc(docstring)
        try:
            fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
        except ValueError as error:
            raise ProgramError(
                subject,
                "its template cannot be read",
                evidence=str(error),
                remedy="write a brace that stands for itself twice",
            ) from error
        names = list(dict.fromkeys(_head(field) for field in fields))
        unknown = [name for name in names if name not in known]
        if unknown:
            line = next(i for i, line in enumerate(text.split("\n"), 1) if "{" + unknown[0] in line)
            raise ProgramError(
                subject,
                f"its template names {unknown[0]!r}, which is no argument",
                evidence=f"line {line} of the docstring; the arguments are {', '.join(known) or 'none'}",
                remedy="name an argument, or write a brace that stands for itself twice",
            )
        return Template(text, tuple(names))

    def fill(self, arguments: Mapping[str, Any], *, subject: str) -> str:
        """Return the text with the arguments in their places.

        Raises:
            ProgramError: an argument lacks the part that a place asks for, or refuses its format.
        """
        try:
            return _Formatter().vformat(self.text, (), arguments)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise ProgramError(
                subject,
                "an argument does not fit its place in the template",
                evidence=f"{type(error).__name__}: {error}",
                remedy="change the place, or the argument",
            ) from error


def _head(field: str) -> str:
    """The name at the start of ``name.part[0]``."""
    for at, character in enumerate(field):
        if character in ".[":
            return field[:at]
    return field


class _Formatter(string.Formatter):
    """Shows models of pydantic as JSON, all other values as they format themselves."""

    def format_field(self, value: Any, format_spec: str) -> str:
        dump = getattr(type(value), "model_dump_json", None)
        return str(dump(value) if dump is not None and not format_spec else super().format_field(value, format_spec))


_NOTHING: Final = frozenset({"RESUME", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST", "NOP", "POP_TOP"})


def has_empty_body(function: Callable[..., Any]) -> bool:
    """Whether the body does nothing: a docstring, ``...`` or ``pass``."""
    code = getattr(function, "__code__", None)
    return code is not None and all(
        instruction.opname in _NOTHING
        and (not instruction.opname.startswith(("LOAD", "RETURN_CONST")) or instruction.argval is None)
        for instruction in dis.get_instructions(code)
    )
