"""Guesses made of texts that went on after the same tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from structgen.decode.speculative.drafters.guessing.guess_tree import Guess

__all__ = ["Continuation", "guesses_of", "length_bucket"]

_PRIORS: Final = (0.1, 0.25, 0.5, 0.65, 0.75, 0.8, 0.85, 0.88, 0.9, 0.93, 0.95)
"""Of a copied token by how many tokens agree before it, from 0 on; the last stands for all above."""


class Continuation(NamedTuple):
    """What followed at one place.

    Attributes:
        tokens: what followed.
        length: how many tokens agreed before it.
    """

    tokens: Sequence[int]
    length: int


def length_bucket(length: int) -> int:
    """Lengths that fare alike: 0 to 8 one by one, then 9 to 16 and all above."""
    return length if length <= 8 else 9 if length <= 16 else 10


def guesses_of(continuations: Sequence[Continuation], kind: str, depth: int = 0) -> Iterable[Guess]:
    """The tokens that followed, each once, and behind them what followed there.

    A place counts by the square of the length that agrees, so that long matches outweigh many short ones; the share of
    a token among all places, and the length of the longest of its own, are its kind.

    Args:
        continuations: the longest match first.
        kind: of which source they are, the first part of the keys.
        depth: how many of their tokens the tree has already.
    """
    groups: dict[int, list[Continuation]] = {}
    weights: dict[int, int] = {}
    for each in continuations:
        if depth < len(each.tokens):
            token = each.tokens[depth]
            groups.setdefault(token, []).append(each)
            weights[token] = weights.get(token, 0) + (1 + each.length + depth) ** 2
    total = sum(weights.values())
    for token, group in groups.items():
        share = weights[token] / total
        bucket = length_bucket(max(each.length for each in group) + depth)
        prior = min(_PRIORS[bucket] * share, 0.98)
        yield Guess(
            token,
            (kind, bucket, round(4 * share)),
            max(prior, 0.01),
            lambda group=group: guesses_of(group, kind, depth + 1),  # type: ignore[misc]
        )
