"""The edges of an automaton in the layout that kernels read: grouped by source, by target and by label.

A message is a sum or a maximum over the edges of each state.  A table padded to the largest degree would be nearly all
padding: the state after EOS has an edge from every accepting state, most other states have two or three edges.  So a
grouping has two parts.  *Narrow* groups are rows of a table of small width, read as one block; *wide* groups are lists,
which the whole program reads one after the other.  The width depends only on the degrees, so that results do not depend
on the batch.

Edges are in the order of their sources, and within a source in the given order.  So ties are resolved as in
``structgen.decode.diffusion.regular``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from torch import Tensor

__all__ = ["ChainEdges", "EdgeGroups"]

_TILE: Final = 1024
"""Entries of the narrow table per tile of a program."""

_WIDE_BLOCK: Final = 256
"""Edges of a wide group per block of a program."""


@final
@dataclass(frozen=True, slots=True)
class EdgeGroups:
    """Edges in groups.  An edge is two indices, those of the two numbers that it adds; immutable.

    Attributes:
        groups: the number of groups.  Each is narrow or wide; a group without edges is narrow.
        narrow: int32 ``[rows]``, ascending: the group of each row of the table.
        left, right: int32 ``[width, rows]``: the two indices of each edge, padded with -1.  The table is transposed, so
            that neighbouring threads read neighbouring rows.
        wide: int32 ``[wide groups]``, ascending: the wide groups.
        wide_begin: int32 ``[wide groups + 1]``: the first edge of each wide group.
        wide_left, wide_right: int32 ``[edges of wide groups]``: the two indices of each edge.
    """

    groups: int
    narrow: Tensor
    left: Tensor
    right: Tensor
    wide: Tensor
    wide_begin: Tensor
    wide_left: Tensor
    wide_right: Tensor

    @classmethod
    def of(cls, keys: Tensor, groups: int, left: Tensor, right: Tensor, device: torch.device) -> Self:
        """Group edges by ``keys``, int64 ``[edges]``; the order within a group is kept."""
        order = torch.argsort(keys, stable=True)
        degrees = torch.bincount(keys, minlength=groups)
        begin = torch.cat([degrees.new_zeros(1), degrees.cumsum(0)])
        width = _width(degrees)
        is_wide = degrees > width
        narrow, wide = (~is_wide).nonzero()[:, 0], is_wide.nonzero()[:, 0]
        columns = torch.arange(width)
        is_there = columns < degrees[narrow][:, None]
        at = order[(begin[narrow][:, None] + columns)[is_there]]
        tables = []
        for numbers in (left, right):
            table = torch.full(is_there.shape, -1, dtype=torch.int32)
            table[is_there] = numbers[at].to(torch.int32)
            tables.append(table.T)
        in_wide = order[is_wide[keys[order]]]
        wide_begin = torch.cat([degrees.new_zeros(1), degrees[wide].cumsum(0)])
        lists = (narrow, *tables, wide, wide_begin, left[in_wide], right[in_wide])
        return cls(groups, *(each.to(torch.int32).contiguous().to(device) for each in lists))

    @property
    def width(self) -> int:
        """The width of the table, a power of two."""
        return self.left.shape[0]

    def arguments(self) -> tuple[Any, ...]:
        """Return the arguments of kernels."""
        wide = self.wide, self.wide_begin, self.wide_left, self.wide_right, len(self.wide)
        return self.narrow, self.left, self.right, len(self.narrow), *wide

    def constants(self) -> dict[str, int]:
        """Return the compile-time constants of kernels."""
        rows = max(1, _TILE // self.width)
        while rows >= 2 * max(1, len(self.narrow)):
            rows //= 2
        return {"ROWS": rows, "WIDTH": self.width, "WIDE": _WIDE_BLOCK}


@final
@dataclass(frozen=True, slots=True)
class ChainEdges:
    """The edges of an automaton on a device; immutable.  State 0 is the start.

    Attributes:
        states: the number of states.
        labels: the number of labels.
        source, target, label: int32 ``[edges]``, in ascending order of sources.
        begin: int32 ``[states + 1]``: the first edge of each source.
        final: float64 ``[states]``: 0 for accepting states, minus infinity for others.
        initial: float64 ``[states]``: 0 for state 0, minus infinity for others.
        by_source: edges by source, each as its target and its label.
        by_target: edges by target, each as its source and its label.
        by_label: edges by label, each as its source and its target.

    Bytes: about 44 per edge.
    """

    states: int
    labels: int
    source: Tensor
    target: Tensor
    label: Tensor
    begin: Tensor
    final: Tensor
    initial: Tensor
    by_source: EdgeGroups
    by_target: EdgeGroups
    by_label: EdgeGroups

    @classmethod
    def of(  # noqa: PLR0913, PLR0917  the columns of an automaton's table
        cls,
        states: int,
        labels: int,
        final: Tensor | NDArray[Any] | Sequence[bool],
        source: Tensor | NDArray[Any] | Sequence[int],
        target: Tensor | NDArray[Any] | Sequence[int],
        label: Tensor | NDArray[Any] | Sequence[int],
        device: torch.device | str = "cpu",
    ) -> Self:
        """Group the edges of an automaton, in any order, and put them on a device.

        Args:
            states: the number of states, at least one.
            labels: the number of labels.
            final: ``[states]``: which states accept.
            source: ``[edges]``: the source state of each edge.
            target: ``[edges]``: the target state of each edge.
            label: ``[edges]``: the label of each edge.
            device: the device of kernels.

        Raises:
            KernelArgumentError: the columns differ in length, or a state or a label does not exist.
        """
        place = torch.device(device)
        columns = [torch.as_tensor(column).to("cpu", torch.int64) for column in (source, target, label)]
        for name, column, most in zip(("source", "target", "label"), columns, (states, states, labels), strict=True):
            if column.shape != (len(columns[0]),):
                raise KernelArgumentError("chain edges", name, f"must be {len(columns[0])}, not {list(column.shape)}")
            if len(column) and not 0 <= int(column.min()) <= int(column.max()) < most:
                raise KernelArgumentError("chain edges", name, f"must be from 0 to {most - 1}")
        ends = torch.as_tensor(final).to("cpu", torch.bool)
        if states < 1 or ends.shape != (states,):
            raise KernelArgumentError("chain edges", "final", f"must have {states} entries, at least 1")
        order = torch.argsort(columns[0], stable=True)
        origin, goal, kind = (column[order] for column in columns)
        begin = torch.cat([order.new_zeros(1), torch.bincount(origin, minlength=states).cumsum(0)])
        start = torch.full((states,), -torch.inf, dtype=torch.float64)
        start[0] = 0.0
        stop = torch.zeros(states, dtype=torch.float64).masked_fill_(~ends, -torch.inf)
        return cls(
            states=states,
            labels=labels,
            source=origin.to(torch.int32).to(place),
            target=goal.to(torch.int32).to(place),
            label=kind.to(torch.int32).to(place),
            begin=begin.to(torch.int32).to(place),
            final=stop.to(place),
            initial=start.to(place),
            by_source=EdgeGroups.of(origin, states, goal, kind, place),
            by_target=EdgeGroups.of(goal, states, origin, kind, place),
            by_label=EdgeGroups.of(kind, labels, origin, goal, place),
        )

    def __len__(self) -> int:
        return len(self.source)

    @property
    def device(self) -> torch.device:
        """The device of the edges."""
        return self.source.device


def _width(degrees: Tensor) -> int:
    """Return the width, a power of two, for which a program has the fewest dependent steps.

    Each tile, each block of a wide group, and each start of a wide group is one step.
    """
    best, fewest, width = 1, float("inf"), 1
    while width <= _TILE:
        is_wide = degrees > width
        rows = -(-int((~is_wide).sum()) * width // _TILE)
        cost = rows + int((1 - (-degrees[is_wide] // _WIDE_BLOCK)).sum())
        if cost < fewest:
            best, fewest = width, cost
        width *= 2
    return best
