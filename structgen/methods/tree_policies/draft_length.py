"""The length of drafts: stopping rules, and drafters that limit the depth of another one (``Pearl``, ``Goodput``)."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.cache import Locked
from structgen.decode.speculative.acceptance import Calibration, as_prior, check_estimate
from structgen.decode.speculative.cost import CostModel, company_of
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.fixed_tree import Stop
from structgen.methods.tree_policies.draft_outcome import (
    DraftOutcome,
    PendingDrafts,
    cut_to_depth,
    draft_depths,
    visited_siblings,
)

if TYPE_CHECKING:
    from structgen.decode.speculative.tree_policy import DraftDistribution
    from structgen.decode.step.context import Context

__all__ = ["EntropyStop", "Goodput", "Pearl", "RejectionStop", "Survival"]

_MAX_KINDS: Final = 256


@final
class Survival(Locked):
    """For each kind of position, the acceptance of drafts by depth, and their number of nodes down to each depth.

    Depths count draft tokens, not forced tokens.  Threads may share one.

    Args:
        most: the largest depth.
        prior: the prior probability that one more draft token is right; strictly between 0 and 1.
        strength: the weight of the prior in drafts; positive.
        memory: the largest number of drafts of a kind that count; at least 1.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, *, most: int = 32, prior: float = 0.6, strength: float = 4.0, memory: float = 100.0) -> None:
        if most < 1:
            raise ValueError(f"Survival: most must be at least 1; found {most!r}")
        check_estimate("Survival", strength, memory, prior=prior)
        self.most = most
        self._strength = strength
        self._memory = memory
        levels = np.arange(most + 1)
        self._prior = np.stack((prior**levels, levels.astype(np.float64)))
        self._sums: dict[int, tuple[float, NDArray[np.float64]]] = {}  # by kind: drafts, and their sums [2, most + 1]
        self._lock = threading.Lock()

    def estimate(self, kind: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return for each depth from 0 the probability that a draft is right so deep, and its nodes down to there."""
        with self._lock:
            count, sums = self._sums.get(kind, (0.0, np.zeros_like(self._prior)))
        right, nodes = (self._strength * self._prior + sums) / (self._strength + count)
        return right, nodes

    def learn(self, outcome: DraftOutcome) -> None:
        """Count a draft with a known outcome; an empty draft is right at depth 0 only."""
        tree = outcome.tree
        at = draft_depths(tree)
        right = max((at[node] for node in tree.follow(outcome.came)), default=0)
        levels = np.arange(self.most + 1)
        nodes = np.searchsorted(np.sort(np.array(at, dtype=np.intp)), levels, side="right")
        with self._lock:
            if outcome.kind not in self._sums and len(self._sums) == _MAX_KINDS:
                del self._sums[next(iter(self._sums))]
            count, sums = self._sums.get(outcome.kind, (0.0, np.zeros_like(self._prior)))
            fade = min(1.0, self._memory / (count + 1))
            self._sums[outcome.kind] = ((count + 1) * fade, (sums + np.stack((levels <= right, nodes))) * fade)


@final
@dataclass(frozen=True)
class Goodput(Drafter):
    """Limits the drafts of another drafter to the depth that pays, possibly 0.

    With drafts cut at depth ``k``, a pass is expected to decide ``1 + sum(right[d] for d in 1..k)`` choices in the time
    of a pass over one row and the draft's nodes.  ``k`` is the depth with the most choices per time, for each kind of
    position.

    The outcome of a draft is known later without running it, so every draft updates the estimates of all depths.  Where
    no depth pays, the drafter still drafts every ``trial``-th time without a run, and is used again once it is right
    often enough.

    Source: X. Liu, C. Daniel, L. Hu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using
    Goodput" (2024, arXiv 2406.14066), for a batch of one; trials that are not run are new here.

    Attributes:
        drafter: the drafter to limit.
        cost: the cost of passes; None assumes that of the model.
        price: the cost of a draft, in passes over one row.
        trial: where no depth pays, one draft in ``trial`` is still made; at least 1.
        survival: the measured acceptance by depth; outputs that share it learn from each other.

    Raises:
        ValueError: a number is out of range.
    """

    drafter: Drafter
    cost: CostModel | None = None
    price: float = 0.0
    trial: int = 8
    survival: Survival = field(default_factory=Survival)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.price) and self.price >= 0):
            raise ValueError(f"Goodput: price must be finite and not negative; found {self.price!r}")
        if self.trial < 1:
            raise ValueError(f"Goodput: trial must be at least 1; found {self.trial!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return self.drafter.name

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _GoodputDrafting(self, self.cost or CostModel.assumed(context.model), context, task)

    def depth(self, kind: int, cost: CostModel) -> int:
        """Return the depth with the most choices per time for a kind of position; 0 drafts nothing."""
        right, nodes = self.survival.estimate(kind)
        choices = np.cumsum(right)  # depth 0 is the choice that the pass decides without drafts
        rows = 1 + nodes
        relatives = cost.relatives(math.ceil(rows[-1]) + 1)
        times = np.interp(rows, np.arange(len(relatives)), relatives) + self.price
        times[0] = 1.0
        return int((choices / times).argmax())


@final
class _GoodputDrafting(Drafting):
    def __init__(self, goodput: Goodput, cost: CostModel, context: Context, task: DraftTask) -> None:
        self._goodput = goodput
        self._cost = cost
        self._drafting = goodput.drafter.start(context, task)
        self._watch = PendingDrafts()
        self._left_out: dict[int, int] = {}  # by kind, the drafts left out since the last one

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        goodput = self._goodput
        for outcome in self._watch.settled(context):
            goodput.survival.learn(outcome)
        depth = goodput.depth(state.kind, self._cost.beside(company_of(context.model)))
        if not depth:
            waited = self._left_out.get(state.kind, 0) + 1
            self._left_out[state.kind] = waited % goodput.trial
            if waited < goodput.trial:
                return DraftTree()
        tree = self._drafting.propose(context, state, budget)
        self._watch.add(len(context), tree, state.kind)
        return cut_to_depth(tree, depth) if depth else DraftTree()

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._drafting.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._drafting.close()


@final
@dataclass(frozen=True, slots=True)
class Pearl(Drafter):
    """Cuts the drafts of another drafter to a length that follows the accepted lengths.

    After a draft that was accepted as a whole, the next one may be twice as long.  After a rejection, it is one longer
    than the mean accepted length of the last drafts.  Each kind of position has its own length.

    That is the adaptive length of PEARL: T. Liu, Y. Li, Q. Lv et al., "PEARL: Parallel Speculative Decoding with
    Adaptive Draft Length" (2024, arXiv 2408.11850).  Its other half, drafting and verifying in parallel, needs a second
    device and is not implemented.

    Attributes:
        drafter: the drafter to limit.
        least: the smallest length, in draft tokens on a path; at least 1, so that the length can grow again.
        most: the largest length.
        first: the length of the first draft.
        window: the number of drafts of the mean.

    Raises:
        ValueError: a number is out of range.
    """

    drafter: Drafter
    least: int = 1
    most: int = 32
    first: int = 4
    window: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.first <= self.most:
            raise ValueError(
                "Pearl: least, first and most must be at least 1 and ascend; "
                f"found {self.least!r}, {self.first!r} and {self.most!r}"
            )
        if self.window < 1:
            raise ValueError(f"Pearl: window must be at least 1; found {self.window!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return self.drafter.name

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _PearlDrafting(self, self.drafter.start(context, task))


@final
class _PearlDrafting(Drafting):
    def __init__(self, pearl: Pearl, drafting: Drafting) -> None:
        self._pearl = pearl
        self._drafting = drafting
        self._watch = PendingDrafts()
        self._lengths: dict[int, int] = {}
        self._right: dict[int, deque[int]] = {}

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        for tree, came, kind in self._watch.settled(context):
            self._adapt(tree, tree.follow(came), kind)
        length = self._lengths.get(state.kind, self._pearl.first)
        tree = cut_to_depth(self._drafting.propose(context, state, budget), length)
        if len(tree):
            self._watch.add(len(context), tree, state.kind)
        return tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._drafting.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._drafting.close()

    def _adapt(self, tree: DraftTree, nodes: list[int], kind: int) -> None:
        pearl = self._pearl
        at = draft_depths(tree)
        right = max((at[node] for node in nodes), default=0)
        recent = self._right.setdefault(kind, deque(maxlen=pearl.window))
        recent.append(right)
        whole = bool(nodes) and not tree.children(nodes[-1])
        length = self._lengths.get(kind, pearl.first)
        length = max(length, 2 * right) if whole else 1 + round(sum(recent) / len(recent))
        self._lengths[kind] = min(max(length, pearl.least), pearl.most)


_GRADES: Final = 8


@final
@dataclass(frozen=True, slots=True)
class EntropyStop(Stop):
    """Stops where the drafter itself is too uncertain about the next token.

    If the divergence of target and drafter is proportional to the drafter's entropy ``H``, Pinsker's inequality bounds
    the acceptance probability of a sampled token from below by ``1 - sqrt(scale * H)``; the draft ends where that is
    below ``least``.  Entropies are those of masked distributions.

    Source: Z. Zhang, J. Xu, T. Liang et al., "Draft Model Knows When to Stop" (2024, arXiv 2411.18462).

    Attributes:
        least: the smallest acceptance probability at which drafting continues, in [0, 1].
        scale: the divergence from the target per nat of entropy; positive.

    Raises:
        ValueError: a number is out of range.
    """

    least: float = 0.4
    scale: float = 0.25

    def __post_init__(self) -> None:
        if not 0 <= self.least <= 1:
            raise ValueError(f"EntropyStop: least must lie in [0, 1]; found {self.least!r}")
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ValueError(f"EntropyStop: scale must be positive and finite; found {self.scale!r}")

    def stops(self, distribution: DraftDistribution, confidences: Sequence[float], kind: int) -> bool:
        """See ``Stop.stops``."""
        return 1 - math.sqrt(self.scale * distribution.entropy()) < self.least


@final
@dataclass(frozen=True)
class RejectionStop(Stop):
    """Stops once it is too likely that one of the draft tokens so far is rejected.

    If each draft token is accepted with probability ``p``, at least one is rejected with probability ``1 - prod(p)``; a
    threshold on that is optimal for fixed costs of drafting and verification.  The original learns a head for ``p``;
    here it is the measured acceptance of draft tokens with about the same confidence at the same kind of position.

    Source: K. Huang, X. Guo, M. Wang, "SpecDec++" (2024, arXiv 2405.19715).

    Attributes:
        most: the largest probability of a rejection at which drafting continues, in [0, 1].
        calibration: measured acceptance of draft tokens; drafts that share it learn from each other.

    Raises:
        ValueError: ``most`` is out of range.
    """

    most: float = 0.7
    calibration: Calibration = field(default_factory=Calibration)

    def __post_init__(self) -> None:
        if not 0 <= self.most <= 1:
            raise ValueError(f"RejectionStop: most must lie in [0, 1]; found {self.most!r}")

    def stops(self, distribution: DraftDistribution, confidences: Sequence[float], kind: int) -> bool:
        """See ``Stop.stops``."""
        probabilities = (
            self.calibration.probability(_key(kind, confidence), as_prior(confidence)) for confidence in confidences
        )
        return 1 - math.prod(probabilities) > self.most

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """See ``Stop.learn``."""
        self.calibration.record_all(
            (_key(kind, tree.confidences[node]), node == accepted)
            for siblings, accepted in visited_siblings(tree, came)
            for node in siblings
        )


def _key(kind: int, confidence: float) -> tuple[int, int]:
    return kind, round(confidence * _GRADES)
