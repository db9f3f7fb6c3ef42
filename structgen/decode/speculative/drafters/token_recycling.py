"""Drafts from the tokens that the model last predicted after the same token."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.cache import Locked
from structgen.decode.speculative.acceptance import RankRates
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GrammarPosition, Verified
from structgen.decode.speculative.drafters.likely_tokens import (
    TableCandidates,
    TableGrowth,
    TableLookup,
    node_top_tokens,
)
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.tree_policy import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary

__all__ = ["Successors", "TokenRecycling"]


@final
class Successors(Locked):
    """For each token, the ``count`` tokens that the model last predicted after it.

    Source: the adjacency matrix of X. Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large
    Language Models with Token Recycling" (2024, arXiv 2408.08696).

    Threads may share one.  It holds an int32 matrix ``[V, count]`` for each vocabulary: 1.6 MB for 49k tokens and 8
    successors.

    Args:
        count: the number of successors of each token; at least 1.

    Raises:
        ValueError: ``count`` is below 1.
    """

    def __init__(self, count: int = 8) -> None:
        if count < 1:
            raise ValueError(f"Successors: count must be at least 1; found {count!r}")
        self.count = count
        self._matrices: dict[bytes, NDArray[np.int32]] = {}  # by digest; ids plus 1, 0 where there is none
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The bytes of all matrices."""
        return sum(matrix.nbytes for matrix in list(self._matrices.values()))

    def learn(self, vocabulary: Vocabulary, rows: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Replace the successors of some tokens.

        Args:
            vocabulary: the vocabulary of the ids.
            rows: tokens with their successors, the most probable first; those beyond ``count`` are left out.
        """
        with self._lock:
            matrix = self._matrices.get(vocabulary.digest)
            if matrix is None:
                matrix = self._matrices[vocabulary.digest] = np.zeros((vocabulary.size, self.count), dtype=np.int32)
            for token, successors in rows:
                first = successors[: self.count]
                matrix[token] = 0
                matrix[token, : len(first)] = first
                matrix[token, : len(first)] += 1

    def after(self, vocabulary: Vocabulary, token: int) -> list[int]:
        """Return the successors of ``token``, the most probable first; empty if it was not seen."""
        with self._lock:
            matrix = self._matrices.get(vocabulary.digest)
            row: list[int] = [] if matrix is None else matrix[token].tolist()
        return [successor - 1 for successor in row if successor]

    def __repr__(self) -> str:
        return f"<Successors, {self.count} of each token, {self.nbytes} bytes>"


_RATES: Final = (0.55, 0.1, 0.05, 0.03, 0.02, 0.02, 0.015, 0.015)
"""How often the successor of each rank was right in JSON documents and prose of the embedded model."""


@final
@dataclass(frozen=True)
class TokenRecycling(Drafter):
    """Drafts a tree of successors: after each token, the model's last predictions after that token.

    Every logits row has the model's most probable tokens, also rows after rejected draft tokens.  They replace the
    successors of the last token before the row.

    Source: X. Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling" (2024, arXiv 2408.08696).  Three things differ.  Ranks count allowed tokens only, so the next successor
    takes the rank of a refused one.  The confidence of a draft token is the measured acceptance of its rank and depth.
    If a pass has a token several times, its first row counts, which is the most likely to be accepted.

    Attributes:
        shape: the tree policy.
        store: the successors; outputs that share it learn from each other.
        ranks: the acceptance of successors by rank and depth; ``RankTree.of_rates(recycling.ranks.rates(8), 24)`` is
            the best tree for them.

    Example:
        >>> TokenRecycling(RankTree.of_rates([[0.6, 0.2], [0.4]], 4)).shape.paths
        ((0,), (0, 0), (1,), (0, 0, 0))
    """

    shape: Shape = field(default_factory=lambda: RankTree.of_rates([_RATES], 24))
    store: Successors = field(default_factory=Successors)
    ranks: RankRates = field(default_factory=lambda: RankRates(_RATES))

    name = "token recycling"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _RecyclingDrafting(self, context, task)


def _look_up(drafter: TokenRecycling, vocabulary: Vocabulary) -> TableLookup:
    """The table of likely tokens; it does not refer to the drafting, which is so freed with its answer."""

    def found(tail: tuple[int, ...], depth: int, position: GrammarPosition) -> TableCandidates:
        tokens = [token for token in drafter.store.after(vocabulary, tail[-1]) if position.allows(token)]
        return TableCandidates(tokens, [drafter.ranks.rate(depth, rank) for rank in range(len(tokens))])

    return found


@final
class _RecyclingDrafting(Drafting):
    def __init__(self, drafter: TokenRecycling, context: Context, task: DraftTask) -> None:
        self._drafter = drafter
        self._context = context
        self._vocabulary = task.constraint.vocabulary
        self._growth: TableGrowth | None = None
        self._tree = DraftTree()
        self._start = 0
        self._kind = 0

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        tokens = context.tokens
        self._learn(tokens[self._start :])
        self._growth = TableGrowth(state, tokens[-1:], _look_up(self._drafter, self._vocabulary))
        self._start, self._kind = len(tokens), state.kind
        self._tree = self._drafter.shape.grow(self._growth, budget, kind=state.kind)
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        drafter, tree = self._drafter, verified.tree
        successors: dict[int, Sequence[int]] = {}
        for node, tokens, _ in node_top_tokens(verified, drafter.store.count):
            last = self._context.tokens[verified.start - 1] if node == ROOT else tree.tokens[node]
            successors.setdefault(last, tokens)
        drafter.store.learn(self._vocabulary, successors.items())

    def _learn(self, came: Sequence[int]) -> None:
        """Compare the last draft tokens, also those that were not run, with the tokens of the output."""
        growth, self._growth = self._growth, None
        if growth is None or not came:
            return
        self._drafter.shape.learn(self._tree, came, self._kind)
        for depth, candidates, came_as in growth.outcomes(came):
            self._drafter.ranks.learn((depth, rank, rank == came_as) for rank in range(len(candidates.tokens)))
