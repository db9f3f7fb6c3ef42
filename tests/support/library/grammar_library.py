"""The folders of ``grammars/``: their cases, their constraints, and random strings of them."""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final, Literal

import numpy as np

from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.frontends.indentation import Indentation
from structgen.frontends.lark import lark
from structgen.grammar.nodes import Grammar

GRAMMARS: Final = Path(__file__).resolve().parents[3] / "grammars"
BYTES: Final = Vocabulary([*(bytes([byte]) for byte in range(256)), b""], eos=[256])
KINDS: Final = (
    frozenset(b"abcdefghijklmnopqrstuvwxyz"),
    frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    frozenset(b"0123456789"),
    frozenset(b" \t\r\n"),
    frozenset(range(128, 256)),
)
"""Kinds of bytes that a walk takes alike; each other byte is a kind of its own."""


@dataclass(frozen=True)
class Folder:
    """A grammar of the library with its cases; offsets are in bytes."""

    name: str
    start: str
    lexer: Literal["any", "contextual"]
    indentation: Indentation | None
    accept: tuple[str, ...]
    reject: tuple[tuple[str, int], ...]

    @cached_property
    def text(self) -> str:
        return (GRAMMARS / self.name / "grammar.lark").read_text("utf-8")

    @cached_property
    def grammar(self) -> Grammar:
        options = {"lexer": self.lexer, "indentation": self.indentation}
        return lark(self.text, start=self.start, path=GRAMMARS / self.name, **options)

    @cached_property
    def constraint(self) -> Constraint:
        """The constraint over single bytes."""
        return compile(self.grammar, BYTES)

    def accepts(self, text: str) -> bool:
        matcher = self.constraint.matcher()
        data = text.encode()
        return matcher.accept_bytes(data) == len(data) and matcher.is_accepting


@cache
def folder(name: str) -> Folder:
    cases = tomllib.loads((GRAMMARS / name / "cases.toml").read_text("utf-8"))
    reject = tuple((text, offset) for text, offset in cases["reject"])
    indentation = Indentation(**cases["indentation"]) if "indentation" in cases else None
    start, lexer = cases.get("start", "start"), cases.get("lexer", "any")
    return Folder(name, start, lexer, indentation, tuple(cases["accept"]), reject)


NAMES: Final = sorted(
    path.stem.removesuffix("_checker") for path in (Path(__file__).parents[1] / "checkers").glob("*_checker.py")
)
"""The folders that something else than structgen checks."""


def random_split(rng: random.Random, data: bytes, longest: int = 6) -> list[bytes]:
    """Cut into pieces of 1 to ``longest`` bytes, inside characters too."""
    pieces = []
    while data:
        size = rng.randint(1, longest)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def split_vocabulary(pieces: set[bytes]) -> Vocabulary:
    """Every byte and every piece; the first tokens are the bytes, the last one is EOS."""
    longer = sorted(piece for piece in pieces if len(piece) > 1)
    tokens = [*(bytes([byte]) for byte in range(256)), *longer, b""]
    return Vocabulary(tokens, eos=[len(tokens) - 1])


def words(text: str) -> Iterator[bytes]:
    """Pieces as tokenizers have them: words with the blank before them, runs of punctuation, pairs of digits."""
    for piece in re.findall(r" ?[^\W\d]+|\d{1,2}|\s+|[^\w\s]{1,3}", text):
        yield piece.encode()


def longest_match(data: bytes, tokens: set[bytes]) -> list[bytes]:
    """Cut greedily into the longest tokens; every single byte is one."""
    most = max(map(len, tokens), default=1)
    pieces = []
    while data:
        size = next(size for size in range(min(most, len(data)), 0, -1) if size == 1 or data[:size] in tokens)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


def tokens_read(matcher: Matcher, pieces: list[bytes], ids: dict[bytes, int]) -> int:
    """How many of the pieces the matcher accepts, one token each; the mask must agree on every one of them."""
    size = len(ids)
    mask = np.zeros((1, (size + 31) // 32), dtype=np.int32)
    for count, piece in enumerate(pieces):
        token = ids[piece]
        matcher.fill_mask(mask)
        is_allowed = bool(mask[0, token >> 5] >> (token & 31) & 1)
        assert matcher.accept(token) is is_allowed, piece
        if not is_allowed:
            return count
    return len(pieces)


def walked_member(constraint: Constraint, rng: random.Random, most: int) -> str:
    """A string of at most about ``most`` bytes, by a walk that takes all kinds of bytes alike and ends by a budget."""
    matcher = constraint.matcher()
    row = np.zeros((1, (257 + 31) // 32), dtype=np.int32)
    budget = max(most, (matcher.min_tokens() or 0)) + 1
    data = bytearray()
    for left in range(budget, 0, -1):
        matcher.fill_mask_within(row, 0, left)
        allowed = np.flatnonzero(np.unpackbits(row[0].view(np.uint8), bitorder="little")).tolist()
        if 256 in allowed and (len(allowed) == 1 or rng.random() < 0.03):
            break
        of_kind: dict[frozenset[int], list[int]] = {}
        for byte in allowed:
            if byte < 256:
                of_kind.setdefault(next((kind for kind in KINDS if byte in kind), frozenset((byte,))), []).append(byte)
        byte = rng.choice(of_kind[rng.choice(sorted(of_kind, key=min))])
        assert matcher.accept(byte)
        data.append(byte)
    assert matcher.is_accepting
    return data.decode()


def mutations(rng: random.Random, text: str, alphabet: str, count: int) -> Iterator[str]:
    """Texts that have one character more or less than ``text``, a different one, or two exchanged."""
    for _ in range(count):
        at = rng.randrange(len(text) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            yield text[:at] + rng.choice(alphabet) + text[at:]
        elif kind == 1:
            yield text[:at] + text[at + 1 :]
        elif kind == 2:
            yield text[:at] + rng.choice(alphabet) + text[at + 1 :]
        else:
            yield text[:at] + text[at : at + 2][::-1] + text[at + 2 :]
