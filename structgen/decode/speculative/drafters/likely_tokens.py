"""The most probable tokens in the logits of a pass, and drafts from tables of them.

``NGramTable`` is a table by the last few tokens.  ``TableGrowth`` hands the candidates of any table to a tree policy.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.cache import Locked
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import DraftState, GrammarPosition, Verified, allowed_among, tree_masks
from structgen.decode.speculative.tree_policy import DraftDistribution
from structgen.decode.step.logits_row import on_host
from structgen.engine.mask import allowed_ids
from structgen.models.protocol import Logits

if TYPE_CHECKING:
    from structgen.engine import Matcher, Vocabulary

__all__ = [
    "LookupOutcome",
    "NGramDistribution",
    "NGramTable",
    "NodeTopTokens",
    "TableCandidates",
    "TableGrowth",
    "TableLookup",
    "ngram_top_tokens",
    "node_top_tokens",
    "top_tokens",
]

_MEMORY: Final = 16
"""The mean of the distributions after an n-gram has about the weight of this many passes."""

_MeanTable: TypeAlias = "OrderedDict[tuple[int, ...], tuple[int, dict[int, float]]]"


class NGramDistribution(NamedTuple):
    """The distribution after an n-gram.

    Attributes:
        length: the number of tokens of the n-gram.
        tokens: ids, the most probable first; of equally probable tokens the one with the lowest id.
        probabilities: of the tokens; they sum to 1.
    """

    length: int
    tokens: list[int]
    probabilities: list[float]


_NGRAM_BYTES: Final = 290
_PROBABILITY_BYTES: Final = 42


@final
class NGramTable(Locked):
    """For each n-gram of up to ``order`` tokens, the mean of the model's distributions after it.

    Only the most probable tokens of a distribution are kept, renormalised, so that one can sample from them.  Each new
    distribution moves the mean; older ones fade.

    Source: the n-gram module of W. Song et al., "Accelerated Test-Time Scaling with Model-Free Speculative Sampling"
    (2025, arXiv 2506.04708).

    Threads may share one.  Beyond ``most`` n-grams of a vocabulary, the least recently used one is dropped; an n-gram
    takes about 600 bytes.

    Args:
        order: how many tokens the longest n-grams have; at least 1.
        keep: how many tokens of each distribution are kept; at least 1.
        most: the largest number of n-grams; at least 1.

    Raises:
        ValueError: a number is below 1.
    """

    def __init__(self, order: int = 3, *, keep: int = 8, most: int = 16_384) -> None:
        if order < 1 or keep < 1 or most < 1:
            raise ValueError(f"NGramTable: order, keep and most must be at least 1; found {order}, {keep} and {most}")
        self.order = order
        self.keep = keep
        self.most = most
        self._tables: dict[bytes, _MeanTable] = {}  # by the digest of the vocabulary
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, list(self._tables.values())))

    @property
    def nbytes(self) -> int:
        """About the bytes of all n-grams with their distributions."""
        return (_NGRAM_BYTES + _PROBABILITY_BYTES * self.keep) * len(self)

    def learn(
        self, vocabulary: Vocabulary, distributions: Iterable[tuple[Sequence[int], Sequence[int], Sequence[float]]]
    ) -> None:
        """Learn from distributions of the model.

        Args:
            vocabulary: the vocabulary of the ids.
            distributions: for each, the tokens before the position, the most probable tokens in order, and their
                logits.

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
                    ngram = before[start:]
                    table[ngram] = self._mean(table.get(ngram), distribution)
                    table.move_to_end(ngram)
            while len(table) > self.most:
                table.popitem(last=False)

    def find(self, vocabulary: Vocabulary, before: Sequence[int]) -> list[NGramDistribution]:
        """Return the distributions after the n-grams at the end of ``before``, the longest first."""
        end = tuple(before[-self.order :])
        means = []
        with self._lock:
            table = self._tables.get(vocabulary.digest) or OrderedDict()
            for start in range(len(end)):
                entry = table.get(end[start:])
                if entry is not None:
                    means.append((len(end) - start, entry[1]))
            if means:
                table.move_to_end(end[len(end) - means[0][0] :])
        return [_ranked(length, distribution) for length, distribution in means]

    def _mean(
        self, entry: tuple[int, dict[int, float]] | None, distribution: dict[int, float]
    ) -> tuple[int, dict[int, float]]:
        """The entry with one more distribution; the old one stays as it is, since a reader may hold it."""
        if entry is None:
            return 1, distribution
        count, old = entry
        share = 1 / (count + 1)
        mean = {token: probability * (1 - share) for token, probability in old.items()}
        for token, probability in distribution.items():
            mean[token] = mean.get(token, 0.0) + probability * share
        if len(mean) > self.keep:
            mean = dict(sorted(mean.items(), key=_falling)[: self.keep])
        return min(count + 1, _MEMORY), mean

    def __repr__(self) -> str:
        return f"<NGramTable of {len(self)} n-grams of up to {self.order} tokens>"


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
"""How many logits a column has."""

_MIN_WIDTH: Final = 4
"""If there are fewer than this many columns for each requested token, the whole row is sorted."""


