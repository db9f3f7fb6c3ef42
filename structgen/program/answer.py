"""The answer that a type annotation requests from a model.

A grammar, the form of its strings, how they become values, and the document that they are quoted from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias, final, get_args, get_origin

from structgen.errors import GrammarError
from structgen.frontends.free_text import occurrences
from structgen.frontends.json_schema import JsonPolicy, json_schema
from structgen.frontends.python_types import schema_of_type
from structgen.grammar.algebra import select
from structgen.grammar.nodes import ANY_CHAR, Grammar, Repeat
from structgen.program.json_cursor import Located, Path

if TYPE_CHECKING:
    from pydantic import TypeAdapter

__all__ = ["Answer", "Evidence", "Form", "QuotationSource", "answer_of"]

Form: TypeAlias = Literal["text", "json"]
"""Whether an answer is written as it is, or as JSON."""

_POLICY: Final = JsonPolicy()
_ANY_TEXT: Final = Repeat(ANY_CHAR, 0, None)


@final
@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that a step requests.

    Attributes:
        annotation: the given type or grammar.
        grammar: the texts that a model may write.
        form: whether the texts are JSON or plain text.
        adapter: makes values of the texts; None if the text is the value.
        choices: all texts, if there are few and each is one value; else empty.
        source: the document that the answer quotes; None if it quotes none.
        schema: the JSON Schema that ``grammar`` was made from, if any.
        formats: the meaning of names under ``format``, in addition to the standard ones.
        policy: how ``schema`` became ``grammar``; white space aside, an answer of a server is checked by it too.
    """

    annotation: Any
    grammar: Grammar
    form: Form
    adapter: TypeAdapter[Any] | None = field(default=None, compare=False)  # two of one type are not equal
    choices: tuple[str, ...] = ()
    source: QuotationSource | None = None
    schema: Any = None
    formats: Mapping[str, Grammar] = field(default_factory=dict)
    policy: JsonPolicy = _POLICY

    def value(self, text: str) -> Any:
        """Return the value that ``text`` spells.

        Raises:
            pydantic.ValidationError: a validator of the type's own refuses it.
        """
        if self.adapter is None:
            return text
        return self.adapter.validate_json(text) if self.form == "json" else self.adapter.validate_python(text)


def answer_of(annotation: Any) -> Answer:
    """Read an annotation.

    Text is requested as it is: by a grammar, ``str``, a ``Literal`` of strings, an ``Enum`` of strings, and
    ``Annotated`` with a grammar.  Every other type is requested as JSON.

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
    schema, formats = schema_of_type(annotation)
    grammar = json_schema(schema, formats=formats)
    return Answer(annotation, grammar, "json", _adapter(annotation), schema=schema, formats=formats)


def _text(annotation: Any, grammar: Grammar, choices: tuple[str, ...] = ()) -> Answer:
    return Answer(annotation, grammar, "text", _adapter(_without_grammar(annotation)), choices)


def _without_grammar(annotation: Any) -> Any:
    """The type that a text is read as: in JSON a grammar can only annotate ``str``."""
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


# Stand for the quotations in the schema, and are exchanged in its grammar.  They are noncharacters, which no text has.
QUOTED_PATTERN: Final = "^\ufdd0"
QUOTED_OR_EMPTY_PATTERN: Final = "^\ufdd1"
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_NO_LOGPROBS: Final[Mapping[Path, float]] = {}


@final
@dataclass(frozen=True, slots=True)
class Evidence(Located):
    """A field that is quoted from the document.

    Attributes:
        path: keys and indices from the root of the answer.
        text: the field's value.
        start: character of the document where it first occurs.
        end: character after that occurrence.
        spans: start and end of all occurrences, the first included, in order; they may overlap.
        logprob: of the most probable quotation, where it was requested: the model's log-probability of writing it
            as its tokens spell it and ending it there, given the text before; else None.
    """

    path: Path
    text: str
    start: int
    end: int
    spans: tuple[tuple[int, int], ...] = field(repr=False)
    logprob: float | None = None

    @property
    def probability(self) -> float | None:
        """The probability whose logarithm is ``logprob``; None without it."""
        return None if self.logprob is None else math.exp(self.logprob)


@final
@dataclass(frozen=True, slots=True)
class QuotationSource:
    """The document that an answer is quoted from.

    Attributes:
        document: the text.
        whole_words: whether quotations neither begin nor end within a word.
        schema: of the answer, with the patterns of the quoted strings.
        search_limit: of the search for the most probable quotations, see
            ``structgen.decode.autoregressive.search``; 0 samples them token by token.
        otherwise: the answer that takes the place of this one where its quotations cannot be searched for, or cannot be
            written within the budget; a quotation whose search reaches its limit is then sampled.  None: these
            are errors.
    """

    document: str = field(repr=False)
    whole_words: bool
    schema: Any = field(repr=False)
    search_limit: int = 0
    otherwise: Answer | None = field(default=None, repr=False)

    def evidence(self, value: Any, logprobs: Mapping[Path, float] = _NO_LOGPROBS) -> tuple[Evidence, ...]:
        """The quotations in a value of ``json.loads``, in their order, with the log-probabilities that are known."""
        return tuple(self._found(value, logprobs))

    def is_quoted(self, path: Path) -> bool:
        """Whether a string at ``path`` may be quoted."""
        return any(map(_is_quoted, self._schemas_at(path)))

    def _found(self, value: Any, logprobs: Mapping[Path, float]) -> Iterator[Evidence]:
        for path, text in _strings_of(value):
            if not self.is_quoted(path):
                continue
            spans = tuple(occurrences(self.document, text, whole_words=self.whole_words))
            if spans:  # none where the field may be empty, or is of another type of a union
                yield Evidence(path, text, *spans[0], spans, logprobs.get(path))

    def _schemas_at(self, path: Path) -> list[Any]:
        """The schemas that the value at ``path`` may belong to."""
        found = self._alternatives([self.schema])
        for part in path:
            found = self._alternatives([below for schema in found for below in _part_schemas(schema, part)])
        return found

    def _alternatives(self, schemas: list[Any]) -> list[Any]:
        """The schemas without references and unions around them."""
        found, work, seen = [], schemas[::-1], set()
        while work:
            schema = work.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            found.append(schema)
            work += [part for name in _ALTERNATIVES for part in schema.get(name, ())]
            if "$ref" in schema:
                work.append(self.schema.get("$defs", {}).get(schema["$ref"].rsplit("/", 1)[-1]))
        return found


def _is_quoted(schema: Any) -> bool:
    return schema.get("pattern") in (QUOTED_PATTERN, QUOTED_OR_EMPTY_PATTERN)


def _strings_of(value: Any) -> Iterator[tuple[Path, str]]:
    """The strings of a JSON value with their paths, in order."""
    work: list[tuple[Path, Any]] = [((), value)]
    while work:
        path, held = work.pop()
        if isinstance(held, str):
            yield path, held
        elif isinstance(held, dict):
            work += [((*path, key), part) for key, part in reversed(held.items())]
        elif isinstance(held, list):
            work += [((*path, at), part) for at, part in reversed(list(enumerate(held)))]


def _part_schemas(schema: Any, part: str | int) -> list[Any]:
    """The schemas of a member or item, as far as this schema names them."""
    if isinstance(part, str):
        found = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
    else:
        first = schema.get("prefixItems", ())
        found = first[part] if part < len(first) else schema.get("items")
    return [] if found is None else [found]
