"""Whether a canonical sequence of a grammar begins with some tokens and fits into a budget: a search for one.

Nearly always the first look decides: where the text may end, where a byte may follow before which the tokenizer always
splits, or by the tokens of a shortest completion.  Without a budget the search is native.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, final

from structgen.engine.mask import empty_masks
from structgen.errors import LimitExceeded
from structgen.grammar.limits import PYTHON_STEP

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine.canonical import CanonicalState, CanonicalTokens
    from structgen.engine.matcher import Matcher

__all__ = ["CompletionSearch", "search_limit"]

_STEPS_PER_TRY: Final = 16 * PYTHON_STEP
_MAX_WITNESSES: Final = 8


@final
class CompletionSearch:
    """Depth-first search for one completion, over states of the grammar and of ``CanonicalTokens``."""

    def __init__(self, canonical: CanonicalTokens, matcher: Matcher, budget: int) -> None:
        self._canonical = canonical
        self._matcher = matcher
        self._start = matcher.history_length
        self._budget = budget
        self._steps = 0
        self._most = matcher.constraint.limits.steps
        self._seen: dict[tuple[int, CanonicalState], int] = {}

    def succeeds(self, state: CanonicalState) -> bool:
        """Whether there is a completion; the matcher is as before then."""
        if self._is_certain(state):
            return True
        try:
            return self._searched(state)
        finally:
            self._matcher.rollback(self._matcher.history_length - self._start)

    def _searched(self, state: CanonicalState) -> bool:
        stack = [(state, self._candidates(state))]
        while stack:
            before, tokens = stack[-1]
            token = next(tokens, None)
            if token is None:
                stack.pop()
                if stack:
                    self._matcher.rollback(1)
                continue
            self._spend()
            after = self._canonical.after(before, token)
            if after is None or not self._matcher.accept(token):
                continue
            if not self._is_new(after):
                self._matcher.rollback(1)
            elif self._is_certain(after):
                return True
            else:
                stack.append((after, self._candidates(after)))
        return False

    def _left(self) -> int:
        return self._budget - (self._matcher.history_length - self._start)

    def _candidates(self, state: CanonicalState) -> Iterator[int]:
        left = self._left()
        if left == 0:
            return iter(())
        rows = empty_masks(self._matcher.constraint.vocabulary)
        self._matcher.fill_mask(rows, budget=left)
        return self._canonical.longest_first(rows[0] & self._canonical.mask(state))

    def _is_new(self, state: CanonicalState) -> bool:
        if self._matcher.mask_id is None:  # values of earlier text matter
            return True
        key = self._matcher.state_id, state
        left = self._left()
        if self._seen.get(key, -1) >= left:
            return False
        self._seen[key] = left
        return True

    def _is_certain(self, state: CanonicalState) -> bool:
        """Whether a completion can be seen at once."""
        matcher, canonical = self._matcher, self._canonical
        if matcher.is_accepting and canonical.may_end(state):
            return True
        left = self._left()
        if left == 0:
            return False
        if canonical.has_rules and self._has_witness(state, b"", left):
            return True
        firsts = canonical.free_starts(state, matcher.live_bytes())
        return any(
            matcher.validate([token]) == 1 and self._has_witness(state, bytes([byte]), left)
            for byte, token in (islice(firsts, _MAX_WITNESSES) if canonical.has_rules else firsts)
        )

    def _has_witness(self, state: CanonicalState, begin: bytes, left: int) -> bool:
        """Whether the canonical tokens of the shortest text that begins so complete the text, and fit."""
        self._spend()
        probe = self._matcher.fork()
        if probe.accept_bytes(begin) != len(begin):
            return False
        rest = probe.shortest_completion()
        if min(rest, default=0) < 0:  # a special token
            return False
        tokens = self._canonical.tokens_of(begin + bytes(rest))
        if tokens is None or len(tokens) > left:
            return False
        if not self._canonical.has_rules:
            return True
        end = self._canonical.after_all(tokens, state)
        return end is not None and self._canonical.may_end(end)

    def _spend(self) -> None:
        self._steps += _STEPS_PER_TRY
        if self._steps > self._most:
            raise search_limit(self._most, self._steps // _STEPS_PER_TRY)


def search_limit(steps: int, tried: int) -> LimitExceeded:
    """The error of a search that takes more than ``Limits.steps``, after this many tokens."""
    return LimitExceeded(
        "canonical",
        limit="steps",
        maximum=steps,
        evidence=f"the search for a canonical completion has tried {tried} tokens",
        remedy="raise limits=Limits(steps=...), or leave out canonical=True",
    )
