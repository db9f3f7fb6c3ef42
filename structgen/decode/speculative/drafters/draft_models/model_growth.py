"""Laws of a draft model behind the nodes of a tree: what a shape asks for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.sampler import Multinomial
from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.shapes.growth import Law
from structgen.errors import GenerationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.sampler import Sampler
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.drafters.draft_models.place import Place
__all__ = ["DraftRow", "DraftRows", "ModelGrowth", "draft_law"]

DraftRow: TypeAlias = "NDArray[np.float32] | NDArray[np.float64]"
"""Logits of a draft model over the ids of the target, ``[V]``."""

_SMALL: Final = 1e-2


class DraftRows(ABC):
    """What a draft model says of the tokens that may follow an output, in the output's own vocabulary."""

    @abstractmethod
    def follow(self, tokens: Sequence[int]) -> None:
        """Stand behind the prompt and the output so far."""

    @abstractmethod
    def rows(self, paths: Sequence[tuple[int, ...]], places: Sequence[Place], most: int) -> Sequence[DraftRow | None]:
        """Return logits behind the sequence and each path.

        Args:
            paths: tokens behind the sequence.
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
    """A ``Growth`` whose laws are those of a draft model, masked by the grammar and shaped as the sampler shapes.

    Args:
        rows: stands behind the output.
        root: where the output stands in the grammar.
        sampler: how the tokens of the output are chosen; a ``Multinomial`` shapes the laws as it does those of the
            target.
        drawn: whether laws are dense, so that children can be drawn.
        most: how many tokens a law names.
        budget: the most tokens of the tree.
    """

    def __init__(self, rows: DraftRows, root: Place, sampler: Sampler, *, drawn: bool, most: int, budget: int) -> None:
        self._rows = rows
        self._sampler = sampler
        self._drawn = drawn
        self._most = most
        self._budget = budget
        self._places: dict[int, Place | None] = {ROOT: root}

    def laws(self, tree: DraftTree, nodes: Sequence[int], /) -> list[Law | None]:
        """See ``Growth.laws``."""
        asked: dict[int, tuple[tuple[int, ...], Place]] = {}
        for node in nodes:
            place = self._place(tree, node)
            if place is not None and len(place.ids):
                asked[node] = (*tree.prefix(node), *place.forced), place
        if not asked:
            return [None] * len(nodes)
        paths = [path for path, _ in asked.values()]
        places = [place for _, place in asked.values()]
        found = self._rows.rows(paths, places, self._budget - len(tree))
        laws = {
            node: None if row is None else draft_law(row, place, self._sampler, drawn=self._drawn, most=self._most)
            for node, place, row in zip(asked, places, found, strict=True)
        }
        return [laws.get(node) for node in nodes]

    def _place(self, tree: DraftTree, node: int) -> Place | None:
        if node not in self._places:
            parent = tree.parents[node]
            while parent not in self._places:  # forced tokens between the two
                parent = tree.parents[parent]
            before = self._places[parent]
            self._places[node] = None if before is None else before.then(tree.tokens[node])
        return self._places[node]


def draft_law(row: DraftRow, place: Place, sampler: Sampler, *, drawn: bool, most: int) -> Law | None:
    """The law of the next token: ``row`` restricted to what may come, and shaped as the sampler shapes.

    Args:
        row: logits ``[V]``.
        place: where the token stands.
        sampler: a ``Multinomial`` shapes.
        drawn: whether the law is dense.
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
    return Law.among(place.ids[large], weights[large], most, dense=dense, forced=place.forced)
