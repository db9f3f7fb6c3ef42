"""Reads one schema object: its assertions by type, and the applicators that apply in place.

``unevaluatedProperties`` and ``unevaluatedItems`` are resolved in the normal form.  Each disjunct of their schema comes
from one choice of alternatives, so the members and items that these evaluate are known, and the keyword becomes an
assertion about all others.  A disjunct of a negation evaluates nothing: a schema that fails, and a schema under
``not``, leaves no annotations (2020-12, sections 11.2, 11.3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, meant
from structgen.frontends.json_schema.normal.container_assertion import ArrayAssertion, ObjectAssertion
from structgen.frontends.json_schema.normal.disjunct import AllowedValues, Disjunct, meet
from structgen.frontends.json_schema.normal.keyword_reader import (
    ARRAY_READERS,
    GUIDANCE,
    NUMBER_READERS,
    OBJECT_READERS,
    STRING_READERS,
    check_schema,
    read_guidance,
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


@dataclass(slots=True, eq=False)
class Applicator:
    """Schemas that apply to the same value.

    Attributes:
        keyword: one of ``IN_PLACE``; ``""`` for the own assertions of the schema.
        locations: the schemas under it; none for a reference, which is resolved later; for ``if`` three schemas, where
            a missing ``then`` or ``else`` is the schema ``true``.
        names: for ``dependentSchemas`` and ``dependencies`` the name whose presence applies each of ``locations``.
    """

    keyword: str
    locations: tuple[Location, ...] = ()
    names: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class ParsedSchema:
    """The assertions and applicators of one schema object.

    Attributes:
        location: the schema.
        disjunct: its own assertions.
        applicators: the applicators in place, in the order of the schema, with the own assertions at the position of
            ``properties``; empty if there are only own assertions.
        looks_at_the_rest: it has ``unevaluatedProperties`` or ``unevaluatedItems`` that can exclude a value.
    """

    location: Location
    disjunct: Disjunct
    applicators: tuple[Applicator, ...]
    looks_at_the_rest: bool = field(init=False)

    def __post_init__(self) -> None:
        containers = self.disjunct.objects or self.disjunct.arrays
        self.looks_at_the_rest = bool(containers) and any(
            assertion.unevaluated is not None for assertion in (*self.disjunct.objects, *self.disjunct.arrays)
        )

    @property
    def wrapped(self) -> Applicator | None:
        """The only applicator, where the schema has no assertions of its own."""
        if len(self.applicators) != 2 or not self.disjunct.is_free:
            return None
        applicator = self.applicators[0] if self.applicators[0].keyword else self.applicators[1]
        if applicator.keyword in _ALTERNATIVES or (applicator.keyword == "allOf" and len(applicator.locations) == 1):
            return applicator
        return None


def _type(disjunct: Disjunct, location: Location, value: Json) -> None:
    if isinstance(value, str) and value in _TYPES:
        disjunct.types &= _TYPES[value]
    elif isinstance(value, (list, tuple)) and value:
        bits = 0
        for index, name in enumerate(value):
            if not isinstance(name, str) or name not in _TYPES:
                malformed(location, "type", f"one of {', '.join(_TYPES)}", index, remedy=meant(name, _TYPES))
            bits |= _TYPES[name]
        disjunct.types &= bits
    else:
        malformed(location, "type", f"one of {', '.join(_TYPES)}, or an array of them", remedy=meant(value, _TYPES))
    if location.schema.get("nullable") is True:
        disjunct.types |= NULL


def _nullable(_: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, bool):
        malformed(location, "nullable", "true or false")


def _enum(disjunct: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, (list, tuple)):
        malformed(location, "enum", "an array of values")
    disjunct.values += (AllowedValues(list(value), location, "enum"),)


def _const(disjunct: Disjunct, location: Location, value: Json) -> None:
    disjunct.values += (AllowedValues([value], location, "const"),)


def _read_schema(keyword: str, _: Disjunct, location: Location, value: Json) -> None:
    check_schema(location, keyword, value)


def _read_schemas(keyword: str, _: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, (list, tuple)) or not value:
        malformed(location, keyword, "a non-empty array of schemas")
    for index, schema in enumerate(value):
        check_schema(location, keyword, schema, index)


def _read_reference(keyword: str, _: Disjunct, location: Location, value: Json) -> None:
    if not isinstance(value, str):
        malformed(location, keyword, "a URI reference")


def _recursive_ref(_: Disjunct, location: Location, value: Json) -> None:
    if value != "#":
        malformed(location, "$recursiveRef", "'#'")


CONSTRAINTS: Final[dict[str, KeywordReader]] = {
    "type": _type,
    "nullable": _nullable,
    "enum": _enum,
    "const": _const,
    **{keyword: partial(_read_schema, keyword) for keyword in ("not", "if", "then", "else")},
    **{keyword: partial(_read_reference, keyword) for keyword in ("$ref", "$dynamicRef")},
    "$recursiveRef": _recursive_ref,
    **{keyword: partial(_read_schemas, keyword) for keyword in ("allOf", "anyOf", "oneOf")},
    **STRING_READERS,
    **NUMBER_READERS,
    **ARRAY_READERS,
    **OBJECT_READERS,
    GUIDANCE: read_guidance,
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
        active: the keywords that have an effect.
    """

    __slots__ = ("_in_place", "_readers", "_reference_stands_alone", "active")

    def __init__(self, dialect: Dialect) -> None:
        self._reference_stands_alone = dialect.reference_stands_alone
        self._readers = {keyword: reader for keyword, reader in CONSTRAINTS.items() if dialect.has(keyword)}
        self._in_place = IN_PLACE & self._readers.keys()
        self.active = frozenset((*self._readers, dialect.id_keyword))

    def read(self, location: Location) -> ParsedSchema:
        """Read the schema object at ``location``.

        Raises:
            GrammarError: it is not a schema, or a keyword has an invalid value.
            UnsupportedFeature: a pattern is refused by the regex front end.

        Complexity: linear in the number of keywords, names and values; subschemas are not read.
        """
        schema = location.schema
        if not isinstance(schema, dict):
            raise GrammarError(
                location.subject(), "a schema must be an object or a boolean", evidence=f"found {shown(schema)}"
            )
        disjunct = Disjunct((location,))
        if self._reference_stands_alone and "$ref" in schema:
            _read_reference("$ref", disjunct, location, schema["$ref"])
            if GUIDANCE in schema:
                read_guidance(disjunct, location, schema[GUIDANCE])
            return ParsedSchema(location, disjunct, (Applicator(""), Applicator("$ref")))
        readers = self._readers
        for keyword, value in schema.items():
            reader = readers.get(keyword)
            if reader is not None:
                reader(disjunct, location, value)
        return ParsedSchema(
            location, disjunct, () if self._in_place.isdisjoint(schema) else tuple(self._parts(location))
        )

    def _parts(self, location: Location) -> list[Applicator]:
        applicators: list[Applicator] = []
        conditions: list[Applicator] = []  # read last, so that they do not change the order of members
        own: Applicator | None = None
        for keyword, value in location.schema.items():
            if keyword == "properties" and keyword in self._readers:
                own = Applicator("")
                applicators.append(own)
            elif keyword in REFERENCES and keyword in self._in_place:
                applicators.append(Applicator(keyword))
            elif keyword in self._in_place:
                applicator = _applicator(location, keyword, value)
                if applicator is not None:
                    (conditions if keyword in _CONDITIONS else applicators).append(applicator)
        return [*applicators, *conditions] if own else [Applicator(""), *applicators, *conditions]


