"""The field that an output is writing, and the structural text up to the next value."""

from __future__ import annotations

import json
import re
from itertools import takewhile
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, SupportsIndex, TypeAlias, final

from structgen.errors import StructgenError

if TYPE_CHECKING:
    from structgen.engine import Matcher

__all__ = ["FieldPosition", "OutputField", "OutputFields", "ValueSeparator", "structure_after"]

FieldPosition: TypeAlias = Literal["key", "string", "bare", "before", "between", "line"]
"""In a key, a string or a bare value (a number, a name); before a value; between fields; in text that is not JSON."""

_QUOTE, _ESCAPE, _COMMA, _COLON = b'"\\,:'
_OPENING, _CLOSING = b"{[", b"}]"
_SPACE: Final = b" \t\r\n"
_MAX_DEPTH: Final = 64
_LINE: Final = re.compile(rb"[ \t]*(?:[-*][ \t]+)?([^:=\n]{1,60}?)[ \t]*[:=][ \t]*(.*)", re.DOTALL)


class OutputField(NamedTuple):
    """The field at the end of an output.

    Attributes:
        place: the kind of text.
        label: the innermost key of the value, or the text before a colon on the line; may be empty.
        value: the value or key so far; strings are unescaped.
        in_array: whether it is an item of an array.
    """

    place: FieldPosition
    label: bytes
    value: bytes
    in_array: bool


@final
class OutputFields:
    """Follows an output, JSON or lines of text; malformed text raises nothing.

    Attributes:
        comma: the last text between an object member and the next key; None before the first.
        colon: the last text between a key and its value; None before the first.
        previous: the last completed string value, unescaped; empty at the start of an array.
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
        self._frames: list[tuple[bool, bytes]] = []  # whether it is an object, and its key
        self._place: FieldPosition = "before"
        self._key = b""
        self._buffer = bytearray()
        self._gap = bytearray()
        self._escaped = False

    def feed(self, data: bytes) -> None:
        """Read the next bytes: O(len(data))."""
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
    def field(self) -> OutputField:
        """The field at the end of the output."""
        in_array = bool(self._frames) and not self._frames[-1][0]
        if not self._is_json:
            match = _LINE.fullmatch(self._line)
            label, value = (match[1], match[2]) if match else (b"", bytes(self._line))
            return OutputField("line", label, value, in_array=False)
        value = _unescaped(bytes(self._buffer)) if self._place in ("key", "string") else bytes(self._buffer)
        return OutputField(self._place, b"" if self._place == "key" else self._key, value, in_array)

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
            if len(self._frames) < _MAX_DEPTH:
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
        """Remember the white space and punctuation before the next key or value."""
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


_KEY: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"(?=\s*:)')
_SIGN: Final = re.compile(rb"(\s*)([,:{}\[\]])(\s*)")
_REST_OF_STRING: Final = re.compile(rb'[^"\\]*"')
_SPACE_RUN: Final = re.compile(rb"\s+")
_LINE_END: Final = re.compile(rb"[^\n]*?(?:[:=][ \t]*|\n|$)")
_MAX_LENGTH: Final = 160


class ValueSeparator(NamedTuple):
    """The text from the end of a value to the start of the next one.

    Attributes:
        data: the text.
        label: the key of the next value; empty if it has none.
        quoted: whether the next value is a string; its quotation mark is part of the text.
        ends: whether the output is complete after the text.
    """

    data: bytes
    label: bytes
    quoted: bool
    ends: bool


def structure_after(matcher: Matcher, place: FieldPosition, fields: OutputFields) -> ValueSeparator | None:
    """Return the text that closes the current value and leads to the next one; None if none can follow.

    It is a prefix of the shortest completion, so it skips optional fields up to the next required key.  White space
    follows the style of the output so far if the grammar allows it.  ``matcher`` is the state within the value.
    """
    try:
        completion = matcher.shortest_completion()
    except StructgenError:
        return None
    rest = bytes(takewhile(_is_byte, completion[:_MAX_LENGTH]))  # a special token is -1 - id
    if place == "line":
        match = _LINE_END.match(rest)
        data = match[0] if match else b""
        label = data.rstrip(b":= \t").rsplit(b"\n")[-1]
        return ValueSeparator(data, label, quoted=False, ends=len(data) == len(completion)) if data else None
    plain = _json_prefix(rest, place, None, None)
    if plain is None or not plain.data:
        return None
    styled = _json_prefix(rest, place, fields.comma or b", ", fields.colon or b": ")
    if styled is not None and styled.data != plain.data:
        probe = matcher.fork()
        if probe.accept_bytes(styled.data) == len(styled.data):
            return styled
    return plain


def _is_byte(symbol: SupportsIndex) -> bool:
    return symbol.__index__() >= 0


def _json_prefix(rest: bytes, place: FieldPosition, comma: bytes | None, colon: bytes | None) -> ValueSeparator | None:
    """The prefix of a JSON text up to its next value, with the given separators in place of its own."""
    at, out, label = 0, bytearray(), b""
    if place in ("string", "key"):
        closing = _REST_OF_STRING.match(rest)
        if closing is None or (place == "string" and len(closing[0]) > 1):
            return None
        out += closing[0]
        at = closing.end()
    while at < len(rest):
        if key := _KEY.match(rest, at):
            out += key[0]
            label = key[1]
            at = key.end()
        elif sign := _SIGN.match(rest, at):
            at = sign.end()
            is_key_next = _KEY.match(rest, at) is not None
            if sign[2] == b"," and is_key_next and comma is not None:
                out += comma
            elif sign[2] == b":" and colon is not None:
                out += colon
            else:
                out += sign[0]
        elif at == 0 and (space := _SPACE_RUN.match(rest)):
            out += space[0]
            at = space.end()
        elif rest[at : at + 1] == b'"':
            return ValueSeparator(bytes(out + b'"'), label, quoted=True, ends=False)
        else:
            return ValueSeparator(bytes(out), label, quoted=False, ends=False)
    return ValueSeparator(bytes(out), label, quoted=False, ends=True)
