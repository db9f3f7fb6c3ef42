"""The drafter protocol, and the guard that drops a drafter that fails."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.step.logits_row import LogitsRows
from structgen.errors import DraftWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.decode.step.sampler import Sampler
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import Logits

__all__ = ["DraftState", "DraftTask", "Drafter", "Drafting", "GuardedDrafting", "Verified", "check_tree"]


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
        start: how many tokens the context had; the first row is the distribution of the next one.
        tree: what was looked at after them; empty where nothing was.
        logits: ``1 + len(tree)`` rows: after the context, and after each node.
    """

    start: int
    tree: DraftTree
    logits: LogitsRows | Logits

    @cached_property
    def told(self) -> LogitsRows:
        """The logits, wherever they are: to ask for a few numbers of them."""
        return self.logits if isinstance(self.logits, LogitsRows) else LogitsRows(self.logits)

    @cached_property
    def rows(self) -> Logits:
        """The logits as an array, ``[1 + len(tree), V]``; a row that was not run is NaN."""
        return self.told.on_host()


class Drafting(ABC):
    """Draft tokens for one output.

    It may keep what it likes between calls: that a draft token is wrong costs time and never changes the output.  It is
      used
    by one thread at a time; what it shares with others, it has to lock.
    """

    @abstractmethod
    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """Return tokens that may come next.

        Nodes that the grammar refuses are cut by the caller, with what follows them, and tokens that it forces after a
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
    """A way to draft: a value that any number of outputs may use, at the same time and one after the other."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What statistics and messages call it."""

    @abstractmethod
    def start(self, context: Context, task: DraftTask) -> Drafting:
        """Begin to draft for an output.

        Args:
            context: holds the prompt, and what stands of the output already.
            task: the output.

        Raises:
            StructgenError: it cannot draft for this model or vocabulary; the output is then written without it.
        """


_FRAMES: Final = 3
_ROUNDING: Final = 1e-3
"""Distributions sum to 1, and confidences are at most 1, up to so much."""


@final
class GuardedDrafting(Drafting):
    """The draft tokens of a drafter, none any more after it raised an exception or drafted what is no token.

    Args:
        drafter: what draft tokens.
        context: see ``Drafter.start``.
        task: see ``Drafter.start``.
    """

    def __init__(self, drafter: Drafter, context: Context, task: DraftTask) -> None:
        self.name = drafter.name
        self._size = task.constraint.vocabulary.size
        self._drafting: Drafting | None = None
        self._failed = task.failed
        self._is_dropped = self.name in task.failed
        if self._is_dropped:
            return
        try:
            self._drafting = drafter.start(context, task)
        except Exception as error:  # whatever it is, the output does not need it
            self._drop(error)

    @property
    def is_dropped(self) -> bool:
        """Whether it failed."""
        return self._is_dropped

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``; an empty tree once it failed."""
        if self._drafting is None:
            return DraftTree()
        try:
            tree = self._drafting.propose(context, state, budget)
            check_tree(tree, self._size)
        except Exception as error:
            self._drop(error)
            return DraftTree()
        return tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        if self._drafting is not None:
            try:
                self._drafting.observe(verified)
            except Exception as error:
                self._drop(error)

    def close(self) -> None:
        """See ``Drafting.close``."""
        drafting, self._drafting = self._drafting, None
        if drafting is not None:
            try:
                drafting.close()
            except Exception as error:
                self._warn(error)

    def _drop(self, error: Exception) -> None:
        drafting, self._drafting = self._drafting, None
        self._warn(error)
        if drafting is not None:
            try:
                drafting.close()
            except Exception as second:
                self._warn(second)

    def _warn(self, error: Exception) -> None:
        self._is_dropped = True
        self._failed.add(self.name)
        warnings.warn(
            f"drafter {self.name!r}: it failed and is not asked any more; {type(error).__name__}: {error}; "
            "the output is not affected",
            DraftWarning,
            stacklevel=_FRAMES,
        )


def check_tree(tree: Any, size: int) -> None:
    """Refuse what is no tree of tokens, however it came about.

    Args:
        tree: what a drafter proposed.
        size: of the vocabulary.

    Raises:
        TypeError: it is something else, or a token or a parent is no integer.
        ValueError: a number is out of range, or the lists do not belong together.

    Complexity: O(n), and O(size) for each node with drawn children.
    """
    if not isinstance(tree, DraftTree):
        raise TypeError(f"it proposed a {type(tree).__name__}; expected a DraftTree")
    count = len(tree.tokens)
    if not count == len(tree.parents) == len(tree.confidences) == len(tree.sources):
        raise ValueError(
            f"it proposed {count} tokens with {len(tree.parents)} parents, {len(tree.confidences)} confidences and "
            f"{len(tree.sources)} sources"
        )
    for node, (token, parent, confidence) in enumerate(zip(tree.tokens, tree.parents, tree.confidences, strict=True)):
        _check_token(token, size, node)
        if not isinstance(parent, int):
            raise TypeError(f"it proposed a parent {parent!r} at node {node}; expected an integer")
        if not ROOT <= parent < node:
            raise ValueError(f"it proposed node {node} after node {parent}; a parent stands before its child")
        if tree.child(parent, token) != node:
            raise ValueError(f"it proposed node {node} with token {token}, which was not added after node {parent}")
        if not 0 <= confidence <= 1 + _ROUNDING:
            raise ValueError(f"it proposed a confidence of {confidence!r} at node {node}; expected one in [0, 1]")
    for parent, drawn in tree.drawn.items():
        if not ROOT <= parent < count:
            raise ValueError(f"it proposed children that were drawn after node {parent}, which is not there")
        _check_sampled(drawn, size, parent)


def _check_sampled(drawn: SampledChildren, size: int, parent: int) -> None:
    for token in drawn.tokens:
        _check_token(token, size, parent)
    distribution = drawn.distribution
    if not isinstance(distribution, np.ndarray) or distribution.shape != (size,):
        raise ValueError(
            f"it drew after node {parent} from {distribution!r:.60}; expected a distribution of {size} tokens"
        )
    if not (distribution.min() >= 0 and abs(distribution.sum() - 1) <= _ROUNDING):
        raise ValueError(
            f"it sampled after node {parent} from an invalid distribution: its minimum is {distribution.min()}, "
            f"its sum {distribution.sum()}"
        )


def _check_token(token: object, size: int, node: int) -> None:
    if not isinstance(token, int | np.integer):
        raise TypeError(f"it proposed {token!r:.40} at node {node}; expected a token id")
    if not 0 <= token < size:
        raise ValueError(f"it proposed token {token} at node {node}; ids run from 0 to {size - 1}")
