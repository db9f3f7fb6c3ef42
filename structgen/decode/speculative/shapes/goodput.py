"""How deep to draft, from nothing upward, so that tokens come fastest."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.shapes.outcome import depths, shallower, taken
from structgen.decode.speculative.shapes.watch import Outcome, Watch

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["Goodput", "Survival"]

_MOST_KINDS: Final = 256


@final
class Survival:
    """For each kind of position, how deep drafts are right, and how many nodes they have down to each depth.

    Depths count guesses; forced tokens between them are no guesses.  Threads may share one.

    Args:
        most: the largest depth that is told apart.
        prior: the probability that one more guess is right, before anything is known; strictly between 0 and 1.
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

    def learn(self, outcome: Outcome) -> None:
        """Count a draft of which it is known what became of it; one without nodes is right at no depth."""
        tree = outcome.tree
        at = depths(tree)
        right = max((at[node] for node in taken(tree, outcome.came)), default=0)
        levels = np.arange(self.most + 1)
        nodes = np.searchsorted(np.sort(np.array(at, dtype=np.intp)), levels, side="right")
        with self._lock:
            if outcome.kind not in self._sums and len(self._sums) == _MOST_KINDS:
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
        drafter: what guesses.
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
        return _Controlled(self, self.cost or CostModel.assumed(context.model), context, task)

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
class _Controlled(Drafting):
    def __init__(self, goodput: Goodput, cost: CostModel, context: Context, task: DraftTask) -> None:
        self._goodput = goodput
        self._cost = cost
        self._drafting = goodput.drafter.start(context, task)
        self._watch = Watch()
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
        return shallower(tree, depth) if depth else DraftTree()

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        self._drafting.observe(verified)

    def close(self) -> None:
        """See ``Drafting.close``."""
        self._drafting.close()
