"""Whether a constant of the schema satisfies the other keywords, to filter ``enum`` and ``const``."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from structgen.grammar.json_schema.arrays import ArrayLayout
from structgen.grammar.json_schema.equality import type_of, value_key
from structgen.grammar.json_schema.exclusion import between_shapes, refuse_overlap
from structgen.grammar.json_schema.json_types import ARRAY, OBJECT
from structgen.grammar.json_schema.membership import belongs
from structgen.grammar.json_schema.places import Place, refused
from structgen.grammar.json_schema.trampoline import run

if TYPE_CHECKING:
    from structgen.grammar.json_schema.normal_form import NormalForm
    from structgen.grammar.json_schema.objects import ObjectFacet
    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["Validity"]

_Answer = Generator[object, Any, bool]


class Validity:
    """Validates values against schemas that are read already."""

    def __init__(self, forms: NormalForm) -> None:
        self._forms = forms

    def constants(self, shape: Shape) -> list[Json]:
        """The values that all ``enum`` and ``const`` of a shape have in common and its other keywords admit."""
        members = shape.values[0].members
        for values in shape.values[1:]:
            members = [value for value in members if value_key(value) in values.keys]
        if shape.string or shape.number or shape.arrays or shape.objects:
            return [value for value in members if run(self._fits(value, shape))]
        return [value for value in members if type_of(value) & shape.types or type_of(value) == 0]

    def satisfies(self, value: Json, places: tuple[Place, ...]) -> bool:
        """Whether ``value`` is valid against every one of the schemas."""
        return run(self._satisfies(value, places))

    def _satisfies(self, value: Json, places: tuple[Place, ...]) -> _Answer:
        if not places:
            return True
        fitting: list[Shape] = []
        for shape in self._forms.shapes(places):
            if shape.types & type_of(value) and _is_constant(value, shape):
                for place, keyword in shape.refusals:
                    refused(place, keyword)
                if (yield self._fits(value, shape)):
                    fitting.append(shape)
        for one in between_shapes(fitting):
            refuse_overlap(one)
        return len(fitting) > 0

    def _fits(self, value: Json, shape: Shape) -> _Answer:
        """Whether ``value`` satisfies all but ``enum`` and ``const``."""
        kind = type_of(value)
        if kind and not kind & shape.types:
            return False
        if isinstance(value, str):
            return shape.string is None or shape.string.admits(value)
        if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
            return shape.number is None or shape.number.admits(value)
        if kind == ARRAY and shape.arrays:
            is_valid: bool = yield self._array(value, shape)
            return is_valid
        if kind == OBJECT and shape.objects:
            for facet in shape.objects:
                if not (yield self._object(value, facet)):
                    return False
        return True

    def _array(self, value: list[Json], shape: Shape) -> _Answer:
        layout = ArrayLayout(shape.arrays)
        if len(value) < layout.fewest or (layout.most is not None and len(value) > layout.most):
            return False
        for index, item in enumerate(value):
            places = layout.items[index] if index < len(layout.items) else layout.rest
            if not (yield self._satisfies(item, places)):
                return False
        return True

    def _object(self, value: dict[str, Json], facet: ObjectFacet) -> _Answer:
        for keyword in facet.refusals:
            refused(facet.place, keyword)
        if len(value) < facet.fewest or (facet.most is not None and len(value) > facet.most):
            return False
        if any(name not in value for name in facet.required):
            return False
        for name, member in value.items():
            places = [facet.property(name)] if name in facet.properties else []
            places += [facet.pattern(text) for text, language in facet.patterns if belongs(name, language)]
            additional = facet.additional_place()
            if not places and additional is not None:
                places = [additional]
            if not (yield self._satisfies(member, tuple(places))):
                return False
            if facet.names is not True:
                names = Place(facet.names, facet.place.resource, facet.place, ("propertyNames",))
                if not (yield self._satisfies(name, (names,))):
                    return False
        return True


def _is_constant(value: Json, shape: Shape) -> bool:
    key = value_key(value) if shape.values else None
    return all(key in values.keys for values in shape.values)
