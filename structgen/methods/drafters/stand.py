"""Guesses drawn from what the model told behind the same tokens before, by any output that shares the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.acceptance import Calibration, RankRates
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.likely_tokens import NGramDistribution, NGramTable, ngram_top_tokens
from structgen.decode.speculative.drafters.table_growth import TableCandidates, TableGrowth
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.tree_policy import Shape
from structgen.decode.step.sampler import Multinomial
from structgen.methods.tree_policies.draft_outcome import visited_siblings

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.table_growth import GrammarPosition
    from structgen.decode.step.context import Context

__all__ = ["Stand"]

_RATES: Final = (0.7, 0.1, 0.06, 0.04, 0.03, 0.02)
"""How often the guess of each rank came in JSON documents and prose that the embedded model wrote."""

_GRADES: Final = 8


@final
@dataclass(frozen=True)
class Stand(Drafter):
    """Guesses from a table of laws by the last few tokens.

    What the model told behind a run of tokens is kept with its probabilities, so guesses can be drawn at random from
    it, without replacement, and verified as such (``DraftTree.drawn``); the law is restricted to what the grammar
    allows before anything is drawn, and shaped as the sampler shapes the model's.  For a sampler that draws nothing the
    most probable tokens are chosen.  Several outputs for one prompt repeat each other, and guess for each other through
    the store.

    Source: W. Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (2025, arXiv
    2506.04708).

    Attributes:
        shape: what tree is grown.
        store: the table; outputs that share it learn from each other.
        draws: whether to draw for a sampler that draws (``Multinomial``); else guesses are chosen for it too, and an
            output is the same as without guesses, seed for seed.
        ranks: how often the guess of each rank came; ``RankTree.of_rates(stand.ranks.rates(6), 24)`` is the tree that
            these say is best.
        calibration: how often chosen guesses came, by the length of the run and the probability in the table.
    """

    shape: Shape = field(default_factory=lambda: RankTree.of_rates([_RATES], 24))
    store: NGramTable = field(default_factory=NGramTable)
    draws: bool = True
    ranks: RankRates = field(default_factory=lambda: RankRates(_RATES))
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "stand"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _StandDrafting(self, context, task)


@final
class _StandDrafting(Drafting):
    def __init__(self, drafter: Stand, context: Context, task: DraftTask) -> None:
        self._drafter = drafter
        self._context = context
        self._vocabulary = task.constraint.vocabulary
        self._sampler = task.sampler if drafter.draws and isinstance(task.sampler, Multinomial) else None
        self._generator = task.generator
        self._growth: TableGrowth | None = None
        self._tree = DraftTree()
        self._start = 0
        self._kind = 0

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        drafter, tokens = self._drafter, context.tokens
        self._learn(tokens[self._start :])
        draws = self._sampler is not None
        self._growth = TableGrowth(state, tokens[-drafter.store.order :], self._look_up, is_dense=draws)
        self._start, self._kind = len(tokens), state.kind
        self._tree = drafter.shape.grow(
            self._growth, budget, kind=state.kind, generator=self._generator if draws else None
        )
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        store = self._drafter.store
        before = self._context.tokens[max(verified.start - store.order, 0) : verified.start]
        store.learn(self._vocabulary, ngram_top_tokens(verified, before, store.order, store.keep))

    def _look_up(self, tail: tuple[int, ...], depth: int, choice: GrammarPosition) -> TableCandidates | None:
        del depth
        for known in self._drafter.store.find(self._vocabulary, tail):
            kept = [
                (token, probability)
                for token, probability in zip(known.tokens, known.probabilities, strict=True)
                if choice.allows(token)
            ]
            if kept:
                tokens, probabilities = zip(*kept, strict=True)
                if self._sampler is not None:
                    return _shaped_distribution(tokens, probabilities, self._sampler)
                return self._graded(tokens, probabilities, known)
        return None

    def _graded(
        self, tokens: Sequence[int], probabilities: Sequence[float], known: NGramDistribution
    ) -> TableCandidates:
        keys = [(known.length, round(probability * _GRADES)) for probability in probabilities]
        chances = [
            self._drafter.calibration.probability(key, min(max(probability, 0.01), 0.99))
            for key, probability in zip(keys, probabilities, strict=True)
        ]
        ranked = sorted(range(len(tokens)), key=lambda index: -chances[index])
        total = max(1.0, sum(chances))
        return TableCandidates(
            [tokens[index] for index in ranked],
            [chances[index] / total for index in ranked],
            [keys[index] for index in ranked],
        )

    def _learn(self, came: Sequence[int]) -> None:
        """Compare the last guesses with what came."""
        growth, self._growth = self._growth, None
        if growth is None or not came:
            return
        drafter = self._drafter
        drafter.shape.learn(self._tree, came, self._kind)
        for depth, (siblings, taken) in enumerate(visited_siblings(self._tree, came)):
            drafter.ranks.learn((depth, rank, node == taken) for rank, node in enumerate(siblings))
        if self._sampler is None:
            for outcome in growth.outcomes(came):
                drafter.calibration.record_all(
                    (key, rank == outcome.rank) for rank, key in enumerate(outcome.candidates.keys)
                )


def _shaped_distribution(
    tokens: Sequence[int], probabilities: Sequence[float], sampler: Multinomial
) -> TableCandidates:
    """The law that the sampler makes of a law that is known for these tokens alone."""
    weights = sampler.shaped(np.log(np.array(probabilities)))
    ranked = [index for index in np.argsort(-weights, kind="stable").tolist() if weights[index] > 0]
    shares = weights[ranked] / weights[ranked].sum()
    return TableCandidates([tokens[index] for index in ranked], shares.tolist())
