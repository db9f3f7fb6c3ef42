"""Parsing of model replies into thoughts, texts and calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from structgen.errors import GrammarError
from structgen.frontends.chat.family import Family, FreeText, Layout, Placeholder, load_family
from structgen.frontends.chat.reply import TOOL_NAME, tools_of
from structgen.frontends.json_schema.arguments import ValueTypes, value_types

__all__ = ["Reply", "ToolCall", "read_reply"]


@final
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the tool.
        arguments: by name.
        id: the id that the model gives the call; None if the family has none.
    """

    name: str
    arguments: Any
    id: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Reply:
    """A parsed reply.

    Attributes:
        text: for the user; may be empty.
        calls: in order.
        thought: None if there is none.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    thought: str | None = None


class _Match(NamedTuple):
    values: dict[str, Any]
    end: int


def read_reply(
    text: str,
    *,
    family: str | Path | Family = "hermes",
    is_open: bool = False,
    tools: Iterable[Any] | None = None,
) -> Reply:
    r"""Parse the text of a reply, special tokens written out (``Result.spelled``).

    Args:
        text: a string of ``tool_calls``, or of ``think`` and ``tool_calls``.
        family: as for ``tool_calls``.
        is_open: the prompt held the start tag of the thought.
        tools: those of ``tool_calls``.  Families that write arguments between tags without their types need them: each
            argument is read by its schema.  Without tools, what is JSON is read as JSON there, and all else as text.

    Raises:
        GrammarError: it is no reply of this family; the error has the position.  Or a tool is malformed.

    >>> read_reply('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    Reply(text='', calls=(ToolCall(name='add', arguments={'a': 1}, id=None),), thought=None)
    """
    chosen = family if isinstance(family, Family) else load_family(family)
    known = () if tools is None else tools_of(tools)
    reader = _CallReader(text, chosen, {tool.name: tool.parameters for tool in known})
    thought, at = None, 0
    if chosen.thought is not None:
        layout = chosen.thought.layout
        if is_open and layout.prefix:
            layout = Layout(layout.parts[1:])
        found = _free_text(text, 0, chosen.thought, layout)
        if found is not None:
            thought, at = found.values["thought"], found.end
    for said, begin in _text_prefixes(text, at, chosen):
        calls = reader.calls(begin)
        if calls is not None:
            return Reply(said, calls, thought)
    found = _free_text(text, at, chosen.text, chosen.text.layout, to_the_end=True)
    if found is None:
        raise GrammarError(
            f"reply, character {at}",
            f"not in the format of {chosen.name} models",
            evidence=f"found {text[at : at + 40]!r}",
        )
    return Reply(found.values["text"], (), thought)


def _text_prefixes(text: str, at: int, family: Family) -> Iterator[tuple[str, int]]:
    """The possible texts before calls, and where the calls then begin."""
    yield "", at
    written = family.text_before
    if written is not None:
        found = _free_text(text, at, written, written.layout)
        if found is not None:
            yield found.values["text"], found.end


def _free_text(text: str, at: int, written: FreeText, layout: Layout, *, to_the_end: bool = False) -> _Match | None:
    """Read free text up to the stop, without the text of the layout before the stop."""
    if not text.startswith(layout.prefix, at):
        return None
    begin = at + len(layout.prefix)
    (name,) = layout.placeholders
    if to_the_end:
        is_closed = text.endswith(layout.end) and len(text) - len(layout.end) >= begin
        return _Match({name: text[begin : len(text) - len(layout.end)]}, len(text)) if is_closed else None
    stop = text.find(written.stop, begin)
    if stop < 0:
        return None
    end = stop - written.offset
    if end < begin or not text.startswith(layout.end, end):
        return None
    return _Match({name: text[begin:end]}, end + len(layout.end))


class _CallReader:
    """Reads the calls of a text; ``parameters`` are the schemas of the tools by name."""

    def __init__(self, text: str, family: Family, parameters: Mapping[str, Any]) -> None:
        self._text = text
        self._layouts = family.calls
        self._arguments = family.arguments
        self._parameters = parameters
        self._types: dict[str, ValueTypes] = {}

    def calls(self, at: int) -> tuple[ToolCall, ...] | None:
        """The calls from a position to the end; None if these are no calls."""
        text, layouts = self._text, self._layouts
        if not text.startswith(layouts.before, at):
            return None
        at += len(layouts.before)
        found: list[ToolCall] = []
        while True:
            call = next((read for layout in layouts.layouts if (read := self._call(at, layout))), None)
            if call is None:
                return None
            found.append(ToolCall(call.values["name"], call.values["arguments"], call.values.get("id")))
            at = call.end
            if len(text) - at == len(layouts.after) and text.startswith(layouts.after, at):
                return tuple(found)
            if not text.startswith(layouts.between, at):
                return None
            at += len(layouts.between)

    def _call(self, at: int, layout: Layout) -> _Match | None:
        values: dict[str, Any] = {}
        for index, part in enumerate(layout.parts):
            if isinstance(part, str):
                start = self._start_of(part, at, after_tags="arguments" in values)
                if start is None:
                    return None
                at = start + len(part)
                continue
            if part.name == "arguments":
                read = self._arguments.scan(self._text, at, self._types_of(values.get("name", "")))
            else:
                read = self._word(at, layout.parts[index:])
            if read is None:
                return None
            values[part.name], at = read
        return _Match(values, at)

    def _start_of(self, part: str, at: int, *, after_tags: bool) -> int | None:
        """Where a fixed text begins; after tags, the white space of the last one may stand before it."""
        if self._text.startswith(part, at):
            return at
        start = at
        while after_tags and self._arguments.begins and self._text[start : start + 1].isspace():
            start += 1
            if self._text.startswith(part, start):
                return start
        return None

    def _word(self, at: int, parts: Sequence[str | Placeholder]) -> tuple[str, int] | None:
        """The name or id that begins at a position, the shortest after which the next parts can stand."""
        pattern = f"({self._pattern(parts[0])})"
        for index, part in enumerate(parts[1:], 1):
            if isinstance(part, Placeholder) and part.name == "arguments":
                after = parts[index + 1] if index + 1 < len(parts) else ""
                if index == 1:  # arguments with tags, or none
                    pattern += f"(?:{re.escape(self._arguments.begins)}|{self._pattern(after)})"
                break
            pattern += self._pattern(part)
        match = re.compile(pattern).match(self._text, at)
        return None if match is None else (match[1], match.end(1))

    def _pattern(self, part: str | Placeholder) -> str:
        if isinstance(part, str):
            return re.escape(part)
        return f"{TOOL_NAME.pattern}?" if part.name == "name" else f"(?:{self._layouts.id})"

    def _types_of(self, name: str) -> ValueTypes:
        types = self._types.get(name)
        if types is None:
            types = self._types[name] = value_types(self._parameters.get(name))
        return types
