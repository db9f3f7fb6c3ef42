"""What guesses: a drafter proposes tokens that may come next, and a forward pass tells which of them do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, final

from structgen.decode.rows import Rows
from structgen.decode.speculative.draft_tree import DraftTree

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.decode.context import Context
    from structgen.decode.sampler import Sampler
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import Logits

__all__ = ["DraftState", "DraftTask", "Drafter", "Drafting", "Verified"]


@final
@dataclass(frozen=True)
class DraftTask:
    """The output that is drafted for.

    Attributes:
        constraint: what it is a member of.
        sampler: how its tokens are chosen.
        prompt_tokens: how many tokens of the context stand before it.
        generator: the drafter's own random numbers; those of the sampler are never touched by drafts, so that an output
            does not depend on them.
        failed: names of drafters that failed for this output; they are not begun again.
    """

    constraint: Constraint
    sampler: Sampler
    prompt_tokens: int
    generator: np.random.Generator
    failed: set[str] = field(default_factory=set)


@final
@dataclass(frozen=True)
class DraftState:
    """Where the output stands in its grammar.

    Attributes:
        matcher: the state; fork it to look ahead, do not move it.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]`` in the layout of ``Matcher.fill_mask``.
        remaining: tokens that are left of the budget.
        kind: of the position, as far as the mask tells it: equal for positions where drafts fare alike.
    """

    matcher: Matcher
    mask: NDArray[np.int32]
    remaining: int
    kind: int


@final
@dataclass(frozen=True)
class Verified:
    """What a forward pass told.

    Attributes:
        start: how many tokens the context had; the first row is the law of the next one.
        tree: what was looked at behind them; empty where nothing was.
        logits: ``1 + len(tree)`` rows: after the context, and after each node.
    """

    start: int
    tree: DraftTree
    logits: Rows | Logits

    @cached_property
    def told(self) -> Rows:
        """The logits, wherever they are: to ask for a few numbers of them."""
        return self.logits if isinstance(self.logits, Rows) else Rows(self.logits)

    @cached_property
    def rows(self) -> Logits:
        """The logits as an array, ``[1 + len(tree), V]``; a row that was not run is NaN."""
        return self.told.on_host()


class Drafting(ABC):
    """Guesses for one output.

    It may keep what it likes between calls: that a guess is wrong costs time and never changes the output.  It is used
    by one thread at a time; what it shares with others, it has to lock.
    """

    @abstractmethod
    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """Return tokens that may come next.

        Nodes that the grammar refuses are cut by the caller, with what follows them, and tokens that it forces behind a
        node are added there.

        Args:
            context: the prompt and the output so far; not to be changed.
            state: where the output stands in its grammar.
            budget: the most tokens that are of use.
        """

    def observe(self, verified: Verified) -> None:  # noqa: B027  optional
        """Learn from a forward pass; called after each, whether this drafter had a part in it or not."""

    def close(self) -> None:  # noqa: B027  optional
        """The output is complete: free what was kept for it, remember what is of use for others."""


class Drafter(ABC):
    """A way to guess: a value that any number of outputs may use, at the same time and one after the other."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What statistics and messages call it."""

    @abstractmethod
    def start(self, context: Context, task: DraftTask) -> Drafting:
        """Begin to guess for an output.

        Args:
            context: holds the prompt, and what stands of the output already.
            task: the output.

        Raises:
            StructgenError: it cannot guess for this model or vocabulary; the output is then written without it.
        """
