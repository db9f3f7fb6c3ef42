"""JSON Schema front end: drafts 4, 6, 7, 2019-09 and 2020-12 to the grammar IR.

A schema is read object by object (``source``), conjunctions are multiplied out into disjuncts by type (``normal``), and
a planner turns the graph of disjuncts into terms (``emit``).  For most schemas the native library does all three
(``native``).  Every keyword is enforced by the automaton or refused by name; see ``docs/reference/json-schema.md``.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from structgen.errors import KeywordWarning, number_of
from structgen.frontends.json_schema.native import (
    KNOWN,
    known_grammars,
    known_size,
    new_setting,
    setting_of,
    simple_grammar,
)
from structgen.frontends.json_schema.policy import Additional, JsonPolicy, Order, Required, Whitespace
from structgen.frontends.json_schema.setting import Setting
from structgen.frontends.json_schema.source.json_value import content_of
from structgen.grammar.flattening import memory_of
from structgen.grammar.limits import Limits, counted
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described

__all__ = ["JsonPolicy", "document_of", "forget_known", "json_schema", "known_schemas"]

_DEFAULT_LIMITS: Final = Limits()
_DEFAULT_POLICY: Final = JsonPolicy()


def json_schema(  # noqa: PLR0913  what a schema leaves open, by name
    schema: object,
    *,
    policy: JsonPolicy | None = None,
    whitespace: Whitespace | None = None,
    order: Order | None = None,
    additional: Additional | None = None,
    required: Required | None = None,
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
            ``docs/reference/types.md`` says.
        policy: how valid values may be written.
        whitespace: the same as ``policy`` with this ``whitespace``.
        order: the same as ``policy`` with this ``order`` of the members of objects.
        additional: the same with this choice for members that a schema does not name.
        required: the same with this choice of the members that an object must have.
        draft: ``"4"``, ``"6"``, ``"7"``, ``"2019-09"`` or ``"2020-12"``; overrides ``$schema``.
        registry: the schemas of other documents that references may name: a ``referencing.Registry``, or a mapping
            from URIs to schemas (``dict``, ``bool`` or JSON text).  Each is read in the draft of its own ``$schema``,
            or else in the draft of ``schema``.  The metaschemas of the drafts need no entry where the package
            ``jsonschema-specifications`` is installed.
        formats: a grammar for each name of a ``format``, which the decoded string must match.  An entry replaces a
            format of the specification, and is enforced whatever the policy's ``formats`` is.
        limits: bounds on size and nesting.
        keep: whether a grammar that takes long to plan is stored in the disk cache and looked up there first; without
            effect on a Python type, and with ``registry`` or ``formats``.

    Returns:
        a term with a description: one entry for each keyword, and the policies.

    Raises:
        GrammarSyntaxError: the text is not JSON, or has a name twice in one object.
        UnsupportedFeature: a keyword cannot be enforced; it is named with its JSON Pointer.
        UnsatisfiableGrammar: no value is valid.
        GrammarError: the schema is malformed in another way.
        LimitExceeded: it is too large or nested too deeply.
        TypeError: ``formats`` is no mapping from names to grammars.

    Warns:
        KeywordWarning: a name resembles a keyword and is none: it constrains nothing, as the specification says.

    Complexity: linear in the reachable part of the schema, times the alternatives that ``allOf`` multiplies.

    >>> grammar = json_schema({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}})
    >>> [(entry.where, entry.status.value) for entry in grammar.description.entries][-1]
    ('#/properties/age/minimum', 'enforced')
    """
    chosen = policy or _DEFAULT_POLICY
    if whitespace or order or additional or required:
        said: dict[str, Any] = {
            "whitespace": whitespace,
            "order": order,
            "additional": additional,
            "required": required,
        }
        chosen = replace(chosen, **{name: value for name, value in said.items() if value is not None})
    schema, python_type, setting = document_of(schema, chosen, limits, formats)
    is_alone = registry is None and python_type is None and not setting.formats
    content = content_of(schema, limits) if is_alone else None
    key = (setting, draft, content)
    if content is not None:
        cached = KNOWN.get(key)
        if cached is not None:
            return cached
    grammar, more_bytes = None, 0
    if draft is None and registry is None:
        grammar = simple_grammar(schema, content, setting, python_type)
    if grammar is not None:
        _warn_of_misspelt(grammar)
    else:
        from structgen.frontends.json_schema import translation  # most schemas are simple

        if keep and content is not None:
            grammar = translation.disk_cached_grammar(content, setting, draft)
        else:
            source = schema if content is None else content
            with counted(limits):
                grammar = translation.planned_grammar(source, setting, draft, registry, python_type)
            _warn_of_misspelt(grammar)
        more_bytes = 0 if content is None else memory_of(grammar)
    if content is not None:
        KNOWN.put(key, grammar, known_size(content) + more_bytes)
    return grammar


