"""The chart of one canvas: exact inference over all parses of the canvas by a network.

``walk_chart`` chooses one parse of a chart, from left to right.

Sources: J. K. Baker, "Trainable grammars for speech recognition" (1979), for inside and outside probabilities;
    J. Goodman, "Semiring parsing" (1999), for one chart with several algebras; J. Eisner, "Inside-outside and
    forward-backward algorithms are just backprop" (2016), for the outside pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.context_free.plan import ALWAYS, ENDING, ROW_BLOCK, row_widths

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.plan import Lists, Plan

__all__ = ["NO_LABEL", "Chart", "reduced", "walk_chart"]

if TYPE_CHECKING:
    Array: TypeAlias = NDArray[np.float64]

IMPOSSIBLE: Final = -np.inf

_UNBOUNDED: Final = (1 << 63) - 1


def reduced(values: Array, *, is_max: bool) -> Array:
    """The maximum of each column, or the logarithm of its sum of exponentials."""
    if not len(values):
        return np.full(values.shape[1:], IMPOSSIBLE)
    largest: Array = values.max(axis=0)
    if is_max:
        return largest
    safe = np.where(np.isfinite(largest), largest, 0.0)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(np.exp(values - safe).sum(axis=0)) + safe
    return logs


@final
class Chart:
    """The log masses of one canvas: of all parses of the slots between two boundaries.

    The reference implementation is ``ReferenceChart`` of the tests.

    Args:
        plan: the tables of the chart.
        weights: log weight of every label in every slot, float64 ``[slots, labels]``.
        is_max: whether alternatives are maximised, not summed.
        max_steps: limit on ``steps``; a chart that needs more is left incomplete, and must not be read.

    Attributes:
        steps: blocks of eight masses that were added or compared, except those of ``label_shares``.

    Only what a parse from the start may need is computed: fewer rows, the more slots hold one token.

    Complexity: at most ``plan.steps(slots)`` products of masses, cubic in the slots.
    """

    __slots__ = ("_arrivals", "_firsts", "_masses", "_native", "_starts", "_widths", "plan", "steps", "weights")

    def __init__(self, plan: Plan, weights: Array, *, is_max: bool, max_steps: int = _UNBOUNDED) -> None:
        self.plan = plan
        self.weights = np.ascontiguousarray(weights)
        self._native = _native.Chart.of(plan.native, self.weights, is_max, max_steps)
        self.steps = self._native.steps
        self._masses, self._arrivals = self._native.masses, self._native.arrivals
        boundaries = np.arange(len(weights) + 1)
        self._firsts = boundaries // ROW_BLOCK * ROW_BLOCK  # the boundary of the first entry of a row
        self._widths = row_widths(len(weights))
        self._starts = np.cumsum(self._widths) - self._widths

    @property
    def is_complete(self) -> bool:
        """Whether ``max_steps`` were enough."""
        return self._native.is_complete

    @property
    def reached(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether parses from the start may need each row and each arrival; the others have no masses.

        Returns:
            bool ``[slots + 1, rows]`` and ``[slots + 1, arrivals]``, by the boundary where the row or the call begins.
        """
        rows, arrivals = self._native.reached
        return rows.astype(bool), arrivals.astype(bool)

    @property
    def ends(self) -> Array:
        """The log mass of the strings that the first slots spell, float64 ``[slots + 1]``."""
        begin = self.plan.cell(0, ENDING) * int(self._widths[0])
        ends: Array = self._masses[begin : begin + len(self.weights) + 1]
        return ends

    def between(self, begin: int, cells: NDArray[np.int32], end: int, /) -> Array:
        """Log masses from one boundary, by each of some cells, to another; float64 ``[len(cells)]``."""
        start = int(self._starts[begin]) * self.plan.cells + (end - int(self._firsts[begin]))
        masses: Array = self._masses[start + cells * int(self._widths[begin])]
        return masses

    def until(self, begin: int, cell: int, end: int, /) -> Array:
        """Log masses from each boundary, ``begin`` or later, by a cell to ``end``; float64 ``[slots + 1 - begin]``."""
        masses = np.full(len(self.weights) + 1 - begin, IMPOSSIBLE)
        middles = slice(begin, end + 1)
        at = self._starts[middles] * self.plan.cells + cell * self._widths[middles] + (end - self._firsts[middles])
        masses[: len(at)] = self._masses[at]
        return masses

    def arrived(self, begin: int, arrival: int, /) -> Array:
        """Log masses from ``begin`` through a call to an arrival at each later boundary, ``[slots + 1 - begin]``."""
        width, first = int(self._widths[begin]), int(self._firsts[begin])
        start = int(self._starts[begin]) * self.plan.arrivals + arrival * width
        masses: Array = self._arrivals[start + begin - first : start + len(self.weights) + 1 - first]
        return masses

    def label_shares(self, ends: Array, /) -> Array:
        """How many times a parse takes each label in each slot, on average; float64 ``[slots, labels]``.

        ``ends`` is the share of the parses that end at each boundary, float64 ``[slots + 1]``.
        """
        made = self.counted_shares(ends, _UNBOUNDED)[0]
        return np.zeros(self.weights.shape) if made is None else made

    def counted_shares(self, ends: Array, max_steps: int, /) -> tuple[Array | None, int]:
        """``label_shares``, or None where they need more than ``max_steps``; and the steps."""
        return self._native.label_shares(np.ascontiguousarray(ends), self.plan.cell(0, ENDING), max_steps)


