"""Objects: ``properties``, ``required``, ``additionalProperties``, ``patternProperties`` and their company."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from structgen.grammar.json_schema.counts import least_count, most_count
from structgen.grammar.json_schema.places import Place, malformed
from structgen.grammar.json_schema.strings import pattern_language

if TYPE_CHECKING:
    from structgen.grammar.json_schema.shapes import Shape
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.nodes import Grammar

__all__ = ["READERS", "ObjectFacet"]


class ObjectFacet:
    """What one schema says about objects.

    Attributes:
        place: the schema.
        properties: the schemas of declared names.
        patterns: the names under ``patternProperties`` with their languages.
        additional: the schema of names that are neither.
        required: the names that must occur.
        names: the schema of all names (``propertyNames``), ``True`` if they are free.
        fewest, most: the bounds on the number of members; ``most`` is ``None`` without a bound.
        refusals: keywords that cannot be enforced.
    """

    __slots__ = (
        "additional",
        "fewest",
        "most",
        "names",
        "patterns",
        "place",
        "properties",
        "refusals",
        "required",
    )

    def __init__(self, place: Place) -> None:
        self.place = place
        self.properties: dict[str, Json] = {}
        self.patterns: tuple[tuple[str, Grammar], ...] = ()
        self.additional: Json = True
        self.required: list[str] = []
        self.names: Json = True
        self.fewest = 0
        self.most: int | None = None
        self.refusals: tuple[str, ...] = ()

    def property(self, name: str) -> Place:
        """The schema that ``properties`` holds for ``name``."""
        return Place(self.properties[name], self.place.resource, self.place, ("properties", name))

    def pattern(self, pattern: str) -> Place:
        """The schema that ``patternProperties`` holds for ``pattern``."""
        schema = self.place.schema["patternProperties"][pattern]
        return Place(schema, self.place.resource, self.place, ("patternProperties", pattern))

    def additional_place(self) -> Place | None:
        """The schema of other names, or ``None`` if they may hold anything."""
        if self.additional is True:
            return None
        return Place(self.additional, self.place.resource, self.place, ("additionalProperties",))


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
    _facet(shape, place).additional = value


def _pattern_properties(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "patternProperties", "an object of schemas")
    for pattern, schema in value.items():
        if not isinstance(schema, (dict, bool)):
            malformed(place, "patternProperties", "a schema", pattern)
    _facet(shape, place).patterns = tuple(
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


def _dependent_required(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependentRequired", "an object")
    if any(value.values()):
        _facet(shape, place).refusals += ("dependentRequired",)


def _dependent_schemas(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependentSchemas", "an object of schemas")
    if value:
        _facet(shape, place).refusals += ("dependentSchemas",)


def _dependencies(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, dict):
        malformed(place, "dependencies", "an object")
    if value:
        _facet(shape, place).refusals += ("dependencies",)


def _unevaluated_properties(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, "unevaluatedProperties", "a schema")
    if value is not True and value != {}:
        _facet(shape, place).refusals += ("unevaluatedProperties",)


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
