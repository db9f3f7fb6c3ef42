"""Objects: ``properties``, ``required``, ``additionalProperties``, ``patternProperties`` and their company."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.counts import least_count, most_count
from structgen.grammar.json_schema.facets import Facet
from structgen.grammar.json_schema.membership import belongs
from structgen.grammar.json_schema.places import Place, malformed
from structgen.grammar.json_schema.strings import pattern_language
from structgen.grammar.json_schema.values import quoted
from structgen.grammar.nodes import Literal

if TYPE_CHECKING:
    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.nodes import Grammar

__all__ = ["READERS", "ObjectFacet"]


class ObjectFacet(Facet):
    """What one schema says about objects.

    Attributes:
        place: the schema.
        properties: the schemas of declared names.
        patterns: the names under ``patternProperties`` with their languages; ``pattern_schemas``: with their schemas.
        additional: the schema of names that are neither.
        required: the names that must occur.
        names: the schema of all names (``propertyNames``), ``True`` if they are free.
        fewest, most: the bounds on the number of members; ``most`` is ``None`` without a bound.
        dependents: for a name the names that must occur beside it.
        additional_keyword: where ``additional`` stands.
        covers_rest: whether ``additionalProperties`` is given, so that no member is left unevaluated.
        unevaluated: the schema of ``unevaluatedProperties``; ``None`` if it excludes nothing.
        annotates: whether what it looks at counts as evaluated.
        outside: the declared names whose value must not be valid against their schema.
        is_negated: objects that violate any of this but ``dependents`` are meant.
        labels: the constants of its members, once somebody has asked (``labels``).
        held, denied: those that its members must have, and cannot have, likewise.
    """

    __slots__ = (
        "_keys",
        "_places",
        "additional",
        "additional_keyword",
        "denied",
        "dependents",
        "held",
        "labels",
        "names",
        "outside",
        "pattern_schemas",
        "patterns",
        "properties",
        "required",
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
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
        self.held: list[tuple[str, frozenset[object]]] | None = None
        self.denied: list[tuple[str, frozenset[object]]] | None = None
        self._keys: dict[str, Grammar] = {}
        self._places: dict[str, tuple[Place, ...]] = {}

    def _set_aside(self) -> None:
        self.dependents = {}

    def complement_of_name(self) -> ObjectFacet | None:
        """The objects that violate the facet, as one that holds, where it is about a single name."""
        limited = (name for name, schema in self.properties.items() if schema is not True or name in self.outside)
        names = {*self.required, *limited}
        is_more = self.patterns or self.additional is not True or self.names is not True or self.dependents
        if len(names) != 1 or is_more or self.fewest or self.most is not None or self.is_negated:
            return None
        (name,) = names
        other = ObjectFacet(self.place)
        other.annotates = False
        other.properties = {name: self.properties.get(name, True)}
        other.outside = frozenset(names) - self.outside
        if not self.required:
            other.required = [name]
        return other

    @property
    def only_depends(self) -> bool:
        """Whether ``dependents`` is all that it says."""
        says_more = self.properties or self.patterns or self.additional is not True or self.required
        return not (says_more or self.names is not True or self.fewest or self.most is not None)

    @property
    def concerns_others(self) -> bool:
        """Whether it says anything about the values of names that it does not declare."""
        return bool(self.patterns) or self.additional is not True

    def key(self, name: str) -> Grammar:
        """The text of a name that it declares or requires; always the same term."""
        found = self._keys.get(name)
        if found is None:
            keyword = "properties" if name in self.properties else "required"
            found = self._keys[name] = Literal(quoted(name, self.place, keyword))
        return found

    def property(self, name: str) -> Place:
        """The schema that ``properties`` holds for ``name``."""
        place = Place(self.properties[name], self.place.resource, self.place, ("properties", name))
        return place.complement() if name in self.outside else place

    def pattern(self, pattern: str) -> Place:
        """The schema that ``patternProperties`` holds for ``pattern``."""
        return Place(self.pattern_schemas[pattern], self.place.resource, self.place, ("patternProperties", pattern))

    def places_of(self, name: str) -> tuple[Place, ...]:
        """The schemas of the value of ``name``; to be asked once the facet is read."""
        found = self._places.get(name)
        if found is None:
            found = self._places[name] = self._places_of(name)
        return found

    def _places_of(self, name: str) -> tuple[Place, ...]:
        places = [self.property(name)] if name in self.properties else []
        places += [self.pattern(text) for text, language in self.patterns if belongs(name, language)]
        if not places:
            additional = self.additional_place()
            return () if additional is None else (additional,)
        return tuple(places)

    def additional_place(self) -> Place | None:
        """The schema of other names, or ``None`` if they may hold anything."""
        if self.additional is True:
            return None
        return Place(self.additional, self.place.resource, self.place, (self.additional_keyword,))


def _facet(shape: Shape, place: Place) -> ObjectFacet:
    if not shape.objects:
        shape.objects = (ObjectFacet(place),)
    return shape.objects[0]


def _properties(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "properties", "an object of schemas")
    for name, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "properties", "a schema", name)
        if not isinstance(name, str):
            malformed(place, "properties", "an object whose names are strings")
    _facet(shape, place).properties = value


def _required(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (list, tuple)):
        malformed(place, "required", "an array of names")
    for index, name in enumerate(value):
        if not isinstance(name, str):
            malformed(place, "required", "a name", index)
    _facet(shape, place).required = list(value)


def _additional_properties(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "additionalProperties", "a schema")
    facet = _facet(shape, place)
    facet.additional = value
    facet.covers_rest = True


def _pattern_properties(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "patternProperties", "an object of schemas")
    for pattern, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "patternProperties", "a schema", pattern)
    facet = _facet(shape, place)
    facet.pattern_schemas = value
    facet.patterns = tuple(
        (pattern, pattern_language(pattern, place, "patternProperties", pattern)) for pattern in value
    )


def _property_names(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "propertyNames", "a schema")
    _facet(shape, place).names = value


def _min_properties(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape, place).fewest = least_count(place, "minProperties", value)


def _max_properties(shape: Shape, place: Place, value: Json) -> None:
    _facet(shape, place).most = most_count(place, "maxProperties", value)


def _names(place: Place, keyword: str, name: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)):
        malformed(place, keyword, "an array of names", name)
    for index, other in enumerate(value):
        if not isinstance(other, str):
            malformed(place, keyword, "a name", name, index)
    return tuple(value)


def _depend(shape: Shape, place: Place, name: str, others: tuple[str, ...]) -> None:
    if any(other != name for other in others):
        facet = _facet(shape, place)
        facet.dependents = {**facet.dependents, name: (*facet.dependents.get(name, ()), *others)}


def _dependent_required(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependentRequired", "an object")
    for name, others in value.items():
        _depend(shape, place, name, _names(place, "dependentRequired", name, others))


def _dependent_schemas(_: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependentSchemas", "an object of schemas")
    for name, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "dependentSchemas", "a schema", name)


def _dependencies(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependencies", "an object")
    for name, what in value.items():
        if isinstance(what, str):  # draft 3, and still seen
            malformed(place, "dependencies", "a schema or an array of names", name)
        if not isinstance(what, (dict, bool)):
            _depend(shape, place, name, _names(place, "dependencies", name, what))


def _unevaluated_properties(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "unevaluatedProperties", "a schema")
    facet = _facet(shape, place)
    if value is True or value == {}:
        facet.covers_rest = True
    else:
        facet.unevaluated = value


READERS: Final = {
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional_properties,
    "patternProperties": _pattern_properties,
    "propertyNames": _property_names,
    "minProperties": _min_properties,
    "maxProperties": _max_properties,
    "dependentRequired": _dependent_required,
    "dependentSchemas": _dependent_schemas,
    "dependencies": _dependencies,
    "unevaluatedProperties": _unevaluated_properties,
}
