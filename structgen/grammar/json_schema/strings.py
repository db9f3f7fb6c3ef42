"""Strings: ``minLength``, ``maxLength``, ``pattern`` and ``format``, all on the decoded text."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded, UnsupportedFeature
from structgen.grammar.json_schema.counts import least_count, most_count, united
from structgen.grammar.json_schema.formats import ASSERTED, PLAIN_HOSTNAME, STANDARD
from structgen.grammar.json_schema.membership import belongs, members
from structgen.grammar.json_schema.places import Place, malformed, refused
from structgen.grammar.json_schema.syntax import ANY_STRING
from structgen.grammar.nodes import ANY_CHAR, EMPTY, Complement, Grammar, Intersection, JsonString, Repeat
from structgen.grammar.regex import search_language

if TYPE_CHECKING:
    from collections.abc import Iterable

    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.json_schema.user_formats import StringFormat

__all__ = ["READERS", "StringFacet", "pattern_language", "string_term"]


class StringFacet:
    """What is left of the strings: a range of lengths in code points, and regular languages.

    Attributes:
        shortest, longest: the lengths; ``longest`` is ``None`` without a bound.
        languages: the decoded text belongs to each.
        formats: formats, likewise, each with the schema that has it.
    """

    __slots__ = ("formats", "languages", "longest", "shortest")

    def __init__(self) -> None:
        self.shortest = 0
        self.longest: int | None = None
        self.languages: tuple[Grammar, ...] = ()
        self.formats: dict[StringFormat, Place] = {}

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
        both.formats = self.formats | other.formats
        return both

    def with_languages(self, languages: tuple[Grammar, ...]) -> StringFacet:
        """The same lengths and formats with other languages."""
        other = StringFacet()
        other.shortest, other.longest, other.formats = self.shortest, self.longest, self.formats
        other.languages = languages
        return other

    def complement(self) -> list[StringFacet]:
        """The strings that it does not leave, as a union; of a format that is not regular, those certainly outside.

        Raises:
            UnsupportedFeature: of a format that is not regular no outer bound is known, so that nothing is outside.
        """
        if self.is_contradictory:
            return [StringFacet()]
        for one, place in self.formats.items():
            if one.unbounded:
                refused(place, "format", f"'not' over format {one.name!r}, {one.unbounded}, is not enforced")
        shorter, longer, other = StringFacet(), StringFacet(), StringFacet()
        shorter.longest = self.shortest - 1
        found = [shorter] if self.shortest > 0 else []
        if self.longest is not None:
            longer.shortest = self.longest + 1
            found.append(longer)
        parts = self.all_languages(is_proof=True)
        if parts:
            other.languages = (Complement(parts[0] if len(parts) == 1 else Intersection(parts)),)
            found.append(other)
        return found

    def admits(self, text: str) -> bool:
        """Whether ``text`` is left.

        Raises:
            UnsupportedFeature: whether it belongs to a format is not known.
        """
        if len(text) < self.shortest or (self.longest is not None and len(text) > self.longest):
            return False
        if not all(belongs(text, language) for language in self.languages):
            return False
        for one, place in self.formats.items():
            is_member = one.admits(text)
            if is_member is None:
                refused(place, "format", f"whether {text!r:.60} is a {one.name} cannot be decided")
            if not is_member:
                return False
        return True

    def admitted(self, texts: Iterable[str]) -> frozenset[str]:
        """Those of ``texts`` that are left; the same as asking one by one.

        Raises:
            UnsupportedFeature: whether one of them belongs to a format is not known.
        """
        left = frozenset(texts)
        for language in self.languages:  # most are told apart here, at once
            left = members(left, language)
        return frozenset(text for text in left if self.admits(text))

    def all_languages(self, *, is_proof: bool = False) -> list[Grammar]:
        """The languages of patterns and formats; for a proof of emptiness all of a format, else what is written.

        Raises:
            UnsupportedFeature: what is written of a format is not regular.
        """
        if is_proof:
            return [*self.languages, *(one.outer for one in self.formats)]
        for one, place in self.formats.items():
            if not one.is_regular:
                refused(
                    place,
                    "format",
                    f"format {one.name!r}, which is not regular, is not combined with lengths, patterns, other formats "
                    "or names",
                    remedy="say it in the grammar of the format, or write that without recursion",
                )
        return [*self.languages, *(one.language for one in self.formats)]


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
    document = place.resource.document
    if value in document.formats:
        _facet(shape).formats[document.formats[value]] = place
    elif value in ASSERTED and document.asserts_formats:
        is_old = value == "hostname" and place.resource.dialect.draft <= 6
        _facet(shape).formats[STANDARD[PLAIN_HOSTNAME if is_old else value]] = place


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


def string_term(facet: StringFacet | None, longest: int | None = None, *, is_proof: bool = False) -> Grammar:
    """The JSON strings that ``facet`` leaves, up to ``longest``; for a proof of emptiness perhaps more."""
    if facet is None:
        return _of_length(0, longest)
    if longest is not None:
        bound = StringFacet()
        bound.longest = longest
        facet = facet.meet(bound)
    if facet.is_contradictory:
        return EMPTY
    is_bounded = facet.shortest > 0 or facet.longest is not None
    if not is_bounded and not facet.languages and len(facet.formats) == 1 and not is_proof:
        return next(iter(facet.formats)).string
    parts = facet.all_languages(is_proof=is_proof)
    if not parts:
        return _of_length(facet.shortest, facet.longest)
    if is_bounded:
        parts.append(Repeat(ANY_CHAR, facet.shortest, facet.longest))
    return JsonString(parts[0] if len(parts) == 1 else Intersection(parts))


@lru_cache(maxsize=1024)
def _of_length(shortest: int, longest: int | None) -> Grammar:
    if shortest == 0 and longest is None:
        return ANY_STRING
    return JsonString(Repeat(ANY_CHAR, shortest, longest))
