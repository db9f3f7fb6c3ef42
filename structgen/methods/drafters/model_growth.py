"""Draft trees grown from a model: the position in the grammar, distributions after nodes, drafting by a tree policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting, DraftState, DraftTask, GrammarPosition
from structgen.decode.speculative.tree_policy import DraftDistribution
from structgen.decode.step.sampler import Multinomial
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.tree_policy import Shape
    from structgen.decode.step.context import Context
    from structgen.decode.step.sampler import Sampler

__all__ = ["DraftRow", "DraftRows", "ModelGrowth", "RowsDrafting", "ShapedDrafting", "draft_distribution"]

DraftRow: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"
"""Logits of a draft model over the ids of the target, ``[V]``."""

_SMALL: Final = 1e-2


class DraftRows(ABC):
    """The logits rows of a draft model after an output, in the output's own vocabulary."""

    @abstractmethod
    def follow(self, tokens: Sequence[int]) -> None:
        """Move to the end of ``tokens``, the prompt and the output so far."""

    @abstractmethod
    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """Return the logits after the sequence and each path.

        Args:
            paths: tokens after the sequence.
            positions: the position in the grammar after each path.
            most: the largest number of tokens that the draft may still grow by.

        Returns:
            For each path, logits ``[V]``, float32 or float64, minus infinity for tokens that the model lacks; None if
            the path is too long for the model.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the cache."""


@final
class ModelGrowth:
    """A ``Growth`` with the distributions of a draft model, masked by the grammar and shaped by the sampler.

    Args:
        rows: the draft model, which has followed the output.
        root: the position of the output.
        sampler: how the tokens of the output are chosen; a ``Multinomial`` shapes the distributions as those of the
            target.
        sampled: whether distributions are dense, so that children can be sampled.
        most: how many tokens a distribution names.
        budget: the largest number of nodes.
    """

    def __init__(
        self, rows: DraftRows, root: GrammarPosition, sampler: Sampler, *, sampled: bool, most: int, budget: int
    ) -> None:
        self._rows = rows
        self._sampler = sampler
        self._sampled = sampled
        self._most = most
        self._budget = budget
        self._positions: dict[int, GrammarPosition | None] = {ROOT: root}

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """See ``Growth.distributions``."""
        positions = {
            node: position
            for node in nodes
            if (position := self._position(tree, node)) is not None and len(position.ids)
        }
        if not positions:
            return [None] * len(nodes)
        paths = [(*tree.prefix(node), *position.forced) for node, position in positions.items()]
        rows = self._rows.rows(paths, list(positions.values()), self._budget - len(tree))
        distributions = {
            node: None
            if row is None
            else draft_distribution(row, position, self._sampler, sampled=self._sampled, most=self._most)
            for (node, position), row in zip(positions.items(), rows, strict=True)
        }
        return [distributions.get(node) for node in nodes]

    def _position(self, tree: DraftTree, node: int) -> GrammarPosition | None:
        if node not in self._positions:
            parent = tree.parents[node]
            while parent not in self._positions:  # forced tokens between the two
                parent = tree.parents[parent]
            before = self._positions[parent]
            self._positions[node] = None if before is None else before.then(tree.tokens[node])
        return self._positions[node]


def draft_distribution(
    row: DraftRow, position: GrammarPosition, sampler: Sampler, *, sampled: bool, most: int
) -> DraftDistribution | None:
    """Return the next-token distribution: ``row`` restricted to the allowed tokens and shaped by the sampler.

    Args:
        row: logits ``[V]``.
        position: the position of the token.
        sampler: how tokens are chosen; only a ``Multinomial`` shapes.
        sampled: whether the distribution is dense.
        most: how many tokens it names.

    Returns:
        None if the row gives no probability to an allowed token.

    Raises:
        GenerationError: the row has NaN or positive infinity.
    """
    log_p = row[position.ids].astype(np.float64)
    top = float(log_p.max())
    if top == -np.inf:
        return None
    if not np.isfinite(top):
        raise GenerationError("logits", "the draft model returned NaN or infinity", remedy="check its weights")
    weights = sampler.shaped(log_p) if isinstance(sampler, Multinomial) else np.exp(log_p - top)
    weights /= weights.sum()
    dense = None
    if sampled:
        dense = np.zeros(len(row), dtype=np.float64)
        dense[position.ids] = weights
    # Partitioning all weights would cost more than the rest; the largest are among the few that are not small.
    large = np.flatnonzero(weights >= weights.max() * _SMALL)
    if len(large) < most:
        large = np.flatnonzero(weights)
    return DraftDistribution.among(position.ids[large], weights[large], most, dense=dense, forced=position.forced)


class ShapedDrafting(Drafting):
    """Trees that a tree policy grows and learns from, once the tokens that followed are known.

    Args:
        task: the output that is drafted for.
        shape: the tree policy.
    """

    def __init__(self, task: DraftTask, shape: Shape) -> None:
        self._task = task
        self._shape = shape
        self._pending: list[tuple[int, int, DraftTree, int]] = []  # start, depth, tree, kind
        self._last: Context | None = None

    @abstractmethod
    def grow(self, context: Context, state: DraftState, budget: int) -> tuple[DraftTree, DraftTree]:
        """Return the proposed tree, and the tree that the policy learns from.

        The second is the first, or empty if it was grown in the tokens of another vocabulary.
        """

    @abstractmethod
    def end(self) -> None:
        """Free the caches."""

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        self._learn(context, complete=False)
        self._last = context
        proposed, grown = self.grow(context, state, budget)
        if len(grown):
            self._pending.append((len(context), grown.depth(), grown, state.kind))
        return proposed

    def close(self) -> None:
        """See ``Drafting.close``."""
        if self._last is not None:
            self._learn(self._last, complete=True)
        self.end()

    def _learn(self, context: Context, *, complete: bool) -> None:
        """Let the tree policy learn from its trees; those after tokens that were taken back are dropped."""
        length = len(context)
        still_open: list[tuple[int, int, DraftTree, int]] = []
        for start, depth, tree, kind in self._pending:
            if start >= length:
                continue
            if complete or length - start >= depth:
                self._shape.learn(tree, context.tokens[start:], kind)
            else:
                still_open.append((start, depth, tree, kind))
        self._pending = still_open


@final
class RowsDrafting(ShapedDrafting):
    """Trees in the output's own tokens, from the rows of a draft model.

    Args:
        task: the output that is drafted for.
        shape: the tree policy.
        rows: the draft model.
        draws: whether children are sampled if the sampler is a ``Multinomial``; otherwise the most probable ones are
            chosen.
    """

    def __init__(self, task: DraftTask, shape: Shape, rows: DraftRows, *, draws: bool) -> None:
        super().__init__(task, shape)
        self._rows = rows
        self._draws = draws and shape.draws and isinstance(task.sampler, Multinomial)

    def grow(self, context: Context, state: DraftState, budget: int) -> tuple[DraftTree, DraftTree]:
        """See ``ShapedDrafting.grow``."""
        self._rows.follow(context.tokens)
        growth = ModelGrowth(
            self._rows,
            GrammarPosition.of(state, within_budget=True),
            self._task.sampler,
            sampled=self._draws,
            most=self._shape.max_children,
            budget=budget,
        )
        generator = self._task.generator if self._draws else None
        tree = self._shape.grow(growth, budget, kind=state.kind, generator=generator)
        return tree, tree

    def end(self) -> None:
        """See ``ShapedDrafting.end``."""
        self._rows.close()
