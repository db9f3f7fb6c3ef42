"""The normal form of a schema: a disjunction whose disjuncts are conjunctions of assertions by type.

A JSON Schema keyword restricts values of one type only, so a :class:`Disjunct` records assertions by type.  ``allOf``,
``$ref`` and siblings are the *meet* of disjuncts, ``anyOf`` and ``oneOf`` are several disjuncts, ``not`` is the
complement, again a disjunction.  A meet keeps the object and array assertions of both sides, because
``additionalProperties`` depends on the ``properties`` of its own schema only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING

from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ObjectAssertion
from structgen.frontends.json_schema.normal.scalar_assertion import NumberAssertion, StringAssertion, exact
from structgen.frontends.json_schema.source.json_value import (
    ANY,
    ARRAY,
    BOOLEAN,
    FRACTION,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    type_of,
    value_key,
)
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.term import alternatives, united
from structgen.grammar.nodes import Choice, Complement, Literal

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.exclusion import NameConstraints
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.nodes import Grammar

__all__ = [
    "AllowedValues",
    "Disjunct",
    "OneOfBranch",
    "complement_of",
    "exactly_array",
    "exactly_object",
    "joined_strings",
    "lacking",
    "meet",
    "mentioning",
    "requiring",
]


@dataclass(slots=True, eq=False)
class AllowedValues:
    """The values that ``enum`` or ``const`` lists.

    Attributes:
        members: the values, in the order of the schema.
        location: the schema of the keyword, and ``keyword`` its name.
        assertions: assertions that only one of the values satisfies, by its key.
    """

    members: list[Json]
    location: Location
    keyword: str
    assertions: dict[object, ArrayAssertion | ObjectAssertion] = field(default_factory=dict)
    _keys: frozenset[object] | None = field(default=None, init=False)
    _texts: frozenset[str] | None = field(default=None, init=False)

    @property
    def keys(self) -> frozenset[object]:
        """The keys of the values."""
        if self._keys is None:
            self._keys = frozenset(map(value_key, self.members))
        return self._keys

    @property
    def texts(self) -> frozenset[str]:
        """The values that are strings."""
        if self._texts is None:
            self._texts = frozenset([member for member in self.members if isinstance(member, str)])
        return self._texts


@dataclass(slots=True, eq=False)
class OneOfBranch:
    """One alternative of a ``oneOf``: disjuncts with different indices of one group must exclude each other.

    Attributes:
        location: the schema that holds the ``oneOf``.
        index: the index of the alternative.
    """

    location: Location
    index: int


@dataclass(slots=True, eq=False)
class Disjunct:
    """A conjunction of constraints, by type.  Treated as immutable once it is read.

    Attributes:
        types: the allowed types, as bits.
        values: the allowed values, one :class:`AllowedValues` per keyword; empty: not restricted.
        string, number: the constraints on strings and numbers, or ``None``.
        arrays, objects: one assertion for each schema that constrains arrays or objects.
        refusals: keywords that cannot be enforced, with their locations.
        branches: the alternatives of ``oneOf`` that led to this disjunct.
        origins: the schemas that it comes from.
        name_constraints: what ``objects`` say about names; computed at first use.
    """

    origins: tuple[Location, ...]
    types: int = ANY
    values: tuple[AllowedValues, ...] = ()
    string: StringAssertion | None = None
    number: NumberAssertion | None = None
    arrays: tuple[ArrayAssertion, ...] = ()
    objects: tuple[ObjectAssertion, ...] = ()
    refusals: tuple[tuple[Location, str], ...] = ()
    branches: tuple[OneOfBranch, ...] = ()
    name_constraints: NameConstraints | None = None

    @property
    def is_free(self) -> bool:
        """Whether it admits every value."""
        return self.types == ANY and not (
            self.values or self.string or self.number or self.arrays or self.objects or self.refusals or self.branches
        )

    @property
    def is_constant(self) -> bool:
        """Whether it only lists values, perhaps with types."""
        return len(self.values) == 1 and not (
            self.string or self.number or self.arrays or self.objects or self.refusals or self.branches
        )

    def excludes(self, other: Disjunct) -> bool:
        """Whether types or constants alone show that no value is in both."""
        if self.types & other.types == 0:
            return True
        return any(a.keys.isdisjoint(b.keys) for a in self.values for b in other.values)

    def admits_all_of(self, other: Disjunct) -> bool:
        """Whether types or constants alone show that it admits every value of ``other``."""
        if other.types & ~self.types or self.refusals or self.branches:
            return False
        if self.values:
            assertions = self.string or self.number or self.arrays or self.objects
            return not assertions and any(all(b.keys <= a.keys for a in self.values) for b in other.values)
        types = other.types
        return not (
            (self.string and types & STRING)
            or (self.number and types & NUMBER)
            or (self.arrays and types & ARRAY)
            or (self.objects and types & OBJECT)
        )

    @property
    def only_matches(self) -> bool:
        """Whether it has at most one language of strings, apart from types and lengths."""
        if self.string is None or (self.types & INTEGER and not self.types & FRACTION):
            return False
        if self.string.formats or len(self.string.languages) > 1:
            return False
        return not (self.values or self.number or self.arrays or self.objects or self.refusals or self.branches)

    @property
    def is_scalar(self) -> bool:
        """Whether it refers to no other schemas."""
        return not ((self.objects and self.types & OBJECT) or (self.arrays and self.types & ARRAY) or self.values)


def meet(a: Disjunct, b: Disjunct) -> Disjunct:
    """The disjunct of the values that are in both."""
    return Disjunct(
        united(a.origins, b.origins),
        a.types & b.types,
        a.values + b.values,
        a.string.meet(b.string) if a.string and b.string else a.string or b.string,
        a.number.meet(b.number) if a.number and b.number else a.number or b.number,
        united(a.arrays, b.arrays),
        united(a.objects, b.objects),
        a.refusals + b.refusals,
        a.branches + b.branches,
    )


def joined_strings(disjuncts: list[Disjunct]) -> list[Disjunct]:
    """The same union, where disjuncts that differ only in the language of their strings are joined.

    The product of such unions is then one intersection of unions instead of a union of many intersections.
    """
    groups: dict[object, list[Disjunct]] = {}
    for disjunct in dict.fromkeys(disjuncts):  # each object once
        key: object = id(disjunct)
        if disjunct.only_matches and disjunct.string is not None:
            key = disjunct.types, disjunct.string.shortest, disjunct.string.longest
        groups.setdefault(key, []).append(disjunct)
    return [group[0] if len(group) == 1 else _joined_strings(group) for group in groups.values()]


def _joined_strings(disjuncts: list[Disjunct]) -> Disjunct:
    strings = [disjunct.string for disjunct in disjuncts if disjunct.string is not None]
    languages: tuple[Grammar, ...] = ()
    if all(string.languages for string in strings):
        languages = (alternatives(*reduce(united, [string.languages for string in strings])),)
    return replace(
        disjuncts[0],
        origins=reduce(united, [disjunct.origins for disjunct in disjuncts]),
        string=replace(strings[0], languages=languages),
        name_constraints=None,
    )


def complement_of(disjunct: Disjunct, constants: Callable[[Disjunct], list[Json]]) -> list[Disjunct]:
    """The values outside ``disjunct``; ``constants`` lists the values of a disjunct with ``values``.

    Raises:
        UnsupportedFeature: a part of the disjunct cannot be enforced, so neither can its complement.
    """
    location = disjunct.origins[0]
    result = (
        _outside_values(constants(disjunct), disjunct.values[0], location)
        if disjunct.values
        else _outside(disjunct, location)
    )
    if disjunct.refusals:
        for one in result:
            one.refusals += disjunct.refusals
    return result


def lacking(location: Location, name: str) -> list[Disjunct]:
    """The values that are not objects with a member ``name``."""
    assertion = ObjectAssertion(location, annotates=False, properties={name: False})
    return [Disjunct((location,), objects=(assertion,))]


def requiring(location: Location, name: str) -> list[Disjunct]:
    """The objects with a member ``name``."""
    assertion = ObjectAssertion(location, annotates=False, properties={name: True}, required=[name])
    return [Disjunct((location,), OBJECT, objects=(assertion,))]


def mentioning(location: Location, names: Iterable[str]) -> list[Disjunct]:
    """All values; the names count as declared."""
    assertion = ObjectAssertion(location, annotates=False, properties=dict.fromkeys(names, True))
    return [Disjunct((location,), objects=(assertion,))]


def _outside(disjunct: Disjunct, location: Location) -> list[Disjunct]:
    origins = (location,)
    rest = Disjunct(origins, ANY & ~disjunct.types)
    others: list[Disjunct] = []
    if disjunct.string and disjunct.types & STRING:
        others += [Disjunct(origins, STRING, string=strings) for strings in disjunct.string.complement()]
    if disjunct.number and disjunct.types & NUMBER:
        types = disjunct.types & NUMBER
        others += [Disjunct(origins, types, number=interval) for interval in disjunct.number.complement()]
    if disjunct.types & ARRAY:
        for array in disjunct.arrays:
            others += _outside_array(array, location)
    if disjunct.types & OBJECT:
        for assertion in disjunct.objects:
            others += _outside_object(assertion, location)
    return [*([rest] if rest.types else []), *others]


def _outside_array(assertion: ArrayAssertion, location: Location) -> list[Disjunct]:
    result: list[Disjunct] = []
    refusals = tuple((assertion.location, keyword) for keyword in assertion.refusals)

    def other(array: ArrayAssertion) -> None:
        result.append(Disjunct((location,), ARRAY, arrays=(array,), refusals=refusals))

    if assertion.is_negated or assertion.restricts_items:
        other(assertion.complement())
    if assertion.contained is not None:
        if assertion.min_contained:
            other(_containing(assertion, 0, assertion.min_contained - 1))
        if assertion.max_contained is not None:
            other(_containing(assertion, assertion.max_contained + 1, None))
    if not result and assertion.refusals:
        other(assertion)
    return result


def _containing(assertion: ArrayAssertion, min_count: int, max_count: int | None) -> ArrayAssertion:
    return ArrayAssertion(
        assertion.location,
        annotates=False,
        contained=assertion.contained,
        min_contained=min_count,
        max_contained=max_count,
    )


def _outside_object(assertion: ObjectAssertion, location: Location) -> list[Disjunct]:
    result: list[Disjunct] = []
    if not assertion.only_depends:
        outside = assertion.complement_of_name() or assertion.complement()
        result.append(Disjunct((location,), OBJECT, objects=(outside,)))
    for name, others in assertion.dependents.items():
        for other in dict.fromkeys(others):
            required, missing = requiring(location, name)[0], lacking(location, other)[0]
            result.append(Disjunct((location,), OBJECT, objects=(*required.objects, *missing.objects)))
    return result


def _outside_values(values: list[Json], source: AllowedValues, location: Location) -> list[Disjunct]:
    """The values that differ from all listed values."""
    rest = Disjunct((location,))
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
            rest.objects += (exactly_object(value, source).complement(),)
        else:
            rest.arrays += (exactly_array(value, source).complement(),)
    if texts:
        literals = [Literal(text.encode("utf-8", "replace")) for text in texts]
        outside = Complement(literals[0] if len(literals) == 1 else Choice(literals))
        rest.string = StringAssertion(languages=(outside,))
    if numbers:
        rest.number = NumberAssertion(excluded=tuple(numbers))
    if not truths:
        return [rest]
    rest.types &= ~BOOLEAN
    if len(truths) == 2:
        return [rest]
    other = AllowedValues([not next(iter(truths))], source.location, source.keyword)
    return [rest, Disjunct((location,), BOOLEAN, (other,))]


def exactly_object(value: dict[str, Json], source: AllowedValues) -> ObjectAssertion:
    """The assertion that only one object satisfies."""
    key = value_key(value)
    assertion = source.assertions.get(key)
    if not isinstance(assertion, ObjectAssertion):
        assertion = source.assertions[key] = ObjectAssertion(
            _made(source),
            properties={name: {"enum": [member]} for name, member in value.items()},
            required=list(value),
            additional=False,
        )
    return assertion


def exactly_array(value: list[Json], source: AllowedValues) -> ArrayAssertion:
    """The assertion that only one array satisfies."""
    key = value_key(value)
    assertion = source.assertions.get(key)
    if not isinstance(assertion, ArrayAssertion):
        assertion = source.assertions[key] = ArrayAssertion(
            _made(source), len(value), len(value), prefix=[{"enum": [item]} for item in value]
        )
    return assertion


def _made(source: AllowedValues) -> Location:
    """The location of schemas that are made from a constant."""
    return source.location.inner(source.location.schema, source.keyword)
