"""Rules of canonical texts in addition to splits and merges: automata over tokens that forbid some texts.

A tokenizer that normalises never writes a text that is not normal; where added tokens are found in the text first, it
never spells their contents in other tokens; and with byte fallback it writes a character as bytes only if no piece has
it.  Each rule reads tokens from left to right; its states are small values that compare by content.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any, Final, Protocol, final

import numpy as np
from numpy.typing import NDArray

from structgen.engine.tokenizers.split_pattern import unsupported
from structgen.engine.tokenizers.table import need

__all__ = ["AddedContents", "AddedToken", "ByteSpelling", "ComposedText", "TextRule"]


class TextRule(Protocol):
    """An automaton over tokens.

    In a *settled* state nothing is open: what it lets through, and the state after that, depend on little.
    """

    @property
    def start(self) -> Hashable:
        """The state before a text; it is settled."""

    @property
    def harmless(self) -> bytes:
        """The bytes of texts that are let through from every settled state."""

    def after(self, state: Any, token: int) -> Hashable | None:
        """Return the state after a token; None if no continuation of the text is allowed."""

    def alive(self, state: Any) -> NDArray[np.bool_]:
        """Return the tokens for which ``after`` has a state, ``[V]``."""

    def is_settled(self, state: Any) -> bool:
        """Whether a state is settled."""

    def settled_after(self, token: int) -> Hashable | None:
        """Return the state after a token if it is the same from every settled state; else, or if forbidden, None."""

    def lets_through(self, state: Any, text: bytes) -> bool:
        """Whether a text, in the tokens that the tokenizer writes for it, may follow."""

    def settles(self, state: Any, byte: int) -> bool:
        """Whether every text of harmless bytes that begins with this one is let through, as far as that is seen."""


def _characters(data: bytes) -> tuple[str, bytes] | None:
    """The complete characters, and the bytes of an incomplete one; None if it is no UTF-8."""
    try:
        return data.decode(), b""
    except UnicodeDecodeError as error:
        if error.end != len(data) or "unexpected end" not in error.reason:
            return None
        return data[: error.start].decode(), data[error.start :]


@final
@dataclass(frozen=True, slots=True)
class _Composed:
    """The state after a text.

    Attributes:
        starter: the last character with which marks after it may be composed; empty where there is none.
        last: the combining class of the last mark after it.
        partial: the bytes of an incomplete character.
    """

    starter: str = ""
    last: int = 0
    partial: bytes = b""


@final
class ComposedText:
    """The texts that NFC leaves as they are (Unicode Standard Annex 15), in the Unicode version of the library.

    A character is refused where the library changes it alone, where its combining class is below that of the character
    before it, and where it is composed with the last starter: no character of its own class, and no other starter,
    stands between them.  The starter is decomposed for that, as far as its marks come before the character.

    Args:
        tokens: the bytes of each token.
    """

    start: Final = _Composed()
    harmless: Final = bytes(range(0x80))

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens
        self._unicode = _unicode()
        self._fixed = np.ones(len(tokens), dtype=np.bool_)  # what does not depend on a state between characters
        self._open: list[int] = []  # tokens that do: they begin with a character that may change, or belong to one
        for token, data in enumerate(tokens):
            if not data.isascii():
                found = _characters(data)
                self._fixed[token] = found is not None and self.after(self.start, token) is not None
                if found is None or self._unicode.interacting.issuperset(found[0][:1] or " "):
                    self._open.append(token)

    def after(self, state: _Composed, token: int) -> _Composed | None:
        """See ``TextRule``."""
        found = _characters(state.partial + self._tokens[token])
        if found is None:
            return None
        text, partial = found
        if text.isascii():
            return _Composed(self._unicode.kept(text[-1]), 0, partial) if text else replace(state, partial=partial)
        read = self._read(state, text)
        return read and _Composed(self._unicode.kept(read[0]), read[1], partial)

    def _read(self, state: _Composed, text: str) -> tuple[str, int] | None:
        """The starter and the last combining class after a text; None if it is not normal there."""
        read: tuple[str, int] | None = (state.starter, state.last)
        for character in text:
            if read is None:
                break
            read = self._unicode.read(*read, character)
        return read

    def is_settled(self, state: _Composed) -> bool:
        """See ``TextRule``: no character is open."""
        return not state.partial

    def settled_after(self, token: int) -> _Composed | None:
        """See ``TextRule``."""
        data = self._tokens[token]
        return _Composed(self._unicode.kept(chr(data[-1]))) if data and data.isascii() else None

    def lets_through(self, state: _Composed, text: bytes) -> bool:
        """See ``TextRule``."""
        found = _characters(state.partial + text)
        return found is not None and not found[1] and self._read(state, found[0]) is not None

    def settles(self, state: _Composed, byte: int) -> bool:
        """See ``TextRule``: harmless bytes are whole characters, and stay as they are."""
        return not state.partial and byte in self.harmless

    def alive(self, state: _Composed) -> NDArray[np.bool_]:
        """See ``TextRule``."""
        alive = np.zeros_like(self._fixed) if state.partial else self._fixed.copy()
        for token in self._open:
            alive[token] = self.after(state, token) is not None
        return alive


@final
class _Unicode:
    """The properties of characters for normalisation, by the library ``tokenizers``."""

    def __init__(self) -> None:
        library = need("tokenizers", "to normalise a text as the tokenizer does")
        self._compose, self._decompose = library.normalizers.NFC(), library.normalizers.NFD()
        # Decompositions are the same in all versions of Unicode; the library is only needed for newer characters.
        every = [each for each in map(chr, _ASKED) if _may_change(each)]
        # Between spaces, with which nothing is composed, and which stay.
        composed = self._compose.normalize_str(" ".join(every)).split(" ")
        self._changed = frozenset(a for a, b in zip(every, composed, strict=True) if a != b)
        self._classes = self._combining_classes(every)
        parts = zip(every, self._decompose.normalize_str(" ".join(every)).split(" "), strict=True)
        self._parts = {a: b for a, b in parts if a != b and a not in self._changed}
        firsts = self._compose.normalize_str(" ".join(each[:-1] for each in self._parts.values())).split(" ")
        self._pairs = {(a, b[-1]) for a, b in zip(firsts, self._parts.values(), strict=True)}
        self._firsts = frozenset(firsts) | self._parts.keys()
        self.interacting = frozenset(self._classes).union(second for _, second in self._pairs)
        self._sensitive = self.interacting | self._changed
        self._read = lru_cache(maxsize=1 << 14)(self._reading)

    def kept(self, starter: str) -> str:
        """Return a starter with which something may be composed; else nothing, so that states are few."""
        return starter if starter in self._firsts else ""

    def _combining_classes(self, every: Sequence[str]) -> dict[str, int]:
        """Classes in the order of the library: how many marks of known classes a character comes before."""
        last = "\N{COMBINING GREEK YPOGEGRAMMENI}"  # alone in the last class
        reordered = self._decompose.normalize_str(" ".join(last + each for each in every)).split(" ")
        candidates = [each for each, text in zip(every, reordered, strict=True) if not text.startswith(last)]
        known = {unicodedata.combining(each): each for each in reversed(candidates)}
        marks = [known[own] for own in sorted(known) if own]
        found: dict[str, int] = {last: len(marks) + 2}
        for each in candidates:
            texts = self._decompose.normalize_str(" ".join(mark + each for mark in marks)).split(" ")
            found[each] = 1 + sum(text.startswith(mark) for mark, text in zip(marks, texts, strict=True))
        return found

    def read(self, starter: str, last: int, character: str) -> tuple[str, int] | None:
        """Return the starter and the last combining class after a character; None if it is not normal there."""
        if character not in self._sensitive:
            return character, 0
        return self._read(starter, last, character)

    def _reading(self, starter: str, last: int, character: str) -> tuple[str, int] | None:
        if character in self._changed:
            return None
        own = self._classes.get(character, 0)
        if own == 0:
            return None if last == 0 and (starter, character) in self._pairs else (character, 0)
        if own < last:
            return None
        if own > last and starter:
            parts = self._parts.get(starter, starter)
            before = parts[0] + "".join(mark for mark in parts[1:] if self._classes.get(mark, 0) <= own)
            if (self._compose.normalize_str(before), character) in self._pairs:
                return None
        return starter, own


_ASKED: Final = (*range(0x80, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000))
"""The code points that may be characters now or later, without those for private use."""


def _may_change(character: str) -> bool:
    is_plain = not unicodedata.combining(character) and unicodedata.is_normalized("NFD", character)
    return not is_plain or unicodedata.category(character) == "Cn"


_unicode: Final = lru_cache(maxsize=1)(_Unicode)


@final
@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that the tokenizer looks for in the text before all else.

    Attributes:
        token: its id.
        content: its text.
        is_first: whether it is looked for before the text is normalised, so before others.
        is_text: whether it is found in texts; special tokens are passed over.
    """

    token: int
    content: bytes
    is_first: bool
    is_text: bool


