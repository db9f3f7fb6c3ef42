"""What a drafter that looks guesses up in a table tells the shape that grows its tree."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafters.recycling.choice import Choice
from structgen.decode.speculative.shapes.growth import Law

if TYPE_CHECKING:
    from structgen.decode.speculative.drafter import DraftState

__all__ = ["Candidates", "LookUp", "Outcome", "TableGrowth"]


class Candidates(NamedTuple):
    """What a table says may come.

    Attributes:
        tokens: ids that the position allows, no stop among them, the most probable first.
        probabilities: theirs, falling; they sum to at most 1.
        keys: what kind of guess each is, for the table's own use.
    """

    tokens: Sequence[int]
    probabilities: Sequence[float]
    keys: Sequence[Hashable] = ()


LookUp: TypeAlias = Callable[[tuple[int, ...], int, Choice], Candidates | None]
"""Called with the last tokens before a position, its depth in the tree, and the position itself."""


class Outcome(NamedTuple):
    """What came where a table had been asked.

    Attributes:
        depth: how many guesses stood before it.
        candidates: what the table said.
        rank: the place of what came among them, counted from 0; None where it was not among them.
    """

    depth: int
    candidates: Candidates
    rank: int | None


class _Asked(NamedTuple):
    choice: Choice
    tail: tuple[int, ...]
    depth: int
    candidates: Candidates | None


@final
class TableGrowth:
    """A draft in progress: the laws are those of a table.

    Args:
        state: where the output stands.
        tail: the tokens before it, as many of the last as the table wants to see.
        look_up: the table; it names only what the position allows.
        is_dense: whether children are to be drawn; the probabilities that are told then sum to 1.
    """

    def __init__(self, state: DraftState, tail: Sequence[int], look_up: LookUp, *, is_dense: bool = False) -> None:
        self._state = state
        self._tail = tuple(tail)
        self._look_up = look_up
        self._is_dense = is_dense
        self._size = state.matcher.constraint.vocabulary.size
        self._asked: dict[int, _Asked] = {}
        self._behind: dict[tuple[int, int], int] = {}

    def laws(self, tree: DraftTree, nodes: Sequence[int], /) -> list[Law | None]:
        """See ``Growth.laws``."""
        return [self._law(tree, node) for node in nodes]

    def outcomes(self, came: Sequence[int]) -> Iterator[Outcome]:
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
                yield Outcome(asked.depth, asked.candidates, tokens.index(token) if token in tokens else None)
            node = self._behind.get((node, token))
            place += 1

    def _law(self, tree: DraftTree, node: int) -> Law | None:
        if node == ROOT:
            choice: Choice | None = Choice.of(self._state)
            tail, depth = self._tail, 0
        else:
            above = tree.parents[node]
            while above not in self._asked:
                above = tree.parents[above]
            token, parent = tree.tokens[node], self._asked[above]
            choice = parent.choice.then(token)
            self._behind[above, token] = node
            if choice is None:
                return None
            tail = (*parent.tail, token, *choice.forced)[-len(self._tail) :] if self._tail else ()
            depth = parent.depth + 1
        if choice is None:
            return None
        found = self._look_up(tail, depth, choice)
        self._asked[node] = _Asked(choice, tail, depth, found)
        if found is None or not found.tokens:
            return None
        tokens = np.array(found.tokens, dtype=np.int64)
        probabilities = np.array(found.probabilities, dtype=np.float64)
        if not self._is_dense:
            return Law(tokens, probabilities, None, choice.forced)
        probabilities /= probabilities.sum()
        dense = np.zeros(self._size)
        dense[tokens] = probabilities
        return Law(tokens, probabilities, dense, choice.forced)
