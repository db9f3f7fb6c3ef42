"""What may come next, in words: ranges of characters, and texts where the language leaves no choice."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from structgen.engine import Matcher

__all__ = ["Alternative", "Expectation", "expectation_of", "readable", "shown"]

_MAX_PARTS: Final = 12
_SHORTEST_RANGE: Final = 4
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
    """What a matcher allows next.

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
        if high - low < _SHORTEST_RANGE:
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


def shown(data: bytes, most: int = _MAX_TEXT) -> str:
    """Write bytes as a quoted text of at most ``most`` characters."""
    text = readable(data)
    return repr(text) if len(text) <= most else repr(text[:most]) + "..."


def _text_from(matcher: Matcher, value: int) -> str:
    """The byte, with all that must follow it."""
    probe = matcher.fork()
    probe.accept_bytes(bytes([value]))
    return shown(bytes([value]) + probe.forced_bytes())


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
