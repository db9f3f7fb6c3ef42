"""The guard against answers that repeat themselves: small models write one item, or one phrase, until the budget ends.

The guard reads an answer while it is written, and says where a list or a string has to end.  That is no property of the
grammar, and depends on the path on which tokens were chosen; so the guard is for samplers of tokens, and is reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, final

from structgen.program.json_cursor import FieldEnd, JsonCursor, Path

__all__ = ["Guard", "GuardReader", "Runaway"]

_MAX_CYCLE: Final = 8
"""Items of the longest sequence whose repetitions are noticed."""
_MAX_PHRASE: Final = 512
"""Bytes of the longest phrase whose repetitions are noticed; this many periods are tried for each byte of a string."""
_COPIES: Final = 3
"""How often a long phrase may stand in a row."""
_STRUCTURED: Final = b'"{['


@final
@dataclass(frozen=True, slots=True)
class Guard:
    """Ends lists and strings that repeat themselves, or that are very long: see ``structgen.program``.

    A list ends where its last items are one item, or one sequence of up to 8 items, for the ``items``-th time in a row.
    Numbers, true, false and null do not count: they repeat in data.  A string ends where its last ``characters`` bytes
    or more are one phrase, of up to 512 bytes, three times in a row.  No name is written twice in one object.

    ``Outcome.limited`` says what the guard has ended.  Where the grammar does not let a list or string end, nothing is
    done.

    Attributes:
        items: how often the same items may stand in a row.
        characters: the bytes of the shortest text that counts as repeating itself.
        max_items: the most items of a list.
        max_length: the most bytes of a string.
    """

    items: int = 3
    characters: int = 48
    max_items: int = 256
    max_length: int = 4_096

    def __post_init__(self) -> None:
        for name, fewest in (("items", 1), ("characters", _COPIES), ("max_items", 1), ("max_length", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < fewest:
                raise ValueError(f"Guard: {name} is an integer from {fewest} on; found {value!r:.40}")


@final
@dataclass(frozen=True, slots=True)
class Runaway:
    """A list or string that has to end.

    Attributes:
        path: of the list or string.
        at: the first byte of the answer that may not be written: of a list the comma.
        closing: what ends it; empty for a whole text, which ends with EOS; None if the byte may not be written here,
            and anything else may.
        reason: why.
    """

    path: Path
    at: int
    closing: bytes | None
    reason: str


@final
@dataclass(slots=True)
class GuardReader:
    """Reads one answer for a guard.

    Args:
        guard: the settings.
        is_json: whether the answer is JSON; else it is one text.

    Complexity: O(512) for each byte of a string, O(1) for any other.
    """

    guard: Guard
    is_json: bool
    _cursor: JsonCursor = field(default_factory=JsonCursor)
    _text: bytearray = field(default_factory=bytearray)
    _items: dict[Path, list[bytes]] = field(default_factory=dict)

    def restart(self, data: bytes) -> None:
        """Forget everything, and read the ``data`` that is left of the answer."""
        self._cursor = JsonCursor()
        self._text.clear()
        self._items.clear()
        for _ in self.read(data):
            pass

    def read(self, data: bytes) -> Iterator[Runaway]:
        """Read on; yield what has to end."""
        for byte in data:
            found = self._take(byte)
            if found is not None:
                yield found

    def _take(self, byte: int) -> Runaway | None:
        if not self.is_json:
            self._text.append(byte)
            reason = self._reason_of_text(self._text)
            return Runaway((), len(self._text) - 1, b"", reason) if reason else None
        cursor = self._cursor
        was_string = cursor.in_string
        for event in cursor.feed(bytes((byte,))):
            if isinstance(event, FieldEnd):
                self._end(event)
        at = cursor.size - 1
        if was_string and cursor.in_string:
            self._text.append(byte)
            reason = self._reason_of_text(self._text)
            return Runaway(cursor.path, at, b'"', reason) if reason else None
        self._text.clear()
        if was_string and cursor.repeats_key:
            return Runaway(cursor.path, at, None, "its name was written twice")
        if byte == ord(",") and not was_string:
            path = cursor.path[:-1]
            reason = self._reason_of_items(self._items.get(path, []))
            return Runaway(path, at, b"]", reason) if reason else None
        return None

    def _end(self, event: FieldEnd) -> None:
        if event.path and isinstance(event.path[-1], int):
            items = self._items.setdefault(event.path[:-1], [])
            del items[event.path[-1] :]
            items.append(event.data)

    def _reason_of_items(self, items: list[bytes]) -> str:
        """Why a list has to end after its ``items``; "" if it may go on."""
        most = self.guard.items
        if len(items) >= self.guard.max_items:
            return f"it has {len(items)} items (max_items)"
        for cycle in range(1, min(_MAX_CYCLE, len(items) // most) + 1):
            last = items[-cycle * most :]
            if last[cycle:] == last[:-cycle] and last[0][:1] in _STRUCTURED and last[0]:
                what = "the same item" if cycle == 1 else f"the same {cycle} items"
                return f"it has {what} {most} times in a row"
        return ""

    def _reason_of_text(self, text: bytearray) -> str:
        """Why a string has to end after ``text``; "" if it may go on."""
        size = len(text)
        if size > self.guard.max_length:
            return f"it has {self.guard.max_length} bytes (max_length)"
        last = text[-1]
        for period in range(1, min(size // _COPIES, _MAX_PHRASE) + 1):
            if text[-1 - period] != last:
                continue
            length = max(self.guard.characters, _COPIES * period)
            if length > size:
                if period > self.guard.characters:
                    break
                continue
            if text[-length + period :] == text[-length:-period]:
                return "it repeats itself"
        return ""
