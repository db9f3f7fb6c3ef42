"""Random walks under the masks of a constraint."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from structgen.engine import Constraint, Vocabulary

__all__ = ["sampled", "walk"]


Pick: TypeAlias = Callable[[np.ndarray, Vocabulary, random.Random], int]


def walk(constraint: Constraint, rng: random.Random, spare: int, pick: Pick | None = None) -> bytes:
    """Take random allowed tokens until EOS, within ``spare`` tokens over the shortest string; return the text.

    ``pick`` chooses among the allowed tokens; the default is :func:`sampled`.
    """
    vocabulary = constraint.vocabulary
    words = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    matcher = constraint.matcher()
    taken: list[int] = []
    left = matcher.min_tokens() + spare
    while True:
        if matcher.needs_budget_mask(left):
            matcher.fill_mask_within(words, 0, left)
        else:
            matcher.fill_mask(words)
        allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
        assert allowed.size, f"dead end after {vocabulary.decode(taken)!r}"
        token = (pick or sampled)(allowed, vocabulary, rng)
        assert matcher.accept(token)
        if matcher.is_terminated:
            return vocabulary.decode(taken)
        taken.append(token)
        left -= 1


def sampled(allowed: np.ndarray, vocabulary: Vocabulary, rng: random.Random) -> int:
    """One of the allowed tokens; half of the time a token that is no word is preferred.

    So strings end and structure occurs.
    """
    token = int(allowed[rng.randrange(allowed.size)])
    if rng.random() < 0.5:
        tries = (int(allowed[rng.randrange(allowed.size)]) for _ in range(20))
        texts = vocabulary.tokens
        return next((one for one in (token, *tries) if not texts[one].decode("latin-1").isalnum()), token)
    return token
