"""Arguments between tags, read into values: their marks first, then the values by the schema."""

from __future__ import annotations

import html
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from structgen.errors import GrammarError
from structgen.frontends.json_schema.arguments import value_types
from structgen.frontends.json_schema.source.json_value import ARRAY, OBJECT, STRING, type_of
from structgen.frontends.xml_arguments.style import style_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.frontends.json_schema.arguments import ObjectKind, ValueTypes

__all__ = ["read_xml_arguments", "scan_xml_arguments"]

_MAX_DEPTH: Final = 200
"""Tags around each other that are read."""
_MAX_TRIES: Final = 2_000
"""Members and items of readings that are compared with the schema after the first one."""
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def read_xml_arguments(text: str, style: str, schema: object | None) -> dict[str, Any]:
    """Read arguments that are written between tags.

    White space between the marks does not count.  Where the style does not tell the type of a value, a text is a JSON
    value if that is valid against the schema of the name, and else a string; of these readings the first with which all
    arguments together are valid.

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
    found, at = scan_xml_arguments(text, 0, style, value_types(schema))
    if text[at:].strip(" \t\r\n"):
        raise _Reader(text, style, None).problem(at, "expected a member or the end")
    return found


def scan_xml_arguments(
    text: str, at: int, style: str, types: ValueTypes, *, around: str | None = None
) -> tuple[dict[str, Any], int]:
    """Read arguments that begin at a position; return them and the position after the last one.

    ``around`` is the white space before and after each string; ``None``: what the style has.

    Raises:
        GrammarError: as ``read_xml_arguments``.
    """
    reader = _Reader(text, style, around)
    members, end = reader.members(at, 0)
    return reader.object(members, types), end


@dataclass(frozen=True, slots=True)
class _Marked:
    """A value between its marks: ``text``, or the ``parts`` of a container that is written with tags."""

    begin: int
    types: int
    text: str
    parts: tuple[_Part, ...] | None


@dataclass(frozen=True, slots=True)
class _Part:
    """A member or item, ``name`` being that of its tag."""

    begin: int
    name: str
    value: _Marked


class _Reader:
    def __init__(self, text: str, style: str, around: str | None) -> None:
        self._text = text
        self._name = style
        self._style = style_named(style)
        self._around = around if around is not None else "\n" if self._style.strips else ""
        self._tries = _MAX_TRIES

    # Marks

    def members(self, at: int, depth: int) -> tuple[tuple[_Part, ...], int]:
        """Read members up to where no other begins."""
        text, style = self._text, self._style
        found: list[_Part] = []
        while True:
            start = self._skip(at)
            begin = start + len(style.open)
            if not text.startswith(style.open, start) or (style.repeats_names and text.startswith("/", begin)):
                return tuple(found), at
            end = text.find(style.name_end, begin)
            if end < 0:
                raise self.problem(start, f"a name does not end with {style.name_end!r}")
            name = text[begin:end]
            value, at = self._value(end + len(style.name_end), style.close.format(name), depth)
            found.append(_Part(start, html.unescape(name) if style.has_entities else name, value))

    def _items(self, at: int, depth: int) -> tuple[tuple[_Part, ...], int]:
        opening, close = self._style.item or ("", "")
        found: list[_Part] = []
        while self._text.startswith(opening, start := self._skip(at)):
            value, at = self._value(start + len(opening), close, depth)
            found.append(_Part(start, "", value))
        return tuple(found), at

    def _value(self, at: int, close: str, depth: int) -> tuple[_Marked, int]:
        """Read a value, from the mark of its type to the mark that closes it."""
        style = self._style
        types = 0
        for bits, mark in style.marks:
            start = self._skip(at) if mark.startswith("<") else at
            if self._text.startswith(mark, start):
                types, begin = types | bits, start + len(mark)
        if not types:
            raise self.problem(at, "no known mark of a type stands before a value")
        if types in (ARRAY, OBJECT) if style.has_types and style.nests else self._has_tags(begin):
            if depth == _MAX_DEPTH:
                raise self.problem(begin, f"it has tags nested deeper than {_MAX_DEPTH}")
            parts, end = (self._items if types == ARRAY else self.members)(begin, depth + 1)
            end = self._skip(end)
            if not self._text.startswith(close, end):
                raise self.problem(end, f"expected {close!r}")
            return _Marked(begin, types, "", parts), end + len(close)
        end = self._text.find(close, begin)
        if end < 0:
            raise self.problem(begin, f"a value does not end with {close!r}")
        return _Marked(begin, types, self._text[begin:end], None), end + len(close)

    def _has_tags(self, at: int) -> bool:
        """Whether a value without a mark of its type is a container."""
        start = self._skip(at)
        tag = self._style.open
        return self._style.repeats_names and self._text.startswith(tag, start) and self._text[start + len(tag)] != "/"

    # Values

    def object(self, members: tuple[_Part, ...], types: ValueTypes) -> dict[str, Any]:
        """The object with these members: the first reading that is valid, or just the first if none is."""
        names: set[str] = set()
        for part in members:
            if part.name in names:
                raise self.problem(part.begin, f"the name {part.name!r:.60} occurs twice")
            names.add(part.name)
        options = self._options(members, types, None)
        first = {name: values[0] for name, values in options.items()}
        return next((value for value in self._readings(members, types, options) if types.admits(value)), first)

    def _readings(
        self, members: tuple[_Part, ...], types: ValueTypes, options: dict[str, list[Any]]
    ) -> Iterator[dict[str, Any]]:
        """The objects that the members can be, as many as are tried."""
        yield {name: values[0] for name, values in options.items()}
        kinds = types.kinds()
        for kind in kinds if len(kinds) > 1 else ():
            self._tries -= len(members)
            if self._tries < 0:
                return
            try:
                found = self._options(members, types, kind)
            except GrammarError:  # a value that objects of this kind do not have
                continue
            yield {name: values[0] for name, values in found.items()}
        for chosen in itertools.islice(itertools.product(*options.values()), 1, None):
            self._tries -= len(members)
            if self._tries < 0:
                return
            yield dict(zip(options, chosen, strict=True))

    def _options(self, members: tuple[_Part, ...], types: ValueTypes, kind: ObjectKind | None) -> dict[str, list[Any]]:
        return {part.name: self._values(part.value, types.member(part.name, kind)) for part in members}

    def _values(self, marked: _Marked, types: ValueTypes) -> list[Any]:
        """What a value can be, valid ones first; at least one."""
        bits = marked.types if self._style.has_types else marked.types & types.types
        if marked.parts is not None:
            return [self._container(marked.parts, bits, types, marked.begin)]
        found = self._texts(marked.text, bits, types)
        if not found:
            raise self.problem(marked.begin, "a value is no JSON of an allowed type")
        return found if len(found) == 1 else sorted(found, key=lambda value: not types.admits(value))

    def _container(self, parts: tuple[_Part, ...], bits: int, types: ValueTypes, at: int) -> Any:
        """An array or object; what can be both is an array if that is valid."""
        problem: GrammarError | None = None
        found: list[Any] | None = None
        if bits & ARRAY and all(part.name in ("", "item") for part in parts):
            try:
                found = [self._values(part.value, types.item(index))[0] for index, part in enumerate(parts)]
            except GrammarError as error:
                problem = error
            if found is not None and (not bits & OBJECT or self._tries <= 0 or types.admits(found)):
                return found
            self._tries -= len(parts)
        if bits & OBJECT and self._tries >= 0:
            try:
                return self.object(parts, types)
            except GrammarError as error:
                problem = problem or error
        if found is None:
            raise problem or self.problem(at, "a value is no JSON of an allowed type")
        return found

    def _texts(self, text: str, bits: int, types: ValueTypes) -> list[Any]:
        """The values of a text: as JSON, as it is, and of a container that has no parts."""
        found: list[Any] = []
        if bits & ~STRING:
            try:
                value = json.loads(text, parse_constant=_no_number)
            except (ValueError, RecursionError):
                value = text
            if not isinstance(value, str) and type_of(value) & bits and (not bits & STRING or types.admits(value)):
                found.append(value)
        if bits & STRING:
            found.append(text.removeprefix(self._around).removesuffix(self._around))
        if self._style.nests and not text.strip():
            found += [empty for kind, empty in ((ARRAY, []), (OBJECT, {})) if bits & kind]
        return found

    def _skip(self, at: int) -> int:
        match = _SPACE.match(self._text, at)
        return at if match is None else match.end()

    def problem(self, at: int, what: str) -> GrammarError:
        """The error of text that is not in the style."""
        return GrammarError(
            f"arguments, character {at}",
            what,
            evidence=f"found {self._text[at : at + 40]!r}",
            remedy=f"write them in the style {self._name}",
        )


def _no_number(name: str) -> NoReturn:
    raise ValueError(name)
