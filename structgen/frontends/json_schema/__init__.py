"""JSON Schema front end: drafts 4, 6, 7, 2019-09 and 2020-12 to the grammar IR.

A schema is read object by object (``reading``), conjunctions are multiplied out into shapes by type
(``normal_form``, ``shapes``), and a planner turns the graph of shapes into terms (``planner``, with one module for
each type).  Every keyword is enforced by the automaton or refused by name; see ``docs/json-schema.md``.
"""

from __future__ import annotations

import marshal
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from structgen_kernels import _native

from structgen.cache import ContentCache
from structgen.frontends.json_schema.policy import JsonPolicy, Order, Whitespace
from structgen.frontends.json_schema.report import LazyDescription
from structgen.frontends.json_schema.translation import (
    DeferredGrammar,
    SchemaDump,
    Setting,
    planned_grammar,
    schema_text,
    setting_of,
)
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described

__all__ = ["JsonPolicy", "forget_known", "json_schema"]

_DEFAULT_LIMITS: Final = Limits()
_DEFAULT_POLICY: Final = JsonPolicy()


def json_schema(  # noqa: PLR0913  what a schema leaves open, by name
    schema: object,
    *,
    policy: JsonPolicy | None = None,
    whitespace: Whitespace | None = None,
    order: Order | None = None,
    draft: str | None = None,
    registry: Mapping[str, object] | None = None,
    formats: Mapping[str, Grammar] | None = None,
    limits: Limits = _DEFAULT_LIMITS,
    keep: bool = False,
) -> Grammar:
    """The JSON texts whose value is valid against ``schema``.

    Args:
        schema: a schema as ``dict`` or ``bool``, its JSON text as ``str`` or ``bytes``, or a Python type: a pydantic
            model, dataclass, ``TypedDict``, ``NamedTuple``, ``Enum``, ``Literal``, union, ``list[int]`` ..., as
            ``docs/types.md`` says.
        policy: which texts of a valid value belong to the language.
        whitespace: the same as ``policy`` with this ``whitespace``.
        order: the same as ``policy`` with this ``order`` of the members of objects.
        draft: ``"4"``, ``"6"``, ``"7"``, ``"2019-09"`` or ``"2020-12"``, whatever ``$schema`` says.
        registry: the schemas of other documents that references may name: a ``referencing.Registry``, or a mapping
            from URIs to schemas (``dict``, ``bool`` or JSON text).  Each is read in the draft of its own ``$schema``,
            or else in that of ``schema``.  The metaschemas of the drafts are known without it where the package
            ``jsonschema-specifications`` is installed.
        formats: what names under ``format`` mean: the decoded text of the string belongs to the grammar.  A name of
            the specification then means that and nothing else; the policy's ``formats`` does not concern them.
        limits: bounds on size and nesting.
        keep: whether a grammar that takes long to plan is kept in the disk cache, and looked for there first.  Not
            where there is a registry, a Python type or a format of the caller's.

    Returns:
        a term with a description: one entry for each keyword, and the policies.

    Raises:
        GrammarSyntaxError: the text is not JSON, or has a name twice in one object.
        UnsupportedFeature: a keyword cannot be enforced; it is named with its JSON Pointer.
        UnsatisfiableGrammar: no value is valid.
        GrammarError: the schema is malformed in another way.
        LimitExceeded: it is too large or nested too deeply.
        TypeError: ``formats`` is no mapping from names to grammars.

    Complexity: linear in the part of the schema that is reached, times the alternatives that ``allOf`` multiplies.

    >>> grammar = json_schema({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}})
    >>> [(entry.where, entry.status.value) for entry in grammar.description.entries][-1]
    ('#/properties/age/minimum', 'enforced')
    """
    python_type = None
    named = formats
    if not isinstance(schema, _SCHEMAS):
        from structgen.frontends.python_types import schema_of_type

        python_type = schema
        schema, own_names = schema_of_type(schema)
        named = {**own_names, **(formats or {})}
    chosen = policy or _DEFAULT_POLICY
    if whitespace is not None:
        chosen = replace(chosen, whitespace=whitespace)
    if order is not None:
        chosen = replace(chosen, order=order)
    setting = setting_of(chosen, limits) if not named else _setting_with(chosen, limits, named)
    is_alone = registry is None and python_type is None and not named
    content = _content(schema, limits) if is_alone else None
    key = (setting, draft, content)
    if content is not None:
        known = _grammar_cache.get(key)
        if known is not None:
            return known
    grammar = None
    if draft is None and registry is None:
        grammar = _simple_grammar(schema, content, setting, python_type)
    if grammar is None and keep and content is not None:
        grammar = _disk_cached_grammar(content, setting, draft)
    if grammar is None:
        grammar = planned_grammar(schema if content is None else content, setting, draft, registry, python_type)
    if content is not None:
        _grammar_cache.put(key, grammar, _ENTRY_BYTES + _BYTES_PER_BYTE * len(content))
    return grammar


