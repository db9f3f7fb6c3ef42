"""Readers of tiktoken: an ``Encoding`` object, or a file of ranks (``.tiktoken``, Llama 3's tokenizer.model).

Both hold the bytes of each token as they are.  A file of ranks has neither special tokens nor the pattern
that splits text, so its vocabulary spells text by itself (the fewest tokens) instead of encoding it.
"""

from __future__ import annotations

import base64
import binascii
import re
import threading
from collections.abc import Sequence
from typing import Any

from structgen.engine.tokenizers.optional import need
from structgen.engine.tokenizers.table import TokenTable, token_slots
from structgen.errors import VocabularyError

__all__ = ["RanksEncoder", "has_all_bytes", "looks_like_ranks", "read_encoding", "read_ranks"]

_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d{1,8}\r?\n")
_END_OF_TEXT = "<|endoftext|>"


class RanksEncoder:
    """Encode text with tiktoken, built on the first call from the tokens in rank order.

    Args:
        ranked: the bytes of each token; its place is its rank.
        pattern: the regex that splits text before tokens are merged.
        first: the id of rank 0.
    """

    def __init__(self, ranked: Sequence[bytes], pattern: str, first: int) -> None:
        self._ranked, self._pattern, self._first = ranked, pattern, first
        self._encoding: Any = None
        self._lock = threading.Lock()

    def __call__(self, text: str) -> list[int]:
        if self._encoding is None:
            with self._lock:
                if self._encoding is None:
                    self._encoding = self._load()
        first = self._first
        return [rank + first for rank in self._encoding.encode_ordinary(text)]

    def __reduce__(self) -> tuple[type[RanksEncoder], tuple[Sequence[bytes], str, int]]:
        return RanksEncoder, (self._ranked, self._pattern, self._first)

    def _load(self) -> Any:
        library = need("tiktoken", "to encode text with a tekken.json")
        ranks = {piece: rank for rank, piece in enumerate(self._ranked)}
        try:
            return library.Encoding("tekken", pat_str=self._pattern, mergeable_ranks=ranks, special_tokens={})
        except ValueError as error:
            raise VocabularyError(
                "tekken.json",
                f"tiktoken cannot use its pattern {self._pattern!r:.60}",
                evidence=str(error),
                remedy="check that the file is complete",
            ) from error


def read_encoding(encoding: Any) -> TokenTable:
    """Read a ``tiktoken.Encoding``; its end-of-text token, where it has one, is the EOS."""
    special = {encoding.encode_single_token(text): text for text in encoding.special_tokens_set}
    slots = token_slots("tiktoken encoding", list(range(encoding.n_vocab)))
    for token in range(encoding.n_vocab):
        if token not in special:
            try:
                slots[token] = encoding.decode_single_token_bytes(token)
            except KeyError:  # a gap in the ids
                continue
    eos = tuple(token for token, text in special.items() if text == _END_OF_TEXT)
    encode = encoding.encode_ordinary if has_all_bytes(slots) else None
    return TokenTable(tuple(slots), dict(sorted(special.items())), eos, encode=encode)


def has_all_bytes(tokens: Sequence[bytes]) -> bool:
    """Whether each of the 256 bytes is a token; where one is not, tiktoken aborts on a text that needs it."""
    return len({token for token in tokens if len(token) == 1}) == 256


def looks_like_ranks(start: bytes) -> bool:
    """Whether a file that begins with ``start`` is a file of tiktoken ranks."""
    return _FIRST_LINE.match(start) is not None


def read_ranks(data: bytes) -> TokenTable:
    """Read the content of a file with one ``base64 rank`` a line.

    Raises:
        VocabularyError: a line is malformed; names it.
    """
    pieces: dict[int, bytes] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            piece, rank = line.split()
            pieces[int(rank)] = base64.b64decode(piece, validate=True)
        except (ValueError, binascii.Error) as error:
            raise VocabularyError(
                "tiktoken ranks",
                f"line {number} is not 'base64 rank'",
                evidence=f"found {line[:60]!r}",
                remedy="check that the file is complete",
            ) from error
    slots = token_slots("tiktoken ranks", list(pieces))
    for token, content in pieces.items():
        slots[token] = content
    return TokenTable(tuple(slots))
