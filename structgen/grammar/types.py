"""Python types as JSON Schemas, by way of pydantic.

pydantic is imported here, when a type is given, and nowhere else in ``structgen.grammar``.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import GrammarError

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue

__all__ = ["schema_of_type", "value_of_type"]

# What pydantic describes with a look-ahead: an optional sign, digits, an optional point, and some digit somewhere.
_DECIMAL_TEXT: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)$"

_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodType)


def schema_of_type(kind: Any) -> dict[str, Any]:
    """Return the JSON Schema of what pydantic accepts for a Python type.

    Args:
        kind: a pydantic model, dataclass, ``TypedDict``, ``NamedTuple``, ``Enum``, ``Literal``, union, ``list[int]``,
            ``Annotated`` with constraints ... or a ``TypeAdapter``.

    Raises:
        GrammarError: it is no type, or one that has no JSON form.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    if isinstance(kind, _FUNCTIONS):
        raise _no_type(kind, "found a function; its arguments have no single schema")
    try:
        adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter[Any](kind)
        return adapter.json_schema(schema_generator=_generator())
    except (PydanticUserError, TypeError, NameError, RecursionError) as error:
        raise _no_type(kind, str(error).partition("\n")[0] or type(error).__name__) from error


def _no_type(kind: Any, evidence: str) -> GrammarError:
    return GrammarError(
        f"json schema of {_name(kind)}",
        "it is neither a schema nor a type with a JSON form",
        evidence=evidence,
        remedy="give a schema as a dict or JSON text, or a type that pydantic can describe",
    )


def value_of_type(kind: Any, text: str | bytes) -> Any:
    """Parse JSON text into a value of a Python type.

    Raises:
        pydantic.ValidationError: the text is not JSON, or a validator of the type's own refuses the value.
    """
    from pydantic import TypeAdapter

    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter[Any](kind)
    return adapter.validate_json(text)


def _name(kind: Any) -> str:
    name = getattr(kind, "__qualname__", None) or repr(kind)
    return name if len(name) <= 60 else name[:57] + "..."


def _generator() -> type[Any]:
    """The generator of pydantic, with two schemas that say more of what it accepts."""
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def decimal_schema(self, schema: Any) -> JsonSchemaValue:
            """A pattern that a finite automaton can follow."""
            described = super().decimal_schema(schema)
            for alternative in described.get("anyOf", [described]):
                if alternative.get("type") == "string" and "pattern" in alternative:
                    alternative["pattern"] = _DECIMAL_TEXT
            return described

        def set_schema(self, schema: Any) -> JsonSchemaValue:
            return _with_repeats(super().set_schema(schema))

        def frozenset_schema(self, schema: Any) -> JsonSchemaValue:
            return _with_repeats(super().frozenset_schema(schema))

    return Generator


def _with_repeats(described: JsonSchemaValue) -> JsonSchemaValue:
    """Let a set be written with repeated items, which pydantic accepts, unless their number matters."""
    if described.get("minItems", 0) <= 1:
        described.pop("uniqueItems", None)
    return described
