"""What ``propertyNames`` leaves of the names, as a regular language over the decoded name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.grammar.json_schema.exclusion import between_shapes
from structgen.grammar.json_schema.json_types import STRING
from structgen.grammar.json_schema.places import Place, refused
from structgen.grammar.json_schema.terms import alternatives
from structgen.grammar.nodes import ANY_CHAR, EMPTY, Choice, Grammar, Intersection, Literal, Repeat

if TYPE_CHECKING:
    from structgen.grammar.json_schema.normal_form import NormalForm
    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.validity import Validity

__all__ = ["NameLanguage"]


class NameLanguage:
    """The names that are valid against every one of the schemas."""

    def __init__(self, places: tuple[Place, ...], forms: NormalForm, validity: Validity) -> None:
        self._places = places
        self._forms = forms
        self._validity = validity

    def admits(self, name: str) -> bool:
        """Whether a name is left."""
        return self._validity.satisfies(name, self._places)

    def language(self) -> Grammar | None:
        """The names that are left; ``None``: all; ``EMPTY``: none.

        Raises:
            UnsupportedFeature: a keyword under ``propertyNames`` cannot be enforced.
        """
        terms: list[Grammar] = []
        shapes = [shape for shape in self._forms.shapes(self._places) if shape.types & STRING]
        for one in between_shapes(shapes, self._forms.overlaps):
            self._forms.note(one)
        for shape in shapes:
            for place, keyword in shape.refusals:
                refused(place, keyword)
            term = self._texts(shape)
            if term is None:
                return None
            terms.append(term)
        return alternatives(*terms)

    def _texts(self, shape: Shape) -> Grammar | None:
        if shape.values:
            texts = [value for value in self._validity.constants(shape) if isinstance(value, str)]
            return Choice([Literal(text.encode("utf-8", "replace")) for text in texts]) if texts else EMPTY
        facet = shape.string
        if facet is None:
            return None
        if facet.is_contradictory:
            return EMPTY
        parts = facet.all_languages()
        if facet.shortest or facet.longest is not None:
            parts.append(Repeat(ANY_CHAR, facet.shortest, facet.longest))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else Intersection(parts)