@final
class AddedContents:
    """The texts in which added tokens are nowhere spelled in other tokens.

    The leftmost content is found first, and what comes before ``is_first`` is set goes before the others.  The state is
    the end of the text with which a content may begin.

    Args:
        tokens: the bytes of each token.
        added: the added tokens.

    Raises:
        ArgumentError: contents are parts of each other, or overlap so that what is found depends on more.
    """

    start: Final = b""

    def __init__(self, tokens: Sequence[bytes], added: Sequence[AddedToken]) -> None:
        _check_overlaps(added)
        self._tokens = tokens
        self._added: Mapping[int, AddedToken] = {each.token: each for each in added if each.is_text}
        self._contents = tuple(each.content for each in self._added.values())
        self._firsts = bytes({content[0] for content in self._contents})
        self.harmless: Final = bytes(byte for byte in range(256) if byte not in self._firsts)
        self._prefixes = frozenset(content[:end] for content in self._contents for end in range(1, len(content)))
        self._longest = max(map(len, self._prefixes), default=0)
        self._free = np.array([self.after(b"", token) is not None for token in range(len(tokens))], dtype=np.bool_)
        self._order = sorted(range(len(tokens)), key=tokens.__getitem__)

    @property
    def added(self) -> Iterable[int]:
        """The added tokens that are text: each ends a text, and another begins after it."""
        return self._added

    def admits(self, state: bytes, token: int) -> bool:
        """Whether an added token is found after a text, and no other that begins before it."""
        own = self._added[token]
        text = state + own.content
        others = (each for each in self._added.values() if each.is_first or not own.is_first)
        return all(text.find(each.content) in (-1, len(state)) for each in others)

    def after(self, state: bytes, token: int) -> bytes | None:
        """See ``TextRule``."""
        data = self._tokens[token]
        text = state + data
        if not state and not any(first in data for first in self._firsts):
            return b""
        if any(content in text for content in self._contents):
            return None
        ends = (text[-size:] for size in range(min(self._longest, len(text)), 0, -1))
        return next((end for end in ends if end in self._prefixes), b"")

    def alive(self, state: bytes) -> NDArray[np.bool_]:
        """See ``TextRule``."""
        if not state:
            return self._free
        alive = self._free.copy()
        for content, size in product(self._contents, range(1, len(state) + 1)):
            if content.startswith(state[-size:]):
                rest = content[size:]
                at = bisect_left(self._order, rest, key=self._tokens.__getitem__)
                while at < len(self._order) and self._tokens[self._order[at]].startswith(rest):
                    alive[self._order[at]] = False
                    at += 1
        return alive

    def is_settled(self, state: bytes) -> bool:
        """See ``TextRule``: no content may have begun."""
        return not state

    def settled_after(self, token: int) -> bytes | None:
        """See ``TextRule``."""
        return self.after(b"", token)

    def lets_through(self, state: bytes, text: bytes) -> bool:
        """See ``TextRule``."""
        return not any(content in state + text for content in self._contents)

    def settles(self, state: bytes, byte: int) -> bool:
        """See ``TextRule``: no content continues with the byte, and none begins with a harmless one."""
        text = state + bytes([byte])
        ends = (text[start:] for start in range(len(text)))
        return not any(content.startswith(end) or content in text for end in ends for content in self._contents)


