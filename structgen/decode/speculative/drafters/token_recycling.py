"""Draft tokens from the tokens that the model last expected after the same token."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.acceptance import RankRates
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.likely_tokens import node_top_tokens
from structgen.decode.speculative.drafters.table_growth import TableCandidates, TableGrowth
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.tree_policy import Shape

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.grammar_position import GrammarPosition
    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary

__all__ = ["Successors", "TokenRecycling"]


@final
class Successors:
    """For each token the ``count`` tokens that were expected after it the last time it was seen.

    Source: the adjacency matrix of X. Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large
    Language Models with Token Recycling" (2024, arXiv 2408.08696).

    Threads may share one.  It holds a matrix of int32 ``[V, count]`` for each vocabulary that it was used with: 1.6 MB
    for 49k tokens and 8 successors; a system with lazy pages provides only the used part.

    Args:
        count: successors of each token; at least 1.

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
        """Bytes of all matrices."""
        return sum(matrix.nbytes for matrix in list(self._matrices.values()))

    def learn(self, vocabulary: Vocabulary, rows: Iterable[tuple[int, Sequence[int]]]) -> None:
        """Note what is expected after tokens, in place of what was noted before.

        Args:
            vocabulary: what the ids belong to.
            rows: tokens with their successors, the most probable first; more than ``count`` are cut off.
        """
        with self._lock:
            matrix = self._matrices.get(vocabulary.digest)
            if matrix is None:
                matrix = self._matrices[vocabulary.digest] = np.zeros((vocabulary.size, self.count), dtype=np.int32)
            for token, successors in rows:
                kept = successors[: self.count]
                matrix[token] = 0
                matrix[token, : len(kept)] = kept
                matrix[token, : len(kept)] += 1

    def after(self, vocabulary: Vocabulary, token: int) -> list[int]:
        """What is expected after ``token``, the most probable first; empty where nothing is known."""
        with self._lock:
            matrix = self._matrices.get(vocabulary.digest)
            row: list[int] = [] if matrix is None else matrix[token].tolist()
        return [successor - 1 for successor in row if successor]

    def __repr__(self) -> str:
        return f"<Successors, {self.count} of each token, {self.nbytes} bytes>"


_RATES: Final = (0.55, 0.1, 0.05, 0.03, 0.02, 0.02, 0.015, 0.015)
"""How often the successor of each rank came in JSON documents and prose that the embedded model wrote."""


@final
@dataclass(frozen=True)
class TokenRecycling(Drafter):
    """Draft tokens a tree of successors: after each token those that the model expected there the last time.

    The tokens that a model finds most probable come with every row of logits, also after draft tokens that were
    refused. They are kept for the last token before the row, and refreshed with each row.

    Source: X. Luo et al., "Turning Trash into Treasure: Accelerating Inference of Large Language Models with Token
    Recycling" (2024, arXiv 2408.08696).  Three things differ.  Ranks count what the grammar allows, so that a refused
    successor leaves its place in the tree to the next one.  The confidence of a draft token is how often its rank at
    its depth came.  Of a token that a pass has several times, the first row counts, which is the surest to be reached.

    Attributes:
        shape: what tree is grown.
        store: what was expected; outputs that share it learn from each other.
        ranks: how often the successor of each rank came at each depth: ``RankTree.of_rates(recycling.ranks.rates(8),
            24)`` is the tree that these say is best.

    Example:
        >>> TokenRecycling(RankTree.of_rates([[0.6, 0.2], [0.4]], 4)).shape.paths
        ((0,), (0, 0), (1,), (0, 0, 0))
    """

    shape: Shape = field(default_factory=lambda: RankTree.of_rates([_RATES], 24))
    store: Successors = field(default_factory=Successors)
    ranks: RankRates = field(default_factory=lambda: RankRates(_RATES))

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "token recycling"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _RecyclingDrafting(self, context, task)


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
        self._growth = TableGrowth(state, tokens[-1:], self._look_up)
        self._start, self._kind = len(tokens), state.kind
        self._tree = self._drafter.shape.grow(self._growth, budget, kind=state.kind)
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        drafter, tree = self._drafter, verified.tree
        found: dict[int, Sequence[int]] = {}
        for node, tokens, _ in node_top_tokens(verified, drafter.store.count):
            last = self._context.tokens[verified.start - 1] if node == ROOT else tree.tokens[node]
            found.setdefault(last, tokens)
        drafter.store.learn(self._vocabulary, found.items())

    def _look_up(self, tail: tuple[int, ...], depth: int, choice: GrammarPosition) -> TableCandidates:
        known = self._drafter.store.after(self._vocabulary, tail[-1])
        tokens = [token for token in known if choice.allows(token)]
        return TableCandidates(tokens, [self._drafter.ranks.rate(depth, rank) for rank in range(len(tokens))])

    def _learn(self, came: Sequence[int]) -> None:
        """Compare the last draft tokens with what came, those that were not run as well."""
        growth, self._growth = self._growth, None
        if growth is None or not came:
            return
        self._drafter.shape.learn(self._tree, came, self._kind)
        for depth, candidates, came_as in growth.outcomes(came):
            self._drafter.ranks.learn((depth, rank, rank == came_as) for rank in range(len(candidates.tokens)))
