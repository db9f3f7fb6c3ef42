"""The drafter protocol, the guard that drops a drafter that fails, and positions at which drafters look ahead."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.step.logits_row import LogitsRows
from structgen.engine.mask import MaskWords, allowed_ids, contains, empty_masks, only_token, without
from structgen.errors import DraftWarning, LimitExceeded
from structgen.log import logger

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.decode.step.sampler import Sampler
    from structgen.engine import Constraint, Matcher
    from structgen.models.protocol import Logits

__all__ = [
    "DraftState",
    "DraftTask",
    "Drafter",
    "Drafting",
    "GrammarPosition",
    "GuardedDrafting",
    "Verified",
    "allowed_among",
    "check_tree",
    "tree_masks",
]


@final
@dataclass(frozen=True)
class DraftTask:
    """The output that is drafted for.

    Attributes:
        constraint: the constraint on the output.
        sampler: how its tokens are chosen.
        prompt_tokens: how many tokens of the context are the prompt.
        generator: random numbers of the drafter; drafts never use those of the sampler, so the output does not depend
            on drafts.
        failed: names of drafters that failed for this output; they are not started again.
    """

    constraint: Constraint
    sampler: Sampler
    prompt_tokens: int
    generator: np.random.Generator
    failed: set[str] = field(default_factory=set)


@final
@dataclass(frozen=True)
class DraftState:
    """The position of the output in its grammar.

    Attributes:
        matcher: the state; fork it to look ahead, do not move it.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]`` in the layout of ``Matcher.fill_mask``.
        remaining: tokens that are left of the budget.
        kind: the kind of position, computed from the mask: equal where draft tokens are accepted about equally often.
        least: a draft token that is accepted with less probability, those before it included, costs more time than it
            saves.
    """

    matcher: Matcher
    mask: NDArray[np.int32]
    remaining: int
    kind: int
    least: float = 0.0


@final
@dataclass(frozen=True)
class Verified:
    """The logits of a forward pass over the context and a draft tree.

    Attributes:
        start: how many tokens the context had; the first logits row is for the token after them.
        tree: the draft tokens that were run; may be empty.
        logits: ``1 + len(tree)`` rows: after the context, and after each node.
    """

    start: int
    tree: DraftTree
    logits: LogitsRows | Logits

    @cached_property
    def logits_rows(self) -> LogitsRows:
        """The logits, on the host or on the device: for reading a few of them."""
        return self.logits if isinstance(self.logits, LogitsRows) else LogitsRows(self.logits)

    @cached_property
    def rows(self) -> Logits:
        """The logits as an array, ``[1 + len(tree), V]``; a row that was not run is NaN."""
        return self.logits_rows.on_host()

    @cached_property
    def known(self) -> dict[str, Any]:
        """Results computed from the logits, by name, which several drafters share."""
        return {}


class Drafting(ABC):
    """Proposes draft tokens for one output.

    It may keep any state between calls: a wrong draft token costs time and never changes the output.  One thread uses
    it at a time; it must lock what it shares with others.
    """

    @abstractmethod
    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """Return a tree of draft tokens.

        The caller removes nodes that the grammar refuses, with their descendants, and adds the tokens that it forces
        after a node.

        Args:
            context: the prompt and the output so far; not to be changed.
            state: the position of the output in its grammar.
            budget: the largest number of tokens that are of use.
        """

    def observe(self, verified: Verified) -> None:  # noqa: B027  optional
        """Learn from a forward pass; called after each pass, whether this drafter proposed tokens for it or not."""

    def close(self) -> None:  # noqa: B027  optional
        """Free the state of this output, which is complete; shared statistics may stay."""


class Drafter(ABC):
    """A way to propose draft tokens: a value that any number of outputs may share."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in statistics and messages."""

    @abstractmethod
    def start(self, context: Context, task: DraftTask) -> Drafting:
        """Start drafting for the output of ``task``; ``context`` holds the prompt and the output so far.

        Raises:
            StructgenError: it cannot draft for this model or vocabulary; the output is then written without it.
        """


_FRAMES: Final = 3
_ROUNDING: Final = 1e-3
"""Tolerance of the sum of a distribution and of a confidence above 1."""


