"""A token of a class: the most probable one, or one sampled by its probability within the class.

Bytes, per choice: 12 per segment of the class, and the logits of the tokens of one segment, or of all tokens of the
class if few of them are above the floor.  Each token's id, 4 bytes, is read from the layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from structgen_kernels.arguments import check_logits, check_tensor
from structgen_kernels.canvases.class_scores import LOWEST, NEGLIGIBLE, floored, row_groups
from structgen_kernels.choices.choice import CHOSEN
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch
from structgen_kernels.philox import STREAMS, Noise, random_words

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.canvases.class_layout import ClassLayout
    from structgen_kernels.canvases.class_scores import ClassScores

__all__ = ["class_best", "class_draw", "uniform"]

_INTEGERS: Final = (torch.int32, torch.int64)
_MEMBERS: Final = 1024
"""Tokens per block."""


def class_best(
    logits: Tensor,
    layout: ClassLayout,
    scores: ClassScores,
    rows: Tensor,
    classes: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the most probable token of ``classes[i]`` in row ``rows[i]``; ties go to the first token.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]``, the logits of ``scores``.
        layout: the layout of the classes.
        scores: the result of ``class_scores``, from the same backend.
        rows: int32 or int64 ``[choices]``, the row of logits of each choice.
        classes: int32 or int64 ``[choices]``, the class of each choice; a negative one skips the choice.
        out: int32 ``[choices]``, the output; None allocates it.

    Returns:
        int32 ``[choices]``; -1 if the choice is skipped, the class has no tokens, or the row has no distribution.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.
    """
    choices = _Choices(logits, layout, scores, rows, classes)
    out = _checked("class_best", choices, out)
    if backend_for(logits.device) == "torch":
        for part in row_groups(len(rows), layout.size):
            values, is_held, of, row = _asked(choices, part)
            hits = is_held & (values == scores.maxima[row, of][:, None])
            out[part] = torch.where(hits.any(1), hits.to(torch.int8).argmax(1), -1).to(torch.int32)
    elif len(rows):
        from structgen_kernels.canvases.jit.class_choice import class_best_kernel

        launch(
            class_best_kernel,
            (len(rows),),
            *_arguments(choices),
            out,
            BLOCKS=1 << (layout.blocks - 1).bit_length(),
            MEMBERS=_MEMBERS,
        )
    return out


