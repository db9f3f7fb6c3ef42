"""JSON without some texts in its strings, and what is not JSON in arguments that are written in another notation."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Final

from structgen.errors import UnsupportedFeature
from structgen.frontends.free_text import text_of
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import EMPTY, EPSILON, Grammar
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.visitor import fold

__all__ = ["no_json", "without_texts"]

_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_NO_JSON: Final = Description("no json")


def no_json(term: Grammar) -> Grammar:
    """Mark a term as a part that is not JSON, which ``without_texts`` leaves as it is."""
    return term if term is EMPTY or term is EPSILON else Described(term, _NO_JSON)


def without_texts(term: Grammar, texts: Sequence[str], subject: str, where: str) -> Grammar:
    r"""The JSON texts of ``term`` in which no name and no string holds one of ``texts`` between its quotes.

    The strings are read as they are spelled: with ``\n`` excluded, ``"a\nb"`` is out and ``"a\u000ab"`` is not. All
    other conditions on them stay, lengths and patterns too.  Parts that ``no_json`` made are left as they are.

    Args:
        term: from ``json_schema``, or arguments in which all that is not JSON is marked.
        texts: none is empty.
        subject: of errors.
        where: the place of the texts, for errors.

    Raises:
        UnsupportedFeature: the strings of the term can't be told apart from the rest of the text.

    Complexity: linear in the distinct nodes of the term.
    """
    inside = text_of(texts)
    quoted = ir.sequence('"', inside, '"')
    held = [text.encode() for text in texts]

    def is_marked(node: Grammar) -> bool:
        return isinstance(node, Described) and node.description is _NO_JSON

    def below(node: Grammar) -> Collection[Grammar]:
        return () if isinstance(node, ir.JsonString) or is_marked(node) else node.children

    def restricted(node: Grammar, parts: list[Grammar]) -> Grammar:
        if isinstance(node, ir.JsonString):
            return ir.Intersection((node, quoted))
        if isinstance(node, ir.Literal):
            if b'"' in _STRING.sub(b"", node.data):
                raise _unclear(subject, where, f"a part of a string stands apart, {node.data!r:.60}")
            strings = _STRING.findall(node.data)
            return EMPTY if any(text in string for string in strings for text in held) else node
        if isinstance(node, ir.Label):
            raise _unclear(subject, where, "the labels of host names are written apart")
        if isinstance(node, ir.Distinct):
            return ir.Distinct(parts[0])  # its promises need not hold any more
        if isinstance(node, Described):
            return node.item if is_marked(node) else Described(parts[0], node.description)
        return with_children(node, parts)

    return fold(term, restricted, below=below)


def _unclear(subject: str, where: str, problem: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        subject,
        "excludes",
        where=where,
        problem=f"the strings of this schema can't be restricted: {problem}",
        remedy="leave out excludes, or say it in the schema, with not and pattern",
    )
