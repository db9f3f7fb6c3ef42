"""The best tree for measured acceptance rates by rank, and the number of nodes that fit into memory.

Sources: Z. Chen, A. May, R. Svirschevski et al., "Sequoia" (2024, arXiv 2402.12374); S. Yildirim, D. Chen, "SpecMemo"
(2025, arXiv 2506.01986), which bounds the buffers of candidates by a model of their sizes (``DraftMemory``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.cache import Locked
from structgen.decode.speculative.acceptance import check_estimate
from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.fixed_tree import Fixed
from structgen.decode.speculative.tree_policy import Shape, check_budget
from structgen.methods.tree_policies.draft_outcome import visited_siblings

if TYPE_CHECKING:
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.tree_policy import Growth

__all__ = ["DraftMemory", "OptimalForm", "RankAcceptance", "Sequoia", "optimal_form"]

_GRADES: Final = 64
_MAX_KINDS: Final = 256


@final
class RankAcceptance(Locked):
    """Estimates the acceptance rate of a child by its rank among its siblings, for each kind of position.

    The prior is geometric in the rank, and counts beyond ``memory`` nodes fade.  A rank that no tree had stays at its
    prior, so it is tried once it seems to pay.

    Threads may share one; the estimates depend on the order of the records.

    Args:
        ranks: the number of ranks; children of higher rank count as impossible.
        first: the prior of the first rank, strictly between 0 and 1.
        strength: the weight of the prior in nodes; positive.
        memory: the largest number of nodes of a kind that count; at least 1.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, *, ranks: int = 8, first: float = 0.6, strength: float = 4.0, memory: float = 200.0) -> None:
        if ranks < 1:
            raise ValueError(f"RankAcceptance: ranks must be at least 1; found {ranks!r}")
        check_estimate("RankAcceptance", strength, memory, first=first)
        self.ranks = ranks
        self._prior = first * (1 - first) ** np.arange(ranks)
        self._strength = strength
        self._memory = memory
        self._counts: dict[int, NDArray[np.float64]] = {}  # by kind: trials and hits, [2, ranks]
        self._lock = threading.Lock()

    def rates(self, kind: int) -> tuple[float, ...]:
        """Return the estimated acceptance rate of each rank, in steps of 1/64; the sum is at most 1."""
        with self._lock:
            counts = self._counts.get(kind)
            trials, hits = (0.0, 0.0) if counts is None else counts.copy()
        rates = (self._strength * self._prior + hits) / (self._strength + trials)
        rates /= max(1.0, float(rates.sum()))
        return tuple((np.floor(rates * _GRADES) / _GRADES).tolist())

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """Record the outcome of a tree with siblings in the order of their ranks (``Shape.learn``)."""
        trials, hits = np.zeros(self.ranks), np.zeros(self.ranks)
        for siblings, node in visited_siblings(tree, came):
            trials[: len(siblings)] += 1
            if node is not None and siblings.index(node) < self.ranks:
                hits[siblings.index(node)] += 1
        if not trials.any():
            return
        with self._lock:
            if kind not in self._counts and len(self._counts) == _MAX_KINDS:
                del self._counts[next(iter(self._counts))]
            counts = self._counts.setdefault(kind, np.zeros((2, self.ranks)))
            counts += (trials, hits)
            counts *= np.minimum(1.0, self._memory / np.maximum(counts[0], 1.0))

    def __repr__(self) -> str:
        return f"<RankAcceptance of {self.ranks} ranks, {len(self._counts)} kinds>"


_SIZE: Final = 128


class OptimalForm(NamedTuple):
    """The form of a tree.

    Attributes:
        parents: the parent of each node (``Fixed.parents``).
        expected: the expected number of accepted nodes.
    """

    parents: tuple[int, ...]
    expected: float


@final
@dataclass(frozen=True)
class Sequoia(Shape):
    """The tree form that is best on average, independent of the current distributions.

    Its size and depth give the most tokens per time: with ``E`` expected accepted nodes of ``n``, a pass gives
    ``1 + E`` tokens in ``cost.relative(1 + n)``, and each of the ``d`` levels costs a query of the drafter.  The form
    does not depend on samples, so children may be sampled or chosen.

    Attributes:
        cost: the cost of passes.
        price: the cost of a query of the drafter (``Growth.distributions``), in passes of the target over one row.
        depth: the largest number of levels.
        acceptance: the acceptance rates by rank; drafts that share it learn from each other.

    Raises:
        ValueError: a number is out of range.
    """

    cost: CostModel
    price: float = 0.0
    depth: int = 8
    acceptance: RankAcceptance = field(default_factory=RankAcceptance)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.price) and self.price >= 0):
            raise ValueError(f"Sequoia: price must be finite and not negative; found {self.price!r}")
        if self.depth < 1:
            raise ValueError(f"Sequoia: depth must be at least 1; found {self.depth!r}")

    def form(self, kind: int, budget: int) -> OptimalForm:
        """Return the form for a kind of position; without nodes if none pay."""
        return _fastest(self.acceptance.rates(kind), min(budget, _SIZE), self.depth, self.cost, self.price)

    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """See ``Shape.grow``."""
        check_budget(self, budget)
        return Fixed(self.form(kind, budget).parents).grow(growth, budget, kind=kind, generator=generator)

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """See ``Shape.learn``."""
        self.acceptance.learn(tree, came, kind)


