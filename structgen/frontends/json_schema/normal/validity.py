"""Validation of constants, unboundedness of schemas, and what the policy asks of the members of objects."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from structgen.frontends.json_schema.normal.container_assertion import ObjectAssertion
from structgen.frontends.json_schema.normal.exclusion import between_disjuncts
from structgen.frontends.json_schema.source.json_value import ARRAY, NUMBER, OBJECT, STRING, type_of, value_key
from structgen.frontends.json_schema.source.location import Location, refused
from structgen.grammar.visitor import trampoline

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.json_value import Json

__all__ = ["Validity", "forbids", "is_nameless", "is_unbounded", "names_some", "restricted_assertions"]

_POLICY_KEYWORD: Final = "additional"
"""The step in locations of what the policy forbids."""


def restricted_assertions(
    assertions: tuple[ObjectAssertion, ...], *, closes: bool, requires: bool
) -> tuple[ObjectAssertion, ...]:
    """The assertions, with one more for what the policy asks of the objects.

    Args:
        assertions: what the schemas that apply to an object say.
        closes: whether members that none of them names are forbidden, unless one restricts all other members.
        requires: whether all members that they declare are required.

    Complexity: linear in the names and patterns.
    """
    holding = [assertion for assertion in assertions if assertion.annotates]
    closes = closes and not any(assertion.covers_rest for assertion in holding) and any(map(names_some, holding))
    declared = _declared(holding) if requires else []
    if not closes and not declared:
        return assertions
    rest = ObjectAssertion(assertions[0].location, required=declared)
    if closes:
        rest.additional, rest.additional_keyword = False, _POLICY_KEYWORD
    for assertion in holding:
        rest.properties |= dict.fromkeys(_names(assertion), True)
        rest.pattern_schemas |= dict.fromkeys(assertion.pattern_schemas, True)
    patterns = {text: language for assertion in holding for text, language in assertion.patterns}
    rest.patterns = tuple(patterns.items())
    return (*assertions, rest)


def _declared(assertions: list[ObjectAssertion]) -> list[str]:
    """The names under ``properties``, without those that may not occur."""
    schemas = [(name, schema) for assertion in assertions for name, schema in assertion.properties.items()]
    forbidden = {name for name, schema in schemas if schema is False}
    return [name for name in dict(schemas) if name not in forbidden]


def forbids(location: Location) -> bool:
    """Whether a schema represents the members that the policy forbids."""
    return location.schema is False and location.parent is not None and location.path == (_POLICY_KEYWORD,)


def is_nameless(disjunct: Disjunct) -> bool:
    """Whether a disjunct names no member, does not restrict other members and does not list values."""
    holding = [assertion for assertion in disjunct.objects if assertion.annotates]
    return not disjunct.values and not any(assertion.covers_rest or names_some(assertion) for assertion in holding)


def names_some(assertion: ObjectAssertion) -> bool:
    """Whether an assertion names the members that an object may have, if only to say that there are none."""
    is_empty = isinstance(assertion.location.schema, dict) and assertion.location.schema.get("properties") == {}
    return (
        is_empty
        or any(True for _ in _names(assertion))
        or any(schema is not False for schema in assertion.pattern_schemas.values())
    )


def _names(assertion: ObjectAssertion) -> Iterable[str]:
    yield from (name for name, schema in assertion.properties.items() if schema is not False)
    yield from assertion.required
    for name, others in assertion.dependents.items():
        yield name
        yield from others


_Answer = Generator[object, Any, bool]


class Validity:
    """Validates values against the schemas of a normal form."""

    def __init__(self, forms: NormalForm) -> None:
        self._forms = forms

    def constants(self, disjunct: Disjunct) -> list[Json]:
        """The values that all ``enum`` and ``const`` of a disjunct share and its other keywords admit."""
        first = disjunct.values[0]
        members = first.members
        for values in disjunct.values[1:]:
            members = [value for value in members if value_key(value) in values.keys]
        if disjunct.string or disjunct.number or disjunct.arrays or disjunct.objects:
            if disjunct.string is None or not disjunct.types & STRING:
                return [value for value in members if trampoline(self._fits(value, disjunct))]
            if len(disjunct.values) == 1 and len(first.texts) == len(members):
                texts = disjunct.string.admitted(first.texts, disjunct.origins[0])
                return [value for value in members if value in texts] if texts else []
            texts = disjunct.string.admitted(
                (value for value in members if isinstance(value, str)), disjunct.origins[0]
            )
            return [
                value
                for value in members
                if (value in texts if isinstance(value, str) else trampoline(self._fits(value, disjunct)))
            ]
        return [value for value in members if type_of(value) & disjunct.types or type_of(value) == 0]

    def satisfies(self, value: Json, locations: tuple[Location, ...]) -> bool:
        """Whether ``value`` is valid against all schemas."""
        return trampoline(self._satisfies(value, locations))

    def _satisfies(self, value: Json, locations: tuple[Location, ...]) -> _Answer:
        if not locations:
            return True
        fitting: list[Disjunct] = []
        for disjunct in self._forms.disjuncts(locations):
            if disjunct.types & type_of(value) and _is_constant(value, disjunct):
                for location, keyword in disjunct.refusals:
                    refused(location, keyword)
                if (yield self._fits(value, disjunct)):
                    fitting.append(disjunct)
        for one in between_disjuncts(fitting, self._forms.overlaps):
            self._forms.note_overlap(one)
        return len(fitting) > 0

    def _fits(self, value: Json, disjunct: Disjunct) -> _Answer:
        """Whether ``value`` satisfies all keywords except ``enum`` and ``const``."""
        kind = type_of(value)
        if kind and not kind & disjunct.types:
            return False
        if isinstance(value, str):
            return disjunct.string is None or disjunct.string.admits(value, disjunct.origins[0])
        if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
            return disjunct.number is None or disjunct.number.admits(value)
        if kind == ARRAY:
            for array in disjunct.arrays:
                if not (yield self._array(value, array)):
                    return False
        if kind == OBJECT:
            for assertion in disjunct.objects:
                if not (yield self._object(value, assertion)):
                    return False
        return True

    def _array(self, value: list[Json], assertion: ArrayAssertion) -> _Answer:
        is_inside: bool = yield self._items(value, assertion)
        if is_inside == assertion.is_negated:
            return False
        if "uniqueItems" in assertion.refusals and len(set(map(value_key, value))) < len(value):
            return False
        if assertion.contained is None:
            return True
        count = 0
        for item in value:
            count += yield self._satisfies(item, (assertion.contained,))
        return assertion.min_contained <= count and (
            assertion.max_contained is None or count <= assertion.max_contained
        )

    def _items(self, value: list[Json], assertion: ArrayAssertion) -> _Answer:
        if len(value) < assertion.min_count or (assertion.max_count is not None and len(value) > assertion.max_count):
            return False
        for index, item in enumerate(value):
            location = assertion.item(index)
            if location is not None and not (yield self._satisfies(item, (location,))):
                return False
        return True

    def _object(self, value: dict[str, Json], assertion: ObjectAssertion) -> _Answer:
        is_inside: bool = yield self._members(value, assertion)
        if is_inside == assertion.is_negated:
            return False
        return not any(other not in value for name in value for other in assertion.dependents.get(name, ()))

    def _members(self, value: dict[str, Json], assertion: ObjectAssertion) -> _Answer:
        if len(value) < assertion.min_count or (assertion.max_count is not None and len(value) > assertion.max_count):
            return False
        if any(name not in value for name in assertion.required):
            return False
        for name, member in value.items():
            if not (yield self._satisfies(member, assertion.locations_of(name))):
                return False
            if assertion.names is not True and not (yield self._satisfies(name, (assertion.names_location(),))):
                return False
        return True


def _is_constant(value: Json, disjunct: Disjunct) -> bool:
    key = value_key(value) if disjunct.values else None
    return all(key in values.keys for values in disjunct.values)


_MAX_DEPTH: Final = 8


def is_unbounded(locations: tuple[Location, ...], forms: NormalForm, depth: int = 0, *, closes: bool = False) -> bool:
    """Whether a schema has more values than any text can contain, if it has any.

    True is certain; false may be wrong: patterns, formats, bounds of numbers and alternatives are not examined.  With
    ``closes``, undeclared members are forbidden.
    """
    if not locations:
        return True
    if len(locations) > 1 or depth > _MAX_DEPTH or locations[0].is_negated:
        return False
    location = locations[0]
    if isinstance(location.schema, bool):
        return location.schema
    parsed = forms.read(location)
    applicator = parsed.wrapped
    if applicator is not None:
        inner = [inner for _, inner in forms.schemas.in_place(parsed)]
        return len(inner) == 1 and is_unbounded((inner[0],), forms, depth + 1, closes=closes)
    disjunct = parsed.disjunct
    if parsed.applicators or disjunct.values or disjunct.refusals or parsed.looks_at_the_rest:
        return False
    types, text = disjunct.types, disjunct.string
    if types & STRING and (text is None or not (text.languages or text.formats or text.longest is not None)):
        return True
    if types & NUMBER and disjunct.number is None:
        return True
    return bool(
        (types & ARRAY and _are_arrays_unbounded(disjunct.arrays, forms, depth, closes=closes))
        or (types & OBJECT and _are_objects_unbounded(disjunct.objects, forms, depth, closes=closes))
    )


def _are_arrays_unbounded(
    assertions: tuple[ArrayAssertion, ...], forms: NormalForm, depth: int, *, closes: bool
) -> bool:
    if not assertions:
        return True
    assertion = assertions[0]
    if assertion.prefix or assertion.contained is not None or assertion.refusals or assertion.max_count == 0:
        return False
    rest = assertion.further()
    return is_unbounded(() if rest is None else (rest,), forms, depth + 1, closes=closes)


def _are_objects_unbounded(
    assertions: tuple[ObjectAssertion, ...], forms: NormalForm, depth: int, *, closes: bool
) -> bool:
    if not assertions:
        return True
    assertion = assertions[0]
    if assertion.patterns or assertion.names is not True or assertion.dependents or assertion.max_count is not None:
        return False
    if assertion.additional is True and not (closes and not assertion.covers_rest and names_some(assertion)):
        return True
    return any(
        is_unbounded((assertion.property(name),), forms, depth + 1, closes=closes) for name in assertion.properties
    )
