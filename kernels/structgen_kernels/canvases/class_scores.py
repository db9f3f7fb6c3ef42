"""Scores of token classes under the distribution of each slot of a canvas, from one pass over the logits.

The distribution of a row is the softmax of its logits times a scale.  Scaled logits are clamped to ``LOWEST`` below the
largest of the row, the *floor*, so that every token has a positive probability.  Decoders over a partition of the
vocabulary need, for each class, the most probable token and the total probability; their later steps do not depend on
the size of the vocabulary.

The largest logit of a row is known only after the pass.  So sums are relative to the largest logit of their block.  All
terms above the floor are within 80 nats of that logit, so float32 sums have full precision.  The pass does not clamp
terms to the floor.  This changes the sum of a class noticeably only if the sum is less than ``1 / NEGLIGIBLE`` times
the class size times ``exp(LOWEST)``.  If all tokens of such a class are at or below the floor, the sum is known;
otherwise the kernel reads the tokens of the class again.  Few classes are in this range, which is 14 nats plus the
logarithm of the class size.

Bytes per row: ``columns`` logits are read, ``8 * segments`` bytes are written and read again (12 with moments), and the
result is ``12 * classes`` (16 with moments).  The layout, 2.5 bytes per token, is shared by the rows of a program.

Source: METHODS 5.6 of the design, after T. Suresh et al., "DINGO: Constrained Inference for Diffusion LLMs" (2025).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import torch

from structgen_kernels.arguments import check_logits, check_tensor
from structgen_kernels.canvases.class_layout import GROUP, ClassLayout
from structgen_kernels.choices.choice import CHOSEN, MASSLESS, NON_FINITE
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

__all__ = ["LOWEST", "NEGLIGIBLE", "STEEPEST", "ClassScores", "Segments", "class_scores", "floored", "row_groups"]

LOWEST: Final = -80.0
"""The floor: the lowest scaled logit, in nats relative to the largest of the row."""

STEEPEST: Final = 1e30
"""The largest scale; larger ones are clamped.  Only the largest logit counts then, and float32 does not overflow."""

NEGLIGIBLE: Final = 2.0**-20
"""A share of a sum that is below the float32 error of ``exp(LOWEST)``, which is 4e-6 of it."""

_REFERENCE_ELEMENTS: Final = 1 << 22
_ROWS: Final = 4
"""Rows per program, which share the reads of the layout."""

_CLASSES: Final = 32
"""Classes per program of the second kernel, which reads the entries of segments."""

_MEMBERS: Final = 256
"""Tokens per block when the tokens of a class are read again."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """The results of the first pass, which the kernels that choose tokens read.

    Attributes:
        largest: float32 ``[rows, blocks]``, the largest logit; plus infinity if there is NaN or plus infinity.
        totals: float32 ``[rows, blocks]``, the sum of ``e = exp(x)`` with ``x = scale * (logit - largest)``.
        maxima: float32 ``[rows, segments]``, the largest logit.
        sums: float32 ``[rows, segments]``, the sum of ``e``.
        moments: float32 ``[rows, segments]``, the sum of ``e * x``; None without moments.
    """

    largest: Tensor
    totals: Tensor
    maxima: Tensor
    sums: Tensor
    moments: Tensor | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassScores:
    """The scores of the classes under the distribution of each row.

    A row whose status is not 0 has no distribution: its scores are minus infinity, and its ``mean_logs`` 0.

    Attributes:
        maxima: float32 ``[rows, classes]``, the largest logit; minus infinity for a class without tokens.
        log_maxima: float32 ``[rows, classes]``, the log-probability of the most probable token; likewise.
        log_sums: float32 ``[rows, classes]``, the log-probability of the class; likewise.
        mean_logs: float32 ``[rows, classes]``, the sum of ``p log p`` over the tokens of the class; None without
            moments.
        log_norms: float32 ``[rows]``, log of the sum over all tokens of ``exp(scale * (logit - largest))``.
        largest: float32 ``[rows]``, the largest logit.
        scales: float32 ``[rows]``, the scale.
        status: int32 ``[rows]``: ``CHOSEN``, 0, ``MASSLESS`` or ``NON_FINITE`` of ``structgen_kernels.choices.choice``.
        segments: the results of the first pass; only the kernels write them.
    """

    maxima: Tensor
    log_maxima: Tensor
    log_sums: Tensor
    mean_logs: Tensor | None
    log_norms: Tensor
    largest: Tensor
    scales: Tensor
    status: Tensor
    segments: Segments

    @classmethod
    def empty(cls, layout: ClassLayout, rows: int, *, moments: bool = False) -> Self:
        """Allocate the output of ``class_scores`` for ``rows`` rows."""

        def empty(*columns: int) -> Tensor:
            return torch.empty((rows, *columns), dtype=torch.float32, device=layout.device)

        return cls(
            maxima=empty(layout.classes),
            log_maxima=empty(layout.classes),
            log_sums=empty(layout.classes),
            mean_logs=empty(layout.classes) if moments else None,
            log_norms=empty(),
            largest=empty(),
            scales=empty(),
            status=torch.empty(rows, dtype=torch.int32, device=layout.device),
            segments=Segments(
                empty(layout.blocks),
                empty(layout.blocks),
                empty(layout.segments),
                empty(layout.segments),
                empty(layout.segments) if moments else None,
            ),
        )

    def __len__(self) -> int:
        return len(self.maxima)


def class_scores(
    logits: Tensor,
    layout: ClassLayout,
    *,
    scale: float | Tensor = 1.0,
    moments: bool = False,
    out: ClassScores | None = None,
) -> ClassScores:
    """Return the scores of the classes under the distribution of each row.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= layout.size``; rows may
            be strided.  Columns from ``layout.size`` on are ignored.
        layout: the layout of the classes.
        scale: the factor of the logits, 1 / temperature, positive; float32 ``[rows]`` for a factor per row.
        moments: whether to compute ``mean_logs``.
        out: the output, from ``ClassScores.empty`` for as many rows and the same ``moments``; None allocates it.

    Returns:
        ``out``, or new scores.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape, value or device.

    Precision: errors are at most 1e-5 plus the float32 error of ``scale * (logit - largest)``, 2e-7 of its value.
    Complexity: O(rows x columns); each logit is read once, and those of classes near the floor twice.
    """
    check_logits("class_scores", logits, size=layout.size)
    if logits.device != layout.device:
        raise _wrong("layout", f"must be on {str(logits.device)!r}, not on {str(layout.device)!r}")
    rows = len(logits)
    if isinstance(scale, torch.Tensor):
        check_tensor("class_scores", "scale", scale, dtype=torch.float32, shape=(rows,), device=logits.device)
    elif not (math.isfinite(scale) and scale > 0):
        raise _wrong("scale", f"must be positive and finite, not {scale!r}")
    if out is None:
        out = ClassScores.empty(layout, rows, moments=moments)
    else:
        _check_out(out, layout, rows, moments=moments)
    if backend_for(logits.device) == "torch":
        _reference(logits, layout, scale, out)
    elif rows:
        _launch(logits, layout, scale, out)
    return out


def _check_out(out: ClassScores, layout: ClassLayout, rows: int, *, moments: bool) -> None:
    wanted = (rows, layout.classes), (rows, layout.blocks), (rows, layout.segments)
    found = out.maxima.shape, out.segments.largest.shape, out.segments.sums.shape
    if found != wanted or out.maxima.device != layout.device or (out.mean_logs is not None) != moments:
        raise _wrong("out", f"must be made for {rows} rows, this layout and moments={moments}")


def _launch(logits: Tensor, layout: ClassLayout, scale: float | Tensor, out: ClassScores) -> None:
    _launch_segments(logits, layout, scale, out.segments)
    _launch_classes(logits, layout, scale, out)


def _launch_segments(logits: Tensor, layout: ClassLayout, scale: float | Tensor, found: Segments) -> None:
    from structgen_kernels.canvases.jit.class_scores import class_segments_kernel

    rows = len(logits)
    launch(
        class_segments_kernel,
        (-(-rows // _ROWS), layout.blocks),
        logits,
        logits.stride(0),
        rows,
        scale,
        layout.begin,
        layout.places,
        layout.groups,
        layout.first_segment,
        layout.blocks,
        layout.segments,
        found.largest,
        found.totals,
        found.maxima,
        found.sums,
        found.moments,
        IS_ALIKE=not isinstance(scale, torch.Tensor),
        STEEPEST=STEEPEST,
        MOMENTS=found.moments is not None,
        GROUPS=layout.block // GROUP,
        GROUP=GROUP,
        ROWS=_ROWS,
        num_warps=max(1, layout.block // 256),
    )


def _launch_classes(logits: Tensor, layout: ClassLayout, scale: float | Tensor, out: ClassScores) -> None:
    from structgen_kernels.canvases.jit.class_scores import class_scores_kernel

    found = out.segments
    launch(
        class_scores_kernel,
        (len(logits), -(-layout.classes // _CLASSES)),
        logits,
        logits.stride(0),
        scale,
        layout.class_begin,
        layout.segment_of,
        layout.block_of,
        layout.member_begin,
        layout.members,
        layout.classes,
        layout.blocks,
        layout.segments,
        found.largest,
        found.totals,
        found.maxima,
        found.sums,
        found.moments,
        out.maxima,
        out.log_maxima,
        out.log_sums,
        out.mean_logs,
        out.log_norms,
        out.largest,
        out.scales,
        out.status,
        IS_ALIKE=not isinstance(scale, torch.Tensor),
        STEEPEST=STEEPEST,
        LOWEST=LOWEST,
        NEGLIGIBLE=NEGLIGIBLE,
        MASSLESS=MASSLESS,
        NON_FINITE=NON_FINITE,
        MOMENTS=found.moments is not None,
        BLOCKS=1 << (layout.blocks - 1).bit_length(),
        CLASSES=_CLASSES,
        MEMBERS=_MEMBERS,
        num_warps=4,
    )


def _reference(logits: Tensor, layout: ClassLayout, scale: float | Tensor, out: ClassScores) -> None:
    out.scales.copy_(scale if isinstance(scale, torch.Tensor) else torch.full_like(out.scales, scale))
    out.scales.clamp_(max=STEEPEST)
    sizes = layout.sizes()
    for rows in row_groups(len(logits), layout.size):
        values = logits[rows, : layout.size].to(torch.float64)
        largest = values.amax(1)
        wrong = values.isnan().any(1) | (largest == torch.inf)
        status = torch.where(wrong, NON_FINITE, torch.where(largest == -torch.inf, MASSLESS, CHOSEN))
        has_distribution = (status == CHOSEN)[:, None]
        of = layout.class_of.to(torch.int64).expand(len(values), -1)
        zeros = values.new_zeros((len(values), layout.classes))
        maxima = torch.full_like(zeros, -torch.inf).scatter_reduce_(1, of, values, "amax")
        scaled = floored(values, largest[:, None], out.scales[rows, None])
        powers = scaled.exp()
        log_norms = powers.sum(1, keepdim=True).log()
        log_maxima = floored(maxima, largest[:, None], out.scales[rows, None]) - log_norms
        log_sums = zeros.scatter_add(1, of, powers).log() - log_norms
        possible = has_distribution & (sizes > 0)
        for place, found in (
            (out.maxima, maxima),
            (out.log_maxima, log_maxima),
            (out.log_sums, log_sums),
            (out.log_norms, log_norms),
            (out.largest, largest[:, None]),
        ):
            keep = possible if found.shape == possible.shape else has_distribution
            place[rows] = found.where(keep, -torch.inf).view_as(place[rows]).to(torch.float32)
        if out.mean_logs is not None:
            log_p = scaled - log_norms
            mean_logs = zeros.scatter_add(1, of, log_p.exp() * log_p)
            out.mean_logs[rows] = mean_logs.where(has_distribution, 0.0).to(torch.float32)
        out.status[rows] = status.to(torch.int32)


def floored(logits: Tensor, largest: Tensor, scale: Tensor) -> Tensor:
    """Return scaled logits relative to the largest, clamped to ``LOWEST``."""
    return ((logits - largest) * scale).clamp(min=LOWEST)


def row_groups(rows: int, size: int) -> Iterator[slice]:
    """Yield slices of rows that bound the memory of the reference implementations."""
    step = max(1, _REFERENCE_ELEMENTS // size)
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))


def _wrong(argument: str, problem: str) -> KernelArgumentError:
    return KernelArgumentError("class_scores", argument, problem)
