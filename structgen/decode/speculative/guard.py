"""Drafters that fail: one warning, and the output goes on without them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, Drawn
from structgen.decode.speculative.drafter import Drafting
from structgen.errors import DraftWarning

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.drafter import Drafter, DraftState, DraftTask, Verified

__all__ = ["GuardedDrafting", "check_tree"]

_FRAMES: Final = 3
_ROUNDING: Final = 1e-3
"""Laws sum to 1, and confidences are at most 1, up to so much."""


@final
class GuardedDrafting(Drafting):
    """The guesses of a drafter, none any more after it raised an exception or guessed what is no token.

    Args:
        drafter: what guesses.
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
            raise ValueError(f"it proposed node {node} behind node {parent}; a parent stands before its child")
        if tree.child(parent, token) != node:
            raise ValueError(f"it proposed node {node} with token {token}, which was not added behind node {parent}")
        if not 0 <= confidence <= 1 + _ROUNDING:
            raise ValueError(f"it proposed a confidence of {confidence!r} at node {node}; expected one in [0, 1]")
    for parent, drawn in tree.drawn.items():
        if not ROOT <= parent < count:
            raise ValueError(f"it proposed children that were drawn behind node {parent}, which is not there")
        _check_drawn(drawn, size, parent)


def _check_drawn(drawn: Drawn, size: int, parent: int) -> None:
    for token in drawn.tokens:
        _check_token(token, size, parent)
    law = drawn.law
    if not isinstance(law, np.ndarray) or law.shape != (size,):
        raise ValueError(f"it drew behind node {parent} from {law!r:.60}; expected a law of {size} tokens")
    if not (law.min() >= 0 and abs(law.sum() - 1) <= _ROUNDING):
        raise ValueError(
            f"it drew behind node {parent} from a law that is none: its least value is {law.min()}, its sum {law.sum()}"
        )


def _check_token(token: object, size: int, node: int) -> None:
    if not isinstance(token, int | np.integer):
        raise TypeError(f"it proposed {token!r:.40} at node {node}; expected a token id")
    if not 0 <= token < size:
        raise ValueError(f"it proposed token {token} at node {node}; ids run from 0 to {size - 1}")
