"""Assertions of one schema on arrays and objects: bounds, schemas of items and members, complements, annotations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from structgen.frontends.json_schema.source.location import Location, refused
from structgen.frontends.json_schema.term import LanguageIndex, quoted
from structgen.grammar.nodes import Literal

if TYPE_CHECKING:
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.nodes import Grammar

__all__ = ["ArrayAssertion", "ArrayLayout", "ContainerAssertion", "ObjectAssertion"]

AnyContainerAssertion = TypeVar("AnyContainerAssertion", bound="ContainerAssertion")


@dataclass(slots=True, eq=False)
class ContainerAssertion(ABC):
    """The assertions of one schema on the values of one type.

    Attributes:
        location: the schema.
        min_count, max_count: the bounds on the number of items or members; ``max_count`` is ``None`` without a bound.
        covers_rest: whether a schema for all further items or members is given, so that none is left unevaluated.
        unevaluated: the schema of ``unevaluatedItems`` or ``unevaluatedProperties``; ``None`` if it excludes nothing.
        annotates: whether the items or members that it names count as evaluated.
        is_negated: it stands for the values that violate it; ``_set_aside`` drops what is not negated.
    """

    location: Location
    min_count: int = 0
    max_count: int | None = None
    covers_rest: bool = False
    unevaluated: Json | None = None
    annotates: bool = True
    is_negated: bool = False
    _complement: Any = field(default=None, init=False)
    _silent: Any = field(default=None, init=False)

    def complement(self: AnyContainerAssertion) -> AnyContainerAssertion:
        """The assertion of the values that violate this one, without what ``_set_aside`` drops.

        Always the same object.
        """
        if self._complement is None:
            other = self._complement = copy(self)
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
            self._silent = copy(self)
            self._silent.annotates = False
        made: AnyContainerAssertion = self._silent
        return made

    @abstractmethod
    def _set_aside(self) -> None:
        """Drop what this class does not negate; the complement of that is made elsewhere."""


@dataclass(slots=True, eq=False)
class ArrayAssertion(ContainerAssertion):
    """The assertions of one schema on arrays; further attributes are in :class:`ContainerAssertion`.

    Attributes:
        prefix: the schemas of the first items, under ``prefix_keyword``.
        rest: the schema of all further items, under ``rest_keyword``.
        contained: the schema of ``contains``; ``min_contained`` to ``max_contained`` items are valid against it.
        refusals: keywords that cannot be negated and cannot always be enforced.
        is_negated: it stands for the arrays that violate anything but ``contained`` and ``refusals``.
    """

    prefix: list[Json] = field(default_factory=list)
    prefix_keyword: str = "prefixItems"
    rest: Json = True
    rest_keyword: str = "items"
    contained: Location | None = None
    min_contained: int = 1
    max_contained: int | None = None
    refusals: tuple[str, ...] = ()

    def _set_aside(self) -> None:
        self.contained, self.refusals = None, ()

    @property
    def restricts_items(self) -> bool:
        """Whether it restricts items or their number, apart from ``contains``."""
        return bool(self.prefix) or self.rest is not True or self.min_count > 0 or self.max_count is not None

    def item(self, index: int) -> Location | None:
        """The schema of the item at ``index``, or ``None`` if it may be anything."""
        if index < len(self.prefix):
            return self.location.inner(self.prefix[index], self.prefix_keyword, index)
        return self.further()

    def further(self) -> Location | None:
        """The schema of the items after the prefix, or ``None`` if they may be anything."""
        return None if self.rest is True else self.location.inner(self.rest, self.rest_keyword)


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


@dataclass(slots=True, eq=False)
class ObjectAssertion(ContainerAssertion):
    """The assertions of one schema on objects; further attributes are in :class:`ContainerAssertion`.

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

    properties: dict[str, Json] = field(default_factory=dict)
    patterns: tuple[tuple[str, Grammar], ...] = ()
    pattern_schemas: dict[str, Json] = field(default_factory=dict)
    additional: Json = True
    required: list[str] = field(default_factory=list)
    names: Json = True
    dependents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    additional_keyword: str = "additionalProperties"
    outside: frozenset[str] = frozenset()
    labels: dict[str, tuple[frozenset[object], bool]] | None = None
    allowed_labels: list[tuple[str, frozenset[object]]] | None = None
    denied_labels: list[tuple[str, frozenset[object]]] | None = None
    _index: LanguageIndex | None = field(default=None, init=False)
    _matching: dict[str, list[int]] = field(default_factory=dict, init=False)
    _keys: dict[str, Grammar] = field(default_factory=dict, init=False)
    _locations: dict[str, tuple[Location, ...]] = field(default_factory=dict, init=False)

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
        return ObjectAssertion(
            self.location,
            annotates=False,
            properties={name: self.properties.get(name, True)},
            outside=frozenset(names) - self.outside,
            required=[] if self.required else [name],
        )

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
        location = self.location.inner(self.properties[name], "properties", name)
        return location.complement() if name in self.outside else location

    def pattern(self, pattern: str) -> Location:
        """The schema of ``pattern`` under ``patternProperties``."""
        return self.location.inner(self.pattern_schemas[pattern], "patternProperties", pattern)

    def matching(self, name: str) -> list[int]:
        """The indices of the patterns that ``name`` matches; the assertion must not change afterwards.

        Raises:
            LimitExceeded: this takes more than ``Limits.steps``.
        """
        if not self.patterns:
            return []
        cached = self._matching.get(name)
        if cached is None:
            if self._index is None:
                self._index = LanguageIndex([language for _, language in self.patterns])
            count = self.location.counter("patternProperties")
            cached = self._matching[name] = self._index.containing(name, count)
        return cached

    def locations_of(self, name: str) -> tuple[Location, ...]:
        """The schemas of the value of ``name``; the assertion must not change afterwards."""
        cached = self._locations.get(name)
        if cached is None:
            cached = self._locations[name] = self._locations_of(name)
        return cached

    def _locations_of(self, name: str) -> tuple[Location, ...]:
        locations = [self.property(name)] if name in self.properties else []
        locations += [self.pattern(self.patterns[index][0]) for index in self.matching(name)]
        if not locations:
            additional = self.additional_location()
            return () if additional is None else (additional,)
        return tuple(locations)

    def additional_location(self) -> Location | None:
        """The schema of the values of other names, or ``None`` if they are free."""
        return None if self.additional is True else self.location.inner(self.additional, self.additional_keyword)

    def names_location(self) -> Location:
        """The schema of the names."""
        return self.location.inner(self.names, "propertyNames")
