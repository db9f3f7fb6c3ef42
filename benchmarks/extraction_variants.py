"""What the benchmark of extraction compares: descriptions of the form, settings of ``extract``, and changed types."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_args, get_origin

from pydantic import BaseModel, Field, create_model

import structgen as sg
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.grammar.limits import Limits
from structgen.program import ask, assistant, quoted, user
from structgen.program.answer import Answer, answer_of
from structgen.program.json_cursor import Path
from structgen.program.prompt import Style, description_of

if TYPE_CHECKING:
    from extraction_tasks import Document
    from pydantic.fields import FieldInfo

    from structgen.program.outcome import Run

__all__ = ["PARTS", "Change", "changed", "run_of"]

INSTRUCTION: Final = "Extract what is asked for from the document."
QUOTE: Final = " Copy texts from it word for word."
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


# --------------------------------------------------------------------------------------------------------- the runs


class Cat(BaseModel):
    """What the worked example asks for."""

    name: str
    age: int
    marks: list[str]
    chip: str | None = None
    owner: str | None = None
    seen: list[Sighting]


class Sighting(BaseModel):
    """A place and a time."""

    street: str
    day: str


EXAMPLE: Final = (
    "Missing: our cat Minka, 3 years old. She has a white paw and a torn ear. She was seen in Elm Street on Monday and "
    "in Dock Road on Wednesday. Please call her owner, Ruth Baker."
)
EXAMPLE_ANSWER: Final = (
    '{"name": "Minka", "age": 3, "marks": ["white paw", "torn ear"], "chip": null, "owner": "Ruth Baker", '
    '"seen": [{"street": "Elm Street", "day": "Monday"}, {"street": "Dock Road", "day": "Wednesday"}]}'
)


@sg.program(limits=Limits(distance_steps=10_000))
def told(answer: Answer, document: str, description: str, parts: Sequence[str]) -> Generator[Any, Any, Any]:
    """What ``extract`` does, with other prompts."""
    instruction = INSTRUCTION + (QUOTE if answer.source else "")
    if "example" in parts:
        yield f"{instruction}\n\n{EXAMPLE}\n\n{description_of(answer_of(Cat))}"
        yield assistant(EXAMPLE_ANSWER)
        yield user("")
    if "thought" in parts:
        yield f"{INSTRUCTION}\n\n{document}\n\nFirst, tell in one sentence what the document says."
        yield ask(str, max_tokens=60)
        yield user(description)
    elif "form first" in parts:
        yield f"{instruction} {description}\n\n{document}"
    else:
        yield f"{instruction}\n\n{document}\n\n{description}"
    return (yield answer)


_OTHER_PROMPTS: Final = frozenset(("example", "thought", "form first", "any order", *get_args(Style), *_STYLES))
_SAMPLERS: Final = {"beam 4": sg.samplers.Beam(4), "SMC 8": sg.samplers.SMC(8)}
PARTS: Final = {
    **dict.fromkeys(get_args(Style), "the form of the answer in this style"),
    **{name: (style.__doc__ or "").rstrip(".") for name, style in _STYLES.items()},
    "plain": "``extract`` with its defaults",
    "evidence": "``evidence=True``",
    "exact": '``evidence="exact"``',
    "unique": "the items of a list differ",
    "required": "fields with a default are written, if only as null",
    "short": f"strings of at most {MAX_STRING} characters",
    "reversed": "the fields in the opposite order",
    "any order": "the fields in any order",
    "example": "a worked example of another type before",
    "form first": "the form of the answer before the document",
    "thought": "a sentence about the document before the answer",
    "marginals": "of fields with few values the most probable one, in place of the greedy one",
    "calibrated": "likewise, each probability divided by that without a document",
    "beam 4": "beam search with 4 beams",
    "SMC 8": "sequential Monte Carlo with 8 particles",
}
"""What a variant is made of."""
_WEIGHED: Final = frozenset(("marginals", "calibrated"))


def run_of(variant: str, document: Document, **settings: Any) -> Run[Any]:
    """Run a variant: the names of its ``PARTS``, with commas between.

    Raises:
        ValueError: there is no such part.
    """
    parts = variant.split(", ")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise ValueError(f"variant {variant!r} has the part {unknown[0]!r}; there are {', '.join(PARTS)}")
    model = changed(
        document.model, Change(*("reversed" in parts, "required" in parts, "unique" in parts), "short" in parts)
    )
    settings["sampler"] = next((sampler for name, sampler in _SAMPLERS.items() if name in parts), None)
    settings["marginals"] = not _WEIGHED.isdisjoint(parts)
    evidence: Any = "exact" if "exact" in parts else "evidence" in parts
    if _OTHER_PROMPTS.isdisjoint(parts):
        run = sg.extract.run(model, document.text, evidence=evidence, **settings)
    else:
        answer = quoted(model, document.text, exact=evidence == "exact") if evidence else answer_of(model)
        if "any order" in parts:
            policy = JsonPolicy(order="any")
            answer = replace(answer, grammar=json_schema(answer.schema, policy=policy, formats=answer.formats))
        run = told.run(answer, document.text, _description(answer, document, parts), parts, **settings)
    value = run.value.model_dump()
    if settings["marginals"]:
        before = _without_document(variant, document, settings) if "calibrated" in parts else {}
        for path, weights in _marginals(run).items():
            priors = before.get(path, {})
            _put(value, path, max(weights, key=lambda each: weights[each] / priors.get(each, 1.0)))
    return replace(run, value=document.model.model_validate(value))


def _marginals(run: Run[Any]) -> Mapping[Path, Mapping[Any, float]]:
    return {held.path: held.marginals for held in run.outcomes[-1].fields if held.marginals and held.path}


_priors: dict[tuple[str, str], Mapping[Path, Mapping[Any, float]]] = {}


def _without_document(variant: str, document: Document, settings: Any) -> Mapping[Path, Mapping[Any, float]]:
    """The marginals of the fields of a type where the document says nothing.

    Source: Z. Zhao et al., "Calibrate Before Use" (ICML 2021), which takes such a text.
    """
    key = variant, document.model.__name__
    if key not in _priors:
        settings = {name: value for name, value in settings.items() if name not in ("sampler", "marginals")}
        empty = replace(document, text="N/A")
        _priors[key] = _marginals(run_of(variant.replace("calibrated", "marginals"), empty, **settings))
    return _priors[key]


def _description(answer: Answer, document: Document, parts: Sequence[str]) -> str:
    own = next((style for name, style in _STYLES.items() if name in parts), None)
    if own is not None:
        return own(document.model)
    return description_of(answer, next((style for style in get_args(Style) if style in parts), True))


def _put(value: Any, path: Path, new: Any) -> None:
    for part in path[:-1]:
        value = value[part]
    value[path[-1]] = new
