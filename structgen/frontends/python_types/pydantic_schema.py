"""pydantic's JSON Schemas, made as narrow as its validation.

pydantic describes a type for readers; here the schema is enforced. So patterns are read in the dialect of its engine,
strings that are not JSON values get a grammar of their own (``pydantic_format``), dictionary keys are described
whatever their type, and the names that a model reads beside its aliases are forbidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from structgen.frontends.json_schema import json_schema
from structgen.frontends.json_schema.source.document import inner_schemas
from structgen.frontends.python_types import pydantic_format as type_formats
from structgen.frontends.regex import DialectName, search_language
from structgen.grammar.nodes import CharClass, Grammar, Intersection, Repeat
from structgen.grammar.pydantic_string import TextCheck

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue

__all__ = ["Generator"]

_DAY: Final = timedelta(days=1)
_BOUNDS: Final = {
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "multiple_of": "multipleOf",
}
_FLAGS: Final = {re.IGNORECASE: "i", re.MULTILINE: "m", re.DOTALL: "s", re.VERBOSE: "x", re.ASCII: "a"}
_WRAPPERS: Final = frozenset({"function-before", "function-after", "function-wrap", "default", "nullable"})


class Generator(GenerateJsonSchema):
    """Generates schemas with formats of its own.

    Attributes:
        formats: the grammars of these formats, by name.
        has_any: whether some part allows any value.
    """

    ignored_warning_kinds = frozenset({"skipped-choice", "non-serializable-default"})  # type: ignore[assignment]

    def __init__(self, formats: dict[str, Grammar]) -> None:
        super().__init__()
        self.formats = formats
        self.has_any = False
        self._definitions: dict[str, Any] = {}

    def generate(self, schema: Any, mode: Any = "validation") -> JsonSchemaValue:
        """The schema of a whole type, with the grammars of its formats in ``formats``."""
        made = super().generate(schema, mode)
        self._finish(made)
        return made

    def _finish(self, root: JsonSchemaValue) -> None:
        """Add grammars for pydantic's formats, and for JSON within strings."""
        stack, order = [root], []
        while stack:
            schema = stack.pop()
            order.append(schema)
            name = schema.get("format")
            if name in type_formats.FORMATS and name not in self.formats:
                self.formats[name] = type_formats.FORMATS[name]()
            stack += [
                inner
                for keyword, value in schema.items()
                for inner, _ in inner_schemas(keyword, value)
                if isinstance(inner, dict)
            ]
        for schema in reversed(order):  # inner schemas first
            if "contentSchema" in schema and schema.get("contentMediaType") == "application/json":
                content = schema["contentSchema"]
                if "format" in schema:  # about the inner type: Json[UUID4] is Annotated[UUID, UuidVersion(4), Json]
                    content = {"allOf": [content, {"format": schema["format"]}]}
                document = {**content, "$defs": root.get("$defs", {})}
                grammar = json_schema(document, formats=self.formats, whitespace="flexible")
                schema["format"] = self._named(f"JSON of {_shown(content)}", grammar)

    def _setting(self, name: str) -> Any:
        """A setting of the enclosing model, or None; versions of pydantic have different names."""
        return self._config.config_dict.get(name)

    def _named(self, name: str, grammar: Grammar) -> str:
        """The name of a format for a grammar."""
        unique = f"{name} {grammar.digest.hex()[:12]}"
        self.formats[unique] = grammar
        return unique

    def _text(self, name: str, grammar: Grammar) -> JsonSchemaValue:
        return {"type": "string", "format": self._named(name, grammar)}

    # Strings

    def str_schema(self, schema: Any) -> JsonSchemaValue:
        """A string; its pattern in the dialect of pydantic's engine, and what is stripped."""
        made = super().str_schema(schema)
        parts: list[Grammar] = []
        pattern = schema.get("pattern")
        if pattern is not None:
            found = self._pattern(pattern, schema.get("regex_engine") or self._setting("regex_engine"))
            if found is not None:
                parts.append(found)
                del made["pattern"]
        is_stripped = schema.get("strip_whitespace", self._setting("str_strip_whitespace"))
        if is_stripped and (pattern is not None or made.get("minLength")):
            parts.append(type_formats.stripped_text())
        if schema.get("ascii_only"):
            parts.append(Repeat(CharClass([(0, 0x7F)])))
        if parts:
            shown = "text" if pattern is None else f"text with {_shown(made.get('pattern', pattern))}"
            made["format"] = self._named(shown, parts[0] if len(parts) == 1 else Intersection(parts))
        return made

    @staticmethod
    def _pattern(pattern: Any, engine: str | None) -> Grammar | None:
        """The strings in which a pattern matches; ``None`` if ECMA-262, the dialect of JSON Schema, agrees."""
        text, flags, dialect = pattern, "", "rust"
        if isinstance(pattern, re.Pattern):
            text = pattern.pattern
            flags = "".join(letter for flag, letter in _FLAGS.items() if pattern.flags & flag)
            dialect = "python"
        elif engine == "python-re":
            dialect = "python"
        name: DialectName = "python" if dialect == "python" else "rust"
        found = search_language(text, dialect=name, flags=flags)
        try:
            return None if found == search_language(text, dialect="ecma") else found
        except ValueError:
            return found

    def chain_schema(self, schema: Any) -> JsonSchemaValue:
        """All steps at once where the first keeps the text; else as pydantic describes them."""
        steps = schema["steps"]
        if not _keeps_text(steps[0]):
            return super().chain_schema(schema)
        return {"allOf": [self.generate_inner(step) for step in steps]}

    def bytes_schema(self, schema: Any) -> JsonSchemaValue:
        """Bytes as the text that the setting ``val_json_bytes`` names."""
        minimum, maximum = schema.get("min_length") or 0, schema.get("max_length")
        encoding = self._setting("val_json_bytes")
        if encoding == "base64":
            return self._text("bytes in Base 64", type_formats.base64_text(minimum, maximum, is_url=True))
        if encoding == "hex":
            return self._text("bytes in hexadecimal", type_formats.hex_text(minimum, maximum))
        if not minimum and maximum is None:
            return {"type": "string"}
        return self._text("bytes in UTF-8", type_formats.encoded_length(minimum, maximum))

    def date_schema(self, schema: Any) -> JsonSchemaValue:
        """A date as pydantic reads it, within its bounds."""
        minimum = [schema["ge"]] if schema.get("ge") else []
        maximum = [schema["le"]] if schema.get("le") else []
        try:
            minimum += [schema["gt"] + _DAY] if schema.get("gt") else []
            maximum += [schema["lt"] - _DAY] if schema.get("lt") else []
        except OverflowError:
            return {"type": "string", "enum": []}
        return self._text("date", type_formats.date_text(max(minimum, default=None), min(maximum, default=None)))

    def time_schema(self, schema: Any) -> JsonSchemaValue:
        """A time, with an offset as ``tz_constraint`` says."""
        return self._text("time", type_formats.time_text(schema.get("tz_constraint", "any")))

    def datetime_schema(self, schema: Any) -> JsonSchemaValue:
        """A date and time, with an offset as ``tz_constraint`` says."""
        return self._text("date and time", type_formats.datetime_text(schema.get("tz_constraint", "any")))

    def timedelta_schema(self, schema: Any) -> JsonSchemaValue:
        """A duration of ISO 8601, as pydantic reads it."""
        return self._text("duration", type_formats.duration_text())

    def complex_schema(self, schema: Any) -> JsonSchemaValue:
        """A complex number as the text that ``complex()`` reads."""
        return self._text("complex number", type_formats.complex_text())

    def url_schema(self, schema: Any) -> JsonSchemaValue:
        """A URL with one host and an allowed scheme."""
        return self._url(super().url_schema(schema), schema, is_multiple=False)

    def multi_host_url_schema(self, schema: Any) -> JsonSchemaValue:
        """A URL with one or more hosts and an allowed scheme."""
        return self._url(super().multi_host_url_schema(schema), schema, is_multiple=True)

    def _url(self, made: JsonSchemaValue, schema: Any, *, is_multiple: bool) -> JsonSchemaValue:
        schemes = tuple(schema.get("allowed_schemes") or ())
        made["format"] = self._named("URL", type_formats.url_text(schemes, is_multiple=is_multiple))
        return made

    # Constants

    def literal_schema(self, schema: Any) -> JsonSchemaValue:
        """The constants that equal a JSON value."""
        retained: Any = {**schema, "expected": _written(schema["expected"], lambda value: value)}
        return super().literal_schema(retained)

    def enum_schema(self, schema: Any) -> JsonSchemaValue:
        """The members whose values equal a JSON value."""
        retained: Any = {**schema, "members": _written(schema["members"], lambda member: member.value)}
        return super().enum_schema(retained)

    # Numbers

    def decimal_schema(self, schema: Any) -> JsonSchemaValue:
        """A decimal as text, or as a number if its digits are bounded."""
        maximum, places = schema.get("max_digits"), schema.get("decimal_places")
        bounds: dict[str, Any] = {
            _BOUNDS[name]: _exact(schema[name]) for name in _BOUNDS if schema.get(name) is not None
        }
        text = type_formats.decimal_text(maximum, places)
        if bounds:
            text = Intersection([text, json_schema({"type": "number", **bounds})])
        forms = [self._text("decimal", text)]
        if maximum is None or places is not None:  # else the digits of a number are unbounded
            forms.insert(0, {"type": "number", **bounds, "allOf": _of_digits(maximum, places)})
        return {"anyOf": forms}

    # Containers

    def set_schema(self, schema: Any) -> JsonSchemaValue:
        """An array; items may repeat unless their number matters."""
        return _with_repeats(super().set_schema(schema))

    def frozenset_schema(self, schema: Any) -> JsonSchemaValue:
        """As ``set_schema``."""
        return _with_repeats(super().frozenset_schema(schema))

    def generator_schema(self, schema: Any) -> JsonSchemaValue:
        """Refuse an iterator, whose items are validated too late."""
        raise PydanticInvalidForJsonSchema("an iterator is validated lazily, which is too late; use list[...]")

    def definitions_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema, with its definitions noted for the names of dictionaries."""
        self._definitions.update((one["ref"], one) for one in schema["definitions"])
        return super().definitions_schema(schema)

    def dict_schema(self, schema: Any) -> JsonSchemaValue:
        """An object whose names are the keys that validation accepts."""
        made: JsonSchemaValue = {"type": "object"}
        if "values_schema" in schema:
            made["additionalProperties"] = self.generate_inner(schema["values_schema"])
        if "keys_schema" in schema:
            names = self._names(schema["keys_schema"])
            if names not in ({}, {"type": "string"}):
                made["propertyNames"] = names
        self.update_with_validations(made, schema, self.ValidationsMapping.object)
        return made

    frozendict_schema = ordered_dict_schema = counter_schema = dict_schema

    def _names(self, schema: Any) -> JsonSchemaValue:
        """The member names that validation accepts as keys."""
        inner = self._unwrapped(schema)
        match inner["type"]:
            case "union":
                choices = [one[0] if isinstance(one, tuple) else one for one in inner["choices"]]
                return {"anyOf": [self._names(one) for one in choices]}
            case "literal":
                return _listed(value for value in inner["expected"] if isinstance(value, str))
            case "enum":
                values = [member.value for member in inner["members"]]
                if inner.get("sub_type") == "int":
                    return _listed(str(int(value)) for value in values)
                return _listed(value for value in values if isinstance(value, str))
            case "decimal":
                described = self.generate_inner(schema)
                return next(one for one in described["anyOf"] if one["type"] == "string")
            case "int" | "float" | "bool":
                made = self.generate_inner(inner if schema["type"] in {"nullable", "default"} else schema)
                return self._text(
                    f"text of {_shown(made)}", json_schema(made, formats=self.formats, whitespace="compact")
                )
        made = self.generate_inner(inner if schema["type"] in {"nullable", "default"} else schema)
        if made and made.get("type") != "string" and "$ref" not in made and "allOf" not in made:
            raise PydanticInvalidForJsonSchema("names in JSON objects are strings, but these keys are not")
        return made

    def _unwrapped(self, schema: Any) -> Any:
        """The schema inside functions, references and the like."""
        while True:
            if schema["type"] in _WRAPPERS:
                schema = schema["schema"]
            elif schema["type"] == "definition-ref" and schema["schema_ref"] in self._definitions:
                schema = self._definitions[schema["schema_ref"]]
            elif schema["type"] == "chain":
                schema = schema["steps"][0]
            else:
                return schema

    def tagged_union_schema(self, schema: Any) -> JsonSchemaValue:
        """The alternatives, with the tag required: it is read before any of them, without its default."""
        made = super().tagged_union_schema(schema)
        if "discriminator" in made:
            made["required"] = [made["discriminator"]["propertyName"]]
        return made

    # Names of fields

    def model_fields_schema(self, schema: Any) -> JsonSchemaValue:
        """The fields of a model, without other names that validation reads as one of them."""
        return self._closed(super().model_fields_schema(schema), schema["fields"].items())

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        """The items of a ``TypedDict``, likewise."""
        return self._closed(super().typed_dict_schema(schema), schema["fields"].items())

    def dataclass_args_schema(self, schema: Any) -> JsonSchemaValue:
        """The fields of a dataclass, likewise."""
        fields = ((field["name"], field) for field in schema["fields"])
        return self._closed(super().dataclass_args_schema(schema), fields)

    def _closed(self, made: JsonSchemaValue, fields: Iterable[tuple[str, Any]]) -> JsonSchemaValue:
        """Forbid the other names that validation reads as a field."""
        by_name = bool(self._setting("validate_by_name") or self._setting("populate_by_name"))
        for name, field in fields:
            alias = field.get("validation_alias")
            if alias is None or self._setting("validate_by_alias") is False:
                continue
            paths = [[alias]] if isinstance(alias, str) else [alias] if not isinstance(alias[0], list) else alias
            if by_name:
                paths = [*paths, [name]]
            if all(len(path) > 1 for path in paths):
                raise PydanticInvalidForJsonSchema(f"field {name!r} is read from inside other members (AliasPath) only")
            for path in paths:
                made["properties"].setdefault(path[0], False)
        return made

    def any_schema(self, schema: Any) -> JsonSchemaValue:
        """Any value; notes that the type has one."""
        self.has_any = True
        return super().any_schema(schema)


def _keeps_text(schema: Any) -> bool:
    """Whether validation keeps the string, so that later steps of a chain constrain it."""
    if schema["type"] == "str":
        return not any(schema.get(name) for name in ("strip_whitespace", "to_lower", "to_upper"))
    if schema["type"] == "function-after" and isinstance(schema["function"]["function"], TextCheck):
        return _keeps_text(schema["schema"])
    return schema["type"] == "chain" and all(map(_keeps_text, schema["steps"]))


def _with_repeats(described: JsonSchemaValue) -> JsonSchemaValue:
    """Allow repeated items in a set, as pydantic does, unless their number matters."""
    if described.get("minItems", 0) <= 1:
        described.pop("uniqueItems", None)
    return described


def _written(values: list[Any], value_of: Callable[[Any], Any]) -> list[Any]:
    """The constants that validation can read from JSON: those equal to a JSON value."""
    retained = [value for value in values if value_of(value) is None or isinstance(value_of(value), (str, int, float))]
    if not retained:
        reason = "no JSON value equals its constants; use enum.StrEnum for an enum of strings, or list the strings"
        raise PydanticInvalidForJsonSchema(reason)
    return retained


def _listed(texts: Iterable[str]) -> JsonSchemaValue:
    found = list(texts)
    if not found:
        raise PydanticInvalidForJsonSchema("names in JSON objects are strings, but these keys are not")
    return {"enum": found}


def _exact(value: Any) -> int | float | Decimal:
    """A number as an exact JSON number."""
    exact = Decimal(str(value))
    if exact == exact.to_integral_value():
        return int(exact)
    return float(exact) if Decimal(repr(float(exact))) == exact else exact


def _of_digits(maximum: int | None, places: int | None) -> list[JsonSchemaValue]:
    """Schemas of the numbers with ``places`` decimal places and the remaining digits before the point."""
    if places is None:
        return [{}]
    found: list[JsonSchemaValue] = [{"multipleOf": _exact(Decimal(1).scaleb(-places))}]
    if maximum is not None:
        bound = 10 ** max(maximum - places, 0)
        found.append({"exclusiveMinimum": -bound, "exclusiveMaximum": bound})
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