def shortest_output(plan: Plan) -> int:
    """Return the minimal number of tokens of a string: distances along the tables of a chart."""
    far = np.inf
    cells = np.full(plan.cells, far)
    cells[plan.ending_cells], cells[plan.leaving_cells] = 0.0, 1.0
    arrivals = np.full(plan.arrivals, far)
    of_cell = np.repeat(np.arange(plan.cells), np.diff(plan.moves.begin))
    of_arrival = np.repeat(np.arange(plan.arrivals), np.diff(plan.contractions.begin))
    of_part = np.repeat(np.arange(len(plan.parts)), np.diff(plan.parts.begin))
    of_outlet = np.repeat(np.arange(len(plan.outlets)), np.diff(plan.outlets.begin))
    shared_outlets = int(plan.outlet_begin[plan.shared])
    composed = np.flatnonzero(plan.outlet_of_cell >= 0)
    takes = (plan.outlet_of_cell[composed] < shared_outlets).astype(np.float64)  # tokens that lead to the call
    while True:
        before = cells.copy(), arrivals.copy()
        np.minimum.at(cells, of_cell, cells[plan.moves.first] + 1)
        np.minimum.at(arrivals, of_arrival, cells[plan.contractions.first])
        parts = np.full(len(plan.parts), far)
        np.minimum.at(parts, of_part, arrivals[plan.parts.first])
        outlets = np.full(len(plan.outlets), far)
        after = np.where(plan.outlets.second >= 0, cells[plan.outlets.second], 0.0)
        np.minimum.at(outlets, of_outlet, parts[plan.outlets.first] + after)
        cells[composed] = np.minimum(cells[composed], outlets[plan.outlet_of_cell[composed]] + takes)
        if np.array_equal(before[0], cells) and np.array_equal(before[1], arrivals):
            return int(cells[plan.cell(0, ENDING)])


NO_LABEL: Final = -1
"""The label of slots after the end."""


class _Task(NamedTuple):
    """Parse from a boundary, by a cell, to a boundary."""

    begin: int
    cell: int
    end: int


def walk_chart(chart: Chart, end: int, choose: Callable[[NDArray[np.float64]], int]) -> NDArray[np.int32]:
    """Return the label of every slot before ``end``, and ``NO_LABEL`` for the others.

    Args:
        chart: a chart with some parse that ends at ``end``.
        end: the boundary where the string ends.
        choose: picks an index by log weights.

    Complexity: O(slots x ports x parts) for each slot.
    """
    return _ChartWalk(chart, choose).labels(end)


