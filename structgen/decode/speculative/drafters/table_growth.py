"""Draft trees from a table: the candidates that a look-up returns at a position are what a tree policy grows from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.grammar_position import GrammarPosition
from structgen.decode.speculative.tree_policy import DraftDistribution

if TYPE_CHECKING:
    from structgen.decode.speculative.drafter import DraftState

__all__ = ["LookupOutcome", "TableCandidates", "TableGrowth", "TableLookup"]


class TableCandidates(NamedTuple):
    """The candidates that a table has for a position.

    Attributes:
        tokens: ids that the position allows, EOS left out, the most probable first.
        probabilities: of the tokens, descending; they sum to at most 1.
        keys: the kind of each draft token, for the table's own use.
    """

    tokens: Sequence[int]
    probabilities: Sequence[float]
    keys: Sequence[Hashable] = ()


TableLookup: TypeAlias = Callable[[tuple[int, ...], int, GrammarPosition], TableCandidates | None]
"""Called with the last tokens before a position, its depth in the tree, and the position itself."""


class LookupOutcome(NamedTuple):
    """The token that came at a position where the table was queried.

    Attributes:
        depth: the number of draft tokens before the position.
        candidates: what the table returned.
        rank: the rank of the token among the candidates, from 0; None if it was not among them.
    """

    depth: int
    candidates: TableCandidates
    rank: int | None


class _LookupRecord(NamedTuple):
    position: GrammarPosition
    tail: tuple[int, ...]
    depth: int
    candidates: TableCandidates | None


@final
class TableGrowth:
    """A draft in progress with the distributions of a table.

    Args:
        state: the position of the output.
        tail: the tokens before it, as many of the last as the table needs.
        look_up: the table; it returns only tokens that the position allows.
        is_dense: whether children are to be sampled; the returned probabilities then sum to 1.
    """

    def __init__(self, state: DraftState, tail: Sequence[int], look_up: TableLookup, *, is_dense: bool = False) -> None:
        self._state = state
        self._tail = tuple(tail)
        self._look_up = look_up
        self._is_dense = is_dense
        self._size = state.matcher.constraint.vocabulary.size
        self._records: dict[int, _LookupRecord] = {}
        self._after: dict[tuple[int, int], int] = {}

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """See ``Growth.distributions``."""
        return [self._distribution(tree, node) for node in nodes]

    def outcomes(self, came: Sequence[int]) -> Iterator[LookupOutcome]:
        """Compare the returned candidates with the tokens that came after the draft began."""
        node: int | None = ROOT
        index = 0
        while node is not None and node in self._records:
            record = self._records[node]
            forced = record.position.forced
            if tuple(came[index : index + len(forced)]) != forced or index + len(forced) >= len(came):
                return
            index += len(forced)
            token = came[index]
            if record.candidates is not None:
                tokens = record.candidates.tokens
                yield LookupOutcome(record.depth, record.candidates, tokens.index(token) if token in tokens else None)
            node = self._after.get((node, token))
            index += 1

    def _distribution(self, tree: DraftTree, node: int) -> DraftDistribution | None:
        position: GrammarPosition | None
        if node == ROOT:
            position, tail, depth = GrammarPosition.of(self._state), self._tail, 0
        else:
            above = tree.parents[node]
            while above not in self._records:
                above = tree.parents[above]
            token, parent = tree.tokens[node], self._records[above]
            position = parent.position.then(token)
            self._after[above, token] = node
            if position is None:
                return None
            tail = (*parent.tail, token, *position.forced)[-len(self._tail) :] if self._tail else ()
            depth = parent.depth + 1
        candidates = self._look_up(tail, depth, position)
        self._records[node] = _LookupRecord(position, tail, depth, candidates)
        if candidates is None or not candidates.tokens:
            return None
        tokens = np.array(candidates.tokens, dtype=np.int64)
        probabilities = np.array(candidates.probabilities, dtype=np.float64)
        if not self._is_dense:
            return DraftDistribution(tokens, probabilities, None, position.forced)
        probabilities /= probabilities.sum()
        dense = np.zeros(self._size)
        dense[tokens] = probabilities
        return DraftDistribution(tokens, probabilities, dense, position.forced)
