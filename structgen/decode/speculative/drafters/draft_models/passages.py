"""Which parts of a long prompt matter for what comes next, by the words that they share with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["relevance"]

_K1: Final = 1.5
_B: Final = 0.75
_WORD: Final = 1 << 31


def relevance(chunks: Sequence[Sequence[int]], question: Sequence[int]) -> list[float]:
    """Score chunks of tokens by the tokens and pairs of tokens that they share with a question.

    BM25 with tokens and pairs as terms, ``k1 = 1.5`` and ``b = 0.75``; each term of the question counts once.

    Source: S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).

    Args:
        chunks: token ids of each.
        question: token ids.

    Returns:
        For each chunk a score of at least 0; 0 where nothing is shared.

    Complexity: O(n log n) for n tokens.
    """
    if not chunks:
        return []
    wanted = np.unique(_terms(question))
    counts = np.zeros((len(chunks), len(wanted)))
    lengths = np.zeros(len(chunks))
    for index, chunk in enumerate(chunks):
        terms, times = np.unique(_terms(chunk), return_counts=True)
        lengths[index] = len(chunk)
        at = np.searchsorted(wanted, terms)
        inside = at < len(wanted)
        inside[inside] = wanted[at[inside]] == terms[inside]
        counts[index, at[inside]] = times[inside]
    holding = (counts > 0).sum(axis=0)
    rarity = np.log1p((len(chunks) - holding + 0.5) / (holding + 0.5))
    norm = _K1 * (1 - _B + _B * lengths / max(float(lengths.mean()), 1.0))
    scores = counts * (_K1 + 1) / (counts + norm[:, None]) @ rarity
    return [float(score) for score in scores]


def _terms(tokens: Sequence[int]) -> NDArray[np.int64]:
    """A number for each token and each pair of neighbours."""
    ids = np.asarray(tokens, dtype=np.int64)
    return np.concatenate((ids, (ids[:-1] + 1) * _WORD + ids[1:]))
