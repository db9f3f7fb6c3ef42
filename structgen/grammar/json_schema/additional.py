"""Members that no schema names: what ``JsonPolicy(additional="forbidden")`` closes.

Objects are closed when they are planned, shape by shape, after all that applies to a value in place was multiplied
out.  So ``allOf`` and ``$ref`` have the names of all their parts and each alternative has its own, and whatever is
read of a schema to negate it, to tell alternatives apart or to count items stays as it is: closing only ever takes
members away from values that are valid.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.objects import ObjectFacet

if TYPE_CHECKING:
    from structgen.grammar.json_schema.places import Place
    from structgen.grammar.json_schema.shapes import Shape

__all__ = ["closed", "forbids", "is_nameless", "names_some"]

_KEYWORD: Final = "additional"
"""What stands for the policy in the places of what it forbids."""


def closed(facets: tuple[ObjectFacet, ...]) -> tuple[ObjectFacet, ...]:
    """The facets, with one more that forbids what none of them names.

    They stay as they are where one speaks of all other members, and where none of them names any.

    Complexity: linear in their names and patterns.
    """
    holding = [facet for facet in facets if facet.annotates]
    if any(facet.covers_rest for facet in holding) or not any(map(names_some, holding)):
        return facets
    rest = ObjectFacet(facets[0].place)
    rest.additional, rest.additional_keyword = False, _KEYWORD
    for facet in holding:
        rest.properties |= dict.fromkeys(_names(facet), True)
        rest.pattern_schemas |= dict.fromkeys(facet.pattern_schemas, True)
    patterns = {text: language for facet in holding for text, language in facet.patterns}
    rest.patterns = tuple(patterns.items())
    return (*facets, rest)


def forbids(place: Place) -> bool:
    """Whether a schema stands for what the policy forbids of its parent."""
    return place.schema is False and place.parent is not None and place.path == (_KEYWORD,)


def is_nameless(shape: Shape) -> bool:
    """Whether nothing in a shape names a member or speaks of all others, nor lists the values."""
    holding = [facet for facet in shape.objects if facet.annotates]
    return not shape.values and not any(facet.covers_rest or names_some(facet) for facet in holding)


def names_some(facet: ObjectFacet) -> bool:
    """Whether a facet names members that an object may have."""
    return any(True for _ in _names(facet)) or any(schema is not False for schema in facet.pattern_schemas.values())


def _names(facet: ObjectFacet) -> Iterable[str]:
    yield from (name for name, schema in facet.properties.items() if schema is not False)
    yield from facet.required
    for name, others in facet.dependents.items():
        yield name
        yield from others
