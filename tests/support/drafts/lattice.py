"""Reference search: the best token sequences through a lattice, with an n-gram model as the scorer."""

from __future__ import annotations

import heapq
import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafters.likely_tokens import top_tokens
from structgen.decode.step.distribution import log_mass

if TYPE_CHECKING:
    from structgen.engine import Matcher
    from structgen.models.protocol import Logits

__all__ = ["Lattice", "Rescored", "SequenceScorer", "TokenNGram", "rescored", "tree_of"]

_MAX_STATES: Final = 512


@final
@dataclass(frozen=True)
class Lattice:
    """Candidates for several positions, one after the other.

    Attributes:
        tokens: for each position ids, none twice.
        log_p: for each position their log-probabilities.

    Raises:
        ValueError: the two differ in shape, or a position has a token twice.
    """

    tokens: tuple[tuple[int, ...], ...]
    log_p: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if [len(each) for each in self.tokens] != [len(each) for each in self.log_p]:
            raise ValueError("Lattice: tokens and log_p must have the same shape")
        if any(len(set(each)) < len(each) for each in self.tokens):
            raise ValueError("Lattice: a position must not have a token twice")

    @classmethod
    def of_logits(cls, rows: Logits, count: int) -> Self:
        """The most probable tokens of each position.

        Args:
            rows: logits, ``[positions, V]``.
            count: candidates of a position; at least 1.
        """
        tokens, logits = top_tokens(rows, count)
        log_p = logits - np.array([[log_mass(row)] for row in rows])
        return cls(tuple(map(tuple, tokens.tolist())), tuple(map(tuple, log_p.tolist())))


class Rescored(NamedTuple):
    """A path through a lattice.

    Attributes:
        tokens: one of each position, up to the last that any path reaches.
        score: the sum of their log-probabilities, and of the scorer's.
    """

    tokens: tuple[int, ...]
    score: float


class _LatticePath(NamedTuple):
    """The end of a path, and the path to it; the smallest is the best, and ties are broken by smaller tokens."""

    cost: float
    tokens: tuple[int, ...]


def rescored(
    lattice: Lattice,
    count: int,
    *,
    before: Sequence[int] = (),
    scorer: SequenceScorer | None = None,
    weight: float = 1.0,
    matcher: Matcher | None = None,
    most_states: int = _MAX_STATES,
) -> list[Rescored]:
    """Return the ``count`` best sequences through a lattice, the best first.

    The score of a sequence is the sum of its tokens' log-probabilities and ``weight`` times those that ``scorer`` gives
    to its tokens one after the other. If the grammar allows no sequence of the whole length, the longest allowed
    sequences are returned; none if not even one token is allowed.

    A dynamic program over positions: the future of a path depends on its last ``scorer.order`` tokens and the state of
    the grammar; among the paths that agree in these, the ``count`` best are kept.

    Source: T. Kim et al., "Exploring and Improving Drafts in Blockwise Parallel Decoding" (2024, arXiv 2404.09221);
    the intersection with the grammar is new here.

    Args:
        lattice: the candidates.
        count: how many sequences.
        before: the tokens before the first position, for the scorer.
        scorer: how well tokens go together; None scores nothing.
        weight: of the scorer; not negative.
        matcher: where the first position stands in the grammar; it is not moved.  None allows all.  Stops are no
            candidates.
        most_states: of the states of a position only so many are kept, those with the best ways.  Where there are
            no more, the result is exact.

    Raises:
        ValueError: ``count`` or ``most_states`` is below 1, or ``weight`` is negative.

    Complexity: O(positions * states * candidates * count).
    """
    if count < 1 or most_states < 1 or not weight >= 0:
        raise ValueError(
            "rescored: count and most_states must be at least 1 and weight not negative; "
            f"found {count!r}, {most_states!r} and {weight!r}"
        )
    order = 0 if scorer is None else scorer.order
    start = tuple(before[len(before) - min(len(before), order) :])
    matchers = {} if matcher is None else {matcher.state_id: matcher}
    stops = frozenset() if matcher is None else frozenset(matcher.constraint.vocabulary.eos)
    states = {(next(iter(matchers), ROOT), start): [_LatticePath(0.0, ())]}
    for tokens, log_p in zip(lattice.tokens, lattice.log_p, strict=True):
        arrived: dict[tuple[int, tuple[int, ...]], list[_LatticePath]] = {}
        after: dict[int, Matcher] = {}
        steps: dict[tuple[int, int], int | None] = {}
        for (state, tail), ways in states.items():
            for token, chance in zip(tokens, log_p, strict=True):
                if token in stops or chance == -np.inf:
                    continue
                if (state, token) not in steps:
                    steps[state, token] = _stepped(matchers, after, state, token)
                then = steps[state, token]
                if then is None:
                    continue
                cost = -chance - (0.0 if scorer is None else weight * scorer.log_p(tail, token))
                end = (*tail, token)[len(tail) + 1 - min(len(tail) + 1, order) :]
                arrived.setdefault((then, end), []).extend(
                    _LatticePath(way.cost + cost, (*way.tokens, token)) for way in ways
                )
        if not arrived:
            break
        kept = {key: heapq.nsmallest(count, ways) for key, ways in arrived.items()}
        best = heapq.nsmallest(most_states, kept.items(), key=lambda item: item[1][0])
        states, matchers = dict(best), after
    merged = heapq.merge(*states.values())
    return [Rescored(way.tokens, -way.cost) for way in islice(merged, count) if way.tokens]


