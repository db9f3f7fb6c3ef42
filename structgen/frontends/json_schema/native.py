"""The native planner for simple schemas: objects, arrays, constants, references, simple types, and what joins them.

Unions, conjunctions, negations, conditions and alternatives that overlap are multiplied out as in Python, but for
complements of arrays, and constants that are no scalars.

Most schemas use nothing else, and the native library plans these directly from the JSON text.  It makes the same terms
as :class:`~structgen.frontends.json_schema.emit.planner.Planner`, the reference implementation; other schemas, and
schemas with errors, are left to ``Planner``.  The modules of ``Planner`` are imported when they are needed first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from structgen_kernels import _native

from structgen.frontends.json_schema.emit.plan import SIMPLE_KEYWORDS
from structgen.frontends.json_schema.native_parts import MADE, LeafMaker, SubschemaPlanner
from structgen.frontends.json_schema.normal.schema_reader import CONSTRAINTS, reader_of
from structgen.frontends.json_schema.setting import Setting
from structgen.frontends.json_schema.source.dialect import ANNOTATIONS, UNDECLARED, standard_dialect
from structgen.frontends.json_schema.source.document import NO_FORMATS
from structgen.frontends.json_schema.source.json_value import SchemaDump, content_of, given
from structgen.frontends.json_schema.term import ANY_STRING
from structgen.grammar.limits import counted
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description, ReportEntry
from structgen.memory_cache import GRAMMARS, ContentCache

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from structgen.frontends.json_schema.emit.arguments import Notation
    from structgen.frontends.json_schema.formats.user_format import StringFormat
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.dialect import Dialect
    from structgen.grammar.limits import Limits

__all__ = [
    "KNOWN",
    "DeferredGrammar",
    "SimpleSchemas",
    "keyword_numbers",
    "known_grammars",
    "known_size",
    "new_setting",
    "setting_of",
    "simple_arguments",
    "simple_grammar",
    "supports_policy",
]

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
    "not": 22,
    "if": 23,
    "then": 24,
    "else": 25,
    "dependencies": 26,
    "dependentRequired": 27,
    "dependentSchemas": 28,
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
    schema: object,
    content: str | SchemaDump | None,
    setting: Setting,
    python_type: object | None,
    notation: Notation | None = None,
) -> Grammar | None:
    """The grammar of a simple schema, whose IR is made on demand; ``None`` if the schema is not simple.

    With a notation the grammar of the arguments that it describes.
    """
    simple = setting.simple if notation is None else simple_arguments(notation, setting)
    if simple is None:
        return None
    limits = setting.limits
    text = content
    if not isinstance(text, str):
        max_bytes = limits.source_bytes if text is None else _MAX_TEXT_RATIO * len(text)
        # From the content: the schema may have changed since, and what is made is kept under the content.
        text = _native.json_text(schema if content is None else given(content), limits.nesting, max_bytes)
    if text is None:
        return None
    if len(text) < _FEW_CHARACTERS:
        planned = simple.plan(text)
    else:
        with counted(limits, limits.steps // _SHARE):
            planned = simple.plan(text)
    if planned is None:
        return None
    source = schema if content is None else content  # without content: made from a type, so no other code can change it
    return Described.deferred(planned[0], DeferredGrammar(source, setting, None, planned[1], python_type, notation))


_ENTRY_BYTES: Final = 4_096
_BYTES_PER_BYTE: Final = 24
"""Bytes of memory that a grammar and its document take for each byte of schema, measured on real schemas. The terms of
simple schemas are counted where they are made, those of others are added."""
KNOWN: Final[ContentCache[Grammar]] = ContentCache(GRAMMARS)
"""Grammars by setting, draft or notation, and content."""


def known_size(content: str | SchemaDump) -> int:
    """Bytes of a grammar in ``KNOWN``, except for terms that Python made."""
    return _ENTRY_BYTES + _BYTES_PER_BYTE * len(content)


def known_grammars(
    schemas: Collection[dict[str, Any] | str], setting: Setting, notation: Notation | None = None
) -> list[Grammar | None]:
    """The grammars of many schemas, from ``KNOWN`` or put there; ``None`` for those that are not simple.

    With a notation the grammars of the arguments that they describe.
    """
    contents = [schema if isinstance(schema, str) else content_of(schema, setting.limits) for schema in schemas]
    found = KNOWN.get_all((setting, notation, content) for content in contents)
    new: dict[str | SchemaDump, Grammar | None] = {}
    for at, (schema, content) in enumerate(zip(schemas, contents, strict=True)):
        if found[at] is None and content is not None:
            if content not in new:
                new[content] = simple_grammar(schema, content, setting, None, notation)
            found[at] = new[content]
    KNOWN.put_all(
        ((setting, notation, content), grammar, known_size(content))
        for content, grammar in new.items()
        if grammar is not None
    )
    return found


@dataclass(slots=True, eq=False)  # not frozen, which takes longer than to plan a small schema
class DeferredGrammar:
    """A grammar whose term and entries the planner in Python makes on demand."""

    _schema: object
    _setting: Setting
    _draft: str | None
    _dialect: Dialect
    _python_type: object | None
    _notation: Notation | None = None

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
        from structgen.frontends.json_schema.translation import argument_planner, planned_grammar

        # Like the native planner, which does not look for copies.
        return planned_grammar(
            self._schema,
            self._setting,
            self._draft,
            None,
            self._python_type,
            finds_copies=False,
            planner=argument_planner(self._notation),
        )


def keyword_numbers(dialect: Dialect) -> dict[str, int]:
    """The keywords that have a meaning in a dialect, with the numbers that the native planner knows them by."""
    numbers = {}
    for keyword in reader_of(dialect).active:
        simple = _SIMPLE_KEYWORD if keyword in SIMPLE_KEYWORDS else _OTHER_KEYWORD
        numbers[keyword] = _IDENTIFIER_KEYWORD if keyword == dialect.id_keyword else _KEYWORDS.get(keyword, simple)
    return numbers


class SimpleSchemas:
    """Plans the simple schemas of one setting, or the arguments that they describe in a notation."""

    __slots__ = ("__weakref__", "_notation", "_planners", "_setting")

    def __init__(self, setting: Setting, notation: Notation | None = None) -> None:
        self._setting = setting
        self._notation = notation
        MADE.keepers.add(self)
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
        parts = SubschemaPlanner(setting, dialect, self._notation)
        return self._planner(dialect), LeafMaker(setting, dialect), dialect, parts

    def _planner(self, dialect: Dialect) -> _native.SimplePlanner:
        syntax, limits = self._setting.syntax, self._setting.limits
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
            keyword_numbers(dialect),
            dialect.reference_stands_alone,
            terms,
            limits.grammar_nodes,
            limits.nesting,
            closes=self._setting.policy.additional == "forbidden",
            requires_all=self._setting.policy.required == "all",
            notation=None if self._notation is None else self._notation.marks,
            others=(*CONSTRAINTS, *ANNOTATIONS),
        )


_DialectPlanner: TypeAlias = "tuple[_native.SimplePlanner, LeafMaker, Dialect, SubschemaPlanner]"


@lru_cache(maxsize=64)
def simple_arguments(notation: Notation, setting: Setting) -> SimpleSchemas | None:
    """The native planner of arguments in a notation; ``None`` if it does not support the notation or the setting."""
    return None if setting.simple is None or notation.marks is None else SimpleSchemas(setting, notation)


def new_setting(
    policy: JsonPolicy,
    limits: Limits,
    formats: Mapping[str, StringFormat] = NO_FORMATS,
    *,
    coerces_one_of: bool = False,
) -> Setting:
    """A setting of its own, with its native planner."""
    setting = Setting(policy, limits, formats, coerces_one_of=coerces_one_of)
    if supports_policy(policy) and not formats:
        setting.simple = SimpleSchemas(setting)
    return setting


@lru_cache(maxsize=64)
def _cached_setting(policy: JsonPolicy, limits: Limits) -> Setting:
    return new_setting(policy, limits)


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
