"""Random trees of tokens, and masks along them by the plain methods of a matcher."""

from __future__ import annotations

import random

import numpy as np

from structgen.engine import Matcher

__all__ = ["masks_along", "random_tree"]


def masks_along(matcher: Matcher, token_ids: list[int], parents: list[int]) -> tuple[list[bool], np.ndarray]:
    """Which tokens may come, and the masks ``[1 + n, ceil(V / 32)]`` that ``fill_mask_tree`` has to give.

    A fork of the matcher after the parent accepts each token.
    """
    words = (matcher.constraint.vocabulary.size + 31) // 32
    masks = np.zeros((1 + len(token_ids), words), dtype=np.int32)
    following: list[Matcher | None] = []
    matcher.fork().fill_mask(masks, 0)
    for node, (token, parent) in enumerate(zip(token_ids, parents, strict=True)):
        before = matcher if parent < 0 else following[parent]
        after = None if before is None else before.fork()
        if after is not None and after.accept(token):
            after.fill_mask(masks, 1 + node)
        else:
            after = None
        following.append(after)
    return [after is not None for after in following], masks


def random_tree(matcher: Matcher, rng: random.Random, size: int) -> tuple[list[int], list[int]]:
    """A tree of any shape; most of its tokens, among them the stop, are allowed, and some are arbitrary."""
    vocabulary = matcher.constraint.vocabulary
    row = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    tokens: list[int] = []
    parents: list[int] = []
    following: list[Matcher | None] = []
    for node in range(size):
        parent = node - 1 if rng.random() < 0.6 else rng.randrange(-1, node)
        before = matcher if parent < 0 else following[parent]
        token = rng.randrange(vocabulary.size)
        if before is not None and rng.random() < 0.85:
            before.fill_mask(row)
            allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
            if before.is_accepting and vocabulary.eos and rng.random() < 0.2:
                token = rng.choice(vocabulary.eos)
            elif allowed.size:
                token = int(allowed[rng.randrange(allowed.size)])
        after = None if before is None else before.fork()
        following.append(after if after is not None and after.accept(token) else None)
        tokens.append(token)
        parents.append(parent)
    return tokens, parents
