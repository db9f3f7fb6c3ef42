"""The tables of a chart on a device: the rows that each row is the union of, stage by stage.

A chart of a canvas has one boolean matrix over the boundaries between slots for each *item*: whether a derivation of
the item leads from boundary ``j`` to boundary ``k``.  Items are the cells of a plan, its arrivals, and the parts and
outlets that its states share, which belong to the slot before which a token leads to a call.

Inside rows ``j`` are computed from the last to the first.  Outside rows keep the derivations that are part of a parse
of the whole canvas; they are computed from the first to the last.  Within a boundary, items depend on each other, so
they are computed in *stages*; the items of one stage are independent.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self, final

import numpy as np
import torch

from structgen_kernels.charts.boolean_products import Pairs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["ENDS", "LEAVES", "STARTS", "ChartTables", "PairLists", "PlanTables", "Stage"]

ENDS: Final = 1
"""The flag of an item with an empty derivation, from a boundary to the same boundary."""

LEAVES: Final = 2
"""The flag of an item that leads from a boundary to the next, for any token."""

STARTS: Final = 4
"""The flag of the item that parses begin with."""

_ALWAYS: Final = 0

_Triple = tuple[int, int, int]


class PairLists(Protocol):
    """Lists of pairs in CSR layout: list ``i`` is ``[begin[i], begin[i + 1])`` of both columns."""

    @property
    def begin(self) -> NDArray[np.int32]:
        """Int32 ``[lists + 1]``."""

    @property
    def first(self) -> NDArray[np.int32]:
        """Int32 ``[pairs]``."""

    @property
    def second(self) -> NDArray[np.int32]:
        """Int32 ``[pairs]``."""


class PlanTables(Protocol):
    """The plan of a chart as plain arrays, which ``structgen.decode.diffusion.context_free.plan`` defines.

    Label 0 consumes no token.
    """

    @property
    def states(self) -> int:
        """The number of rows that are states."""

    @property
    def cell_begin(self) -> NDArray[np.int32]:
        """The first cell of each row, ``[rows + 1]``."""

    @property
    def ending_cells(self) -> NDArray[np.int32]:
        """The cells that may end at the boundary where they begin."""

    @property
    def leaving_cells(self) -> NDArray[np.int32]:
        """The cells that may end after the next token."""

    @property
    def moves(self) -> PairLists:
        """For each cell, (cell after a token, label)."""

    @property
    def outlet_of_cell(self) -> NDArray[np.int32]:
        """The outlet of each cell, or -1."""

    @property
    def composition_of(self) -> NDArray[np.int32]:
        """The composition of each row, or -1."""

    @property
    def shared(self) -> int:
        """The number of compositions of states."""

    @property
    def row_of_call(self) -> NDArray[np.int32]:
        """The row of each call, or -1."""

    @property
    def arrival_begin(self) -> NDArray[np.int32]:
        """The first arrival of each call, ``[calls + 1]``."""

    @property
    def contractions(self) -> PairLists:
        """For each arrival, (cell of the inner row, label)."""

    @property
    def part_begin(self) -> NDArray[np.int32]:
        """The first part of each composition."""

    @property
    def parts(self) -> PairLists:
        """For each part, (arrival, label)."""

    @property
    def outlet_begin(self) -> NDArray[np.int32]:
        """The first outlet of each composition."""

    @property
    def outlets(self) -> PairLists:
        """For each outlet, (part, cell of its target or -1)."""


@final
@dataclass(frozen=True, slots=True)
class Stage:
    """Independent items, and the rows that their row ``j`` is the union of.

    Attributes:
        items: int32 ``[n]``.
        flags: int32 ``[n]``, see ``ENDS``, ``LEAVES`` and ``STARTS``.
        there: (item, label): the row of the item at the next boundary (``j + 1`` inside, ``j - 1`` outside), if the
            slot between allows the label.
        here: (item, label): row ``j`` of the item, at the boundaries whose previous slot allows the label.
        products: (left, right): row ``j`` of the product of two inside matrices; for the inside chart only.
        into: (left, right): row ``j`` of the product of an inside matrix, transposed, and an outside one.
        through: (left, right): row ``j`` of the product of an outside matrix and an inside one, transposed.
    """

    items: Tensor
    flags: Tensor
    there: Pairs
    here: Pairs
    products: Pairs
    into: Pairs
    through: Pairs


@final
@dataclass(frozen=True, slots=True)
class ChartTables:
    """The tables for the charts of a plan, on a device; for canvases of any length.

    Attributes:
        items: the number of matrices of a chart.
        labels: the number of labels of the plan.
        root: the item that parses begin with.
        inside: the stages of a boundary of the inside chart.
        outside: the stages of a boundary of the outside chart.
        beside: for each label, (item, item after the token): a slot may have the label if a derivation of the first
            item continues as the second from the next boundary.
        across: for each label, (arrival, cell): the slot before a boundary may have the label if derivations of both
            end at the boundary.
    """

    items: int
    labels: int
    root: int
    inside: tuple[Stage, ...]
    outside: tuple[Stage, ...]
    beside: Pairs
    across: Pairs

    @classmethod
    def of(cls, plan: PlanTables, *, root: int, labels: int, device: torch.device | str = "cpu") -> Self:
        """Lay out the charts of a plan.

        Args:
            plan: the plan.
            root: the cell, from the start state, of parses that end at the end of a token.
            labels: the number of labels, label 0 included.
            device: the device of the tables.

        Complexity: O(pairs of all lists), once per plan.
        """
        return _Layout(plan, root, device).tables(cls, labels)

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self.beside.begin.device

    def row_words(self, slots: int) -> int:
        """Return the number of words of the inside and the outside chart of a canvas."""
        return 2 * self.items * (slots + 1) * ((slots + 32) // 32)


@final
class _Layout:
    """The layout of the stages of a plan."""

    def __init__(self, plan: PlanTables, root: int, device: torch.device | str) -> None:
        self._plan = plan
        self._root = root
        self._device = device
        self._cells = int(plan.cell_begin[-1])
        self._state_cells = int(plan.cell_begin[plan.states])
        self._arrivals = len(plan.contractions.begin) - 1
        self._parts = int(plan.part_begin[plan.shared])
        self._outlets = int(plan.outlet_begin[plan.shared])
        self._arrival, self._part = self._cells, self._cells + self._arrivals
        self._outlet = self._part + self._parts
        self.items = self._outlet + self._outlets
        self._call_of_row = {int(row): call for call, row in enumerate(plan.row_of_call) if row >= 0}
        self._level_of_call = self._levels()
        # By result: products of states, from parts to outlets, and of rows, from arrivals to cells.
        self._ways, self._straight = self._all_ways()

    def tables(self, cls: type[ChartTables], labels: int) -> ChartTables:
        plan = self._plan
        moves = _owned(plan.moves)
        beside = [(label, cell, target) for cell, target, label in moves if label != _ALWAYS]
        beside += [
            (label, self._part + part, self._arrival + arrival)
            for part, arrival, label in _owned(plan.parts)
            if part < self._parts and label != _ALWAYS
        ]
        across = [
            (label, self._arrival + arrival, cell)
            for arrival, cell, label in _owned(plan.contractions)
            if label != _ALWAYS
        ]
        levels = range(max(self._level_of_call, default=-1) + 1)
        parts, outlets = range(self._part, self._outlet), range(self._outlet, self.items)
        states = range(self._state_cells)
        inside: list[Sequence[int]] = [parts, outlets, states]
        outside: list[Sequence[int]] = [parts, outlets, states]
        for level in levels:
            arrivals, rows = self._arrivals_at(level), self._row_cells_at(level)
            inside += [arrivals, rows]
            outside += [arrivals, rows]
        return cls(
            items=self.items,
            labels=labels,
            root=self._root,
            inside=self._stages(inside, self._inside_lists(), starts=False),
            outside=self._stages(outside[::-1], self._outside_lists(), starts=True),
            beside=Pairs.of(beside, labels, self._device),
            across=Pairs.of(across, labels, self._device),
        )

    def _levels(self) -> list[int]:
        """Return the level of each call: the depth of the calls that it depends on at the same boundary."""
        plan = self._plan
        row_of_cell = np.repeat(np.arange(len(plan.cell_begin) - 1), np.diff(plan.cell_begin)).tolist()
        levels: list[int] = []
        for call in range(len(plan.row_of_call)):
            pairs = plan.contractions.begin[plan.arrival_begin[call : call + 2]]
            rows = {row_of_cell[cell] for cell in plan.contractions.first[pairs[0] : pairs[1]].tolist()}
            inner = [levels[self._call_of_row[row]] for row in rows if row >= plan.states]
            levels.append(max(inner, default=-1) + 1)
        return levels

    def _arrivals_at(self, level: int) -> list[int]:
        begin = self._plan.arrival_begin
        return [
            self._arrival + arrival
            for call, at in enumerate(self._level_of_call)
            if at == level
            for arrival in range(int(begin[call]), int(begin[call + 1]))
        ]

    def _row_cells_at(self, level: int) -> list[int]:
        begin = self._plan.cell_begin
        return [
            cell
            for row, call in sorted(self._call_of_row.items())
            if self._level_of_call[call] == level
            for cell in range(int(begin[row]), int(begin[row + 1]))
        ]

    def _all_ways(self) -> tuple[list[_Triple], list[tuple[int, int]]]:
        """Return (result, left, right) of products, and (result, left) of outlets without a target."""
        plan = self._plan
        made_of = {outlet: self._outlet + outlet for outlet in range(self._outlets)}
        for cell in range(self._state_cells, self._cells):
            made_of[int(plan.outlet_of_cell[cell])] = cell
        ways: list[_Triple] = []
        straight: list[tuple[int, int]] = []
        for outlet, part, target in _owned(plan.outlets):
            left = self._part + part
            if part >= self._parts:  # the parts of rows are their arrivals
                left = self._arrival + int(plan.parts.first[plan.parts.begin[part]])
            if target < 0:
                straight.append((made_of[outlet], left))
            else:
                ways.append((made_of[outlet], left, target))
        return ways, straight

    def _inside_lists(self) -> dict[str, list[_Triple]]:
        plan = self._plan
        there = list(_owned(plan.moves))
        there += [
            (self._part + part, self._arrival + arrival, label)
            for part, arrival, label in _owned(plan.parts)
            if part < self._parts
        ]
        here = [(made, left, _ALWAYS) for made, left in self._straight]
        here += [
            (cell, self._outlet + int(outlet), _ALWAYS)
            for cell, outlet in enumerate(plan.outlet_of_cell[: self._state_cells])
            if outlet >= 0
        ]
        here += [(self._arrival + arrival, cell, label) for arrival, cell, label in _owned(plan.contractions)]
        return {"there": there, "here": here, "products": self._ways}

    def _outside_lists(self) -> dict[str, list[_Triple]]:
        inside = self._inside_lists()
        return {
            "there": [(source, made, label) for made, source, label in inside["there"]],
            "here": [(source, made, label) for made, source, label in inside["here"]],
            "into": [(right, left, made) for made, left, right in self._ways],
            "through": [(left, made, right) for made, left, right in self._ways],
        }

    def _stages(
        self, stages: Sequence[Sequence[int]], lists: dict[str, list[_Triple]], *, starts: bool
    ) -> tuple[Stage, ...]:
        place: dict[int, tuple[int, int]] = {}
        kept = [list(items) for items in stages if len(items)]
        by_stage: list[dict[str, list[_Triple]]] = [defaultdict(list) for _ in kept]
        for number, items in enumerate(kept):
            place |= {item: (number, at) for at, item in enumerate(items)}
        for kind, triples in lists.items():
            for item, first, second in triples:
                number, at = place[item]
                by_stage[number][kind].append((at, first, second))
        flags = np.zeros(self.items, dtype=np.int32)
        if starts:
            flags[self._root] = STARTS
        else:
            flags[self._plan.ending_cells] |= ENDS
            flags[self._plan.leaving_cells] |= LEAVES
        made = []
        for items, found in zip(kept, by_stage, strict=True):
            pairs = {
                kind: Pairs.of(found[kind], len(items), self._device)
                for kind in ("there", "here", "products", "into", "through")
            }
            numbers = torch.tensor(items, dtype=torch.int32).to(self._device)
            made.append(Stage(numbers, torch.tensor(flags[items]).to(self._device), **pairs))
        return tuple(made)


def _owned(lists: PairLists) -> list[_Triple]:
    """Return (list, first, second) for all pairs."""
    owners = np.repeat(np.arange(len(lists.begin) - 1), np.diff(lists.begin)).tolist()
    return list(zip(owners, lists.first.tolist(), lists.second.tolist(), strict=True))
