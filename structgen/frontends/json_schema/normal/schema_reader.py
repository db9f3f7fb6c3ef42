"""Reads one schema object: its assertions by type, and the applicators that apply in place.

``unevaluatedProperties`` and ``unevaluatedItems`` are turned into assertions about the rest that no schema in place
has evaluated.

They are resolved in the normal form.  Each shape of the schema they stand in comes from a known choice of
alternatives, so what these alternatives evaluate is known, and the keyword becomes an assertion for all other members
or items.  What comes out of a negation evaluates nothing: a schema that fails, and one under ``not``, leaves no
annotations (2020-12, sections 11.2, 11.3).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError
from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ObjectAssertion
from structgen.frontends.json_schema.normal.disjunct import AllowedValues, Disjunct, meet
from structgen.frontends.json_schema.normal.keyword_reader import (
    ARRAY_READERS,
    NUMBER_READERS,
    OBJECT_READERS,
    STRING_READERS,
)
from structgen.frontends.json_schema.source.json_value import ARRAY, BOOLEAN, INTEGER, NULL, NUMBER, OBJECT, STRING
from structgen.frontends.json_schema.source.location import Location, malformed, shown

if TYPE_CHECKING:
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.nodes import Grammar

__all__ = [
    "CONSTRAINTS",
    "IN_PLACE",
    "REFERENCES",
    "Applicator",
    "ParsedSchema",
    "SchemaReader",
    "judging_the_rest",
    "reader_of",
    "silenced",
]

_TYPES: Final = {
    "null": NULL,
    "boolean": BOOLEAN,
    "integer": INTEGER,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}

KeywordReader = Callable[[Disjunct, Location, "Json"], None]


class Applicator:
    """Schemas that apply to the same value.

    Attributes:
        keyword: one of ``IN_PLACE``; ``""`` for the constraints of the schema itself.
        places: the schemas under it; none where ``keyword`` is a reference, which is resolved later; those of ``if``,
            ``then`` and ``else``, where what is missing is the schema ``true``.
        names: for ``dependentSchemas`` and ``dependencies`` the name that calls each of ``places`` into being.
    """

    __slots__ = ("keyword", "names", "places")

    def __init__(self, keyword: str, places: tuple[Location, ...] = (), names: tuple[str, ...] = ()) -> None:
        self.keyword = keyword
        self.places = places
        self.names = names


class ParsedSchema:
    """One schema object, read.

    Attributes:
        place: the schema.
        shape: its own constraints.
        parts: what applies in place, in the order of the schema, the schema's own constraints among them at the
            place of ``properties``; empty if there is nothing but its own constraints.
        looks_at_the_rest: it has ``unevaluatedProperties`` or ``unevaluatedItems`` that can exclude something.
    """

    __slots__ = ("looks_at_the_rest", "parts", "place", "shape")

    def __init__(self, place: Location, shape: Disjunct, parts: tuple[Applicator, ...]) -> None:
        self.place = place
        self.shape = shape
        self.parts = parts
        self.looks_at_the_rest = any(assertion.unevaluated is not None for assertion in shape.objects) or any(
            assertion.unevaluated is not None for assertion in shape.arrays
        )

    @property
    def wrapped(self) -> Applicator | None:
        """The one part whose alternatives the schema is, where it constrains nothing itself."""
        if len(self.parts) != 2 or not self.shape.is_free:
            return None
        part = self.parts[0] if self.parts[0].keyword else self.parts[1]
        if part.keyword in _ALTERNATIVES or (part.keyword == "allOf" and len(part.places) == 1):
            return part
        return None


def _type(shape: Disjunct, place: Location, value: Json) -> None:
    if isinstance(value, str) and value in _TYPES:
        shape.types &= _TYPES[value]
    elif isinstance(value, (list, tuple)) and value:
        bits = 0
        for index, name in enumerate(value):
            if not isinstance(name, str) or name not in _TYPES:
                malformed(place, "type", f"one of {', '.join(_TYPES)}", index)
            bits |= _TYPES[name]
        shape.types &= bits
    else:
        malformed(place, "type", f"one of {', '.join(_TYPES)}, or an array of them")
    if place.schema.get("nullable") is True:
        shape.types |= NULL


def _nullable(_: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, bool):
        malformed(place, "nullable", "true or false")


def _enum(shape: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, (list, tuple)):
        malformed(place, "enum", "an array of values")
    shape.values += (AllowedValues(list(value), place, "enum"),)


def _const(shape: Disjunct, place: Location, value: Json) -> None:
    shape.values += (AllowedValues([value], place, "const"),)


def _schema_array(_: Disjunct, place: Location, value: Json, keyword: str) -> None:
    if not isinstance(value, (list, tuple)) or not value:
        malformed(place, keyword, "a non-empty array of schemas")
    for index, schema in enumerate(value):
        if not isinstance(schema, (dict, bool)):
            malformed(place, keyword, "a schema", index)


def _all_of(shape: Disjunct, place: Location, value: Json) -> None:
    _schema_array(shape, place, value, "allOf")


def _any_of(shape: Disjunct, place: Location, value: Json) -> None:
    _schema_array(shape, place, value, "anyOf")


def _one_of(shape: Disjunct, place: Location, value: Json) -> None:
    _schema_array(shape, place, value, "oneOf")


def _ref(_: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "$ref", "a URI reference")


def _one_schema(place: Location, value: Json, keyword: str) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, keyword, "a schema")


def _not(_: Disjunct, place: Location, value: Json) -> None:
    _one_schema(place, value, "not")


def _if(_: Disjunct, place: Location, value: Json) -> None:
    _one_schema(place, value, "if")


def _then(_: Disjunct, place: Location, value: Json) -> None:
    _one_schema(place, value, "then")


def _else(_: Disjunct, place: Location, value: Json) -> None:
    _one_schema(place, value, "else")


def _dynamic_ref(_: Disjunct, place: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "$dynamicRef", "a URI reference")


def _recursive_ref(_: Disjunct, place: Location, value: Json) -> None:
    if value != "#":
        malformed(place, "$recursiveRef", "'#'")


CONSTRAINTS: Final[dict[str, KeywordReader]] = {
    "type": _type,
    "nullable": _nullable,
    "enum": _enum,
    "const": _const,
    "not": _not,
    "if": _if,
    "then": _then,
    "else": _else,
    "$ref": _ref,
    "$dynamicRef": _dynamic_ref,
    "$recursiveRef": _recursive_ref,
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    **STRING_READERS,
    **NUMBER_READERS,
    **ARRAY_READERS,
    **OBJECT_READERS,
}
"""Every keyword that can exclude a value, with its reader."""

REFERENCES: Final = frozenset(("$ref", "$dynamicRef", "$recursiveRef"))
"""Keywords whose value names another schema for the same value."""

IN_PLACE: Final = REFERENCES | {"allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas", "dependencies"}
"""The keywords whose schemas apply to the same value."""

_CONDITIONS: Final = ("not", "if", "dependentSchemas", "dependencies")
_ALTERNATIVES: Final = REFERENCES | {"anyOf", "oneOf"}


class SchemaReader:
    """Reads schema objects of one dialect.

    Attributes:
        active: the keywords that it looks at.
    """

    __slots__ = ("_in_place", "_readers", "_reference_stands_alone", "active")

    def __init__(self, dialect: Dialect) -> None:
        self._reference_stands_alone = dialect.reference_stands_alone
        self._readers = {keyword: reader for keyword, reader in CONSTRAINTS.items() if dialect.has(keyword)}
        self._in_place = IN_PLACE & self._readers.keys()
        self.active = frozenset((*self._readers, dialect.id_keyword))

    def read(self, place: Location) -> ParsedSchema:
        """Read the schema object at ``place``.

        Raises:
            GrammarError: it is no schema, or the value of a keyword has the wrong shape.
            UnsupportedFeature: a pattern is refused by the regex front end.

        Complexity: linear in the number of keywords, names and values; sub-schemas are not entered.
        """
        schema = place.schema
        if not isinstance(schema, dict):
            raise GrammarError(
                place.subject(), "a schema must be an object or a boolean", evidence=f"found {shown(schema)}"
            )
        shape = Disjunct(place)
        if self._reference_stands_alone and "$ref" in schema:
            _ref(shape, place, schema["$ref"])
            return ParsedSchema(place, shape, (Applicator(""), Applicator("$ref")))
        readers = self._readers
        for keyword, value in schema.items():
            reader = readers.get(keyword)
            if reader is not None:
                reader(shape, place, value)
        return ParsedSchema(place, shape, () if self._in_place.isdisjoint(schema) else tuple(self._parts(place)))

    def _parts(self, place: Location) -> list[Applicator]:
        parts: list[Applicator] = []
        conditions: list[
            Applicator
        ] = []  # what they mention comes last, so that they never change the order of members
        own: Applicator | None = None
        for keyword, value in place.schema.items():
            if keyword == "properties" and keyword in self._readers:
                own = Applicator("")
                parts.append(own)
            elif keyword in REFERENCES and keyword in self._in_place:
                parts.append(Applicator(keyword))
            elif keyword in self._in_place:
                part = _applicator(place, keyword, value)
                if part is not None:
                    (conditions if keyword in _CONDITIONS else parts).append(part)
        return [*parts, *conditions] if own else [Applicator(""), *parts, *conditions]


@lru_cache(maxsize=16)
def reader_of(dialect: Dialect) -> SchemaReader:
    """The reader of a dialect."""
    return SchemaReader(dialect)


def _applicator(place: Location, keyword: str, value: Json) -> Applicator | None:
    def inner(schema: Json, *path: str | int) -> Location:
        return Location(schema, place.resource, place, path)

    if keyword == "not":
        return Applicator(keyword, (inner(value, keyword),))
    if keyword == "if":
        names = ("if", "then", "else")
        return Applicator(keyword, tuple(inner(place.schema.get(name, True), name) for name in names))
    if keyword in ("dependentSchemas", "dependencies"):
        named = {name: schema for name, schema in value.items() if isinstance(schema, (dict, bool))}
        places = tuple(inner(schema, keyword, name) for name, schema in named.items())
        return Applicator(keyword, places, tuple(named)) if named else None
    return Applicator(keyword, tuple(inner(schema, keyword, index) for index, schema in enumerate(value)))


def judging_the_rest(shape: Disjunct, local: ParsedSchema, forms: NormalForm) -> Disjunct:
    """The values of a shape of ``local`` whose unevaluated members and items are valid as ``local`` demands."""
    rest = Disjunct(local.place)
    for own in local.shape.objects:
        if own.unevaluated is not None and not any(_covers(assertion) for assertion in shape.objects):
            rest.objects = (_other_members(shape, local.place, own.unevaluated),)
    for array in local.shape.arrays:
        if array.unevaluated is not None and not any(_covers(assertion) for assertion in shape.arrays):
            rest.arrays = (_other_items(shape, local.place, array.unevaluated, forms),)
    return shape if rest.is_free else meet(shape, rest)


def silenced(shapes: list[Disjunct]) -> list[Disjunct]:
    """The same shapes, of which nothing counts as evaluated."""
    return [_silenced(shape) for shape in shapes]


def _silenced(shape: Disjunct) -> Disjunct:
    if not any(assertion.annotates for assertion in shape.objects) and not any(
        assertion.annotates for assertion in shape.arrays
    ):
        return shape
    other = meet(shape, shape)
    other.values, other.refusals, other.branches = shape.values, shape.refusals, shape.branches
    other.objects = tuple(assertion.silent() for assertion in shape.objects)
    other.arrays = tuple(assertion.silent() for assertion in shape.arrays)
    return other


def _covers(assertion: ObjectAssertion | ArrayAssertion) -> bool:
    return assertion.covers_rest and assertion.annotates


def _other_members(shape: Disjunct, place: Location, schema: Json) -> ObjectAssertion:
    rest = ObjectAssertion(place)
    rest.additional, rest.additional_keyword, rest.covers_rest = schema, "unevaluatedProperties", True
    patterns: dict[str, Grammar] = {}
    for assertion in shape.objects:
        if assertion.annotates:
            rest.properties |= dict.fromkeys(assertion.properties, True)
            patterns |= dict(assertion.patterns)
    rest.patterns = tuple(patterns.items())
    rest.pattern_schemas = dict.fromkeys(patterns, True)
    return rest


def _other_items(shape: Disjunct, place: Location, schema: Json, forms: NormalForm) -> ArrayAssertion:
    rest = ArrayAssertion(place)
    rest.rest, rest.rest_keyword, rest.covers_rest = schema, "unevaluatedItems", True
    assertions = [assertion for assertion in shape.arrays if assertion.annotates]
    rest.prefix = [True] * max((len(assertion.prefix) for assertion in assertions), default=0)
    contained = [assertion.contained for assertion in assertions if assertion.contained is not None]
    if contained and place.resource.dialect.draft >= 2020:  # before, 'contains' evaluated nothing
        either: dict[str, Json] = {"anyOf": []}
        inner = Location(schema, place.resource, place, ("unevaluatedItems",))
        alternatives = Applicator("anyOf", (*contained, inner))
        whole = Location(either, place.resource, place, ("unevaluatedItems",))
        forms.adopt(ParsedSchema(whole, Disjunct(whole), (Applicator(""), alternatives)))
        rest.rest = either
    return rest
