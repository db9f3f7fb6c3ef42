"""Measured acceptance of draft tokens, and draft trees that are grown best first by it.

``Calibration`` measures by kind, ``RankRates`` by depth and rank; ``FollowingDrafting`` grows trees and learns which of
their tokens were accepted.
"""

from __future__ import annotations

import heapq
import threading
from abc import abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting

if TYPE_CHECKING:
    from structgen.decode.speculative.drafter import DraftState, DraftTask
    from structgen.decode.step.context import Context

__all__ = ["Calibration", "CandidateTree", "DraftCandidate", "FollowingDrafting", "RankRates", "no_candidates"]

_MAX_KEYS: Final = 4096


@final
class Calibration:
    """Estimates, for each kind of draft, the probability that a draft token of that kind is taken.

    A kind is whatever a drafter puts into a key: how long the match was, the rank among siblings, what sort of position
    it is.  The chance of a kind has a Beta distribution: its prior has the mean that the caller states and weighs as
      much as
    ``strength`` draft tokens, and every draft token whose outcome is known adds one count.  The estimate is the mean

        (strength * prior + taken) / (strength + taken + missed).

    Counts fade: beyond ``memory`` draft tokens of a kind, older ones weigh less, by the same factor at each new one, so
      that
    an estimate follows a target that changes.  The kinds that nobody recorded or asked for longest are forgotten beyond
    ``max_keys``.

    Threads may share one.  What it says depends on the order of the records alone.

    Args:
        prior: the mean before anything was recorded, for callers that state none; strictly between 0 and 1.
        strength: how many draft tokens the prior weighs as much as; positive.
        memory: how many draft tokens of a kind count at most; at least 1.
        max_keys: how many kinds are kept; at least 1.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> calibration = Calibration(strength=2)
        >>> calibration.probability("copy")
        0.5
        >>> calibration.record("copy", taken=True)
        >>> calibration.record("copy", taken=True)
        >>> calibration.probability("copy")
        0.75
        >>> calibration.probability("other", prior=0.1)
        0.1
    """

    def __init__(
        self, *, prior: float = 0.5, strength: float = 4.0, memory: float = 200.0, max_keys: int = _MAX_KEYS
    ) -> None:
        if not 0 < prior < 1:
            raise ValueError(f"Calibration: prior must lie between 0 and 1; found {prior!r}")
        if not strength > 0:
            raise ValueError(f"Calibration: strength must be positive; found {strength!r}")
        if not memory >= 1:
            raise ValueError(f"Calibration: memory must be at least 1; found {memory!r}")
        if max_keys < 1:
            raise ValueError(f"Calibration: max_keys must be at least 1; found {max_keys!r}")
        self._prior = prior
        self._strength = strength
        self._memory = memory
        self._max_keys = max_keys
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # taken, missed
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def probability(self, key: Hashable, prior: float | None = None) -> float:
        """The estimated probability that a draft token of this kind is taken, strictly between 0 and 1.

        Args:
            key: the kind.
            prior: the mean before anything was recorded of it, strictly between 0 and 1; None takes that of the
                calibration.
        """
        mean = self._prior if prior is None else prior
        with self._lock:
            counts = self._counts.get(key)
            if counts is None:
                return mean
            self._counts.move_to_end(key)
        taken, missed = counts
        return (self._strength * mean + taken) / (self._strength + taken + missed)

    def record(self, key: Hashable, *, taken: bool) -> None:
        """Note that a draft token of this kind was taken, or was not although its parent was."""
        with self._lock:
            self._record(key, taken)

    def record_all(self, outcomes: Iterable[tuple[Hashable, bool]]) -> None:
        """Note several draft tokens, as pairs of a kind and whether it was taken, in their order."""
        with self._lock:
            for key, taken in outcomes:
                self._record(key, taken)

    def count(self, key: Hashable) -> float:
        """How many draft tokens of this kind the estimate rests on, besides the prior; at most ``memory``."""
        with self._lock:
            return sum(self._counts.get(key, (0.0, 0.0)))

    def _record(self, key: Hashable, taken: bool) -> None:
        hits, misses = self._counts.get(key, (0.0, 0.0))
        if hits + misses + 1 > self._memory:
            fade = (self._memory - 1) / (hits + misses)
            hits, misses = hits * fade, misses * fade
        self._counts[key] = (hits + taken, misses + (not taken))
        self._counts.move_to_end(key)
        if len(self._counts) > self._max_keys:
            self._counts.popitem(last=False)

    def __repr__(self) -> str:
        return f"<Calibration of {len(self)} kinds>"


DEPTHS: Final = 4
"""Greater depths are taken for one."""

_STRENGTH: Final = 8.0
_MEMORY: Final = 1000.0