_SCHEMAS: Final = (dict, bool, str, bytes, bytearray, list, tuple, int, float)
"""What is a schema or can be none; everything else is a Python type."""
_ENTRY_BYTES: Final = 4_096
_BYTES_PER_BYTE: Final = 24
"""What a grammar takes in memory with its document, for a byte of schema: about that much in real ones."""
_grammar_cache: Final[ContentCache[Grammar]] = ContentCache(max_bytes=64 << 20)


def _setting_with(policy: JsonPolicy, limits: Limits, formats: Mapping[str, Grammar]) -> Setting:
    """A setting of its own, for what is known of schemas elsewhere is known without these formats."""
    from structgen.frontends.json_schema.formats.user_format import user_formats  # few ask for it

    return Setting(policy, limits, user_formats(formats))


def forget_known() -> None:
    """Drop the grammars that are kept for equal schemas, as a measurement of compiling must."""
    _grammar_cache.clear()


def _content(schema: object, limits: Limits) -> str | SchemaDump | None:
    """What tells equal schemas: their text, or a dump of a dictionary; ``None`` where there is nothing so simple.

    A dictionary is dumped because it may change later, and the grammar's description is read off it when asked for.
    Equal dumps have equal contents; the reverse need not hold, for parts that are one object are dumped once.
    """
    if isinstance(schema, (str, bytes, bytearray)):
        return schema_text(schema, limits)
    if isinstance(schema, dict):
        try:
            return SchemaDump(marshal.dumps(schema))
        except ValueError:  # decimals, other classes of objects, or very deep nesting
            return None
    return None


_MAX_WRITTEN_RATIO: Final = 8
"""Bytes of text for a byte of a dumped dictionary, in which a part that is one object is held once."""


def _simple_grammar(
    schema: object, content: str | SchemaDump | None, setting: Setting, python_type: object | None
) -> Grammar | None:
    """The grammar of a plain schema; ``None`` if it is not plain.  Its IR is made when somebody asks for it."""
    if setting.plain is None:
        return None
    limits = setting.limits
    text = content
    if not isinstance(text, str):
        most = limits.source_bytes if text is None else _MAX_WRITTEN_RATIO * len(text)
        text = _native.json_text(schema, limits.nesting, most)
    found = None if text is None else setting.plain.plan(text)
    if found is None:
        return None
    source = schema if content is None else content  # without content: of a type, so nobody else has the dictionary
    return Described.deferred(found[0], DeferredGrammar(source, setting, None, found[1], python_type))


def _disk_cached_grammar(content: str | SchemaDump, setting: Setting, draft: str | None) -> Grammar:
    """The grammar of any content, from the disk if it is there; else it is planned, and kept if that took long."""
    from structgen.frontends.json_schema import translation as kept  # few ask for it

    key = kept.program_key(content, setting, draft)
    found = kept.fetch_program(key)
    if found is not None:
        return Described.deferred(found[0], DeferredGrammar(content, setting, draft, found[1], None))
    start = time.perf_counter()
    grammar = planned_grammar(content, setting, draft, None, None)
    description = grammar.description
    if time.perf_counter() - start > kept.WORTH_KEEPING_S and isinstance(description, LazyDescription):
        kept.keep_program(key, grammar.item, description.dialect, setting.limits.grammar_nodes)
    return grammar
