"""Replies read back: what was thought, said and called."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

from structgen.errors import GrammarError
from structgen.frontends.chat.family import Family, FreeText, Layout, Placeholder, load_family

__all__ = ["Reply", "ToolCall", "read_reply"]

_DECODER: Final = json.JSONDecoder()
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]+?")


@final
@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call.

    Attributes:
        name: of the tool.
        arguments: by name.
        id: what the model calls the call; None where the family has no such.
    """

    name: str
    arguments: Any
    id: str | None = None


@final
@dataclass(frozen=True, slots=True)
class Reply:
    """What a model replied.

    Attributes:
        text: for the user; empty where there is none.
        calls: in order.
        thought: None where there is none.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    thought: str | None = None


class _Match(NamedTuple):
    values: dict[str, Any]
    end: int


def read_reply(text: str, *, family: str | Path | Family = "hermes", is_open: bool = False) -> Reply:
    r"""Read the text of a reply, special tokens written out (``Result.spelled``).

    Args:
        text: a member of ``tool_calls``, or of ``think`` and that.
        family: as there.
        is_open: the prompt held the beginning of the thought.

    Raises:
        GrammarError: it is no such reply; the place is told.

    >>> read_reply('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>')
    Reply(text='', calls=(ToolCall(name='add', arguments={'a': 1}, id=None),), thought=None)
    """
    chosen = family if isinstance(family, Family) else load_family(family)
    thought, at = None, 0
    if chosen.thought is not None:
        layout = chosen.thought.layout
        if is_open and layout.beginning:
            layout = Layout(layout.parts[1:])
        found = _free_text(text, 0, chosen.thought, layout)
        if found is not None:
            thought, at = found.values["thought"], found.end
    for said, begin in _text_prefixes(text, at, chosen):
        calls = _calls(text, begin, chosen)
        if calls is not None:
            return Reply(said, calls, thought)
    found = _free_text(text, at, chosen.text, chosen.text.layout, to_the_end=True)
    if found is None:
        raise GrammarError(
            f"reply, character {at}",
            f"it is none as {chosen.name} models write them",
            evidence=f"found {text[at : at + 40]!r}",
        )
    return Reply(found.values["text"], (), thought)


def _text_prefixes(text: str, at: int, family: Family) -> Iterator[tuple[str, int]]:
    """What may stand before calls, and where they then begin."""
    yield "", at
    written = family.text_before
    if written is not None:
        found = _free_text(text, at, written, written.layout)
        if found is not None:
            yield found.values["text"], found.end


def _free_text(text: str, at: int, written: FreeText, layout: Layout, *, to_the_end: bool = False) -> _Match | None:
    """Read free text: up to where the stop occurs, less what the layout has before that."""
    if not text.startswith(layout.beginning, at):
        return None
    begin = at + len(layout.beginning)
    (place,) = layout.places
    if to_the_end:
        return _Match({place: text[begin:]}, len(text))
    stop = text.find(written.stop, begin)
    if stop < 0:
        return None
    # The stop stands in the text behind the place, or in what follows the layout.
    end = stop - layout.end.find(written.stop) if written.stop in layout.end else stop - len(layout.end)
    if end < begin or not text.startswith(layout.end, end):
        return None
    return _Match({place: text[begin:end]}, end + len(layout.end))


def _calls(text: str, at: int, family: Family) -> tuple[ToolCall, ...] | None:
    layouts = family.calls
    if not text.startswith(layouts.before, at):
        return None
    at += len(layouts.before)
    found: list[ToolCall] = []
    while True:
        call = next((read for layout in layouts.layouts if (read := _call(text, at, layout, layouts.id))), None)
        if call is None:
            return None
        found.append(ToolCall(call.values["name"], call.values["arguments"], call.values.get("id")))
        at = call.end
        if text[at:] == layouts.after:
            return tuple(found)
        if not text.startswith(layouts.between, at):
            return None
        at += len(layouts.between)


def _call(text: str, at: int, layout: Layout, identifier: str) -> _Match | None:
    values: dict[str, Any] = {}
    for index, part in enumerate(layout.parts):
        if isinstance(part, str):
            if not text.startswith(part, at):
                return None
            at += len(part)
            continue
        behind = layout.parts[index + 1] if index + 1 < len(layout.parts) else ""
        read = _read_placeholder(text, at, part, behind if isinstance(behind, str) else "", identifier)
        if read is None:
            return None
        values[part.name], at = read
    return _Match(values, at)


def _read_placeholder(text: str, at: int, place: Placeholder, behind: str, identifier: str) -> tuple[Any, int] | None:
    if place.name == "arguments":
        try:
            return _DECODER.raw_decode(text, at)
        except ValueError:
            return None
    pattern = _NAME.pattern if place.name == "name" else identifier
    match = re.compile(f"(?:{pattern})(?={re.escape(behind)})").match(text, at)
    return None if match is None else (match[0], match.end())
