"""The chart of one canvas in numpy: the reference implementation of the native chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

from structgen.decode.diffusion.context_free.chart import IMPOSSIBLE, reduced
from structgen.decode.diffusion.context_free.plan import ENDING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.chart import Array
    from structgen.decode.diffusion.context_free.plan import Plan

__all__ = ["ReferenceChart"]


@final
class ReferenceChart:
    """The chart in numpy: slow, and easy to follow.

    Args:
        plan: of the network.
        weights: log weight of every label in every slot, float64 ``[slots, labels]``.
        is_max: whether alternatives are maximised over, not added.

    Attributes:
        masses: float64 ``[slots + 1, cells, slots + 1]``: log mass from a boundary, by a cell, to a boundary.
        arrivals: float64 ``[slots + 1, arrivals, slots + 1]``: log mass from a boundary, through a call, to an arrival
            at a boundary.

    Complexity: ``plan.steps(slots)``, cubic in the slots.
    """

    __slots__ = ("arrivals", "is_max", "masses", "plan", "weights")

    def __init__(self, plan: Plan, weights: Array, *, is_max: bool) -> None:
        self.plan = plan
        self.weights = weights
        self.is_max = is_max
        slots = len(weights)
        self.masses = np.full((slots + 1, plan.cells, slots + 1), IMPOSSIBLE)
        self.arrivals = np.full((slots + 1, plan.arrivals, slots + 1), IMPOSSIBLE)
        for boundary in range(slots, -1, -1):
            self._read_on(boundary)

    @property
    def ends(self) -> Array:
        """See ``Chart``."""
        found: Array = self.masses[0, self.plan.cell(0, ENDING)]
        return found

    def between(self, begin: int, cells: NDArray[np.int32], end: int, /) -> Array:
        """See ``Chart``."""
        found: Array = self.masses[begin, cells, end]
        return found

    def until(self, begin: int, cell: int, end: int, /) -> Array:
        """See ``Chart``."""
        return self.masses[begin:, cell, end]

    def arrived(self, begin: int, arrival: int, /) -> Array:
        """See ``Chart``."""
        return self.arrivals[begin, arrival, begin:]

    def _read_on(self, boundary: int) -> None:
        plan, slots = self.plan, len(self.weights)
        here = self.masses[boundary]
        here[plan.ending_cells, boundary] = 0.0
        if boundary < slots:
            here[plan.leaving_cells, boundary + 1] = 0.0
            weights, after = self.weights[boundary], self.masses[boundary + 1]
            added = self._shared_outlets(boundary)
            for cell in range(int(plan.cell_begin[plan.states])):
                terms = [here[cell], *(after[target] + weights[label] for target, label in plan.moves.of(cell))]
                if plan.outlet_of_cell[cell] >= 0:
                    terms.append(added[int(plan.outlet_of_cell[cell])])
                here[cell] = self._reduced(terms)
        for call in range(len(plan.row_of_call)):
            for arrival in range(int(plan.arrival_begin[call]), int(plan.arrival_begin[call + 1])):
                self.arrivals[boundary, arrival] = self._reduced(
                    [here[cell] + self._leaving(label) for cell, label in plan.contractions.of(arrival)]
                )
            row = int(plan.row_of_call[call])
            if row >= 0:
                composed = self._composed(int(plan.composition_of[row]), boundary, np.zeros(1))
                for cell in range(int(plan.cell_begin[row]), int(plan.cell_begin[row + 1])):
                    here[cell] = composed[int(plan.outlet_of_cell[cell])]

    def _shared_outlets(self, boundary: int) -> dict[int, Array]:
        """What calls add to the cells of states, by outlet."""
        made: dict[int, Array] = {}
        for composition in range(self.plan.shared):
            made.update(self._composed(composition, boundary + 1, self.weights[boundary]))
        return made

    def _composed(self, composition: int, boundary: int, weights: Array) -> dict[int, Array]:
        plan = self.plan
        parts = {
            part: self._reduced(
                [self.arrivals[boundary, arrival] + weights[label] for arrival, label in plan.parts.of(part)]
            )
            for part in range(int(plan.part_begin[composition]), int(plan.part_begin[composition + 1]))
        }
        made = {}
        for outlet in range(int(plan.outlet_begin[composition]), int(plan.outlet_begin[composition + 1])):
            terms = [
                parts[part][None] if cell < 0 else parts[part][:, None] + self.masses[:, cell, :]
                for part, cell in plan.outlets.of(outlet)
            ]
            made[outlet] = reduced(np.concatenate(terms), is_max=self.is_max)
        return made

    def _leaving(self, label: int) -> Array:
        """The weight of a label in the slot before each boundary; before the first one it is undefined."""
        return np.concatenate([self.weights[:1, label] if len(self.weights) else [0.0], self.weights[:, label]])

    def _reduced(self, terms: Sequence[Array]) -> Array:
        return reduced(np.stack(terms), is_max=self.is_max)

    def label_shares(self, ends: Array, /) -> Array:
        """See ``Chart``."""
        return self._outside(ends)[0]

    def needed(self, ends: Array, /) -> NDArray[np.bool_]:
        """Whether some parse that ends at one of ``ends`` takes each cell, ``[slots + 1, cells]`` by the boundary."""
        needed: NDArray[np.bool_] = self._outside(ends.astype(np.float64))[1].any(axis=2)
        return needed

    def _outside(self, ends: Array) -> tuple[Array, Array]:
        """The shares of labels, and those of masses."""
        plan, slots = self.plan, len(self.weights)
        found = np.zeros(self.weights.shape)
        cells, arrivals = np.zeros(self.masses.shape), np.zeros(self.arrivals.shape)
        cells[0, plan.cell(0, ENDING)] = ends
        for boundary in range(slots + 1):
            here = self.masses[boundary]
            for call in reversed(range(len(plan.row_of_call))):
                row = int(plan.row_of_call[call])
                if row >= 0:
                    mine = slice(int(plan.cell_begin[row]), int(plan.cell_begin[row + 1]))
                    shares = {
                        int(plan.outlet_of_cell[cell]): cells[boundary, cell] for cell in range(mine.start, mine.stop)
                    }
                    totals = {int(plan.outlet_of_cell[cell]): here[cell] for cell in range(mine.start, mine.stop)}
                    self._go_back(int(plan.composition_of[row]), boundary, None, shares, totals, cells, arrivals, found)
                for arrival in range(int(plan.arrival_begin[call]), int(plan.arrival_begin[call + 1])):
                    for cell, label in plan.contractions.of(arrival):
                        share = arrivals[boundary, arrival] * _ratio(
                            here[cell] + self._leaving(label), self.arrivals[boundary, arrival]
                        )
                        self._put(cells[boundary, cell], share)
                        self._put(found[:, label], share[1:])
            if boundary < slots:
                self._go_on(boundary, cells, arrivals, found)
        return found, cells

    def _go_on(self, boundary: int, cells: Array, arrivals: Array, found: Array) -> None:
        plan = self.plan
        weights, here, after = self.weights[boundary], self.masses[boundary], self.masses[boundary + 1]
        added = self._shared_outlets(boundary)
        shares = {outlet: np.zeros(len(ends)) for outlet, ends in added.items()}
        for cell in range(int(plan.cell_begin[plan.states])):
            if not cells[boundary, cell].any():
                continue
            for target, label in plan.moves.of(cell):
                share = cells[boundary, cell] * _ratio(after[target] + weights[label], here[cell])
                self._put(cells[boundary + 1, target], share)
                self._put(found[boundary, label : label + 1], self._over_ends(share))
            outlet = int(plan.outlet_of_cell[cell])
            if outlet >= 0:
                self._put(shares[outlet], cells[boundary, cell] * _ratio(added[outlet], here[cell]))
        for composition in range(plan.shared):
            self._go_back(composition, boundary + 1, boundary, shares, added, cells, arrivals, found)

    def _go_back(
        self,
        composition: int,
        boundary: int,
        slot: int | None,
        shares: dict[int, Array],
        totals: dict[int, Array],
        cells: Array,
        arrivals: Array,
        found: Array,
    ) -> None:
        """Pass the shares of outlets back to their parts."""
        plan = self.plan
        for outlet in range(int(plan.outlet_begin[composition]), int(plan.outlet_begin[composition + 1])):
            if outlet not in shares or not shares[outlet].any():
                continue
            for part, cell in plan.outlets.of(outlet):
                for arrival, label in plan.parts.of(part):
                    entered = self.arrivals[boundary, arrival] + (0.0 if slot is None else self.weights[slot, label])
                    if cell < 0:
                        share = shares[outlet] * _ratio(entered, totals[outlet])
                        self._put(arrivals[boundary, arrival], share)
                    else:
                        share = shares[outlet] * _ratio(entered[:, None] + self.masses[:, cell, :], totals[outlet])
                        self._put(arrivals[boundary, arrival], self._over_ends(share))
                        self._put(cells[:, cell, :], share)
                    if slot is not None:
                        self._put(found[slot, label : label + 1], self._over_ends(share.reshape(-1)))

    def _put(self, held: Array, share: Array) -> None:
        """Add a share; for maxima only whether there is one counts, since the number of ways would overflow."""
        (np.maximum if self.is_max else np.add)(held, share, out=held)

    def _over_ends(self, share: Array) -> Array:
        made: Array = share.max(axis=-1) if self.is_max else share.sum(axis=-1)
        return made


def _ratio(part: Array, whole: Array) -> Array:
    """The ratio of a part to the whole, both given as logarithms; 0 if the whole is zero."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isfinite(part), np.exp(part - whole), 0.0)
