"""How often the first, the second, the next child of a node is taken: measured as drafts go on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.shapes.outcome import visited

if TYPE_CHECKING:
    from structgen.decode.speculative.draft_tree import DraftTree

__all__ = ["RankAcceptance"]

_GRADES: Final = 64
_MOST_KINDS: Final = 256


@final
class RankAcceptance:
    """Estimates, for each kind of position, the probability that a child is taken, by its rank among its siblings.

    The estimates have a prior that halves from rank to rank, and fade: what lies more than ``memory`` nodes back weighs
    less and less.  A rank that no tree had stays at its prior, so it is tried once it looks worthwhile.

    Threads may share one; what it says depends on the order of what it learned.

    Args:
        ranks: how many ranks are told apart; children beyond are taken for impossible.
        first: the prior of the first rank, strictly between 0 and 1.
        strength: how many nodes the prior weighs as much as; positive.
        memory: how many nodes of a kind count at most; at least 1.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, *, ranks: int = 8, first: float = 0.6, strength: float = 4.0, memory: float = 200.0) -> None:
        if ranks < 1:
            raise ValueError(f"RankAcceptance: ranks must be at least 1; found {ranks!r}")
        if not 0 < first < 1:
            raise ValueError(f"RankAcceptance: first must lie between 0 and 1; found {first!r}")
        if not strength > 0:
            raise ValueError(f"RankAcceptance: strength must be positive; found {strength!r}")
        if not memory >= 1:
            raise ValueError(f"RankAcceptance: memory must be at least 1; found {memory!r}")
        self.ranks = ranks
        self._prior = first * (1 - first) ** np.arange(ranks)
        self._strength = strength
        self._memory = memory
        self._counts: dict[int, NDArray[np.float64]] = {}  # by kind: trials and hits, [2, ranks]
        self._lock = threading.Lock()

    def rates(self, kind: int) -> tuple[float, ...]:
        """For each rank the estimated probability that the child is taken if its parent was, in steps of 1/64.

        At most 1 together.
        """
        with self._lock:
            counts = self._counts.get(kind)
            trials, hits = (0.0, 0.0) if counts is None else counts.copy()
        rates = (self._strength * self._prior + hits) / (self._strength + trials)
        rates /= max(1.0, float(rates.sum()))
        return tuple((np.floor(rates * _GRADES) / _GRADES).tolist())

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """Count what became of a tree whose siblings stand in the order of their ranks (``Shape.learn``)."""
        trials, hits = np.zeros(self.ranks), np.zeros(self.ranks)
        for siblings, node in visited(tree, came):
            trials[: len(siblings)] += 1
            if node is not None and siblings.index(node) < self.ranks:
                hits[siblings.index(node)] += 1
        if not trials.any():
            return
        with self._lock:
            if kind not in self._counts and len(self._counts) == _MOST_KINDS:
                del self._counts[next(iter(self._counts))]
            counts = self._counts.setdefault(kind, np.zeros((2, self.ranks)))
            counts += (trials, hits)
            counts *= np.minimum(1.0, self._memory / np.maximum(counts[0], 1.0))

    def __repr__(self) -> str:
        return f"<RankAcceptance of {self.ranks} ranks, {len(self._counts)} kinds>"
