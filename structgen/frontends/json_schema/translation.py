"""From any schema to its grammar, by the planner in Python; the programs of slow schemas are cached on disk."""

from __future__ import annotations

import gc
import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from structgen_kernels import _native

from structgen.cache import fetch as fetch_entry, keep as keep_entry
from structgen.errors import GrammarError, UnsupportedFeature, meant
from structgen.frontends.json_schema.emit.planner import AlternativesOverlap, Planner
from structgen.frontends.json_schema.native import DeferredGrammar, new_setting, setting_of
from structgen.frontends.json_schema.normal.keyword_reader import GUIDANCE
from structgen.frontends.json_schema.normal.normal_form import BranchPairs, DocumentSchemas, NormalForm
from structgen.frontends.json_schema.policy import spacing
from structgen.frontends.json_schema.report import LazyDescription, describe, with_copies
from structgen.frontends.json_schema.setting import Setting
from structgen.frontends.json_schema.source.dialect import Dialect, dialect_named
from structgen.frontends.json_schema.source.document import Documents, SchemaRegistry
from structgen.frontends.json_schema.source.json_value import (
    SUBJECT,
    SchemaDump,
    given,
    parse_json,
    schema_text,
    unshared,
)
from structgen.frontends.json_schema.source.location import escaped, shown
from structgen.frontends.json_schema.source.reference import References, ScopesNeeded
from structgen.grammar.flattening import flatten, untrack
from structgen.grammar.limits import Limits, counted
from structgen.grammar.nodes.description import Described, ReportEntry

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.arguments import Notation
    from structgen.frontends.json_schema.setting import Setting
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Location
    from structgen.grammar.nodes import Grammar

__all__ = [
    "WORTH_KEEPING_S",
    "alone",
    "argument_planner",
    "disk_cached_grammar",
    "fetch_program",
    "guided_setting",
    "keep_program",
    "normal_form",
    "planned_grammar",
    "program_key",
]


MakePlanner: TypeAlias = "Callable[[NormalForm, Setting], Planner]"


def planned_grammar(  # noqa: PLR0913  what the grammar of a document depends on
    schema: object,
    setting: Setting,
    draft: str | None,
    registry: Mapping[str, object] | None,
    python_type: object | None,
    *,
    finds_copies: bool | None = True,
    planner: MakePlanner = Planner,
) -> Described:
    """The grammar of any schema or content; ``registry`` has other documents.

    ``finds_copies`` says whether equal schemas are planned once; ``planner`` how values are written.
    """
    limits = setting.limits
    document = _document(schema, limits)
    setting = guided_setting(document, setting)
    chosen = None if draft is None else dialect_named(draft)
    library = SchemaRegistry(registry, limits)
    with _without_collection():
        if finds_copies and (isinstance(schema, SchemaDump) or not isinstance(schema, (str, bytes, bytearray))):
            finds_copies = None  # as far as they are spelled out
        documents = Documents(document, chosen, library, setting, finds_copies=finds_copies)
        try:
            return _grammar(documents, schema, python_type, setting, planner, tracks_scopes=False)
        except ScopesNeeded:
            return _grammar(documents, schema, python_type, setting, planner, tracks_scopes=True)


def argument_planner(notation: Notation | None) -> MakePlanner:
    """How values are written in a notation; as JSON without one."""
    if notation is None:
        return Planner
    from structgen.frontends.json_schema.emit.arguments import ArgumentPlanner

    return partial(ArgumentPlanner, notation=notation)


def normal_form(schema: object, setting: Setting) -> tuple[NormalForm, Location]:
    """The normal form of any schema, and where the schema is; alternatives of ``oneOf`` count as those of ``anyOf``."""
    documents = Documents(_document(schema, setting.limits), None, SchemaRegistry(None, setting.limits), setting)
    references = References(documents, tracks_scopes=True)
    return NormalForm(DocumentSchemas(references), setting), references.start()


def alone(schema: object, setting: Setting) -> object:
    """The schema as it was given; ``None`` if it also depends on formats of the caller."""
    if setting.formats:
        return None
    return given(schema) if isinstance(schema, SchemaDump) else schema


