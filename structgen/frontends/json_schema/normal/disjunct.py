"""The normal form of a schema: a disjunction whose disjuncts are conjunctions of assertions by type.

JSON Schema keywords act on one type each and leave the others free, so the assertions of one schema fall apart by
type: a :class:`Disjunct` records them.  ``allOf``, ``$ref`` and siblings are the *meet* of disjuncts, ``anyOf`` and
``oneOf`` are several disjuncts, ``not`` is the complement, again a disjunction.  The meet keeps the object and array
assertions of its parts side by side, because ``additionalProperties`` looks at the ``properties`` of its own schema
only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal
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
    "joined_strings",
    "lacking",
    "meet",
    "mentioning",
    "requiring",
]


class AllowedValues:
    """The finitely many values that ``enum`` or ``const`` leaves.

    Attributes:
        members: the values, in the order of the schema.
        place: the schema of the keyword, and ``keyword`` its name.
        assertions: assertions that only one of the members satisfies, by its key.
    """

    __slots__ = ("_keys", "_texts", "assertions", "keyword", "members", "place")

    def __init__(self, members: list[Json], place: Location, keyword: str) -> None:
        self.members = members
        self.place = place
        self.keyword = keyword
        self._keys: frozenset[object] | None = None
        self._texts: frozenset[str] | None = None
        self.assertions: dict[object, ArrayAssertion | ObjectAssertion] = {}

    @property
    def keys(self) -> frozenset[object]:
        """What tells the members apart from all other values."""
        if self._keys is None:
            self._keys = frozenset(map(value_key, self.members))
        return self._keys

    @property
    def texts(self) -> frozenset[str]:
        """The members that are strings."""
        if self._texts is None:
            self._texts = frozenset([member for member in self.members if isinstance(member, str)])
        return self._texts


class OneOfBranch:
    """One alternative of a ``oneOf``: shapes with different indices of one group must exclude each other.

    Attributes:
        place: the schema that holds the ``oneOf``.
        index: which alternative.
    """

    __slots__ = ("index", "place")

    def __init__(self, place: Location, index: int) -> None:
        self.place = place
        self.index = index


class Disjunct:
    """A conjunction of constraints, by type.  Treated as immutable once it is read.

    Attributes:
        types: the types that are left, as bits.
        values: the values that are left, one :class:`AllowedValues` a keyword; none: not restricted.
        string, number: the constraints on strings and numbers, or ``None``.
        arrays, objects: one assertion for each schema that constrains arrays or objects.
        refusals: keywords that cannot be enforced, with their place.
        branches: the alternatives of ``oneOf`` that were taken on the way here.
        origins: the schemas that were met.
        known: what ``objects`` say about names, once somebody has asked.
    """

    __slots__ = (
        "arrays",
        "branches",
        "known",
        "number",
        "objects",
        "origins",
        "refusals",
        "string",
        "types",
        "values",
    )

    def __init__(self, place: Location) -> None:
        self.types = ANY
        self.values: tuple[AllowedValues, ...] = ()
        self.string: StringAssertion | None = None
        self.number: NumberAssertion | None = None
        self.arrays: tuple[ArrayAssertion, ...] = ()
        self.objects: tuple[ObjectAssertion, ...] = ()
        self.refusals: tuple[tuple[Location, str], ...] = ()
        self.branches: tuple[OneOfBranch, ...] = ()
        self.origins: tuple[Location, ...] = (place,)
        self.known: NameConstraints | None = None

    @property
    def is_free(self) -> bool:
        """Whether it excludes nothing."""
        return self.types == ANY and not (
            self.values or self.string or self.number or self.arrays or self.objects or self.refusals or self.branches
        )

    @property
    def is_constant(self) -> bool:
        """Whether it lists values and says nothing else but their types."""
        return len(self.values) == 1 and not (
            self.string or self.number or self.arrays or self.objects or self.refusals or self.branches
        )

    def excludes(self, other: Disjunct) -> bool:
        """Whether types or constants alone show that the two have nothing in common."""
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
        """Whether all that it says, beside types and lengths, is one language that strings belong to, or nothing."""
        if self.string is None or (self.types & INTEGER and not self.types & FRACTION):
            return False
        if self.string.formats or len(self.string.languages) > 1:
            return False
        return not (self.values or self.number or self.arrays or self.objects or self.refusals or self.branches)

    @property
    def is_scalar(self) -> bool:
        """Whether no part of it leads to other schemas."""
        return not ((self.objects and self.types & OBJECT) or (self.arrays and self.types & ARRAY) or self.values)


def meet(a: Disjunct, b: Disjunct) -> Disjunct:
    """The shape of the values that belong to both."""
    both = Disjunct.__new__(Disjunct)
    both.types = a.types & b.types
    both.values = a.values + b.values
    both.string = a.string.meet(b.string) if a.string and b.string else a.string or b.string
    both.number = a.number.meet(b.number) if a.number and b.number else a.number or b.number
    both.arrays = united(a.arrays, b.arrays)
    both.objects = united(a.objects, b.objects)
    both.refusals = a.refusals + b.refusals
    both.branches = a.branches + b.branches
    both.origins = united(a.origins, b.origins)
    both.known = None
    return both


def joined_strings(shapes: list[Disjunct]) -> list[Disjunct]:
    """The same union with fewer shapes: those that differ only in the language of their strings become one.

    Products of such unions are conjunctions of unions then, which an automaton reads side by side, and not the union
    of as many conjunctions as there are ways to choose.
    """
    groups: dict[object, list[Disjunct]] = {}
    for shape in shapes:
        key: object = id(shape)
        if shape.only_matches and shape.string is not None:
            key = shape.types, shape.string.shortest, shape.string.longest
        groups.setdefault(key, []).append(shape)
    return [group[0] if len(group) == 1 else _joined_strings(group) for group in groups.values()]


def _joined_strings(shapes: list[Disjunct]) -> Disjunct:
    joined = meet(shapes[0], shapes[0])
    languages: tuple[Grammar, ...] = ()
    for shape in shapes:
        joined.origins = united(joined.origins, shape.origins)
        if shape.string is not None:
            languages = united(languages, shape.string.languages)
    if joined.string is not None:
        is_free = not all(shape.string is None or shape.string.languages for shape in shapes)
        joined.string = joined.string.with_languages(() if is_free else (alternatives(*languages),))
    return joined


def complement_of(shape: Disjunct, constants: Callable[[Disjunct], list[Json]]) -> list[Disjunct]:
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


def lacking(place: Location, name: str) -> list[Disjunct]:
    """The values that are no objects with a member ``name``."""
    shape = Disjunct(place)
    assertion = ObjectAssertion(place)
    assertion.properties = {name: False}
    assertion.annotates = False
    shape.objects = (assertion,)
    return [shape]


def requiring(place: Location, name: str) -> list[Disjunct]:
    """The objects with a member ``name``."""
    shape = Disjunct(place)
    shape.types = OBJECT
    assertion = ObjectAssertion(place)
    assertion.properties = {name: True}
    assertion.required = [name]
    assertion.annotates = False
    shape.objects = (assertion,)
    return [shape]


def mentioning(place: Location, names: Iterable[str]) -> list[Disjunct]:
    """All values; the names count as declared."""
    shape = Disjunct(place)
    assertion = ObjectAssertion(place)
    assertion.properties = dict.fromkeys(names, True)
    assertion.annotates = False
    shape.objects = (assertion,)
    return [shape]


def _of_type(place: Location, types: int) -> Disjunct:
    shape = Disjunct(place)
    shape.types = types
    return shape


def _outside(shape: Disjunct, place: Location) -> list[Disjunct]:
    rest = _of_type(place, ANY & ~shape.types)
    others: list[Disjunct] = []
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
        for assertion in shape.objects:
            others += _outside_object(assertion, place)
    return [*([rest] if rest.types else []), *others]


def _outside_array(assertion: ArrayAssertion, place: Location) -> list[Disjunct]:
    found: list[Disjunct] = []

    def other(array: ArrayAssertion) -> None:
        found.append(_of_type(place, ARRAY))
        found[-1].arrays = (array,)
        found[-1].refusals = tuple((assertion.place, keyword) for keyword in assertion.refusals)

    if assertion.is_negated or assertion.is_plain:
        other(assertion.complement())
    if assertion.contained is not None:
        if assertion.min_contained:
            other(_containing(assertion, 0, assertion.min_contained - 1))
        if assertion.max_contained is not None:
            other(_containing(assertion, assertion.max_contained + 1, None))
    if not found and assertion.refusals:
        other(assertion)
    return found


def _containing(assertion: ArrayAssertion, fewest: int, most: int | None) -> ArrayAssertion:
    counted = ArrayAssertion(assertion.place)
    counted.annotates = False
    counted.contained, counted.min_contained, counted.max_contained = assertion.contained, fewest, most
    return counted


def _outside_object(assertion: ObjectAssertion, place: Location) -> list[Disjunct]:
    found: list[Disjunct] = []
    if not assertion.only_depends:
        found.append(_of_type(place, OBJECT))
        found[-1].objects = (assertion.complement_of_name() or assertion.complement(),)
    for name, others in assertion.dependents.items():
        for other in dict.fromkeys(others):
            found.append(_of_type(place, OBJECT))
            required, missing = requiring(place, name)[0], lacking(place, other)[0]
            found[-1].objects = (*required.objects, *missing.objects)
    return found


def _outside_values(values: list[Json], source: AllowedValues, place: Location) -> list[Disjunct]:
    """The values that differ from finitely many."""
    rest = Disjunct(place)
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
        rest.string = StringAssertion()
        literals = [Literal(text.encode("utf-8", "replace")) for text in texts]
        rest.string.languages = (Complement(literals[0] if len(literals) == 1 else Choice(literals)),)
    if numbers:
        rest.number = NumberAssertion()
        rest.number.excluded = tuple(numbers)
    if not truths:
        return [rest]
    rest.types &= ~BOOLEAN
    if len(truths) == 2:
        return [rest]
    other = _of_type(place, BOOLEAN)
    other.values = (AllowedValues([not next(iter(truths))], source.place, source.keyword),)
    return [rest, other]


def _exactly_object(value: dict[str, Json], source: AllowedValues) -> ObjectAssertion:
    """The assertion that one object alone satisfies."""
    key = value_key(value)
    known = source.assertions.get(key)
    if not isinstance(known, ObjectAssertion):
        known = source.assertions[key] = ObjectAssertion(_made(source))
        known.properties = {name: {"enum": [member]} for name, member in value.items()}
        known.required = list(value)
        known.additional = False
    return known


def _exactly_array(value: list[Json], source: AllowedValues) -> ArrayAssertion:
    """The assertion that one array alone satisfies."""
    key = value_key(value)
    known = source.assertions.get(key)
    if not isinstance(known, ArrayAssertion):
        known = source.assertions[key] = ArrayAssertion(_made(source))
        known.prefix = [{"enum": [item]} for item in value]
        known.fewest = known.most = len(value)
    return known


def _made(source: AllowedValues) -> Location:
    """The place of schemas that stand for a constant."""
    return Location(source.place.schema, source.place.resource, source.place, (source.keyword,))
