"""From a schema in any form to its grammar, by the planner in Python; and the grammars kept on disk.

The settings that documents share are here, and the programs of schemas that took long to plan, which are kept on disk
for the next process.
"""

from __future__ import annotations

import gc
import hashlib
import json
import marshal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from structgen_kernels import _native

from structgen.cache import fetch as fetch_entry, keep as keep_entry
from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded
from structgen.frontends.json_schema.emit.plan import LeafCache
from structgen.frontends.json_schema.emit.planner import AlternativesOverlap, Planner
from structgen.frontends.json_schema.emit.syntax import syntax_of
from structgen.frontends.json_schema.native import SimpleSchemas, supports_policy
from structgen.frontends.json_schema.normal.normal_form import NormalForm
from structgen.frontends.json_schema.normal.schema_reader import reader_of
from structgen.frontends.json_schema.report import LazyDescription, describe, with_copies
from structgen.frontends.json_schema.source.dialect import Dialect, dialect_named
from structgen.frontends.json_schema.source.document import NO_FORMATS, Documents, SchemaRegistry
from structgen.frontends.json_schema.source.json_value import parse_json
from structgen.frontends.json_schema.source.location import shown
from structgen.frontends.json_schema.source.reference import References, ScopesNeeded
from structgen.grammar.flattening import flatten
from structgen.grammar.nodes.description import Described, Description, ReportEntry

if TYPE_CHECKING:
    from structgen.frontends.json_schema.formats.user_format import StringFormat
    from structgen.frontends.json_schema.policy import JsonPolicy
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = [
    "WORTH_KEEPING_S",
    "DeferredGrammar",
    "SchemaDump",
    "Setting",
    "fetch_program",
    "keep_program",
    "planned_grammar",
    "program_key",
    "schema_text",
    "setting_of",
]


class Setting:
    """A policy and limits; compared by identity, so that it is a cheap part of a key.

    Attributes:
        policy: the policy.
        limits: the limits.
        syntax: the terms of the policy.
        asserts_formats: whether ``format`` restricts strings.
        formats: the formats that the caller defines.
        plain: the native planner; ``None`` if it does not know the policy, or not the formats.
    """

    __slots__ = ("_leaves", "asserts_formats", "formats", "limits", "plain", "policy", "syntax")

    def __init__(self, policy: JsonPolicy, limits: Limits, formats: Mapping[str, StringFormat] = NO_FORMATS) -> None:
        self.policy = policy
        self.limits = limits
        self.syntax = syntax_of(policy)
        self.asserts_formats = policy.formats == "asserted"
        self.formats = formats
        self.plain = SimpleSchemas(self) if supports_policy(policy) and not formats else None
        self._leaves: dict[Dialect, LeafCache] = {}

    def leaves(self, dialect: Dialect) -> LeafCache:
        """The plans that documents of ``dialect`` share."""
        found = self._leaves.get(dialect)
        if found is None:
            found = self._leaves[dialect] = LeafCache(reader_of(dialect).active)
        return found


@lru_cache(maxsize=64)
def _cached_setting(policy: JsonPolicy, limits: Limits) -> Setting:
    return Setting(policy, limits)


_MAX_SETTINGS: Final = 64
_settings_by_identity: dict[tuple[int, int], tuple[Setting, JsonPolicy, Limits]] = {}


def setting_of(policy: JsonPolicy, limits: Limits) -> Setting:
    """The setting of two values, found by their identity: hashing them takes longer than a small schema does."""
    key = id(policy), id(limits)
    known = _settings_by_identity.get(key)
    if known is None:
        if len(_settings_by_identity) >= _MAX_SETTINGS:
            _settings_by_identity.clear()
        known = _settings_by_identity[key] = _cached_setting(policy, limits), policy, limits
    return known[0]


_SUBJECT: Final = "json schema"


class SchemaDump(bytes):
    """A dictionary as ``marshal`` dumps it; never what somebody else wrote, which is not safe to load."""

    __slots__ = ()


class DeferredGrammar:
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
        schema = _alone(self._schema, self._setting)
        return LazyDescription(self._entries, self._setting.policy, self._dialect, self._python_type, schema)

    def _entries(self) -> tuple[ReportEntry, ...]:
        return self._planned().description.entries

    def _planned(self) -> Described:
        # As the native planner plans it, which looks for no copies.
        return planned_grammar(self._schema, self._setting, self._draft, None, self._python_type, finds_copies=False)


def planned_grammar(
    schema: object,
    setting: Setting,
    draft: str | None,
    registry: Mapping[str, object] | None,
    python_type: object | None,
    *,
    finds_copies: bool | None = True,
) -> Described:
    """The grammar of any schema, or of the content that stands for one; copies in it are planned once, or each."""
    limits = setting.limits
    document = _document(schema, limits)
    chosen = None if draft is None else dialect_named(draft)
    library = SchemaRegistry(registry, limits)
    with _without_collection():
        if finds_copies and (isinstance(schema, SchemaDump) or not isinstance(schema, (str, bytes, bytearray))):
            finds_copies = None  # as far as they are spelled out
        documents = Documents(
            document,
            chosen,
            library,
            limits,
            asserts_formats=setting.asserts_formats,
            finds_copies=finds_copies,
            formats=setting.formats,
        )
        try:
            return _grammar(documents, schema, python_type, setting, tracks_scopes=False)
        except ScopesNeeded:
            return _grammar(documents, schema, python_type, setting, tracks_scopes=True)