def _grammar(
    documents: Documents,
    schema: object,
    python_type: object | None,
    setting: Setting,
    make_planner: MakePlanner,
    *,
    tracks_scopes: bool,
) -> Described:
    references = References(documents, tracks_scopes=tracks_scopes)
    schemas = DocumentSchemas(references)
    overlaps: Mapping[int, BranchPairs] = {}
    try:
        while True:
            forms = NormalForm(schemas, setting, overlaps)
            planner = make_planner(forms, setting)
            try:
                term = planner.grammar(references.start())
                break
            except AlternativesOverlap as overlap:
                overlaps = overlap.overlaps
    finally:
        schemas.layouts.clear()  # they refer to the planner
    untrack(term)
    reached, checked, copies = planner.leaves.used.union(forms.reached), planner.types.checked, schemas.copies
    nameless = planner.nameless
    sources = [documents.root, *documents.loaded]
    dialect = documents.root.resource.dialect

    def entries() -> tuple[ReportEntry, ...]:
        by_keyword = {keyword: references.originals(with_copies(known, copies)) for keyword, known in checked.items()}
        left_open = references.originals(with_copies(nameless, copies))
        return describe(sources, references.originals(with_copies(reached, copies)), by_keyword, left_open)

    whole = None if documents.loaded else alone(schema, setting)
    return Described(term, LazyDescription(entries, setting.policy, dialect, python_type, whole))