@lru_cache(maxsize=16)
def reader_of(dialect: Dialect) -> SchemaReader:
    """The reader of a dialect."""
    return SchemaReader(dialect)


def _applicator(location: Location, keyword: str, value: Json) -> Applicator | None:
    if keyword == "not":
        return Applicator(keyword, (location.inner(value, keyword),))
    if keyword == "if":
        names = ("if", "then", "else")
        return Applicator(keyword, tuple(location.inner(location.schema.get(name, True), name) for name in names))
    if keyword in ("dependentSchemas", "dependencies"):
        named = {name: schema for name, schema in value.items() if isinstance(schema, (dict, bool))}
        locations = tuple(location.inner(schema, keyword, name) for name, schema in named.items())
        return Applicator(keyword, locations, tuple(named)) if named else None
    locations = tuple(location.inner(schema, keyword, index) for index, schema in enumerate(value))
    if keyword == "oneOf" and location.resource.document.coerces_one_of:
        keyword = "anyOf"
    return Applicator(keyword, locations)


def judging_the_rest(disjunct: Disjunct, parsed: ParsedSchema, forms: NormalForm) -> Disjunct:
    """A disjunct of ``parsed``, restricted by its ``unevaluatedProperties`` and ``unevaluatedItems``."""
    rest = Disjunct((parsed.location,))
    for own in parsed.disjunct.objects:
        if own.unevaluated is not None and not any(_covers(assertion) for assertion in disjunct.objects):
            rest.objects = (_other_members(disjunct, parsed.location, own.unevaluated),)
    for array in parsed.disjunct.arrays:
        if array.unevaluated is not None and not any(_covers(assertion) for assertion in disjunct.arrays):
            rest.arrays = (_other_items(disjunct, parsed.location, array.unevaluated, forms),)
    return disjunct if rest.is_free else meet(disjunct, rest)


