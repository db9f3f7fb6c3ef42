"""One way through a chart, chosen from left to right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, final

import numpy as np

from structgen.decode.diffusion.context_free.plan import ALWAYS, ENDING

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.chart import Chart
    from structgen.decode.diffusion.context_free.plan import Lists

__all__ = ["NO_LABEL", "walk_chart"]

NO_LABEL: Final = -1
"""What slots after the end have."""


class _Task(NamedTuple):
    """To read from a boundary, by a cell, to a boundary."""

    begin: int
    cell: int
    end: int


def walk_chart(chart: Chart, end: int, choose: Callable[[NDArray[np.float64]], int]) -> NDArray[np.int32]:
    """Return the label of every slot before ``end``, and ``NO_LABEL`` for the others.

    Args:
        chart: some way leads to ``end``.
        end: the boundary where the member ends.
        choose: picks one of some log weights.

    Complexity: O(slots x ports x parts) for each slot.
    """
    return _ChartWalk(chart, choose).labels(end)


@final
class _ChartWalk:
    """The choices of one walk; tasks wait on a stack, whatever the depth of the text."""

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
        """Enter a rule: with the next token, if there are ``moves`` that compete, else at once."""
        chart, plan = self._chart, self._chart.plan
        begin = task.begin if moves is None else task.begin + 1
        weights = np.zeros(1) if moves is None else chart.weights[task.begin]
        found = [] if moves is None else [moves]
        ways: list[tuple[int, int, int]] = []
        for part, cell in plan.outlets.of(int(plan.outlet_of_cell[task.cell])):
            for arrival, label in plan.parts.of(part):
                through = chart.arrived(begin, arrival) + weights[label]
                if cell < 0:
                    direct = np.full(len(through), -np.inf)
                    direct[task.end - begin] = through[task.end - begin]
                    found.append(direct)
                else:
                    found.append(through + chart.until(begin, cell, task.end))
                ways.append((arrival, label, cell))
        chosen = self._choose(np.concatenate(found))
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
        """Read the rule of a call, and the token that leaves it."""
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
