"""The native planner for plain schemas.

Objects, arrays, constants, references, simple types, unions, conjunctions.

Most schemas are nothing else, and for them the engine's library plans directly from the JSON text. It gives the very
terms of :class:`~structgen.frontends.json_schema.emit.planner.Planner`, which is what it is tested against; schemas
that say more, and schemas that are at fault, are left to that one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from structgen_kernels import _native

from structgen.errors import StructgenError
from structgen.frontends.json_schema.emit.plan import SIMPLE_KEYWORDS, is_small
from structgen.frontends.json_schema.emit.planner import Planner
from structgen.frontends.json_schema.normal.disjunct import AllowedValues
from structgen.frontends.json_schema.normal.normal_form import NormalForm
from structgen.frontends.json_schema.normal.object_layout import NameLanguage, ObjectLayout
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.normal.validity import Validity
from structgen.frontends.json_schema.source.dialect import UNDECLARED, standard_dialect
from structgen.frontends.json_schema.source.document import Documents, SchemaRegistry
from structgen.frontends.json_schema.source.json_value import parse_json
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.source.reference import References
from structgen.frontends.json_schema.term import ANY_STRING, belongs
from structgen.grammar.nodes import EMPTY, Choice, Grammar

if TYPE_CHECKING:
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.translation import Setting

__all__ = ["SimpleSchemas", "supports_policy"]

_MAX_PLANNERS: Final = 32
_OTHER_KEYWORD: Final = 0
_SIMPLE_KEYWORD: Final = 1
_IDENTIFIER_KEYWORD: Final = 2
_KEYWORDS: Final = {  # the numbers of `Keyword` in plain_schema.h
    "type": 3,
    "nullable": 4,
    "enum": 5,
    "const": 6,
    "$ref": 7,
    "anyOf": 8,
    "oneOf": 9,
    "allOf": 10,
    "properties": 11,
    "required": 12,
    "additionalProperties": 13,
    "items": 14,
    "minItems": 15,
    "maxItems": 16,
    "uniqueItems": 17,
    "additionalItems": 18,
    "patternProperties": 19,
    "minProperties": 20,
    "maxProperties": 21,
}


def supports_policy(policy: JsonPolicy) -> bool:
    """Whether the native planner knows the spellings of a policy."""
    is_canonical = policy.order == "declared" and policy.numbers == "canonical" and policy.escapes == "canonical"
    return is_canonical and not policy.has_bounds and policy.additional == "allowed"


class SimpleSchemas:
    """Plans the plain schemas of one setting."""

    __slots__ = ("_planners", "_setting")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._planners: dict[str | None, _DialectPlanner | None] = {}

    def plan(self, text: str) -> tuple[_native.PlainTerms, Dialect] | None:
        """The terms of a schema and its dialect; ``None`` if it is not plain.

        Args:
            text: the schema as JSON.

        Complexity: O(len(text)).
        """
        return _native.plan_plain(text, self._setting.limits.nesting, self._planners, self._add_planner)

    def _add_planner(self, uri: str | None) -> _DialectPlanner | None:
        """The planner of the dialect that ``$schema`` declares; ``None`` if that is of no draft."""
        dialect = UNDECLARED if uri is None else standard_dialect(uri)
        made = None if dialect is None else self._known(dialect)
        others = self._planners if len(self._planners) < _MAX_PLANNERS else {}
        self._planners = {**others, uri: made}  # at once, for threads that read it
        return made

    def _known(self, dialect: Dialect) -> _DialectPlanner:
        setting = self._setting
        return self._planner(dialect), _LeafMaker(setting, dialect), dialect, _SubschemaPlanner(setting, dialect)

    def _planner(self, dialect: Dialect) -> _native.PlainPlanner:
        syntax, limits = self._setting.syntax, self._setting.limits
        keywords = {}
        for keyword in reader_of(dialect).active:
            simple = _SIMPLE_KEYWORD if keyword in SIMPLE_KEYWORDS else _OTHER_KEYWORD
            keywords[keyword] = _IDENTIFIER_KEYWORD if keyword == dialect.id_keyword else _KEYWORDS.get(keyword, simple)
        terms = (
            syntax.open_object,
            syntax.end_object,
            syntax.close_object,
            syntax.open_array,
            syntax.end_array,
            syntax.close_array,
            syntax.comma,
            syntax.colon,
            syntax.levels[0].value,
            ANY_STRING,
        )
        return _native.PlainPlanner(
            keywords,
            dialect.reference_stands_alone,
            terms,
            limits.grammar_nodes,
            limits.nesting,
        )


_DialectPlanner: TypeAlias = "tuple[_native.PlainPlanner, _LeafMaker, Dialect, _SubschemaPlanner]"


class _LeafMaker:
    """Plans schemas of simple types, for the native planner to keep."""

    def __init__(self, setting: Setting, dialect: Dialect) -> None:
        limits = setting.limits
        documents = Documents(
            {},
            dialect,
            SchemaRegistry(None, limits),
            limits,
            asserts_formats=setting.asserts_formats,
            finds_copies=False,
        )
        references = References(documents, tracks_scopes=False)
        self._limits = limits
        self._resource = documents.root.resource
        self._reader = reader_of(dialect)
        forms = NormalForm(references, limits)
        self._planner = Planner(forms, setting, limits)
        self._validity = Validity(forms)

    def __call__(self, text: str) -> tuple[Grammar, bool, bool] | None:
        """The term of a schema, whether it is as well repeated as called, and a choice; ``None`` if there is none."""
        try:
            place = Location(parse_json(text, "json schema", self._limits), self._resource, None, ())
            term = self._planner.leaf(place, self._reader)
        except StructgenError:
            return None  # the other planner says what is wrong, and where
        return None if term is EMPTY else (term, is_small(term), isinstance(term, Choice))

    def values(self, text: str) -> Json:
        """Read constants."""
        return parse_json(text, "json schema", self._limits)

    def excluded(self, text: str, values: list[Json]) -> list[int] | None:
        """The indices of the constants that a schema of simple keywords excludes; ``None`` if it is refused."""
        try:
            place = Location(parse_json(text, "json schema", self._limits), self._resource, None, ())
            shape = self._reader.read(place).shape
            shape.values = (AllowedValues(values, place, "enum"),)
            left = set(map(id, self._validity.constants(shape)))
        except StructgenError:
            return None  # the other planner says what is wrong, and where
        return [index for index, value in enumerate(values) if id(value) not in left]


class _SubschemaPlanner:
    """Does for the native planner what is more than leaves, for it to keep."""

    def __init__(self, setting: Setting, dialect: Dialect) -> None:
        self._setting = setting
        self._dialect = dialect

    def whole(self, text: str) -> tuple[Grammar, bool, bool] | None:
        """Plan constants, or a conjunction of simple types: the same of these as leaves are."""
        try:
            forms, place = self._read(text)
            term = Planner(forms, self._setting, self._setting.limits).grammar(place)
        except StructgenError:
            return None
        return None if term is EMPTY else (term, is_small(term), isinstance(term, Choice))

    def names(self, text: str) -> tuple[list[list[int]], list[tuple[list[int], Grammar]]] | None:
        """How the names of a schema of objects lie to its patterns; ``None`` if these are refused.

        Args:
            text: the schema, of ``properties`` and ``patternProperties`` that leave all values free.

        Returns:
            for each name which patterns it matches, and for each region of other names which these match, with the
            texts of the names.
        """
        try:
            forms, place = self._read(text)
            (assertion,) = forms.read(place).shape.objects
            layout = ObjectLayout((assertion,), partial(_names, forms), self._setting.policy)
        except StructgenError:
            return None
        index = {pattern: number for number, (pattern, _) in enumerate(assertion.patterns)}
        matched = [
            [number for number, (_, language) in enumerate(assertion.patterns) if belongs(name, language)]
            for name in assertion.properties
        ]
        return matched, [([index[pattern] for pattern in region.matched], region.key) for region in layout.others]

    def _read(self, text: str) -> tuple[NormalForm, Location]:
        """The only schema of a document, ready to be read."""
        limits = self._setting.limits
        schema = parse_json(text, "json schema", limits)
        library = SchemaRegistry(None, limits)
        documents = Documents(
            schema, self._dialect, library, limits, asserts_formats=self._setting.asserts_formats, finds_copies=False
        )
        references = References(documents, tracks_scopes=False)
        return NormalForm(references, limits), references.start()


def _names(forms: NormalForm, places: tuple[Location, ...]) -> NameLanguage:
    return NameLanguage(places, forms, Validity(forms))
