"""What an annotation asks a model for: a grammar, the form of its texts, and how they become values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, final, get_args, get_origin

from structgen.errors import GrammarError
from structgen.grammar.algebra import select
from structgen.grammar.json_schema import JsonPolicy, json_schema
from structgen.grammar.json_schema.closing import closed
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat
from structgen.grammar.types import schema_of_type

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from structgen.program.evidence import Source

__all__ = ["POLICY", "Answer", "Form", "answer_of", "schema_of_answer"]

Form: TypeAlias = Literal["text", "json"]
"""Whether an answer is written as it is, or as JSON."""

POLICY: Final = JsonPolicy(whitespace="single")
"""As ``json.dumps`` writes by default, and most models: what lies between values is forced, and costs no passes."""
_ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """What is asked for.

    Attributes:
        annotation: the type, or the grammar, that was given.
        grammar: which texts a model may write.
        form: how they are written.
        adapter: what makes values of them; None where the text is the value.
        choices: the texts, where there are few and each is one value; else empty.
        source: what its texts are quoted from, if they are.
        schema: the JSON Schema that ``grammar`` was made from, if any.
        formats: what names under ``format`` in it mean, beside those that everybody knows.
    """

    annotation: Any
    grammar: Grammar
    form: Form
    adapter: TypeAdapter[Any] | None = None
    choices: tuple[str, ...] = ()
    source: Source | None = None
    schema: Any = None
    formats: Mapping[str, Grammar] = field(default_factory=dict)

    def value(self, text: str) -> Any:
        """Return the value that ``text`` stands for.

        Raises:
            pydantic.ValidationError: a validator of the type's own refuses it.
        """
        if self.adapter is None:
            return text
        return self.adapter.validate_json(text) if self.form == "json" else self.adapter.validate_python(text)


def answer_of(annotation: Any) -> Answer:
    """Read an annotation.

    Text is asked for as it is: by a grammar, ``str``, a ``Literal`` of strings, an ``Enum`` of strings, and
    ``Annotated`` with a grammar.  Every other type is asked for as JSON.

    Args:
        annotation: a type, or a grammar; an ``Answer`` is returned as it is.

    Raises:
        GrammarError: it is neither, or a type without a JSON form.
    """
    if isinstance(annotation, Answer):
        return annotation
    if isinstance(annotation, Grammar):
        return Answer(annotation, annotation, "text")
    if isinstance(annotation, str):
        raise GrammarError(
            f"annotation {annotation[:60]!r}",
            "it is text, neither a type nor a grammar",
            remedy="give the type itself; for one text of several, Literal",
        )
    if annotation is str:
        return Answer(str, _ANY_TEXT, "text")
    origin = get_origin(annotation)
    if origin is Annotated:
        written = [grammar for grammar in map(_grammar, get_args(annotation)[1:]) if grammar is not None]
        if written:
            return _text(annotation, _intersection(written))
    if origin is Literal:
        options = get_args(annotation)
        if all(type(option) is str for option in options):
            return _text(annotation, select(options), options)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        options = tuple(member.value for member in annotation)
        if options and all(type(option) is str for option in options):
            return _text(annotation, select(options), options)
    if annotation is None:
        annotation = type(None)
    schema, formats = schema_of_answer(annotation)
    grammar = json_schema(schema, policy=POLICY, formats=formats)
    return Answer(annotation, grammar, "json", _adapter(annotation), schema=schema, formats=formats)


def schema_of_answer(annotation: Any) -> tuple[Any, Mapping[str, Grammar]]:
    """The JSON Schema of what may be written for a type, with the formats that it names.

    Objects have no undeclared members: pydantic ignores these, and nobody wants them.

    Raises:
        GrammarError: it is a type without a JSON form.
    """
    described, formats = schema_of_type(annotation)
    return closed(described, tagged=True), formats


def _text(annotation: Any, grammar: Grammar, choices: tuple[str, ...] = ()) -> Answer:
    return Answer(annotation, grammar, "text", _adapter(_without_grammar(annotation)), choices)


def _without_grammar(annotation: Any) -> Any:
    """The type that a text is read as: in JSON a grammar could stand beside ``str`` alone."""
    metadata = [one for one in getattr(annotation, "__metadata__", ()) if not isinstance(one, Grammar)]
    if not hasattr(annotation, "__metadata__"):
        return annotation
    return Annotated[(annotation.__origin__, *metadata)] if metadata else annotation.__origin__


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(annotation)
    except (PydanticUserError, TypeError, NameError, RecursionError) as error:
        raise GrammarError(
            f"type {annotation!r}",
            "pydantic can't make values of it",
            evidence=str(error).partition("\n")[0],
            remedy="annotate with a type that pydantic knows, or with a grammar",
        ) from error


def _grammar(metadata: Any) -> Grammar | None:
    """The grammar of a piece of metadata: itself, or what a marker such as ``Regex`` holds."""
    held = metadata if isinstance(metadata, Grammar) else getattr(metadata, "grammar", None)
    return held if isinstance(held, Grammar) else None


def _intersection(grammars: list[Grammar]) -> Grammar:
    made = grammars[0]
    for other in grammars[1:]:
        made = made & other
    return made
