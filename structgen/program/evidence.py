"""Answers whose texts are quoted from a document, and where they stand in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, final

from structgen.errors import ProgramError
from structgen.grammar.algebra import undescribed, with_children
from structgen.grammar.json_schema import json_schema
from structgen.grammar.nodes import (
    ANY_CHAR,
    EPSILON,
    Grammar,
    Intersection,
    JsonString,
    Repeat,
    Shared,
    choice,
    postorder,
    sequence,
)
from structgen.grammar.regex import regex, search_language
from structgen.grammar.substrings import occurrences, substrings
from structgen.program.answer import POLICY, Answer, answer_of, schema_of_answer
from structgen.program.fields import Path, path_text

__all__ = ["SEARCH_LIMIT", "Evidence", "Source", "quoted"]

# Stand for the quotations in the schema, and are exchanged in its grammar.  They are noncharacters, which no text has.
_QUOTED: Final = "^\ufdd0"
_QUOTED_OR_EMPTY: Final = "^\ufdd1"
_LANGUAGES: Final = {search_language(each, dialect="ecma"): each for each in (_QUOTED, _QUOTED_OR_EMPTY)}
# A character of a string with escapes only where they must be.  Other spellings of a quotation would only divide its
# probability, and each would be drawn anew where a check refuses the value.  (Hence no format of its own for what can
# be quoted: a format says what a string decodes to, and leaves open how it is spelled.)
_CHARACTER: Final = regex(r'[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00[01][0-9a-f]')
# A string with further keywords says itself what it may be.
_FREE_STRING: Final = frozenset(
    ("type", "minLength", "maxLength", "title", "description", "default", "examples", "deprecated")
)
_MAPS: Final = ("properties", "patternProperties", "$defs")
_SINGLE: Final = ("items", "additionalProperties")
_LISTS: Final = ("anyOf", "oneOf", "allOf", "prefixItems")
_ALTERNATIVES: Final = ("anyOf", "oneOf", "allOf")
_NOT_KNOWN: Final[Mapping[Path, float]] = {}
SEARCH_LIMIT: Final = 1_000


@final
@dataclass(frozen=True, slots=True)
class Evidence:
    """A field that is quoted from the document.

    Attributes:
        path: keys and indices from the root of the answer.
        text: the field's value.
        start: character of the document where it first occurs.
        end: character after that occurrence.
        spans: start and end of all occurrences, the first included, in order; they may overlap.
        logprob: of the most probable quotation, where that was asked for: the model's log-probability of writing it
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
        """What ``logprob`` is the logarithm of."""
        return None if self.logprob is None else math.exp(self.logprob)

    @property
    def name(self) -> str:
        """The path as text."""
        return path_text(self.path)


@final
@dataclass(frozen=True, slots=True)
class Source:
    """What an answer is quoted from.

    Attributes:
        document: the text.
        whole_words: whether quotations neither begin nor end within a word.
        schema: of the answer, with the patterns of the quoted strings.
        search_limit: of the search for the most probable quotations, see ``structgen.decode.search``; 0 where they are
            drawn token by token.
    """

    document: str = field(repr=False)
    whole_words: bool
    schema: Any = field(repr=False)
    search_limit: int = 0

    def evidence(self, value: Any, logprobs: Mapping[Path, float] = _NOT_KNOWN) -> tuple[Evidence, ...]:
        """The quotations in a value, in the order in which they stand in it.

        Args:
            value: as ``json.loads`` reads it.
            logprobs: of the quotations that are known to be the most probable ones.
        """
        return tuple(self._found(value, logprobs))

    def is_quoted(self, path: Path) -> bool:
        """Whether a string at ``path`` may be quoted."""
        return any(map(_is_quoted, self._schemas_at(path)))

    def _found(self, value: Any, logprobs: Mapping[Path, float]) -> Iterator[Evidence]:
        for path, text in _texts(value):
            if not self.is_quoted(path):
                continue
            spans = tuple(occurrences(self.document, text, whole_words=self.whole_words))
            if spans:  # none where the field may be empty, or is of another type of a union
                yield Evidence(path, text, *spans[0], spans, logprobs.get(path))

    def _schemas_at(self, path: Path) -> list[Any]:
        """The schemas that the value at ``path`` may belong to."""
        found = self._alternatives([self.schema])
        for part in path:
            found = self._alternatives([below for schema in found for below in _below(schema, part)])
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


