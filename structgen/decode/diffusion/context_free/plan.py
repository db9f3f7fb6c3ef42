"""The layout of a network's charts, computed once for canvases of any length.

A chart has an entry for each node, each pair ``j <= k`` of boundaries between slots, and each *port*: the mass of all
parses from the node at ``j`` to the end of its rule at ``k``, through that port. There are three kinds of ports:

- port 0: the rule ends where a token ends;
- the rule ends within the token before ``k``, and the token began in this rule. States that tokens leave in the same
  ways share a port; the port does not identify the token;
- the rule ends within the token before ``k``, and the token began in an inner rule. Its remaining bytes are a *rest*,
  and each rest has a port.

The first two kinds suffice for most cells: a state that five rests may leave has one port, not five.

A node within a rule continues where the rule ends: it is *composed* of the parses of the rule and, for each boundary
and each target that the caller reaches by reading the rest, of the parses from there.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.grammar.limits import spend_steps

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.context_free.token_network import TokenNetwork

__all__ = ["ALWAYS", "ENDING", "ROW_BLOCK", "Lists", "Plan", "plan_of", "row_widths"]

ALWAYS: Final = 0
"""The label of an edge that reads no token: its weight is 1."""

ENDING: Final = 0
"""The port of a rule that ends where a token ends."""

ROW_BLOCK: Final = 8
"""Rows of native charts begin and end at multiples of this many boundaries."""


def row_widths(slots: int) -> NDArray[np.int64]:
    """The number of entries of a row of a native chart, by the first boundary of its parses."""
    widths: NDArray[np.int64] = (slots // ROW_BLOCK + 1 - np.arange(slots + 1) // ROW_BLOCK) * ROW_BLOCK
    return widths


@final
@dataclass(frozen=True, slots=True, eq=False)
class Lists:
    """Concatenated lists of pairs: list ``i`` is ``[begin[i], begin[i + 1])`` of both columns.

    Attributes:
        begin: int32 ``[lists + 1]``.
        first, second: int32 ``[pairs]``.
    """

    begin: NDArray[np.int32]
    first: NDArray[np.int32]
    second: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.begin) - 1

    def of(self, index: int) -> list[tuple[int, int]]:
        """List ``index``."""
        one = slice(int(self.begin[index]), int(self.begin[index + 1]))
        return list(zip(self.first[one].tolist(), self.second[one].tolist(), strict=True))


@final
@dataclass(frozen=True, eq=False)
class Plan:
    """The tables of a chart; immutable.

    A *row* is a state, then a node within a rule whose parses other rows need; it has a *cell* for each port by which
    it may be left. A *call* is a node within a rule; its *arrivals* are the outcomes of the rule's end for the caller:
    a row to continue with, or a port of the caller's own. A *composition* is a sum of calls: those that tokens lead to
    from a state (states with equal sums share it), or the one call that is a row.

    Attributes:
        states, rows: numbers of states and rows.
        cell_begin: int32 ``[rows + 1]``, the cells of each row.
        port_of_cell: int32 ``[cells]``; the ports of a row increase.
        ending_cells: the cells that hold 1 where ``k = j``.
        leaving_cells: the cells that hold 1 where ``k = j + 1``.
        moves: of each cell, (cell after a token, label).
        outlet_of_cell: int32 ``[cells]``: the outlet that the row's composition adds to the cell; -1 for none.
        composition_of: int32 ``[rows]``; -1 for none.
        shared: number of compositions of states; they come first, then that of each other row.
        row_of_call: int32 ``[calls]``; -1 if no other row needs the call. Calls come after those within them.
        arrival_begin: int32 ``[calls + 1]``, the arrivals of each call.
        contractions: of each arrival, (cell of the inner row, label of the token that left the rule).
        part_begin: int32 ``[compositions + 1]``, the parts of each composition.
        parts: of each part, (arrival, label of the token that leads to the call).
        outlet_begin: int32 ``[compositions + 1]``, the outlets of each composition.
        outlets: of each outlet, (part, cell of its target, or -1 if the part leads to the port itself).
        labels: the classes of each label, repeated if a token takes part in several ways.
    """

    states: int
    rows: int
    cell_begin: NDArray[np.int32]
    port_of_cell: NDArray[np.int32]
    ending_cells: NDArray[np.int32]
    leaving_cells: NDArray[np.int32]
    moves: Lists
    outlet_of_cell: NDArray[np.int32]
    composition_of: NDArray[np.int32]
    shared: int
    row_of_call: NDArray[np.int32]
    arrival_begin: NDArray[np.int32]
    contractions: Lists
    part_begin: NDArray[np.int32]
    parts: Lists
    outlet_begin: NDArray[np.int32]
    outlets: Lists
    labels: tuple[tuple[int, ...], ...]

    @cached_property
    def native(self) -> _native.ChartPlan:
        """The tables in the form of native charts."""
        return _native.ChartPlan.of(self)

    @cached_property
    def label_classes(self) -> NDArray[np.int32]:
        """The classes of all labels, concatenated."""
        return _int32(of for classes in self.labels for of in classes)

    @cached_property
    def label_begin(self) -> NDArray[np.int64]:
        """The index in ``label_classes`` of the first class of each label, and their number; ``ALWAYS`` has none."""
        return np.cumsum([0, *map(len, self.labels)])

    @property
    def cells(self) -> int:
        """Number of cells of all rows."""
        return len(self.port_of_cell)

    @property
    def arrivals(self) -> int:
        """Number of arrivals of all calls."""
        return len(self.contractions)

    def cell(self, row: int, port: int) -> int:
        """The cell of a row for a port; -1 if there is none."""
        begin, end = int(self.cell_begin[row]), int(self.cell_begin[row + 1])
        at = begin + int(np.searchsorted(self.port_of_cell[begin:end], port))
        return at if at < end and self.port_of_cell[at] == port else -1

    def bytes(self, slots: int) -> int:
        """The memory of a chart's tables."""
        rows = self.cells + self.arrivals + int(self.part_begin[self.shared]) + int(self.outlet_begin[self.shared])
        widths = row_widths(slots)
        targets = len(np.unique(self.outlets.second[self.outlets.second >= 0]))  # these are held twice
        return 8 * (rows * int(widths.sum()) + targets * (slots + 1) * int(widths[0]))

    def steps(self, slots: int) -> int:
        """An upper bound on the elementary steps of a chart: products of two masses."""
        pairs = slots * (slots + 1) // 2
        along = len(self.moves.first) + len(self.contractions.first) + len(self.parts.first)
        return along * pairs + len(self.outlets.first) * (pairs * (slots + 2) // 3)


def plan_of(network: TokenNetwork) -> Plan:
    """Lay out the charts of a network.

    Raises:
        LimitExceeded: the steps of the call are counted and used up.

    Complexity: O(moves x ports), and the arrivals of all calls, each times the ports of its target.
    """
    return _Layout(network).plan()


class _Layout:
    def __init__(self, network: TokenNetwork) -> None:
        self._network = network
        self._labels: dict[tuple[int, ...], int] = {(): ALWAYS}
        states = network.states
        kinds: dict[tuple[tuple[int, int], ...], int] = {}
        leaving: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for state, of, rest in network.leaving.tolist():
            leaving[state].append((of, rest))
        self._kind_of = {
            state: kinds.setdefault(tuple(ways), 1 + len(kinds)) for state, ways in sorted(leaving.items())
        }
        self._kinds = list(kinds)
        self._first_rest = 1 + len(kinds)
        self._steps: dict[tuple[int, int], int] = {}
        entered: dict[int, dict[int, list[int]]] = defaultdict(dict)
        state_of, class_of, node_of = network.moves[np.lexsort(network.moves.T[[1, 2, 0]])].T
        begins = np.flatnonzero((np.diff(state_of, prepend=-1) != 0) | (np.diff(node_of, prepend=-1) != 0))
        every_class = class_of.tolist()
        for state, node, (first, last) in zip(
            state_of[begins].tolist(),
            node_of[begins].tolist(),
            pairwise([*begins.tolist(), len(every_class)]),
            strict=True,
        ):
            if node < states:
                self._steps[state, node] = self._label(every_class[first:last])
            else:
                entered[state][node - states] = every_class[first:last]
        groups: dict[tuple[tuple[int, int], ...], int] = {}
        self._group_of: dict[int, int] = {}
        for state, calls in sorted(entered.items()):
            by_class = sorted(calls.items(), key=lambda item: (item[1][0], item[0]))
            ways = tuple(sorted((call, self._label(classes)) for call, classes in by_class))
            self._group_of[state] = groups.setdefault(ways, len(groups))
        self._groups = list(groups)
        self._supports = self._all_supports()
        # Calls whose parses other rows need are rows: those that continue after a return, and those within calls.
        needed = {inner for _, inner in network.within if inner >= states}
        needed |= {target for targets in self._arrivals for target in targets if target >= states}
        self._row_of = {node: node for node in range(states)}
        for node in sorted(needed):
            self._row_of[node] = len(self._row_of)

    def _label(self, classes: Iterable[int]) -> int:
        return self._labels.setdefault(tuple(sorted(classes)), len(self._labels))

    def _after_return(self, port: int, state: int) -> dict[int, int]:
        """The outcomes for the caller of a rule that ends through a port: label by node, or by -1 - port."""
        network = self._network
        if port == ENDING:
            return {state: ALWAYS}
        ways = self._kinds[port - 1] if port < self._first_rest else ((None, port - self._first_rest),)
        classes_of: dict[int, list[int | None]] = defaultdict(list)
        for of, rest in ways:
            if network.final[state]:
                classes_of[-1 - self._first_rest - rest].append(of)
            reading = network.readings.get((rest, state))
            if reading is not None:
                for node in reading.nodes:
                    classes_of[node].append(of)
                for left in reading.rests:
                    classes_of[-1 - self._first_rest - left].append(of)
        return {
            target: self._label(of for of in classes if of is not None)
            for target, classes in sorted(classes_of.items())
        }

    def _all_supports(self) -> list[set[int]]:
        """The ports of each node, by a least fixpoint, which also gives the arrivals of each call."""
        network = self._network
        states = network.states
        supports: list[set[int]] = [set() for _ in range(network.nodes)]
        passed_on = self._passed_on()
        calls_of: dict[int, list[int]] = defaultdict(list)
        for call, (_, inner) in enumerate(network.within):
            calls_of[inner].append(call)
        self._arrivals: list[dict[int, list[tuple[int, int]]]] = [{} for _ in network.within]
        agenda: list[tuple[int, int]] = []

        def add(node: int, port: int) -> None:
            if port not in supports[node]:
                supports[node].add(port)
                agenda.append((node, port))

        for state in np.flatnonzero(network.final).tolist():
            add(state, ENDING)
        for state, kind in self._kind_of.items():
            add(state, kind)
        while agenda:
            node, port = agenda.pop()
            _spend(1 + len(passed_on[node]), network)
            for other in passed_on[node]:
                add(other, port)
            for call in calls_of[node]:
                arrivals = self._arrivals[call]
                outcomes = self._after_return(port, network.within[call][0])
                _spend(_STEPS_OF_RETURN + 2 * len(outcomes), network)
                for target, label in outcomes.items():
                    ways = arrivals.setdefault(target, [])
                    ways.append((port, label))
                    if target < 0:
                        add(states + call, -1 - target)
                    elif len(ways) == 1:
                        passed_on[target].add(states + call)
                        for passed in list(supports[target]):
                            add(states + call, passed)
        return supports

    def _passed_on(self) -> dict[int, set[int]]:
        """The states to which a node passes its ports: those from which a token leads to the node."""
        sources: dict[int, set[int]] = defaultdict(set)
        for source, target in self._steps:
            sources[target].add(source)
        for state, group in self._group_of.items():
            for call, _ in self._groups[group]:
                sources[self._network.states + call].add(state)
        return sources

    def plan(self) -> Plan:
        """The tables."""
        network = self._network
        states, row_of = network.states, self._row_of
        nodes = list(row_of)
        ports = [sorted(self._supports[node]) for node in nodes]
        _spend(2 * sum(map(len, ports)) + sum(len(self._supports[target]) for _, target in self._steps), network)
        cell_begin = np.concatenate([[0], np.cumsum([len(of_row) for of_row in ports])]).astype(np.int32)
        cell_of = {
            (row, port): int(cell_begin[row]) + at for row, of_row in enumerate(ports) for at, port in enumerate(of_row)
        }
        moves: list[list[tuple[int, int]]] = [[] for _ in cell_of]
        for (source, target), label in self._steps.items():
            for port in ports[target]:
                moves[cell_of[source, port]].append((cell_of[target, port], label))
        arrivals = _Growing()
        arrivals_of: list[list[tuple[int, int]]] = []  # of each call: (target, arrival)
        for (_, inner), of_call in zip(network.within, self._arrivals, strict=True):
            arrivals_of.append([])
            for target, ways in sorted(of_call.items()):
                pairs = [(cell_of[row_of[inner], port], label) for port, label in sorted(ways)]
                arrivals_of[-1].append((row_of[target] if target >= 0 else target, arrivals.add(pairs)))
            arrivals.close()
        composed = [list(group) for group in self._groups]
        composed += [[(node - states, ALWAYS)] for node in nodes[states:]]
        _spend(sum(len(arrivals_of[call]) for group in composed for call, _ in group), network)
        parts, outlets, outlet_ports = _compositions(composed, arrivals_of, ports, cell_of)
        composition_of = np.full(len(nodes), -1, dtype=np.int32)
        composition_of[states:] = len(self._groups) + np.arange(len(nodes) - states)
        for state, group in self._group_of.items():
            composition_of[state] = group
        outlet_of_cell = np.full(len(cell_of), -1, dtype=np.int32)
        for row, composition in enumerate(composition_of.tolist()):
            if composition >= 0:
                for outlet in range(outlets.begin[composition], outlets.begin[composition + 1]):
                    outlet_of_cell[cell_of[row, outlet_ports[outlet]]] = outlet
        return Plan(
            states=states,
            rows=len(nodes),
            cell_begin=cell_begin,
            port_of_cell=_int32(port for of_row in ports for port in of_row),
            ending_cells=_int32(cell_of[state, ENDING] for state in np.flatnonzero(network.final).tolist()),
            leaving_cells=_int32(cell_of[state, kind] for state, kind in sorted(self._kind_of.items())),
            moves=_lists(moves),
            outlet_of_cell=outlet_of_cell,
            composition_of=composition_of,
            shared=len(self._groups),
            row_of_call=_int32(row_of.get(states + call, -1) for call in range(len(network.within))),
            arrival_begin=_int32(arrivals.begin),
            contractions=_lists(arrivals.lists),
            part_begin=_int32(parts.begin),
            parts=_lists(parts.lists),
            outlet_begin=_int32(outlets.begin),
            outlets=_lists(outlets.lists),
            labels=tuple(self._labels),
        )


def _spend(steps: int, network: TokenNetwork) -> None:
    spend_steps(
        _STEPS_OF_WAY * steps,
        "charts of a grammar",
        f"its network has {network.states} states over tokens",
        "narrow the grammar, or raise Limits(canvas_steps=...)",
    )


_STEPS_OF_WAY: Final = 96
"""To enter a way in the tables, by Python code."""

_STEPS_OF_RETURN: Final = 4


class _Growing:
    """Lists of pairs that are being built, in groups."""

    def __init__(self) -> None:
        self.lists: list[list[tuple[int, int]]] = []
        self.begin = [0]

    def add(self, pairs: list[tuple[int, int]]) -> int:
        """Append a list, and return its number."""
        self.lists.append(pairs)
        return len(self.lists) - 1

    def close(self) -> None:
        """End a group."""
        self.begin.append(len(self.lists))


def _compositions(
    composed: list[list[tuple[int, int]]],
    arrivals_of: list[list[tuple[int, int]]],
    ports: list[list[int]],
    cell_of: dict[tuple[int, int], int],
) -> tuple[_Growing, _Growing, list[int]]:
    """The parts and outlets of compositions, and the port of each outlet.

    A composition is a list of (call, label).  Each call has (target, arrival); a target is a row, or -1 - port.
    """
    parts, outlets = _Growing(), _Growing()
    outlet_ports: list[int] = []
    for calls in composed:
        by_target: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for call, label in calls:
            for target, arrival in arrivals_of[call]:
                by_target[target].append((arrival, label))
        by_port: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for target, ways in sorted(by_target.items()):
            part = parts.add(ways)
            if target < 0:
                by_port[-1 - target].append((part, -1))
            else:
                for port in ports[target]:
                    by_port[port].append((part, cell_of[target, port]))
        for port, outlet in sorted(by_port.items()):
            outlets.add(outlet)
            outlet_ports.append(port)
        parts.close()
        outlets.close()
    return parts, outlets, outlet_ports


def _int32(values: Iterable[int]) -> NDArray[np.int32]:
    return np.array(list(values), dtype=np.int32)


def _lists(lists: list[list[tuple[int, int]]]) -> Lists:
    sizes = [len(one) for one in lists]
    pairs = np.array([pair for one in lists for pair in one], dtype=np.int32).reshape(-1, 2)
    return Lists(
        np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32),
        np.ascontiguousarray(pairs[:, 0]),
        np.ascontiguousarray(pairs[:, 1]),
    )
