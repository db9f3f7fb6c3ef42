"""Which values a schema has: whether a constant is one of them, and whether they are unbounded in number."""

from __future__ import annotations

from collections.abc import Generator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from structgen.frontends.json_schema.normal.closed_objects import names_some
from structgen.frontends.json_schema.normal.exclusion import between_shapes
from structgen.frontends.json_schema.source.json_value import ARRAY, NUMBER, OBJECT, STRING, type_of, value_key
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.trampoline import run

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ObjectAssertion
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = ["Validity", "is_unbounded"]

_Answer = Generator[object, Any, bool]


class Validity:
    """Validates values against schemas that are read already."""

    def __init__(self, forms: NormalForm) -> None:
        self._forms = forms

    def constants(self, shape: Disjunct) -> list[Json]:
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

    def satisfies(self, value: Json, places: tuple[Location, ...]) -> bool:
        """Whether ``value`` is valid against every one of the schemas."""
        return run(self._satisfies(value, places))

    def _satisfies(self, value: Json, places: tuple[Location, ...]) -> _Answer:
        if not places:
            return True
        fitting: list[Disjunct] = []
        for shape in self._forms.shapes(places):
            if shape.types & type_of(value) and _is_constant(value, shape):
                for place, keyword in shape.refusals:
                    refused(place, keyword)
                if (yield self._fits(value, shape)):
                    fitting.append(shape)
        for one in between_shapes(fitting, self._forms.overlaps):
            self._forms.note(one)
        return len(fitting) > 0

    def _fits(self, value: Json, shape: Disjunct) -> _Answer:
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

    def _array(self, value: list[Json], facet: ArrayAssertion) -> _Answer:
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

    def _items(self, value: list[Json], facet: ArrayAssertion) -> _Answer:
        if len(value) < facet.fewest or (facet.most is not None and len(value) > facet.most):
            return False
        for index, item in enumerate(value):
            place = facet.item(index)
            if place is not None and not (yield self._satisfies(item, (place,))):
                return False
        return True

    def _object(self, value: dict[str, Json], facet: ObjectAssertion) -> _Answer:
        is_inside: bool = yield self._members(value, facet)
        if is_inside == facet.is_negated:
            return False
        return not any(other not in value for name in value for other in facet.dependents.get(name, ()))

    def _members(self, value: dict[str, Json], facet: ObjectAssertion) -> _Answer:
        if len(value) < facet.fewest or (facet.most is not None and len(value) > facet.most):
            return False
        if any(name not in value for name in facet.required):
            return False
        for name, member in value.items():
            if not (yield self._satisfies(member, facet.places_of(name))):
                return False
            if facet.names is not True:
                names = Location(facet.names, facet.place.resource, facet.place, ("propertyNames",))
                if not (yield self._satisfies(name, (names,))):
                    return False
        return True


def _is_constant(value: Json, shape: Disjunct) -> bool:
    key = value_key(value) if shape.values else None
    return all(key in values.keys for values in shape.values)


_MAX_DEPTH: Final = 8


def is_unbounded(places: tuple[Location, ...], forms: NormalForm, depth: int = 0, *, closes: bool = False) -> bool:
    """Whether a schema has more values than any text has room for, if it has one at all.

    Yes is certain; no may be wrong: patterns, formats, bounds of numbers and alternatives are not looked into.  With
    ``closes``, undeclared members are forbidden.
    """
    if not places:
        return True
    if len(places) > 1 or depth > _MAX_DEPTH or places[0].is_negated:
        return False
    place = places[0]
    if isinstance(place.schema, bool):
        return place.schema
    local = forms.read(place)
    part = local.wrapped
    if part is not None:
        inner = [inner for _, inner in forms.in_place(local)]
        return len(inner) == 1 and is_unbounded((inner[0],), forms, depth + 1, closes=closes)
    shape = local.shape
    if local.parts or shape.values or shape.refusals or local.looks_at_the_rest:
        return False
    types, text = shape.types, shape.string
    if types & STRING and (text is None or not (text.languages or text.formats or text.longest is not None)):
        return True
    if types & NUMBER and shape.number is None:
        return True
    return bool(
        (types & ARRAY and _are_arrays_unbounded(shape.arrays, forms, depth, closes=closes))
        or (types & OBJECT and _are_objects_unbounded(shape.objects, forms, depth, closes=closes))
    )


def _are_arrays_unbounded(facets: tuple[ArrayAssertion, ...], forms: NormalForm, depth: int, *, closes: bool) -> bool:
    if not facets:
        return True
    facet = facets[0]
    if facet.prefix or facet.contained is not None or facet.refusals or facet.most == 0:
        return False
    rest = facet.further()
    return is_unbounded(() if rest is None else (rest,), forms, depth + 1, closes=closes)


def _are_objects_unbounded(facets: tuple[ObjectAssertion, ...], forms: NormalForm, depth: int, *, closes: bool) -> bool:
    if not facets:
        return True
    facet = facets[0]
    if facet.patterns or facet.names is not True or facet.dependents or facet.most is not None:
        return False
    if facet.additional is True and not (closes and not facet.covers_rest and names_some(facet)):
        return True
    return any(is_unbounded((facet.property(name),), forms, depth + 1, closes=closes) for name in facet.properties)
