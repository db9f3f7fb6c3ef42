"""The position at which a document becomes invalid, and a description of what the language allows there."""

from __future__ import annotations

import codecs
import json
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import caret

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from structgen.engine import Matcher

__all__ = [
    "Alternative",
    "Departure",
    "Expectation",
    "expectation_of",
    "find_departure",
    "pointer_at_end",
    "quoted_bytes",
    "readable",
    "text_or_hex",
]

_MAX_PARTS: Final = 12
_MIN_RANGE: Final = 4
_MAX_TEXT: Final = 40
_MAX_PROBES: Final = 256
_SPACES: Final = b" \t\n\r"
_CONTINUATION: Final = range(0x80, 0xC0)
_LEADS: Final = frozenset(range(0xC2, 0xF5))
"""First bytes of the UTF-8 form of characters beyond ASCII."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """One of the things that may come next.

    Attributes:
        text: readable.
        first: the byte that it begins with, or one of those; of a special token, its id less one, negated; None
            where this stands for too many to name one.
    """

    text: str
    first: int | None


@dataclass(frozen=True, slots=True)
class Expectation:
    """The continuations that a matcher allows.

    Attributes:
        alternatives: the readable ones; long lists are cut.
        accepting: the text may end here.
    """

    alternatives: tuple[Alternative, ...]
    accepting: bool

    @property
    def parts(self) -> tuple[str, ...]:
        """The texts of the alternatives."""
        return tuple(alternative.text for alternative in self.alternatives)

    def __str__(self) -> str:
        parts = [*self.parts, "the end"] if self.accepting else list(self.parts)
        if not parts:
            return "nothing"
        return parts[0] if len(parts) == 1 else ", ".join(parts[:-1]) + " or " + parts[-1]


def expectation_of(matcher: Matcher) -> Expectation:
    """Describe what may come next; the matcher stays as it is.

    Complexity: at most a few hundred steps of a copy of the matcher, whatever the language.
    """
    live = matcher.live_bytes()
    ascii_bytes = [value for value in live if value < 0x80]
    runs, solid = list(_runs(ascii_bytes)), list(_runs([value for value in ascii_bytes if value not in _SPACES]))
    # White space comes last, unless it lies within ranges.
    spaces = [value for value in ascii_bytes if value in _SPACES] if len(runs) > len(solid) else []
    parts: list[Alternative] = []
    for low, high in solid if spaces else runs:
        if high - low < _MIN_RANGE:
            parts.extend(Alternative(_text_from(matcher, value), value) for value in range(low, high + 1))
        else:
            parts.append(Alternative(f"{chr(low)!r}..{chr(high)!r}", low))
    beyond = [value for value in live if value >= 0x80]
    parts.extend(Alternative(text, beyond[0]) for text in _beyond_ascii(matcher, beyond))
    if spaces:
        text = "white space" if len(spaces) > 1 else _text_from(matcher, spaces[0])
        parts.append(Alternative(text, spaces[0]))
    special = matcher.constraint.vocabulary.special
    parts.extend(
        Alternative(f"the token {special.get(token) or f'<[{token}]>'}", -1 - token)
        for token in matcher.live_specials()[: _MAX_PARTS + 1]
    )
    if len(parts) > _MAX_PARTS:
        parts = [*parts[:_MAX_PARTS], Alternative(f"{len(parts) - _MAX_PARTS} more", None)]
    return Expectation(tuple(parts), matcher.is_accepting)


def readable(data: bytes) -> str:
    """The text that ``data`` begins with, without a character that it breaks off in; other bytes as escapes."""
    return codecs.getincrementaldecoder("utf-8")("backslashreplace").decode(data)


def text_or_hex(data: bytes) -> str | dict[str, str]:
    """The bytes as a text, or as an object that has them in hexadecimal where they are no UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def quoted_bytes(data: bytes, most: int = _MAX_TEXT) -> str:
    """Write bytes as a quoted text of at most ``most`` characters."""
    text = readable(data)
    return repr(text) if len(text) <= most else repr(text[:most]) + "..."


def _text_from(matcher: Matcher, value: int) -> str:
    """The byte, with all that must follow it."""
    probe = matcher.fork()
    probe.accept_bytes(bytes([value]))
    return quoted_bytes(bytes([value]) + probe.forced_bytes())


def _beyond_ascii(matcher: Matcher, live: Sequence[int]) -> Iterator[str]:
    if not live:
        return
    if live[0] in _CONTINUATION:  # in the middle of a character
        yield from (f"byte 0x{low:02x}..0x{high:02x}" for low, high in _runs(live))
        return
    if _LEADS.issubset(live):
        yield "any character beyond ASCII"
        return
    points = _characters(matcher)
    if points is None:
        yield "some characters beyond ASCII"
        return
    for low, high in _runs(points):
        yield repr(chr(low)) if low == high else f"{chr(low)!r}..{chr(high)!r}"


