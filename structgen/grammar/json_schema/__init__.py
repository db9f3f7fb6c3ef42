"""JSON Schema front end: drafts 4, 6, 7, 2019-09 and 2020-12 to the grammar IR.

A schema is read object by object (``reading``), conjunctions are multiplied out into shapes by type
(``normal_form``, ``shapes``), and a planner turns the graph of shapes into terms (``planner``, with one module for
each type).  Every keyword is enforced by the automaton or refused by name; see ``docs/json-schema.md``.
"""

from __future__ import annotations

import gc
import marshal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from structgen_kernels import _native

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded
from structgen.grammar.content_cache import ContentCache
from structgen.grammar.json_schema.documents import Documents
from structgen.grammar.json_schema.drafts import dialect_named
from structgen.grammar.json_schema.entries import LazyDescription, describe, with_twins
from structgen.grammar.json_schema.library import Library
from structgen.grammar.json_schema.normal_form import NormalForm
from structgen.grammar.json_schema.places import shown
from structgen.grammar.json_schema.planner import AlternativesOverlap, Planner
from structgen.grammar.json_schema.policy import JsonPolicy, Order, Whitespace
from structgen.grammar.json_schema.references import References, ScopesNeeded
from structgen.grammar.json_schema.settings import Setting, setting_of
from structgen.grammar.json_schema.strict_json import parse_json
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Grammar
from structgen.grammar.report import Described, Description, ReportEntry

if TYPE_CHECKING:
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.strict_json import Json

__all__ = ["JsonPolicy", "forget_known", "json_schema"]

_SUBJECT: Final = "json schema"
_DEFAULT_LIMITS: Final = Limits()
_DEFAULT_POLICY: Final = JsonPolicy()


def json_schema(
    schema: object,
    *,
    policy: JsonPolicy | None = None,
    whitespace: Whitespace | None = None,
    order: Order | None = None,
    draft: str | None = None,
    registry: Mapping[str, object] | None = None,
    limits: Limits = _DEFAULT_LIMITS,
    keep: bool = False,
) -> Grammar:
    """The JSON texts whose value is valid against ``schema``.

    Args:
        schema: a schema as ``dict`` or ``bool``, its JSON text as ``str`` or ``bytes``, or a Python type: a pydantic
            model, dataclass, ``TypedDict``, ``NamedTuple``, ``Enum``, ``Literal``, union, ``list[int]`` ...
        policy: which texts of a valid value belong to the language.
        whitespace: the same as ``policy`` with this ``whitespace``.
        order: the same as ``policy`` with this ``order`` of the members of objects.
        draft: ``"4"``, ``"6"``, ``"7"``, ``"2019-09"`` or ``"2020-12"``, whatever ``$schema`` says.
        registry: the schemas of other documents that references may name: a ``referencing.Registry``, or a mapping
            from URIs to schemas (``dict``, ``bool`` or JSON text).  Each is read in the draft of its own ``$schema``,
            or else in that of ``schema``.  The metaschemas of the drafts are known without it where the package
            ``jsonschema-specifications`` is installed.
        limits: bounds on size and nesting.
        keep: whether a grammar that takes long to plan is kept in the disk cache, and looked for there first.  Not
            where there is a registry or a Python type.

    Returns:
        a term with a description: one entry for each keyword, and the policies.

    Raises:
        GrammarSyntaxError: the text is not JSON, or has a name twice in one object.
        UnsupportedFeature: a keyword cannot be enforced; it is named with its JSON Pointer.
        UnsatisfiableGrammar: no value is valid.
        GrammarError: the schema is malformed in another way.
        LimitExceeded: it is too large or nested too deeply.

    Complexity: linear in the part of the schema that is reached, times the alternatives that ``allOf`` multiplies.

    >>> grammar = json_schema({"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}})
    >>> [(entry.where, entry.status.value) for entry in grammar.description.entries][-1]
    ('#/properties/age/minimum', 'enforced')
    """
    python_type = None
    if not isinstance(schema, _SCHEMAS):
        from structgen.grammar.types import schema_of_type  # pydantic is imported only for Python types

        schema, python_type = schema_of_type(schema), schema
    chosen = policy or _DEFAULT_POLICY
    if whitespace is not None:
        chosen = replace(chosen, whitespace=whitespace)
    if order is not None:
        chosen = replace(chosen, order=order)
    setting = setting_of(chosen, limits)
    content = None if registry is not None or python_type is not None else _content(schema, limits)
    key = (setting, draft, content)
    if content is not None:
        known = _known_grammars.get(key)
        if known is not None:
            return known
    grammar = None
    if draft is None and registry is None:
        grammar = _plain_grammar(schema, content, setting, python_type)
    if grammar is None and keep and content is not None:
        grammar = _kept_grammar(content, setting, draft)
    if grammar is None:
        grammar = _planned_grammar(schema if content is None else content, setting, draft, registry, python_type)
    if content is not None:
        _known_grammars.put(key, grammar, _ENTRY_BYTES + _BYTES_PER_BYTE * len(content))
    return grammar


