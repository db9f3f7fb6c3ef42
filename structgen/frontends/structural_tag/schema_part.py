"""JSON Schemas inside a structural tag: their place in its report, white space, and texts that may not occur."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from structgen.errors import UnsupportedFeature
from structgen.frontends.free_text import text_of
from structgen.frontends.json_schema import JsonPolicy
from structgen.grammar import nodes as ir
from structgen.grammar.algebra import with_children
from structgen.grammar.nodes import EMPTY, Grammar
from structgen.grammar.nodes.description import Described, Description
from structgen.grammar.visitor import fold

__all__ = ["placed", "with_whitespace", "without_texts"]

_STRING: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"', re.DOTALL)


def placed(term: Grammar, pointer: str) -> Grammar:
    """The term of a schema, reported at its place in the tag; still without work that only the report needs."""
    return Described.deferred(term.plain, _Placed(term, pointer)) if isinstance(term, Described) else term


class _Placed:
    """A schema inside a tag, whose report names the places of the tag."""

    def __init__(self, term: Described, pointer: str) -> None:
        self._term = term
        self._pointer = pointer

    def item(self) -> Grammar:
        return self._term.item

    def description(self) -> Description:
        inner = self._term.description
        entries = (
            replace(entry, where=self._pointer + entry.where[1:]) if entry.where.startswith("#") else entry
            for entry in inner.entries
        )
        return Description(inner.source, tuple(entries), inner.policies, inner.value, inner.python_type)


def with_whitespace(policy: JsonPolicy, most: int) -> JsonPolicy:
    """The policy, with at most ``most`` characters of white space in a row."""
    if most == 0 or policy.whitespace == "compact":
        return replace(policy, whitespace="compact")
    return policy if policy.whitespace == "single" else replace(policy, whitespace="runs", indent=most)


def without_texts(term: Grammar, texts: Sequence[str], where: str) -> Grammar:
    r"""The JSON texts of ``term`` in which no name and no string holds one of ``texts`` between its quotes.

    The strings are read as they are spelled: with ``\n`` excluded, ``"a\nb"`` is out and ``"a\u000ab"`` is not. All
    other conditions on them stay, lengths and patterns too.

    Args:
        term: from ``json_schema``.
        texts: none is empty.
        where: the place of the texts, for errors.

    Raises:
        UnsupportedFeature: the strings of the term can't be told apart from the rest of the text.

    Complexity: linear in the distinct nodes of the term.
    """
    inside = text_of(texts)
    quoted = ir.sequence('"', inside, '"')
    held = [text.encode() for text in texts]

    def below(node: Grammar) -> Collection[Grammar]:
        return () if isinstance(node, ir.JsonString) else node.children

    def restricted(node: Grammar, parts: list[Grammar]) -> Grammar:
        if isinstance(node, ir.JsonString):
            return ir.Intersection((node, quoted))
        if isinstance(node, ir.Literal):
            if b'"' in _STRING.sub(b"", node.data):
                raise _unclear(where, f"a part of a string stands apart, {node.data!r:.60}")
            strings = _STRING.findall(node.data)
            return EMPTY if any(text in string for string in strings for text in held) else node
        if isinstance(node, ir.Label):
            raise _unclear(where, "the labels of host names are written apart")
        if isinstance(node, ir.Distinct):
            return ir.Distinct(parts[0])  # its promises need not hold any more
        if isinstance(node, Described):
            return Described(parts[0], node.description)
        return with_children(node, parts)

    return fold(term, restricted, below=below)


def _unclear(where: str, problem: str) -> UnsupportedFeature:
    return UnsupportedFeature(
        f"structural tag {where}",
        "excludes",
        where=where,
        problem=f"the strings of this schema can't be restricted: {problem}",
        remedy="leave out excludes, or say it in the schema, with not and pattern",
    )
