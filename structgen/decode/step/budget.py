"""Where a budget decided: the first token of an output that was chosen while the budget excluded others."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from structgen.engine.mask import contains, empty_masks, without
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.engine import Constraint

__all__ = ["BudgetWatch"]


@final
class BudgetWatch:
    """Finds the first position of an output at which the budget excluded a token that the grammar allows.

    Such a position is *cut*: from there on the output may differ from what the model would have written with more
    tokens.  Where the text is forced, a position is cut only if the budget excludes the canonical
    spelling of the text.

    Args:
        constraint: the constraint of the output.
        max_tokens: the budget of the whole output, EOS not counted; for a canvas, its slots.
    """

    def __init__(self, constraint: Constraint, max_tokens: int) -> None:
        self._matcher = constraint.matcher()
        self._max_tokens = max_tokens
        self._rows = empty_masks(constraint.vocabulary, 2)
        self._not_eos = without(np.full_like(self._rows[0], -1), constraint.vocabulary.eos)
        self._position = 0  # that is looked at next, or that is cut
        self._is_cut = False

    def cut_at(self, tokens: Sequence[int], *, is_complete: bool) -> int | None:
        """Return the first cut position of an output, None if no position is cut.

        Args:
            tokens: the tokens so far, EOS left out: those of the last call, less what ``truncate`` removed, and more.
            is_complete: whether the output ends after ``tokens``: then the position of its end counts too.

        Complexity: one step of the matcher for each new token, and two masks for each position at which the budget may
        exclude tokens, up to the first cut.
        """
        end = len(tokens) + is_complete
        while not self._is_cut and self._position < end:
            self._is_cut = self._excludes(self._max_tokens - self._position)
            if self._is_cut or self._position == len(tokens):
                break
            self._matcher.accept(tokens[self._position])
            self._position += 1
        return self._position if self._is_cut and self._position < end else None

    def truncate(self, length: int) -> None:
        """Forget all tokens from position ``length`` on."""
        if length < self._position:
            self._matcher.rollback(self._position - length)
            self._position = length
            self._is_cut = False

    def _excludes(self, remaining: int) -> bool:
        """Whether the budget excludes a token here that the grammar allows."""
        try:
            if not self._matcher.needs_budget_mask(remaining):
                return False
            forced = self._matcher.forced_tokens()
            self._matcher.fill_mask(self._rows, 0, budget=remaining)
            if forced:  # other spellings of the same text do not count
                return not contains(self._rows[0], forced[0])
            self._matcher.fill_mask(self._rows, 1)
        except LimitExceeded:  # unknown: better to report a cut too many
            return True
        return bool((self._rows[1] & ~self._rows[0] & self._not_eos).any())
