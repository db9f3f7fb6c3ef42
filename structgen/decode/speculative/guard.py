"""Drafters that fail: one warning, and the output goes on without them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafting
from structgen.errors import DraftWarning

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.drafter import Drafter, DraftState, DraftTask, Verified

__all__ = ["GuardedDrafting"]

_FRAMES: Final = 3


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
        try:
            self._drafting = drafter.start(context, task)
        except Exception as error:  # whatever it is, the output does not need it
            self._drop(error)

    @property
    def is_dropped(self) -> bool:
        """Whether it failed."""
        return self._drafting is None

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``; an empty tree once it failed."""
        if self._drafting is None:
            return DraftTree()
        try:
            tree = self._drafting.propose(context, state, budget)
            self._check(tree)
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

    def _check(self, tree: DraftTree) -> None:
        if not isinstance(tree, DraftTree):
            raise TypeError(f"it proposed a {type(tree).__name__}; expected a DraftTree")
        for node, token in enumerate(tree.tokens):
            if not 0 <= token < self._size:
                raise ValueError(f"it proposed token {token} at node {node}; ids run from 0 to {self._size - 1}")

    def _drop(self, error: Exception) -> None:
        drafting, self._drafting = self._drafting, None
        self._warn(error)
        if drafting is not None:
            try:
                drafting.close()
            except Exception as second:
                self._warn(second)

    def _warn(self, error: Exception) -> None:
        warnings.warn(
            f"drafter {self.name!r}: it failed and is not asked any more; {type(error).__name__}: {error}; "
            "the output is not affected",
            DraftWarning,
            stacklevel=_FRAMES,
        )
