"""``structgen.extract`` and ``structgen.program.quoted``: values of a type from a document.

Their strings occur in the document.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Coroutine, Generator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast, final

from structgen.errors import ProgramError, found
from structgen.frontends.free_text import substrings
from structgen.frontends.json_schema import json_schema
from structgen.frontends.python_types import schema_of_type
from structgen.frontends.regex import regex, search_language
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import undescribed, with_children
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar, postorder
from structgen.models.protocol import LanguageModel
from structgen.program.answer import QUOTED_OR_EMPTY_PATTERN, QUOTED_PATTERN, Answer, QuotationSource, answer_of
from structgen.program.backends import ProgramSettings
from structgen.program.definition import Program
from structgen.program.execution import current_model
from structgen.program.prompt import description_of

if TYPE_CHECKING:
    from structgen.program.batch_map import MappedItems
    from structgen.program.outcome import Run
    from structgen.program.stream.event import Event

__all__ = ["SEARCH_LIMIT", "Extract", "Written", "extract", "quoted"]

_PATTERN_LANGUAGES: Final = {
    search_language(each, dialect="ecma"): each for each in (QUOTED_PATTERN, QUOTED_OR_EMPTY_PATTERN)
}
# A character of a string with escapes only where they must be.  Other spellings of a quotation would only divide its
# probability, and each would be sampled again where a check refuses the value.  (Hence no format of its own for what
# can be quoted: a format says what a string decodes to, and leaves open how it is spelled.)
_CHARACTER: Final = regex(r'[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f]')
# A string with other keywords is not free: the keywords define it.
_FREE_STRING: Final = frozenset(
    ("type", "minLength", "maxLength", "title", "description", "default", "examples", "deprecated")
)
_MAPS: Final = ("properties", "patternProperties", "$defs")
_SINGLE: Final = ("items", "additionalProperties")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
SEARCH_LIMIT: Final = 1_000


@final
class _NotQuoted:
    """Marks a string in its JSON Schema, by a keyword that says nothing new about it, as one that is not free."""

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> Any:
        return {**handler(core_schema), "contentMediaType": "text/plain"}


Written: TypeAlias = Annotated[str, _NotQuoted()]
"""A text that ``extract`` does not quote: a summary, or a date in another form."""


def quoted(
    annotation: Any, document: str, *, whole_words: bool = True, exact: bool = False, search_limit: int = SEARCH_LIMIT
) -> Answer:
    """Ask for values of a type whose free texts occur in ``document``.

    A free text is a string (``str``) without an enumeration, pattern or format of its own that is not ``Written``. The
    names of members are not quoted. A quotation is not empty, unless the type says ``min_length=0``.

    Args:
        annotation: a type.
        document: what is quoted.
        whole_words: only quotations that neither begin nor end with white space or within a word.
        exact: whether the most probable quotation is searched for wherever one begins, in place of the sampler's.
        search_limit: the most prefixes of a quotation that one search runs through the model.

    Raises:
        GrammarError: it is no type that can be written.
        ProgramError: the document cannot be written in UTF-8.
        ValueError: ``search_limit`` is less than 1.

    Complexity: linear in the document.
    """
    if search_limit < 1:
        raise ValueError(f"search_limit must be at least 1; found {search_limit}")
    limit = search_limit if exact else 0
    answer = answer_of(annotation)
    try:
        document.encode()
    except UnicodeEncodeError as error:
        raise ProgramError(
            "document", "it holds a lone surrogate", evidence=str(error), remedy="decode it with errors='replace'"
        ) from error
    if answer.annotation is str:
        quotations = substrings(document, whole_words=whole_words)
        return replace(
            answer,
            grammar=quotations,
            source=QuotationSource(document, whole_words, {"pattern": QUOTED_PATTERN}, limit),
        )
    if answer.form == "text":
        return answer
    described, formats = schema_of_type(answer.annotation)
    schema = _with_quotations(described)
    if schema == described:
        return answer  # no text of it is free
    spelled = substrings(document, whole_words=whole_words, spell=_json_spelling)
    grammar = _with_quoted_strings(undescribed(json_schema(schema, formats=formats)), spelled)
    return replace(answer, grammar=grammar, source=QuotationSource(document, whole_words, schema, limit))


def _with_quotations(schema: Any) -> Any:
    """A copy in which the free strings have a pattern as a placeholder of the quotations.  Linear."""
    made: list[Any] = [None]
    work: list[tuple[Any, Any, Any]] = [(made, 0, schema)]  # where the copy goes
    while work:
        home, key, held = work.pop()
        if not isinstance(held, dict):
            home[key] = held
            continue
        copy = home[key] = dict(held)
        if held.get("type") == "string" and _FREE_STRING.issuperset(held):
            copy["pattern"] = QUOTED_OR_EMPTY_PATTERN if held.get("minLength") == 0 else QUOTED_PATTERN
        for name in _MAPS:
            if isinstance(held.get(name), dict):
                copy[name] = dict(held[name])
                work += [(copy[name], part, value) for part, value in held[name].items()]
        for name in _SINGLE:
            if name in held:
                work.append((copy, name, held[name]))
        for name in _LISTS:
            if name in held:
                copy[name] = list(held[name])
                work += [(copy[name], at, value) for at, value in enumerate(held[name])]
    return made[0]


def _with_quoted_strings(term: Grammar, quotations: Grammar) -> Grammar:
    """The term with ``quotations``, as JSON spells them, in place of the placeholders.

    Terms that hold them are not shared with other grammars.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(term):
        changed = _quoted_string(node.value, quotations) if isinstance(node, ir.JsonString) else None
        if changed is None:
            changed = with_children(node, [made[id(child)] for child in node.children])
            if isinstance(changed, ir.Shared) and changed is not node:
                changed = changed.item
        made[id(node)] = changed
    return made[id(term)]


