"""Draft trees from a table: what a look-up returns at a position of the grammar is what a tree policy grows from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Self, TypeAlias, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.tree_policy import DraftDistribution
from structgen.engine.mask import contains, only_token

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.drafter import DraftState
    from structgen.engine import Matcher

__all__ = ["GrammarPosition", "LookupOutcome", "TableCandidates", "TableGrowth", "TableLookup", "allowed_among"]


@final
class GrammarPosition:
    """A position at which a token is chosen, as the loop that takes the tokens before it will come to it.

    Attributes:
        matcher: the state; it belongs to the choice and does not move.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]``.
        forced: the tokens before it for which there was no choice, after the last one that was chosen.
    """

    __slots__ = ("forced", "mask", "matcher")

    def __init__(self, matcher: Matcher, mask: NDArray[np.int32], forced: tuple[int, ...]) -> None:
        self.matcher = matcher
        self.mask = mask
        self.forced = forced

    @classmethod
    def of(cls, state: DraftState) -> Self:
        """The position where an output stands."""
        return cls(state.matcher.fork(), state.mask, ())

    def then(self, token: int) -> GrammarPosition | None:
        """The next position after ``token``; None where there is none: it is refused, or the output ends.

        The budget of the output is not looked at.
        """
        if token in self.matcher.constraint.vocabulary.eos:
            return None
        matcher = self.matcher.fork()
        if not matcher.accept(token):
            return None
        mask = np.empty((1, len(self.mask)), dtype=np.int32)
        forced: list[int] = []
        while True:
            for run in matcher.forced_tokens():
                if not matcher.accept(run):
                    return None
                forced.append(run)
            matcher.fill_mask(mask)
            only = only_token(mask[0])
            if only is None:
                return GrammarPosition(matcher, mask[0], tuple(forced)) if mask.any() else None
            if only in matcher.constraint.vocabulary.eos or not matcher.accept(only):
                return None
            forced.append(only)

    def allows(self, token: int) -> bool:
        """Whether ``token`` may come next and is no stop, which would be of no use as a draft token."""
        return token not in self.matcher.constraint.vocabulary.eos and contains(self.mask, token)


def allowed_among(mask: NDArray[np.int32], tokens: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which of some tokens a mask allows: ``[n]`` for ``[words]`` and ``[n]``, or a row for each row."""
    words = np.take_along_axis(mask, tokens >> 5, axis=-1)
    allowed: NDArray[np.bool_] = (words >> (tokens & 31).astype(np.int32) & 1).astype(np.bool_)
    return allowed


class TableCandidates(NamedTuple):
    """What a table says may come.

    Attributes:
        tokens: ids that the position allows, no stop among them, the most probable first.
        probabilities: theirs, falling; they sum to at most 1.
        keys: what kind of draft each is, for the table's own use.
    """

    tokens: Sequence[int]
    probabilities: Sequence[float]
    keys: Sequence[Hashable] = ()


TableLookup: TypeAlias = Callable[[tuple[int, ...], int, GrammarPosition], TableCandidates | None]
"""Called with the last tokens before a position, its depth in the tree, and the position itself."""


class LookupOutcome(NamedTuple):
    """What came where a table had been asked.

    Attributes:
        depth: how many draft tokens stood before it.
        candidates: what the table said.
        rank: the place of what came among them, counted from 0; None where it was not among them.
    """

    depth: int
    candidates: TableCandidates
    rank: int | None


class _LookupRecord(NamedTuple):
    choice: GrammarPosition
    tail: tuple[int, ...]
    depth: int
    candidates: TableCandidates | None


@final
class TableGrowth:
    """A draft in progress: the distributions are those of a table.

    Args:
        state: where the output stands.
        tail: the tokens before it, as many of the last as the table wants to see.
        look_up: the table; it names only what the position allows.
        is_dense: whether children are to be drawn; the probabilities that are told then sum to 1.
    """

    def __init__(self, state: DraftState, tail: Sequence[int], look_up: TableLookup, *, is_dense: bool = False) -> None:
        self._state = state
        self._tail = tuple(tail)
        self._look_up = look_up
        self._is_dense = is_dense
        self._size = state.matcher.constraint.vocabulary.size
        self._asked: dict[int, _LookupRecord] = {}
        self._after: dict[tuple[int, int], int] = {}

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """See ``Growth.distributions``."""
        return [self._distribution(tree, node) for node in nodes]

    def outcomes(self, came: Sequence[int]) -> Iterator[LookupOutcome]:
        """Compare what was told with the tokens that came, from where the output stood on."""
        node: int | None = ROOT
        place = 0
        while node is not None and node in self._asked:
            asked = self._asked[node]
            forced = asked.choice.forced
            if tuple(came[place : place + len(forced)]) != forced or place + len(forced) >= len(came):
                return
            place += len(forced)
            token = came[place]
            if asked.candidates is not None:
                tokens = asked.candidates.tokens
                yield LookupOutcome(asked.depth, asked.candidates, tokens.index(token) if token in tokens else None)
            node = self._after.get((node, token))
            place += 1

    def _distribution(self, tree: DraftTree, node: int) -> DraftDistribution | None:
        if node == ROOT:
            choice: GrammarPosition | None = GrammarPosition.of(self._state)
            tail, depth = self._tail, 0
        else:
            above = tree.parents[node]
            while above not in self._asked:
                above = tree.parents[above]
            token, parent = tree.tokens[node], self._asked[above]
            choice = parent.choice.then(token)
            self._after[above, token] = node
            if choice is None:
                return None
            tail = (*parent.tail, token, *choice.forced)[-len(self._tail) :] if self._tail else ()
            depth = parent.depth + 1
        if choice is None:
            return None
        found = self._look_up(tail, depth, choice)
        self._asked[node] = _LookupRecord(choice, tail, depth, found)
        if found is None or not found.tokens:
            return None
        tokens = np.array(found.tokens, dtype=np.int64)
        probabilities = np.array(found.probabilities, dtype=np.float64)
        if not self._is_dense:
            return DraftDistribution(tokens, probabilities, None, choice.forced)
        probabilities /= probabilities.sum()
        dense = np.zeros(self._size)
        dense[tokens] = probabilities
        return DraftDistribution(tokens, probabilities, dense, choice.forced)
