"""Drafting by a shape that asks a draft model: what all drafters with a model have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, final

from structgen.decode.sampler import Multinomial
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafting
from structgen.decode.speculative.drafters.draft_models.model_growth import ModelGrowth
from structgen.decode.speculative.drafters.draft_models.place import Place

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.drafter import DraftState, DraftTask
    from structgen.decode.speculative.drafters.draft_models.model_growth import DraftRows
    from structgen.decode.speculative.shapes.growth import Shape

__all__ = ["RowsDrafting", "ShapedDrafting"]


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
        """Tell the shape what came behind its trees; of those that were taken back, nothing is known."""
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
            Place.of(state),
            self._task.sampler,
            drawn=self._draws,
            most=self._shape.most_children,
            budget=budget,
        )
        generator = self._task.generator if self._draws else None
        tree = self._shape.grow(growth, budget, kind=state.kind, generator=generator)
        return tree, tree

    def end(self) -> None:
        """See ``ShapedDrafting.end``."""
        self._rows.close()
