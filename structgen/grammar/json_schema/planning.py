"""From a schema in any form to its grammar, by the planner in Python."""

from __future__ import annotations

import gc
import marshal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from structgen.errors import GrammarError, GrammarSyntaxError, LimitExceeded
from structgen.grammar.json_schema.documents import Documents
from structgen.grammar.json_schema.drafts import dialect_named
from structgen.grammar.json_schema.entries import LazyDescription, describe, with_twins
from structgen.grammar.json_schema.library import Library
from structgen.grammar.json_schema.normal_form import NormalForm
from structgen.grammar.json_schema.places import shown
from structgen.grammar.json_schema.planner import AlternativesOverlap, Planner
from structgen.grammar.json_schema.references import References, ScopesNeeded
from structgen.grammar.json_schema.strict_json import parse_json
from structgen.grammar.report import Described, Description, ReportEntry

if TYPE_CHECKING:
    from structgen.grammar.json_schema.drafts import Dialect
    from structgen.grammar.json_schema.settings import Setting
    from structgen.grammar.json_schema.strict_json import Json
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar

__all__ = ["Dump", "PlannedLater", "planned_grammar", "text_of"]

_SUBJECT: Final = "json schema"


class Dump(bytes):
    """A dictionary as ``marshal`` dumps it; never what somebody else wrote, which is not safe to load."""

    __slots__ = ()


class PlannedLater:
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
    library = Library(registry, limits)
    with _without_collection():
        if finds_copies and (isinstance(schema, Dump) or not isinstance(schema, (str, bytes, bytearray))):
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
    return marshal.loads(schema) if isinstance(schema, Dump) else schema


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
    reached, checked, twins = planner.known.union(forms.locals), planner.checked, forms.twins
    nameless = planner.nameless
    sources = [documents.root, *documents.loaded]
    dialect = documents.root.resource.dialect

    def entries() -> tuple[ReportEntry, ...]:
        by_keyword = {keyword: references.originals(with_twins(known, twins)) for keyword, known in checked.items()}
        left_open = references.originals(with_twins(nameless, twins))
        return describe(sources, references.originals(with_twins(reached, twins)), by_keyword, left_open)

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
    if isinstance(schema, Dump):
        schema = marshal.loads(schema)
    elif isinstance(schema, (str, bytes, bytearray)):
        schema = parse_json(text_of(schema, limits), _SUBJECT, limits)
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(
            f"{_SUBJECT} #", "a schema must be an object or a boolean", evidence=f"found {shown(schema)}"
        )
    return schema


def text_of(source: str | bytes | bytearray, limits: Limits) -> str:
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
