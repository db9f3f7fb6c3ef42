"""Draft trees grown from a model: the position in the grammar, distributions after nodes, drafting by a tree policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting
from structgen.decode.speculative.tree_policy import DraftDistribution
from structgen.decode.step.sampler import Multinomial
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import GenerationError, LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafter import DraftState, DraftTask
    from structgen.decode.speculative.tree_policy import Shape
    from structgen.decode.step.context import Context
    from structgen.decode.step.sampler import Sampler
    from structgen.engine import Matcher

__all__ = [
    "DraftPosition",
    "DraftRow",
    "DraftRows",
    "ModelGrowth",
    "RowsDrafting",
    "ShapedDrafting",
    "draft_distribution",
]

DraftRow: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"
"""Logits of a draft model over the ids of the target, ``[V]``."""

_SMALL: Final = 1e-2


class DraftRows(ABC):
    """What a draft model says of the tokens that may follow an output, in the output's own vocabulary."""

    @abstractmethod
    def follow(self, tokens: Sequence[int]) -> None:
        """Stand after the prompt and the output so far."""

    @abstractmethod
    def rows(
        self, paths: Sequence[tuple[int, ...]], places: Sequence[DraftPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """Return logits after the sequence and each path.

        Args:
            paths: tokens after the sequence.
            places: where each path stands in the grammar.
            most: the most tokens that will still be asked about.

        Returns:
            For each, logits ``[V]``, float32 or float64, minus infinity for what the model cannot say; None where it
            cannot read that far.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the cache."""


@final
class ModelGrowth:
    """A ``Growth`` whose distributions are those of a draft model.

    Masked by the grammar and shaped as the sampler shapes.

    Args:
        rows: stands after the output.
        root: where the output stands in the grammar.
        sampler: how the tokens of the output are chosen; a ``Multinomial`` shapes the distributions as it does those of
            the target.
        drawn: whether distributions are dense, so that children can be drawn.
        most: how many tokens a distribution names.
        budget: the most tokens of the tree.
    """

    def __init__(
        self, rows: DraftRows, root: DraftPosition, sampler: Sampler, *, drawn: bool, most: int, budget: int
    ) -> None:
        self._rows = rows
        self._sampler = sampler
        self._drawn = drawn
        self._most = most
        self._budget = budget
        self._places: dict[int, DraftPosition | None] = {ROOT: root}

    def distributions(self, tree: DraftTree, nodes: Sequence[int], /) -> list[DraftDistribution | None]:
        """See ``Growth.distributions``."""
        asked: dict[int, tuple[tuple[int, ...], DraftPosition]] = {}
        for node in nodes:
            place = self._place(tree, node)
            if place is not None and len(place.ids):
                asked[node] = (*tree.prefix(node), *place.forced), place
        if not asked:
            return [None] * len(nodes)
        paths = [path for path, _ in asked.values()]
        places = [place for _, place in asked.values()]
        found = self._rows.rows(paths, places, self._budget - len(tree))
        distributions = {
            node: None
            if row is None
            else draft_distribution(row, place, self._sampler, drawn=self._drawn, most=self._most)
            for node, place, row in zip(asked, places, found, strict=True)
        }
        return [distributions.get(node) for node in nodes]

    def _place(self, tree: DraftTree, node: int) -> DraftPosition | None:
        if node not in self._places:
            parent = tree.parents[node]
            while parent not in self._places:  # forced tokens between the two
                parent = tree.parents[parent]
            before = self._places[parent]
            self._places[node] = None if before is None else before.then(tree.tokens[node])
        return self._places[node]


def draft_distribution(
    row: DraftRow, place: DraftPosition, sampler: Sampler, *, drawn: bool, most: int
) -> DraftDistribution | None:
    """The distribution of the next token: ``row`` restricted to what may come, and shaped as the sampler shapes.

    Args:
        row: logits ``[V]``.
        place: where the token stands.
        sampler: a ``Multinomial`` shapes.
        drawn: whether the distribution is dense.
        most: how many tokens it names.

    Returns:
        None where the row has no probability for what may come.

    Raises:
        GenerationError: the row has NaN or positive infinity.
    """
    log_p = row[place.ids].astype(np.float64)
    top = float(log_p.max())
    if top == -np.inf:
        return None
    if not np.isfinite(top):
        raise GenerationError("logits", "the draft model returned NaN or infinity", remedy="check its weights")
    weights = sampler.shaped(log_p) if isinstance(sampler, Multinomial) else np.exp(log_p - top)
    weights /= weights.sum()
    dense = None
    if drawn:
        dense = np.zeros(len(row), dtype=np.float64)
        dense[place.ids] = weights
    # A partition of all weights would cost more than all of this; the largest are among the few that are not small.
    large = np.flatnonzero(weights >= weights.max() * _SMALL)
    if len(large) < most:
        large = np.flatnonzero(weights)
    return DraftDistribution.among(place.ids[large], weights[large], most, dense=dense, forced=place.forced)


@final
@dataclass(frozen=True, eq=False, slots=True)
class DraftPosition:
    """A position where a token has to be chosen.

    Attributes:
        matcher: the state, after the forced tokens; it belongs to the place and is not moved.
        forced: tokens for which there was no choice, between the token before and this position.
        mask: the tokens that may come next, int32 words ``[ceil(V / 32)]``.
        ids: the same as ids, ascending, ``[n]``.
        remaining: tokens that are left of the budget.
    """

    matcher: Matcher
    forced: tuple[int, ...]
    mask: NDArray[np.int32]
    ids: NDArray[np.intp]
    remaining: int

    @classmethod
    def of(cls, state: DraftState) -> Self:
        """The position where an output stands."""
        size = state.matcher.constraint.vocabulary.size
        return cls(state.matcher, (), state.mask, allowed_ids(state.mask, size), state.remaining)

    @classmethod
    def after(cls, matcher: Matcher, remaining: int) -> Self | None:
        """The next position where there is a choice, after the tokens that the grammar forces.

        Args:
            matcher: the state; it is moved, and belongs to the place from now on.
            remaining: tokens that are left of the budget.

        Returns:
            None where the output can only end, or the budget is spent.

        Raises:
            LimitExceeded: a limit of the constraint was reached.

        Complexity: one mask for each position where a single token is allowed, and one for the place.
        """
        vocabulary = matcher.constraint.vocabulary
        mask = empty_masks(vocabulary)
        forced: list[int] = []
        while True:
            forced += matcher.advance_forced(remaining - len(forced))
            left = remaining - len(forced)
            if left <= 0:
                return None
            matcher.fill_mask(mask, budget=left)
            ids = allowed_ids(mask[0], vocabulary.size)
            if len(ids) <= len(vocabulary.eos) and all(token in vocabulary.eos for token in ids.tolist()):
                return None
            if len(ids) > 1:
                return cls(matcher, tuple(forced), mask[0], ids, left)
            matcher.accept(int(ids[0]))
            forced.append(int(ids[0]))

    def then(self, token: int) -> DraftPosition | None:
        """The position after ``token``.

        Returns:
            None where the grammar refuses the token, it ends the output, or a limit is reached: limits are for outputs,
            and a draft token that reaches one is just not followed.
        """
        matcher = self.matcher.fork()
        try:
            if token in matcher.constraint.vocabulary.eos or not matcher.accept(token):
                return None
            return DraftPosition.after(matcher, self.remaining - 1)
        except LimitExceeded:
            return None


class ShapedDrafting(Drafting):
    """Trees that a shape grows, and that it learns from once enough is known of what came.

    Args:
        task: the output that is drafted for.
        shape: grows trees.
    """

    def __init__(self, task: DraftTask, shape: Shape) -> None:
        self._task = task
        self._shape = shape
        self._pending: list[tuple[int, int, DraftTree, int]] = []  # start, depth, tree, kind
        self._last: Context | None = None

    @abstractmethod
    def grow(self, context: Context, state: DraftState, budget: int) -> tuple[DraftTree, DraftTree]:
        """Return what is proposed, and what the shape has grown: the same, but for other tokens.

        What the shape learns from has to be of the output's own tokens; else it is empty.
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
        """Tell the shape what came after its trees; of those that were taken back, nothing is known."""
        length = len(context)
        left: list[tuple[int, int, DraftTree, int]] = []
        for start, depth, tree, kind in self._pending:
            if start >= length:
                continue
            if complete or length - start >= depth:
                self._shape.learn(tree, context.tokens[start:], kind)
            else:
                left.append((start, depth, tree, kind))
        self._pending = left


@final
class RowsDrafting(ShapedDrafting):
    """Trees in the output's own tokens, from the rows of a draft model.

    Args:
        task: the output that is drafted for.
        shape: grows trees.
        rows: what the model says.
        draws: whether children are drawn where the sampler is a ``Multinomial``; else, and with any other sampler, the
            most probable ones are chosen.
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
            DraftPosition.of(state),
            self._task.sampler,
            drawn=self._draws,
            most=self._shape.max_children,
            budget=budget,
        )
        generator = self._task.generator if self._draws else None
        tree = self._shape.grow(growth, budget, kind=state.kind, generator=generator)
        return tree, tree

    def end(self) -> None:
        """See ``ShapedDrafting.end``."""
        self._rows.close()