def optimal_form(rates: Sequence[float], size: int, depth: int | None = None) -> OptimalForm:
    """Return the tree of up to ``size`` nodes with the largest expected number of accepted nodes.

    A node is accepted with the product of ``rates`` on its path: ``rates[r]`` for the child of rank ``r``, whose
    siblings of lower rank are in the tree.

    Args:
        rates: by rank, each in [0, 1].
        size: the largest number of nodes.
        depth: the largest number of levels; None for no bound.

    Raises:
        ValueError: a number is out of range.

    Complexity: O(depth * len(rates) * size^2).
    """
    if size < 0 or (depth is not None and depth < 0) or any(not 0 <= rate <= 1 for rate in rates):
        raise ValueError(
            f"optimal_form: size and depth must not be negative and rates must lie in [0, 1]; found {size!r}, "
            f"{depth!r} and {tuple(rates)!r}"
        )
    levels = size if depth is None else min(depth, size)
    return _OptimalFormTable(tuple(rates), size, levels).form(size, levels)


@lru_cache(maxsize=512)
def _fastest(rates: tuple[float, ...], size: int, depth: int, cost: CostModel, price: float) -> OptimalForm:
    levels = min(depth, size)
    table = _OptimalFormTable(rates, size, levels)
    times = cost.relatives(1 + size)[1:] + price * np.arange(levels + 1)[:, None]
    level, nodes = np.unravel_index(int(((1 + table.expected) / times).argmax()), times.shape)
    return table.form(int(nodes), int(level))


@final
class _OptimalFormTable:
    """The dynamic program.

    ``expected[d, n]`` is the largest expected number of accepted nodes among up to ``n`` nodes on up to ``d`` levels
    after an accepted node.  ``_split[d, r, n]`` is how many of ``n`` nodes for the ranks from ``r`` on belong to the
    subtree of the child of rank ``r``; 0 for no such child.
    """

    def __init__(self, rates: tuple[float, ...], size: int, levels: int) -> None:
        self._ranks = len(rates)
        self.expected: NDArray[np.float64] = np.zeros((levels + 1, size + 1))
        self._split = np.zeros((levels + 1, self._ranks, size + 1), dtype=np.intp)
        left = np.arange(size + 1)[:, None] - np.arange(size + 1)  # [n, s]: n - s
        for level in range(1, levels + 1):
            rest = np.zeros(size + 1)  # the expected number of the later ranks
            for rank in range(self._ranks - 1, -1, -1):
                child = np.concatenate(([-np.inf], rates[rank] * (1 + self.expected[level - 1, :-1])))
                sums = np.where(left >= 0, child + rest[left], -np.inf)
                sums[:, 0] = 0.0  # no child of this rank, and none after it
                self._split[level, rank] = sums.argmax(axis=1)
                rest = sums.max(axis=1)
            self.expected[level] = rest

    def form(self, size: int, levels: int) -> OptimalForm:
        """Return the tree of up to ``size`` nodes on up to ``levels`` levels, level by level."""
        parents: list[int] = []
        frontier = [(ROOT, size)]
        for level in range(levels, 0, -1):
            below: list[tuple[int, int]] = []
            for node, count in frontier:
                left = count
                for rank in range(self._ranks):
                    share = int(self._split[level, rank, left])
                    if not share:
                        break
                    below.append((len(parents), share - 1))
                    parents.append(node)
                    left -= share
            frontier = below
        return OptimalForm(tuple(parents), float(self.expected[levels, size]))


@final
@dataclass(frozen=True, slots=True)
class DraftMemory:
    """The memory of a tree during a pass, in bytes.

    Attributes:
        node: bytes of each node: its keys and values in all layers, and its logits row.
        pair: bytes of each pair of a node and a position: its entry of the attention mask.

    Raises:
        ValueError: ``node`` is below 1 or ``pair`` is negative.
    """

    node: int
    pair: int = 0

    def __post_init__(self) -> None:
        if self.node < 1 or self.pair < 0:
            raise ValueError(
                f"DraftMemory: node must be positive and pair not negative; found {self.node!r} and {self.pair!r}"
            )

    @classmethod
    def of(
        cls,
        *,
        layers: int,
        key_value_heads: int,
        head_size: int,
        vocabulary_size: int,
        number: int = 4,
        mask_number: int = 4,
    ) -> Self:
        """Return the memory of a transformer.

        Args:
            layers: the number of layers with keys and values.
            key_value_heads: the number of key-value heads of a layer.
            head_size: the width of a head.
            vocabulary_size: the width of a logits row, with 4 bytes for each number.
            number: bytes of a number in the cache.
            mask_number: bytes of an entry of the attention mask.

        Raises:
            ValueError: a number is below 1.
        """
        numbers = (layers, key_value_heads, head_size, vocabulary_size, number, mask_number)
        if min(numbers) < 1:
            raise ValueError(f"DraftMemory: all numbers must be at least 1; found {numbers!r}")
        return cls(2 * layers * key_value_heads * head_size * number + 4 * vocabulary_size, mask_number)

    def size(self, nodes: int, context: int) -> int:
        """Return the bytes of a tree after ``context`` tokens."""
        return nodes * self.node + nodes * (context + nodes) * self.pair

    def max_nodes(self, limit: int, context: int, *, sequences: int = 1) -> int:
        """Return the largest number of nodes of a tree so that the trees of all sequences fit.

        Args:
            limit: bytes.
            context: the number of tokens before each tree.
            sequences: the number of sequences in a pass.

        Raises:
            ValueError: ``limit`` or ``context`` is negative, or ``sequences`` below 1.
        """
        if limit < 0 or context < 0 or sequences < 1:
            raise ValueError(
                "DraftMemory: limit and context must not be negative and sequences at least 1; "
                f"found {limit!r}, {context!r} and {sequences!r}"
            )
        share = limit // sequences
        linear = self.node + context * self.pair
        if not self.pair:
            return share // linear
        # The largest n with pair n^2 + linear n <= share.
        return (math.isqrt(linear * linear + 4 * self.pair * share) - linear) // (2 * self.pair)
