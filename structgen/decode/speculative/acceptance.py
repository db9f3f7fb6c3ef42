"""Measured acceptance of draft tokens, and draft trees that are grown best first by it.

``Calibration`` measures by kind, ``RankRates`` by depth and rank; ``FollowingDrafting`` grows trees and learns which of
their tokens were right.
"""

from __future__ import annotations

import heapq
import threading
from abc import abstractmethod
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, final

from structgen.cache import Locked
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting, DraftState, DraftTask
from structgen.decode.step.context import shared_length

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = [
    "Calibration",
    "CandidateTree",
    "DraftCandidate",
    "FollowingDrafting",
    "RankRates",
    "as_prior",
    "check_estimate",
    "no_candidates",
]

_MAX_KEYS: Final = 4096


def check_estimate(name: str, strength: float, memory: float, **priors: float) -> None:
    """Check the settings of an estimate of acceptance probabilities; ``name`` is its class.

    Raises:
        ValueError: a prior is not strictly between 0 and 1, ``strength`` is not positive, or ``memory`` is below 1.
    """
    for setting, prior in priors.items():
        if not 0 < prior < 1:
            raise ValueError(f"{name}: {setting} must lie between 0 and 1; found {prior!r}")
    if not strength > 0:
        raise ValueError(f"{name}: strength must be positive; found {strength!r}")
    if not memory >= 1:
        raise ValueError(f"{name}: memory must be at least 1; found {memory!r}")


@final
class Calibration(Locked):
    """Estimates the acceptance probability of draft tokens by their kind.

    A kind is any key that a drafter chooses: the length of a match, the rank among siblings, the kind of position.  The
    acceptance probability of a kind has a Beta prior with the weight of ``strength`` draft tokens, and every known
    outcome adds one count.  The estimate is the posterior mean

        (strength * prior + taken) / (strength + taken + missed).

    Counts fade: beyond ``memory`` draft tokens of a kind, each new one scales the older counts down, so the estimate
    follows a target that changes.  Beyond ``max_keys`` kinds, the least recently used one is dropped.

    Threads may share one.  The estimates depend only on the order of the records.

    Args:
        prior: the prior mean if the caller gives none; strictly between 0 and 1.
        strength: the weight of the prior in draft tokens; positive.
        memory: the largest number of draft tokens of a kind that count; at least 1.
        max_keys: the largest number of kinds; at least 1.

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
        check_estimate("Calibration", strength, memory, prior=prior)
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
        """Return the estimated acceptance probability of this kind, strictly between 0 and 1.

        Args:
            key: the kind.
            prior: the prior mean of the kind, strictly between 0 and 1; None takes the prior of the calibration.
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
        """Record whether a draft token of this kind was accepted, given that its parent was."""
        with self._lock:
            self._record(key, taken=taken)

    def record_all(self, outcomes: Iterable[tuple[Hashable, bool]]) -> None:
        """Record several draft tokens in order, as pairs of a kind and whether it was accepted."""
        with self._lock:
            for key, taken in outcomes:
                self._record(key, taken=taken)

    def count(self, key: Hashable) -> float:
        """Return how many draft tokens of this kind were counted, at most ``memory``; the prior is left out."""
        with self._lock:
            return sum(self._counts.get(key, (0.0, 0.0)))

    def _record(self, key: Hashable, *, taken: bool) -> None:
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


def as_prior(confidence: float) -> float:
    """Return a confidence as a prior mean, which must not be 0 or 1."""
    return min(max(confidence, 0.01), 0.99)


DEPTHS: Final = 4
"""Greater depths count as the last of these."""

_STRENGTH: Final = 8.0
_MEMORY: Final = 1000.0


@final
class RankRates:
    """Estimated acceptance of draft tokens by depth and by rank among their siblings.

    Threads may share one.

    Args:
        prior: the prior rate of each rank, each strictly between 0 and 1; the last holds for all greater ranks.

    Raises:
        ValueError: there are no rates, or one is out of range.
    """

    def __init__(self, prior: Sequence[float]) -> None:
        if not prior or not all(0 < rate < 1 for rate in prior):
            raise ValueError(f"RankRates: expected rates between 0 and 1; found {prior!r}")
        self._prior = tuple(prior)
        self._calibration = Calibration(strength=_STRENGTH, memory=_MEMORY)

    def rate(self, depth: int, rank: int) -> float:
        """Return the acceptance rate at a depth (from 0) and rank, given that the parent is accepted."""
        prior = self._prior[min(rank, len(self._prior) - 1)]
        return self._calibration.probability((min(depth, DEPTHS - 1), rank), prior)

    def rates(self, ranks: int) -> list[list[float]]:
        """Return the rates of the first ``ranks`` ranks by depth, as ``RankTree.of_rates`` takes them."""
        return [[self.rate(depth, rank) for rank in range(ranks)] for depth in range(DEPTHS)]

    def learn(self, outcomes: Iterable[tuple[int, int, bool]]) -> None:
        """Record draft tokens with an accepted parent: depth, rank, and whether they were accepted."""
        self._calibration.record_all(((min(depth, DEPTHS - 1), rank), taken) for depth, rank, taken in outcomes)


