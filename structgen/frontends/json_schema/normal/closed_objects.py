"""Objects closed to undeclared members: by the policy ``additional="forbidden"``, or by rewriting a schema.

The policy closes objects when they are planned, disjunct by disjunct, after all that applies to a value in place was
multiplied out.  So ``allOf`` and ``$ref`` have the names of all their parts and each alternative has its own, and
whatever is read of a schema to negate it, to tell alternatives apart or to count items stays as it is: closing only
ever removes objects from the valid values.  ``closed_schema`` does the same to the schema itself, before it is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["closed_assertions", "closed_schema", "forbids", "is_nameless", "names_some"]

_POLICY_KEYWORD: Final = "additional"
"""What stands for the policy in the places of what it forbids."""


def closed_assertions(facets: tuple[ObjectAssertion, ...]) -> tuple[ObjectAssertion, ...]:
    """The facets, with one more that forbids what none of them names.

    They stay as they are where one speaks of all other members, and where none of them names any.

    Complexity: linear in their names and patterns.
    """
    holding = [facet for facet in facets if facet.annotates]
    if any(facet.covers_rest for facet in holding) or not any(map(names_some, holding)):
        return facets
    rest = ObjectAssertion(facets[0].place)
    rest.additional, rest.additional_keyword = False, _POLICY_KEYWORD
    for facet in holding:
        rest.properties |= dict.fromkeys(_names(facet), True)
        rest.pattern_schemas |= dict.fromkeys(facet.pattern_schemas, True)
    patterns = {text: language for facet in holding for text, language in facet.patterns}
    rest.patterns = tuple(patterns.items())
    return (*facets, rest)


def forbids(place: Location) -> bool:
    """Whether a schema stands for what the policy forbids of its parent."""
    return place.schema is False and place.parent is not None and place.path == (_POLICY_KEYWORD,)


def is_nameless(shape: Disjunct) -> bool:
    """Whether nothing in a shape names a member or speaks of all others, nor lists the values."""
    holding = [facet for facet in shape.objects if facet.annotates]
    return not shape.values and not any(facet.covers_rest or names_some(facet) for facet in holding)


def names_some(facet: ObjectAssertion) -> bool:
    """Whether a facet names members that an object may have."""
    return any(True for _ in _names(facet)) or any(schema is not False for schema in facet.pattern_schemas.values())


def _names(facet: ObjectAssertion) -> Iterable[str]:
    yield from (name for name, schema in facet.properties.items() if schema is not False)
    yield from facet.required
    for name, others in facet.dependents.items():
        yield name
        yield from others


_SPEAKS_OF_OTHERS: Final = ("additionalProperties", "patternProperties", "unevaluatedProperties")
_IN_PLACE: Final = (
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "not"),
    *("dependentSchemas", "dependencies"),
)
# Below these, a smaller part can make the whole larger, so they stay as they are, and so do the definitions that they
# refer to; below `allOf`, it could leave nothing.
_NOT_MONOTONE: Final = ("not", "if", "oneOf", "contains", "dependentSchemas", "dependencies")
_MAPS: Final = ("properties", "patternProperties")
_DEFINITIONS: Final = ("$defs", "definitions")
_SINGLE: Final = ("items", "additionalItems", "additionalProperties", "unevaluatedItems", "unevaluatedProperties")
_LISTS: Final = ("items", "prefixItems")


def closed_schema(schema: Any, *, tagged: bool = False) -> Any:
    """A copy in which each object with declared members has no others, unless the schema speaks of others.

    Its language is a subset of that of ``schema``.  An object with ``allOf``, ``$ref`` or another applicator beside its
    ``properties`` stays open, and so do all definitions where a ``not``, ``if``, ``oneOf`` or the like refers to any.

    Args:
        schema: a schema as ``json.loads`` gives it.
        tagged: whether the alternatives of a ``oneOf`` with a ``discriminator`` beside it are closed too.

    Complexity: linear.
    """
    maps = _MAPS if _refers_from_within(schema, tagged=tagged) else (*_MAPS, *_DEFINITIONS)
    made: list[Any] = [None]
    work: list[tuple[Any, Any, Any]] = [(made, 0, schema)]  # where the copy goes
    while work:
        home, key, held = work.pop()
        if not isinstance(held, dict):
            home[key] = held
            continue
        copy = home[key] = dict(held)
        for name in maps:
            if isinstance(copy.get(name), dict):
                copy[name] = dict(copy[name])
                work += [(copy[name], part, value) for part, value in copy[name].items()]
        for name in _SINGLE:
            if isinstance(copy.get(name), dict):
                work.append((copy, name, copy[name]))
        lists = list(_LISTS)
        if "properties" not in copy:
            lists.append("anyOf")
            if tagged and "discriminator" in copy:
                lists.append("oneOf")
        for name in lists:
            if isinstance(copy.get(name), list):
                copy[name] = list(copy[name])
                work += [(copy[name], at, value) for at, value in enumerate(copy[name])]
        is_open = not any(name in copy for name in (*_SPEAKS_OF_OTHERS, *_IN_PLACE))
        if isinstance(copy.get("properties"), dict) and is_open:
            copy["additionalProperties"] = False
    return made[0]


def _refers_from_within(schema: Any, *, tagged: bool) -> bool:
    """Whether there is a reference below a keyword that is not monotone.  Linear."""
    work: list[tuple[Any, bool]] = [(schema, False)]
    while work:
        held, is_within = work.pop()
        if isinstance(held, list):
            work += [(part, is_within) for part in held]
        if not isinstance(held, dict):
            continue
        if is_within and ("$ref" in held or "$dynamicRef" in held or "$recursiveRef" in held):
            return True
        for name, part in held.items():
            is_tagged = tagged and name == "oneOf" and "discriminator" in held
            work.append((part, is_within or (name in _NOT_MONOTONE and not is_tagged)))
    return False