def top_tokens(rows: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """Return the tokens with the largest logits of each row, the largest first; of equal logits the lower id first.

    Args:
        rows: logits, ``[n, V]``, without NaN.
        count: how many; at least 1.  A smaller vocabulary is returned whole.

    Returns:
        Token ids and their logits, each ``[n, min(count, V)]``.

    Complexity: O(n V), one pass over the rows.
    """
    size = rows.shape[1]
    width = size // _HEIGHT
    if width < max(_MIN_WIDTH * count, _HEIGHT):  # the remainder must fit into one row of columns
        return _sorted(np.arange(size)[None], rows, count)
    body = _HEIGHT * width
    maxima = rows[:, :body].reshape(len(rows), _HEIGHT, width).max(axis=1)
    tail = size - body  # less than _HEIGHT, so less than the width
    np.maximum(maxima[:, :tail], rows[:, body:], out=maxima[:, :tail])
    bound = np.partition(maxima, width - count, axis=1)[:, width - count]
    reached = np.flatnonzero(maxima >= bound[:, None])
    if len(reached) > len(rows) * count:
        return _with_ties(rows, bound, count)
    columns = reached.reshape(len(rows), count) % width
    ids = (columns[:, None, :] + np.arange(0, size, width)[None, :, None]).reshape(len(rows), -1)
    inside = np.minimum(ids, size - 1)
    values = np.take_along_axis(rows, inside, axis=1)
    values[ids >= size] = -np.inf
    return _sorted(inside, values, count)


def _sorted(ids: NDArray[np.int64], values: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """The ``count`` largest values of each row with their ids; ``ids``, ascending, are of one row or of all rows."""
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(np.broadcast_to(ids, values.shape), order, axis=1), np.take_along_axis(values, order, 1)


def _with_ties(rows: Logits, bounds: Logits, count: int) -> tuple[NDArray[np.int64], Logits]:
    """As ``top_tokens``, if at least ``count`` logits of each row reach the bound of the row."""
    ids = np.empty((len(rows), count), dtype=np.int64)
    values = np.empty((len(rows), count), dtype=rows.dtype)
    for index, (row, bound) in enumerate(zip(rows, bounds, strict=True)):
        candidates = np.flatnonzero(row >= bound)
        ids[index] = candidates[np.argsort(-row[candidates], kind="stable")[:count]]
        values[index] = row[ids[index]]
    return ids, values


_WIDER: Final = 2
_MIN_CANDIDATES: Final = 16
"""How many candidates are read for each requested token, and at least, since the grammar refuses some."""


_SHARED: Final = 8


class NodeTopTokens(NamedTuple):
    """The most probable tokens after a node.

    Attributes:
        node: the node; ``ROOT`` for the sequence itself.
        tokens: ids, the most probable first.
        logits: of the tokens.
    """

    node: int
    tokens: list[int]
    logits: list[float]


def node_top_tokens(verified: Verified, count: int, matcher: Matcher | None = None) -> list[NodeTopTokens]:
    """Return the most probable tokens after each node that was run and has no forced token after it.

    Args:
        verified: a forward pass.
        count: the largest number of tokens.  They are among the ``2 * count`` or 16 most probable tokens of all, unless
            the grammar allows none of these.
        matcher: the state before the tree, to leave out tokens that the grammar refuses; None leaves out none.

    Complexity: one pass over the rows, and a mask for each node.  Without ``matcher``, all drafters of a pass share it
        if none wants more than 8 tokens.
    """
    if matcher is None and count <= _SHARED:
        if (found := verified.known.get("top tokens")) is None:
            found = verified.known["top tokens"] = _node_top_tokens(verified, _SHARED, None)
        return [NodeTopTokens(node, tokens[:count], logits[:count]) for node, tokens, logits in found]
    return _node_top_tokens(verified, count, matcher)


def _node_top_tokens(verified: Verified, count: int, matcher: Matcher | None) -> list[NodeTopTokens]:
    tree, rows = verified.tree, verified.logits_rows
    forced = {parent for parent, source in zip(tree.parents, tree.sources, strict=True) if source == FORCED}
    masks = None if matcher is None else tree_masks(tree, matcher)
    was_run = rows.were_run()
    nodes = [
        node
        for node in range(ROOT, len(tree))
        if was_run[node + 1] and node not in forced and (masks is None or node in masks)
    ]
    if not nodes:
        return []
    indices = np.array(nodes) + 1
    width = count if masks is None else max(_WIDER * count, _MIN_CANDIDATES)
    on_device = rows.resident_top(indices.tolist(), width)
    if on_device is not None:
        tokens, logits = on_device
    elif was_run.all():  # copying the requested rows would cost as much as the other rows
        tokens, logits = (each[indices] for each in top_tokens(verified.rows, width))
    else:
        tokens, logits = top_tokens(verified.rows[indices], width)
    possible = logits > -np.inf
    if masks is not None:
        possible &= allowed_among(np.stack([masks[node] for node in nodes]), tokens)
    result = []
    for index, node in enumerate(nodes):
        keep = np.flatnonzero(possible[index])[:count]
        ids, values = tokens[index][keep], logits[index][keep]
        if masks is not None and not len(keep):
            row = on_host(rows[node + 1])
            every = allowed_ids(masks[node], len(row))
            best, largest = top_tokens(row[None, every], count)
            finite = largest[0] > -np.inf
            ids, values = every[best[0]][finite], largest[0][finite]
        result.append(NodeTopTokens(node, ids.tolist(), values.tolist()))
    return result


def ngram_top_tokens(
    verified: Verified, before: Sequence[int], order: int, count: int
) -> Iterator[tuple[tuple[int, ...], list[int], list[float]]]:
    """Yield the result of ``node_top_tokens`` with up to ``order`` tokens before each position instead of the node.

    ``before`` are the tokens before the pass, at least the last ``order``, or all.
    """
    tree = verified.tree
    tails: dict[int, tuple[int, ...]] = {ROOT: tuple(before[-order:])}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        tails[node] = (*tails[parent], token)[-order:]
    for node, tokens, logits in node_top_tokens(verified, count):
        yield tails[node], tokens, logits


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
    """The token of the output at a position where the table was queried.

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
        """Compare the returned candidates with the tokens of the output since the draft began."""
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
