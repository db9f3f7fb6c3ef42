"""Readers of byte-pair ranks: tiktoken's encodings and rank files, and ``tekken.json`` of Mistral models since 2024."""

from __future__ import annotations

import base64
import binascii
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from structgen.engine.tokenizers.table import MAX_TOKENS, TokenTable, need, read_cached, token_slots
from structgen.errors import VocabularyError

__all__ = ["RanksEncoder", "has_all_bytes", "looks_like_ranks", "read_encoding", "read_ranks", "read_tekken"]

_FIRST_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d{1,8}\r?\n")
_END_OF_TEXT = "<|endoftext|>"


class RanksEncoder:
    """Encode text with tiktoken, built on the first call from the tokens in rank order.

    Attributes:
        ranked: the bytes of each token; its place is its rank.
        pattern: the regex that splits text before tokens are merged.
        first: the id of rank 0.
    """

    def __init__(self, ranked: Sequence[bytes], pattern: str, first: int) -> None:
        self.ranked, self.pattern, self.first = ranked, pattern, first
        self._encoding: Any = None
        self._lock = threading.Lock()

    def __call__(self, text: str) -> list[int]:
        """Return the tokens of a text; names of special tokens in it are plain text."""
        if self._encoding is None:
            with self._lock:
                if self._encoding is None:
                    self._encoding = self._load()
        first = self.first
        return [rank + first for rank in self._encoding.encode_ordinary(text)]

    def __reduce__(self) -> tuple[type[RanksEncoder], tuple[Sequence[bytes], str, int]]:
        return RanksEncoder, (self.ranked, self.pattern, self.first)

    def _load(self) -> Any:
        library = need("tiktoken", "to encode text with a tekken.json")
        ranks = {piece: rank for rank, piece in enumerate(self.ranked)}
        try:
            return library.Encoding("tekken", pat_str=self.pattern, mergeable_ranks=ranks, special_tokens={})
        except ValueError as error:
            raise VocabularyError(
                "tekken.json",
                f"tiktoken cannot use its pattern {self.pattern!r:.60}",
                evidence=str(error),
                remedy="check that the file is complete",
            ) from error


def read_encoding(encoding: Any) -> TokenTable:
    """Read a ``tiktoken.Encoding``; its end-of-text token, if it has one, is the EOS."""
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
    """Return whether each of the 256 bytes is a token; tiktoken aborts on a text that needs a missing one."""
    return len({token for token in tokens if len(token) == 1}) == 256


def looks_like_ranks(start: bytes) -> bool:
    """Return whether a file that begins with ``start`` is a file of tiktoken ranks."""
    return _FIRST_LINE.match(start) is not None


def read_ranks(data: bytes) -> TokenTable:
    """Read the content of a file with one ``base64 rank`` a line.

    Raises:
        VocabularyError: a line is malformed; the error names it.
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


_SUBJECT = "tekken.json"

# The special tokens of files up to version v7, which do not list them; by id.
_FIRST_SPECIAL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
_EOS = "</s>"


def read_tekken(data: bytes) -> TokenTable:
    """Read the content of a tekken.json.

    Raises:
        VocabularyError: the file is malformed.
    """
    table = read_cached(_SUBJECT, data, _decode)
    first = len(table.special)
    eos = tuple(token for token, text in table.special.items() if text == _EOS)
    ranked, pattern = table.tokens[first:], str(table.notes["pattern"])
    return replace(table, eos=eos, encode=RanksEncoder(ranked, pattern, first) if has_all_bytes(ranked) else None)


def _decode(data: bytes) -> TokenTable:
    try:
        spec = json.loads(data)
        config = spec["config"]
        count, pattern = config["default_num_special_tokens"], config["pattern"]
        last = config["default_vocab_size"] - count
        if not 0 <= count < MAX_TOKENS or not 0 < last < MAX_TOKENS:
            raise ValueError(f"the vocabulary has {count} special and {last} other tokens")
        special = _special_tokens(spec, count)
        by_rank = {entry["rank"]: entry["token_bytes"] for entry in spec["vocab"]}
        pieces = [base64.b64decode(by_rank[rank], validate=True) for rank in range(last)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise VocabularyError(
            _SUBJECT,
            "it is malformed",
            evidence=f"{type(error).__name__}: {error}",
            remedy="check that the file is complete and is a tekken.json",
        ) from error
    return TokenTable((b"",) * count + tuple(pieces), special, notes={"pattern": str(pattern)})


def _special_tokens(spec: Mapping[str, object], count: int) -> dict[int, str]:
    """Return names by id; ids below ``count`` without an entry are fillers, named as by mistral-common."""
    special = {token: f"<SPECIAL_{token}>" for token in range(count)}
    entries = spec.get("special_tokens")
    if entries is None:
        special.update(zip(range(count), _FIRST_SPECIAL_TOKENS, strict=False))
        return special
    if not isinstance(entries, list):
        raise TypeError("'special_tokens' must be a list")
    for entry in entries:
        if entry["rank"] not in special:
            raise ValueError(f"special token {entry['token_str']!r} has rank {entry['rank']}, of {count}")
        special[entry["rank"]] = str(entry["token_str"])
    return special
