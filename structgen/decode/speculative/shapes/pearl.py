"""Drafts that are about as long as the last ones were right."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.shapes.outcome import depths, shallower, taken
from structgen.decode.speculative.shapes.watch import Watch

if TYPE_CHECKING:
    from structgen.decode.context import Context

__all__ = ["Pearl"]


@final
@dataclass(frozen=True, slots=True)
class Pearl(Drafter):
    """Another drafter, cut to a length that follows what was accepted.

    While all of a draft is accepted, drafting goes on: the next may be twice as long.  Once a guess is refused, the
    next is one longer than the mean of what the last ones were right.  Each kind of position has a length of its own.

    That is the adaptive length of PEARL: T. Liu, Y. Li, Q. Lv et al., "PEARL: Parallel Speculative Decoding with
    Adaptive Draft Length" (2024, arXiv 2408.11850), where the length is how many tokens are drafted until a refusal is
    known.  Its other half is not done: there the first guess is verified while the others are still drafted, and
    drafting goes on while the rest is verified, which needs a second device for the drafter.

    Attributes:
        drafter: what guesses.
        least: the shortest length, in guesses on the way to a node; at least 1, so that the length can grow again.
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
        return _Adaptive(self, self.drafter.start(context, task))


@final
class _Adaptive(Drafting):
    def __init__(self, pearl: Pearl, drafting: Drafting) -> None:
        self._pearl = pearl
        self._drafting = drafting
        self._watch = Watch()
        self._lengths: dict[int, int] = {}
        self._right: dict[int, deque[int]] = {}

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        for tree, came, kind in self._watch.settled(context):
            self._adapt(tree, taken(tree, came), kind)
        length = self._lengths.get(state.kind, self._pearl.first)
        tree = shallower(self._drafting.propose(context, state, budget), length)
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
        at = depths(tree)
        right = max((at[node] for node in nodes), default=0)
        recent = self._right.setdefault(kind, deque(maxlen=pearl.window))
        recent.append(right)
        whole = bool(nodes) and not tree.children(nodes[-1])
        length = self._lengths.get(kind, pearl.first)
        length = max(length, 2 * right) if whole else 1 + round(sum(recent) / len(recent))
        self._lengths[kind] = min(max(length, pearl.least), pearl.most)
