"""The tokenizer of the embedded diffusion model: words are spelled alike in a text and in JSON.

A text is cut into runs of letters, pairs of digits, and the longest known pieces of all that is between them, and no
token reaches from one kind into another.  So what is copied from a prompt into a document has the same tokens there.
Among the pieces of punctuation are those that join what a grammar of JSON keeps apart (``","``, ``":["``).
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from typing import TYPE_CHECKING, final

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["EOS", "JSON", "MASK", "SPECIAL", "TEXT", "Tokenizer"]

SPECIAL = ("<mask>", "<eos>", "<text>", "<json>")
MASK, EOS, TEXT, JSON = range(len(SPECIAL))

_FIRST_BYTE = len(SPECIAL)
_KINDS = re.compile(r"(?P<word>[^\W\d]+)|(?P<digits>[0-9]{1,2})|(?P<other>\W+|\d)")
_WORDS_KEPT = 1 << 14


@final
class Tokenizer:
    """Encodes and decodes; made of the pieces in a file.

    Ids are: the special tokens, the 256 bytes, the pairs of digits, and then punctuation, whole words and merges as
    the file lists them.

    Args:
        punctuation: pieces of punctuation of more than one byte.
        words: words that are one token.
        merges: for all other words, which two neighbours become one, best first (Sennrich 2016, byte pairs).
    """

    def __init__(
        self, *, punctuation: Iterable[str], words: Iterable[str], merges: Iterable[tuple[bytes, bytes]]
    ) -> None:
        self.punctuation, self.words, self.merges = tuple(punctuation), tuple(words), tuple(merges)
        tokens = [b""] * len(SPECIAL) + [bytes([byte]) for byte in range(256)]
        tokens += [f"{pair:02}".encode() for pair in range(100)]
        tokens += [piece.encode() for piece in (*self.punctuation, *self.words)]
        self._ids = {token: id_ for id_, token in enumerate(tokens) if token}
        for left, right in self.merges:
            if left + right not in self._ids:  # two merges may make the same piece, and a merge a whole word
                self._ids[left + right] = len(tokens)
                tokens.append(left + right)
        self.tokens: tuple[bytes, ...] = tuple(tokens)
        self._whole = frozenset(self.words)
        self._pieces = frozenset(self.punctuation)
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._longest = max((len(piece) for piece in self.punctuation), default=1)
        self._word = functools.lru_cache(_WORDS_KEPT)(self._spell)

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Read a file that ``save`` wrote.

        Raises:
            ModelError: it is missing or malformed.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                punctuation=content["punctuation"],
                words=content["words"],
                merges=[(left.encode("latin-1"), right.encode("latin-1")) for left, right in content["merges"]],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelError(f"tokenizer {path.name}", "it cannot be read", evidence=repr(error)) from error

    def save(self, path: Path) -> None:
        """Write the pieces to a file; bytes of merges as the characters of Latin-1."""
        content = {
            "punctuation": self.punctuation,
            "words": self.words,
            "merges": [[left.decode("latin-1"), right.decode("latin-1")] for left, right in self.merges],
        }
        path.write_text(json.dumps(content, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text; every text has some, for all bytes are tokens.

        Raises:
            ModelError: the text holds a lone surrogate, which has no bytes.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ModelError(
                "prompt",
                f"character {error.start} is a lone surrogate, which has no UTF-8",
                evidence=f"found {text[error.start]!r}",
                remedy="replace it",
            ) from error
        ids: list[int] = []
        for kind in _KINDS.finditer(text):
            run = kind[0]
            if kind.lastgroup == "word":
                ids += self._word(run)
            elif kind.lastgroup == "digits":
                ids.append(self._ids[run.encode()])
            else:
                ids += self._other(run)
        return ids

    def decode(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of the tokens; special ones have none."""
        return b"".join(self.tokens[token] for token in ids)

    def vocabulary(self, size: int) -> Vocabulary:
        """Return the tokens as decoders see them."""
        return Vocabulary(
            self.tokens,
            eos=(EOS,),
            special=dict(enumerate(SPECIAL)),
            size=size,
            tokenize=self.encode,
        )

    def _spell(self, word: str) -> tuple[int, ...]:
        if word in self._whole:
            return (self._ids[word.encode()],)
        pieces = [bytes([byte]) for byte in word.encode()]
        while len(pieces) > 1:
            pairs = [self._ranks.get(pair, len(self._ranks)) for pair in itertools.pairwise(pieces)]
            best = min(pairs)
            if best == len(self._ranks):
                break
            at = pairs.index(best)
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        return tuple(self._ids[piece] for piece in pieces)

    def _other(self, run: str) -> list[int]:
        ids: list[int] = []
        at = 0
        while at < len(run):
            length = min(self._longest, len(run) - at)
            while length > 1 and run[at : at + length] not in self._pieces:
                length -= 1
            piece = run[at : at + length]
            ids += [self._ids[piece.encode()]] if length > 1 else [_FIRST_BYTE + byte for byte in piece.encode()]
            at += length
        return ids
