"""The table that every reader of a tokenizer returns: the bytes of each token id.

Also what depends on the table alone: the byte trie, cached on disk for the next process, and the shortest spelling of a
byte string.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import operator
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structgen.cache import fetch, keep
from structgen.errors import VocabularyError, found, install, number_of, shown

if TYPE_CHECKING:
    from structgen_kernels._native import TokenTrie

__all__ = [
    "MAX_TOKENS",
    "MAX_TOKEN_BYTES",
    "Encoder",
    "Speller",
    "TokenTable",
    "checked_tokens",
    "eos_ids",
    "find_id",
    "load_trie",
    "need",
    "read_cached",
    "token_slots",
    "tokens_digest",
    "unspellable",
]

_CACHED_FROM_TOKENS = 4096


def tokens_digest(tokens: Sequence[bytes]) -> bytes:
    """Hash the tokens with their boundaries (20 bytes, BLAKE2b)."""
    inner = hashlib.blake2b(b"".join(tokens), digest_size=20)
    inner.update(array("Q", map(len, tokens)).tobytes())
    return inner.digest()


def load_trie(tokens: tuple[bytes, ...]) -> TokenTrie:
    """Build the trie, or read it from the cache on disk.

    The key has the native module's size and modification time, because its format may change with any build.
    """
    import structgen_kernels._native as native

    if len(tokens) < _CACHED_FROM_TOKENS:
        return native.TokenTrie(list(tokens))
    built = Path(native.__file__).stat()
    key = f"{tokens_digest(tokens).hex()}-{built.st_size:x}-{built.st_mtime_ns:x}"
    cached = fetch("trie", key)
    if cached is not None:
        try:
            return native.TokenTrie.from_bytes(cached)
        except (ValueError, RuntimeError):  # not written by this build: build it again
            pass
    trie = native.TokenTrie(list(tokens))
    keep("trie", key, trie.to_bytes())
    return trie


def need(package: str, purpose: str) -> Any:  # an optional library has no types here
    """Import ``package``.

    Raises:
        VocabularyError: it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise VocabularyError(
            "vocabulary",
            f"package {package!r} is needed {purpose}",
            evidence=str(error),
            remedy=install("tokenizers"),
        ) from error


class Speller:
    """Shortest spellings over one token table.

    Complexity: ``spell`` takes O(n * k) look-ups and O(n) memory for n bytes, with k distinct lengths of tokens that
        begin with the same two bytes.
    """

    __slots__ = ("_ids", "_lengths")

    def __init__(self, tokens: Sequence[bytes]) -> None:
        ids: dict[bytes, int] = {}
        for token, piece in enumerate(tokens):
            ids.setdefault(piece, token)
        ids.pop(b"", None)
        seen: dict[bytes, set[int]] = {}
        for piece in ids:
            if len(piece) > 1:
                seen.setdefault(piece[:2], set()).add(len(piece))
        self._ids = ids
        self._lengths = {start: tuple(sorted(found, reverse=True)) for start, found in seen.items()}

    def spell(self, data: bytes) -> list[int]:
        """Return the ids of the shortest spelling of ``data``.

        Raises:
            VocabularyError: no sequence of tokens spells ``data``; the error names the byte that no token has there.
        """
        ids, count = self._ids, len(data)
        unreachable = count + 1
        cost = [unreachable] * count + [0]
        step = [0] * count
        for start in range(count - 1, -1, -1):
            best = unreachable
            for length in self._candidates(data, start):
                through = cost[start + length] + 1 if start + length <= count else unreachable
                if through < best and data[start : start + length] in ids:
                    best, step[start] = through, length
            cost[start] = best
        if cost[0] >= unreachable:
            raise unspellable(data, self._reach(data))
        spelled, start = [], 0
        while start < count:
            spelled.append(ids[data[start : start + step[start]]])
            start += step[start]
        return spelled

    def _candidates(self, data: bytes, start: int) -> tuple[int, ...]:
        return (*self._lengths.get(data[start : start + 2], ()), 1)

    def _reach(self, data: bytes) -> int:
        """Return the offset of the first byte that no spelling gets past."""
        reached = {0}
        furthest = 0
        for start in range(len(data)):
            if start in reached:
                ends = [start + n for n in self._candidates(data, start) if data[start : start + n] in self._ids]
                reached.update(end for end in ends if end <= len(data))
                furthest = start
        return furthest