_MAX_WARNINGS: Final = 1_000
"""Python keeps what it has warned of: strangers may write any names."""
_warned: Final[set[str]] = set()


def _warn_of_misspelt(grammar: Grammar) -> None:
    """Warn of keywords that are likely misspelt."""
    if not isinstance(grammar, Described):
        return
    names: list[str] | None = getattr(grammar.plain, "unknown", None)  # None: they are not known yet
    if names == []:
        return
    from structgen.frontends.json_schema.report import LazyDescription, meant_keyword  # few schemas come here

    description = grammar.description
    if not isinstance(description, LazyDescription) or not (names is None or any(map(meant_keyword, names))):
        return
    places: dict[tuple[str, str], list[str]] = {}
    for where, name, near in description.misspelt():
        places.setdefault((name, near), []).append(where)
    for (name, near), found in places.items():
        more = f", as in {number_of(len(found) - 1, 'other place')}" if found[1:] else ""
        text = f"json schema {found[0]}: {name!r} is no keyword of any specification, and constrains nothing{more}"
        if text in _warned or len(_warned) < _MAX_WARNINGS:
            _warned.add(text)
            warnings.warn(f"{text}; is {near!r} meant?", KeywordWarning, stacklevel=3)


def known_schemas(schemas: list[dict[str, Any] | str], policy: JsonPolicy, limits: Limits) -> list[Grammar | None]:
    """What ``json_schema`` returns for each of many schemas; ``None`` for those that are not simple.

    Args:
        schemas: as ``dict``, or as JSON text.
        policy: how valid values may be written.
        limits: bounds on size and nesting; no text is longer than they allow.

    Complexity: linear in the schemas; equal ones are planned once.
    """
    return known_grammars(schemas, setting_of(policy, limits))


_SCHEMAS: Final = (dict, bool, str, bytes, bytearray, list, tuple, int, float)
"""Schemas, and values that are neither schemas nor types; everything else is a Python type."""


def document_of(
    schema: object, policy: JsonPolicy, limits: Limits, formats: Mapping[str, Grammar] | None = None
) -> tuple[Any, object | None, Setting]:
    """The document of a schema or Python type, the Python type if it was one, and the setting.

    Raises:
        GrammarError: the type has no JSON form.
        TypeError: ``formats`` is no mapping from names to grammars.
    """
    python_type, named = None, formats
    if not isinstance(schema, _SCHEMAS):
        from structgen.frontends.python_types import schema_of_type

        python_type = schema
        schema, own_names = schema_of_type(schema)
        named = {**own_names, **(formats or {})}
    return schema, python_type, _setting_with(policy, limits, named) if named else setting_of(policy, limits)


def _setting_with(policy: JsonPolicy, limits: Limits, formats: Mapping[str, Grammar]) -> Setting:
    """A setting that is not shared: the caches of others do not know these formats."""
    from structgen.frontends.json_schema.formats.user_format import user_formats  # rarely needed

    return new_setting(policy, limits, user_formats(formats))


def forget_known() -> None:
    """Drop the cached grammars, as a measurement of compilation must."""
    KNOWN.clear()