@final
class _ChartWalk:
    """The choices of one parse; tasks are on a stack, so the depth of the text is unbounded."""

    def __init__(self, chart: Chart, choose: Callable[[NDArray[np.float64]], int]) -> None:
        self._chart = chart
        self._choose = choose
        self._labels = np.full(len(chart.weights), NO_LABEL, dtype=np.int32)
        plan = chart.plan
        self._state_cells = int(plan.cell_begin[plan.states])
        self._leaving = frozenset(plan.leaving_cells.tolist())
        self._tasks: list[_Task] = []

    def labels(self, end: int) -> NDArray[np.int32]:
        self._tasks.append(_Task(0, self._chart.plan.cell(0, ENDING), end))
        while self._tasks:
            task = self._tasks.pop()
            if task.cell >= self._state_cells:
                self._compose(task, None)
            elif task.end > task.begin and not (task.end == task.begin + 1 and task.cell in self._leaving):
                self._step(task)
        return self._labels

    def _step(self, task: _Task) -> None:
        """Read one token."""
        chart = self._chart
        targets, labels = _pairs(chart.plan.moves, task.cell)
        through = chart.between(task.begin + 1, targets, task.end) + chart.weights[task.begin][labels]
        if chart.plan.outlet_of_cell[task.cell] >= 0:
            self._compose(task, through)
            return
        self._move(task, self._choose(through))

    def _move(self, task: _Task, chosen: int) -> None:
        targets, labels = _pairs(self._chart.plan.moves, task.cell)
        self._labels[task.begin] = labels[chosen]
        self._tasks.append(_Task(task.begin + 1, int(targets[chosen]), task.end))

    def _compose(self, task: _Task, moves: NDArray[np.float64] | None) -> None:
        """Enter a rule: with the next token if ``moves`` compete, else at once."""
        chart, plan = self._chart, self._chart.plan
        begin = task.begin if moves is None else task.begin + 1
        weights = np.zeros(1) if moves is None else chart.weights[task.begin]
        weights_of = [] if moves is None else [moves]
        ways: list[tuple[int, int, int]] = []
        for part, cell in plan.outlets.of(int(plan.outlet_of_cell[task.cell])):
            for arrival, label in plan.parts.of(part):
                through = chart.arrived(begin, arrival) + weights[label]
                if cell < 0:
                    direct = np.full(len(through), -np.inf)
                    direct[task.end - begin] = through[task.end - begin]
                    weights_of.append(direct)
                else:
                    weights_of.append(through + chart.until(begin, cell, task.end))
                ways.append((arrival, label, cell))
        chosen = self._choose(np.concatenate(weights_of))
        first = 0 if moves is None else len(moves)
        if chosen < first:
            self._move(task, chosen)
            return
        way, passed = divmod(chosen - first, len(chart.weights) + 1 - begin)
        boundary = begin + passed
        arrival, label, cell = ways[way]
        if moves is not None:
            self._labels[task.begin] = label
        if cell >= 0:
            self._tasks.append(_Task(boundary, cell, task.end))
        self._arrive(begin, arrival, boundary)

    def _arrive(self, begin: int, arrival: int, end: int) -> None:
        """Parse the rule of a call, and the token that leaves it."""
        chart = self._chart
        cells, labels = _pairs(chart.plan.contractions, arrival)
        through = chart.between(begin, cells, end) + np.where(labels == ALWAYS, 0.0, chart.weights[end - 1][labels])
        chosen = self._choose(through)
        if labels[chosen] != ALWAYS:
            self._labels[end - 1] = labels[chosen]
        self._tasks.append(_Task(begin, int(cells[chosen]), end))


def _pairs(lists: Lists, index: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    one = slice(int(lists.begin[index]), int(lists.begin[index + 1]))
    return lists.first[one], lists.second[one]
