"""Where a guess stands in its grammar: what is forced there, and what may come next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import numpy as np

from structgen.decode.projection import allowed_ids
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.drafter import DraftState
    from structgen.engine import Matcher

__all__ = ["Place"]


@final
@dataclass(frozen=True, eq=False, slots=True)
class Place:
    """A position where a token has to be chosen.

    Attributes:
        matcher: the state, behind the forced tokens; it belongs to the place and is not moved.
        forced: tokens for which there was no choice, between the token before and this position.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]``.
        ids: the same as ids, ascending, ``[n]``.
        remaining: tokens that are left of the budget.
    """

    matcher: Matcher
    forced: tuple[int, ...]
    mask: NDArray[np.int32]
    ids: NDArray[np.intp]
    remaining: int

    @classmethod
    def of(cls, state: DraftState) -> Self:
        """The position where an output stands."""
        size = state.matcher.constraint.vocabulary.size
        return cls(state.matcher, (), state.mask, allowed_ids(state.mask, size), state.remaining)

    @classmethod
    def after(cls, matcher: Matcher, remaining: int) -> Self | None:
        """The next position where there is a choice, behind the tokens that the grammar forces.

        Args:
            matcher: the state; it is moved, and belongs to the place from now on.
            remaining: tokens that are left of the budget.

        Returns:
            None where the output can only end, or the budget is spent.

        Raises:
            LimitExceeded: a limit of the constraint was reached.

        Complexity: one mask for each position where a single token is allowed, and one for the place.
        """
        vocabulary = matcher.constraint.vocabulary
        mask = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
        forced: list[int] = []
        while True:
            for token in matcher.forced_tokens():
                if len(forced) >= remaining or not matcher.accept(token):
                    break
                forced.append(token)
            left = remaining - len(forced)
            if left <= 0:
                return None
            if matcher.needs_budget_mask(left):
                matcher.fill_mask_within(mask, 0, left)
            else:
                matcher.fill_mask(mask)
            ids = allowed_ids(mask[0], vocabulary.size)
            if len(ids) <= len(vocabulary.eos) and all(token in vocabulary.eos for token in ids.tolist()):
                return None
            if len(ids) > 1:
                return cls(matcher, tuple(forced), mask[0], ids, left)
            matcher.accept(int(ids[0]))
            forced.append(int(ids[0]))

    def then(self, token: int) -> Place | None:
        """The position behind ``token``.

        Returns:
            None where the grammar refuses the token, it ends the output, or a limit is reached: limits are for outputs,
            and a guess that reaches one is just not followed.
        """
        matcher = self.matcher.fork()
        try:
            if token in matcher.constraint.vocabulary.eos or not matcher.accept(token):
                return None
            return Place.after(matcher, self.remaining - 1)
        except LimitExceeded:
            return None
