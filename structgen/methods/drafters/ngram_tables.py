"""Drafters over tables of what the model expected after the same tokens: ``TrigramDrafts`` and ``Stand``.

``TrigramDrafts`` also tries tokens that were tried little; ``Stand`` samples, from a store that outputs share.
"""

from __future__ import annotations

import heapq
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.decode.speculative.acceptance import Calibration, RankRates
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.drafters.likely_tokens import NGramDistribution, NGramTable, ngram_top_tokens
from structgen.decode.speculative.drafters.table_growth import TableCandidates, TableGrowth
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.tree_policy import DraftDistribution, Shape, with_forced
from structgen.decode.step.sampler import Multinomial
from structgen.methods.tree_policies.draft_outcome import visited_siblings

if TYPE_CHECKING:
    from structgen.decode.speculative.grammar_position import GrammarPosition
    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary

__all__ = ["Stand", "Trials", "TrigramDrafts"]

_STRENGTH: Final = 3.0
"""How many trials the probability in the table weighs as much as."""

_MEMORY: Final = 64.0
_MIN_ACCEPTANCE: Final = 0.005
_ORDER: Final = 2


@final
class Trials:
    """How often a token was proposed after two others, and how often it came.

    Threads may share one.  Pairs that were not tried longest are forgotten beyond ``most``; counts fade beyond 64
    trials of a token.

    Args:
        most: pairs of tokens; at least 1.

    Raises:
        ValueError: ``most`` is below 1.
    """

    def __init__(self, most: int = 16_384) -> None:
        if most < 1:
            raise ValueError(f"Trials: most must be at least 1; found {most!r}")
        self._most = most
        self._trials: OrderedDict[tuple[bytes, tuple[int, ...]], dict[int, tuple[float, float]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._trials)

    def of(self, vocabulary: Vocabulary, before: tuple[int, ...]) -> dict[int, tuple[float, float]]:
        """By token: how often it was proposed after ``before``, and how often it came."""
        with self._lock:
            return dict(self._trials.get((vocabulary.digest, before), {}))

    def record(self, vocabulary: Vocabulary, before: tuple[int, ...], proposed: Iterable[int], came: int) -> None:
        """Note what was proposed after ``before``, and what came."""
        with self._lock:
            trials = self._trials.setdefault((vocabulary.digest, before), {})
            self._trials.move_to_end((vocabulary.digest, before))
            for token in proposed:
                tried, taken = trials.get(token, (0.0, 0.0))
                fade = min(1.0, (_MEMORY - 1) / max(tried, 1.0))
                trials[token] = tried * fade + 1, taken * fade + (token == came)
            if len(self._trials) > self._most:
                self._trials.popitem(last=False)


@final
@dataclass(frozen=True)
class TrigramDrafts(Drafter):
    """Draft tokens a tree by what the model told after the last two tokens, or the last one.

    And by how draft tokens fared.

    The tree grows where the score of a path, the product of those of its tokens, is largest.  A token's score is that
    of the rule PUCT (C. Rosin 2011): what it is worth by experience, and a bonus for what was tried little,

        Q + exploration * P * sqrt(1 + N) / (1 + n),  at most 1,

    with ``P`` its probability in the table, ``n`` how often it was proposed after these tokens, ``N`` how often any
    was, and ``Q`` the share of the ``n`` times that it came, with ``P`` for a prior.  So a draft token that the table
    finds likely and that keeps failing makes room for others, and comes back as they fail.  The confidence of a draft
    token is
    ``Q``: the bonus says what to try, not what to expect.

    Source: X. Liu et al., "Adaptive Draft-Verification for Efficient Large Language Model Decoding" (2024, arXiv
    2407.12021), which searches such a table with simulated visits; here the visits are those of real passes, so the
    same state gives the same tree and nothing is simulated.

    Attributes:
        store: the table; outputs that share it learn from each other.
        trials: how draft tokens fared; likewise.
        exploration: weight of the bonus; 0 is none.

    Raises:
        ValueError: ``exploration`` is negative or not finite.
    """

    store: NGramTable = field(default_factory=lambda: NGramTable(_ORDER))
    trials: Trials = field(default_factory=Trials)
    exploration: float = 0.1

    def __post_init__(self) -> None:
        if not (math.isfinite(self.exploration) and self.exploration >= 0):
            raise ValueError(f"TrigramDrafts: exploration must be finite and not negative; found {self.exploration!r}")

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "trigrams"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``."""
        return _TrigramDrafting(self, context, task)


class _CandidateScore(NamedTuple):
    """Of a candidate: ``Q``, and the score by which the tree grows."""

    worth: float
    score: float


@final
class _TrigramDrafting(Drafting):
    def __init__(self, drafter: TrigramDrafts, context: Context, task: DraftTask) -> None:
        self._drafter = drafter
        self._context = context
        self._vocabulary = task.constraint.vocabulary
        self._start = 0
        self._tree = DraftTree()
        self._scores: dict[tuple[int, ...], dict[int, _CandidateScore]] = {}

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        tokens = context.tokens
        self._learn(tokens[: self._start], tokens[self._start :])
        self._scores = {}
        growth = TableGrowth(state, tokens[-_ORDER:], self._look_up)
        self._start, self._tree = len(tokens), DraftTree()
        self._grow(growth, tokens[-_ORDER:], budget)
        return self._tree

    def observe(self, verified: Verified) -> None:
        """See ``Drafting.observe``."""
        store = self._drafter.store
        before = self._context.tokens[max(verified.start - store.order, 0) : verified.start]
        store.learn(self._vocabulary, ngram_top_tokens(verified, before, store.order, store.keep))

    def _grow(self, growth: TableGrowth, tail: Sequence[int], budget: int) -> None:
        """Add the candidate with the largest score of its path, again and again."""
        tree, order = self._tree, count()
        waiting: list[tuple[float, int, int, int, float]] = []  # score of the path, order, parent, token, worth

        def wait(node: int, reach: float) -> None:
            distribution: DraftDistribution | None = growth.distributions(tree, [node])[0]
            if distribution is None:
                return
            parent = with_forced(tree, node, distribution, budget - 1)
            if parent is None:
                return
            scores = self._scores[self._pair(tail, parent)]
            for token in distribution.tokens.tolist():
                worth, score = scores[token]
                if reach * score >= _MIN_ACCEPTANCE:
                    heapq.heappush(waiting, (-reach * score, next(order), parent, token, worth))

        if budget > 0:
            wait(ROOT, 1.0)
        while waiting and len(tree) < budget:
            negative, _, parent, token, worth = heapq.heappop(waiting)
            node = tree.add(parent, token, worth)
            if len(tree) < budget:
                wait(node, -negative)

    def _look_up(self, tail: tuple[int, ...], depth: int, choice: GrammarPosition) -> TableCandidates | None:
        del depth
        for known in self._drafter.store.find(self._vocabulary, tail):
            distribution = {
                token: probability
                for token, probability in zip(known.tokens, known.probabilities, strict=True)
                if choice.allows(token)
            }
            if distribution:
                self._scores[tail] = scores = self._scored(tail, distribution)
                ranked = sorted(distribution, key=lambda token: -scores[token].score)
                return TableCandidates(ranked, [scores[token].worth for token in ranked])
        return None

    def _scored(self, before: tuple[int, ...], distribution: dict[int, float]) -> dict[int, _CandidateScore]:
        trials = self._drafter.trials.of(self._vocabulary, before)
        bonus = self._drafter.exploration * math.sqrt(1 + sum(tried for tried, _ in trials.values()))
        scores = {}
        for token, probability in distribution.items():
            tried, taken = trials.get(token, (0.0, 0.0))
            worth = (_STRENGTH * probability + taken) / (_STRENGTH + tried)
            scores[token] = _CandidateScore(worth, min(1.0, worth + bonus * probability / (1 + tried)))
        return scores

    def _pair(self, tail: Sequence[int], node: int) -> tuple[int, ...]:
        """The last two tokens up to a node."""
        path: list[int] = []
        while node != ROOT and len(path) < _ORDER:
            path.append(self._tree.tokens[node])
            node = self._tree.parents[node]
        return (*tail, *path[::-1])[-_ORDER:]

    def _learn(self, before: Sequence[int], came: Sequence[int]) -> None:
        """Note which draft tokens fared how, those that were not run as well."""
        tree, tail, node = self._tree, tuple(before[-_ORDER:]), ROOT
        for token in came:
            children = tree.children(node)
            proposed = [tree.tokens[child] for child in children if tree.sources[child] != FORCED]
            if proposed:
                self._drafter.trials.record(self._vocabulary, tail, proposed, token)
            found = tree.child(node, token)
            if found is None:
                break
            node, tail = found, (*tail, token)[-_ORDER:]
        self._tree = DraftTree()


_RATES: Final = (0.7, 0.1, 0.06, 0.04, 0.03, 0.02)
"""How often the draft token of each rank came in JSON documents and prose that the embedded model wrote."""

_GRADES: Final = 8


@final
@dataclass(frozen=True)
class Stand(Drafter):
    """Draft tokens from a table of distributions by the last few tokens.

    What the model told after a run of tokens is kept with its probabilities, so draft tokens can be drawn at random
    from it, without replacement, and verified as such (``DraftTree.drawn``); the distribution is restricted to what the
    grammar allows before anything is drawn, and shaped as the sampler shapes the model's.  For a sampler that draws
    nothing the most probable tokens are chosen.  Several outputs for one prompt repeat each other, and draft for each
    other through the store.

    Source: W. Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (2025, arXiv
    2506.04708).

    Attributes:
        shape: what tree is grown.
        store: the table; outputs that share it learn from each other.
        draws: whether to draw for a sampler that draws (``Multinomial``); else draft tokens are chosen for it too, and
            an output is the same as without draft tokens, seed for seed.
        ranks: how often the draft token of each rank came; ``RankTree.of_rates(stand.ranks.rates(6), 24)`` is the tree
            that these say is best.
        calibration: how often chosen draft tokens came, by the length of the run and the probability in the table.
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
        """Compare the last draft tokens with what came."""
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
    """The distribution that the sampler makes of a distribution that is known for these tokens alone."""
    weights = sampler.shaped(np.log(np.array(probabilities)))
    ranked = [index for index in np.argsort(-weights, kind="stable").tolist() if weights[index] > 0]
    shares = weights[ranked] / weights[ranked].sum()
    return TableCandidates([tokens[index] for index in ranked], shares.tolist())
