"""Which field of a text an output is writing: what it is called, and what stands of its value."""

from __future__ import annotations

import json
import re
from typing import Final, Literal, NamedTuple, TypeAlias, final

__all__ = ["Field", "OutputFields", "Place"]

Place: TypeAlias = Literal["key", "string", "bare", "before", "between", "line"]
"""Within a key, a string or a bare value (a number, a name); before a value; between fields; in text without JSON."""

_QUOTE, _ESCAPE, _COMMA, _COLON = b'"\\,:'
_OPENING, _CLOSING = b"{[", b"}]"
_SPACE: Final = b" \t\r\n"
_DEEPEST: Final = 64
_LINE: Final = re.compile(rb"[ \t]*(?:[-*][ \t]+)?([^:=\n]{1,60}?)[ \t]*[:=][ \t]*(.*)", re.DOTALL)


class Field(NamedTuple):
    """Where an output stands.

    Attributes:
        place: in what kind of text.
        label: the innermost key whose value this is, or what stands before a colon on the line; may be empty.
        value: what stands of the value, or of the key: of strings without escapes.
        in_array: whether it is an item of an array.
    """

    place: Place
    label: bytes
    value: bytes
    in_array: bool


@final
class OutputFields:
    """Reads an output as it is written, JSON or lines of text; what is malformed is read somehow.

    Attributes:
        comma: what stood last between a member of an object and the next key; None before the first.
        colon: what stood last between a key and its value; None before the first.
        previous: the string that was completed last, without escapes; keys do not count, nor does what stands before an
            array that was begun since.
    """

    __slots__ = (
        "_buffer",
        "_escaped",
        "_frames",
        "_gap",
        "_is_json",
        "_key",
        "_line",
        "_place",
        "colon",
        "comma",
        "previous",
    )

    def __init__(self) -> None:
        self.comma: bytes | None = None
        self.colon: bytes | None = None
        self.previous = b""
        self._is_json: bool | None = None
        self._line = bytearray()
        self._frames: list[tuple[bool, bytes]] = []  # whether an object, and the key of it
        self._place: Place = "before"
        self._key = b""
        self._buffer = bytearray()
        self._gap = bytearray()
        self._escaped = False

    def feed(self, data: bytes) -> None:
        """Read on: ``O(len(data))``."""
        for byte in data:
            if self._is_json is None and byte not in _SPACE:
                self._is_json = byte in b'{["'
            if self._is_json:
                self._read(byte)
            elif byte == 10:
                self._line.clear()
            else:
                self._line.append(byte)

    @property
    def field(self) -> Field:
        """Where the output stands now."""
        in_array = bool(self._frames) and not self._frames[-1][0]
        if not self._is_json:
            found = _LINE.fullmatch(self._line)
            label, value = (found[1], found[2]) if found else (b"", bytes(self._line))
            return Field("line", label, value, False)
        value = _unescaped(bytes(self._buffer)) if self._place in ("key", "string") else bytes(self._buffer)
        return Field(self._place, b"" if self._place == "key" else self._key, value, in_array)

    def _read(self, byte: int) -> None:
        if self._place in ("key", "string"):
            self._read_string(byte)
        elif byte == _QUOTE:
            self._note_gap()
            in_object = bool(self._frames) and self._frames[-1][0]
            self._place = "key" if in_object and self._place == "between" else "string"
            self._buffer.clear()
        elif byte in _OPENING:
            self._note_gap()
            if len(self._frames) < _DEEPEST:
                self._frames.append((byte == _OPENING[0], self._key))
            self._place = "between" if byte == _OPENING[0] else "before"
            if self._place == "before":
                self.previous = b""
            self._restart()
        elif byte in _CLOSING:
            if self._frames:
                self._key = self._frames.pop()[1]
            self._place = "between"
            self._restart()
        elif byte == _COMMA:
            if self._place == "bare":
                self._restart()
            in_object = bool(self._frames) and self._frames[-1][0]
            self._place = "between" if in_object else "before"
            self._gap.append(byte)
        elif byte == _COLON:
            self._place = "before"
            self._gap.append(byte)
        elif byte in _SPACE:
            if self._place == "bare":
                self._place = "between"
                self._restart()
            self._gap.append(byte)
        else:
            if self._place != "bare":
                self._note_gap()
                self._buffer.clear()
            self._place = "bare"
            self._buffer.append(byte)

    def _read_string(self, byte: int) -> None:
        if self._escaped or byte not in (_QUOTE, _ESCAPE):
            self._escaped = False
            self._buffer.append(byte)
        elif byte == _ESCAPE:
            self._escaped = True
            self._buffer.append(byte)
        else:
            text = _unescaped(bytes(self._buffer))
            if self._place == "key":
                self._key = text
            else:
                self.previous = text
            self._place = "between"
            self._restart()

    def _restart(self) -> None:
        self._buffer.clear()
        self._gap.clear()

    def _note_gap(self) -> None:
        """Remember how what comes now was set off from what came before."""
        gap = bytes(self._gap)
        if gap.lstrip().startswith(b":"):
            self.colon = gap
        elif gap.lstrip().startswith(b",") and self._frames and self._frames[-1][0]:
            self.comma = gap
        self._gap.clear()


def _unescaped(raw: bytes) -> bytes:
    if b"\\" not in raw:
        return raw
    for cut in (len(raw), raw.rfind(b"\\")):  # the last escape may not be complete
        try:
            text: str = json.loads(b'"' + raw[:cut] + b'"', strict=False)
        except ValueError:
            continue
        return text.encode("utf-8", "replace")
    return raw
