"""Tree policies: a ``Growth`` returns distributions after nodes of a draft tree, a ``Shape`` decides which to query."""

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
    """Adds children to a node as they are asked for.

    Drawn ones come without replacement, each from what those before it left of the distribution: the order is that of
    Gumbel-top-k (Kool et al. 2019, arXiv 1903.06059), but how many there will be need not be known.

    Args:
        tree: where to add them.
        node: the parent.
        distribution: of what follows it; its forced tokens have been added.
        generator: draws them; None chooses the most probable ones.

    Attributes:
        left: the probability of all that was not added.

    Raises:
        ValueError: they are to be drawn, and the distribution is not dense.

    Complexity: O(V) for each of the first two that are drawn, O(V / 512 + 512) for each further one; O(1) where they
        are chosen.
    """

    def __init__(
        self, tree: DraftTree, node: int, distribution: DraftDistribution, generator: np.random.Generator | None
    ) -> None:
        if generator is not None and distribution.dense is None:
            raise ValueError("Distribution: children are to be drawn, so dense must be given; found None")
        self._tree = tree
        self._node = node
        self._distribution = distribution
        self._generator = generator
        self._tokens: list[int] = []
        self._sampler: TokensWithoutReplacement | None = None  # of all but the first; few nodes get a second child
        self._first_left = 1.0
        self.left = 1.0

    def share(self) -> float:
        """The probability of the next one, where it is chosen and not drawn; 0 where there is none."""
        probabilities = self._distribution.probabilities
        return float(probabilities[len(self._tokens)]) if len(self._tokens) < len(probabilities) else 0.0

    def add(self) -> int | None:
        """Add the next one and return its node; None where no token is left."""
        dense, generator = self._distribution.dense, self._generator
        if generator is None or dense is None:
            probability = self.share()
            if not probability:
                return None
            token = int(self._distribution.tokens[len(self._tokens)])
            self.left = max(0.0, self.left - probability)
        else:
            drawn = self._draw(dense, generator)
            if drawn is None:
                return None
            token, probability = drawn, float(dense[drawn])
        self._tokens.append(token)
        if generator is not None and dense is not None:
            self._tree.drawn[self._node] = SampledChildren(dense, tuple(self._tokens))
        return self._tree.add(self._node, token, probability)

    def _draw(self, dense: NDArray[np.float64], generator: np.random.Generator) -> int | None:
        """Draw a token that was not drawn before."""
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
    """What a drafter expects after a node; tokens that the grammar refuses there have no probability.

    Attributes:
        tokens: ids of the most probable tokens, the most probable first, integers ``[k]``; none of them twice.
        probabilities: theirs, float64 ``[k]``, falling; what is missing to 1 belongs to tokens that are not named.
        dense: the probabilities of all tokens, float64 ``[V]``, which sum to 1; needed to draw children, else optional.
        forced: tokens that the grammar forces after the node, where it leaves no choice at first.  The distribution is
            that of what follows the last of them, so whoever runs a model to tell it runs them in the same pass.
    """

    tokens: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    dense: NDArray[np.float64] | None = None
    forced: tuple[int, ...] = ()

    @classmethod
    def of(cls, dense: NDArray[np.float64], most: int, *, forced: Sequence[int] = ()) -> Self:
        """The distribution with these probabilities; up to ``most`` tokens are named.

        Of equally probable tokens those with the lowest ids are named, and stand first.

        Args:
            dense: float64 ``[V]``; sums to 1.
            most: how many children a node may get at most.
            forced: see ``Distribution.forced``.

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
        """The distribution that names up to ``most`` of some tokens.

        Args:
            tokens: ascending ids, ``[n]``: those that the grammar allows, for instance.
            probabilities: theirs, float64 ``[n]``, in any order.
            most: how many to name; those of probability 0 are not.
            dense: see ``Distribution.dense``.
            forced: see ``Distribution.forced``.

        Complexity: O(n), as long as there are not many equal ones.
        """
        chosen = _largest(probabilities, most)
        chosen = chosen[probabilities[chosen] > 0]
        return cls(tokens[chosen], probabilities[chosen], dense, tuple(forced))

    def entropy(self) -> float:
        """In nats; where ``dense`` is missing, that of the named tokens and of all others as if they were one."""
        if self.dense is not None:
            distribution = self.dense[self.dense > 0]
        else:
            rest = 1.0 - float(self.probabilities.sum())
            distribution = np.append(self.probabilities, rest) if rest > 0 else self.probabilities
            distribution = distribution[distribution > 0]
        return max(0.0, float(-(distribution * np.log(distribution)).sum()))

    def surest(self) -> float:
        """The probability of the most probable token; 0 where none is named."""
        return float(self.probabilities[0]) if len(self.probabilities) else 0.0


class Growth(Protocol):
    """One draft in progress, as the drafter sees it: it knows the sequence and tells what may follow.

    While a shape grows a tree, nodes are only added to it and keep their numbers; a distribution, once told, stays what
    it is. What the shape returns in the end may be a part of that tree, renumbered.
    """

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """Return what may follow each of some nodes; a model is run once for all of them.

        Args:
            tree: what has grown so far.
            nodes: of it, each once, ``ROOT`` for the sequence itself; at different depths.  A node is asked about after
                its parent was, in another call, and once at most.  Where the distribution of the parent has ``forced``
                tokens, they stand between the two.

        Returns:
            For each the distribution; None where nothing can be said, as after the end of the output.
        """


class Shape(ABC):
    """Decides what a tree of draft tokens looks like: a value, which any number of drafts share.

    A drafter that can say distributions asks a shape to grow its tree, and tells it later what came instead::

        tree = self.shape.grow(growth, budget, kind=state.kind)
        ...
        self.shape.learn(tree, tokens_that_came, kind)
    """

    draws: ClassVar[bool] = True
    """Whether children can be drawn; a shape that cannot refuses a generator with ``ValueError``."""
    max_children: ClassVar[int] = 16
    """A hint: how many tokens the distributions should name."""

    @abstractmethod
    def grow(
        self, growth: Growth, budget: int, *, kind: int = 0, generator: np.random.Generator | None = None
    ) -> DraftTree:
        """Return a tree of at most ``budget`` nodes.

        Forced tokens stand in it with confidence 1 and the source ``FORCED``; all others with the probability that
        their distribution gives them.

        Args:
            growth: tells what may follow.
            budget: the most nodes; forced ones count.
            kind: of the position (``DraftState.kind``), for shapes that keep what they learn apart.
            generator: if given, children are drawn from the distributions, which have to be ``dense``, without
                replacement, and are recorded in ``DraftTree.drawn`` (the distribution of Gumbel-top-k); else the most
                probable ones are chosen.

        Raises:
            ValueError: ``budget`` is negative; or children cannot be drawn with this shape, or from a distribution that
                is not dense.
        """

    def learn(self, tree: DraftTree, came: Sequence[int], kind: int) -> None:
        """Learn from what came; most shapes have nothing to learn.

        Args:
            tree: as ``grow`` returned it, whether it was run or not.
            came: the tokens that followed the sequence, as far as they are known: at least as many as the tree is deep
                or the output became long.
            kind: of the position where it was grown.
        """
        del tree, came, kind


def check_budget(shape: Shape, budget: int) -> None:
    """Refuse a negative budget with ``ValueError``."""
    if budget < 0:
        raise ValueError(f"{type(shape).__name__}: budget must not be negative; found {budget!r}")


def with_forced(tree: DraftTree, node: int, distribution: DraftDistribution, budget: int) -> int | None:
    """Add what the distribution says is forced after a node.

    Return the last of it, or None where that takes too many nodes.

    A part of it would be of no use: what follows is known without a model up to its end.
    """
    if len(tree) + len(distribution.forced) > budget:
        return None
    return tree.extend(node, distribution.forced, 1.0, source=FORCED)


def _largest(values: NDArray[np.float64], most: int) -> NDArray[np.intp]:
    """The indices of up to ``most`` of the largest values, these first; of equal ones the first."""
    if most < 1:
        return np.empty(0, dtype=np.intp)
    least = -np.inf
    if most <= len(values):
        # As many blocks have a maximum of at least this, so nothing below is among the largest.
        block = math.isqrt(len(values) // most)
        least = np.sort(np.maximum.reduceat(values, np.arange(0, len(values), block)))[-most]
    among = np.flatnonzero(values >= least)
    return among[np.argsort(-values[among], kind="stable")[:most]]
