"""Masks of rules that loop: what callers allow after each token of the loop, and what the loop continues with."""

from __future__ import annotations

import itertools
import re

import numpy as np

from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.grammar.nodes import CharClass, Reference, Repeat, Rules, sequence

LETTERS = "abcdefghijklmnopqrstuvwxyz_"


def test_tokens_that_leave_a_loop() -> None:
    """With a vocabulary large enough for the table walk, no token that ends the rule inside itself is lost."""
    pieces = ["".join(letters) for size in (1, 2, 3) for letters in itertools.product(LETTERS, repeat=size)]
    pieces = pieces[:6_000] + [f"{first}\n" for first in LETTERS] + ["_.\n", "__\n", "ab\n\n", "\n"]
    vocabulary = Vocabulary([*(piece.encode() for piece in pieces), b""], eos=[len(pieces)])
    loop = Repeat(CharClass([(ord("a"), ord("z")), (ord("_"), ord("_"))]), 0, None)
    matcher = compile(Rules({"word": loop}, sequence(Reference("word"), "\n")), vocabulary).matcher()
    mask = np.zeros((1, (len(pieces) + 32) // 32), dtype=np.int32)
    for prefix in (b"", b"n"):
        matcher.reset()
        matcher.accept_bytes(prefix)
        matcher.fill_mask(mask)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(pieces)].astype(bool)
        wanted = [re.fullmatch(r"[a-z_]*\n?", piece) is not None for piece in pieces]
        assert [piece for piece, a, w in zip(pieces, allowed, wanted, strict=True) if a != w] == []


def test_text_that_goes_on_outside_of_its_class() -> None:
    """Outside a JSON string, control characters may stand beside the characters that strings have."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"\n\n", b"ab\n", b"}\n", b'"\n', b"\\\n", "é'\n".encode()]
    vocabulary = Vocabulary([*pieces, b""], eos=[len(pieces)])
    text = regex(r'"""(?:"{0,2}(?:[^"\\\x00]|\\[^\x00]))*"""')
    matcher = compile(Rules({"text": text}, sequence(Reference("text"), "\n")), vocabulary).matcher()
    mask = np.zeros((1, (len(pieces) + 32) // 32), dtype=np.int32)
    for prefix in (b'"""', b'"""a"', b'"""a""', b'"""a\\'):
        matcher.reset()
        matcher.accept_bytes(prefix)
        matcher.fill_mask(mask)
        allowed = np.unpackbits(mask.view(np.uint8), bitorder="little")
        wrong = [
            piece for token, piece in enumerate(pieces) if bool(allowed[token]) != (matcher.validate([token]) == 1)
        ]
        assert wrong == [], prefix