def silenced(disjuncts: list[Disjunct]) -> list[Disjunct]:
    """The same disjuncts, which evaluate no members and items."""
    return [_silenced(disjunct) for disjunct in disjuncts]


def _silenced(disjunct: Disjunct) -> Disjunct:
    if not any(assertion.annotates for assertion in (*disjunct.objects, *disjunct.arrays)):
        return disjunct
    return replace(
        disjunct,
        objects=tuple(assertion.silent() for assertion in disjunct.objects),
        arrays=tuple(assertion.silent() for assertion in disjunct.arrays),
        name_constraints=None,
    )


def _covers(assertion: ObjectAssertion | ArrayAssertion) -> bool:
    return assertion.covers_rest and assertion.annotates


def _other_members(disjunct: Disjunct, location: Location, schema: Json) -> ObjectAssertion:
    rest = ObjectAssertion(location)
    rest.additional, rest.additional_keyword, rest.covers_rest = schema, "unevaluatedProperties", True
    patterns: dict[str, Grammar] = {}
    for assertion in disjunct.objects:
        if assertion.annotates:
            rest.properties |= dict.fromkeys(assertion.properties, True)
            patterns |= dict(assertion.patterns)
    rest.patterns = tuple(patterns.items())
    rest.pattern_schemas = dict.fromkeys(patterns, True)
    return rest


def _other_items(disjunct: Disjunct, location: Location, schema: Json, forms: NormalForm) -> ArrayAssertion:
    rest = ArrayAssertion(location)
    rest.rest, rest.rest_keyword, rest.covers_rest = schema, "unevaluatedItems", True
    assertions = [assertion for assertion in disjunct.arrays if assertion.annotates]
    rest.prefix = [True] * max((len(assertion.prefix) for assertion in assertions), default=0)
    contained = [assertion.contained for assertion in assertions if assertion.contained is not None]
    if contained and location.resource.dialect.draft >= 2020:  # in earlier drafts 'contains' evaluates nothing
        either: dict[str, Json] = {"anyOf": []}
        alternatives = Applicator("anyOf", (*contained, location.inner(schema, "unevaluatedItems")))
        whole = location.inner(either, "unevaluatedItems")
        forms.schemas.adopt(ParsedSchema(whole, Disjunct((whole,)), (Applicator(""), alternatives)))
        rest.rest = either
    return rest
