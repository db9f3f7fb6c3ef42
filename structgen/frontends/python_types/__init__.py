"""Python types as JSON Schemas, by means of pydantic.

pydantic is imported when a type is given; in the front ends, only this package imports it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from structgen.errors import GrammarError
from structgen.grammar.pydantic_string import collecting

if TYPE_CHECKING:
    from structgen.grammar.nodes import Grammar

__all__ = ["schema_of_type"]

_FUNCTIONS: Final = (FunctionType, BuiltinFunctionType, MethodType)
_REMEDY: Final = (
    "annotate it with a type that pydantic can describe: a model, a dataclass, str, int, list[...] ...; "
    "or define its JSON form, with Annotated[..., pydantic.WithJsonSchema(...)] and a validator"
)


def schema_of_type(kind: Any) -> tuple[dict[str, Any], dict[str, Grammar]]:
    """Return the JSON Schema of a Python type as pydantic validates it, and the formats that it names.

    Args:
        kind: a pydantic model, dataclass, ``TypedDict``, ``NamedTuple``, ``Enum``, ``Literal``, union, ``list[int]``,
            ``Annotated`` with constraints ... or a ``TypeAdapter``.

    Raises:
        GrammarError: it is not a type, or has no JSON form; the error names the part at fault.
    """
    if isinstance(kind, _FUNCTIONS):
        raise GrammarError(
            f"json schema of {_name(kind)}",
            "it is neither a schema nor a type with a JSON form",
            evidence="found a function; its arguments have no single schema",
            remedy="give a schema as a dict or JSON text, or a type that pydantic can describe",
        )
    if _is_value(kind):
        raise _misplaced(kind, "", kind, f"it is a value of {type(kind).__name__}", "pass the type itself")
    try:
        described, formats, has_any = _described(kind)
    except _failures() as error:
        raise _no_form(kind, error) from error
    if has_any:
        for path, annotation in _locations(kind):
            if isinstance(annotation, TypeVar) and annotation.__bound__ is None and not annotation.__constraints__:
                raise _misplaced(kind, path, annotation, "it is a type variable", "give it a type: Name[int]")
    return described, formats


def _is_value(kind: Any) -> bool:
    """Whether it is an instance of a model or dataclass, and no annotation of its own."""
    made = type(kind)
    is_data = dataclasses.is_dataclass(made) and not hasattr(made, "__get_pydantic_core_schema__")
    return is_data or hasattr(made, "model_fields")


def _described(kind: Any) -> tuple[dict[str, Any], dict[str, Grammar], bool]:
    """The schema, its formats, and whether some part of it is open."""
    from pydantic import TypeAdapter

    from structgen.frontends.python_types.pydantic_schema import Generator

    formats: dict[str, Grammar] = {}
    generator = Generator(formats)
    adapter = kind if isinstance(kind, TypeAdapter) else TypeAdapter[Any](kind)
    with collecting(formats):
        # the adapter wants a generator class, and completes a type that was defined before its parts
        described = adapter.json_schema(schema_generator=lambda **_: generator)  # type: ignore[arg-type]
    return described, formats, generator.has_any


def _failures() -> tuple[type[Exception], ...]:
    """The errors of pydantic and of markers for a type without a JSON form."""
    from pydantic.errors import PydanticUserError
    from pydantic_core import SchemaError

    return PydanticUserError, SchemaError, TypeError, NameError, RecursionError, GrammarError


def _no_form(kind: Any, error: Exception) -> GrammarError:
    """The error for a type without a JSON form, with its innermost part at fault."""
    path, annotation = "", getattr(kind, "_type", kind)
    seen: set[int] = set()
    while id(annotation) not in seen:
        seen.add(id(annotation))
        found = _culprit(annotation, error)
        if found is not None:
            path, annotation = path + found[0], found[1]
            if isinstance(found[2], GrammarError) or not isinstance(error, GrammarError):
                error = found[2]
    if isinstance(error, GrammarError):
        problem = f"{error.subject}: {error.problem}"
        where = f"at {path.lstrip('.')}: " if path else ""
        return GrammarError(
            f"json schema of {_name(kind)}", where + problem, evidence=error.evidence, remedy=error.remedy
        )
    text = str(error) or type(error).__name__
    reason = text.splitlines()[-1] if type(error).__name__ == "SchemaError" else text.splitlines()[0].partition(". ")[0]
    return _misplaced(kind, path, annotation, reason, _REMEDY)


def _culprit(annotation: Any, error: Exception) -> tuple[str, Any, Exception] | None:
    """The first part of an annotation without a JSON form, preferably with the same kind of error.

    A part alone lacks the configuration of its model, so other parts may fail too.
    """
    failed = []
    for step, part in _parts(annotation):
        try:
            _described(part)
        except _failures() as inner:
            failed.append((step, part, inner))
    alike = (one for one in failed if _is_of_pattern(one[2]) == _is_of_pattern(error))
    return next(alike, failed[0] if failed else None)


def _is_of_pattern(error: Exception) -> bool:
    """Whether an error is about the text of a pattern or grammar."""
    from pydantic_core import SchemaError

    return isinstance(error, (GrammarError, SchemaError))


def _misplaced(kind: Any, path: str, annotation: Any, reason: str, remedy: str) -> GrammarError:
    part = f"{path.lstrip('.')} is annotated {_name(annotation)}, which" if path else "it"
    return GrammarError(f"json schema of {_name(kind)}", f"{part} has no JSON form", evidence=reason, remedy=remedy)


def _locations(kind: Any) -> Iterator[tuple[str, Any]]:
    """Every annotation within a type, each once, with its path."""
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", getattr(kind, "_type", kind))]
    held = []
    while stack:
        path, annotation = stack.pop()
        if id(annotation) not in seen:
            seen.add(id(annotation))
            held.append(annotation)  # keeps its id unique
            yield path, annotation
            stack += [(path + step, part) for step, part in _parts(annotation)]


def _parts(annotation: Any) -> list[tuple[str, Any]]:
    """The annotations directly within one, each with its path step: ``.name``, ``[]`` or nothing."""
    origin = get_origin(annotation)
    if origin is Literal or origin is Callable:
        return []
    if origin is Annotated:
        return [("", annotation.__origin__)]
    fields = getattr(annotation, "model_fields", None)
    if isinstance(annotation, type) and isinstance(fields, dict):
        return [(f".{name}", _field(field)) for name, field in fields.items()]
    if origin is not None:
        step = "[]" if isinstance(origin, type) and issubclass(origin, _CONTAINERS) else ""
        return [(step, part) for part in get_args(annotation) if part is not Ellipsis]
    for attribute in ("__supertype__", "__value__"):  # of NewType and of type aliases
        if hasattr(annotation, attribute):
            return [("", getattr(annotation, attribute))]
    is_record = (
        dataclasses.is_dataclass(annotation) or hasattr(annotation, "__total__") or hasattr(annotation, "_fields")
    )
    if not isinstance(annotation, type) or not is_record:
        return []
    try:
        hints = get_type_hints(annotation, include_extras=True)
    except (NameError, TypeError):  # an undefined name in an annotation: the type itself is at fault
        return []
    return [(f".{name}", part) for name, part in hints.items() if get_origin(part) is not ClassVar]


_CONTAINERS: Final = (list, tuple, set, frozenset, dict, Iterator)


def _field(field: Any) -> Any:
    """The annotation of a model's field with its constraints."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def _name(kind: Any) -> str:
    name = repr(kind) if get_origin(kind) is not None else getattr(kind, "__qualname__", None) or repr(kind)
    return name if len(name) <= 60 else name[:57] + "..."
