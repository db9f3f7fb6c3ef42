"""What the distribution of each slot of a canvas says about classes of tokens: one pass over the logits.

The distribution of a row is the softmax of its logits times a scale; none counts as less than ``LOWEST`` below
the row's largest, so that every token has a chance.  Decoders over a partition of the vocabulary need its most probable
token and its mass for each class; what they do after that does not know the size of the vocabulary.

What the largest logit of a row is, is known after the pass only.  Sums are therefore kept relative to the largest logit
of their block, below which everything above the floor lies within 80 nats: float32 holds such sums to its full
precision.  That tokens below the floor count as if they were on it cannot be seen in the sum of a class, unless that is
less than ``1 / NEGLIGIBLE`` times what all its tokens would add on the floor.  Of such a class either all tokens lie
on the floor or below, and the sum is known, or its tokens are looked at again; few classes lie in this range of 14 nats
and the logarithm of their size.

Bytes, for each row: ``columns`` logits are read and ``8 * segments`` bytes written and read (12 with moments), beside
``12 * classes`` (16) that are the result.  The layout, 2.5 bytes a token, is shared by all rows; a program
takes several.

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
"""Nats below the largest logit of a row, after the scale, that a logit counts as at least."""

STEEPEST: Final = 1e30
"""The scale that all larger ones count as: it leaves nothing but the largest logit, and is a number in float32."""

NEGLIGIBLE: Final = 2.0**-20
"""The share of a sum that is less than what float32 leaves uncertain of ``exp(LOWEST)``, which is 4e-6 of it."""

_REFERENCE_ELEMENTS: Final = 1 << 22
_ROWS: Final = 4
"""Rows of one program, which share what it reads of the layout."""

_CLASSES: Final = 32
"""Classes of one program, from the entries of segments on."""

_MEMBERS: Final = 256
"""Tokens that are looked at again at a time."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """What one pass finds, and kernels that choose tokens look up.

    Attributes:
        largest: float32 ``[rows, blocks]``, the largest logit; plus infinity where there is NaN or plus infinity.
        totals: float32 ``[rows, blocks]``, the sum of ``e = exp(x)`` with ``x = scale * (logit - largest)``.
        maxima: float32 ``[rows, segments]``, the largest logit.
        sums: float32 ``[rows, segments]``, the sum of ``e``.
        moments: float32 ``[rows, segments]``, the sum of ``e * x``; none if they were not asked for.
    """

    largest: Tensor
    totals: Tensor
    maxima: Tensor
    sums: Tensor
    moments: Tensor | None


@final
@dataclass(frozen=True, slots=True, eq=False)
class ClassScores:
    """The distributions of some rows, by class.

    A row whose status is not 0 has no distribution: all its scores are minus infinity, and its ``mean_logs`` 0.

    Attributes:
        maxima: float32 ``[rows, classes]``, the largest logit; minus infinity for a class without tokens.
        log_maxima: float32 ``[rows, classes]``, the log-probability of the most probable token; likewise.
        log_sums: float32 ``[rows, classes]``, the log-probability of the class; likewise.
        mean_logs: float32 ``[rows, classes]``, the sum of ``p log p`` over its tokens; none if not asked for.
        log_norms: float32 ``[rows]``, log of the sum over all tokens of ``exp(scale * (logit - largest))``.
        largest: float32 ``[rows]``, the largest logit.
        scales: float32 ``[rows]``.
        status: int32 ``[rows]``: ``CHOSEN``, 0, ``MASSLESS`` or ``NON_FINITE`` of ``structgen_kernels.choices.choice``.
        segments: what the pass left, which only kernels fill in.
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
        """Room for the scores of ``rows`` rows, to be filled by ``class_scores``."""

        def room(*columns: int) -> Tensor:
            return torch.empty((rows, *columns), dtype=torch.float32, device=layout.device)

        return cls(
            maxima=room(layout.classes),
            log_maxima=room(layout.classes),
            log_sums=room(layout.classes),
            mean_logs=room(layout.classes) if moments else None,
            log_norms=room(),
            largest=room(),
            scales=room(),
            status=torch.empty(rows, dtype=torch.int32, device=layout.device),
            segments=Segments(
                room(layout.blocks),
                room(layout.blocks),
                room(layout.segments),
                room(layout.segments),
                room(layout.segments) if moments else None,
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
    """Return what the distributions of rows say of classes.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= layout.size``; rows may lie apart,
            columns may not.  Columns from ``layout.size`` on do not count.
        layout: of the classes.
        scale: what logits are multiplied by, 1 / temperature, positive; float32 ``[rows]`` if rows differ.
        moments: whether ``mean_logs`` are wanted.
        out: room for as many rows, made for ``layout`` and ``moments``; nothing is allocated then.

    Returns:
        ``out``, or new scores.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape, value or device.

    Precision: scores are exact to 1e-5 plus what float32 makes of ``scale * (logit - largest)``, that is 2e-7 of it.
    Complexity: O(rows x columns), each logit read once, but for those of classes that have little above the floor.
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
        _check_room(out, layout, rows, moments=moments)
    if backend_for(logits.device) == "torch":
        _reference(logits, layout, scale, out)
    elif rows:
        _launch(logits, layout, scale, out)
    return out


def _check_room(out: ClassScores, layout: ClassLayout, rows: int, *, moments: bool) -> None:
    wanted = (rows, layout.classes), (rows, layout.blocks), (rows, layout.segments)
    found = out.maxima.shape, out.segments.largest.shape, out.segments.sums.shape
    if found != wanted or out.maxima.device != layout.device or (out.mean_logs is not None) != moments:
        raise _wrong("out", f"must be made for {rows} rows, this layout and moments={moments}")


def _launch(logits: Tensor, layout: ClassLayout, scale: float | Tensor, out: ClassScores) -> None:
    from structgen_kernels.canvases.jit.class_scores import class_scores_kernel, class_segments_kernel

    found = out.segments
    rows, is_alike = len(logits), not isinstance(scale, torch.Tensor)
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
        IS_ALIKE=is_alike,
        STEEPEST=STEEPEST,
        MOMENTS=found.moments is not None,
        GROUPS=layout.block // GROUP,
        GROUP=GROUP,
        ROWS=_ROWS,
        num_warps=max(1, layout.block // 256),
    )
    launch(
        class_scores_kernel,
        (rows, -(-layout.classes // _CLASSES)),
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
        IS_ALIKE=is_alike,
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
        room = values.new_zeros((len(values), layout.classes))
        maxima = torch.full_like(room, -torch.inf).scatter_reduce_(1, of, values, "amax")
        scaled = floored(values, largest[:, None], out.scales[rows, None])
        powers = scaled.exp()
        log_norms = powers.sum(1, keepdim=True).log()
        log_maxima = floored(maxima, largest[:, None], out.scales[rows, None]) - log_norms
        log_sums = room.scatter_add(1, of, powers).log() - log_norms
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
            mean_logs = room.scatter_add(1, of, log_p.exp() * log_p)
            out.mean_logs[rows] = mean_logs.where(has_distribution, 0.0).to(torch.float32)
        out.status[rows] = status.to(torch.int32)


def floored(logits: Tensor, largest: Tensor, scale: Tensor) -> Tensor:
    """Logits times the scale, counted from the largest, and at least ``LOWEST``."""
    return ((logits - largest) * scale).clamp(min=LOWEST)


def row_groups(rows: int, size: int) -> Iterator[slice]:
    """Stretches of rows, so small that the reference implementations' copies of them are."""
    step = max(1, _REFERENCE_ELEMENTS // size)
    for first in range(0, rows, step):
        yield slice(first, min(rows, first + step))


def _wrong(argument: str, problem: str) -> KernelArgumentError:
    return KernelArgumentError("class_scores", argument, problem)
