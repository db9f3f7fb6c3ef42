"""Canvases of a context-free grammar: which can be completed, and which labels each slot allows, by bit-packed charts.

For each item of a plan and each boundary between slots, a chart records the boundaries that a derivation of the item
reaches (``ChartTables``).  The inside chart is computed from the last boundary to the first.  The outside chart keeps
the derivations that are part of a parse of the whole canvas; it is computed from the first boundary to the last.  The
items of one boundary that do not depend on each other are one launch, for all canvases of the batch.  Calls are
products of boolean matrices, one row at a time.  No row is written twice.

The results are booleans: which canvases have a completion, and which labels occur in a slot of some completion.
Masses and samples would need sums.

Complexity: let there be ``n`` boundaries, ``w = ceil(n / 32)`` words per row, ``m`` pairs of moves, contractions and
parts, and ``p`` products of outlets.  The inside and the outside chart each read at most
``m * n * w + p * n * n * w / 2`` words per canvas; a chart of numbers takes ``p * n ** 3 / 6`` multiplications.  For
any compact JSON value (3,009 pairs, 174 products) and 128 slots, that is 9.2 million words, less the rows that no
derivation reaches, compared with 62 million multiplications.  Together they write ``2 * items * n * w`` words, 4.5 MB
in this example.  Launches: ``n`` times the stages of a boundary, which are 3 and up to 2 per level of nested calls, for
inside and outside, and 5 more.  The launches depend only on the plan and the slots, so a CUDA graph can capture them.

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
"""Entries of a list per load."""
_ROWS: Final = 8
"""Rows per load: a power of two, at most 32."""


@final
@dataclass(frozen=True, slots=True)
class CanvasChart:
    """The charts of a batch of canvases, with all intermediate buffers.

    Attributes:
        tables: the tables of the plan.
        slots: the number of slots per canvas.
        inside: int32 ``[batch, items, slots + 1, words]``: the boundaries that a derivation of the item reaches from
            each boundary.
        outside: likewise, for derivations that are part of a parse of the whole canvas.
        before: int32 ``[batch, labels, words]``: the boundaries whose previous slot allows the label; also boundary 0.
        wanted: int32 ``[batch, words]``: the boundaries where a parse may end.
        across: int32 ``[batch, words, labels, words]``: see ``ChartTables.across``.
        ends: bool ``[batch, slots + 1]``: the boundaries where some parse ends.
        completable: bool ``[batch]``: whether the canvas has a completion.
        allowed: bool ``[batch, slots, labels]``: the labels of each slot in some parse; never label 0.
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
        """Allocate a chart on the device of the tables: ``8 * items * (slots + 1) * words`` bytes per canvas.

        Raises:
            KernelArgumentError: ``batch`` or ``slots`` is negative.
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
        """Words per row."""
        return self.inside.shape[3]


def chart_closure(
    tables: ChartTables, admissible: Tensor, ends: Tensor, *, chart: CanvasChart | None = None
) -> CanvasChart:
    """Compute which canvases of a batch can be completed, and which labels their slots allow.

    Args:
        tables: the tables of the plan, on the device of the canvases.
        admissible: bool ``[batch, slots, labels]``, contiguous: the labels of the token of a fixed slot, or those that
            a free slot admits; label 0 is ignored.
        ends: bool ``[batch, slots + 1]``, contiguous: the boundaries where the string may end, judging by the slots
            after the boundary.
        chart: buffers to reuse; None allocates them.

    Returns:
        The chart.  For a canvas without a completion, ``ends`` and ``allowed`` are all false.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.
    """
    chart = _checked(tables, admissible, ends, chart)
    if backend_for(admissible.device) == "torch":
        _reference(chart, admissible, ends)
    elif len(admissible):
        _launch(chart, admissible, ends)
    return chart


def chart_step(chart: CanvasChart, admissible: Tensor, boundary: int, *, is_outside: bool) -> None:
    """Compute the rows of one boundary, with one launch per stage: a step of ``chart_closure`` in Triton.

    The inside chart needs its later boundaries and ``chart.before``.  The outside chart needs its earlier boundaries,
    the whole inside chart and ``chart.wanted``.

    Args:
        chart: the charts of the canvases.
        admissible: int8 ``[batch, slots, labels]``, 0 or 1.
        boundary: from 0 to ``chart.slots``.
        is_outside: whether to compute the outside chart instead of the inside chart.
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
            _KERNEL, "chart", f"must be from CanvasChart.empty for these tables, {batch} canvases and {slots} slots"
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
    """The reference implementation, on bool ``[batch, items, boundaries, boundaries]``."""
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
    """Return the union of the lists ``there`` and ``here`` of a stage, bool ``[batch, items, boundaries]``."""
    source, label = _pair(stage.here)
    made = _united(stage.here, chart[:, source, boundary] & before[:, label])
    if beside is not None and gates is not None:
        source, label = _pair(stage.there)
        made |= _united(stage.there, beside[:, source] & gates[:, label, None])
    return made


def _pair(pairs: Pairs) -> tuple[Tensor, Tensor]:
    return pairs.first.to(torch.int64), pairs.second.to(torch.int64)


def _united(pairs: Pairs, found: Tensor) -> Tensor:
    """Return the union by item of ``found``, bool ``[batch, pairs, ...]``."""
    made = found.new_zeros((len(found), len(pairs), *found.shape[2:]), dtype=torch.int32)
    return made.index_add_(1, pairs.owners(), found.to(torch.int32)) > 0


def _product(rows: Tensor, matrices: Tensor) -> Tensor:
    """Return the boolean product of rows ``[batch, pairs, n]`` and matrices ``[batch, pairs, n, m]``."""
    return (rows.to(torch.float32).unsqueeze(2) @ matrices.to(torch.float32)).squeeze(2) > 0
