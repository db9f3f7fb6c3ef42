"""Canvases of a grammar that may recur: what can be completed, and what each slot may hold, by charts in bits.

A chart says of each item of a plan and each boundary between slots to which boundaries ways lead (``ChartTables``).
Inside, it is made from the last boundary to the first, and outside, where what belongs to no whole reading is dropped,
from the first to the last.  Everything of one boundary that does not wait for each other is one launch, for all
canvases of a batch; calls are products of boolean matrices, a row at a time, and no row is written twice.

What comes out are answers of yes and no: which canvases have a completion, and which labels some completion has in a
slot.  Masses and draws need sums, which bits do not hold.

Complexity: with ``n`` boundaries, ``w = ceil(n / 32)`` words a row, ``m`` pairs of moves, contractions and parts and
``p`` ways of outlets, inside and outside each read at most ``m * n * w + p * n * n * w / 2`` words a canvas, where a
chart of numbers takes ``p * n ** 3 / 6`` products.  Of any compact JSON value (3,009 pairs, 174 ways) and 128 slots
that is 9.2 million words, less the rows that nothing leads to, and 62 million products.  They write, together,
``2 * items * n * w`` words, 4.5 MB of the same.  Launches: ``n`` times the stages of a boundary, which are 3 and up to
2 for each level of calls within calls, inside and outside, and 5 more.  They depend on the plan and the slots alone,
so all of it may be captured as one graph.

Sources: L. Valiant, "General context-free recognition in less than cubic time" (1975); J. Goodman, "Semiring parsing"
(1999), for charts of booleans, inside and outside.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.charts.boolean_products import bits_of, packed_bits, row_block
from structgen_kernels.charts.chart_tables import ENDS, LEAVES, STARTS
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.charts.boolean_products import Pairs
    from structgen_kernels.charts.chart_tables import ChartTables, Stage

__all__ = ["CanvasChart", "chart_closure", "chart_step"]

_KERNEL: Final = "chart"
_ALWAYS: Final = 0
_COLUMNS: Final = 64
_ENTRIES: Final = 4
"""Entries of a list that are loaded at a time."""
_ROWS: Final = 8
"""Rows that are loaded at a time: a power of two, at most 32."""


@final
@dataclass(frozen=True, slots=True)
class CanvasChart:
    """The charts of a batch of canvases, with all that is written on the way.

    Attributes:
        tables: of the plan.
        slots: of each canvas.
        inside: int32 ``[batch, items, slots + 1, words]``: from which boundary some way leads to which.
        outside: likewise, of the ways that belong to a whole reading.
        before: int32 ``[batch, labels, words]``: the boundaries before which a slot may hold a label, and the first.
        wanted: int32 ``[batch, words]``: the boundaries where a reading may end.
        across: int32 ``[batch, words, labels, words]``.
        ends: bool ``[batch, slots + 1]``: the boundaries where some reading ends.
        completable: bool ``[batch]``.
        allowed: bool ``[batch, slots, labels]``: what some reading has in a slot; never label 0.
    """

    tables: ChartTables
    slots: int
    inside: Tensor
    outside: Tensor
    before: Tensor
    wanted: Tensor
    across: Tensor
    ends: Tensor
    completable: Tensor
    allowed: Tensor

    @classmethod
    def empty(cls, tables: ChartTables, batch: int, slots: int) -> CanvasChart:
        """Memory for a batch, on the device of the tables: ``8 * items * (slots + 1) * words`` bytes a canvas.

        Raises:
            KernelArgumentError: a number is negative.
        """
        if min(batch, slots) < 0:
            raise KernelArgumentError(_KERNEL, "batch and slots", f"must be at least 0, not {batch} and {slots}")
        words, device = (slots + 32) // 32, tables.device

        def words_of(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        def flags_of(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.bool, device=device)

        return cls(
            tables=tables,
            slots=slots,
            inside=words_of(batch, tables.items, slots + 1, words),
            outside=words_of(batch, tables.items, slots + 1, words),
            before=words_of(batch, tables.labels, words),
            wanted=words_of(batch, words),
            across=words_of(batch, words, tables.labels, words),
            ends=flags_of(batch, slots + 1),
            completable=flags_of(batch),
            allowed=flags_of(batch, slots, tables.labels),
        )

    def __len__(self) -> int:
        return len(self.completable)

    @property
    def words(self) -> int:
        """Words of a row."""
        return self.inside.shape[3]


def chart_closure(
    tables: ChartTables, admissible: Tensor, ends: Tensor, *, chart: CanvasChart | None = None
) -> CanvasChart:
    """Find what can be completed and what slots may hold, of a batch of canvases.

    Args:
        tables: of the plan, on the device of the canvases.
        admissible: bool ``[batch, slots, labels]``, contiguous: what is held or may be held; label 0 is not looked at.
        ends: bool ``[batch, slots + 1]``, contiguous: the boundaries where a member may end, as far as the slots after
            it say.
        chart: memory to write into; by default new memory.

    Returns:
        The chart.  A canvas that cannot be completed has ``ends`` and ``allowed`` of nothing.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape or device.
    """
    chart = _checked(tables, admissible, ends, chart)
    if backend_for(admissible.device) == "torch":
        _reference(chart, admissible, ends)
    elif len(admissible):
        _launch(chart, admissible, ends)
    return chart


def chart_step(chart: CanvasChart, admissible: Tensor, boundary: int, *, is_outside: bool) -> None:
    """Make what belongs to one boundary, a launch for each stage: a step of ``chart_closure``, by Triton.

    Inside, the boundaries after this one must be there, and ``chart.before``.  Outside, those before it, all of the
    inside, and ``chart.wanted``.

    Args:
        chart: of the canvases.
        admissible: int8 ``[batch, slots, labels]``, 0 or 1.
        boundary: from 0 to ``chart.slots``.
        is_outside: which of the two charts.
    """
    from structgen_kernels.charts.jit.chart_step import inside_kernel, outside_kernel

    tables, words = chart.tables, chart.words
    bits = bits_of(chart.slots + 1)
    block = row_block(words) | {"BITS": min(_ROWS, bits) if is_outside else bits, "ENTRIES": _ENTRIES}
    for stage in tables.outside if is_outside else tables.inside:
        count = len(stage.items)
        grid = (-(-count * len(chart) // block["LANES"]),)
        sizes = (len(chart), tables.items, count, boundary, chart.slots, tables.labels, words)
        lists = (*stage.there.arguments(), *stage.here.arguments())
        if is_outside:
            launch(
                outside_kernel,
                grid,
                chart.inside,
                chart.outside,
                stage.items,
                stage.flags,
                *lists,
                *stage.into.arguments(),
                *stage.through.arguments(),
                admissible,
                chart.before,
                chart.wanted,
                *sizes,
                STARTS=STARTS,
                **block,
            )
        else:
            launch(
                inside_kernel,
                grid,
                chart.inside,
                stage.items,
                stage.flags,
                *lists,
                *stage.products.arguments(),
                admissible,
                chart.before,
                *sizes,
                ENDS=ENDS,
                LEAVES=LEAVES,
                **block,
            )


def _checked(tables: ChartTables, admissible: Tensor, ends: Tensor, chart: CanvasChart | None) -> CanvasChart:
    device = tables.device
    check_tensor(_KERNEL, "admissible", admissible, dtype=torch.bool, shape=(None, None, tables.labels), device=device)
    batch, slots = admissible.shape[:2]
    check_tensor(_KERNEL, "ends", ends, dtype=torch.bool, shape=(batch, slots + 1), device=device)
    if not admissible.is_contiguous() or not ends.is_contiguous():
        raise KernelArgumentError(_KERNEL, "admissible and ends", "must be contiguous")
    if chart is None:
        return CanvasChart.empty(tables, batch, slots)
    if chart.tables is not tables or (len(chart), chart.slots) != (batch, slots):
        raise KernelArgumentError(
            _KERNEL, "chart", f"must be of these tables, {batch} canvases and {slots} slots; made by CanvasChart.empty"
        )
    return chart


def _launch(chart: CanvasChart, admissible: Tensor, ends: Tensor) -> None:
    from structgen_kernels.charts.jit.chart_step import across_kernel, allowed_kernel, ends_kernel, pack_columns_kernel

    tables, slots, words, batch = chart.tables, chart.slots, chart.words, len(chart)
    held, wanted = admissible.view(torch.int8), ends.view(torch.int8)
    block = row_block(words)
    tiles = -(-tables.labels * batch // block["LANES"])
    columns = (-(-tables.labels // _COLUMNS), words, batch)
    launch(pack_columns_kernel, columns, held, chart.before, slots, tables.labels, words, 1, COLUMNS=_COLUMNS)
    launch(pack_columns_kernel, (1, words, batch), wanted, chart.wanted, slots + 1, 1, words, 0, COLUMNS=_COLUMNS)
    for boundary in range(slots, -1, -1):
        chart_step(chart, held, boundary, is_outside=False)
    launch(
        ends_kernel,
        (batch,),
        chart.inside,
        chart.wanted,
        chart.ends.view(torch.int8),
        chart.completable.view(torch.int8),
        tables.items,
        tables.root,
        slots,
        words,
        WORDS=block["WORDS"],
    )
    for boundary in range(slots + 1):
        chart_step(chart, held, boundary, is_outside=True)
    charts = (chart.inside, chart.outside)
    sizes = (batch, tables.items, slots, tables.labels, words)
    launch(
        across_kernel, (tiles, words), *charts, *tables.across.arguments(), chart.across, *sizes, BITS=_ROWS, **block
    )
    if slots:
        launch(
            allowed_kernel,
            (tiles, slots),
            *charts,
            *tables.beside.arguments(),
            chart.across,
            held,
            chart.allowed.view(torch.int8),
            *sizes,
            **block,
        )


def _reference(chart: CanvasChart, admissible: Tensor, ends: Tensor) -> None:
    """The same on booleans ``[batch, items, boundaries, boundaries]``."""
    tables, slots = chart.tables, chart.slots
    batch, boundaries = len(chart), slots + 1
    held = admissible.clone()
    held[:, :, _ALWAYS] = True
    before = torch.cat([held.new_ones((batch, 1, tables.labels)), held], dim=1).transpose(1, 2)
    inside = held.new_zeros((batch, tables.items, boundaries, boundaries))
    for boundary in range(slots, -1, -1):
        gates = held[:, boundary] if boundary < slots else None
        for stage in tables.inside:
            beside = inside[:, :, boundary + 1] if boundary < slots else None
            made = _rows(stage, inside, boundary, beside, gates, before)
            if len(stage.products.first):
                left, right = _pair(stage.products)
                made |= _united(stage.products, _product(inside[:, left, boundary], inside[:, right]))
            made[:, :, boundary] |= (stage.flags & ENDS) != 0
            if boundary < slots:
                made[:, :, boundary + 1] |= (stage.flags & LEAVES) != 0
            inside[:, stage.items.to(torch.int64), boundary] = made
    chart.ends.copy_(inside[:, tables.root, 0] & ends)
    chart.completable.copy_(chart.ends.any(1))
    outside = torch.zeros_like(inside)
    for boundary in range(boundaries):
        gates = held[:, boundary - 1] if boundary else None
        for stage in tables.outside:
            beside = outside[:, :, boundary - 1] if boundary else None
            made = _rows(stage, outside, boundary, beside, gates, before)
            if len(stage.into.first):
                left, right = _pair(stage.into)
                made |= _united(stage.into, _product(inside[:, left, :, boundary], outside[:, right]))
            if len(stage.through.first):
                left, right = _pair(stage.through)
                made |= _united(stage.through, _product(outside[:, left, boundary], inside[:, right].transpose(2, 3)))
            if boundary == 0:
                made[:, (stage.flags & STARTS) != 0] |= chart.ends[:, None]
            items = stage.items.to(torch.int64)
            outside[:, items, boundary] = made & inside[:, items, boundary]
    _keep(chart, admissible, inside, outside)


def _keep(chart: CanvasChart, admissible: Tensor, inside: Tensor, outside: Tensor) -> None:
    tables = chart.tables
    one, two = _pair(tables.beside)
    beside = _united(tables.beside, (outside[:, one, :-1] & inside[:, two, 1:]).any(3))
    one, two = _pair(tables.across)
    across = _united(tables.across, (outside[:, one] & inside[:, two]).any(2)[:, :, 1:])
    chart.allowed.copy_((beside | across).transpose(1, 2) & admissible)
    for kept, found in ((chart.inside, inside), (chart.outside, outside)):
        for row in range(chart.slots + 1):
            kept[:, :, row] = packed_bits(found[:, :, row])


def _rows(
    stage: Stage, chart: Tensor, boundary: int, beside: Tensor | None, gates: Tensor | None, before: Tensor
) -> Tensor:
    """What the lists ``there`` and ``here`` of a stage come to, bool ``[batch, items, boundaries]``."""
    source, label = _pair(stage.here)
    made = _united(stage.here, chart[:, source, boundary] & before[:, label])
    if beside is not None and gates is not None:
        source, label = _pair(stage.there)
        made |= _united(stage.there, beside[:, source] & gates[:, label, None])
    return made


def _pair(pairs: Pairs) -> tuple[Tensor, Tensor]:
    return pairs.first.to(torch.int64), pairs.second.to(torch.int64)


def _united(pairs: Pairs, found: Tensor) -> Tensor:
    """What is found of each pair, bool ``[batch, pairs, ...]``, united by item."""
    made = found.new_zeros((len(found), len(pairs), *found.shape[2:]), dtype=torch.int32)
    return made.index_add_(1, pairs.owners(), found.to(torch.int32)) > 0


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """Rows ``[batch, pairs, n]`` times matrices ``[batch, pairs, n, m]``."""
    return (rows.to(torch.float32).unsqueeze(2) @ matrices.to(torch.float32)).squeeze(2) > 0
