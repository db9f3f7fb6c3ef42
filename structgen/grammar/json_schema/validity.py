"""Whether a constant of the schema satisfies the other keywords, to filter ``enum`` and ``const``."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from structgen.grammar.json_schema.equality import type_of, value_key
from structgen.grammar.json_schema.exclusion import between_shapes
from structgen.grammar.json_schema.json_types import ARRAY, OBJECT, STRING
from structgen.grammar.json_schema.places import Place, refused
from structgen.grammar.json_schema.trampoline import run

if TYPE_CHECKING:
    from structgen.grammar.json_schema.arrays import ArrayFacet
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
        first = shape.values[0]
        members = first.members
        for values in shape.values[1:]:
            members = [value for value in members if value_key(value) in values.keys]
        if shape.string or shape.number or shape.arrays or shape.objects:
            if shape.string is None or not shape.types & STRING:
                return [value for value in members if run(self._fits(value, shape))]
            if len(shape.values) == 1 and len(first.texts) == len(members):
                texts = shape.string.admitted(first.texts)
                return [value for value in members if value in texts] if texts else []
            texts = shape.string.admitted(value for value in members if isinstance(value, str))
            return [
                value
                for value in members
                if (value in texts if isinstance(value, str) else run(self._fits(value, shape)))
            ]
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
        for one in between_shapes(fitting, self._forms.overlaps):
            self._forms.note(one)
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
        if kind == ARRAY:
            for array in shape.arrays:
                if not (yield self._array(value, array)):
                    return False
        if kind == OBJECT:
            for facet in shape.objects:
                if not (yield self._object(value, facet)):
                    return False
        return True

    def _array(self, value: list[Json], facet: ArrayFacet) -> _Answer:
        is_inside: bool = yield self._items(value, facet)
        if is_inside == facet.is_negated:
            return False
        if "uniqueItems" in facet.refusals and len(set(map(value_key, value))) < len(value):
            return False
        if facet.contained is None:
            return True
        count = 0
        for item in value:
            count += yield self._satisfies(item, (facet.contained,))
        return facet.fewest_contained <= count and (facet.most_contained is None or count <= facet.most_contained)

    def _items(self, value: list[Json], facet: ArrayFacet) -> _Answer:
        if len(value) < facet.fewest or (facet.most is not None and len(value) > facet.most):
            return False
        for index, item in enumerate(value):
            place = facet.item(index)
            if place is not None and not (yield self._satisfies(item, (place,))):
                return False
        return True

    def _object(self, value: dict[str, Json], facet: ObjectFacet) -> _Answer:
        is_inside: bool = yield self._members(value, facet)
        if is_inside == facet.is_negated:
            return False
        return not any(other not in value for name in value for other in facet.dependents.get(name, ()))

    def _members(self, value: dict[str, Json], facet: ObjectFacet) -> _Answer:
        if len(value) < facet.fewest or (facet.most is not None and len(value) > facet.most):
            return False
        if any(name not in value for name in facet.required):
            return False
        for name, member in value.items():
            if not (yield self._satisfies(member, facet.places_of(name))):
                return False
            if facet.names is not True:
                names = Place(facet.names, facet.place.resource, facet.place, ("propertyNames",))
                if not (yield self._satisfies(name, (names,))):
                    return False
        return True


def _is_constant(value: Json, shape: Shape) -> bool:
    key = value_key(value) if shape.values else None
    return all(key in values.keys for values in shape.values)
