"""Structural tags: free text with marked parts in it, as servers and xgrammar send them.

A tag is a tree of formats (``place.FIELDS`` lists them), and each format becomes one term. Free text in a tag never
holds what ends the tag; free text with triggers never holds a trigger, so the language has one reading at each trigger.
``docs/reference/structural-tags.md`` says what each format means and where xgrammar differs.

Source: xgrammar 0.2.8, ``docs/structural_tag/structural_tag.md``, ``cpp/structural_tag.cc``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from structgen.errors import ArgumentError, found
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.source.json_value import (
    SchemaDump,
    dump_of,
    given,
    parse_json,
    schema_text,
    unshared,
)
from structgen.frontends.structural_tag.place import SCHEMAS, SUBJECT
from structgen.frontends.structural_tag.reader import Note, read
from structgen.grammar.limits import Limits, counted
from structgen.grammar.nodes import Grammar
from structgen.grammar.nodes.description import Described, Description, ReportEntry, Status
from structgen.memory_cache import GRAMMARS, ContentCache

__all__ = ["TagDescription", "structural_tag"]

_DEFAULT_LIMITS: Final = Limits()
_DEFAULT_POLICY: Final = JsonPolicy()
_assign = object.__setattr__  # sets attributes of an immutable object during construction


def structural_tag(
    tag: Mapping[str, Any] | str | bytes, *, policy: JsonPolicy | None = None, limits: Limits = _DEFAULT_LIMITS
) -> Grammar:
    r"""Read a structural tag, the format in which servers take free text with marked parts.

    Args:
        tag: ``{"type": "structural_tag", "format": ...}`` as ``dict`` or JSON text, or the older form with
            ``structures`` and ``triggers``.
        policy: how the JSON of its schemas is written; ``any_order`` and ``max_whitespace_cnt`` of a format override
            it.
        limits: bounds on the size and the nesting of the tag, of its schemas and of its grammars.

    Returns:
        a term with a description: one entry for each format, with its JSON Pointer.

    Raises:
        GrammarSyntaxError: the text is not JSON, or has a name twice in one object.
        UnsupportedFeature: a style or field cannot be enforced; it is named with its JSON Pointer.
        GrammarError: a type or a field is unknown or missing, a tag cannot be reached by its trigger, or a schema,
            grammar or regular expression is refused; the error has the JSON Pointer.
        LimitExceeded: it is too large or nested too deeply.
        ArgumentError: ``tag`` is neither a ``dict`` nor text.

    Complexity: linear in the tag and in the terms of its schemas.

    >>> tag = {"type": "tag", "begin": "<b>", "content": {"type": "any_text"}, "end": "</b>"}
    >>> print(structural_tag({"type": "structural_tag", "format": tag}))
    "<b>" ~(.* "</b>" .*) "</b>"
    """
    content: bytes | None
    if isinstance(tag, (str, bytes, bytearray)):
        text = schema_text(tag, limits)
        content = text.encode("utf-8", "surrogatepass")
    elif isinstance(tag, dict):
        text, content = "", dump_of(tag)
    else:
        raise ArgumentError(
            "structural_tag",
            "expected a structural tag",
            evidence=found(tag),
            remedy='pass {"type": "structural_tag", "format": ...} as a dict or as JSON text',
        )
    chosen = replace(policy or _DEFAULT_POLICY, around=False)  # around a document is text of the tag
    key = (chosen, limits, type(content), content)
    grammar = None if content is None else _grammar_cache.get(key)
    if grammar is None:
        # The formats and schemas bound their nesting themselves.
        unbounded = replace(limits, nesting=limits.source_bytes)
        if isinstance(content, SchemaDump):  # the dictionary may have changed since
            source = given(content)
        else:
            source = unshared(tag) if isinstance(tag, dict) else parse_json(text, SUBJECT, unbounded, kept=SCHEMAS)
        with counted(limits):
            term, notes, least_bytes = read(source, chosen, limits)
        grammar = Described(term, TagDescription(notes, content), least_bytes)
        if content is not None:
            _grammar_cache.put(key, grammar, _ENTRY_BYTES + _BYTES_PER_BYTE * len(content))
    return grammar


_ENTRY_BYTES: Final = 4_096
_BYTES_PER_BYTE: Final = 24
"""Bytes of memory that a grammar takes for each byte of its tag; its schemas are counted by their own cache."""
_grammar_cache: Final[ContentCache[Grammar]] = ContentCache(GRAMMARS)


class TagDescription(Description):
    """The description of a structural tag, which keeps the tag itself; its entries are made at first use.

    Attributes:
        kept: the tag as UTF-8, or as a dump of its ``dict``; None if it holds Python types.
    """

    __slots__ = ("_notes", "kept")
    _notes: list[Note]
    kept: bytes | None

    def __init__(self, notes: list[Note], kept: bytes | None) -> None:
        for name, value in (("source", SUBJECT), ("policies", ()), ("value", "text"), ("python_type", None)):
            _assign(self, name, value)
        _assign(self, "_notes", notes)
        _assign(self, "kept", kept)

    @property
    def entries(self) -> tuple[ReportEntry, ...]:
        """One for each format, in the order of the tag."""
        return tuple(ReportEntry(name, where, Status.ENFORCED, detail) for name, where, detail in self._notes)

    def text(self) -> str | None:
        """The tag as JSON text."""
        if isinstance(self.kept, SchemaDump):
            try:
                return json.dumps(given(self.kept), ensure_ascii=False, indent=2)
            except TypeError:  # a value that JSON does not have
                return None
        return None if self.kept is None else self.kept.decode()

    def __reduce__(self) -> tuple[object, ...]:
        return TagDescription, (self._notes, self.kept)
