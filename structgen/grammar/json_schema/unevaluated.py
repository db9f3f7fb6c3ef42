"""``unevaluatedProperties`` and ``unevaluatedItems``: the rest that no schema in place has looked at.

They are resolved in the normal form.  Each shape of the schema they stand in comes from a known choice of
alternatives, so what these alternatives evaluate is known, and the keyword becomes a facet for all other members or
items.  What comes out of a negation evaluates nothing: a schema that fails, and one under ``not``, leaves no
annotations (2020-12, sections 11.2, 11.3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from structgen.grammar.json_schema.arrays import ArrayFacet
from structgen.grammar.json_schema.objects import ObjectFacet
from structgen.grammar.json_schema.places import Place
from structgen.grammar.json_schema.reading import Local, Part
from structgen.grammar.json_schema.shapes import Shape, meet

if TYPE_CHECKING:
    from structgen.grammar.json_schema.normal_form import NormalForm
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.nodes import Grammar

__all__ = ["judging_the_rest", "silenced"]


def judging_the_rest(shape: Shape, local: Local, forms: NormalForm) -> Shape:
    """The values of a shape of ``local`` whose unevaluated members and items are valid as ``local`` demands."""
    rest = Shape(local.place)
    for own in local.shape.objects:
        if own.unevaluated is not None and not any(_covers(facet) for facet in shape.objects):
            rest.objects = (_other_members(shape, local.place, own.unevaluated),)
    for array in local.shape.arrays:
        if array.unevaluated is not None and not any(_covers(facet) for facet in shape.arrays):
            rest.arrays = (_other_items(shape, local.place, array.unevaluated, forms),)
    return shape if rest.is_free else meet(shape, rest)


def silenced(shapes: list[Shape]) -> list[Shape]:
    """The same shapes, of which nothing counts as evaluated."""
    return [_silenced(shape) for shape in shapes]


def _silenced(shape: Shape) -> Shape:
    if not any(facet.annotates for facet in shape.objects) and not any(facet.annotates for facet in shape.arrays):
        return shape
    other = meet(shape, shape)
    other.values, other.refusals, other.branches = shape.values, shape.refusals, shape.branches
    other.objects = tuple(facet.silent() for facet in shape.objects)
    other.arrays = tuple(facet.silent() for facet in shape.arrays)
    return other


def _covers(facet: ObjectFacet | ArrayFacet) -> bool:
    return facet.covers_rest and facet.annotates


def _other_members(shape: Shape, place: Place, schema: Json) -> ObjectFacet:
    rest = ObjectFacet(place)
    rest.additional, rest.additional_keyword, rest.covers_rest = schema, "unevaluatedProperties", True
    patterns: dict[str, Grammar] = {}
    for facet in shape.objects:
        if facet.annotates:
            rest.properties |= dict.fromkeys(facet.properties, True)
            patterns |= dict(facet.patterns)
    rest.patterns = tuple(patterns.items())
    rest.pattern_schemas = dict.fromkeys(patterns, True)
    return rest


def _other_items(shape: Shape, place: Place, schema: Json, forms: NormalForm) -> ArrayFacet:
    rest = ArrayFacet(place)
    rest.rest, rest.rest_keyword, rest.covers_rest = schema, "unevaluatedItems", True
    facets = [facet for facet in shape.arrays if facet.annotates]
    rest.prefix = [True] * max((len(facet.prefix) for facet in facets), default=0)
    contained = [facet.contained for facet in facets if facet.contained is not None]
    if contained and place.resource.dialect.draft >= 2020:  # before, 'contains' evaluated nothing
        either: dict[str, Json] = {"anyOf": []}
        inner = Place(schema, place.resource, place, ("unevaluatedItems",))
        alternatives = Part("anyOf", (*contained, inner))
        whole = Place(either, place.resource, place, ("unevaluatedItems",))
        forms.adopt(Local(whole, Shape(whole), (Part(""), alternatives)))
        rest.rest = either
    return rest
