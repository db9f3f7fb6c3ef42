"""The native planner for simple schemas: objects, arrays, constants, references, unions, conjunctions, simple types.

Most schemas use nothing else, and the native library plans these directly from the JSON text.  It makes the same terms
as :class:`~structgen.frontends.json_schema.emit.planner.Planner`, the reference implementation; other schemas, and
schemas with errors, are left to ``Planner``.  The modules of ``Planner`` are imported when they are needed first.
:class:`Setting` is what both planners have in common for all documents of one policy and set of limits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final, TypeAlias

from structgen_kernels import _native

from structgen.errors import StructgenError
from structgen.frontends.json_schema.emit.plan import SIMPLE_KEYWORDS, LeafCache, is_small
from structgen.frontends.json_schema.emit.scalar_term import Reasons, ScalarTerms
from structgen.frontends.json_schema.emit.syntax import syntax_of
from structgen.frontends.json_schema.normal.disjunct import AllowedValues
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.source.dialect import UNDECLARED, standard_dialect
from structgen.frontends.json_schema.source.document import NO_FORMATS, Documents, SchemaRegistry
from structgen.frontends.json_schema.source.json_value import SUBJECT, SchemaDump, parse_json
from structgen.frontends.json_schema.source.location import Location
from structgen.frontends.json_schema.term import ANY_STRING
from structgen.grammar.flattening import memory_of
from structgen.grammar.limits import PYTHON_STEP, counted, spend, steps_left, steps_since
from structgen.grammar.nodes import EMPTY, Choice, Grammar
from structgen.grammar.nodes.description import Described, Description, ReportEntry
from structgen.memory_cache import CONSTRAINTS, GRAMMARS, Followed, Share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from structgen.frontends.json_schema.formats.user_format import StringFormat
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.normal.object_layout import NameLanguage
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.limits import Limits

__all__ = ["DeferredGrammar", "Setting", "SimpleSchemas", "setting_of", "simple_grammar", "supports_policy"]

_MAX_PLANNERS: Final = 32
_OTHER_KEYWORD: Final = 0
_SIMPLE_KEYWORD: Final = 1
_IDENTIFIER_KEYWORD: Final = 2
_KEYWORDS: Final = {  # the numbers of `Keyword` in simple_reading.h
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
    """Whether the native planner can write the JSON of a policy."""
    is_canonical = policy.order == "declared" and policy.numbers == "canonical" and policy.escapes == "canonical"
    return is_canonical and not policy.has_bounds and not policy.around and policy.repeated == "allowed"


_FEW_CHARACTERS: Final = 2_000
"""Of a schema: what its parts may take each is little together."""
_SHARE: Final = 4
"""All parts of a schema may take this part of the steps; one that needs more is left to ``Planner``, with all steps."""
_MAX_TEXT_RATIO: Final = 8
"""Bytes of JSON text for a byte of a dumped dictionary, where an object that occurs many times is dumped once."""


def simple_grammar(
    schema: object, content: str | SchemaDump | None, setting: Setting, python_type: object | None
) -> Grammar | None:
    """The grammar of a simple schema, whose IR is made on demand; ``None`` if the schema is not simple."""
    if setting.simple is None:
        return None
    limits = setting.limits
    text = content
    if not isinstance(text, str):
        max_bytes = limits.source_bytes if text is None else _MAX_TEXT_RATIO * len(text)
        text = _native.json_text(schema, limits.nesting, max_bytes)
    if text is None:
        return None
    if len(text) < _FEW_CHARACTERS:
        planned = setting.simple.plan(text)
    else:
        with counted(limits, limits.steps // _SHARE):
            planned = setting.simple.plan(text)
    if planned is None:
        return None
    source = schema if content is None else content  # without content: made from a type, so nobody else can change it
    return Described.deferred(planned[0], DeferredGrammar(source, setting, None, planned[1], python_type))


@dataclass(slots=True, eq=False)  # not frozen, which takes longer than to plan a small schema
class DeferredGrammar:
    """A grammar whose term and entries the planner in Python makes on demand."""

    _schema: object
    _setting: Setting
    _draft: str | None
    _dialect: Dialect
    _python_type: object | None

    def item(self) -> Grammar:
        """The term."""
        return self._planned().item

    def description(self) -> Description:
        """The description of the source."""
        from structgen.frontends.json_schema.report import LazyDescription
        from structgen.frontends.json_schema.translation import alone

        schema = alone(self._schema, self._setting)
        return LazyDescription(self._entries, self._setting.policy, self._dialect, self._python_type, schema)

    def _entries(self) -> tuple[ReportEntry, ...]:
        return self._planned().description.entries

    def _planned(self) -> Described:
        from structgen.frontends.json_schema.translation import planned_grammar

        # Like the native planner, which does not look for copies.
        return planned_grammar(self._schema, self._setting, self._draft, None, self._python_type, finds_copies=False)


class SimpleSchemas:
    """Plans the simple schemas of one setting."""

    __slots__ = ("__weakref__", "_planners", "_setting")

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._planners: dict[str | None, _DialectPlanner | None] = {}

    def forget(self) -> None:
        """Drop the planners with the terms that they keep."""
        self._planners = {}

    def plan(self, text: str) -> tuple[_native.SimpleTerms, Dialect] | None:
        """The terms of a schema, given as JSON text, and its dialect; ``None`` if it is not simple.

        Complexity: O(len(text)).
        """
        return _native.plan_simple(text, self._setting.limits.nesting, self._planners, self._add_planner)

    def _add_planner(self, uri: str | None) -> _DialectPlanner | None:
        """The planner of the dialect that ``$schema`` declares; ``None`` if no draft has this URI."""
        dialect = UNDECLARED if uri is None else standard_dialect(uri)
        planner = None if dialect is None else self._dialect_planner(dialect)
        others = self._planners if len(self._planners) < _MAX_PLANNERS else {}
        self._planners = {**others, uri: planner}  # replaced, not changed: other threads read it
        return planner

    def _dialect_planner(self, dialect: Dialect) -> _DialectPlanner:
        setting = self._setting
        return self._planner(dialect), _LeafMaker(setting, dialect), dialect, _SubschemaPlanner(setting, dialect)

    def _planner(self, dialect: Dialect) -> _native.SimplePlanner:
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
        return _native.SimplePlanner(
            keywords,
            dialect.reference_stands_alone,
            terms,
            limits.grammar_nodes,
            limits.nesting,
            closes=self._setting.policy.additional == "forbidden",
            requires_all=self._setting.policy.required == "all",
        )


_DialectPlanner: TypeAlias = "tuple[_native.SimplePlanner, _LeafMaker, Dialect, _SubschemaPlanner]"
_PlannedTerm: TypeAlias = tuple[Grammar, bool, bool]
"""A term, whether it is small enough to be repeated instead of called, and whether it is a choice."""


def _planned(term: Grammar) -> _PlannedTerm | None:
    return None if term is EMPTY else (term, is_small(term), isinstance(term, Choice))


class _LeafMaker:
    """Makes the terms of schemas without subschemas; the native planner caches them."""

    def __init__(self, setting: Setting, dialect: Dialect) -> None:
        self._setting = setting
        self._documents = _documents({}, setting, dialect)
        self._resource = self._documents.root.resource
        self._reader = reader_of(dialect)
        self._leaves = setting.leaves(dialect)
        self._reasons: Reasons = []
        self._scalars = ScalarTerms(setting.syntax, self._reasons)

    def __call__(self, text: str) -> _PlannedTerm | None:
        """The term of a schema; ``None`` if it is refused or no value is valid: ``Planner`` then raises the error."""
        try:
            with _part(len(text), self._setting.limits):
                location = self._location(text)
                key = self._leaves.key(location.schema)
                plan, before = None if key is None else self._leaves.get(key), steps_left()
                if plan is not None and plan.term is not None:
                    spend(plan.steps, SUBJECT)
                    return _planned(plan.term)
                term = self._scalars.term(self._reader.read(location).disjunct, 0, is_proof=False)
                steps = steps_since(before)
        except StructgenError:
            return None
        self._reasons.clear()
        if term is not EMPTY:
            _made.count(memory_of(term) if key is None else self._leaves.keep(key, term, steps))
        return _planned(term)

    def values(self, text: str) -> Json:
        """Read constants."""
        return parse_json(text, SUBJECT, self._setting.limits)

    def excluded(self, text: str, values: list[Json]) -> list[int] | None:
        """The indices of the constants that a schema of simple keywords excludes; ``None`` if it is refused."""
        from structgen.frontends.json_schema.normal.validity import Validity

        size = len(text) + sum(len(value) for value in values if isinstance(value, str))
        try:
            with _part(size, self._setting.limits):
                location = self._location(text)
                disjunct = self._reader.read(location).disjunct
                disjunct.values = (AllowedValues(values, location, "enum"),)
                forms, _ = _normal_form(self._documents, self._setting)
                valid = set(map(id, Validity(forms).constants(disjunct)))
        except StructgenError:
            return None
        return [index for index, value in enumerate(values) if id(value) not in valid]

    def _location(self, text: str) -> Location:
        spend(_LEAF_STEPS, SUBJECT)
        return Location(parse_json(text, SUBJECT, self._setting.limits), self._resource, None, ())


@dataclass(frozen=True, slots=True, eq=False)
class _SubschemaPlanner:
    """Plans for the native planner what it does not plan itself; the native planner caches the results."""

    _setting: Setting
    _dialect: Dialect

    def whole(self, text: str) -> _PlannedTerm | None:
        """The term of constants, or of a conjunction of simple types; ``None`` as for leaves."""
        from structgen.frontends.json_schema.emit.planner import Planner

        try:
            with _part(len(text), self._setting.limits):
                forms, location = self._read(text)
                term = Planner(forms, self._setting).grammar(location)
        except StructgenError:
            return None
        forms.schemas.layouts.clear()  # they refer to the planner
        _made.count(memory_of(term))
        return _planned(term)

    def names(self, text: str) -> tuple[list[list[int]], list[tuple[list[int], Grammar]]] | None:
        """Which patterns the names of a schema of objects match; ``None`` if these are refused.

        The schema has ``properties`` and ``patternProperties`` with unrestricted values.

        Returns:
            for each name the indices of the patterns that it matches, and for each region of other names the indices
            of the patterns that these match, with the texts of the names.
        """
        from structgen.frontends.json_schema.normal.object_layout import ObjectLayout

        try:
            with _part(len(text), self._setting.limits):
                forms, location = self._read(text)
                (assertion,) = forms.read(location).disjunct.objects
                layout = ObjectLayout((assertion,), partial(_names, forms), self._setting.policy)
                matched = list(map(assertion.matching, assertion.properties))
        except StructgenError:
            return None
        _made.count(sum(memory_of(region.key) for region in layout.others) + _NAME_BYTES * len(matched))
        index = {pattern: number for number, (pattern, _) in enumerate(assertion.patterns)}
        return matched, [([index[pattern] for pattern in region.matched], region.key) for region in layout.others]

    def _read(self, text: str) -> tuple[NormalForm, Location]:
        """The normal form of a document, and its root schema."""
        documents = _documents(parse_json(text, SUBJECT, self._setting.limits), self._setting, self._dialect)
        return _normal_form(documents, self._setting)


_NAME_BYTES: Final = 256
_LEAF_STEPS: Final = 30
_STEPS_A_CHARACTER: Final = 100


def _part(characters: int, limits: Limits) -> counted:
    """The count of the work on a part of a schema.

    A part that needs more is left to ``Planner``, which counts the steps of the whole schema.
    """
    return counted(limits, _LEAF_STEPS * PYTHON_STEP + _STEPS_A_CHARACTER * PYTHON_STEP * characters)


def _documents(schema: Json, setting: Setting, dialect: Dialect) -> Documents:
    return Documents(schema, dialect, SchemaRegistry(None, setting.limits), setting, finds_copies=False)


def _normal_form(documents: Documents, setting: Setting) -> tuple[NormalForm, Location]:
    """The normal form of documents, and the location of the root schema."""
    from structgen.frontends.json_schema.normal.normal_form import DocumentSchemas, NormalForm
    from structgen.frontends.json_schema.source.reference import References

    references = References(documents, tracks_scopes=False)
    return NormalForm(DocumentSchemas(references), setting), references.start()


def _names(forms: NormalForm, locations: tuple[Location, ...]) -> NameLanguage:
    from structgen.frontends.json_schema.normal.object_layout import NameLanguage
    from structgen.frontends.json_schema.normal.validity import Validity

    return NameLanguage(locations, forms, Validity(forms))


class _MadeTerms(Share):
    """The terms that native planners requested: the planners keep them, and so do the grammars that have them.

    No planner tells which of its terms a grammar has. So all of them are counted as they are made, and when there are
    too many, the planners go with all cached grammars and constraints.
    """

    def __init__(self) -> None:
        super().__init__("schema terms")
        self.keepers: Followed[SimpleSchemas] = Followed()
        self._counted = 0

    def count(self, size: int) -> None:
        """Count the bytes of a term that was made."""
        self.bytes += size
        self._counted += 1
        self.fit()

    def held(self) -> tuple[int, int]:
        return self._counted, self.bytes

    def fit(self) -> int:
        return self.clear() if self.bytes > self.max_bytes else 0

    def clear(self) -> int:
        size, self.bytes, self._counted = self.bytes, 0, 0
        for schemas in self.keepers:
            schemas.forget()
        return size + GRAMMARS.clear() + CONSTRAINTS.clear()


_made: Final = _MadeTerms()


class Setting:
    """A policy and limits; compared by identity, which makes it cheap in a key.

    Attributes:
        policy: the policy.
        limits: the limits.
        syntax: the terms of the policy.
        asserts_formats: whether ``format`` restricts strings.
        coerces_one_of: whether ``oneOf`` is read as ``anyOf``.
        formats: the formats that the caller defines.
        simple: the native planner; ``None`` if it does not support the policy or the formats.
    """

    __slots__ = ("_leaves", "asserts_formats", "coerces_one_of", "formats", "limits", "policy", "simple", "syntax")

    def __init__(
        self,
        policy: JsonPolicy,
        limits: Limits,
        formats: Mapping[str, StringFormat] = NO_FORMATS,
        *,
        coerces_one_of: bool = False,
    ) -> None:
        self.policy = policy
        self.limits = limits
        self.syntax = syntax_of(policy)
        self.coerces_one_of = coerces_one_of
        self.asserts_formats = policy.formats == "asserted"
        self.formats = formats
        self.simple = SimpleSchemas(self) if supports_policy(policy) and not formats else None
        if self.simple is not None:
            _made.keepers.add(self.simple)
        self._leaves: dict[Dialect, LeafCache] = {}

    def leaves(self, dialect: Dialect) -> LeafCache:
        """The plans that documents of ``dialect`` share."""
        leaves = self._leaves.get(dialect)
        if leaves is None:
            leaves = self._leaves[dialect] = LeafCache(reader_of(dialect).active)
        return leaves


@lru_cache(maxsize=64)
def _cached_setting(policy: JsonPolicy, limits: Limits) -> Setting:
    return Setting(policy, limits)


_MAX_SETTINGS: Final = 64
_settings_by_identity: dict[tuple[int, int], tuple[Setting, JsonPolicy, Limits]] = {}


def setting_of(policy: JsonPolicy, limits: Limits) -> Setting:
    """The setting of a policy and limits, looked up by identity: hashing both takes longer than a small schema."""
    key = id(policy), id(limits)
    cached = _settings_by_identity.get(key)
    if cached is None:
        if len(_settings_by_identity) >= _MAX_SETTINGS:
            _settings_by_identity.clear()
        cached = _settings_by_identity[key] = _cached_setting(policy, limits), policy, limits
    return cached[0]
