"""Whether a schema certainly has values without end, as far as a short look at it tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.additional import names_some
from structgen.grammar.json_schema.json_types import ARRAY, NUMBER, OBJECT, STRING

if TYPE_CHECKING:
    from structgen.grammar.json_schema.arrays import ArrayFacet
    from structgen.grammar.json_schema.normal_form import NormalForm
    from structgen.grammar.json_schema.objects import ObjectFacet
    from structgen.grammar.json_schema.places import Place

__all__ = ["is_endless"]

_DEEPEST: Final = 8


def is_endless(places: tuple[Place, ...], forms: NormalForm, depth: int = 0, *, closes: bool = False) -> bool:
    """Whether a schema has more values than any text has room for, if it has one at all.

    Yes is certain; no may be wrong: patterns, formats, bounds of numbers and alternatives are not looked into.  With
    ``closes``, undeclared members are forbidden.
    """
    if not places:
        return True
    if len(places) > 1 or depth > _DEEPEST or places[0].is_negated:
        return False
    place = places[0]
    if isinstance(place.schema, bool):
        return place.schema
    local = forms.read(place)
    part = local.wrapped
    if part is not None:
        inner = [inner for _, inner in forms.in_place(local)]
        return len(inner) == 1 and is_endless((inner[0],), forms, depth + 1, closes=closes)
    shape = local.shape
    if local.parts or shape.values or shape.refusals or local.looks_at_the_rest:
        return False
    types, text = shape.types, shape.string
    if types & STRING and (text is None or not (text.languages or text.formats or text.longest is not None)):
        return True
    if types & NUMBER and shape.number is None:
        return True
    return bool(
        (types & ARRAY and _arrays(shape.arrays, forms, depth, closes=closes))
        or (types & OBJECT and _objects(shape.objects, forms, depth, closes=closes))
    )


def _arrays(facets: tuple[ArrayFacet, ...], forms: NormalForm, depth: int, *, closes: bool) -> bool:
    if not facets:
        return True
    facet = facets[0]
    if facet.prefix or facet.contained is not None or facet.refusals or facet.most == 0:
        return False
    rest = facet.further()
    return is_endless(() if rest is None else (rest,), forms, depth + 1, closes=closes)


def _objects(facets: tuple[ObjectFacet, ...], forms: NormalForm, depth: int, *, closes: bool) -> bool:
    if not facets:
        return True
    facet = facets[0]
    if facet.patterns or facet.names is not True or facet.dependents or facet.most is not None:
        return False
    if facet.additional is True and not (closes and not facet.covers_rest and names_some(facet)):
        return True
    return any(is_endless((facet.property(name),), forms, depth + 1, closes=closes) for name in facet.properties)
