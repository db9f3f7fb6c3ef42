"""Grammars as pydantic annotations of ``str``: validation, and JSON Schema.

The schema names the grammar as a ``format``, and :func:`collecting` collects the grammars by these names.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import GrammarError
from structgen.grammar.nodes import Grammar

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

__all__ = ["TextCheck", "collecting", "validated"]

_MAX_NAME_LENGTH: Final = 60
_THROUGH: Final = frozenset({"function-before", "function-after", "function-wrap", "default", "nullable"})
_collected: ContextVar[dict[str, Grammar] | None] = ContextVar("_collected", default=None)


@dataclass(frozen=True, slots=True)
class TextCheck:
    """Refuses a string that a grammar does not match; returns any other unchanged."""

    grammar: Grammar
    shown: str

    def __call__(self, value: Any) -> Any:
        """Return ``value``.

        Raises:
            ValueError: it is a string that the grammar does not match.
        """
        from structgen.grammar.flattening import recognizes  # loads the native engine

        if isinstance(value, str) and not recognizes(self.grammar, value):
            raise ValueError(f"the text does not belong to {_short(self.shown)}")
        return value


def validated(grammar: Grammar, shown: str, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """The pydantic schema: the annotated type, then the grammar.

    Raises:
        GrammarError: the type is neither ``str`` nor an optional one.
    """
    from pydantic_core import core_schema

    schema = handler(source)
    inner: Any = schema
    while True:
        inner = handler.resolve_ref_schema(inner)
        if inner["type"] in _THROUGH:
            inner = inner["schema"]
        elif inner["type"] == "chain":
            inner = inner["steps"][0]
        else:
            break
    if inner["type"] != "str":
        raise GrammarError(
            f"annotation {_short(shown)}",
            "a grammar applies to a str; it cannot annotate another type",
            evidence=f"found {_short(repr(source))}",
            remedy="write Annotated[str, ...], inside a union too: Annotated[str, ...] | int",
        )
    # A function of this schema: one of the annotation would also be called for types around it (Json[...]).
    metadata = {"pydantic_js_functions": [TextDescription(grammar, shown)]}
    return core_schema.no_info_after_validator_function(TextCheck(grammar, shown), schema, metadata=metadata)


@dataclass(frozen=True, slots=True)
class TextDescription:
    """Describes a string with a grammar as JSON Schema, and records the grammar for :func:`collecting`."""

    grammar: Grammar
    shown: str

    def __call__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema of the string, with a format that names the grammar."""
        name = f"{_short(self.shown)} {self.grammar.digest.hex()[:12]}"
        known = _collected.get()
        if known is not None:
            known[name] = self.grammar
        found = handler(schema)
        if found.get("type") == "string" and "format" not in found:
            return {**found, "format": name}
        return {"allOf": [found, {"format": name}]}


@contextmanager
def collecting(formats: dict[str, Grammar]) -> Iterator[None]:
    """Store the grammars of the schemas made inside in ``formats``, by format name."""
    token = _collected.set(formats)
    try:
        yield
    finally:
        _collected.reset(token)


def _short(shown: str) -> str:
    return shown if len(shown) <= _MAX_NAME_LENGTH else f"{shown[: _MAX_NAME_LENGTH - 3]}..."
