"""The most probable tokens in the logits of each pass, and a table of them by the last few tokens."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import FORCED, ROOT
from structgen.decode.speculative.grammar_position import allowed_among, tree_masks
from structgen.decode.step.logits_row import on_host
from structgen.engine.mask import allowed_ids
from structgen.models.protocol import Logits

if TYPE_CHECKING:
    from structgen.decode.speculative.drafter import Verified
    from structgen.engine import Matcher, Vocabulary

__all__ = [
    "NGramDistribution",
    "NGramTable",
    "NodeTopTokens",
    "ngram_top_tokens",
    "node_top_tokens",
    "top_tokens",
]

_MEMORY: Final = 16
"""The mean of the distributions after a run goes over so many of the last, in effect."""

_MeanTable: TypeAlias = "OrderedDict[tuple[int, ...], tuple[int, dict[int, float]]]"


class NGramDistribution(NamedTuple):
    """What is known after a run of tokens.

    Attributes:
        length: how many tokens the run has.
        tokens: ids, the most probable first; of equally probable ones the one with the lowest id.
        probabilities: theirs, which sum to 1.
    """

    length: int
    tokens: list[int]
    probabilities: list[float]


@final
class NGramTable:
    """After each run of up to ``order`` tokens the mean of the distributions that the model told there.

    Of each distribution only the most probable tokens are kept, and their probabilities are shared out anew among them,
    so what is kept can be drawn from.  Where a run comes again, its mean moves on; distributions of long ago fade.

    Source: the n-gram module of W. Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling"
    (2025, arXiv 2506.04708).

    Threads may share one.  Runs that were neither learned nor asked for longest are forgotten beyond ``most``, for each
    vocabulary by itself; one takes about 1 kB.

    Args:
        order: tokens of the longest runs; at least 1.
        keep: tokens of each distribution; at least 1.
        most: runs; at least 1.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, order: int = 3, *, keep: int = 8, most: int = 16_384) -> None:
        if order < 1 or keep < 1 or most < 1:
            raise ValueError(f"NGramLaws: order, keep and most must be at least 1; found {order}, {keep} and {most}")
        self.order = order
        self.keep = keep
        self.most = most
        self._tables: dict[bytes, _MeanTable] = {}  # by the digest of the vocabulary
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, list(self._tables.values())))

    def learn(
        self, vocabulary: Vocabulary, distributions: Iterable[tuple[Sequence[int], Sequence[int], Sequence[float]]]
    ) -> None:
        """Take in what the model told.

        Args:
            vocabulary: what the ids belong to.
            distributions: the tokens before a position, the last at the end; the most probable tokens there; their
                logits; the first is the largest.

        Complexity: O(order * keep) for each distribution.
        """
        prepared = [
            (tuple(before[-self.order :]), _shares(tokens[: self.keep], logits))
            for before, tokens, logits in distributions
            if tokens
        ]
        with self._lock:
            table = self._tables.setdefault(vocabulary.digest, OrderedDict())
            for before, distribution in prepared:
                for start in range(len(before)):
                    run = before[start:]
                    table[run] = self._mean(table.get(run), distribution)
                    table.move_to_end(run)
            while len(table) > self.most:
                table.popitem(last=False)

    def find(self, vocabulary: Vocabulary, before: Sequence[int]) -> list[NGramDistribution]:
        """What is known after the longest run at the end of ``before``, then the next longest, and so on."""
        end = tuple(before[-self.order :])
        found = []
        with self._lock:
            table = self._tables.get(vocabulary.digest) or OrderedDict()
            for start in range(len(end)):
                known = table.get(end[start:])
                if known is not None:
                    found.append((len(end) - start, known[1]))
            if found:
                table.move_to_end(end[len(end) - found[0][0] :])
        return [_ranked(length, distribution) for length, distribution in found]

    def _mean(
        self, known: tuple[int, dict[int, float]] | None, distribution: dict[int, float]
    ) -> tuple[int, dict[int, float]]:
        """Never changes ``known``, which a reader may hold."""
        if known is None:
            return 1, distribution
        count, old = known
        share = 1 / (count + 1)
        mean = {token: probability * (1 - share) for token, probability in old.items()}
        for token, probability in distribution.items():
            mean[token] = mean.get(token, 0.0) + probability * share
        if len(mean) > self.keep:
            mean = dict(sorted(mean.items(), key=_falling)[: self.keep])
        return min(count + 1, _MEMORY), mean

    def __repr__(self) -> str:
        return f"<NGramLaws after {len(self)} runs of up to {self.order} tokens>"


def _shares(tokens: Sequence[int], logits: Sequence[float]) -> dict[int, float]:
    weights = [math.exp(logit - logits[0]) for logit in logits[: len(tokens)]]
    total = sum(weights)
    return {token: weight / total for token, weight in zip(tokens, weights, strict=True)}


def _ranked(length: int, distribution: dict[int, float]) -> NGramDistribution:
    ranked = sorted(distribution.items(), key=_falling)
    total = sum(distribution.values())
    return NGramDistribution(length, [token for token, _ in ranked], [probability / total for _, probability in ranked])


def _falling(item: tuple[int, float]) -> tuple[float, int]:
    return -item[1], item[0]


_HEIGHT: Final = 12
"""So many logits make a column."""

_MIN_WIDTH: Final = 4
"""So many times as many columns as tokens must there be, or the row is sorted as it is."""


