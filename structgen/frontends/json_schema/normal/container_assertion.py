"""What one schema asserts of arrays and of objects: bounds, schemas of items and members, complements, annotations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.term import belongs, quoted
from structgen.grammar.nodes import Literal

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.nodes import Grammar

__all__ = ["ArrayAssertion", "ArrayLayout", "ContainerAssertion", "ObjectAssertion"]

AnyContainerAssertion = TypeVar("AnyContainerAssertion", bound="ContainerAssertion")


class ContainerAssertion(ABC):
    """What one schema says about the values of one type.

    Attributes:
        location: the schema.
        min_count, max_count: the bounds on the number of items or members; ``max_count`` is ``None`` without a bound.
        covers_rest: whether a schema for all further items or members is given, so that none is left unevaluated.
        unevaluated: the schema of ``unevaluatedItems`` or ``unevaluatedProperties``; ``None`` if it excludes nothing.
        annotates: whether the items or members that it names count as evaluated.
        is_negated: it stands for the values that violate it; ``_set_aside`` drops what is not negated.
    """

    __slots__ = (
        "_complement",
        "_silent",
        "annotates",
        "covers_rest",
        "is_negated",
        "location",
        "max_count",
        "min_count",
        "unevaluated",
    )

    def __init__(self, location: Location) -> None:
        self.location = location
        self.min_count = 0
        self.max_count: int | None = None
        self.covers_rest = False
        self.unevaluated: Json | None = None
        self.annotates = True
        self.is_negated = False
        self._complement: Any = None
        self._silent: Any = None

    def complement(self: AnyContainerAssertion) -> AnyContainerAssertion:
        """The assertion of the values that violate this one, without what ``_set_aside`` drops.

        Always the same object.
        """
        if self._complement is None:
            other = self._complement = self._copy()
            other._set_aside()
            other.is_negated = not self.is_negated
            other.annotates = False
            other._complement = self.silent()
        made: AnyContainerAssertion = self._complement
        return made

    def is_complement_of(self, other: ContainerAssertion) -> bool:
        """Whether it was made as the complement of another assertion."""
        return other._complement is self

    def silent(self: AnyContainerAssertion) -> AnyContainerAssertion:
        """The same values, with no item or member evaluated; always the same object."""
        if not self.annotates:
            return self
        if self._silent is None:
            self._silent = self._copy()
            self._silent.annotates = False
        made: AnyContainerAssertion = self._silent
        return made

    @abstractmethod
    def _set_aside(self) -> None:
        """Drop what this class does not negate; the complement of that is made elsewhere."""

    def _copy(self: AnyContainerAssertion) -> AnyContainerAssertion:
        other = type(self)(self.location)
        for kind in (ContainerAssertion, type(self)):
            for name in kind.__slots__:
                setattr(other, name, getattr(self, name))
        return other


class ArrayAssertion(ContainerAssertion):
    """What one schema says about arrays; further attributes are in :class:`ContainerAssertion`.

    Attributes:
        prefix: the schemas of the first items, under ``prefix_keyword``.
        rest: the schema of all further items, under ``rest_keyword``.
        contained: the schema of ``contains``; ``min_contained`` to ``max_contained`` items are valid against it.
        refusals: keywords that cannot be negated and cannot always be enforced.
        is_negated: it stands for the arrays that violate anything but ``contained`` and ``refusals``.
    """

    __slots__ = (
        "contained",
        "max_contained",
        "min_contained",
        "prefix",
        "prefix_keyword",
        "refusals",
        "rest",
        "rest_keyword",
    )

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.prefix: list[Json] = []
        self.prefix_keyword = "prefixItems"
        self.rest: Json = True
        self.rest_keyword = "items"
        self.contained: Location | None = None
        self.min_contained = 1
        self.max_contained: int | None = None
        self.refusals: tuple[str, ...] = ()

    def _set_aside(self) -> None:
        self.contained, self.refusals = None, ()

    @property
    def restricts_items(self) -> bool:
        """Whether it restricts items or their number, beside ``contains``."""
        return bool(self.prefix) or self.rest is not True or self.min_count > 0 or self.max_count is not None

    def item(self, index: int) -> Location | None:
        """The schema of the item at ``index``, or ``None`` if it may be anything."""
        if index < len(self.prefix):
            path, schema = (self.prefix_keyword, index), self.prefix[index]
            return Location(schema, self.location.resource, self.location, path)
        return self.further()

    def further(self) -> Location | None:
        """The schema of the items after the prefix, or ``None`` if they may be anything."""
        if self.rest is True:
            return None
        return Location(self.rest, self.location.resource, self.location, (self.rest_keyword,))


class ArrayLayout:
    """The conjunction of the array assertions of a disjunct.

    Attributes:
        positive: the assertions that hold; ``negated``: the assertions that must be violated.
        counted: the assertions with ``contains``.
        min_count, max_count: the bounds on the number of items.
        items: the schemas of each position of the longest prefix.
        rest: the schemas of all further items.
        unique: a schema with ``uniqueItems``, where more than one item is possible.
    """

    __slots__ = ("counted", "items", "max_count", "min_count", "negated", "positive", "rest", "unique")

    def __init__(self, assertions: tuple[ArrayAssertion, ...], max_count: int | None = None) -> None:
        """Combine the assertions; ``max_count`` is a further bound on the number of items."""
        self.positive = tuple(assertion for assertion in assertions if not assertion.is_negated)
        self.negated = tuple(assertion for assertion in assertions if assertion.is_negated)
        self.counted = tuple(assertion for assertion in self.positive if assertion.contained is not None)
        self.min_count = max((assertion.min_count for assertion in self.positive), default=0)
        bounds = [assertion.max_count for assertion in self.positive if assertion.max_count is not None]
        self.max_count = min(bounds if max_count is None else [*bounds, max_count], default=None)
        prefix = max(len(assertion.prefix) for assertion in assertions)
        if self.max_count is not None:
            prefix = min(prefix, self.max_count)
        self.items = [_locations(assertion.item(index) for assertion in self.positive) for index in range(prefix)]
        self.rest = _locations(assertion.further() for assertion in self.positive)
        self.unique: Location | None = None
        for assertion in self.positive:
            for keyword in assertion.refusals:
                if keyword != "uniqueItems":
                    refused(assertion.location, keyword)
                if self.max_count is None or self.max_count > 1:
                    self.unique = assertion.location

    @property
    def is_spare(self) -> bool:
        """Whether an array without equal items can end after any item, or after one further distinct item."""
        return (
            self.min_count <= 1 and not self.negated and all(assertion.min_contained <= 1 for assertion in self.counted)
        )

    @property
    def is_stateful(self) -> bool:
        """Whether something must be remembered from item to item."""
        return bool(self.negated or self.counted)


def _locations(locations: Iterable[Location | None]) -> tuple[Location, ...]:
    return tuple(location for location in locations if location is not None)


class ObjectAssertion(ContainerAssertion):
    """What one schema says about objects; further attributes are in :class:`ContainerAssertion`.

    Attributes:
        properties: the schemas of declared names.
        patterns: the names under ``patternProperties`` with their languages; ``pattern_schemas``: with their schemas.
        additional: the schema of names that are neither.
        required: the names that must occur.
        names: the schema of all names (``propertyNames``), ``True`` if they are free.
        dependents: for a name the names that it requires.
        additional_keyword: the keyword of ``additional``.
        outside: the declared names whose values must violate their schema.
        is_negated: it stands for the objects that violate anything but ``dependents``.
        labels: the constants of its members; cached by ``constants_by_name``.
        allowed_labels, denied_labels: the constants that its members must have, and cannot have, likewise cached.
    """

    __slots__ = (
        "_keys",
        "_locations",
        "additional",
        "additional_keyword",
        "allowed_labels",
        "denied_labels",
        "dependents",
        "labels",
        "names",
        "outside",
        "pattern_schemas",
        "patterns",
        "properties",
        "required",
    )

    def __init__(self, location: Location) -> None:
        super().__init__(location)
        self.properties: dict[str, Json] = {}
        self.patterns: tuple[tuple[str, Grammar], ...] = ()
        self.pattern_schemas: dict[str, Json] = {}
        self.additional: Json = True
        self.required: list[str] = []
        self.names: Json = True
        self.dependents: dict[str, tuple[str, ...]] = {}
        self.additional_keyword = "additionalProperties"
        self.outside: frozenset[str] = frozenset()
        self.labels: dict[str, tuple[frozenset[object], bool]] | None = None
        self.allowed_labels: list[tuple[str, frozenset[object]]] | None = None
        self.denied_labels: list[tuple[str, frozenset[object]]] | None = None
        self._keys: dict[str, Grammar] = {}
        self._locations: dict[str, tuple[Location, ...]] = {}

    def _set_aside(self) -> None:
        self.dependents = {}

    def complement_of_name(self) -> ObjectAssertion | None:
        """A positive assertion of the objects that violate this one, if it restricts a single name."""
        limited = (name for name, schema in self.properties.items() if schema is not True or name in self.outside)
        names = {*self.required, *limited}
        is_more = self.patterns or self.additional is not True or self.names is not True or self.dependents
        if len(names) != 1 or is_more or self.min_count or self.max_count is not None or self.is_negated:
            return None
        (name,) = names
        other = ObjectAssertion(self.location)
        other.annotates = False
        other.properties = {name: self.properties.get(name, True)}
        other.outside = frozenset(names) - self.outside
        if not self.required:
            other.required = [name]
        return other

    @property
    def only_depends(self) -> bool:
        """Whether it has nothing but ``dependents``."""
        says_more = self.properties or self.patterns or self.additional is not True or self.required
        return not (says_more or self.names is not True or self.min_count or self.max_count is not None)

    @property
    def concerns_others(self) -> bool:
        """Whether it restricts the values of undeclared names."""
        return bool(self.patterns) or self.additional is not True

    def key(self, name: str) -> Grammar:
        """The JSON text of a declared or required name; always the same term."""
        cached = self._keys.get(name)
        if cached is None:
            keyword = "properties" if name in self.properties else "required"
            cached = self._keys[name] = Literal(quoted(name, self.location, keyword))
        return cached

    def property(self, name: str) -> Location:
        """The schema of ``name`` under ``properties``."""
        location = Location(self.properties[name], self.location.resource, self.location, ("properties", name))
        return location.complement() if name in self.outside else location

    def pattern(self, pattern: str) -> Location:
        """The schema of ``pattern`` under ``patternProperties``."""
        return Location(
            self.pattern_schemas[pattern], self.location.resource, self.location, ("patternProperties", pattern)
        )

    def locations_of(self, name: str) -> tuple[Location, ...]:
        """The schemas of the value of ``name``; the assertion must not change afterwards."""
        cached = self._locations.get(name)
        if cached is None:
            cached = self._locations[name] = self._locations_of(name)
        return cached

    def _locations_of(self, name: str) -> tuple[Location, ...]:
        locations = [self.property(name)] if name in self.properties else []
        locations += [self.pattern(text) for text, language in self.patterns if belongs(name, language)]
        if not locations:
            additional = self.additional_location()
            return () if additional is None else (additional,)
        return tuple(locations)

    def additional_location(self) -> Location | None:
        """The schema of the values of other names, or ``None`` if they are free."""
        if self.additional is True:
            return None
        return Location(self.additional, self.location.resource, self.location, (self.additional_keyword,))
