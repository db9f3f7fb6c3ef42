"""Follows a document through a language and says where it leaves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from structgen.cli.expectation import expectation_of
from structgen.cli.json_place import pointer_at_end
from structgen.errors import caret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from structgen.engine import Matcher

__all__ = ["Departure", "find_departure"]

_CONTEXT_BYTES: Final = 4_096
_REMEMBERED_BYTES: Final = 4 << 20
_LINE_ENDS: Final = (b"\n", b"\r\n")


@dataclass(frozen=True, slots=True)
class Departure:
    """The first place of a document that no member of the language shares.

    Attributes:
        offset: bytes before it.
        line: its line, from 1.
        column: its column in characters, from 1.
        found: what stands there; None at the end of the document.
        expected: what could.
        rules: names of the open rules, outermost first.
        pointer: JSON Pointer of the value that it lies in, of a JSON document that is not too long.
        picture: the line with a caret under the place.
    """

    offset: int
    line: int
    column: int
    found: str | None
    expected: str
    rules: tuple[str, ...]
    pointer: str | None
    picture: str

    def __str__(self) -> str:
        found = "the document ends" if self.found is None else f"found {self.found}"
        lines = [f"{found}, expected {self.expected}"]
        if self.pointer:
            lines.append(f"in the value of {self.pointer}")
        if self.rules:
            lines.append("in rule " + " > ".join(self.rules))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "offset": self.offset,
            "line": self.line,
            "column": self.column,
            "found": self.found,
            "expected": self.expected,
            "rules": list(self.rules),
            "pointer": self.pointer,
        }


def find_departure(
    matcher: Matcher, chunks: Iterable[bytes], *, exact: bool, prefix: bool = False, is_json: bool = False
) -> Departure | None:
    """Feed a document to ``matcher``; None if it belongs to the language.

    Args:
        matcher: at the beginning of a text.
        chunks: the document, in pieces of any size.
        exact: if false, one line break at the end may be left over.
        prefix: the document need only be the beginning of a member; the matcher is left at its end.
        is_json: the members are JSON texts.

    Complexity: O(length) steps, and memory for one chunk (and, of JSON, for the first megabytes).
    """
    place = _Place(keep=_REMEMBERED_BYTES if is_json else 0)
    for piece, after in _pieces(chunks):
        accepted = matcher.accept_bytes(piece)
        if accepted < len(piece):
            rest = piece[accepted:] + after
            if not exact and rest in _LINE_ENDS and matcher.is_accepting:
                return None
            whole = _character_start(piece, accepted)
            if whole < accepted:  # point at the character, not into it
                matcher.rollback(1)
                matcher.accept_bytes(piece[:whole])
            place.move(piece[:whole])
            return _departure(matcher, place, piece[whole:] + after)
        place.move(piece)
    return None if prefix or matcher.is_accepting else _departure(matcher, place, b"")


def _pieces(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield each piece of the document with what follows it, as far as it is read already.

    A piece ends where a character does, and the bytes that follow it are the whole rest or at least some context.
    """
    pending = b""
    for chunk in chunks:
        pending += chunk
        if len(pending) > 2 * _CONTEXT_BYTES:
            end = _character_start(pending, len(pending) - _CONTEXT_BYTES)
            yield pending[:end], pending[end:]
            pending = pending[end:]
    yield pending, b""


def _character_start(data: bytes, index: int) -> int:
    """The start of the UTF-8 character that ``data[index]`` lies in; ``index`` itself where it is not UTF-8."""
    for start in range(index, max(index - 4, -1), -1):
        if start >= len(data):
            continue
        if data[start] < 0x80 or data[start] >= 0xC0:
            length = 1 if data[start] < 0xC0 else 2 if data[start] < 0xE0 else 3 if data[start] < 0xF0 else 4
            return start if start + length > index else index
    return index


class _Place:
    """Where the document is read to, with the beginning of the line as far as it is shown."""

    def __init__(self, *, keep: int) -> None:
        self.head: bytes | None = b""  # all that was read, up to ``keep`` bytes
        self.keep = keep
        self.offset = 0
        self.line = 1
        self.column = 1
        self.before = b""

    def move(self, data: bytes) -> None:
        self.offset += len(data)
        self.head = self.head + data if self.head is not None and self.offset <= self.keep else None
        self.line += data.count(b"\n")
        if b"\n" in data:
            data = data[data.rindex(b"\n") + 1 :]
            self.column, self.before = 1, b""
        self.column += sum(value & 0xC0 != 0x80 for value in data)
        self.before = (self.before + data)[-_CONTEXT_BYTES:]


def _departure(matcher: Matcher, place: _Place, rest: bytes) -> Departure:
    before = place.before.decode("utf-8", "replace")
    line = rest[:_CONTEXT_BYTES].split(b"\n", 1)[0].decode("utf-8", "replace")
    return Departure(
        offset=place.offset,
        line=place.line,
        column=place.column,
        found=_found(rest) if rest else None,
        expected=str(expectation_of(matcher)),
        rules=matcher.open_rules(),
        pointer=None if place.head is None else pointer_at_end(place.head),
        picture=caret(before + line, (len(before), len(before) + 1)),
    )


def _found(rest: bytes) -> str:
    """The character at the beginning of ``rest``, or its first byte where that is not UTF-8."""
    for length in range(1, 5):
        try:
            return repr(rest[:length].decode())
        except UnicodeDecodeError:
            continue
    return f"byte 0x{rest[0]:02x}, which is not UTF-8"
