"""Text that the grammar dictates, as guesses: the model's law is needed at each token of it, and the tokens are known.

Samplers of tokens take such text without the model.  Where outputs are weighed, each of its tokens has a law, and the
text may be spelled in several ways; mostly it is as the tokenizer would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine import Constraint, Matcher

__all__ = ["DICTATED", "DictatedText"]

DICTATED: Final = "dictated text"
"""The source of such tokens."""

_PRIOR: Final = 0.98
_STRENGTH: Final = 10.0
"""So many tokens are assumed of which that share was spelled as the tokenizer would."""


@final
class DictatedText:
    """Adds such text to the guesses of a run, as likely as it has proved to be spelled so.

    Args:
        constraint: what outputs are members of.
    """

    def __init__(self, constraint: Constraint) -> None:
        self._stops = frozenset(constraint.vocabulary.eos)
        self._has_reach = constraint.native.has_reach  # else to ask for it may cost as much as a mask
        self._spelled, self._respelled = _STRENGTH * _PRIOR, _STRENGTH * (1 - _PRIOR)

    @property
    def confidence(self) -> float:
        """Estimated probability that a token of it is taken."""
        return self._spelled / (self._spelled + self._respelled)

    def extend(self, tree: DraftTree, matcher: Matcher, *, remaining: int, budget: int) -> None:
        """Add what is dictated to a tree: at its root, and behind the ends of its paths.

        Args:
            tree: tokens that the grammar allows.
            matcher: where the output stands; it is moved, and moved back.
            remaining: tokens that the output may still have.
            budget: the most nodes of the tree.
        """
        reach = tree.reach()
        ends = [ROOT, *sorted(tree.leaves(), key=lambda node: -reach[node])]
        confidence = self.confidence
        before = matcher.history_length
        for end in ends:
            room = budget - len(tree)
            if room <= 0:
                break
            path = tree.prefix(end)
            try:
                if all(matcher.accept(token) for token in path):
                    run = self._run(matcher, remaining - len(path), room)
                    tree.extend(end, run, confidence, source=DICTATED)
            except LimitExceeded:
                break  # the limits are for outputs, not for guesses
            finally:
                matcher.rollback(matcher.history_length - before)

    def learn(self, tree: DraftTree, node: int, ways: Sequence[tuple[int, float]]) -> None:
        """Count how much of what came behind a node is spelled as guessed.

        Args:
            tree: what was looked at.
            node: of it, or ``ROOT``.
            ways: tokens that came, none twice, each with its log-probability.
        """
        dictated = [tree.tokens[child] for child in tree.children(node) if tree.sources[child] == DICTATED]
        if not dictated or not ways:
            return
        most = max(log_p for _, log_p in ways)
        weights = [math.exp(log_p - most) for _, log_p in ways]
        spelled = sum(weight for (token, _), weight in zip(ways, weights, strict=True) if token in dictated)
        self._spelled += spelled / sum(weights)
        self._respelled += 1 - spelled / sum(weights)

    def _run(self, matcher: Matcher, remaining: int, room: int) -> list[int]:
        """The tokens that are dictated where a matcher stands; it is moved."""
        run: list[int] = []
        while True:
            tokens = matcher.forced_tokens()
            if not tokens:
                allowed = matcher.allowed_tokens(2)
                tokens = allowed if len(allowed) == 1 and allowed[0] not in self._stops else []
            if not tokens:
                return run
            for token in tokens:
                left = remaining - len(run)
                is_tight = left <= 0 or (self._has_reach and matcher.needs_budget_mask(left))
                if len(run) == room or is_tight or not matcher.accept(token):
                    return run
                run.append(token)