def quoted(
    annotation: Any,
    document: str,
    *,
    whole_words: bool = True,
    exact: bool = False,
    search_limit: int = SEARCH_LIMIT,
) -> Answer:
    """Ask for values of a type whose free texts occur in ``document``.

    Free are the strings (``str``) without an enumeration, pattern or format of their own; names of members, which are
    no values, are not quoted.  A quotation is not empty, unless the type says ``min_length=0``.

    Args:
        annotation: a type.
        document: what is quoted.
        whole_words: only quotations that neither begin nor end with white space or within a word.
        exact: whether the most probable quotation is searched for wherever one begins, in place of the sampler's.
        search_limit: the most beginnings of a quotation that one search runs through the model.

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
        return replace(answer, grammar=quotations, source=Source(document, whole_words, {"pattern": _QUOTED}, limit))
    if answer.form == "text":
        return answer
    described, formats = schema_of_answer(answer.annotation)
    schema = _with_quotations(described)
    spelled = substrings(document, whole_words=whole_words, spell=_spelled)
    grammar = _exchanged(undescribed(json_schema(schema, policy=POLICY, formats=formats)), spelled)
    return replace(answer, grammar=grammar, source=Source(document, whole_words, schema, limit))


def _with_quotations(schema: Any) -> Any:
    """A copy in which the free strings have a pattern that stands for the quotations.  Linear."""
    made: list[Any] = [None]
    work: list[tuple[Any, Any, Any]] = [(made, 0, schema)]  # where the copy goes
    while work:
        home, key, held = work.pop()
        if not isinstance(held, dict):
            home[key] = held
            continue
        copy = home[key] = dict(held)
        if held.get("type") == "string" and _FREE_STRING.issuperset(held):
            copy["pattern"] = _QUOTED_OR_EMPTY if held.get("minLength") == 0 else _QUOTED
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


def _exchanged(term: Grammar, quotations: Grammar) -> Grammar:
    """The term with quotations in the strings that stand for them; what holds these is not shared with other grammars.

    Args:
        term: of the schema with the patterns.
        quotations: as they are spelled in JSON.
    """
    made: dict[int, Grammar] = {}
    for node in postorder(term):
        changed = _exchanged_string(node.value, quotations) if isinstance(node, JsonString) else None
        if changed is None:
            changed = with_children(node, [made[id(child)] for child in node.children])
            if isinstance(changed, Shared) and changed is not node:
                changed = changed.item
        made[id(node)] = changed
    return made[id(term)]


def _exchanged_string(value: Grammar, quotations: Grammar) -> Grammar | None:
    """The quotations of the lengths that the value of a string may have; None where it stands for none."""
    parts = value.items if isinstance(value, Intersection) else (value,)
    if not any(part in _LANGUAGES for part in parts):
        return None
    made: list[Grammar] = []
    for part in parts:
        if part in _LANGUAGES:
            made.append(choice(EPSILON, quotations) if _LANGUAGES[part] == _QUOTED_OR_EMPTY else quotations)
        elif isinstance(part, Repeat) and part.item == ANY_CHAR:
            made.append(Repeat(_CHARACTER, part.min, part.max))
        else:
            raise ProgramError(
                "evidence",
                "a free text is restricted in another place of its schema",
                evidence=str(part)[:80],
                remedy="state the restriction in the type of the text itself; it is then not quoted",
            )
    return sequence('"', made[0] if len(made) == 1 else Intersection(made), '"')


def _spelled(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _is_quoted(schema: Any) -> bool:
    return schema.get("pattern") in (_QUOTED, _QUOTED_OR_EMPTY)


def _texts(value: Any) -> Iterator[tuple[Path, str]]:
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


def _below(schema: Any, part: str | int) -> list[Any]:
    """The schemas of a member or item, as far as this schema names them."""
    if isinstance(part, str):
        found = schema.get("properties", {}).get(part, schema.get("additionalProperties"))
    else:
        first = schema.get("prefixItems", ())
        found = first[part] if part < len(first) else schema.get("items")
    return [] if found is None else [found]
