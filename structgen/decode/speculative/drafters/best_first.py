"""Best-first draft trees, and the drafting that grows them and learns which of their tokens were accepted."""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting

if TYPE_CHECKING:
    from structgen.decode.speculative.acceptance import Calibration
    from structgen.decode.speculative.drafter import DraftState, DraftTask
    from structgen.decode.step.context import Context

__all__ = ["CandidateTree", "DraftCandidate", "FollowingDrafting", "no_candidates"]

_MIN_ACCEPTANCE: Final = 0.004
_POPS: Final = 4
"""Guesses that are looked at for each that has room: several may be the same."""


class DraftCandidate(NamedTuple):
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
    then: Callable[[], Iterable[DraftCandidate]]


def no_candidates() -> tuple[DraftCandidate, ...]:
    """What comes after a guess that nothing follows."""
    return ()


@final
class CandidateTree:
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

    def grow(self, start: int, guesses: Iterable[DraftCandidate]) -> DraftTree:
        """Make the tree.

        Args:
            start: how many tokens stand before it.
            guesses: what may come first.
        """
        self._start = start
        order = count()
        waiting: list[tuple[float, int, int, float, DraftCandidate]] = []

        def push(parent: int, reach: float, found: Iterable[DraftCandidate]) -> None:
            for guess in found:
                confidence = self._calibration.probability(guess.key, guess.prior)
                if reach * confidence >= _MIN_ACCEPTANCE:
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


class FollowingDrafting(Drafting):
    """Keeps up with a context, also where tokens are taken back, and has its guesses judged by what came.

    Args:
        context: the prompt, and what stands of the output.
        task: the output.
        calibration: of the confidences.
    """

    def __init__(self, context: Context, task: DraftTask, calibration: Calibration) -> None:
        self._context = context
        self._task = task
        self._calibration = calibration
        self._seen: tuple[int, ...] = ()
        self._last: CandidateTree | None = None

    @property
    def tokens(self) -> Sequence[int]:
        """The prompt and the output, as of the last proposal."""
        return self._seen

    @property
    def output(self) -> Sequence[int]:
        """The output, as of the last proposal."""
        return self._seen[self._task.prompt_tokens :]

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._follow(context)
        guessed = CandidateTree(self._calibration, max(budget, 0))
        tree = guessed.grow(len(self._seen), self.guesses(state) if budget > 0 else ())
        self._last = guessed
        return tree

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._follow(self._context)

    @abstractmethod
    def guesses(self, state: DraftState) -> Iterable[DraftCandidate]:
        """What may come next, after ``tokens``."""

    def appended(self, tokens: Sequence[int]) -> None:
        """Learn that ``tokens`` have come, which are part of ``self.tokens`` already."""

    def truncated(self, length: int) -> None:
        """Learn that all tokens from position ``length`` on were taken back."""

    def _follow(self, context: Context) -> None:
        now = context.tokens
        if self._last is not None:
            self._last.settle(now)
            self._last = None
        seen = self._seen
        if now[: len(seen)] != seen:
            common = 0
            while common < min(len(now), len(seen)) and now[common] == seen[common]:
                common += 1
            self._seen = seen = now[:common]
            self.truncated(common)
        self._seen = now
        if len(now) > len(seen):
            self.appended(now[len(seen) :])
