"""Where the fields of a JSON text begin and end, found while it is written.

Libraries that parse JSON in parts give partial values; which part is final, and the bytes that it stands on, they do
not tell.  The text is a prefix of valid JSON, for it comes from a constraint, so nothing is checked here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeAlias, final

__all__ = [
    "NUMBER_BYTES",
    "SCALAR_BYTES",
    "FieldEnd",
    "FieldStart",
    "JsonCursor",
    "Located",
    "Path",
    "path_text",
    "string_end",
]

Path: TypeAlias = "tuple[str | int, ...]"
"""Keys and indices from the root of a JSON value to a part of it."""

NUMBER_BYTES: Final = frozenset(b"0123456789.eE+-")
"""The bytes of numbers."""
SCALAR_BYTES: Final = NUMBER_BYTES | frozenset(b"truefalsn")
"""The bytes of numbers, ``true``, ``false`` and ``null``."""
_SPACE: Final = b" \t\n\r"
_WORDS: Final = (b"true", b"false", b"null")
_CLOSING: Final = b"}]"
_AFTER_SCALAR: Final = _SPACE + b",}]"
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)


def path_text(path: Path) -> str:
    """Write a path as an expression: ``items[0].name``; the root is ``""``."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


class Located:
    """The value at a path of a JSON value."""

    __slots__ = ()
    path: Path

    @property
    def name(self) -> str:
        """The path as text."""
        return path_text(self.path)


def string_end(data: bytes, start: int) -> int | None:
    """Return the end of the string that ``start`` is within, after its quotation mark; None if ``data`` ends first."""
    found = _REST_OF_STRING.match(data, start)
    return None if found is None else found.end()


@final
@dataclass(frozen=True, slots=True)
class FieldStart:
    """A value begins at byte ``start``."""

    path: Path
    start: int


@final
@dataclass(frozen=True, slots=True)
class FieldEnd:
    """A value is complete: ``data``, from byte ``start`` to ``end``."""

    path: Path
    data: bytes
    start: int
    end: int

    @property
    def value(self) -> Any:
        """Its value by ``json.loads``."""
        return json.loads(self.data)


@dataclass(slots=True)
class _Open:
    """A container that is not closed: an array with the index of its item, or an object with its key."""

    is_array: bool
    start: int
    index: int = 0
    key: str | None = None
    awaits_key: bool = False
    keys: set[str] = field(default_factory=set)
    repeats_key: bool = False


@final
@dataclass(slots=True)
class JsonCursor:
    """Follows a JSON text byte by byte.

    Complexity: O(bytes), and once more for each container that ends.
    """

    _data: bytearray = field(default_factory=bytearray)
    _open: list[_Open] = field(default_factory=list)
    _scalar: int | None = None  # where the scalar that is being read begins
    _in_string: bool = False
    _escaped: bool = False

    def feed(self, data: bytes) -> list[FieldStart | FieldEnd]:
        """Read on; return what begins and what ends, in order."""
        found: list[FieldStart | FieldEnd] = []
        for byte in data:
            self._data.append(byte)
            self._take(byte, found)
        return found

    def finish(self) -> list[FieldStart | FieldEnd]:
        """Note the end of the text: a number at the top ends with it."""
        found: list[FieldStart | FieldEnd] = []
        if self._scalar is not None and not self._in_string:
            self._end_scalar(len(self._data), found)
        return found

    def copy(self) -> Self:
        """An independent cursor at the same place."""
        return replace(
            self, _data=bytearray(self._data), _open=[replace(held, keys=set(held.keys)) for held in self._open]
        )

    @property
    def open_number(self) -> bool:
        """Whether the text ends within a number, which more digits might follow."""
        return self._scalar is not None and not self._in_string and self._data[self._scalar] not in b"tfn"

    @property
    def in_string(self) -> bool:
        """Whether the text ends within a string."""
        return self._in_string

    @property
    def repeats_key(self) -> bool:
        """Whether the last key of the object that is open innermost occurs in it for the second time."""
        return bool(self._open) and self._open[-1].repeats_key

    @property
    def size(self) -> int:
        """How many bytes were read."""
        return len(self._data)

    @property
    def data(self) -> bytes:
        """The text so far."""
        return bytes(self._data)

    @property
    def path(self) -> Path:
        """The value that is being read, or was read last."""
        return tuple(held.index if held.is_array else held.key or "" for held in self._open)

    def _take(self, byte: int, found: list[FieldStart | FieldEnd]) -> None:
        at = len(self._data) - 1
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif byte == ord("\\"):
                self._escaped = True
            elif byte == ord('"'):
                self._in_string = False
                self._end_string(at + 1, found)
            return
        if self._scalar is not None:
            if byte not in _AFTER_SCALAR:
                if bytes(self._data[self._scalar :]) in _WORDS:
                    self._end_scalar(at + 1, found)
                return
            self._end_scalar(at, found)
        self._take_structural(byte, at, found)

    def _take_structural(self, byte: int, at: int, found: list[FieldStart | FieldEnd]) -> None:
        if byte in _SPACE or byte == ord(":"):
            return
        top = self._open[-1] if self._open else None
        if byte in _CLOSING:
            held = self._open.pop()
            found.append(FieldEnd(self.path, bytes(self._data[held.start :]), held.start, at + 1))
        elif byte == ord(","):
            if top is not None and top.is_array:
                top.index += 1
            elif top is not None:
                top.awaits_key = True
        elif byte == ord('"'):
            self._in_string, self._scalar = True, at
            if top is None or not top.awaits_key:
                found.append(FieldStart(self.path, at))
        else:
            found.append(FieldStart(self.path, at))
            if byte in b"{[":
                self._open.append(_Open(byte == ord("["), at, awaits_key=byte == ord("{")))
            else:
                self._scalar = at

    def _end_string(self, end: int, found: list[FieldStart | FieldEnd]) -> None:
        top = self._open[-1] if self._open else None
        if top is not None and top.awaits_key and self._scalar is not None:
            key: str = json.loads(self._data[self._scalar : end])
            top.key, top.awaits_key, top.repeats_key = key, False, key in top.keys
            top.keys.add(key)
            self._scalar = None
        else:
            self._end_scalar(end, found)

    def _end_scalar(self, end: int, found: list[FieldStart | FieldEnd]) -> None:
        start, self._scalar = self._scalar, None
        if start is not None:
            found.append(FieldEnd(self.path, bytes(self._data[start:end]), start, end))
