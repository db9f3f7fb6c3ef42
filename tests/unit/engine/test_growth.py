"""Tables of the engine grow in small steps without losing content."""

from __future__ import annotations

import random

import numpy as np

from structgen.engine import Vocabulary, compile
from structgen.engine.lowering import shared_engine
from structgen.grammar.nodes import choice, literal

WORDS = 12_000


def some_words() -> list[bytes]:
    """Words of a few letters; many share a prefix."""
    chosen = random.Random(7)
    return sorted({bytes(chosen.choices(b"abcdefgh", k=chosen.randint(3, 7))) for _ in range(WORDS)})


def test_what_was_made_is_found_again() -> None:
    """The second compilation and the second walk of a large grammar find the same terms, states, nodes and rows."""
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)])
    words = some_words()
    grammar = choice(*(literal(word) for word in words))

    def walk() -> dict[str, int]:
        constraint = compile(choice(grammar, literal("other")), vocabulary)
        matcher = constraint.matcher()
        mask = np.zeros((1, 8), dtype=np.int32)
        for word in words[::3]:
            for byte in word:
                matcher.fill_mask(mask)
                assert matcher.accept(byte)
            matcher.reset()
        vocabulary.constraints.clear()
        return shared_engine(vocabulary).native.statistics

    first, second = walk(), walk()
    made = ("terms", "states", "nodes", "frames", "rows", "tries")
    assert {name: first[name] for name in made} == {name: second[name] for name in made}
    assert first["states"] > WORDS / 2


def test_masks_are_right_in_a_large_engine() -> None:
    """After each prefix of a word, the mask allows exactly the bytes that continue some word."""
    vocabulary = Vocabulary([bytes([byte]) for byte in range(256)])
    words = some_words()
    follows: dict[bytes, set[int]] = {}
    for word in words:
        for end in range(len(word)):
            follows.setdefault(word[:end], set()).add(word[end])
    matcher = compile(choice(*(literal(word) for word in words)), vocabulary).matcher()
    mask = np.zeros((1, 8), dtype=np.int32)
    for start in random.Random(8).sample(sorted(follows), 4_000):
        assert matcher.accept_bytes(start) == len(start)
        matcher.fill_mask(mask)
        assert set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))) == follows[start]
        matcher.reset()
