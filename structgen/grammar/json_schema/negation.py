"""The complement of a shape, as a disjunction of shapes.

Shapes are conjunctions by type, so what is not in one is of another type, or of the same type outside one of its
facets.  Strings and numbers are complemented as languages and intervals.  Of arrays and objects the facet is only
marked as negated: that a member or an item is at fault is watched for while the value is read (``object_chains``,
``array_chains``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING

from structgen.grammar.json_schema.arrays import ArrayFacet
from structgen.grammar.json_schema.equality import type_of, value_key
from structgen.grammar.json_schema.json_types import ANY, ARRAY, BOOLEAN, NUMBER, OBJECT, STRING
from structgen.grammar.json_schema.numbers import NumberFacet, exact
from structgen.grammar.json_schema.objects import ObjectFacet
from structgen.grammar.json_schema.places import Place
from structgen.grammar.json_schema.shapes import Shape, Values
from structgen.grammar.json_schema.strings import StringFacet
from structgen.grammar.nodes import Choice, Complement, Literal

if TYPE_CHECKING:
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["complement_of", "lacking", "mentioning", "requiring"]


def complement_of(shape: Shape, constants: Callable[[Shape], list[Json]]) -> list[Shape]:
    """The values outside ``shape``; ``constants`` lists the members of one that has ``values``.

    Raises:
        UnsupportedFeature: a part of the shape cannot be enforced, so neither can its complement.
    """
    place = shape.origins[0]
    found = _outside_values(constants(shape), shape.values[0], place) if shape.values else _outside(shape, place)
    if shape.refusals:
        for one in found:
            one.refusals += shape.refusals
    return found


def lacking(place: Place, name: str) -> list[Shape]:
    """The values that are no objects with a member ``name``."""
    shape = Shape(place)
    facet = ObjectFacet(place)
    facet.properties = {name: False}
    facet.annotates = False
    shape.objects = (facet,)
    return [shape]


def requiring(place: Place, name: str) -> list[Shape]:
    """The objects with a member ``name``."""
    shape = Shape(place)
    shape.types = OBJECT
    facet = ObjectFacet(place)
    facet.properties = {name: True}
    facet.required = [name]
    facet.annotates = False
    shape.objects = (facet,)
    return [shape]


def mentioning(place: Place, names: Iterable[str]) -> list[Shape]:
    """All values; the names count as declared."""
    shape = Shape(place)
    facet = ObjectFacet(place)
    facet.properties = dict.fromkeys(names, True)
    facet.annotates = False
    shape.objects = (facet,)
    return [shape]


def _of_type(place: Place, types: int) -> Shape:
    shape = Shape(place)
    shape.types = types
    return shape


def _outside(shape: Shape, place: Place) -> list[Shape]:
    rest = _of_type(place, ANY & ~shape.types)
    others: list[Shape] = []
    if shape.string and shape.types & STRING:
        for strings in shape.string.complement():
            others.append(_of_type(place, STRING))
            others[-1].string = strings
    if shape.number and shape.types & NUMBER:
        for interval in shape.number.complement():
            others.append(_of_type(place, shape.types & NUMBER))
            others[-1].number = interval
    if shape.types & ARRAY:
        for array in shape.arrays:
            others += _outside_array(array, place)
    if shape.types & OBJECT:
        for facet in shape.objects:
            others += _outside_object(facet, place)
    return [*([rest] if rest.types else []), *others]


def _outside_array(facet: ArrayFacet, place: Place) -> list[Shape]:
    found: list[Shape] = []

    def other(array: ArrayFacet) -> None:
        found.append(_of_type(place, ARRAY))
        found[-1].arrays = (array,)
        found[-1].refusals = tuple((facet.place, keyword) for keyword in facet.refusals)

    if facet.is_negated or facet.is_plain:
        other(facet.complement())
    if facet.contained is not None:
        if facet.fewest_contained:
            other(_containing(facet, 0, facet.fewest_contained - 1))
        if facet.most_contained is not None:
            other(_containing(facet, facet.most_contained + 1, None))
    if not found and facet.refusals:
        other(facet)
    return found


def _containing(facet: ArrayFacet, fewest: int, most: int | None) -> ArrayFacet:
    counted = ArrayFacet(facet.place)
    counted.annotates = False
    counted.contained, counted.fewest_contained, counted.most_contained = facet.contained, fewest, most
    return counted


def _outside_object(facet: ObjectFacet, place: Place) -> list[Shape]:
    found: list[Shape] = []
    if not facet.only_depends:
        found.append(_of_type(place, OBJECT))
        found[-1].objects = (facet.complement_of_name() or facet.complement(),)
    for name, others in facet.dependents.items():
        for other in dict.fromkeys(others):
            found.append(_of_type(place, OBJECT))
            required, missing = requiring(place, name)[0], lacking(place, other)[0]
            found[-1].objects = (*required.objects, *missing.objects)
    return found


def _outside_values(values: list[Json], source: Values, place: Place) -> list[Shape]:
    """The values that differ from finitely many."""
    rest = Shape(place)
    texts: list[str] = []
    numbers: list[int | Decimal] = []
    truths: set[bool] = set()
    for value in values:
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, bool):
            truths.add(value)
        elif value is None:
            rest.types &= ~type_of(None)
        elif isinstance(value, (int, float, Decimal)):
            numbers.append(exact(value))
        elif isinstance(value, dict):
            rest.objects += (_exactly_object(value, source).complement(),)
        else:
            rest.arrays += (_exactly_array(value, source).complement(),)
    if texts:
        rest.string = StringFacet()
        literals = [Literal(text.encode("utf-8", "replace")) for text in texts]
        rest.string.languages = (Complement(literals[0] if len(literals) == 1 else Choice(literals)),)
    if numbers:
        rest.number = NumberFacet()
        rest.number.excluded = tuple(numbers)
    if not truths:
        return [rest]
    rest.types &= ~BOOLEAN
    if len(truths) == 2:
        return [rest]
    other = _of_type(place, BOOLEAN)
    other.values = (Values([not next(iter(truths))], source.place, source.keyword),)
    return [rest, other]


def _exactly_object(value: dict[str, Json], source: Values) -> ObjectFacet:
    """The facet that one object alone satisfies."""
    key = value_key(value)
    known = source.facets.get(key)
    if not isinstance(known, ObjectFacet):
        known = source.facets[key] = ObjectFacet(_made(source))
        known.properties = {name: {"enum": [member]} for name, member in value.items()}
        known.required = list(value)
        known.additional = False
    return known


def _exactly_array(value: list[Json], source: Values) -> ArrayFacet:
    """The facet that one array alone satisfies."""
    key = value_key(value)
    known = source.facets.get(key)
    if not isinstance(known, ArrayFacet):
        known = source.facets[key] = ArrayFacet(_made(source))
        known.prefix = [{"enum": [item]} for item in value]
        known.fewest = known.most = len(value)
    return known


def _made(source: Values) -> Place:
    """The place of schemas that stand for a constant."""
    return Place(source.place.schema, source.place.resource, source.place, (source.keyword,))
