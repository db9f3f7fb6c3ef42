"""Trees that grow where they are most likely to be taken, and are judged by the tokens that came."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree

if TYPE_CHECKING:
    from structgen.decode.speculative.calibration import Calibration

__all__ = ["Guess", "GuessTree", "nothing"]

_LEAST_REACH: Final = 0.004
_POPS: Final = 4
"""Guesses that are looked at for each that has room: several may be the same."""


class Guess(NamedTuple):
    """A token that may come.

    Attributes:
        token: its id.
        key: the kind of the guess, for the calibration.
        prior: how likely it is before anything was learned of that kind, in (0, 1).
        then: what may come after it; called only where the guess became part of the tree.
    """

    token: int
    key: Hashable
    prior: float
    then: Callable[[], Iterable[Guess]]


def nothing() -> tuple[Guess, ...]:
    """What comes after a guess that nothing follows."""
    return ()


@final
class GuessTree:
    """A tree of chosen tokens: of all guesses, those with the largest estimated probability to be taken.

    Each turn adds the guess of largest reach, the product of the confidences down to it, and asks what may come after
    it.  This is the tree of largest expected number of taken tokens among those of this size, as far as the confidences
    are right (J. Wang et al., "OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure", 2024, arXiv
    2406.17276).  The cost is that of the guesses, and ``O(log n)`` for each.

    Args:
        calibration: says how likely a guess is, and learns whether it was taken.
        budget: the most nodes.
    """

    __slots__ = ("_budget", "_calibration", "_keys", "_start", "tree")

    def __init__(self, calibration: Calibration, budget: int) -> None:
        self.tree = DraftTree()
        self._calibration = calibration
        self._budget = budget
        self._keys: list[list[Hashable]] = []
        self._start = 0

    def grow(self, start: int, guesses: Iterable[Guess]) -> DraftTree:
        """Make the tree.

        Args:
            start: how many tokens stand before it.
            guesses: what may come first.
        """
        self._start = start
        order = count()
        waiting: list[tuple[float, int, int, float, Guess]] = []

        def push(parent: int, reach: float, found: Iterable[Guess]) -> None:
            for guess in found:
                confidence = self._calibration.probability(guess.key, guess.prior)
                if reach * confidence >= _LEAST_REACH:
                    heapq.heappush(waiting, (-reach * confidence, next(order), parent, confidence, guess))

        push(ROOT, 1.0, guesses)
        for _ in range(_POPS * self._budget):
            if not waiting or len(self.tree) >= self._budget:
                break
            negative, _, parent, confidence, guess = heapq.heappop(waiting)
            node = self.tree.add(parent, guess.token, confidence)
            if node == len(self._keys):
                self._keys.append([guess.key])
            elif guess.key not in self._keys[node]:
                self._keys[node].append(guess.key)
            push(node, -negative, guess.then())
        self._share()
        return self.tree

    def settle(self, tokens: Sequence[int]) -> None:
        """Tell the calibration which guesses were taken.

        A guess is judged once its parent was taken and the token behind that is known, whether a forward pass looked at
        it or not.

        Args:
            tokens: the prompt and the output so far; where tokens were taken back, nothing is learned.
        """
        parent = ROOT
        outcomes: list[tuple[Hashable, bool]] = []
        for token in tokens[self._start :]:
            taken = None
            for node in self.tree.children(parent):
                if self.tree.tokens[node] == token:
                    taken = node
                outcomes += [(key, node == taken) for key in self._keys[node]]
            if taken is None:
                break
            parent = taken
        self._calibration.record_all(outcomes)

    def _share(self) -> None:
        """Only one of several siblings can be taken: scale confidences whose sum exceeds 1."""
        totals: defaultdict[int, float] = defaultdict(float)
        confidences = self.tree.confidences
        for parent, confidence in zip(self.tree.parents, confidences, strict=True):
            totals[parent] += confidence
        for node, parent in enumerate(self.tree.parents):
            if totals[parent] > 1:
                confidences[node] /= totals[parent]
