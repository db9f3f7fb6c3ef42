"""Positions of a grammar at which a token is chosen, and the token masks of a draft tree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import ROOT
from structgen.engine.mask import MaskWords, allowed_ids, contains, empty_masks, only_token, without
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.drafter import DraftState
    from structgen.engine import Matcher

__all__ = ["GrammarPosition", "allowed_among", "tree_masks"]


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
