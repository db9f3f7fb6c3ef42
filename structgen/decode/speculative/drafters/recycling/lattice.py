"""Which tokens of several positions go best together: the best sequences through a lattice.

Heads that guess several tokens at once guess each as if it knew nothing of the others.  A small model of sequences and
the grammar know what goes together; they choose among the best tokens of each position.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

import numpy as np

from structgen.decode.projection import log_mass
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafters.recycling.top_tokens import top_tokens

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.recycling.token_ngram import SequenceScorer
    from structgen.engine import Matcher
    from structgen.models.protocol import Logits

__all__ = ["Lattice", "Rescored", "rescored", "tree_of"]

_MOST_STATES: Final = 512


@final
@dataclass(frozen=True)
class Lattice:
    """Candidates for several positions, one behind the other.

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
    """A way through a lattice.

    Attributes:
        tokens: one of each position, up to the last that any way reaches.
        score: the sum of their log-probabilities, and of the scorer's.
    """

    tokens: tuple[int, ...]
    score: float


class _Way(NamedTuple):
    """The end of a way, with the way to it; the smallest is the best, of equally good ones that of smaller tokens."""

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
    most_states: int = _MOST_STATES,
) -> list[Rescored]:
    """Return the ``count`` best sequences through a lattice, the best first.

    The score of a sequence is the sum of its tokens' log-probabilities and ``weight`` times those that ``scorer`` gives
    to its tokens one after the other.  Where no sequence of the whole length is a beginning of what the grammar allows,
    it is that of the longest that are; none where not even one token is.

    A dynamic program over positions: what the future of a way depends on is its last ``scorer.order`` tokens and the
    state of the grammar; of the ways that agree in these, the ``count`` best are kept.

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
    states = {(next(iter(matchers), ROOT), start): [_Way(0.0, ())]}
    for tokens, log_p in zip(lattice.tokens, lattice.log_p, strict=True):
        arrived: dict[tuple[int, tuple[int, ...]], list[_Way]] = {}
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
                arrived.setdefault((then, end), []).extend(_Way(way.cost + cost, (*way.tokens, token)) for way in ways)
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
    """The state behind a token; None where the grammar refuses it."""
    if state not in matchers:
        return state  # there is no grammar
    matcher = matchers[state].fork()
    if not matcher.accept(token):
        return None
    then = matcher.state_id
    after.setdefault(then, matcher)
    return then