_SCHEMAS: Final = (dict, bool, str, bytes, bytearray, list, tuple, int, float)
"""What is a schema or can be none; everything else is a Python type."""
_ENTRY_BYTES: Final = 4_096
_BYTES_PER_BYTE: Final = 24
"""What a grammar takes in memory with its document, for a byte of schema: about that much in real ones."""
_known_grammars: Final[ContentCache[Grammar]] = ContentCache(max_bytes=64 << 20)


def forget_known() -> None:
    """Drop the grammars that are kept for equal schemas, as a measurement of compiling must."""
    _known_grammars.clear()


class _Dump(bytes):
    """A dictionary as ``marshal`` dumps it; never what somebody else wrote, which is not safe to load."""

    __slots__ = ()


def _content(schema: object, limits: Limits) -> str | _Dump | None:
    """What tells equal schemas: their text, or a dump of a dictionary; ``None`` where there is nothing so simple.

    A dictionary is dumped because it may change later, and the grammar's description is read off it when asked for.
    Equal dumps have equal contents; the reverse need not hold, for parts that are one object are dumped once.
    """
    if isinstance(schema, (str, bytes, bytearray)):
        return _text(schema, limits)
    if isinstance(schema, dict):
        try:
            return _Dump(marshal.dumps(schema))
        except ValueError:  # decimals, other classes of objects, or very deep nesting
            return None
    return None


_MOST_WRITTEN: Final = 8
"""Bytes of text for a byte of a dumped dictionary, in which a part that is one object is held once."""


def _plain_grammar(
    schema: object, content: str | _Dump | None, setting: Setting, python_type: object | None
) -> Grammar | None:
    """The grammar of a plain schema; ``None`` if it is not plain.  Its IR is made when somebody asks for it."""
    if setting.plain is None:
        return None
    limits = setting.limits
    text = content
    if not isinstance(text, str):
        most = limits.source_bytes if text is None else _MOST_WRITTEN * len(text)
        text = _native.json_text(schema, limits.nesting, most)
    found = None if text is None else setting.plain.plan(text)
    if found is None:
        return None
    source = schema if content is None else content  # without content: of a type, so nobody else has the dictionary
    return Described.deferred(found[0], _PlannedLater(source, setting, None, found[1], python_type))


def _kept_grammar(content: str | _Dump, setting: Setting, draft: str | None) -> Grammar:
    """The grammar of any content, from the disk if it is there; else it is planned, and kept if that took long."""
    from structgen.grammar.json_schema import kept  # few ask for it

    key = kept.key_of(content, setting, draft)
    found = kept.fetch(key)
    if found is not None:
        return Described.deferred(found[0], _PlannedLater(content, setting, draft, found[1], None))
    start = time.perf_counter()
    grammar = _planned_grammar(content, setting, draft, None, None)
    description = grammar.description
    if time.perf_counter() - start > kept.WORTH_KEEPING_S and isinstance(description, LazyDescription):
        kept.keep(key, grammar.item, description.dialect, setting.limits.grammar_nodes)
    return grammar


