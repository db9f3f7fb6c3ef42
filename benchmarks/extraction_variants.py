"""What the benchmark of extraction compares: descriptions of the form, settings of ``extract``, and changed types."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, get_args, get_origin

from extraction_tasks import Document
from pydantic import BaseModel, Field, create_model
from pydantic.fields import FieldInfo

import structgen as sg
from structgen.frontends.json_schema import json_schema
from structgen.program import ask, user
from structgen.program.answer import POLICY, answer_of
from structgen.program.prompt import description_of

__all__ = ["VARIANTS", "Change", "changed"]

INSTRUCTION: Final = "Extract what is asked for from the document."
MAX_STRING: Final = 60


# ----------------------------------------------------------------------------------------- descriptions of the form


def typed(model: type[BaseModel]) -> str:
    """A type of TypeScript."""
    root = model.model_json_schema()
    return f"Answer with JSON of this type:\n{_typed(root, root, '')}"


def _typed(schema: Any, root: Any, indent: str) -> str:
    schema = _resolved(schema, root)
    if "anyOf" in schema:
        return " | ".join(_typed(part, root, indent) for part in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    if schema["type"] == "array":
        return f"Array<{_typed(schema['items'], root, indent)}>"
    if schema["type"] != "object":
        return str(schema["type"])
    lines = []
    for name, part in schema["properties"].items():
        comment = f"  // {part['description']}" if "description" in part else ""
        mark = "" if name in schema.get("required", ()) else "?"
        lines.append(f"{indent}  {name}{mark}: {_typed(part, root, indent + '  ')},{comment}\n")
    return f"{{\n{''.join(lines)}{indent}}}"


def skeleton(model: type[BaseModel]) -> str:
    """JSON without values."""
    root = model.model_json_schema()
    return (
        f"Answer with JSON of this form, with the values of the document:\n{json.dumps(_empty(root, root), indent=2)}"
    )


def _empty(schema: Any, root: Any) -> Any:
    schema = _resolved(schema, root)
    if "anyOf" in schema:
        return _empty(schema["anyOf"][0], root)
    if "enum" in schema:
        return "|".join(schema["enum"])
    if schema["type"] == "object":
        return {name: _empty(part, root) for name, part in schema["properties"].items()}
    if schema["type"] == "array":
        return [_empty(schema["items"], root)]
    return {"string": "...", "integer": 0, "number": 0.0, "boolean": False}[schema["type"]]


def _resolved(schema: Any, root: Any) -> Any:
    return root["$defs"][schema["$ref"].rsplit("/", 1)[-1]] if "$ref" in schema else schema


def nothing(model: type[BaseModel]) -> str:
    """Nothing: the names of the members are forced anyway."""
    return "Answer with JSON."


_STYLES: Final[Mapping[str, Callable[[type[BaseModel]], str]]] = {
    each.__name__: each for each in (typed, skeleton, nothing)
}


@sg.program
def told(kind: Any, document: str, description: str) -> Generator[Any, Any, Any]:
    """What ``extract`` does, with another description of the form."""
    yield "\n\n".join(part for part in (INSTRUCTION, document, description) if part)
    return (yield kind)


def _styled(document: Document, style: Any, **settings: Any) -> Any:
    own = _STYLES.get(style)
    description = own(document.model) if own else description_of(answer_of(document.model), style)
    return told.run(document.model, document.text, description, **settings)


# ---------------------------------------------------------------------------------------------------- changed types


class Change(NamedTuple):
    """How a type is changed before it is asked for.

    Attributes:
        is_reversed: whether the fields come in the opposite order.
        required: whether fields with a default must be written, if only as null.
        unique: whether the items of a list must differ.
        short: whether strings have at most ``MAX_STRING`` characters.
    """

    is_reversed: bool = False
    required: bool = False
    unique: bool = False
    short: bool = False


_UNCHANGED: Final = Change()


def changed(model: type[BaseModel], change: Change) -> type[BaseModel]:
    """A type like ``model``, and the types of its fields, with the changes."""
    fields = list(model.model_fields.items())
    if change.is_reversed:
        fields.reverse()
    made: dict[str, Any] = {name: (_annotation(info.annotation, change), _field(info, change)) for name, info in fields}
    return create_model(model.__name__, **made)


def _field(info: FieldInfo, change: Change) -> Any:
    default = ... if change.required or info.is_required() else info.default
    return Field(default, description=info.description)


def _annotation(annotation: Any, change: Change) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return changed(annotation, change)
    if annotation is str and change.short:
        return Annotated[str, Field(max_length=MAX_STRING)]
    if get_origin(annotation) is list:
        items: Any = list[_annotation(get_args(annotation)[0], change)]  # type: ignore[misc]
        return Annotated[items, Field(json_schema_extra={"uniqueItems": True})] if change.unique else items
    if type(None) in get_args(annotation):
        return _annotation(get_args(annotation)[0], change) | None
    return annotation


def _extracted(document: Document, change: Change = _UNCHANGED, **settings: Any) -> Any:
    return sg.extract.run(changed(document.model, change), document.text, **settings)


# ------------------------------------------------------------------------------------------------------- other ways


def _any_order(document: Document, **settings: Any) -> Any:
    answer = answer_of(document.model)
    grammar = json_schema(answer.schema, policy=replace(POLICY, order="any"), formats=answer.formats)
    return sg.extract.run(replace(answer, grammar=grammar), document.text, **settings)


@sg.program
def considered(kind: Any, document: str) -> Generator[Any, Any, Any]:
    """A sentence about the document before the answer."""
    yield f"{INSTRUCTION}\n\n{document}\n\nFirst, tell in one sentence what the document says."
    yield ask(str, max_tokens=60)
    yield user(description_of(answer_of(kind)))
    return (yield kind)


def _considered(document: Document, **settings: Any) -> Any:
    return considered.run(document.model, document.text, **settings)


def _weighed(document: Document, **settings: Any) -> Any:
    """The most probable value of each field with few values, in place of the one that greedy decoding writes."""
    run = sg.extract.run(document.model, document.text, marginals=True, **settings)
    value = run.value.model_dump()
    for held in run.outcomes[0].fields:
        if held.marginals and held.path:
            _put(value, held.path, max(held.marginals, key=held.marginals.__getitem__))
    return replace(run, value=document.model.model_validate(value))


def _put(value: Any, path: tuple[str | int, ...], new: Any) -> None:
    for part in path[:-1]:
        value = value[part]
    value[path[-1]] = new


VARIANTS: Final[Mapping[str, Callable[..., Any]]] = {
    **{f"style {name}": partial(_styled, style=name) for name in ("sketch", "fields", "schema", *_STYLES)},
    "plain": _extracted,
    "unique": partial(_extracted, change=Change(unique=True)),
    "evidence": partial(_extracted, evidence=True),
    "required": partial(_extracted, change=Change(required=True)),
    "short": partial(_extracted, change=Change(short=True)),
    "unique, evidence": partial(_extracted, change=Change(unique=True), evidence=True),
    "unique, evidence, required": partial(_extracted, change=Change(unique=True, required=True), evidence=True),
    "reversed": partial(_extracted, change=Change(is_reversed=True)),
    "any order": _any_order,
    "marginals": _weighed,
    "thought": _considered,
    "exact": partial(_extracted, evidence="exact"),
    "unique, exact, required": partial(_extracted, change=Change(unique=True, required=True), evidence="exact"),
    "beam 4": partial(_extracted, sampler=sg.samplers.Beam(4)),
    "SMC 8": partial(_extracted, sampler=sg.samplers.SMC(8)),
}
"""By name: a function of a document and the settings of a program, which returns its ``Run``."""
