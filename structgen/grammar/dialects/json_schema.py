"""JSON Schema: what it was made from, or ``pattern`` for a regular set of texts."""

from __future__ import annotations

import json
from typing import Any, Final

from structgen.grammar import nodes as ir
from structgen.grammar.dialects.ecma_pattern import pattern_of
from structgen.grammar.dialects.losses import LossLog, Treatment
from structgen.grammar.dialects.lowering import Abilities, lowered
from structgen.grammar.json_schema.entries import LazyDescription
from structgen.grammar.nodes import Grammar
from structgen.grammar.report import Described

__all__ = ["json_schema_of"]

_NO_TOKENS: Final = Abilities(lambda node: False)


def json_schema_of(grammar: Grammar, log: LossLog) -> str:
    """Write a grammar as a JSON Schema.

    A schema is about values.  Those of a grammar of JSON texts are their values, those of any other its texts; the
    latter stand in JSON as strings.

    Raises:
        UnsupportedFeature: the grammar is no regular set of texts, nor made from a schema that is known.
    """
    node = grammar
    while isinstance(node, (Described, ir.Capture, ir.Tempered, ir.Shared)):
        if isinstance(node, Described) and isinstance(node.description, LazyDescription):
            return _given(node.description, log)
        if isinstance(node, (ir.Capture, ir.Tempered)):
            log.note(type(node).__name__, "", Treatment.DROPPED)
        node = node.children[0]
    if isinstance(node, ir.JsonString):
        schema = _texts(node.value, log)
    else:
        schema = _texts(node, log)
        log.note("text", "", Treatment.DROPPED, "it is the value of a JSON string: quotes and escapes are added")
    return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"


def _given(description: LazyDescription, log: LossLog) -> str:
    schema = description.schema
    if schema is None:
        raise log.refused("json schema", "", "it means nothing without the documents or formats given beside it")
    log.note("policy", "", Treatment.DROPPED, "a schema does not say how values are written, nor bounds depths for all")
    if isinstance(schema, (bytes, bytearray)):
        schema = bytes(schema).decode("utf-8-sig")
    if isinstance(schema, str):
        return schema if schema.endswith("\n") else schema + "\n"
    try:
        return json.dumps(schema, ensure_ascii=False, indent=2) + "\n"
    except TypeError as error:
        raise log.refused("json schema", "", f"it holds what is no JSON: {error}") from None


def _texts(term: Grammar, log: LossLog) -> dict[str, Any]:
    """A schema of the strings whose values are the members; ``&`` and ``~`` of the whole have keywords."""
    while isinstance(term, (Described, ir.Shared)):
        term = term.children[0]
    if isinstance(term, ir.Intersection) and term.items:
        parts = [_texts(item, log) for item in term.items]
        return {"type": "string", "allOf": [{key: part[key] for key in part if key != "type"} for part in parts]}
    if isinstance(term, ir.Complement):
        inner = _texts(term.item, log)
        return {"type": "string", "not": {key: inner[key] for key in inner if key != "type"}}
    return {"type": "string", "pattern": pattern_of(lowered(term, _NO_TOKENS, log), log)}