@final
class RankRates:
    """Estimated acceptance of draft tokens by their depth and their rank among the draft tokens for the same position.

    Threads may share one.

    Args:
        prior: the rate of each rank before anything was recorded, each strictly between 0 and 1; the last is that of
            all greater ranks too.

    Raises:
        ValueError: there are no rates, or one is out of range.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        if not prior or not all(0 < rate < 1 for rate in prior):
            raise ValueError(f"RankRates: expected rates between 0 and 1; found {prior!r}")
        self._prior = tuple(prior)
        self._calibration = Calibration(strength=_STRENGTH, memory=_MEMORY)

    def rate(self, depth: int, rank: int) -> float:
        """The acceptance rate of draft tokens by depth (from 0) and rank, given their parent."""
        prior = self._prior[min(rank, len(self._prior) - 1)]
        return self._calibration.probability((min(depth, DEPTHS - 1), rank), prior)

    def rates(self, ranks: int) -> list[list[float]]:
        """The rates of the first ``ranks`` ranks by depth, as ``RankTree.of_rates`` takes them."""
        return [[self.rate(depth, rank) for rank in range(ranks)] for depth in range(DEPTHS)]

    def learn(self, outcomes: Iterable[tuple[int, int, bool]]) -> None:
        """Note draft tokens whose parent came: their depth, their rank, and whether they came."""
        self._calibration.record_all(((min(depth, DEPTHS - 1), rank), taken) for depth, rank, taken in outcomes)


_MIN_ACCEPTANCE: Final = 0.004
_POPS: Final = 4
"""Draft tokens that are looked at for each that has room: several may be the same."""


class DraftCandidate(NamedTuple):
    """A token that may come.

    Attributes:
        token: its id.
        key: the kind of the draft token, for the calibration.
        prior: how likely it is before anything was learned of that kind, in (0, 1).
        then: what may come after it; called only where the draft token became part of the tree.
    """

    token: int
    key: Hashable
    prior: float
    then: Callable[[], Iterable[DraftCandidate]]


def no_candidates() -> tuple[DraftCandidate, ...]:
    """What comes after a draft token that nothing follows."""
    return ()


@final
class CandidateTree:
    """A tree of chosen tokens: of all draft tokens, those with the largest estimated probability to be taken.

    Each turn adds the draft token of largest reach, the product of the confidences down to it, and asks what may come
    after it.  This is the tree of largest expected number of taken tokens among those of this size, as far as the
    confidences are right (J. Wang et al., "OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure", 2024,
    arXiv 2406.17276).  The cost is that of the draft tokens, and ``O(log n)`` for each.

    Args:
        calibration: says how likely a draft token is, and learns whether it was taken.
        budget: the most nodes.
    """

    __slots__ = ("_budget", "_calibration", "_keys", "_start", "tree")

    def __init__(self, calibration: Calibration, budget: int) -> None:
        self.tree = DraftTree()
        self._calibration = calibration
        self._budget = budget
        self._keys: list[list[Hashable]] = []
        self._start = 0

    def grow(self, start: int, drafts: Iterable[DraftCandidate]) -> DraftTree:
        """Make the tree.

        Args:
            start: how many tokens stand before it.
            drafts: what may come first.
        """
        self._start = start
        order = count()
        waiting: list[tuple[float, int, int, float, DraftCandidate]] = []

        def push(parent: int, reach: float, found: Iterable[DraftCandidate]) -> None:
            for draft in found:
                confidence = self._calibration.probability(draft.key, draft.prior)
                if reach * confidence >= _MIN_ACCEPTANCE:
                    heapq.heappush(waiting, (-reach * confidence, next(order), parent, confidence, draft))

        push(ROOT, 1.0, drafts)
        for _ in range(_POPS * self._budget):
            if not waiting or len(self.tree) >= self._budget:
                break
            negative, _, parent, confidence, draft = heapq.heappop(waiting)
            node = self.tree.add(parent, draft.token, confidence)
            if node == len(self._keys):
                self._keys.append([draft.key])
            elif draft.key not in self._keys[node]:
                self._keys[node].append(draft.key)
            push(node, -negative, draft.then())
        self._share()
        return self.tree

    def settle(self, tokens: Sequence[int]) -> None:
        """Tell the calibration which draft tokens were taken.

        A draft is judged once its parent was taken and the token after that is known, whether a forward pass looked at
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
    """Keeps up with a context, also where tokens are taken back, and has its draft tokens judged by what came.

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
        drafted = CandidateTree(self._calibration, max(budget, 0))
        tree = drafted.grow(len(self._seen), self.drafts(state) if budget > 0 else ())
        self._last = drafted
        return tree

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._follow(self._context)

    @abstractmethod
    def drafts(self, state: DraftState) -> Iterable[DraftCandidate]:
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
