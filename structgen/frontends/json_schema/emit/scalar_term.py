"""Terms of strings, numbers, booleans and null, and of the arrays and objects that nothing constrains."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from structgen.frontends.disjointness import have_disjoint_pair
from structgen.frontends.json_schema.emit.number import number_term
from structgen.frontends.json_schema.emit.syntax import BOOLEAN_TERM, NULL_TERM, Syntax
from structgen.frontends.json_schema.normal.scalar_assertion import NumberAssertion, string_term
from structgen.frontends.json_schema.source.json_value import (
    ANY,
    ARRAY,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
)
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.term import alternatives
from structgen.grammar.nodes import EMPTY, Grammar

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.normal.scalar_assertion import StringAssertion

__all__ = ["Reasons", "ScalarTerms"]

Reasons: TypeAlias = list[tuple[tuple[Location, ...], str]]
"""Why terms are empty: the schemas, and a clause that follows their pointers."""


class ScalarTerms:
    """Makes the scalar terms of one policy.

    Attributes:
        syntax: the terms of the policy.
        counts_levels: whether the policy bounds the nesting.
    """

    def __init__(self, syntax: Syntax, reasons: Reasons) -> None:
        """Start without terms; an empty term adds its reason to ``reasons``."""
        self.counts_levels = syntax.policy.depth is not None
        self.syntax = syntax
        self._reasons = reasons
        self._unconstrained: dict[tuple[int, int], Grammar] = {}  # by the types and the level

    def term(self, disjunct: Disjunct, level: int, *, is_proof: bool) -> Grammar:
        """All values of a disjunct, inside ``level`` containers, except the arrays and objects that it constrains.

        For a proof of emptiness, formats may be replaced by supersets.
        """
        if disjunct.string or disjunct.number:
            return alternatives(*self._terms(disjunct, level, is_proof=is_proof))
        types = disjunct.types & ~((ARRAY if disjunct.arrays else 0) | (OBJECT if disjunct.objects else 0))
        key = types, level if self.counts_levels else 0
        term = self._unconstrained.get(key)
        if term is None:
            is_any = types == ANY
            terms = [self.syntax.at(level).value] if is_any else self._terms(disjunct, level, is_proof=is_proof)
            term = self._unconstrained[key] = terms[0] if is_any else alternatives(*terms)
        return term

    def is_deepest(self, level: int) -> bool:
        """Whether the policy allows no array and no object at this level."""
        return self.counts_levels and level >= len(self.syntax.levels) - 1

    def note_too_deep(self, disjunct: Disjunct) -> None:
        """Note that the policy excludes the arrays and objects of a disjunct."""
        why = f": it nests deeper than max_depth={self.syntax.policy.depth} of the policy"
        self._reasons.append((disjunct.origins, why))

    def _terms(self, disjunct: Disjunct, level: int, *, is_proof: bool) -> list[Grammar]:
        types, syntax = disjunct.types, self.syntax
        terms: list[Grammar] = []
        if types & STRING:
            terms.append(self._string(disjunct, is_proof=is_proof))
        if types & NUMBER:
            assertion = disjunct.number
            if not types & INTEGER:
                assertion = (assertion or NumberAssertion()).without_integers()
            term = number_term(assertion, syntax, disjunct.origins, integral=not types & FRACTION, is_proof=is_proof)
            terms.append(term)
            if term is EMPTY:
                why = ": no number is left by 'minimum', 'maximum' and 'multipleOf'"
                self._reasons.append((disjunct.origins, why))
        if types & BOOLEAN:
            terms.append(BOOLEAN_TERM)
        if types & NULL:
            terms.append(NULL_TERM)
        if types & (ARRAY | OBJECT) and self.is_deepest(level):
            self.note_too_deep(disjunct)
        if types & ARRAY and not disjunct.arrays:
            terms.append(syntax.at(level).array)
        if types & OBJECT and not disjunct.objects:
            terms.append(syntax.at(level).object)
        return terms

    def _string(self, disjunct: Disjunct, *, is_proof: bool) -> Grammar:
        assertion, max_length = disjunct.string, self.syntax.policy.max_length
        is_empty = is_proof and _is_empty(assertion, disjunct.origins[0])
        term = EMPTY if is_empty else string_term(assertion, max_length, is_proof=is_proof)
        if term is EMPTY:
            is_too_short = assertion is not None and max_length is not None and assertion.shortest > max_length
            bound = f"max_length={max_length} of the policy" if is_too_short else "'maxLength'"
            self._reasons.append((disjunct.origins, f": 'minLength' exceeds {bound}"))
        return term


def _is_empty(assertion: StringAssertion | None, origin: Location) -> bool:
    """Whether two languages of an assertion are provably disjoint."""
    return assertion is not None and have_disjoint_pair(
        assertion.all_languages(is_proof=True), origin.counter("pattern")
    )
