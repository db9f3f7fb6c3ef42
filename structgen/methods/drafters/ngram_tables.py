"""Drafters over tables of the model's distributions after the same tokens: ``TrigramDrafts`` and ``Stand``.

``TrigramDrafts`` also explores tokens that were tried rarely; ``Stand`` samples from the table.
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

from structgen.cache import Locked
from structgen.decode.speculative.acceptance import Calibration, RankRates, as_prior
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GrammarPosition, Verified
from structgen.decode.speculative.drafters.likely_tokens import (
    NGramDistribution,
    NGramTable,
    TableCandidates,
    TableGrowth,
    ngram_top_tokens,
)
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.tree_policy import DraftDistribution, Shape, with_forced
from structgen.decode.step.sampler import Multinomial
from structgen.methods.tree_policies.draft_outcome import visited_siblings

if TYPE_CHECKING:
    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary

__all__ = ["Stand", "Trials", "TrigramDrafts"]

_STRENGTH: Final = 3.0
"""The weight of the probability in the table, in trials."""

_MEMORY: Final = 64.0
_MIN_ACCEPTANCE: Final = 0.005
_ORDER: Final = 2


@final
class Trials(Locked):
    """How often a token was proposed after two others, and how often it was right.

    Threads may share one.  Beyond ``most`` pairs, the least recently tried one is dropped; counts fade beyond 64 trials
    of a token.

    Args:
        most: the largest number of pairs of tokens; at least 1.

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
        """Return by token how often it was proposed after ``before``, and how often it was right."""
        with self._lock:
            return dict(self._trials.get((vocabulary.digest, before), {}))

    def record(self, vocabulary: Vocabulary, before: tuple[int, ...], proposed: Iterable[int], came: int) -> None:
        """Record the tokens that were proposed after ``before``, and the token of the output."""
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
    """Drafts a tree by the model's distributions after the last two tokens, or the last one, and by past acceptance.

    The tree grows where the score of a path, the product of the scores of its tokens, is largest.  The score of a token
    is that of PUCT (C. Rosin 2011), its estimated acceptance and an exploration bonus,

        Q + exploration * P * sqrt(1 + N) / (1 + n),  at most 1,

    with ``P`` its probability in the table, ``n`` how often it was proposed after these tokens, ``N`` how often any
    token was, and ``Q`` its acceptance rate with prior ``P``.  So a likely token that keeps failing gives way to
    others, and comes back as they fail.  The confidence of a draft token is ``Q``, without the bonus.

    Source: X. Liu et al., "Adaptive Draft-Verification for Efficient Large Language Model Decoding" (2024, arXiv
    2407.12021), which searches such a table with simulated visits; here the visits are those of real passes, so the
    same state gives the same tree.

    Attributes:
        store: the table; outputs that share it learn from each other.
        trials: the past outcomes; outputs that share them learn from each other.
        exploration: the weight of the bonus; 0 for none.

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
    """The estimated acceptance ``Q`` of a candidate, and the score by which the tree grows."""

    value: float
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
        _learn_pass(self._drafter.store, self._vocabulary, self._context, verified)

    def _grow(self, growth: TableGrowth, tail: Sequence[int], budget: int) -> None:
        """Add the candidate with the largest score of its path, again and again."""
        tree, order = self._tree, count()
        waiting: list[tuple[float, int, int, int, float]] = []  # score of the path, order, parent, token, value

        def wait(node: int, reach: float) -> None:
            distribution: DraftDistribution | None = growth.distributions(tree, [node])[0]
            if distribution is None:
                return
            parent = with_forced(tree, node, distribution, budget - 1)
            if parent is None:
                return
            scores = self._scores[self._pair(tail, parent)]
            for token in distribution.tokens.tolist():
                value, score = scores[token]
                if reach * score >= _MIN_ACCEPTANCE:
                    heapq.heappush(waiting, (-reach * score, next(order), parent, token, value))

        if budget > 0:
            wait(ROOT, 1.0)
        while waiting and len(tree) < budget:
            negative, _, parent, token, value = heapq.heappop(waiting)
            node = tree.add(parent, token, value)
            if len(tree) < budget:
                wait(node, -negative)

    def _look_up(self, tail: tuple[int, ...], depth: int, position: GrammarPosition) -> TableCandidates | None:
        del depth
        for after in self._drafter.store.find(self._vocabulary, tail):
            distribution = {
                token: probability
                for token, probability in zip(after.tokens, after.probabilities, strict=True)
                if position.allows(token)
            }
            if distribution:
                self._scores[tail] = scores = self._scored(tail, distribution)
                ranked = sorted(distribution, key=lambda token: -scores[token].score)
                return TableCandidates(ranked, [scores[token].value for token in ranked])
        return None

    def _scored(self, before: tuple[int, ...], distribution: dict[int, float]) -> dict[int, _CandidateScore]:
        trials = self._drafter.trials.of(self._vocabulary, before)
        bonus = self._drafter.exploration * math.sqrt(1 + sum(tried for tried, _ in trials.values()))
        scores = {}
        for token, probability in distribution.items():
            tried, taken = trials.get(token, (0.0, 0.0))
            value = (_STRENGTH * probability + taken) / (_STRENGTH + tried)
            scores[token] = _CandidateScore(value, min(1.0, value + bonus * probability / (1 + tried)))
        return scores

    def _pair(self, tail: Sequence[int], node: int) -> tuple[int, ...]:
        """The last two tokens up to a node."""
        path: list[int] = []
        while node != ROOT and len(path) < _ORDER:
            path.append(self._tree.tokens[node])
            node = self._tree.parents[node]
        return (*tail, *path[::-1])[-_ORDER:]

    def _learn(self, before: Sequence[int], came: Sequence[int]) -> None:
        """Record which draft tokens were right, including those that were not run."""
        tree, tail = self._tree, tuple(before[-_ORDER:])
        for parent, token in zip((ROOT, *tree.follow(came)), came, strict=False):
            proposed = [tree.tokens[child] for child in tree.children(parent) if tree.sources[child] != FORCED]
            if proposed:
                self._drafter.trials.record(self._vocabulary, tail, proposed, token)
            tail = (*tail, token)[-_ORDER:]
        self._tree = DraftTree()


_RATES: Final = (0.7, 0.1, 0.06, 0.04, 0.03, 0.02)
"""How often the draft token of each rank was right in JSON documents and prose of the embedded model."""

_GRADES: Final = 8


def _learn_pass(store: NGramTable, vocabulary: Vocabulary, context: Context, verified: Verified) -> None:
    """Add the distributions of a pass to the table."""
    before = context.tokens[max(verified.start - store.order, 0) : verified.start]
    store.learn(vocabulary, ngram_top_tokens(verified, before, store.order, store.keep))


@final
@dataclass(frozen=True)
class Stand(Drafter):
    """Drafts from a table of the model's distributions by the last few tokens.

    The table keeps probabilities, so draft tokens can be sampled without replacement and verified
    (``DraftTree.sampled``). The distribution is masked by the grammar and shaped by the sampler first.  For a sampler
    other than ``Multinomial``, the most probable tokens are chosen.  Several outputs of one prompt draft for each other
    through the store.

    Source: W. Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling" (2025, arXiv
    2506.04708).

    Attributes:
        shape: the tree policy.
        store: the table; outputs that share it learn from each other.
        draws: whether tokens are sampled if the sampler is a ``Multinomial``; otherwise the most probable ones are
            chosen, and the output of a seed is the same as without drafts.
        ranks: the acceptance of draft tokens by rank and depth; ``RankTree.of_rates(stand.ranks.rates(6), 24)`` is the
            best tree for them.
        calibration: how often chosen draft tokens were right, by n-gram length and probability in the table.
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
        _learn_pass(self._drafter.store, self._vocabulary, self._context, verified)

    def _look_up(self, tail: tuple[int, ...], depth: int, position: GrammarPosition) -> TableCandidates | None:
        del depth
        for after in self._drafter.store.find(self._vocabulary, tail):
            allowed = [
                (token, probability)
                for token, probability in zip(after.tokens, after.probabilities, strict=True)
                if position.allows(token)
            ]
            if allowed:
                tokens, probabilities = zip(*allowed, strict=True)
                if self._sampler is not None:
                    return _shaped_distribution(tokens, probabilities, self._sampler)
                return self._graded(tokens, probabilities, after)
        return None

    def _graded(
        self, tokens: Sequence[int], probabilities: Sequence[float], after: NGramDistribution
    ) -> TableCandidates:
        keys = [(after.length, round(probability * _GRADES)) for probability in probabilities]
        chances = [
            self._drafter.calibration.probability(key, as_prior(probability))
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
        """Compare the last draft tokens with the tokens of the output."""
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
    """The candidates with probabilities shaped by the sampler and renormalised."""
    weights = sampler.shaped(np.log(np.array(probabilities)))
    ranked = [index for index in np.argsort(-weights, kind="stable").tolist() if weights[index] > 0]
    shares = weights[ranked] / weights[ranked].sum()
    return TableCandidates([tokens[index] for index in ranked], shares.tolist())
