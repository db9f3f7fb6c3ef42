"""Top-k with a k that each law gets for itself: sparse decoding by Bregman divergences.

The law that is drawn from is the sparsest one near the model's: it minimises a divergence from the model's law plus a
price for each token that it keeps,

    divergence + penalty * (number of tokens with positive probability)

over all laws.  The divergence belongs to ``phi(x) = x**alpha / (alpha (alpha - 1))``, which for ``alpha = 1`` is
``x log x``; with two laws it is D(q, p) = sum of phi(q_i) - phi(p_i) - phi'(p_i) (q_i - p_i).  The primal decoder minimises
D(q, p) over q, the dual one D(p, q), where p is the model's law.  ``alpha = 1`` gives Kullback-Leibler, whose outcome is
top-k with the usual renormalisation; ``alpha = 2`` is half the squared distance, where both decoders are the same.

Source: G. Noarov et al., "Foundations of Top-k Decoding for Language Models" (NeurIPS 2025, arXiv 2505.19371): the
    minimiser keeps the most probable tokens, and the cost is discretely convex in their number, so that a binary search
    finds it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampler import inverse_cdf

__all__ = ["BregmanTopK"]

_ROUNDS: Final = 200
_CLOSE: Final = 1e-14


@final
@dataclass(frozen=True, slots=True)
class BregmanTopK:
    """A token drawn from the sparse law next to the model's, as the module says.

    It acts after the mask, so that at least one allowed token is kept.  Of equally probable tokens at the edge those with
    the lowest ids are kept.

    Attributes:
        penalty: the price of a token.  For ``alpha = 1`` a token is kept where it adds more than the factor
            ``exp(penalty)`` to the probability of those before it.
        alpha: which divergence; positive.  Above 1 what the others lose goes to all kept tokens more evenly than in
            proportion, below 1 it goes to the probable ones.
        dual: whether the model's law is the first argument of the divergence; ``alpha`` must be above 1 then, since else
            whatever is not kept costs infinitely much.

    Raises:
        ValueError: a number is out of range.
    """

    penalty: float = 0.05
    alpha: float = 1.0
    dual: bool = False

    lossless: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.penalty) and self.penalty > 0):
            raise ValueError(f"BregmanTopK: penalty must be positive and finite; found {self.penalty!r}")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise ValueError(f"BregmanTopK: alpha must be positive and finite; found {self.alpha!r}")
        if self.dual and self.alpha <= 1:
            raise ValueError(
                f"BregmanTopK: the dual decoder needs an alpha above 1, since else dropping any token costs infinitely "
                f"much; found {self.alpha!r}"
            )

    def sparse(self, log_p: NDArray[np.float64]) -> NDArray[np.float64]:
        """The law that is drawn from, ``[n]``.

        Complexity: O(n log n), and O(log n) renormalisations of at most as many tokens as can pay for themselves.
        """
        p = np.exp(log_p)
        order = np.argsort(-p, kind="stable")
        ranked = p[order]
        ranked = ranked[: max(int(np.count_nonzero(ranked)), 1)] / ranked.sum()
        kept = _renormalised(self, ranked[: self._best_k(ranked)])
        law = np.zeros_like(p)
        law[order[: len(kept)]] = kept
        return law

    def cost(self, ranked: NDArray[np.float64], k: int) -> float:
        """What is minimised, where the first ``k`` of ``ranked`` probabilities, the largest first, are kept."""
        kept = ranked[:k]
        return _divergence(self, kept, _renormalised(self, kept), ranked[k:]) + self.penalty * k

    def draw(self, log_p: NDArray[np.float64], generator: np.random.Generator, /) -> int:
        """See ``Sampler.draw``."""
        return inverse_cdf(self.sparse(log_p), generator.random())

    def _best_k(self, ranked: NDArray[np.float64]) -> int:
        """The number of kept tokens, the smallest where several cost the same."""
        # The divergence is not negative, so no more can be kept than what keeping a single one costs pays for.
        most = min(len(ranked), max(1, math.floor(self.cost(ranked, 1) / self.penalty) + 1))
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self.cost(ranked, middle) <= self.cost(ranked, middle + 1):
                high = middle
            else:
                low = middle + 1
        return low