def _check_overlaps(added: Sequence[AddedToken]) -> None:
    for one, other in product(added, repeat=2):
        if one is other or not (one.is_text or other.is_text) or other.content[0] not in one.content:
            continue
        overlaps = any(one.content.endswith(other.content[:size]) for size in range(1, len(other.content)))
        mixed = one.is_text != other.is_text or (other.is_first and not one.is_first)
        if other.content in one.content or (overlaps and mixed):
            raise unsupported(
                "its added tokens overlap", evidence=f"for instance {one.content!r:.60} and {other.content!r:.60}"
            )


@final
class ByteSpelling:
    """The texts in which tokens of bytes stand only for characters that have no piece.

    The state is the bytes so far of a character.

    Args:
        tokens: the bytes of each token.
        bytes_: the tokens of single bytes.
        pieces: the characters that have a piece.
    """

    start: Final = b""
    harmless: Final = bytes(range(256))

    def __init__(self, tokens: Sequence[bytes], bytes_: Iterable[int], pieces: Iterable[bytes]) -> None:
        self._tokens = tokens
        self._bytes = frozenset(bytes_)
        self._pieces = frozenset(pieces)
        self._others = np.ones(len(tokens), dtype=np.bool_)
        self._others[list(self._bytes)] = False

    def after(self, state: bytes, token: int) -> bytes | None:
        """See ``TextRule``."""
        if token not in self._bytes:
            return None if state else b""
        data = state + self._tokens[token]
        found = _characters(data)
        if found is None or data in self._pieces:
            return None
        return found[1]

    def alive(self, state: bytes) -> NDArray[np.bool_]:
        """See ``TextRule``."""
        alive = np.zeros_like(self._others) if state else self._others.copy()
        for token in self._bytes:
            alive[token] = self.after(state, token) is not None
        return alive

    def is_settled(self, state: bytes) -> bool:
        """See ``TextRule``: no character is open."""
        return not state

    def settled_after(self, token: int) -> bytes | None:
        """See ``TextRule``."""
        return self.after(b"", token)

    def lets_through(self, state: bytes, text: bytes) -> bool:
        """See ``TextRule``: the tokenizer writes every text so."""
        return not state

    def settles(self, state: bytes, byte: int) -> bool:
        """See ``TextRule``."""
        return not state