@final
class GuardedDrafting(Drafting):
    """The draft tokens of a drafter, which is dropped once it raises an exception or proposes an invalid tree.

    Attributes:
        name: the name of the drafter.
        is_dropped: whether the drafter failed.
    """

    def __init__(self, drafter: Drafter, context: Context, task: DraftTask) -> None:
        self.name = drafter.name
        self._size = task.constraint.vocabulary.size
        self._drafting: Drafting | None = None
        self._failed = task.failed
        self.is_dropped = self.name in task.failed
        if self.is_dropped:
            return
        try:
            self._drafting = drafter.start(context, task)
        except Exception as error:  # the output does not need the drafter
            self._drop(error)

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``; an empty tree after a failure."""
        if self._drafting is None:
            return DraftTree()
        try:
            tree = self._drafting.propose(context, state, budget)
            check_tree(tree, self._size)
        except LimitExceeded:  # the limits are for outputs, not for draft tokens
            return DraftTree()
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
        self.is_dropped = True
        self._failed.add(self.name)
        logger.warning("drafter %r failed and is dropped: %r", self.name, error)
        warnings.warn(
            f"drafter {self.name!r}: it failed and is dropped; {type(error).__name__}: {error}; "
            "the output is not affected",
            DraftWarning,
            stacklevel=_FRAMES,
        )


def check_tree(tree: Any, size: int) -> None:
    """Refuse an invalid draft tree for a vocabulary of ``size`` tokens.

    Raises:
        TypeError: it is not a ``DraftTree``, or a token or a parent is not an integer.
        ValueError: a number is out of range, or the lists do not match.

    Complexity: O(n), and O(size) for each node with sampled children.
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
            raise ValueError(f"it proposed node {node} after node {parent}; a parent must come before its child")
        if tree.child(parent, token) != node:
            raise ValueError(f"it proposed node {node} with token {token}, which was not added after node {parent}")
        if not 0 <= confidence <= 1 + _ROUNDING:
            raise ValueError(f"it proposed a confidence of {confidence!r} at node {node}; expected one in [0, 1]")
    for parent, sampled in tree.sampled.items():
        if not ROOT <= parent < count:
            raise ValueError(f"it sampled children after node {parent}, which is not in the tree")
        _check_sampled(sampled, size, parent)


def _check_sampled(sampled: SampledChildren, size: int, parent: int) -> None:
    for token in sampled.tokens:
        _check_token(token, size, parent)
    distribution = sampled.distribution
    if not isinstance(distribution, np.ndarray) or distribution.shape != (size,):
        raise ValueError(
            f"it sampled after node {parent} from {distribution!r:.60}; expected a distribution of {size} tokens"
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


@final
@dataclass(frozen=True, eq=False)
class GrammarPosition:
    """A position at which several tokens are allowed, as the decoding loop will come to it.

    Attributes:
        matcher: the state, after the forced tokens; it belongs to the position and does not move.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]``.
        forced: the forced tokens between the last chosen token and this position.
        remaining: tokens that are left of the budget, at least 1; None where no budget is looked at.
    """

    matcher: Matcher
    mask: MaskWords
    forced: tuple[int, ...] = ()
    remaining: int | None = None

    @classmethod
    def of(cls, state: DraftState, *, within_budget: bool = False) -> Self:
        """Return the position after the output so far.

        Args:
            state: the position of the output; its matcher must not move any more.
            within_budget: whether later positions keep to the budget of the output.
        """
        return cls(state.matcher, state.mask, (), state.remaining if within_budget else None)

    @classmethod
    def after(cls, matcher: Matcher, remaining: int | None = None) -> Self | None:
        """Return the next position, after the tokens that the grammar forces.

        Args:
            matcher: the state; it is moved, and belongs to the position from now on.
            remaining: tokens that are left of the budget; None for no budget.

        Returns:
            None if the output can only end, or the budget is spent.

        Raises:
            LimitExceeded: a limit of the constraint was reached.

        Complexity: one mask for each position at which a single token is allowed, and one for the result.
        """
        vocabulary = matcher.constraint.vocabulary
        mask = empty_masks(vocabulary)
        forced: list[int] = []
        while True:
            forced += matcher.advance_forced(None if remaining is None else remaining - len(forced))
            left = None if remaining is None else remaining - len(forced)
            if left == 0:
                return None
            matcher.fill_mask(mask, budget=left)
            if not without(mask[0], vocabulary.eos).any():
                return None
            only = only_token(mask[0])
            if only is None:
                return cls(matcher, mask[0], tuple(forced), left)
            matcher.accept(only)
            forced.append(only)

    @cached_property
    def ids(self) -> NDArray[np.intp]:
        """The tokens that may come next, ascending, ``[n]``."""
        return allowed_ids(self.mask, self.matcher.constraint.vocabulary.size)

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next and is not EOS, which would be of no use as a draft token."""
        return token not in self.matcher.constraint.vocabulary.eos and contains(self.mask, token)

    def then(self, token: int) -> GrammarPosition | None:
        """Return the next position after ``token``.

        Returns:
            None if the grammar refuses the token, the output ends, or a limit is reached: limits are for outputs, and a
            draft that reaches one just ends there.
        """
        matcher = self.matcher.fork()
        try:
            if token in matcher.constraint.vocabulary.eos or not matcher.accept(token):
                return None
            return GrammarPosition.after(matcher, None if self.remaining is None else self.remaining - 1)
        except LimitExceeded:
            return None


def allowed_among(mask: MaskWords, tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of some tokens a mask allows: ``[n]`` for ``[words]`` and ``[n]``, or a row for each mask row."""
    words = np.take_along_axis(mask, tokens >> 5, axis=-1)
    allowed: NDArray[np.bool_] = (words >> (tokens & 31).astype(np.int32) & 1).astype(np.bool_)
    return allowed


def tree_masks(tree: DraftTree, matcher: Matcher) -> dict[int, MaskWords]:
    """Return the mask after each node that the grammar allows, ``ROOT`` included; empty masks are left out.

    ``matcher`` is the state before the tree; it is not moved.
    """
    masks = empty_masks(matcher.constraint.vocabulary, 1 + len(tree))
    matcher.fill_mask_tree(tree.tokens, tree.parents, masks)
    return {node: masks[node + 1] for node in range(ROOT, len(tree)) if masks[node + 1].any()}
