"""Validation of each part of an answer by pydantic, as soon as the part is complete.

No grammar can know what a type's own validators refuse. If validation waited for the end of the answer, the whole
answer would have to be sampled again; after a field, only the field is. So each value is validated once, where it ends.
A container is made by the type's own schema from its validated parts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import SchemaValidator

__all__ = ["SchemaNode", "problem_of", "schema_root"]

Parts: TypeAlias = "Mapping[str | int, Any]"
"""Values by the keys or indices that they have in the text, in its order."""

_FIELDS: Final = frozenset({"model-fields", "typed-dict", "dataclass-args"})
_ARRAYS: Final = frozenset({"list", "set", "frozenset", "tuple"})
_LAYERS: Final = frozenset({"definitions", "nullable", "default", "model", "dataclass", "function-after"})
_NO_SCHEMAS: Final = frozenset({"metadata", "serialization", "cls", "config"})


class _Given(threading.local):
    """The parts of the values that are being made in this thread, by their places."""

    def __init__(self) -> None:
        self.parts: dict[int, Any] = {}
        self.requested: dict[int, str] = {}  # the field of an object that alone is to be validated


_given: Final = _Given()


class _FieldValidated(Exception):
    """Stops the validation of an object at the field that is requested."""

    def __init__(self, value: Any, error: Exception | None) -> None:
        self.value = value
        self.error = error


@final
class SchemaNode:
    """A position in a type, with its parts.

    Four kinds of values are validated as a whole: values that are not containers; unions whose tag is not known (see
    ``chosen``); values that a validator rewrites before they are read; and containers whose items' validators look at
    the fields around them. All other containers are made of their parts.

    Args:
        schema: pydantic's schema of this position.
        config: of the model around it.
        definitions: the schemas that others refer to, by their names.

    Attributes:
        form: what its parts are: fields, the values of a mapping, or items; None where it is validated as a whole.
        container: the schema of the container without what is around it.
        layers: the schemas that are around the container, outermost first.
        names: the names of fields by the keys of the text.
        looks_around: whether its validators may look at sibling fields.
        tag: of a union, the key whose value tells which of its objects it is.
    """

    def __init__(self, schema: Any, config: Any, definitions: Mapping[str, Any]) -> None:
        self._schema = schema
        self._config = config
        self._definitions = definitions
        self.layers, self.container, self._inner_config = self._unwrapped()
        self.form: Literal["fields", "mapping", "items"] | None = self._form()
        self.names: dict[str, str] = {}
        if self.form == "fields":
            for name, field in _fields(self.container).items():
                self.names.update(dict.fromkeys(self._keys(name, field), name))
        self.looks_around = self._has_function_with_info(schema)
        self.tag: str | None = None
        if self.container["type"] == "tagged-union" and not self.looks_around:
            key = self.container["discriminator"]
            self.tag = key if isinstance(key, str) else None
        self._parts: dict[str | int, SchemaNode | None] = {}
        self._chosen: dict[Any, SchemaNode | None] = {}
        self._validators: dict[str, SchemaValidator] = {}

    def part(self, key: str | int) -> SchemaNode | None:
        """The place of the part at a key or index; None where it belongs to what is validated as a whole."""
        mark = key if self.form == "fields" or self.container["type"] == "tuple" else ""
        if mark not in self._parts:
            schema = self._part_schema(key)
            self._parts[mark] = None if schema is None else SchemaNode(schema, self._inner_config, self._definitions)
        return self._parts[mark]

    def chosen(self, tag: Any) -> SchemaNode | None:
        """The place as it is once the tag is known; None where it is still validated as a whole."""
        if tag not in self._chosen:
            schema = self.container["choices"].get(tag)
            made = (
                None
                if not isinstance(schema, dict)
                else SchemaNode(self._around(schema), self._config, self._definitions)
            )
            self._chosen[tag] = made if made is not None and made.form == "fields" else None
        return self._chosen[tag]

    def value(self, data: bytes, parts: Parts | None) -> Any:
        """Validate JSON at this position; ``parts`` are the values of all parts with places, or None.

        Raises:
            pydantic.ValidationError: a validator refuses it.
        """
        if self.form is None or parts is None:
            return self._validator("whole", lambda: self._schema).validate_json(data)
        with self._giving(parts):
            return self._validator("made", self._made).validate_json(data)

    def field_value(self, key: str, data: bytes, parts: Parts | None, siblings: Parts) -> Any:
        """Validate a field of the object at this position, as ``value`` does.

        ``siblings`` are the values of the fields before it, which its validators may look at.

        Raises:
            KeyError: it has no place.
            pydantic.ValidationError: a validator refuses it.

        Complexity: linear in the number of siblings.
        """
        part = self.part(key)
        if part is None:
            raise KeyError(key)
        before = {other: value for other, value in siblings.items() if other != key}
        given = [b"%s: 0" % json.dumps(other).encode() for other in before]
        text = b"{%s}" % b", ".join([*given, b"%s: %s" % (json.dumps(key).encode(), data)])
        mark = "fields" if parts is not None else "fields of wholes"
        requested = _given.requested.pop(id(self), None)
        with part._giving(parts), self._giving(before):
            _given.requested[id(self)] = self.names[key]
            try:
                validator = self._validator(
                    mark, lambda: self._fields_alone(made=parts is not None), self._inner_config
                )
                validator.validate_json(text)
            except _FieldValidated as found:
                if found.error is not None:
                    raise found.error from None
                return found.value
            finally:
                del _given.requested[id(self)]
                if requested is not None:
                    _given.requested[id(self)] = requested
        raise RuntimeError(f"the validator of an object did not come to its field {key!r}")

    @contextmanager
    def _giving(self, parts: Parts | None) -> Iterator[None]:
        """Let the schemas of this place find the values of its parts."""
        held, mark = _given.parts, id(self)
        before = held.pop(mark, None)
        if self.form == "fields":
            held[mark] = {self.names[str(key)]: value for key, value in (parts or {}).items()}
        else:
            held[mark] = iter((parts or {}).values())
        try:
            yield
        finally:
            del held[mark]
            if before is not None:
                held[mark] = before

    def _validator(self, mark: str, schema: Callable[[], Any], config: Any = None) -> SchemaValidator:
        if mark not in self._validators:
            self._validators[mark] = _validator(schema(), config or self._config, self._definitions)
        return self._validators[mark]

    def _made(self) -> Any:
        """The schema, with what finds its parts instead of their schemas."""
        container, mark = dict(self.container), id(self)
        if self.form == "fields":
            container["fields"] = _with_fields(container, self._given_field)
        elif self.form == "mapping":
            container["values_schema"] = _plain(lambda _: next(_given.parts[mark]))
        elif container["type"] == "tuple":
            container["items_schema"] = [_plain(lambda _: next(_given.parts[mark]))] * len(container["items_schema"])
        else:
            container["items_schema"] = _plain(lambda _: next(_given.parts[mark]))
        return self._around(container)

    def _around(self, schema: Any) -> Any:
        """What is around the container, with another schema in it."""
        for layer in reversed(self.layers):
            schema = {**layer, "schema": schema}
        return schema

    def _fields_alone(self, *, made: bool) -> Any:
        """The schema of the fields, which stops at the one that is requested; whether that is made of its parts."""

        def field(name: str, schema: Any) -> Any:
            return self._wanted_field(name, schema, made=made)

        return {**self.container, "fields": _with_fields(self.container, field)}

    def _given_field(self, name: str, schema: Any) -> Any:
        """What finds a field's value; a default that is to be validated goes to the field's own schema."""
        mark = id(self)
        if name not in self.names.values():
            return schema
        if not (schema.get("validate_default") or (self._inner_config or {}).get("validate_default")):
            return _inside_default(schema, lambda _: _plain(lambda _: _given.parts[mark][name]))

        def find(value: Any, handler: Any) -> Any:
            parts = _given.parts[mark]
            return parts[name] if name in parts else handler(value)

        return _inside_default(schema, lambda inner: _wrap(find, inner))

    def _wanted_field(self, name: str, schema: Any, *, made: bool) -> Any:
        from pydantic_core import ValidationError

        mark, place = id(self), next((self.part(key) for key, held in self.names.items() if held == name), None)
        if place is None or not place.looks_around:
            return self._given_field(name, schema)

        def find(value: Any, handler: Any) -> Any:
            parts = _given.parts[mark]
            if name in parts:
                return parts[name]
            if name != _given.requested[mark]:
                return handler(value)  # a default
            try:
                found = handler(value)
            except ValidationError as error:
                raise _FieldValidated(None, error) from None
            raise _FieldValidated(found, None)

        inside = place._made() if made and place.form is not None else schema
        return _inside_default(inside, lambda inner: _wrap(find, inner))

    def _part_schema(self, key: str | int) -> Any | None:
        container = self.container
        if self.form == "fields":
            return _fields(container)[self.names[key]]["schema"] if key in self.names else None
        if self.form == "mapping":
            return container.get("values_schema")
        if self.form == "items" and container["type"] == "tuple" and isinstance(key, int):
            items, rest = container["items_schema"], container.get("variadic_item_index")
            return items[key if rest is None else min(key, rest)]
        return container.get("items_schema") if self.form == "items" else None

    def _form(self) -> Literal["fields", "mapping", "items"] | None:
        kind = self.container["type"]
        if any(layer.get("custom_init") for layer in self.layers):
            return None
        if kind in _FIELDS:
            return "fields"
        if kind == "dict":
            held: Any = self.container.get("values_schema")
        elif kind in _ARRAYS:
            held = self.container.get("items_schema")
            rest = self.container.get("variadic_item_index")
            if rest is not None and rest < len(held) - 1:  # the order of items is known at the end
                return None
        else:
            return None
        if held is None or self._has_function_with_info(held):
            return None
        return "mapping" if kind == "dict" else "items"

    def _unwrapped(self) -> tuple[list[Any], Any, Any]:
        """What is around the container, the container, and the config that holds in it."""
        layers: list[Any] = []
        schema, config = self._schema, self._config
        while True:
            kind = schema["type"]
            config = schema.get("config", config)
            if kind == "definition-ref":
                schema = self._definitions[schema["schema_ref"]]
            elif kind == "json-or-python":
                schema = schema["json_schema"]
            elif kind == "definitions":
                schema = schema["schema"]
            elif kind in _LAYERS:
                layers.append(_without_name(schema))
                schema = schema["schema"]
            else:
                return layers, _without_name(schema), config

    def _keys(self, name: str, field: Any) -> list[str]:
        """The keys that a field may have in the text; none where it is found in another way."""
        alias, config = field.get("validation_alias", name), self._inner_config or {}
        paths = alias if isinstance(alias, list) else [[alias]]
        if not all(isinstance(path, list) and len(path) == 1 for path in paths):
            return []
        keys = [path[0] for path in paths]
        by_name = self.container.get("populate_by_name") or any(
            config.get(each) for each in ("populate_by_name", "validate_by_name")
        )
        return [*keys, name] if by_name else keys

    def _has_function_with_info(self, schema: Any) -> bool:
        """Whether a validator may look at the fields around what it validates."""
        return any(held.get("type") == "with-info" for held in _within(schema, self._definitions, but_for=_FIELDS))


_roots: Final[WeakKeyDictionary[TypeAdapter[Any], SchemaNode]] = WeakKeyDictionary()


def schema_root(adapter: TypeAdapter[Any]) -> SchemaNode:
    """The place of a whole type; kept for as long as the adapter is."""
    found = _roots.get(adapter)
    if found is None:
        schema: Any = adapter.core_schema
        named = schema["definitions"] if schema["type"] == "definitions" else []
        found = _roots[adapter] = SchemaNode(schema, None, {each["ref"]: each for each in named})
    return found


def problem_of(error: Any) -> str:
    """The message of a ``ValidationError``, in one line."""
    first, *more = error.errors(include_url=False, include_context=False, include_input=False)
    place = ".".join(map(str, first["loc"]))
    text = f"{place}: {first['msg']}" if place else first["msg"]
    return f"{text} (and {len(more)} more)" if more else str(text)


def _validator(schema: Any, config: Any, definitions: Mapping[str, Any]) -> SchemaValidator:
    from pydantic_core import SchemaValidator, core_schema

    if schema["type"] != "definitions":
        needed = {
            held["schema_ref"]: definitions[held["schema_ref"]]
            for held in _within(schema, definitions)
            if held.get("type") == "definition-ref"
        }
        if needed:
            schema = core_schema.definitions_schema(schema, list(needed.values()))
    try:
        # Models have validators of their own, which know nothing of parts that are given.
        return SchemaValidator(schema, config, _use_prebuilt=False)
    except TypeError:  # before pydantic 2.12
        return SchemaValidator(schema, config)


def _within(schema: Any, definitions: Mapping[str, Any], but_for: Collection[str] = ()) -> Iterator[Mapping[str, Any]]:
    """All schemas that a schema is made of, with those that it refers to, except those within some kinds."""
    stack: list[Any] = [schema]
    seen: set[str] = set()
    while stack:
        held = stack.pop()
        if isinstance(held, dict):
            yield held
            reference = held.get("schema_ref")
            if isinstance(reference, str) and reference not in seen:
                seen.add(reference)
                stack.append(definitions[reference])
            if str(held.get("type")) not in but_for:
                stack.extend(value for key, value in held.items() if key not in _NO_SCHEMAS)
        elif isinstance(held, (list, tuple)):
            stack.extend(held)


def _fields(schema: Any) -> dict[str, Any]:
    fields = schema["fields"]
    return fields if isinstance(fields, dict) else {field["name"]: field for field in fields}


def _with_fields(schema: Any, change: Callable[[str, Any], Any]) -> Any:
    """The fields of a schema, with other schemas for their values."""
    made = {name: {**field, "schema": change(name, field["schema"])} for name, field in _fields(schema).items()}
    return made if isinstance(schema["fields"], dict) else list(made.values())


def _inside_default(schema: Any, change: Callable[[Any], Any]) -> Any:
    """A schema for a field; its default stays, for an absent field."""
    return {**schema, "schema": change(schema["schema"])} if schema["type"] == "default" else change(schema)


def _without_name(schema: Any) -> Any:
    """A schema that is changed is no longer what others refer to."""
    return {key: value for key, value in schema.items() if key != "ref"}


def _plain(function: Callable[[Any], Any]) -> Any:
    return {"type": "function-plain", "function": {"type": "no-info", "function": function}}


def _wrap(function: Callable[[Any, Any], Any], schema: Any) -> Any:
    return {"type": "function-wrap", "function": {"type": "no-info", "function": function}, "schema": schema}