def _alone(schema: object, setting: Setting) -> object:
    """The schema as it was given, where no other document and no format of the caller's belongs to it."""
    if setting.formats:
        return None
    return marshal.loads(schema) if isinstance(schema, SchemaDump) else schema


def _grammar(
    documents: Documents, schema: object, python_type: object | None, setting: Setting, *, tracks_scopes: bool
) -> Described:
    limits = setting.limits
    references = References(documents, tracks_scopes=tracks_scopes)
    closes = setting.policy.additional == "forbidden"
    forms = NormalForm(references, limits, closes=closes)
    while True:
        planner = Planner(forms, setting, limits)
        try:
            term = planner.grammar(references.start())
            break
        except AlternativesOverlap as found:
            forms = NormalForm(references, limits, found.overlaps, forms, closes=closes)
    reached, checked, copies = planner.known.union(forms.locals), planner.checked, forms.copies
    nameless = planner.nameless
    sources = [documents.root, *documents.loaded]
    dialect = documents.root.resource.dialect

    def entries() -> tuple[ReportEntry, ...]:
        by_keyword = {keyword: references.originals(with_copies(known, copies)) for keyword, known in checked.items()}
        left_open = references.originals(with_copies(nameless, copies))
        return describe(sources, references.originals(with_copies(reached, copies)), by_keyword, left_open)

    given = None if documents.loaded else _alone(schema, setting)
    return Described(term, LazyDescription(entries, setting.policy, dialect, python_type, given))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Let the cycle collector rest.

    Thousands of small objects are made, none of them garbage; in a process with a large heap the collections that
    they set off took twice the time of all the rest.  The collector would go over all of them as soon as it is back,
    which takes as long as a third of the planning, so they are handed to its oldest generation; not so where the
    application has frozen objects, for these would go the same way.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            if gc.get_freeze_count() == 0:
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def _document(schema: object, limits: Limits) -> Json:
    """The schema as a JSON value."""
    if isinstance(schema, SchemaDump):
        schema = marshal.loads(schema)
    elif isinstance(schema, (str, bytes, bytearray)):
        schema = parse_json(schema_text(schema, limits), _SUBJECT, limits)
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(
            f"{_SUBJECT} #", "a schema must be an object or a boolean", evidence=f"found {shown(schema)}"
        )
    return schema


def schema_text(source: str | bytes | bytearray, limits: Limits) -> str:
    """A schema's text.

    Raises:
        GrammarSyntaxError: it is not UTF-8.
        LimitExceeded: it is too long.
    """
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


WORTH_KEEPING_S: Final = 0.01
"""Seconds of planning from which a file saves time: reading one takes less than a tenth of that."""
_PROGRAM_KIND: Final = "grammar"


def program_key(content: str | bytes, setting: Setting, draft: str | None) -> str:
    """The name of a schema's file: a hash of all that its grammar depends on, the code that makes it included."""
    inner = hashlib.blake2b(_code_stamp(), digest_size=20)
    inner.update(repr((type(content).__name__, draft, setting.policy, setting.limits)).encode())
    inner.update(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return inner.hexdigest()


def fetch_program(key: str) -> tuple[_native.FlatGrammar, Dialect] | None:
    """The program and the dialect that were kept under a key."""
    kept = fetch_entry(_PROGRAM_KIND, key)
    if kept is None:
        return None
    head, _, program = kept.partition(b"\n")
    try:
        draft, declared, vocabularies = json.loads(head)
        dialect = Dialect(draft, declared, None if vocabularies is None else frozenset(vocabularies))
        return _native.FlatGrammar.from_bytes(program), dialect
    except (TypeError, ValueError):  # not what this code wrote: plan it again
        return None


def keep_program(key: str, term: Grammar, dialect: Dialect, max_nodes: int) -> bool:
    """Keep the program of a term; false where it could not be kept."""
    vocabularies = None if dialect.vocabularies is None else sorted(dialect.vocabularies)
    head = json.dumps((dialect.draft, dialect.declared, vocabularies)).encode()
    return keep_entry(_PROGRAM_KIND, key, head + b"\n" + flatten(term, {}, None, max_nodes).to_bytes())


@cache
def _code_stamp() -> bytes:
    """What tells one state of the code from another: sizes and times of change of its files."""
    package = Path(__file__).parents[2]
    files = sorted([*(package / "frontends").rglob("*.py"), *(package / "grammar").rglob("*.py")])
    stats = [(file.name, file.stat()) for file in (*files, Path(_native.__file__))]
    text = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    return hashlib.blake2b(text.encode(), digest_size=20).digest()