def _characters(matcher: Matcher) -> list[int] | None:
    """The code points beyond ASCII that may come next; None if they are too many to try."""
    points: list[int] = []
    open_prefixes = [(bytes([value]), matcher.fork()) for value in matcher.live_bytes() if value in _LEADS]
    for count in range(_MAX_PROBES + 1):
        if not open_prefixes:
            return sorted(points)
        if count == _MAX_PROBES:
            break
        prefix, probe = open_prefixes.pop()
        probe.accept_bytes(prefix[-1:])
        missing = (1 if prefix[0] < 0xE0 else 2 if prefix[0] < 0xF0 else 3) - (len(prefix) - 1)
        following = [value for value in probe.live_bytes() if value in _CONTINUATION]
        if missing == 1:
            points.extend(ord((prefix + bytes([value])).decode()) for value in following)
        else:
            open_prefixes.extend((prefix + bytes([value]), probe.fork()) for value in following)
    return None


def _runs(values: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ascending values as ranges."""
    start = 0
    for index in range(1, len(values) + 1):
        if index == len(values) or values[index] != values[index - 1] + 1:
            yield values[start], values[index - 1]
            start = index


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*("?)|[{}\[\],]', re.DOTALL)


def pointer_at_end(prefix: bytes) -> str:
    """Return the JSON Pointer of the innermost value that is open at the end of a prefix of JSON; "" is the whole.

    Complexity: O(length).

    >>> pointer_at_end(b'{"tags": ["a", {"b')
    '/tags/1'
    """
    from structgen.frontends.json_schema.source.location import plain_pointer

    open_containers: list[str | int | None] = []  # name of a member (None before it), or index of an item
    for match in _TOKEN.finditer(prefix):
        mark = match[0]
        if mark in (b"{", b"["):
            open_containers.append(None if mark == b"{" else 0)
        elif mark in (b"}", b"]"):
            open_containers.pop()
        elif mark == b",":
            last = open_containers[-1]
            open_containers[-1] = last + 1 if isinstance(last, int) else None
        elif match[1] and open_containers and open_containers[-1] is None:
            open_containers[-1] = json.loads(mark)
    return plain_pointer(step for step in open_containers if step is not None)


_CONTEXT_BYTES: Final = 4_096
_MAX_HEAD_BYTES: Final = 4 << 20
_LINE_ENDS: Final = (b"\n", b"\r\n")


@dataclass(frozen=True, slots=True)
class Departure:
    """The first position at which a document leaves the grammar.

    Attributes:
        offset: bytes before it.
        line: its line, from 1.
        column: its column in characters, from 1.
        found: what the document has there; None at its end.
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
        """Return the attributes as JSON values, without the picture."""
        values = asdict(self) | {"rules": list(self.rules)}
        del values["picture"]
        return values


def find_departure(
    matcher: Matcher, chunks: Iterable[bytes], *, exact: bool, is_prefix: bool = False, is_json: bool = False
) -> Departure | None:
    """Feed a document to ``matcher``; None if it belongs to the language.

    Args:
        matcher: at the start of a text.
        chunks: the document, in pieces of any size.
        exact: if false, one line break at the end may be left over.
        is_prefix: whether the document need only be a prefix of a string of the grammar; the matcher is then left at
            its end.
        is_json: whether the strings are JSON texts.

    Complexity: O(length) steps, and memory for one chunk (and, of JSON, for the first megabytes).
    """
    place = _DocumentPosition(keep=_MAX_HEAD_BYTES if is_json else 0)
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
    return None if is_prefix or matcher.is_accepting else _departure(matcher, place, b"")


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


@dataclass(slots=True)
class _DocumentPosition:
    """Where the document is read to, with the start of the line as far as it is shown."""

    keep: int
    head: bytes | None = b""  # all that was read, up to ``keep`` bytes
    offset: int = 0
    line: int = 1
    column: int = 1
    before: bytes = b""

    def move(self, data: bytes) -> None:
        self.offset += len(data)
        self.head = self.head + data if self.head is not None and self.offset <= self.keep else None
        self.line += data.count(b"\n")
        if b"\n" in data:
            data = data[data.rindex(b"\n") + 1 :]
            self.column, self.before = 1, b""
        self.column += sum(value & 0xC0 != 0x80 for value in data)
        self.before = (self.before + data)[-_CONTEXT_BYTES:]


def _departure(matcher: Matcher, place: _DocumentPosition, rest: bytes) -> Departure:
    before = place.before.decode("utf-8", "replace")
    line = rest[:_CONTEXT_BYTES].split(b"\n", 1)[0].decode("utf-8", "replace")
    return Departure(
        offset=place.offset,
        line=place.line,
        column=place.column,
        found=_found_character(rest) if rest else None,
        expected=str(expectation_of(matcher)),
        rules=matcher.open_rules(),
        pointer=None if place.head is None else pointer_at_end(place.head),
        picture=caret(before + line, (len(before), len(before) + 1)),
    )


def _found_character(rest: bytes) -> str:
    """The character at the start of ``rest``, or its first byte where that is not UTF-8."""
    for length in range(1, 5):
        try:
            return repr(rest[:length].decode())
        except UnicodeDecodeError:
            continue
    return f"byte 0x{rest[0]:02x}, which is not UTF-8"