def class_draw(  # noqa: PLR0913  as class_best, with the random numbers
    logits: Tensor,
    layout: ClassLayout,
    scores: ClassScores,
    rows: Tensor,
    classes: Tensor,
    uniforms: Tensor | Noise,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Sample a token of ``classes[i]`` in row ``rows[i]``, by inverse transform sampling in order of ids.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]``, the logits of ``scores``.
        layout: the layout of the classes.
        scores: the result of ``class_scores``, from the same backend.
        rows: int32 or int64 ``[choices]``, the row of logits of each choice.
        classes: int32 or int64 ``[choices]``, the class of each choice; a negative one skips the choice.
        uniforms: float64 ``[choices]``, in ``[0, 1)``; or noise for as many rows, from which ``uniform`` makes them.
        out: int32 ``[choices]``, the output; None allocates it.

    Returns:
        int32 ``[choices]``; -1 if the choice is skipped, the class has no tokens, or the row has no distribution.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Precision: weights are summed in float64; each has a relative error of up to 1e-5, from float32 exponentials.
    """
    choices = _Choices(logits, layout, scores, rows, classes)
    out = _checked("class_draw", choices, out)
    numbers = uniforms.seeds if isinstance(uniforms, Noise) else uniforms
    dtype = torch.int64 if isinstance(uniforms, Noise) else torch.float64
    check_tensor("class_draw", "uniforms", numbers, dtype=dtype, shape=(len(rows),), device=logits.device)
    if backend_for(logits.device) == "torch":
        sampled = uniform(uniforms) if isinstance(uniforms, Noise) else uniforms
        for part in row_groups(len(rows), layout.size):
            values, is_held, _, row = _asked(choices, part)
            scaled = floored(values.to(torch.float64), scores.largest[row, None], scores.scales[row, None])
            running = scaled.exp().where(is_held, 0.0).cumsum(1)
            at = torch.searchsorted(running, sampled[part, None] * running[:, -1:], right=True)[:, 0]
            last = layout.size - 1 - is_held.to(torch.int8).flip(1).argmax(1)  # rounding may exceed it
            out[part] = torch.where(is_held.any(1), torch.minimum(at, last), -1).to(torch.int32)
    elif len(rows):
        from structgen_kernels.canvases.jit.class_choice import class_draw_kernel

        is_noise = isinstance(uniforms, Noise)
        launch(
            class_draw_kernel,
            (len(rows),),
            *_arguments(choices),
            numbers,
            uniforms.offsets if isinstance(uniforms, Noise) else None,
            out,
            LOWEST=LOWEST,
            NEGLIGIBLE=NEGLIGIBLE,
            IS_NOISE=is_noise,
            STREAM=STREAMS["class_token"],
            BLOCKS=1 << (layout.blocks - 1).bit_length(),
            MEMBERS=_MEMBERS,
        )
    return out


def uniform(noise: Noise) -> Tensor:
    """Return one uniform number per row of noise, float64 in ``[0, 1)``, of 53 bits."""
    high, low, _, _ = random_words(noise.seeds, noise.offsets, STREAMS["class_token"], torch.zeros_like(noise.seeds))
    return high.to(torch.float64) * 2.0**-32 + (low >> 11).to(torch.float64) * 2.0**-53


class _Choices(NamedTuple):
    """The choices to make: a row of logits and a class for each."""

    logits: Tensor
    layout: ClassLayout
    scores: ClassScores
    rows: Tensor
    classes: Tensor


def _checked(kernel: str, choices: _Choices, out: Tensor | None) -> Tensor:
    logits, layout, scores, rows, classes = choices
    check_logits(kernel, logits, size=layout.size)
    device = logits.device
    if layout.device != device:
        raise KernelArgumentError(kernel, "layout", f"must be on {str(device)!r}, not on {str(layout.device)!r}")
    shape = (len(logits), layout.classes)
    check_tensor(kernel, "scores", scores.maxima, dtype=torch.float32, shape=shape, device=device)
    check_tensor(kernel, "rows", rows, dtype=_INTEGERS, dims=1, device=device)
    check_tensor(kernel, "classes", classes, dtype=_INTEGERS, shape=rows.shape, device=device)
    if out is None:
        return torch.empty(len(rows), dtype=torch.int32, device=device)
    check_tensor(kernel, "out", out, dtype=torch.int32, shape=rows.shape, device=device)
    return out


def _asked(choices: _Choices, part: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The logits of each choice of a part, which tokens it may choose, and its class and row as indices."""
    logits, layout, scores = choices.logits, choices.layout, choices.scores
    rows, classes = choices.rows[part], choices.classes[part]
    row, of = rows.to(torch.int64).clamp(min=0), classes.to(torch.int64).clamp(min=0)
    possible = (rows >= 0) & (classes >= 0) & (scores.status[row] == CHOSEN)
    is_held = (layout.class_of == of[:, None]) & possible[:, None]
    return logits[row, : layout.size], is_held, of, row


def _arguments(choices: _Choices) -> tuple[Any, ...]:
    """The arguments that both kernels take."""
    logits, layout, scores, rows, classes = choices
    found = scores.segments
    return (
        logits,
        logits.stride(0),
        len(logits),
        rows,
        classes,
        layout.class_begin,
        layout.segment_of,
        layout.block_of,
        layout.member_begin,
        layout.members,
        layout.classes,
        layout.blocks,
        layout.segments,
        found.largest,
        found.maxima,
        found.sums,
        scores.largest,
        scores.scales,
        scores.status,
    )