_MIN_ACCEPTANCE: Final = 0.004
_POPS: Final = 4
"""Candidates that are popped for each node of the budget: several may be the same token."""


class DraftCandidate(NamedTuple):
    """A candidate for a draft token.

    Attributes:
        token: its id.
        key: its kind, for the calibration.
        prior: the prior mean of that kind, in (0, 1).
        then: returns the candidates after it; called only if the candidate became a node.
    """

    token: int
    key: Hashable
    prior: float
    then: Callable[[], Iterable[DraftCandidate]]


def no_candidates() -> tuple[DraftCandidate, ...]:
    """Return no candidates: the end of a draft."""
    return ()


@final
class CandidateTree:
    """A tree of the candidates with the largest estimated probability to be accepted.

    Each step adds the candidate of largest reach, the product of the confidences on its path, and requests the
    candidates after it.  If the confidences are right, no tree of this size has a larger expected number of accepted
    tokens (J. Wang et al., "OPT-Tree: Speculative Decoding with Adaptive Draft Tree Structure", 2024, arXiv
    2406.17276).

    Args:
        calibration: estimates the confidences, and learns which draft tokens were right.
        budget: the largest number of nodes.
        least: nothing is drafted after a candidate of less reach.  Such candidates cannot pay, but candidates for the
            first token stay, since what becomes of them is learned.

    Complexity: O(log n) for each candidate.
    """

    __slots__ = ("_budget", "_calibration", "_keys", "_least", "_start", "tree")

    def __init__(self, calibration: Calibration, budget: int, least: float = 0.0) -> None:
        self.tree = DraftTree()
        self._least = least
        self._calibration = calibration
        self._budget = budget
        self._keys: list[list[Hashable]] = []
        self._start = 0

    def grow(self, start: int, drafts: Iterable[DraftCandidate]) -> DraftTree:
        """Grow the tree after ``start`` tokens, from the candidates for its first token."""
        self._start = start
        order = count()
        waiting: list[tuple[float, int, int, float, DraftCandidate]] = []

        def push(parent: int, reach: float, candidates: Iterable[DraftCandidate]) -> None:
            for draft in candidates:
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
            if -negative >= self._least:
                push(node, -negative, draft.then())
        self._share()
        return self.tree

    def settle(self, tokens: Sequence[int]) -> None:
        """Record which draft tokens were right; ``tokens`` are the prompt and the output so far.

        A draft token counts once its parent was accepted and the next token is known, whether a pass ran it or not.
        Nothing is learned from tokens that were taken back.
        """
        tree, came = self.tree, tokens[self._start :]
        for parent, token in zip((ROOT, *tree.follow(came)), came, strict=False):
            self._calibration.record_all(
                (key, tree.tokens[node] == token) for node in tree.children(parent) for key in self._keys[node]
            )

    def _share(self) -> None:
        """Scale the confidences of siblings whose sum exceeds 1: only one of them can be accepted."""
        totals: defaultdict[int, float] = defaultdict(float)
        confidences = self.tree.confidences
        for parent, confidence in zip(self.tree.parents, confidences, strict=True):
            totals[parent] += confidence
        for node, parent in enumerate(self.tree.parents):
            if totals[parent] > 1:
                confidences[node] /= totals[parent]


class FollowingDrafting(Drafting):
    """Follows a context, also if tokens are taken back, and learns which of its draft tokens were right."""

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
        drafted = CandidateTree(self._calibration, max(budget, 0), state.least)
        tree = drafted.grow(len(self._seen), self.drafts(state) if budget > 0 else ())
        self._last = drafted
        return tree

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._follow(self._context)

    @abstractmethod
    def drafts(self, state: DraftState) -> Iterable[DraftCandidate]:
        """Return the candidates for the token after ``tokens``."""

    def appended(self, tokens: Sequence[int]) -> None:
        """Handle new tokens, which are the end of ``self.tokens`` already."""

    def truncated(self, length: int) -> None:
        """Handle that all tokens from index ``length`` on were taken back."""

    def _follow(self, context: Context) -> None:
        now = context.tokens
        if self._last is not None:
            self._last.settle(now)
            self._last = None
        seen = self._seen
        if now[: len(seen)] != seen:
            common = shared_length(now, seen)
            self._seen = seen = now[:common]
            self.truncated(common)
        self._seen = now
        if len(now) > len(seen):
            self.appended(now[len(seen) :])