def _quoted_string(value: Grammar, quotations: Grammar) -> Grammar | None:
    """The quotations of the lengths that the value of a string may have; None for a string without a placeholder."""
    parts = value.items if isinstance(value, ir.Intersection) else (value,)
    if not any(part in _PATTERN_LANGUAGES for part in parts):
        return None
    made: list[Grammar] = []
    for part in parts:
        if part in _PATTERN_LANGUAGES:
            made.append(
                ir.choice(ir.EPSILON, quotations) if _PATTERN_LANGUAGES[part] == QUOTED_OR_EMPTY_PATTERN else quotations
            )
        elif isinstance(part, ir.Repeat) and part.item == ir.ANY_CHAR:
            made.append(ir.Repeat(_CHARACTER, part.min, part.max))
        else:
            raise ProgramError(
                "evidence",
                "a free text is restricted in another place of its schema",
                evidence=str(part)[:80],
                remedy="state the restriction in the type of the text itself; it is then not quoted",
            )
    return ir.sequence('"', made[0] if len(made) == 1 else ir.Intersection(made), '"')


def _json_spelling(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


Value = TypeVar("Value")

_INSTRUCTION: Final = "Extract what is asked for from the document."
_QUOTE: Final = " Copy texts from it word for word."
_MAX_TOKENS: Final = 1024
# The shortest output in tokens is looked for among the quotations too; there are many; after this many steps
# that of the output which is shortest in bytes will do.
_LIMITS: Final = Limits(distance_steps=10_000)


class Extract(Protocol):
    """The type of ``extract``: a program for any type."""

    def __call__(self, kind: type[Value], document: str, /, **settings: Any) -> Value:
        """Return the value."""

    def run(self, kind: type[Value], document: str, /, **settings: Any) -> Run[Value]:
        """Return the value with all that is known of it; with ``evidence=True`` also the positions of the texts."""

    def stream(self, kind: Any, document: str, /, **settings: Any) -> Generator[Event, None, None]:
        """Yield events; the last is ``Done``."""

    def aio(self, kind: type[Value], document: str, /, **settings: Any) -> Coroutine[Any, Any, Value]:
        """Return the value when it is awaited."""

    def arun(self, kind: type[Value], document: str, /, **settings: Any) -> Coroutine[Any, Any, Run[Value]]:
        """Return what ``run`` does when it is awaited."""

    def astream(self, kind: Any, document: str, /, **settings: Any) -> AsyncIterator[Event]:
        """Yield events asynchronously."""

    def map(self, items: Iterable[tuple[Any, str]], **settings: Any) -> MappedItems[Any]:
        """Run for each pair of a type and a document, several at a time: see ``Program.map``."""

    def amap(self, items: Iterable[tuple[Any, str]], **settings: Any) -> Coroutine[Any, Any, MappedItems[Any]]:
        """Return what ``map`` does when it is awaited."""


def _extract(
    kind: Any,
    document: str,
    /,
    *,
    evidence: bool | Literal["auto", "exact"] = "auto",
    whole_words: bool = True,
    search_limit: int = SEARCH_LIMIT,
    instruction: str | None = None,
) -> Generator[Any, Any, Any]:
    """Extract values of a type from a document.

    Call it as ``extract(Model, document)``, or by ``run``, ``stream``, ``map`` and their awaited forms, as any program.

    Args:
        kind: what to extract: a type, ``list[Model]`` for any number of one.
        document: the text.
        evidence: whether free texts must be quoted from the document; ``extract.run(...).evidence`` then says where
            they are.  A free text is a ``str`` without an enumeration, pattern or format that is not ``Written``.  A
            quotation is not empty, unless its field says ``min_length=0``.  With ``"exact"`` each quotation is the most
            probable one under the model, not the one that its most probable tokens lead to; that costs more forward
            passes.  ``"auto"`` is ``"exact"`` where a local model chooses its most probable tokens, and False on
            servers, canvases, with other samplers, and where the texts cannot be quoted within ``max_tokens``; a
            quotation whose search reaches its limit is then written token by token.
        search_limit: the most prefixes of a quotation that one search for the most probable runs through the model.
        whole_words: whether quotations neither begin nor end with white space or within a word.
        instruction: what to do, instead of the default instruction.

    It also takes the settings of a call, see ``Program``; ``max_tokens`` is 1024 by default.

    Raises:
        ProgramError: the document is no text.
        GrammarError: ``kind`` cannot be written; or what it requires cannot be quoted from the document.
        LimitExceeded: with ``"exact"``, a search did not end within ``search_limit``.
    """
    if not isinstance(document, str):
        remedy = "give its text, decoded"
        if isinstance(document, (list, tuple)):
            remedy = "for several documents, write extract.map([(Person, text), ...])"
        elif isinstance(kind, str) and not isinstance(document, (bytes, bytearray)):
            remedy = "the type comes first: extract(Person, text)"
        raise ProgramError("extract", "the document must be a text", evidence=found(document), remedy=remedy)
    if evidence not in (False, True, "auto", "exact"):
        raise ValueError(f"evidence is True, False, 'auto' or 'exact'; found {evidence!r:.40}")
    if evidence == "auto":
        answer = _quoted_where_possible(kind, document, whole_words=whole_words, search_limit=search_limit)
    elif evidence:
        exact = evidence == "exact"
        answer = quoted(kind, document, whole_words=whole_words, exact=exact, search_limit=search_limit)
    else:
        answer = answer_of(kind)
    if instruction is None:
        instruction = _INSTRUCTION + ("" if answer.source is None else _QUOTE)
    # The form before the document: after it, small models go on with the document (benchmarks/record/extraction.md).
    asked = " ".join(part for part in (instruction, description_of(answer)) if part)
    yield f"{asked}\n\n{document}"
    return (yield answer)


def _quoted_where_possible(kind: Any, document: str, *, whole_words: bool, search_limit: int) -> Answer:
    """The answer with the most probable quotations, and the answer without any in its place."""
    plain = answer_of(kind)
    if not isinstance(current_model.get(), LanguageModel):
        return plain
    try:
        answer = quoted(plain.annotation, document, whole_words=whole_words, exact=True, search_limit=search_limit)
    except ProgramError:
        return plain
    return answer if answer.source is None else replace(answer, source=replace(answer.source, otherwise=plain))


_extract.__name__ = _extract.__qualname__ = "extract"
extract: Final = cast("Extract", Program(_extract, ProgramSettings(max_tokens=_MAX_TOKENS, limits=_LIMITS)))