class _PlannedLater:
    """A grammar by the planner in Python, once somebody asks for its term or its entries."""

    __slots__ = ("_dialect", "_draft", "_python_type", "_schema", "_setting")

    def __init__(
        self, schema: object, setting: Setting, draft: str | None, dialect: Dialect, python_type: object | None
    ) -> None:
        self._schema = schema
        self._setting = setting
        self._draft = draft
        self._dialect = dialect
        self._python_type = python_type

    def item(self) -> Grammar:
        """The term."""
        return self._planned().item

    def description(self) -> Description:
        """Where it came from."""
        return LazyDescription(self._entries, self._setting.policy, self._dialect, self._python_type)

    def _entries(self) -> tuple[ReportEntry, ...]:
        return self._planned().description.entries

    def _planned(self) -> Described:
        return _planned_grammar(self._schema, self._setting, self._draft, None, self._python_type)


def _planned_grammar(
    schema: object,
    setting: Setting,
    draft: str | None,
    registry: Mapping[str, object] | None,
    python_type: object | None,
) -> Described:
    """The grammar of any schema, or of the content that stands for one."""
    limits = setting.limits
    document = _document(schema, limits)
    chosen = None if draft is None else dialect_named(draft)
    library = Library(registry, limits)
    with _without_collection():
        documents = Documents(document, chosen, library, limits, asserts_formats=setting.asserts_formats)
        try:
            return _grammar(documents, python_type, setting, tracks_scopes=False)
        except ScopesNeeded:
            return _grammar(documents, python_type, setting, tracks_scopes=True)


def _grammar(documents: Documents, python_type: object | None, setting: Setting, *, tracks_scopes: bool) -> Described:
    limits = setting.limits
    references = References(documents, tracks_scopes=tracks_scopes)
    forms = NormalForm(references, limits)
    while True:
        planner = Planner(forms, setting, limits)
        try:
            term = planner.grammar(references.start())
            break
        except AlternativesOverlap as found:
            forms = NormalForm(references, limits, found.overlaps, forms)
    reached, checked, twins = planner.known.union(forms.locals), planner.checked, forms.twins
    sources = [documents.root, *documents.loaded]
    dialect = documents.root.resource.dialect

    def entries() -> tuple[ReportEntry, ...]:
        by_keyword = {keyword: references.originals(with_twins(known, twins)) for keyword, known in checked.items()}
        return describe(sources, references.originals(with_twins(reached, twins)), by_keyword)

    return Described(term, LazyDescription(entries, setting.policy, dialect, python_type))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Let the cycle collector rest.

    Thousands of small objects are made, none of them garbage; in a process with a large heap the collections that
    they set off took twice the time of all the rest.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _document(schema: object, limits: Limits) -> Json:
    """The schema as a JSON value."""
    if isinstance(schema, _Dump):
        schema = marshal.loads(schema)
    elif isinstance(schema, (str, bytes, bytearray)):
        schema = parse_json(_text(schema, limits), _SUBJECT, limits)
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(
            f"{_SUBJECT} #", "a schema must be an object or a boolean", evidence=f"found {shown(schema)}"
        )
    return schema


def _text(source: str | bytes | bytearray, limits: Limits) -> str:
    if len(source) > limits.source_bytes:
        raise LimitExceeded(
            _SUBJECT, limit="source_bytes", maximum=limits.source_bytes, evidence=f"the text has {len(source)}"
        )
    if isinstance(source, str):
        return source
    try:
        return bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = source[: error.start].decode() + source[error.start :].decode("utf-8", "replace")
        start = len(source[: error.start].decode())
        raise GrammarSyntaxError(
            _SUBJECT,
            f"byte 0x{source[error.start]:02x} is not UTF-8",
            text=text,
            span=(start, start + 1),
            remedy="give JSON text in UTF-8",
        ) from None
