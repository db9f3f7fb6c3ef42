"""Read one schema object: its constraints by type, and the schemas that apply in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError
from structgen.grammar.json_schema import arrays, numbers, objects, strings
from structgen.grammar.json_schema.json_types import ARRAY, BOOLEAN, INTEGER, NULL, NUMBER, OBJECT, STRING
from structgen.grammar.json_schema.places import Place, malformed, shown
from structgen.grammar.json_schema.shapes import Shape, Values

if TYPE_CHECKING:
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["CONSTRAINTS", "IN_PLACE", "REFERENCES", "Local", "Part", "SchemaReader", "reader_of"]

_TYPES: Final = {
    "null": NULL,
    "boolean": BOOLEAN,
    "integer": INTEGER,
    "number": NUMBER,
    "string": STRING,
    "array": ARRAY,
    "object": OBJECT,
}

Reader = Callable[[Shape, Place, "Json"], None]


class Part:
    """Schemas that apply to the same value.

    Attributes:
        keyword: one of ``IN_PLACE``; ``""`` for the constraints of the schema itself.
        places: the schemas under it; none where ``keyword`` is a reference, which is resolved later; those of ``if``,
            ``then`` and ``else``, where what is missing is the schema ``true``.
        names: for ``dependentSchemas`` and ``dependencies`` the name that calls each of ``places`` into being.
    """

    __slots__ = ("keyword", "names", "places")

    def __init__(self, keyword: str, places: tuple[Place, ...] = (), names: tuple[str, ...] = ()) -> None:
        self.keyword = keyword
        self.places = places
        self.names = names


class Local:
    """One schema object, read.

    Attributes:
        place: the schema.
        shape: its own constraints.
        parts: what applies in place, in the order of the schema, the schema's own constraints among them at the
            place of ``properties``; empty if there is nothing but its own constraints.
        looks_at_the_rest: it has ``unevaluatedProperties`` or ``unevaluatedItems`` that can exclude something.
    """

    __slots__ = ("looks_at_the_rest", "parts", "place", "shape")

    def __init__(self, place: Place, shape: Shape, parts: tuple[Part, ...]) -> None:
        self.place = place
        self.shape = shape
        self.parts = parts
        self.looks_at_the_rest = any(facet.unevaluated is not None for facet in shape.objects) or any(
            facet.unevaluated is not None for facet in shape.arrays
        )

    @property
    def wrapped(self) -> Part | None:
        """The one part whose alternatives the schema is, where it constrains nothing itself."""
        if len(self.parts) != 2 or not self.shape.is_free:
            return None
        part = self.parts[0] if self.parts[0].keyword else self.parts[1]
        if part.keyword in _ALTERNATIVES or (part.keyword == "allOf" and len(part.places) == 1):
            return part
        return None


def _type(shape: Shape, place: Place, value: Json) -> None:
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


def _nullable(_: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, bool):
        malformed(place, "nullable", "true or false")


def _enum(shape: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, (list, tuple)):
        malformed(place, "enum", "an array of values")
    shape.values += (Values(list(value), place, "enum"),)


def _const(shape: Shape, place: Place, value: Json) -> None:
    shape.values += (Values([value], place, "const"),)


def _schema_array(_: Shape, place: Place, value: Json, keyword: str) -> None:
    if not isinstance(value, (list, tuple)) or not value:
        malformed(place, keyword, "a non-empty array of schemas")
    for index, schema in enumerate(value):
        if not isinstance(schema, (dict, bool)):
            malformed(place, keyword, "a schema", index)


def _all_of(shape: Shape, place: Place, value: Json) -> None:
    _schema_array(shape, place, value, "allOf")


def _any_of(shape: Shape, place: Place, value: Json) -> None:
    _schema_array(shape, place, value, "anyOf")


def _one_of(shape: Shape, place: Place, value: Json) -> None:
    _schema_array(shape, place, value, "oneOf")


def _ref(_: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "$ref", "a URI reference")


def _one_schema(place: Place, value: Json, keyword: str) -> None:
    if not isinstance(value, (dict, bool)):
        malformed(place, keyword, "a schema")


def _not(_: Shape, place: Place, value: Json) -> None:
    _one_schema(place, value, "not")


def _if(_: Shape, place: Place, value: Json) -> None:
    _one_schema(place, value, "if")


def _then(_: Shape, place: Place, value: Json) -> None:
    _one_schema(place, value, "then")


def _else(_: Shape, place: Place, value: Json) -> None:
    _one_schema(place, value, "else")


def _dynamic_ref(_: Shape, place: Place, value: Json) -> None:
    if not isinstance(value, str):
        malformed(place, "$dynamicRef", "a URI reference")


def _recursive_ref(_: Shape, place: Place, value: Json) -> None:
    if value != "#":
        malformed(place, "$recursiveRef", "'#'")


CONSTRAINTS: Final[dict[str, Reader]] = {
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
    **strings.READERS,
    **numbers.READERS,
    **arrays.READERS,
    **objects.READERS,
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

    def read(self, place: Place) -> Local:
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
        shape = Shape(place)
        if self._reference_stands_alone and "$ref" in schema:
            _ref(shape, place, schema["$ref"])
            return Local(place, shape, (Part(""), Part("$ref")))
        readers = self._readers
        for keyword, value in schema.items():
            reader = readers.get(keyword)
            if reader is not None:
                reader(shape, place, value)
        return Local(place, shape, () if self._in_place.isdisjoint(schema) else tuple(self._parts(place)))

    def _parts(self, place: Place) -> list[Part]:
        parts: list[Part] = []
        conditions: list[Part] = []  # what they mention comes last, so that they never change the order of members
        own: Part | None = None
        for keyword, value in place.schema.items():
            if keyword == "properties" and keyword in self._readers:
                own = Part("")
                parts.append(own)
            elif keyword in REFERENCES and keyword in self._in_place:
                parts.append(Part(keyword))
            elif keyword in self._in_place:
                part = _part(place, keyword, value)
                if part is not None:
                    (conditions if keyword in _CONDITIONS else parts).append(part)
        return [*parts, *conditions] if own else [Part(""), *parts, *conditions]


@lru_cache(maxsize=16)
def reader_of(dialect: Dialect) -> SchemaReader:
    """The reader of a dialect."""
    return SchemaReader(dialect)


def _part(place: Place, keyword: str, value: Json) -> Part | None:
    def inner(schema: Json, *path: str | int) -> Place:
        return Place(schema, place.resource, place, path)

    if keyword == "not":
        return Part(keyword, (inner(value, keyword),))
    if keyword == "if":
        names = ("if", "then", "else")
        return Part(keyword, tuple(inner(place.schema.get(name, True), name) for name in names))
    if keyword in ("dependentSchemas", "dependencies"):
        named = {name: schema for name, schema in value.items() if isinstance(schema, (dict, bool))}
        places = tuple(inner(schema, keyword, name) for name, schema in named.items())
        return Part(keyword, places, tuple(named)) if named else None
    return Part(keyword, tuple(inner(schema, keyword, index) for index, schema in enumerate(value)))
