"""Strings: ``minLength``, ``maxLength``, ``pattern`` and ``format``, all on the decoded text."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.grammar.json_schema.counts import least_count, most_count, united
from structgen.grammar.json_schema.formats import ASSERTED, NARROWED, NOT_REGULAR, format_language, format_string
from structgen.grammar.json_schema.membership import belongs
from structgen.grammar.json_schema.places import Place, malformed, refused
from structgen.grammar.json_schema.syntax import ANY_STRING
from structgen.grammar.nodes import ANY_CHAR, EMPTY, Complement, Grammar, Intersection, JsonString, Repeat
from structgen.grammar.regex import search_language

if TYPE_CHECKING:
    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["READERS", "StringFacet", "pattern_language", "string_term"]


class StringFacet:
    """What is left of the strings: a range of lengths in code points, and regular languages.

    Attributes:
        shortest, longest: the lengths; ``longest`` is ``None`` without a bound.
        languages: the decoded text belongs to each.
        formats: the names of formats, likewise.
        narrowed: those of them of which only a part is written, with their place.
        refusals: keywords that cannot be enforced, with their place.
    """

    __slots__ = ("formats", "languages", "longest", "narrowed", "refusals", "shortest")

    def __init__(self) -> None:
        self.shortest = 0
        self.longest: int | None = None
        self.languages: tuple[Grammar, ...] = ()
        self.formats: tuple[str, ...] = ()
        self.narrowed: tuple[tuple[Place, str], ...] = ()
        self.refusals: tuple[tuple[Place, str], ...] = ()

    @property
    def is_contradictory(self) -> bool:
        """Whether no length is left."""
        return self.longest is not None and self.shortest > self.longest

    def meet(self, other: StringFacet) -> StringFacet:
        """The strings that both leave."""
        both = StringFacet()
        both.shortest = max(self.shortest, other.shortest)
        bounds = [facet.longest for facet in (self, other) if facet.longest is not None]
        both.longest = min(bounds, default=None)
        both.languages = united(self.languages, other.languages)
        both.formats = tuple(dict.fromkeys(self.formats + other.formats))
        both.narrowed = self.narrowed + other.narrowed
        both.refusals = self.refusals + other.refusals
        return both

    def complement(self) -> StringFacet:
        """The strings that it does not leave.

        Raises:
            UnsupportedFeature: a format is known from the inside only, so that its complement is not.
        """
        other = StringFacet()
        self.refuse()
        if self.is_contradictory:
            return other
        for place, name in self.narrowed:
            refused(place, "format", f"'not' over format {name!r}, of which only a part is written, is not enforced")
        if not self.languages and not self.formats and self.longest is None:
            other.longest = self.shortest - 1
            return other
        if not self.languages and not self.formats and self.shortest == 0:
            other.shortest = (self.longest or 0) + 1
            return other
        parts = self.all_languages()
        if self.shortest > 0 or self.longest is not None:
            parts.append(Repeat(ANY_CHAR, self.shortest, self.longest))
        other.languages = (Complement(parts[0] if len(parts) == 1 else Intersection(parts)),)
        return other

    def admits(self, text: str) -> bool:
        """Whether ``text`` is left."""
        self.refuse()
        if len(text) < self.shortest or (self.longest is not None and len(text) > self.longest):
            return False
        return all(belongs(text, language) for language in self.all_languages())

    def all_languages(self) -> list[Grammar]:
        """The languages of patterns and formats."""
        return [*self.languages, *map(format_language, self.formats)]

    def refuse(self) -> None:
        """Refuse what cannot be enforced.

        Raises:
            UnsupportedFeature: a format is beyond a finite automaton.
        """
        for place, keyword in self.refusals:
            name = place.schema[keyword]
            refused(place, keyword, f"format {name!r} is not enforced: {NOT_REGULAR[name]}")


def _facet(shape: Shape) -> StringFacet:
    facet = shape.string
    if facet is None:
        facet = shape.string = StringFacet()
    return facet


def _min_length(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape).shortest = least_count(place, "minLength", value)


def _max_length(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape).longest = most_count(place, "maxLength", value)


def _pattern(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "pattern", "a regular expression in a string")
    _facet(shape).languages += (pattern_language(value, place, "pattern"),)


def _format(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "format", "a string")
    if value in ASSERTED:
        _facet(shape).formats += (value,)
        if value in NARROWED:
            _facet(shape).narrowed += ((place, value),)
    elif value in NOT_REGULAR:
        _facet(shape).refusals += ((place, "format"),)


READERS: Final = {
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
}


def pattern_language(pattern: str, place: Place, *steps: str | int) -> Grammar:
    """The texts in which ``pattern``, an ECMA-262 regular expression, occurs.

    Raises:
        GrammarError: as the regex front end raises, with the JSON Pointer made of ``place`` and ``steps``.
    """
    try:
        return search_language(pattern, dialect="ecma", limits=place.resource.limits)
    except (GrammarError, LimitExceeded) as error:
        raise _located(error, place, steps) from None


def _located(
    error: GrammarError | LimitExceeded, place: Place, steps: tuple[str | int, ...]
) -> GrammarError | LimitExceeded:
    """The same error, about a place in a schema."""
    subject, pointer = place.subject(*steps), place.at(*steps)
    match error:
        case GrammarSyntaxError():
            return GrammarSyntaxError(subject, error.problem, text=error.text, span=error.span, remedy=error.remedy)
        case UnsupportedFeature():
            return UnsupportedFeature(subject, error.feature, where=pointer, problem=error.problem, remedy=error.remedy)
        case LimitExceeded():
            return LimitExceeded(
                subject,
                limit=error.limit,
                maximum=error.maximum,
                evidence=error.evidence,
                remedy=error.remedy,
            )
    return type(error)(subject, error.problem, evidence=error.evidence, remedy=error.remedy)


def string_term(facet: StringFacet | None) -> Grammar:
    """The JSON strings that ``facet`` leaves.

    Raises:
        UnsupportedFeature: a format cannot be enforced.
    """
    if facet is None:
        return ANY_STRING
    if facet.is_contradictory:
        return EMPTY
    facet.refuse()
    is_bounded = facet.shortest > 0 or facet.longest is not None
    if not is_bounded and not facet.languages and len(facet.formats) == 1:
        return format_string(facet.formats[0])
    return _strings(facet.shortest, facet.longest, facet.languages, facet.formats)


def _strings(shortest: int, longest: int | None, languages: tuple[Grammar, ...], formats: tuple[str, ...]) -> Grammar:
    if not languages and not formats:
        return _of_length(shortest, longest)
    parts = [*languages, *map(format_language, formats)]
    if shortest > 0 or longest is not None:
        parts.append(Repeat(ANY_CHAR, shortest, longest))
    return JsonString(parts[0] if len(parts) == 1 else Intersection(parts))


@lru_cache(maxsize=1024)
def _of_length(shortest: int, longest: int | None) -> Grammar:
    if shortest == 0 and longest is None:
        return ANY_STRING
    return JsonString(Repeat(ANY_CHAR, shortest, longest))
