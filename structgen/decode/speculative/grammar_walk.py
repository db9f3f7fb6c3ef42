"""What a grammar makes of guesses: refused tokens are cut, and what it forces stands where it will come.

The loop does not ask the model for a token that the grammar leaves no choice about.  A guess at such a cursor is of use
only if it is that token, and then it comes for certain; what a row of logits is needed for is the next choice.  So the
tree that is run is made of segments: a guessed token, and behind it all that is forced up to the next choice.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from structgen.decode.speculative.draft_text import Cursor, Guess, behind, guesses_at
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree, Drawn
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine import Matcher

__all__ = ["walked"]


def walked(tree: DraftTree, matcher: Matcher, *, remaining: int, budget: int, forced: bool = True) -> DraftTree:
    """Return the tree that is worth running.

    Every path of it goes on as the loop does that takes its tokens: where the grammar leaves one text or one token,
    with that, whatever was guessed; a guess that spells the same bytes in other tokens goes on behind them, its rest
    tokenized anew where they end within a token.  It ends where something is chosen, for nothing else needs a row.
    Forced nodes have confidence 1 and the source ``FORCED``.

    Of children that were drawn, only what the grammar refuses is missing, or everything from some child on; a stop
    among them stays, since its absence would tell what was drawn.  Other stops are cut.

    Costs a few calls of the matcher for each node of the result and for each that is refused.

    Args:
        tree: guesses; ids of the vocabulary.
        matcher: where the output stands; it is moved, and moved back.
        remaining: tokens that the output may still have.  A branch ends at a choice whose mask depends on them, where
            that is cheap to tell.
        budget: the most nodes.  Those of the largest reach are kept, each with what is forced behind it or not at all;
            if any were drawn, the first.
        forced: whether tokens that are forced come without a choice; else every node that the grammar allows stays.
    """
    walk = _Walk(tree, matcher, remaining, budget, forced=forced)
    before = matcher.history_length
    try:
        walk.run()
    except LimitExceeded:
        pass  # the limits are for outputs, not for guesses; what was found until here stands
    finally:
        matcher.rollback(matcher.history_length - before)
    return walk.out


class _Candidates(NamedTuple):
    """What may be added behind a node; the smallest is tried first."""

    order: float
    origin: int  # node of the drafter's tree, the first of several
    number: int  # different for each
    parent: int
    reach: float  # of the parent
    guesses: list[Guess]  # one, or what was drawn
    drawn: Drawn | None


@final
class _Walk:
    def __init__(self, tree: DraftTree, matcher: Matcher, remaining: int, budget: int, *, forced: bool) -> None:
        self.out = DraftTree()
        self._guesses = tree
        self._matcher = matcher
        self._vocabulary = matcher.constraint.vocabulary
        self._stops = frozenset(self._vocabulary.eos)
        self._has_reach = matcher.constraint.native.has_reach  # else to ask for it may cost as much as a mask
        self._remaining = remaining
        self._budget = budget
        self._forced = forced
        self._taken: list[int] = []  # by the matcher
        self._at: int | None = None  # the node that it stands at, where that is known
        self._open: list[_Candidates] = []
        self._pushed = 0

    def run(self) -> None:
        if self._budget <= 0 or self._remaining <= 0:
            return
        run = self._force([Cursor.before(self._guesses)], self._budget)
        if run is not None:
            self._open_behind(ROOT, *run, 1.0)
        while self._open and self._room > 0:
            candidates = heapq.heappop(self._open)
            if candidates.drawn is None:
                self._try(candidates.parent, candidates.guesses[0], candidates.reach)
            else:
                self._try_drawn(candidates, candidates.drawn)

    @property
    def _room(self) -> int:
        return self._budget - len(self.out)

    def _try(self, parent: int, guess: Guess, reach: float, *, is_drawn: bool = False) -> bool:
        """Add a guess with what is forced behind it, if it is of use or was drawn; whether the grammar allows it."""
        if parent != self._at:
            self._move(self.out.prefix(parent))
            self._at = parent
        if not self._accept(guess.token):
            return False
        self._at = None
        run = self._force(guess.cursors, self._room - 1)
        if run is not None or is_drawn:
            node = self.out.add(parent, guess.token, guess.confidence, source=guess.source)
            if run is not None:
                self._open_behind(node, *run, reach * guess.confidence)
        return True

    def _try_drawn(self, candidates: _Candidates, drawn: Drawn) -> None:
        """Add children in the order in which they were drawn, for as long as any other would fit as well."""
        parent = candidates.parent
        guesses = {guess.token: guess for guess in candidates.guesses}
        refused: set[int] = set()
        kept: list[int] = []
        try:
            for token in drawn.tokens:
                if self._room <= 0 or token not in guesses:
                    break
                if token in refused:
                    continue
                if token in kept or self._try(parent, guesses[token], candidates.reach, is_drawn=True):
                    kept.append(token)
                else:
                    refused.add(token)
        finally:
            if kept:
                self.out.drawn[parent] = Drawn(drawn.law, tuple(kept), drawn.replaced)

    def _force(self, cursors: list[Cursor], room: int) -> tuple[list[int], list[Cursor]] | None:
        """Take what is forced; None if nothing is chosen behind it, or it takes more than ``room`` tokens."""
        tokens: list[int] = []
        if not self._forced:
            return tokens, cursors
        while not self._matcher.is_terminated and len(self._taken) < self._remaining:
            run = self._matcher.forced_tokens()
            if not run:
                allowed = self._matcher.allowed_tokens(2)
                if not allowed:
                    break
                if len(allowed) > 1 or (self._stops and self._matcher.is_accepting):
                    return tokens, cursors
                run = allowed
            for token in run:
                if len(tokens) == room or not self._accept(token):
                    return None
                tokens.append(token)
                cursors = behind(cursors, token, self._vocabulary)
        return None

    def _open_behind(self, node: int, tokens: list[int], cursors: list[Cursor], reach: float) -> None:
        """Add what is forced behind a node, and note what may follow; the matcher stands there."""
        if tokens:
            node = self.out.extend(node, tokens, source=FORCED)
        self._at = node
        if self._matcher.is_terminated or self._is_tight():
            return
        drawn = None
        for cursor in cursors:
            if not cursor.rest and cursor.tree is self._guesses and cursor.node in self._guesses.drawn:
                cursors, drawn = [cursor], self._guesses.drawn[cursor.node]
                break
        guesses = guesses_at(cursors, self._vocabulary)
        if drawn is not None:
            together = [guess for guess in guesses if guess.token in drawn.tokens]
            if together:
                self._push(node, reach, together, drawn)
            guesses = [guess for guess in guesses if guess.token not in drawn.tokens]
        for guess in guesses:
            if guess.token not in self._stops:
                self._push(node, reach, [guess], None)

    def _push(self, parent: int, reach: float, guesses: list[Guess], drawn: Drawn | None) -> None:
        order = 0.0 if self._guesses.drawn else -reach * guesses[0].confidence
        self._pushed += 1
        heapq.heappush(self._open, _Candidates(order, guesses[0].origin, self._pushed, parent, reach, guesses, drawn))

    def _is_tight(self) -> bool:
        """Whether the mask is known to depend on the tokens that are left, or none are."""
        left = self._remaining - len(self._taken)
        return left <= 0 or (self._has_reach and self._matcher.needs_budget_mask(left))

    def _accept(self, token: int) -> bool:
        accepted = self._matcher.accept(token)
        if accepted:
            self._taken.append(token)
        return accepted

    def _move(self, tokens: Sequence[int]) -> None:
        """Let the matcher stand behind ``tokens``, which were accepted before."""
        common = 0
        for taken, wanted in zip(self._taken, tokens, strict=False):
            if taken != wanted:
                break
            common += 1
        self._matcher.rollback(len(self._taken) - common)
        del self._taken[common:]
        for token in tokens[common:]:
            self._accept(token)
