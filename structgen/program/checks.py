"""Validators of pydantic, run on each field as soon as it is complete.

What a type's own validators refuse no grammar can know.  At the end of the whole answer it would be too late to mend
it; at the end of the field, only the field is drawn again.  A field is validated together with those before it, so
that validators that look at these find them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

    from structgen.program.fields import Path

__all__ = ["FieldChecks", "problem_of"]

_FUNCTIONS: Final = frozenset({"function-before", "function-after", "function-wrap", "function-plain"})
_OPAQUE: Final = frozenset(
    {"function-before", "function-wrap", "function-plain"}
)  # what is inside is not what is written
_FIELD_LISTS: Final = {"model-fields": "fields", "typed-dict": "fields", "dataclass-args": "fields"}


@final
class FieldChecks:
    """The validators of a type, by the paths of its JSON text.

    Where a value may belong to one of several types, it is validated as a whole: what is inside is left to that.

    Args:
        adapter: of the type.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._schema: Any = adapter.core_schema
        self._definitions: dict[str, Any] = {}
        self._collect(self._schema)
        self._validators: dict[tuple[int, frozenset[str]], SchemaValidator | None] = {}
        self._has_functions: dict[int, bool] = {}

    def problem(self, path: Path, siblings: dict[str, Any] | None, value: Any) -> str | None:
        """What the validators of the field at ``path`` say against its value; None where there are none, or they agree.

        Args:
            path: of the field.
            siblings: the fields of the same object that are complete, in order; None where it lies in no object.
            value: of the field, as ``json.loads`` reads it.
        """
        if not path:
            return None  # the whole is validated when it is turned into a value
        parent = self._at(path[:-1])
        if parent is None:
            return None
        if parent["type"] in _FIELD_LISTS and siblings is not None and isinstance(path[-1], str):
            return self._problem_of_field(parent, path[-1], siblings)
        held = self._below(parent, path[-1])
        if held is None or not self._checks(held):
            return None
        return self._run(self._validator(held), value)

    def _problem_of_field(self, parent: Any, key: str, siblings: dict[str, Any]) -> str | None:
        name = _field_of(parent, key)
        if name is None or not self._checks(_fields(parent)[name]):
            return None
        present = frozenset(name for other in siblings if (name := _field_of(parent, other)) is not None)
        mark = id(parent), present
        if mark not in self._validators:
            self._validators[mark] = self._make({**parent, "fields": _kept(parent, present)})
        return self._run(self._validators[mark], siblings)

    def _validator(self, schema: Any) -> SchemaValidator | None:
        mark = id(schema), frozenset[str]()
        if mark not in self._validators:
            self._validators[mark] = self._make(schema)
        return self._validators[mark]

    def _make(self, schema: Any) -> SchemaValidator:
        from pydantic_core import SchemaValidator, core_schema

        if self._definitions:
            schema = core_schema.definitions_schema(schema, list(self._definitions.values()))
        return SchemaValidator(schema)

    @staticmethod
    def _run(validator: SchemaValidator | None, value: Any) -> str | None:
        import json

        from pydantic_core import ValidationError

        if validator is None:
            return None
        try:
            validator.validate_json(json.dumps(value))
        except ValidationError as error:
            return problem_of(error)
        return None

    def _collect(self, schema: Any) -> None:
        if schema.get("type") == "definitions":
            for definition in schema["definitions"]:
                self._definitions[definition["ref"]] = definition

    def _at(self, path: Path) -> Any | None:
        """The schema of the container at ``path``, without what merely wraps it."""
        schema = self._unwrapped(self._schema)
        for part in path:
            if schema is None:
                return None
            schema = self._below(schema, part)
            schema = None if schema is None else self._unwrapped(schema)
        return schema

    def _unwrapped(self, schema: Any) -> Any | None:
        while True:
            kind = schema["type"]
            if kind in _OPAQUE:
                return None
            if kind == "definition-ref":
                schema = self._definitions[schema["schema_ref"]]
            elif kind in (
                "definitions",
                "nullable",
                "default",
                "model",
                "dataclass",
                "function-after",
                "json-or-python",
            ):
                schema = schema["json_schema"] if kind == "json-or-python" else schema["schema"]
            else:
                return schema

    def _below(self, schema: Any, part: str | int) -> Any | None:
        kind = schema["type"]
        if kind in _FIELD_LISTS and isinstance(part, str):
            name = _field_of(schema, part)
            return None if name is None else _fields(schema)[name]["schema"]
        if kind == "dict" and isinstance(part, str):
            return schema.get("values_schema")
        if kind == "tuple" and isinstance(part, int):
            items, rest = schema["items_schema"], schema.get("variadic_item_index")
            if rest is None:
                return items[part] if part < len(items) else None
            return items[rest] if part >= rest and len(items) == rest + 1 else items[part] if part < rest else None
        if kind in ("list", "set", "frozenset") and isinstance(part, int):
            return schema.get("items_schema")
        return None

    def _checks(self, schema: Any) -> bool:
        """Whether some validator is a function: all others the grammar enforces."""
        known = self._has_functions.get(id(schema))
        if known is not None:
            return known
        stack: list[Any] = [schema]
        seen: set[str] = set()
        found = False
        while stack and not found:
            held = stack.pop()
            if isinstance(held, dict):
                found = held.get("type") in _FUNCTIONS
                reference = held.get("schema_ref")
                if isinstance(reference, str) and reference not in seen:
                    seen.add(reference)
                    stack.append(self._definitions.get(reference))
                stack.extend(value for key, value in held.items() if key not in ("metadata", "serialization", "cls"))
            elif isinstance(held, (list, tuple)):
                stack.extend(held)
        self._has_functions[id(schema)] = found
        return found


def problem_of(error: Any) -> str:
    """What a ``ValidationError`` says, in one line."""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    place = ".".join(map(str, first["loc"]))
    text = f"{place}: {first['msg']}" if place else first["msg"]
    return f"{text} (and {len(more)} more)" if more else str(text)


def _fields(schema: Any) -> dict[str, Any]:
    fields = schema["fields"]
    return fields if isinstance(fields, dict) else {field["name"]: field for field in fields}


def _kept(schema: Any, names: frozenset[str]) -> Any:
    fields = schema["fields"]
    if isinstance(fields, dict):
        return {name: held for name, held in fields.items() if name in names}
    return [held for held in fields if held["name"] in names]


def _field_of(schema: Any, key: str) -> str | None:
    """The name of the field that a key of the text stands for."""
    for name, held in _fields(schema).items():
        alias = held.get("validation_alias", name)
        if (
            alias == key
            or (isinstance(alias, list) and [key] in alias)
            or (name == key and schema.get("populate_by_name"))
        ):
            return name
    return None
