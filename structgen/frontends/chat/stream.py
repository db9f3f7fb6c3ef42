"""Replies that are read while they are written: thoughts, texts and the arguments of calls, piece by piece."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, final

from structgen.errors import GrammarError
from structgen.frontends.chat.family import Family, FreeText, Placeholder, load_family
from structgen.frontends.chat.reply import tools_of
from structgen.frontends.json_schema.arguments import value_types

__all__ = ["ReplyPiece", "ReplyReader"]

_Parts: TypeAlias = tuple["str | Placeholder", ...]
_LONGEST_ID: Final = 64
_STRUCTURE: Final = re.compile(r'\\.?|["{}\[\]]', re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class ReplyPiece:
    """The state of a reader.

    Attributes:
        kind: ``"thought"`` and ``"text"``: more of it.  ``"call"``: a call begins.  ``"arguments"``: more of its
            arguments, as JSON text.
        text: of a thought, a text or arguments; the name of the tool of a call.
        index: the number of the call.
        id: the id that the model has given the call before its arguments, if any.
    """

    kind: Literal["thought", "text", "call", "arguments"]
    text: str
    index: int = 0
    id: str | None = None


@final
@dataclass(frozen=True, slots=True)
class _Match:
    """A part of a call: the name and the id in it, where it ends, and what may follow its arguments."""

    end: int
    name: str = ""
    id: str | None = None
    tails: tuple[_Parts, ...] = ()


@final
class _Wait:
    """More text is needed."""


_WAIT: Final = _Wait()


@final
class ReplyReader:
    r"""Reads one reply of ``tool_calls``, or of ``think`` and ``tool_calls``, in pieces of any lengths.

    The pieces of one kind, joined, are what ``read_reply`` finds in the whole text.  Arguments in JSON are passed on as
    they come; those in other notations are passed on as JSON when the call is complete.

    Args:
        family: as for ``tool_calls``.
        tools: those that may be called; none: the reply has no calls.
        thinks: whether a thought may come first.
        is_open: the prompt held the start tag of the thought.
        is_answer: ``tool_calls`` was told the answer: a text is read to its end, whatever tags it holds.

    Raises:
        GrammarError: a tool is malformed.

    Complexity: linear in the text, if arguments are JSON.

    >>> reader = ReplyReader(tools=[{"name": "add"}])
    >>> written = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    >>> [piece.text for part in (written[:40], written[40:]) for piece in reader.read(part)]
    ['add', '{"', 'a": 1}']
    """

    def __init__(
        self,
        *,
        family: str | Path | Family = "hermes",
        tools: Iterable[Any] = (),
        thinks: bool = True,
        is_open: bool = False,
        is_answer: bool = False,
    ) -> None:
        self._family = family if isinstance(family, Family) else load_family(family)
        self._schemas = {tool.name: tool.parameters for tool in tools_of(tools)}
        self._is_open = is_open
        before = self._family.text_before
        self._before = before if self._schemas and not is_answer else None
        self._rest = ""
        self._is_last = False
        self._is_done = False
        self._pieces: list[ReplyPiece] = []
        self._kinds: list[FreeText] = []
        self._call = _Match(0)
        self._count = 0
        self._looked = 0
        self._object = _JsonObject()
        begin = ReplyReader._begin_thought if thinks and self._family.thought else ReplyReader._begin_reply
        self._stage: Callable[[ReplyReader], bool] = begin  # no bound method, which would keep the reader alive

    def read(self, text: str, *, is_last: bool = False) -> list[ReplyPiece]:
        """Read more of the reply, special tokens written out, and return what is known now.

        Raises:
            GrammarError: it is no reply of this family.
        """
        self._rest += text
        self._is_last = is_last
        while self._stage(self):
            pass
        if is_last and not self._is_done:
            raise self._error()
        pieces, self._pieces = self._pieces, []
        return pieces

    # Each stage returns whether the next one may go on, else it waits for more text.

    def _begin_thought(self) -> bool:
        thought = self._family.thought
        begins = thought is not None and (self._is_open or self._begins(thought.layout.prefix))
        if begins is None:
            return False
        if begins and thought is not None and not self._is_open:
            self._drop(len(thought.layout.prefix))
        self._stage = ReplyReader._in_thought if begins else ReplyReader._begin_reply
        return True

    def _in_thought(self) -> bool:
        thought = self._family.thought
        if thought is None or not self._free("thought", thought, thought.layout.end):
            return False
        self._stage = ReplyReader._end_thought
        return True

    def _end_thought(self) -> bool:
        thought = self._family.thought
        end = "" if thought is None else thought.layout.end
        begins = self._begins(end)
        if begins is None:
            return False
        if not begins:
            raise self._error()
        self._drop(len(end))
        self._stage = ReplyReader._begin_reply
        return True

    def _begin_reply(self) -> bool:
        if not self._rest and not self._is_last:
            return False
        family = self._family
        starts = [""]
        if family.is_always_before and family.text_before is not None:
            layout = family.text_before.layout
            starts.append(layout.prefix + layout.end)
        found = self._header([start + family.calls.before for start in starts])
        if found is _WAIT:
            return False
        if isinstance(found, _Match):
            return self._begin_call(found)
        kinds = [family.text] if self._before is None else [family.text, self._before]
        begins = [self._begins(each.layout.prefix) for each in kinds]
        if None in begins:
            return False
        self._kinds = [each for each, does in zip(kinds, begins, strict=True) if does]
        if not self._kinds:
            raise self._error()
        self._drop(len(self._kinds[0].layout.prefix))
        self._stage = ReplyReader._in_text
        return True

    def _in_text(self) -> bool:
        text, before = self._family.text, self._before
        end = text.layout.end
        if before is not None and before in self._kinds:
            start = before.layout.end + self._family.calls.before + self._family.calls.layouts[0].prefix
            if self._free("text", before, start):
                self._stage = ReplyReader._end_text
                return True
            self._is_done = self._is_last and text in self._kinds and not end
        elif not self._is_last:
            self._say("text", len(self._rest) - len(end))
        elif self._rest.endswith(end):
            self._say("text", len(self._rest) - len(end))
            self._is_done = True
        return False

    def _end_text(self) -> bool:
        end = self._family.text.layout.end
        if self._before is not None:
            found = self._header([self._before.layout.end + self._family.calls.before])
            if found is _WAIT:
                return False
            if isinstance(found, _Match):
                return self._begin_call(found)
        if self._family.text in self._kinds and end.startswith(self._rest):
            self._is_done = self._is_last and end == self._rest
            return False
        raise self._error()

    def _begin_call(self, call: _Match) -> bool:
        self._pieces.append(ReplyPiece("call", call.name, self._count, call.id))
        self._drop(call.end)
        self._call = call
        self._looked = 0
        self._object = _JsonObject()
        is_json = self._family.arguments.style == "json"
        self._stage = ReplyReader._in_json if is_json else ReplyReader._in_arguments
        return True

    def _in_json(self) -> bool:
        end = self._object.end_in(self._rest)
        self._say("arguments", len(self._rest) if end is None else end)
        if end is None:
            return False
        self._stage = ReplyReader._end_call
        return True

    def _in_arguments(self) -> bool:
        """Look for the end where the text after the arguments stands."""
        style, tail = self._family.arguments, self._call.tails[0]
        after = (tail[0] if tail and isinstance(tail[0], str) else "").lstrip()
        while (at := self._rest.find(after, self._looked)) >= 0:
            self._looked = at + 1
            read = style.scan(self._rest, 0, value_types(self._schemas[self._call.name]))
            if read is not None:
                value, end = read
                while style.begins and self._rest[end : end + 1].isspace():
                    end += 1
                if self._rest.startswith(after, end):
                    text = json.dumps(value, ensure_ascii=False)
                    self._pieces.append(ReplyPiece("arguments", text, self._count))
                    self._drop(end + len(after))
                    self._call = _Match(0, tails=(tail[1:],))
                    self._stage = ReplyReader._end_call
                    return True
        return False

    def _end_call(self) -> bool:
        found = [self._match(tail, 0) for tail in self._call.tails]
        ended = next((each for each in found if isinstance(each, _Match)), None)
        if ended is None:
            if _WAIT in found:
                return False
            raise self._error()
        self._drop(ended.end)
        self._count += 1
        self._stage = ReplyReader._between_calls
        return True

    def _between_calls(self) -> bool:
        calls = self._family.calls
        if self._is_last and self._rest == calls.after:
            self._drop(len(self._rest))
            self._is_done = True
            return False
        if not self._rest and not self._is_last:
            return False
        found = self._header([calls.between])
        if isinstance(found, _Match):
            return self._begin_call(found)
        if found is None and (self._is_last or not calls.after.startswith(self._rest)):
            raise self._error()
        return False

    def _free(self, kind: Literal["thought", "text"], written: FreeText, after: str) -> bool:
        """Read free text up to its stop; return whether the stop was read.  ``after`` is the text from the stop on."""
        at = self._rest.find(written.stop)
        if at >= 0:
            self._say(kind, max(at - written.offset, 0))
            return True
        end, whole = len(self._rest), after[: written.offset + len(written.stop)]
        if not self._is_last:
            sizes = range(min(len(whole) - 1, end), 0, -1)
            end -= next((size for size in sizes if self._rest.endswith(whole[:size])), 0)
        self._say(kind, end)
        return False

    def _header(self, starts: Iterable[str]) -> _Match | _Wait | None:
        """A call up to its arguments, after one of some texts."""
        waits = False
        for start in starts if self._schemas else ():
            found: list[_Match] = []
            for layout in self._family.calls.layouts:
                match = self._match((start, *layout.parts), 0)
                waits = waits or match is _WAIT
                if isinstance(match, _Match):
                    found.append(match)
            if found:  # layouts may differ after the arguments only
                tails = tuple(tail for each in found if each.end == found[0].end for tail in each.tails)
                return _Match(found[0].end, found[0].name, found[0].id, tails)
        return _WAIT if waits else None

    def _match(self, parts: Sequence[str | Placeholder], at: int) -> _Match | _Wait | None:
        """Match the parts of a layout up to the arguments or the end."""
        identifier: str | None = None
        for index, part in enumerate(parts):
            after = parts[index + 1 :]
            if isinstance(part, str):
                begins = self._begins(part, at)
                if not begins:
                    return _WAIT if begins is None else None
                at += len(part)
            elif part.name == "arguments":
                return _Match(at, id=identifier, tails=(tuple(after),))
            elif part.name == "name":
                return self._match_name(after, at, identifier)
            else:
                stop = after[0] if after and isinstance(after[0], str) else ""
                end = self._rest.find(stop, at)
                if end < 0 or not stop:
                    return None if self._is_last or len(self._rest) - at > _LONGEST_ID + len(stop) else _WAIT
                identifier = self._rest[at:end]
                if not re.fullmatch(self._family.calls.id, identifier):
                    return None
                at = end
        return _Match(at, id=identifier)

    def _match_name(self, after: Sequence[str | Placeholder], at: int, identifier: str | None) -> _Match | _Wait | None:
        """Match the name of a tool, and the parts after it."""
        waits = False
        for name in self._schemas:
            found: _Match | _Wait | None = _WAIT
            if begins := self._begins(name, at):
                found = self._match(after, at + len(name))
            if isinstance(found, _Match):
                return _Match(found.end, name, found.id or identifier, found.tails)
            waits = waits or (begins is not False and found is _WAIT)
        return _WAIT if waits else None

    def _begins(self, expected: str, at: int = 0) -> bool | None:
        """Whether the text goes on with another; None if that is not known yet."""
        here = self._rest[at : at + len(expected)]
        if here == expected:
            return True
        return None if not self._is_last and expected.startswith(here) else False

    def _say(self, kind: Literal["thought", "text", "arguments"], end: int) -> None:
        if end > 0:
            self._pieces.append(ReplyPiece(kind, self._rest[:end], self._count))
            self._drop(end)

    def _drop(self, end: int) -> None:
        self._rest = self._rest[end:]

    def _error(self) -> GrammarError:
        return GrammarError(
            "reply", f"not in the format of {self._family.name} models", evidence=f"found {self._rest[:40]!r}"
        )


@final
@dataclass(slots=True)
class _JsonObject:
    """Finds the end of a JSON object that comes in pieces."""

    depth: int = 0
    is_string: bool = False
    is_escaped: bool = False

    def end_in(self, text: str) -> int | None:
        """Where the object ends in its next piece; None if it goes on."""
        if not text:
            return None
        start, self.is_escaped = int(self.is_escaped), False
        for match in _STRUCTURE.finditer(text, start):
            mark = match[0]
            if mark[0] == "\\":
                self.is_escaped = len(mark) == 1
            elif mark == '"':
                self.is_string = not self.is_string
            elif not self.is_string:
                self.depth += 1 if mark in "{[" else -1
                if not self.depth:
                    return match.end()
        return None
