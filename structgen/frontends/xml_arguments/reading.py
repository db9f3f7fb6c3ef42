"""Arguments between tags, read into values."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn

from structgen.errors import GrammarError
from structgen.frontends.json_schema.arguments import value_types
from structgen.frontends.json_schema.source.json_value import ARRAY, OBJECT, STRING
from structgen.frontends.xml_arguments.style import SCALAR, style_named

if TYPE_CHECKING:
    from structgen.frontends.json_schema.arguments import ValueTypes

__all__ = ["read_xml_arguments", "scan_xml_arguments"]

_MAX_DEPTH: Final = 200
"""Tags around each other that are read."""


def read_xml_arguments(text: str, style: str, schema: object | None) -> dict[str, Any]:
    """Read arguments that are written between tags.

    White space between the marks does not count.  Where the style does not tell the type of a value, a text is a JSON
    value if that is valid against the schema of the name, and else a string.

    Args:
        text: all of the arguments.
        style: one of ``STYLES``.
        schema: as for ``xml_arguments``; None: no schema is known.

    Raises:
        GrammarError: the text is not in the style, a name occurs twice, or a value has no allowed type; the error has
            the position.

    >>> read_xml_arguments("<parameter=a>1</parameter><parameter=b>1</parameter>", "qwen_xml",
    ...                    {"properties": {"a": {"type": "string"}}})
    {'a': '1', 'b': 1}
    """
    reader = _Reader(text, style)
    found, at = reader.members(0, value_types(schema), 0)
    if text[at:].strip(" \t\r\n"):
        reader.refuse(at, "expected a member or the end")
    return found


def scan_xml_arguments(text: str, at: int, style: str, types: ValueTypes) -> tuple[dict[str, Any], int]:
    """Read arguments that begin at a position; return them and the position after the last one.

    Raises:
        GrammarError: as ``read_xml_arguments``.
    """
    return _Reader(text, style).members(at, types, 0)


class _Reader:
    def __init__(self, text: str, style: str) -> None:
        self._text = text
        self._name = style
        self._style = style_named(style)

    def members(self, at: int, types: ValueTypes, depth: int) -> tuple[dict[str, Any], int]:
        """Read members up to where no other begins."""
        text, style = self._text, self._style
        if depth > _MAX_DEPTH:
            self.refuse(at, f"it has tags nested deeper than {_MAX_DEPTH}")
        found: dict[str, Any] = {}
        while True:
            start = self._skip(at)
            begin = start + len(style.open)
            if not text.startswith(style.open, start) or (style.repeats_names and text.startswith("/", begin)):
                return found, at
            end = text.find(style.name_end, begin)
            if end < 0:
                self.refuse(start, f"a name does not end with {style.name_end!r}")
            name = html.unescape(text[begin:end]) if style.has_entities else text[begin:end]
            if name in found:
                self.refuse(start, f"the name {name!r:.60} occurs twice")
            close = style.close.format(text[begin:end])
            found[name], at = self._value(end + len(style.name_end), close, types.member(name), depth)

    def _items(self, at: int, types: ValueTypes, depth: int) -> tuple[list[Any], int]:
        opening, close = self._style.item or ("", "")
        if depth > _MAX_DEPTH:
            self.refuse(at, f"it has tags nested deeper than {_MAX_DEPTH}")
        found: list[Any] = []
        while self._text.startswith(opening, start := self._skip(at)):
            value, at = self._value(start + len(opening), close, types.item(len(found)), depth)
            found.append(value)
        return found, at

    def _value(self, at: int, close: str, types: ValueTypes, depth: int) -> tuple[Any, int]:
        """Read a value, from the mark of its type to the mark that closes it."""
        style = self._style
        kinds = 0
        for bits, mark in style.marks:
            start = self._skip(at) if mark.startswith("<") else at
            if self._text.startswith(mark, start):
                kinds, begin = kinds | bits, start + len(mark)
        if not kinds:
            self.refuse(at, "no known mark of a type stands before a value")
        if not style.has_types:
            kinds &= types.types
        if (style.nests and not kinds & (STRING | SCALAR)) or self._has_tags(begin):
            return self._container(begin, close, types, kinds, depth)
        end = self._text.find(close, begin)
        if end < 0:
            self.refuse(begin, f"a value does not end with {close!r}")
        return self._scalar(begin, end, types, kinds), end + len(close)

    def _has_tags(self, at: int) -> bool:
        """Whether a value without a mark of its type is a container."""
        start = self._skip(at)
        tag = self._style.open
        return self._style.repeats_names and self._text.startswith(tag, start) and self._text[start + len(tag)] != "/"

    def _container(self, at: int, close: str, types: ValueTypes, kinds: int, depth: int) -> tuple[Any, int]:
        opening = (self._style.item or ("", ""))[0]
        is_array = bool(kinds & ARRAY) and (not kinds & OBJECT or self._text.startswith(opening, self._skip(at)))
        read = self._items if is_array else self.members
        value, end = read(at, types, depth + 1)
        end = self._skip(end)
        if not self._text.startswith(close, end):
            self.refuse(end, f"expected {close!r}")
        return value, end + len(close)

    def _scalar(self, begin: int, end: int, types: ValueTypes, kinds: int) -> Any:
        text = self._text[begin:end]
        if kinds & ~STRING:
            try:
                value = json.loads(text, parse_constant=_no_number)
            except (ValueError, RecursionError):
                value = text
            is_text = isinstance(value, str)
            if not is_text and (not kinds & STRING or types.admits(value)):
                return value
            if self._style.nests and not text.strip() and kinds & (ARRAY | OBJECT) and not kinds & STRING:
                return [] if kinds & ARRAY else {}
        if not kinds & STRING:
            self.refuse(begin, "a value is no JSON of an allowed type")
        if self._style.strips:
            text = text.removeprefix("\n").removesuffix("\n")
        return text

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()

    def refuse(self, at: int, problem: str) -> NoReturn:
        """Report text that is not in the style.

        Raises:
            GrammarError: always.
        """
        raise GrammarError(
            f"arguments, character {at}",
            problem,
            evidence=f"found {self._text[at : at + 40]!r}",
            remedy=f"write them in the style {self._name}",
        )


_SPACE: Final = re.compile(r"[ \t\r\n]*")


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)
