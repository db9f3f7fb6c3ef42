"""How long a draft is: rules that stop one, and drafters that set its length (``Pearl``, ``Goodput``)."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.fixed_tree import Stop
from structgen.methods.tree_policies.draft_outcome import (
    DraftOutcome,
    PendingDrafts,
    cut_to_depth,
    draft_depths,
    taken_nodes,
    visited_siblings,
)

if TYPE_CHECKING:
    from structgen.decode.speculative.tree_policy import DraftDistribution
    from structgen.decode.step.context import Context

__all__ = ["EntropyStop", "Goodput", "Pearl", "RejectionStop", "Survival"]

_MAX_KINDS: Final = 256


@final
class Survival:
    """For each kind of position, how deep drafts are right, and how many nodes they have down to each depth.

    Depths count draft tokens; forced tokens between them are no draft tokens.  Threads may share one.

    Args:
        most: the largest depth that is told apart.
        prior: the probability that one more draft is right, before anything is known; strictly between 0 and 1.
        strength: how many drafts the prior weighs as much as; positive.
        memory: how many drafts of a kind count at most; at least 1.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, *, most: int = 32, prior: float = 0.6, strength: float = 4.0, memory: float = 100.0) -> None:
        if most < 1:
            raise ValueError(f"Survival: most must be at least 1; found {most!r}")
        if not 0 < prior < 1:
            raise ValueError(f"Survival: prior must lie between 0 and 1; found {prior!r}")
        if not strength > 0:
            raise ValueError(f"Survival: strength must be positive; found {strength!r}")
        if not memory >= 1:
            raise ValueError(f"Survival: memory must be at least 1; found {memory!r}")
        self.most = most
        self._strength = strength
        self._memory = memory
        levels = np.arange(most + 1)
        self._prior = np.stack((prior**levels, levels.astype(np.float64)))
        self._sums: dict[int, tuple[float, NDArray[np.float64]]] = {}  # by kind: drafts, and their sums [2, most + 1]
        self._lock = threading.Lock()

    def estimate(self, kind: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For each depth from 0 on, the probability to be right so deep, and the nodes of a draft down to there."""
        with self._lock:
            count, sums = self._sums.get(kind, (0.0, np.zeros_like(self._prior)))
        right, nodes = (self._strength * self._prior + sums) / (self._strength + count)
        return right, nodes

    def learn(self, outcome: DraftOutcome) -> None:
        """Count a draft with a known result; one without nodes is right at no depth."""
        tree = outcome.tree
        at = draft_depths(tree)
        right = max((at[node] for node in taken_nodes(tree, outcome.came)), default=0)
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
    """Another drafter, as deep as it pays, down to not at all.

    With drafts cut at depth ``k``, a pass is expected to bring ``1 + sum(right[d] for d in 1..k)`` choices in the time
    of a pass over one row and the draft's nodes; ``k`` is that at which they come fastest, for each kind of position.

    What a draft would have brought is known later without running it.  So the estimates of all depths are kept up by
    every draft, however much of it was run, and where none pays the drafter is still asked every ``trial``-th time, and
    its draft compared with what came: it is taken up again once it is right often enough.

    Source: X. Liu, C. Daniel, L. Hu et al., "Optimizing Speculative Decoding for Serving Large Language Models Using
    Goodput" (2024, arXiv 2406.14066), for a batch of one; trials that are not run are ours.

    Attributes:
        drafter: what draft tokens.
        cost: of passes; None is what is assumed of the model.
        price: what a draft itself costs, in passes over one row.
        trial: how often the drafter is asked where it does not pay; at least 1.
        survival: what is known of drafts; outputs that share it learn from each other.

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
        """The depth at which tokens come fastest in a kind of position, as far as it is known; 0 is not to draft."""
        right, nodes = self.survival.estimate(kind)
        choices = np.cumsum(right)  # depth 0 is the choice that the pass tells in any case
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
        self._left_out: dict[int, int] = {}  # by kind, how often in a row nothing was asked

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        goodput = self._goodput
        for outcome in self._watch.settled(context):
            goodput.survival.learn(outcome)
        depth = goodput.depth(state.kind, self._cost)
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
    """Another drafter, cut to a length that follows what was accepted.

    While all of a draft is accepted, drafting goes on: the next may be twice as long.  Once a draft token is refused,
      the
    next is one longer than the mean of what the last ones were right.  Each kind of position has a length of its own.

    That is the adaptive length of PEARL: T. Liu, Y. Li, Q. Lv et al., "PEARL: Parallel Speculative Decoding with
    Adaptive Draft Length" (2024, arXiv 2408.11850), where the length is how many tokens are drafted until a refusal is
    known.  Its other half is not done: there the first draft token is verified while the others are still drafted, and
    drafting goes on while the rest is verified, which needs a second device for the drafter.

    Attributes:
        drafter: what draft tokens.
        least: the shortest length, in draft tokens on the way to a node; at least 1, so that the length can grow again.
        most: the longest.
        first: the length of the first draft.
        window: how many drafts the mean is over.

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
                "Pearl: least, first and most must be at least 1 and not fall; "
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
            self._adapt(tree, taken_nodes(tree, came), kind)
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
    """Stops where the next draft token is too uncertain for the drafter itself.

    Where target and drafter agree up to a cross entropy in proportion to the drafter's own entropy ``H``, Pinsker's
    inequality bounds the probability that a drawn draft is accepted from below by ``1 - sqrt(scale * H)``; the draft
    ends where that falls below ``least``.  Entropies are those of distributions to which the grammar was applied.

    Source: Z. Zhang, J. Xu, T. Liang et al., "Draft Model Knows When to Stop" (2024, arXiv 2411.18462).

    Attributes:
        least: the smallest acceptance that is worth a draft token, in [0, 1].
        scale: how the divergence from the target grows with the entropy, per nat; positive.

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
    """Stops once it is too likely that one of the draft tokens is refused already.

    With the probabilities ``p`` that each draft token is taken, one at least is refused with probability ``1 -
    prod(p)``; a threshold on that is the best rule where draft tokens and verification have fixed costs.  The original
    learns a head for ``p``; here it is how often draft tokens of the same grade of confidence came true, in the same
    kind of position.

    Source: K. Huang, X. Guo, M. Wang, "SpecDec++" (2024, arXiv 2405.19715).

    Attributes:
        most: the largest probability of a refusal at which a draft goes on, in [0, 1].
        calibration: what is known of draft tokens; drafts that share it learn from each other.

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
            self.calibration.probability(_key(kind, confidence), _inside(confidence)) for confidence in confidences
        )
        return 1 - math.prod(probabilities) > self.most

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """See ``Stop.learn``."""
        self.calibration.record_all(
            (_key(kind, tree.confidences[node]), node == next_one)
            for siblings, next_one in visited_siblings(tree, came)
            for node in siblings
        )


def _key(kind: int, confidence: float) -> tuple[int, int]:
    return kind, round(confidence * _GRADES)


def _inside(confidence: float) -> float:
    """The confidence as a prior, which is never certain."""
    return min(max(confidence, 0.01), 0.99)
