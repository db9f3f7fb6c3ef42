"""The one value that every reader returns: which bytes each token id stands for.

A table is plain data.  ``read_cached`` keeps the tables of large tokenizer files on disk, because turning
128,000 pieces into bytes takes longer than everything else that loading does.
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, chain

from structgen.disk_cache import fetch, keep
from structgen.errors import VocabularyError

__all__ = [
    "MAX_TOKENS",
    "MAX_TOKEN_BYTES",
    "Encoder",
    "TokenTable",
    "eos_ids",
    "find_id",
    "read_cached",
    "token_slots",
]

Encoder = Callable[[str], list[int]]
"""A tokenizer's own encode: no BOS or EOS added, no special token parsed out of the text."""

MAX_TOKENS = 1 << 24
"""Ids above this are a damaged file; they would only ask for gigabytes of empty tokens."""

MAX_TOKEN_BYTES = (1 << 16) - 1
"""The native trie counts the depth of its nodes in 16 bits."""

_CACHED_FROM_BYTES = 1 << 16
_FORMAT = 1
_HEADER = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class TokenTable:
    """What a tokenizer says about its tokens.

    Attributes:
        tokens: bytes by id; ``b""`` for special tokens and for ids that stand for no text.
        special: texts of the special tokens by id.
        eos: the ids that end a text, as far as the source knows.
        size: width of the model head where the source says so, else None.
        notes: facts that the reader needs again to encode; JSON values only.
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
            subject,
            f"token ids must lie in 0..{MAX_TOKENS - 1}",
            evidence=f"found {low if low < 0 else high}",
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
                f"the tokenizer has no token {item!r}, which is to end a text",
                evidence=f"it has {len(table.tokens)} tokens, of which {len(table.special)} are special",
                remedy="name the ids that end a text: load(..., eos=[...])",
            )
        ids.append(token)
    return tuple(ids)


def read_cached(reader: str, data: bytes, read: Callable[[bytes], TokenTable]) -> TokenTable:
    """Return ``read(data)``, from the disk cache where the same bytes were read before.

    Args:
        reader: name of the reader; part of the key.
        data: the whole content of the tokenizer file.
        read: a pure function of ``data``; ``eos``, ``size`` and ``encode`` of its table are not kept.
    """
    if len(data) < _CACHED_FROM_BYTES:
        return read(data)
    key = hashlib.blake2b(data, digest_size=20, person=b"table-%d" % _FORMAT, salt=reader.encode()[:16]).hexdigest()
    kept = fetch("table", key)
    if kept is not None:
        try:
            return _unpack(kept)
        except (ValueError, KeyError, struct.error):
            pass  # written by something else under our name: read again, and overwrite it below
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