def unspellable(data: bytes, offset: int) -> VocabularyError:
    """Make the error for a text that the tokens cannot spell from byte ``offset`` on."""
    start = offset
    while start and 0x80 <= data[start] < 0xC0:  # the character that the byte is part of
        start -= 1
    before = data[:start].decode("utf-8", "replace")
    character = data[start : start + 4].decode("utf-8", "ignore")[:1]
    named = f"{character!r} (character {len(before) + 1} of the text)" if character else "the text"
    around = data[max(0, start - 8) : offset + 9].decode("utf-8", "replace")
    return VocabularyError(
        "vocabulary",
        f"no tokens spell {named}: byte 0x{data[offset]:02x} at offset {offset}",
        evidence=f"found in {around!r}",
        remedy="use a tokenizer with byte fallback, or remove that text",
    )


Encoder = Callable[[str], list[int]]
"""A tokenizer's own encode, without BOS and EOS; names of special tokens in the text are plain text."""

MAX_TOKENS = 1 << 24
"""Larger ids mean a damaged file, and would need gigabytes of empty tokens."""

MAX_TOKEN_BYTES = (1 << 16) - 1
"""The native trie counts the depth of its nodes in 16 bits."""

_CACHED_FROM_BYTES = 1 << 16
_FORMAT = 1
_HEADER = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The tokens of a tokenizer.

    Attributes:
        tokens: bytes by id; ``b""`` for special tokens and for ids without text.
        special: names of the special tokens by id.
        eos: the ids that end an output, as far as the source gives them.
        size: width of the model head if the source gives it, else None.
        notes: facts that the reader needs again for encoding; JSON values only.
        encode: the canonical encoder, or None.
    """

    tokens: tuple[bytes, ...]
    special: Mapping[int, str] = field(default_factory=dict)
    eos: tuple[int, ...] = ()
    size: int | None = None
    notes: Mapping[str, object] = field(default_factory=dict)
    encode: Encoder | None = None


def token_slots(subject: str, ids: list[int]) -> list[bytes]:
    """Make the empty table that holds all of ``ids``.

    Raises:
        VocabularyError: an id is negative or beyond ``MAX_TOKENS``, or there is none.
    """
    if not ids:
        raise VocabularyError(subject, "there are no tokens", remedy="check that the file is complete")
    low, high = min(ids), max(ids)
    if low < 0 or high >= MAX_TOKENS:
        raise VocabularyError(
            subject, f"token ids must be in 0..{MAX_TOKENS - 1}", evidence=f"found {low if low < 0 else high}"
        )
    return [b""] * (high + 1)


def find_id(table: TokenTable, text: str) -> int | None:
    """Find the lowest id of the token written ``text``: a special token first, then an ordinary one."""
    named = [token for token, name in table.special.items() if name == text]
    if named:
        return min(named)
    try:
        return table.tokens.index(text.encode("utf-8", "surrogatepass")) if text else None
    except ValueError:
        return None


def eos_ids(table: TokenTable, tokens: Iterable[int | str]) -> tuple[int, ...]:
    """Return the ids of ``tokens``, each given by id or by text.

    Raises:
        VocabularyError: a text is no token.
    """
    ids: list[int] = []
    for item in tokens:
        token = find_id(table, item) if isinstance(item, str) else item
        if token is None:
            raise VocabularyError(
                "vocabulary",
                f"the tokenizer has no token {item!r} to end an output",
                evidence=f"it has {number_of(len(table.tokens), 'token')}, {len(table.special)} of them special",
                remedy="give the EOS ids: load(..., eos=[...])",
            )
        ids.append(token)
    return tuple(ids)


def read_cached(reader: str, data: bytes, read: Callable[[bytes], TokenTable]) -> TokenTable:
    """Return ``read(data)``, from the disk cache if the same bytes were read before by the reader of this name.

    ``read`` is a pure function of the content of a file; ``eos``, ``size`` and ``encode`` of its table are not cached.
    """
    if len(data) < _CACHED_FROM_BYTES:
        return read(data)
    key = hashlib.blake2b(data, digest_size=20, person=b"table-%d" % _FORMAT, salt=reader.encode()[:16]).hexdigest()
    cached = fetch("table", key)
    if cached is not None:
        try:
            return _unpack(cached)
        except (ValueError, KeyError, struct.error):
            pass  # a damaged cache entry: read again, and overwrite it below
    table = read(data)
    keep("table", key, _pack(table))
    return table


def _pack(table: TokenTable) -> bytes:
    head = json.dumps({"special": list(table.special.items()), "notes": dict(table.notes)}).encode()
    ends = array("I", accumulate(map(len, table.tokens)))
    if sys.byteorder == "big":
        ends.byteswap()
    return b"".join([_HEADER.pack(len(head), len(table.tokens)), head, ends.tobytes(), *table.tokens])


def _unpack(data: bytes) -> TokenTable:
    head_bytes, count = _HEADER.unpack_from(data)
    start = _HEADER.size + head_bytes
    head = json.loads(data[_HEADER.size : start])
    ends = array("I")
    text_start = start + count * ends.itemsize
    ends.frombytes(data[start:text_start])
    if sys.byteorder == "big":
        ends.byteswap()
    text = data[text_start:]
    if len(ends) != count or (count and ends[-1] != len(text)):
        raise ValueError("the table is cut short")
    tokens = tuple([text[begin:end] for begin, end in zip(chain((0,), ends), ends, strict=False)])
    special = {int(token): str(name) for token, name in head["special"]}
    return TokenTable(tokens, special, notes=head["notes"])


def checked_size(size: int) -> int:
    """Return the width of a model's logits as an int.

    Raises:
        VocabularyError: it is no int.
    """
    try:
        return operator.index(size)
    except TypeError as error:
        remedy = "pass the width of the model's logits"
        raise VocabularyError("vocabulary", "size must be an int", evidence=found(size), remedy=remedy) from error


def checked_tokens(tokens: Sequence[bytes], size: int | None) -> list[bytes]:
    """Copy the tokens, padded with empty ones to ``size``."""
    if not isinstance(tokens, Iterable):
        raise VocabularyError(
            "vocabulary",
            "tokens must be a list of bytes",
            evidence=found(tokens),
            remedy="pass the bytes of each token, by id; Vocabulary.load reads tokenizers",
        )
    slots = list(tokens)
    if not {*map(type, slots)} <= {bytes}:
        token = next(token for token, piece in enumerate(slots) if type(piece) is not bytes)
        raise VocabularyError(
            "vocabulary",
            f"token {token} is not bytes",
            evidence=f"found {type(slots[token]).__name__} {slots[token]!r:.40}",
            remedy="pass the bytes that the token adds to the output; Vocabulary.load reads tokenizers",
        )
    if (longest := max(map(len, slots), default=0)) > MAX_TOKEN_BYTES:
        raise VocabularyError(
            "vocabulary", f"a token has {longest} bytes", evidence=f"at most {MAX_TOKEN_BYTES} are possible"
        )
    size = len(slots) if size is None else checked_size(size)
    if not len(slots) <= size <= MAX_TOKENS:
        raise VocabularyError(
            "vocabulary",
            f"size must be between the number of tokens and {MAX_TOKENS}",
            evidence=f"found size={shown(size)} for {number_of(len(slots), 'token')}",
            remedy="pass the width of the model's logits; with_size() cuts a vocabulary down",
        )
    return slots + [b""] * (size - len(slots))