def top_tokens(rows: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """Return the tokens with the largest logits of each row, the largest first; of equal ones those with lower ids.

    Args:
        rows: logits, ``[n, V]``, without NaN.
        count: how many; at least 1.  Where the vocabulary is smaller, all of it.

    Returns:
        Token ids and their logits, each ``[n, min(count, V)]``.

    Complexity: O(n V), one pass over the rows.
    """
    size = rows.shape[1]
    width = size // _HEIGHT
    if width < max(_MIN_WIDTH * count, _HEIGHT):  # what is left over has to fit in a row of columns
        return _sorted(np.arange(size)[None], rows, count)
    body = _HEIGHT * width
    maxima = rows[:, :body].reshape(len(rows), _HEIGHT, width).max(axis=1)
    tail = size - body  # fewer than the columns are high, so fewer than there are
    np.maximum(maxima[:, :tail], rows[:, body:], out=maxima[:, :tail])
    least = np.partition(maxima, width - count, axis=1)[:, width - count]
    reached = np.flatnonzero(maxima >= least[:, None])
    if len(reached) > len(rows) * count:
        return _with_ties(rows, least, count)
    columns = reached.reshape(len(rows), count) % width
    ids = (columns[:, None, :] + np.arange(0, size, width)[None, :, None]).reshape(len(rows), -1)
    inside = np.minimum(ids, size - 1)
    values = np.take_along_axis(rows, inside, axis=1)
    values[ids >= size] = -np.inf
    return _sorted(inside, values, count)


def _sorted(ids: NDArray[np.int64], values: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """The ``count`` largest values of each row with their ids, which ascend in a row or in all of them."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(np.broadcast_to(ids, values.shape), order, axis=1), np.take_along_axis(values, order, 1)


def _with_ties(rows: Logits, least: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """As ``top_tokens``, where at least ``count`` logits of each row are known to reach ``least``."""
    ids = np.empty((len(rows), count), dtype=np.int64)
    values = np.empty((len(rows), count), dtype=rows.dtype)
    for row, bound, found, largest in zip(rows, least, ids, values, strict=True):
        candidates = np.flatnonzero(row >= bound)
        candidates = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
        found[:] = candidates
        largest[:] = row[candidates]
    return ids, values


_WIDER: Final = 2
_MIN_CANDIDATES: Final = 16
"""So many times as many tokens are looked at as are wanted, and at least so many, since the grammar refuses some."""


class NodeTopTokens(NamedTuple):
    """The most probable tokens after a node.

    Attributes:
        node: of the tree; ``ROOT`` for the sequence itself.
        tokens: ids, the most probable first.
        logits: theirs.
    """

    node: int
    tokens: list[int]
    logits: list[float]


def node_top_tokens(verified: Verified, count: int, matcher: Matcher | None = None) -> list[NodeTopTokens]:
    """Return the most probable tokens after each node that was run and after which a token is chosen.

    Args:
        verified: a forward pass.
        count: how many tokens at most; they are among the ``2 * count`` or 16 that are most probable without a grammar,
            but where the grammar allows none of these.
        matcher: where the output stood, to leave out what the grammar refuses; None leaves out nothing.

    Complexity: one pass over the rows, a mask for each node.
    """
    tree, told = verified.tree, verified.told
    forced = {parent for parent, source in zip(tree.parents, tree.sources, strict=True) if source == FORCED}
    masks = None if matcher is None else tree_masks(tree, matcher)
    was_run = told.were_run()
    nodes = [
        node
        for node in range(ROOT, len(tree))
        if was_run[node + 1] and node not in forced and (masks is None or node in masks)
    ]
    if not nodes:
        return []
    places = np.array(nodes) + 1
    width = count if masks is None else max(_WIDER * count, _MIN_CANDIDATES)
    resident = told.resident_top(places.tolist(), width)
    if resident is not None:
        tokens, logits = resident
    elif was_run.all():  # a copy of the rows would cost as much as those that are not asked for
        tokens, logits = (found[places] for found in top_tokens(verified.rows, width))
    else:
        tokens, logits = top_tokens(verified.rows[places], width)
    possible = logits > -np.inf
    if masks is not None:
        possible &= allowed_among(np.stack([masks[node] for node in nodes]), tokens)
    result = []
    for index, node in enumerate(nodes):
        keep = np.flatnonzero(possible[index])[:count]
        ids, values = tokens[index][keep], logits[index][keep]
        if masks is not None and not len(keep):
            row = on_host(told[node + 1])
            every = allowed_ids(masks[node], len(row))
            best, largest = top_tokens(row[None, every], count)
            finite = largest[0] > -np.inf
            ids, values = every[best[0]][finite], largest[0][finite]
        result.append(NodeTopTokens(node, ids.tolist(), values.tolist()))
    return result


def ngram_top_tokens(
    verified: Verified, before: Sequence[int], order: int, count: int
) -> Iterator[tuple[tuple[int, ...], list[int], list[float]]]:
    """What ``readings`` finds, with up to ``order`` tokens before each position in place of the node.

    Args:
        verified: a forward pass.
        before: the tokens before it, at least ``order`` of the last, or all.
        order: how many tokens to give.
        count: see ``readings``.
    """
    tree = verified.tree
    tails: dict[int, tuple[int, ...]] = {ROOT: tuple(before[-order:])}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        tails[node] = (*tails[parent], token)[-order:]
    for node, tokens, logits in node_top_tokens(verified, count):
        yield tails[node], tokens, logits
