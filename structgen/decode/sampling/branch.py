"""A branch, one of several sequences that are written together, and the masks of the states that branches reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.potentials import Hypothesis
from structgen.decode.step.context import Context
from structgen.decode.step.result import FinishReason, Step
from structgen.engine.mask import allowed_ids, contains, empty_masks, without
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine import Matcher, Vocabulary
    from structgen.models.protocol import Logits

__all__ = ["Branch", "MaskCache"]

_MAX_CACHED: Final = 1024


@final
class MaskCache:
    """The masks of one run, by the state of a matcher.

    All EOS ids are one choice, represented by the lowest allowed one.

    Attributes:
        queries: how often a matcher was queried about a single token.
        filled: how many masks were filled.
        time_s: seconds spent on masks and queries.

    Args:
        vocabulary: of the constraint.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.queries = 0
        self.filled = 0
        self.time_s = 0.0
        self._size = vocabulary.size
        self._eos = np.array(sorted(vocabulary.eos), dtype=np.intp)
        self._stops = frozenset(vocabulary.eos)
        self._row: NDArray[np.int32] = empty_masks(vocabulary)
        self._rows: dict[tuple[int, int], NDArray[np.int32]] = {}
        self._drafted: dict[tuple[int, int], NDArray[np.int32]] = {}

    def allowed(
        self, matcher: Matcher, remaining: int, forbidding: NDArray[np.int32] | None = None
    ) -> NDArray[np.intp]:
        """The allowed tokens, ascending, with one EOS id at most; ``remaining`` tokens are left of the budget.

        ``forbidding`` is a further mask; None for none.
        """
        began = perf_counter()
        if remaining <= 0:
            ids = self._eos[: int(matcher.is_accepting)]
        else:
            row = self._filled(matcher, remaining)
            ids = allowed_ids(self._with_one_stop(row if forbidding is None else row & forbidding), self._size)
        self.time_s += perf_counter() - began
        return ids

    def mask_for_drafter(self, matcher: Matcher, remaining: int) -> NDArray[np.int32]:
        """The mask for drafters, with every EOS id; read only.

        ``knows`` ignores these masks, since samples must not depend on draft tokens; ``allowed`` reuses them.

        Args:
            matcher: stays as it is.
            remaining: how many tokens are left of the budget, at least 1.
        """
        began = perf_counter()
        key = _mask_key(matcher, remaining)
        row = None if key is None else self._rows.get(key, self._drafted.get(key))
        if row is None:
            row = self._fill(matcher, remaining)
            if key is not None:
                if len(self._drafted) >= _MAX_CACHED:
                    self._drafted.clear()
                self._drafted[key] = row
        row = row.view()
        row.flags.writeable = False
        self.time_s += perf_counter() - began
        return row

    @cached_property
    def all_ids(self) -> NDArray[np.intp]:
        """Every token, with one EOS id at most."""
        return np.setdiff1d(np.arange(self._size, dtype=np.intp), self._eos[1:], assume_unique=True)

    def knows(self, matcher: Matcher, remaining: int) -> bool:
        """Whether ``allowed`` needs no new mask."""
        if remaining <= 0:
            return True
        key = _mask_key(matcher, remaining)
        return key is not None and key in self._rows

    def accepts(self, matcher: Matcher, remaining: int, token: int) -> bool:
        """Whether a token is allowed: the answer of ``allowed``, without a mask."""
        began = perf_counter()
        self.queries += 1
        answer = self._accepts(matcher, remaining, token)
        self.time_s += perf_counter() - began
        return answer

    def can_continue(self, matcher: Matcher) -> bool:
        """Whether the grammar, without the budget, allows any token but EOS, or a limit keeps that unknown."""
        try:
            matcher.fill_mask(self._row)
        except LimitExceeded:  # the output is complete: better to report a cut too many
            return True
        return bool(without(self._row[0], self._stops).any())

    def clear(self) -> None:
        """Drop all masks."""
        self._rows.clear()
        self._drafted.clear()

    def _filled(self, matcher: Matcher, remaining: int) -> NDArray[np.int32]:
        """The mask of the constraint within a budget of at least 1."""
        key = _mask_key(matcher, remaining)
        cached = None if key is None else self._rows.get(key)
        if cached is not None:
            return cached
        self.filled += 1
        row = None if key is None else self._drafted.pop(key, None)
        if row is None:
            row = self._fill(matcher, remaining)
        if key is not None:
            if len(self._rows) >= _MAX_CACHED:
                self._rows.clear()
            self._rows[key] = row
        return row

    def _fill(self, matcher: Matcher, remaining: int) -> NDArray[np.int32]:
        matcher.fill_mask(self._row, budget=remaining)
        row: NDArray[np.int32] = self._row[0].copy()
        return row

    def _with_one_stop(self, row: NDArray[np.int32]) -> NDArray[np.int32]:
        """A mask row that allows at most one EOS id."""
        if len(self._eos) < 2:
            return row
        ends = [token for token in self._eos.tolist() if contains(row, token)]
        return without(row, ends[1:]) if len(ends) > 1 else row

    def _accepts(self, matcher: Matcher, remaining: int, token: int) -> bool:
        if token in self._stops:
            return bool(matcher.is_accepting)
        if remaining <= 0:
            return False
        if not matcher.needs_budget_mask(remaining):
            count: int = matcher.validate([token])
            return count == 1
        if not matcher.accept(token):
            return False
        fits: bool = matcher.completes_within(remaining - 1)
        matcher.rollback(1)
        return fits


def _mask_key(matcher: Matcher, remaining: int) -> tuple[int, int] | None:
    """The state, and the budget if the mask depends on it; None if the mask depends on more."""
    state = matcher.mask_id
    return None if state is None else (state, remaining if matcher.needs_budget_mask(remaining) else -1)


class StepPath(NamedTuple):
    """Steps, the last first."""

    before: StepPath | None
    step: Step


@final
@dataclass(eq=False, slots=True)
class Branch:
    """One sequence.

    Attributes:
        hypothesis: its tokens.
        matcher: the matcher after them.
        context: the prompt and the tokens, with their cache; None for a finished branch, or one without a cache.
        log_p: the model's log-probability of the tokens, and of EOS if the branch is finished.
        score: the potentials' score: of the prefix, or of the complete output if the branch is finished.
        finish_reason: why the branch is finished; None if it is not.
        path: its steps.
        logits: the logits after the tokens, once they are computed.
    """

    hypothesis: Hypothesis
    matcher: Matcher
    context: Context | None
    log_p: float
    score: float
    finish_reason: FinishReason | None = None
    path: StepPath | None = None
    logits: Logits | None = None

    def steps(self) -> list[Step]:
        """The steps that led here."""
        steps, path = [], self.path
        while path is not None:
            steps.append(path.step)
            path = path.before
        return steps[::-1]
