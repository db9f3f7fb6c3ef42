"""Tree policies: a ``Shape`` decides how a draft tree grows, a ``Growth`` returns the distributions after its nodes."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import FORCED, SampledChildren
from structgen.decode.step.sampler import inverse_cdf
from structgen.decode.step.without_replacement import TokensWithoutReplacement

if TYPE_CHECKING:
    from structgen.decode.speculative.draft_tree import DraftTree

__all__ = ["Children", "DraftDistribution", "Growth", "Shape", "check_budget", "with_forced"]


@final
class Children:
    """Adds children to a node, one with each call.

    Children are sampled without replacement: the order is that of Gumbel-top-k (Kool et al. 2019, arXiv 1903.06059),
    but their number need not be known in advance.

    Args:
        tree: the tree to add to.
        node: the parent.
        distribution: of the token after ``node``; its forced tokens have been added.
        generator: samples the children; None chooses the most probable ones.

    Attributes:
        left: the probability of all tokens that were not added.

    Raises:
        ValueError: the children are to be sampled, and the distribution is not dense.

    Complexity: O(V) for each of the first two sampled children, O(V / 512 + 512) for each further one; O(1) for a
        chosen child.
    """

    def __init__(
        self, tree: DraftTree, node: int, distribution: DraftDistribution, generator: np.random.Generator | None
    ) -> None:
        if generator is not None and distribution.dense is None:
            raise ValueError("DraftDistribution: dense is None; children can only be sampled from a dense distribution")
        self._tree = tree
        self._node = node
        self._distribution = distribution
        self._generator = generator
        self._tokens: list[int] = []
        # of all children but the first; few nodes get a second one
        self._sampler: TokensWithoutReplacement | None = None
        self._first_left = 1.0
        self.left = 1.0

    def share(self) -> float:
        """Return the probability of the next child if it is chosen, not sampled; 0 if there is none."""
        probabilities = self._distribution.probabilities
        return float(probabilities[len(self._tokens)]) if len(self._tokens) < len(probabilities) else 0.0

    def add(self) -> int | None:
        """Add the next child and return its node; None if no token is left."""
        dense, generator = self._distribution.dense, self._generator
        if generator is None or dense is None:
            probability = self.share()
            if not probability:
                return None
            token = int(self._distribution.tokens[len(self._tokens)])
            self.left = max(0.0, self.left - probability)
        else:
            sampled = self._sample(dense, generator)
            if sampled is None:
                return None
            token, probability = sampled, float(dense[sampled])
        self._tokens.append(token)
        if generator is not None and dense is not None:
            self._tree.sampled[self._node] = SampledChildren(dense, tuple(self._tokens))
        return self._tree.add(self._node, token, probability)

    def _sample(self, dense: NDArray[np.float64], generator: np.random.Generator) -> int | None:
        """Sample a token that was not sampled before."""
        if not self._tokens:
            token = inverse_cdf(dense, generator.random())
            self.left = self._first_left = max(0.0, 1.0 - float(dense[token]))
            return token
        if self._sampler is None:
            rest = dense.copy()
            rest[self._tokens[0]] = 0.0
            if not rest.any():
                return None
            self._sampler = TokensWithoutReplacement(rest / rest.max(), generator)
        if self._sampler.is_empty:
            return None
        token = self._sampler.take()
        self.left = self._first_left * self._sampler.left
        return token


@final
@dataclass(frozen=True, eq=False, slots=True)
class DraftDistribution:
    """The distribution of a drafter after a node; tokens that the grammar refuses have probability 0.

    Attributes:
        tokens: ids of the most probable tokens, the most probable first, integers ``[k]``, without duplicates.
        probabilities: of these tokens, float64 ``[k]``, descending; the rest up to 1 belongs to tokens not listed.
        dense: the probabilities of all tokens, float64 ``[V]``, which sum to 1; needed to sample children.
        forced: tokens that the grammar forces after the node.  The distribution is that of the token after them, so a
            model runs them in the same pass.
    """

    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    dense: NDArray[np.float64] | None = None
    forced: tuple[int, ...] = ()

    @classmethod
    def of(cls, dense: NDArray[np.float64], most: int, *, forced: Sequence[int] = ()) -> Self:
        """Return the distribution with these probabilities; up to ``most`` tokens are listed.

        Of equally probable tokens, those with lower ids are listed first.

        Args:
            dense: float64 ``[V]``; sums to 1.
            most: the largest number of children of a node.
            forced: see ``DraftDistribution.forced``.

        Complexity: O(V).
        """
        return cls.among(np.arange(len(dense)), dense, most, dense=dense, forced=forced)

    @classmethod
    def among(
        cls,
        tokens: NDArray[np.int64],
        probabilities: NDArray[np.float64],
        most: int,
        *,
        dense: NDArray[np.float64] | None = None,
        forced: Sequence[int] = (),
    ) -> Self:
        """Return the distribution that lists up to ``most`` of some tokens.

        Args:
            tokens: ascending ids, ``[n]``, such as the tokens that the grammar allows.
            probabilities: of these tokens, float64 ``[n]``.
            most: how many to list; tokens of probability 0 are left out.
            dense: see ``DraftDistribution.dense``.
            forced: see ``DraftDistribution.forced``.

        Complexity: O(n) unless many probabilities are equal.
        """
        chosen = _largest(probabilities, most)
        chosen = chosen[probabilities[chosen] > 0]
        return cls(tokens[chosen], probabilities[chosen], dense, tuple(forced))

    def entropy(self) -> float:
        """Return the entropy in nats; without ``dense``, all tokens that are not listed count as one."""
        if self.dense is not None:
            distribution = self.dense[self.dense > 0]
        else:
            rest = 1.0 - float(self.probabilities.sum())
            distribution = np.append(self.probabilities, rest) if rest > 0 else self.probabilities
            distribution = distribution[distribution > 0]
        return max(0.0, float(-(distribution * np.log(distribution)).sum()))

    def surest(self) -> float:
        """Return the probability of the most probable token; 0 if none is listed."""
        return float(self.probabilities[0]) if len(self.probabilities) else 0.0


class Growth(Protocol):
    """One draft in progress: it knows the sequence and returns the distributions after nodes of the tree.

    While a tree grows, nodes are only added and keep their numbers, and a returned distribution does not change.  The
    result of the tree policy may be a part of that tree, renumbered.
    """

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """Return the distributions after some nodes; a model is run once for all of them.

        Args:
            tree: the tree so far.
            nodes: nodes of any depth, each once; ``ROOT`` for the sequence itself.  A node is queried at most once, in
                a later call than its parent.  ``forced`` tokens of the parent's distribution are between the two nodes.

        Returns:
            The distribution after each node; None if there is none, as after the end of the output.
        """


class Shape(ABC):
    """A tree policy: decides how a draft tree grows.  A value that any number of drafts may share.

    A drafter with distributions lets it grow a tree, and later passes the tokens of the output::

        tree = self.shape.grow(growth, budget, kind=state.kind)
        ...
        self.shape.learn(tree, tokens_that_came, kind)
    """

    draws: ClassVar[bool] = True
    """Whether children can be sampled; otherwise a generator is refused with ``ValueError``."""
    max_children: ClassVar[int] = 16
    """A hint: how many tokens the distributions should list."""

    @abstractmethod
    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """Return a tree of at most ``budget`` nodes.

        Forced tokens have confidence 1 and the source ``FORCED``; all others have the probability of their
        distribution.

        Args:
            growth: returns the distributions after nodes.
            budget: the largest number of nodes, forced ones included.
            kind: the kind of position (``DraftState.kind``), for policies that learn by kind.
            generator: if given, children are sampled without replacement from the distributions, which must be
                ``dense``, and recorded in ``DraftTree.sampled``; otherwise the most probable ones are chosen.

        Raises:
            ValueError: ``budget`` is negative, this policy cannot sample children, or a distribution is not dense.
        """

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """Learn from the tokens of the output; by default nothing.

        Args:
            tree: as ``grow`` returned it, whether it was run or not.
            came: the tokens after the sequence: as many as the tree is deep, or all up to the end of the output.
            kind: the kind of the position where the tree was grown.
        """
        del tree, came, kind


def check_budget(shape: Shape, budget: int) -> None:
    """Refuse a negative budget with ``ValueError``."""
    if budget < 0:
        raise ValueError(f"{type(shape).__name__}: budget must not be negative; found {budget!r}")


def with_forced(tree: DraftTree, node: int, distribution: DraftDistribution, budget: int) -> int | None:
    """Add the forced tokens of a distribution after a node, and return the last node; None if they exceed the budget.

    A part of them would be of no use: a forced token needs no logits row.
    """
    if len(tree) + len(distribution.forced) > budget:
        return None
    return tree.extend(node, distribution.forced, 1.0, source=FORCED)


def _largest(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Return the indices of up to ``count`` of the largest values in descending order; of equal values the first."""
    if count < 1:
        return np.empty(0, dtype=np.intp)
    bound = -np.inf
    if count <= len(values):
        # ``count`` blocks have a maximum of at least this, so no smaller value is among the largest.
        block = math.isqrt(len(values) // count)
        bound = np.sort(np.maximum.reduceat(values, np.arange(0, len(values), block)))[-count]
    among = np.flatnonzero(values >= bound)
    return among[np.argsort(-values[among], kind="stable")[:count]]