def tree_of(lattice: Lattice, found: Sequence[Rescored], *, source: str = "") -> DraftTree:
    """The tree of some sequences through a lattice; the confidence of a token is its probability there."""
    tree = DraftTree()
    chances = [dict(zip(*each, strict=True)) for each in zip(lattice.tokens, lattice.log_p, strict=True)]
    for each in found:
        confidences = [min(1.0, float(np.exp(chances[place][token]))) for place, token in enumerate(each.tokens)]
        tree.extend(ROOT, each.tokens, confidences, source=source)
    return tree


def _stepped(matchers: dict[int, Matcher], after: dict[int, Matcher], state: int, token: int) -> int | None:
    """The state after a token; None where the grammar refuses it."""
    if state not in matchers:
        return state  # no grammar was given
    matcher = matchers[state].fork()
    if not matcher.accept(token):
        return None
    then = matcher.state_id
    after.setdefault(then, matcher)
    return then


class SequenceScorer(Protocol):
    """Says how probable a token is after the last few.

    Attributes:
        order: how many tokens before it that depends on.
    """

    @property
    def order(self) -> int: ...
    def log_p(self, before: tuple[int, ...], token: int, /) -> float:
        """The logarithm of the probability of ``token`` after ``before``, up to ``order`` tokens."""


@final
class TokenNGram:
    """Counts of what followed runs of up to ``order`` tokens; those of longer runs are smoothed by shorter ones.

    Source: I. Witten and T. Bell, "The zero-frequency problem" (1991), for the smoothing; what no text showed shares
    the uniform distribution over the vocabulary.

    Threads may share one.  Runs that nothing was added to longest are forgotten beyond ``most``.

    Args:
        size: tokens of the vocabulary; at least 1.
        order: tokens that the next one depends on; at least 0.
        most: runs; at least 1.

    Raises:
        ValueError: a number is too small.
    """

    def __init__(self, size: int, *, order: int = 1, most: int = 65_536) -> None:
        if size < 1 or order < 0 or most < 1:
            raise ValueError(
                f"TokenNGram: size and most must be at least 1, order at least 0; found {size}, {most} and {order}"
            )
        self.size = size
        self.order = order
        self._most = most
        self._counts: OrderedDict[tuple[int, ...], dict[int, float]] = OrderedDict()
        self._totals: dict[tuple[int, ...], float] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._counts)

    def learn(self, tokens: Sequence[int], weight: float = 1.0) -> None:
        """Count what follows what in a sequence.

        Raises:
            ValueError: ``weight`` is not positive.
        """
        if not weight > 0:
            raise ValueError(f"TokenNGram: weights must be positive; found {weight!r}")
        with self._lock:
            for place, token in enumerate(tokens):
                for start in range(max(place - self.order, 0), place + 1):
                    run = tuple(tokens[start:place])
                    counts = self._counts.setdefault(run, {})
                    counts[token] = counts.get(token, 0.0) + weight
                    self._totals[run] = self._totals.get(run, 0.0) + weight
                    self._counts.move_to_end(run)
            while len(self._counts) > self._most:
                run, _ = self._counts.popitem(last=False)
                del self._totals[run]

    def learn_all(self, texts: Iterable[Sequence[int]]) -> None:
        """Count in several sequences."""
        for tokens in texts:
            self.learn(tokens)

    def log_p(self, before: tuple[int, ...], token: int) -> float:
        """See ``SequenceScorer.log_p``; never minus infinity."""
        probability = 1 / self.size
        end = before[len(before) - min(len(before), self.order) :]
        with self._lock:
            for start in range(len(end), -1, -1):
                counts = self._counts.get(end[start:])
                if counts is None:
                    break
                total = self._totals[end[start:]]
                unseen = len(counts) / (len(counts) + total)
                probability = unseen * probability + (1 - unseen) * counts.get(token, 0.0) / total
        return math.log(probability)

    def __repr__(self) -> str:
        return f"<TokenNGram of order {self.order}, {len(self)} runs>"