@contextmanager
def _without_collection() -> Iterator[None]:
    """Pause the cycle collector.

    Planning makes thousands of small objects, none of them garbage.  In a process with a large heap the collections
    that they trigger took twice the time of everything else.  Afterwards they are moved to the oldest generation,
    because collecting them takes a third of the planning time; not where the application has frozen objects, which
    would be moved with them.  Python does not count what is moved, so that is done here: it collects all when half as
    many objects were moved as were left the last time.
    """
    global _moved, _left, _has_frozen  # noqa: PLW0603
    is_enabled = gc.isenabled()
    gc.disable()
    before = gc.get_count()[0]
    try:
        yield
    finally:
        if is_enabled:
            _has_frozen = _has_frozen or gc.get_freeze_count() > 0
            if not _has_frozen:
                _moved += max(gc.get_count()[0] - before, 0)
                gc.freeze()
                gc.unfreeze()
                if _moved > max(_left // 2, _FEW_OBJECTS):
                    gc.collect()
                    gc.freeze()
                    _moved, _left = 0, gc.get_freeze_count()  # of all objects
                    gc.unfreeze()
            gc.enable()


_FEW_OBJECTS: Final = 200_000
_moved = 0
_left = 0
"""The objects of the process after the last collection."""
_has_frozen = False
"""Whether the application was seen to have frozen objects.  Python counts them one by one, some 10 ms for a million, so
that they are counted once; that they are thawed later is not noticed."""


def _document(schema: object, limits: Limits) -> Json:
    """The schema as a JSON value."""
    if isinstance(schema, SchemaDump):
        schema = given(schema)
    elif isinstance(schema, (str, bytes, bytearray)):
        schema = parse_json(schema_text(schema, limits), SUBJECT, limits)
    elif isinstance(schema, dict):
        schema = unshared(schema)
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(f"{SUBJECT} #", "a schema must be an object or a boolean", evidence=f"found {shown(schema)}")
    return schema


WORTH_KEEPING_S: Final = 0.01
"""Seconds of planning from which a file saves time: reading it takes less than a tenth of this."""
_PROGRAM_KIND: Final = "grammar"


def disk_cached_grammar(content: str | SchemaDump, setting: Setting, draft: str | None) -> Grammar:
    """The grammar of any content, from the disk if it is there; else planned, and stored if that took long."""
    key = program_key(content, setting, draft)
    program = fetch_program(key)
    if program is not None:
        found = content.find(GUIDANCE) if isinstance(content, str) else content.find(GUIDANCE.encode())
        setting = setting if found < 0 else guided_setting(_document(content, setting.limits), setting)
        return Described.deferred(program[0], DeferredGrammar(content, setting, draft, program[1], None))
    start = time.perf_counter()
    with counted(setting.limits):
        grammar = planned_grammar(content, setting, draft, None, None)
    description = grammar.description
    if time.perf_counter() - start > WORTH_KEEPING_S and isinstance(description, LazyDescription):
        keep_program(key, grammar.item, description.dialect, setting.limits.grammar_nodes)
    return grammar


def program_key(content: str | bytes, setting: Setting, draft: str | None) -> str:
    """The file name of a schema: a hash of everything that its grammar depends on, including the code."""
    inner = hashlib.blake2b(_code_stamp(), digest_size=20)
    inner.update(repr((type(content).__name__, draft, setting.policy, setting.limits)).encode())
    inner.update(content if isinstance(content, bytes) else content.encode("utf-8", "surrogatepass"))
    return inner.hexdigest()


def fetch_program(key: str) -> tuple[_native.FlatGrammar, Dialect] | None:
    """The stored program of a key, and its dialect."""
    entry = fetch_entry(_PROGRAM_KIND, key)
    if entry is None:
        return None
    head, _, program = entry.partition(b"\n")
    try:
        draft, declared, vocabularies = json.loads(head)
        dialect = Dialect(draft, declared, None if vocabularies is None else frozenset(vocabularies))
        return _native.FlatGrammar.from_bytes(program), dialect
    except (TypeError, ValueError):  # not written by this code: plan again
        return None


def keep_program(key: str, term: Grammar, dialect: Dialect, max_nodes: int) -> bool:
    """Store the program of a term; false if it could not be stored."""
    vocabularies = None if dialect.vocabularies is None else sorted(dialect.vocabularies)
    head = json.dumps((dialect.draft, dialect.declared, vocabularies)).encode()
    return keep_entry(_PROGRAM_KIND, key, head + b"\n" + flatten(term, {}, None, max_nodes).to_bytes())


@cache
def _code_stamp() -> bytes:
    """A hash of the code: the sizes and modification times of its files."""
    package = Path(__file__).parents[2]
    files = sorted([*(package / "frontends").rglob("*.py"), *(package / "grammar").rglob("*.py")])
    stats = [(file.name, file.stat()) for file in (*files, Path(_native.__file__))]
    text = repr([(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats])
    return hashlib.blake2b(text.encode(), digest_size=20).digest()


_SPACING: Final = ("item_separator", "key_separator", "whitespace_flexible", "whitespace_pattern")
_OPTIONS: Final[dict[str, tuple[tuple[type, ...], str]]] = {
    "item_separator": ((str,), "a regular expression"),
    "key_separator": ((str,), "a regular expression"),
    "whitespace_flexible": ((bool,), "true or false"),
    "whitespace_pattern": ((str, type(None)), "a regular expression or null"),
    "coerce_one_of": ((bool,), "true or false"),
    "lenient": ((bool,), "true or false"),
}
_REFUSED: Final = ("json_allowed_escapes", "json_allow_general_unicode_escapes")


def guided_setting(schema: Json, setting: Setting) -> Setting:
    """The setting that the ``x-guidance`` of a schema asks for, else ``setting`` itself.

    If any of its options concerns white space or separators, all of them are as in llguidance, with its defaults:
    ``,`` and ``:`` with any white space around them; otherwise the policy decides. Separators and patterns are regular
    expressions in the dialect ``rust``. ``coerce_one_of`` reads every ``oneOf`` as ``anyOf``. ``lenient`` permits
    keywords to be left out, and none is.

    Raises:
        GrammarError: an option is unknown or has a value of another type.
        UnsupportedFeature: an option cannot be honoured: with its texts a document would not be JSON, or it restricts
            the escapes of strings.
    """
    if not isinstance(schema, dict) or GUIDANCE not in schema:
        return setting
    options: Any = schema[GUIDANCE]
    _check(options)
    policy = setting.policy
    if any(name in options for name in _SPACING):
        comma, colon = (_separator(options, name, mark) for name, mark in zip(_SPACING, ",:", strict=False))
        space = options.get("whitespace_pattern")
        if space is not None:
            _separator(options, "whitespace_pattern", "")
        policy = replace(
            policy,
            whitespace="any" if options.get("whitespace_flexible", True) or space is not None else "compact",
            separators=None if (comma, colon) == (",", ":") else (comma, colon),
            space=space,
            indent=None if isinstance(policy.indent, str) else policy.indent,
        )
    coerces = options.get("coerce_one_of", False)
    if setting.formats or coerces:
        return new_setting(policy, setting.limits, setting.formats, coerces_one_of=coerces)
    return setting_of(policy, setting.limits)


def _check(options: Any) -> None:
    if not isinstance(options, dict):
        raise GrammarError(_subject(), f"{GUIDANCE!r} must be an object", evidence=f"found {shown(options)}")
    for name, value in options.items():
        if name in _REFUSED:
            raise UnsupportedFeature(
                _subject(name),
                GUIDANCE,
                where=_pointer(name),
                problem=f"{name!r} is not enforced: strings have every escape of RFC 8259",
                remedy=f"remove {name!r}",
            )
        if name not in _OPTIONS:
            remedy = meant(name, _OPTIONS) or f"give one of {', '.join(_OPTIONS)}"
            raise GrammarError(_subject(name), f"{name!r} is not an option of {GUIDANCE!r}", remedy=remedy)
        types, expected = _OPTIONS[name]
        if not isinstance(value, types):
            raise GrammarError(_subject(name), f"{name!r} must be {expected}", evidence=f"found {shown(value)}")


def _separator(options: dict[str, Any], name: str, mark: str) -> str:
    """The expression of an option, whose texts are ``mark`` with white space around it."""
    pattern: str = options.get(name, mark)
    try:
        spacing(pattern, mark, _subject(name))
    except GrammarError as error:
        raise UnsupportedFeature(
            _subject(name), GUIDANCE, where=_pointer(name), problem=error.problem, remedy=error.remedy
        ) from error
    return pattern


def _pointer(*names: str) -> str:
    return "/".join(("#", GUIDANCE, *map(escaped, names)))


def _subject(*names: str) -> str:
    return f"{SUBJECT} {_pointer(*names)}"
