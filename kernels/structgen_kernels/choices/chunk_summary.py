"""A summary of each row of logits for samplers, from one pass over the row.

For each chunk of 128 columns: the largest allowed logit, and the sum of ``exp((logit - largest) / temperature)`` over
the allowed columns.  For each split of 4,096 columns, at temperature 1, five numbers: the largest logit of the allowed
columns and the sum of exponentials relative to it, the same two for the other columns, and the number of nonzero mask
words.  Sums are NaN if a logit is NaN or plus infinity.

Bytes per row of ``n`` logits of ``b`` bytes: ``b * n`` of logits and ``n / 8`` of a dense mask are read; ``n / 16``
(``n / 32`` without a temperature) and ``20 * ceil(n / 4096)`` are written.  For 131,072 bfloat16 logits that is 272 KiB
read and 8.6 KiB written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.choices.step_workspace import CHUNK, SPLIT, Workspace, workspace_for
from structgen_kernels.dispatch import backend_for
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows

__all__ = ["chunk_summary"]

_WARPS: Final = 4
"""For loads of 16 bytes.  Loads of single logits spread groups of 8 over threads, which takes more of them."""


def chunk_summary(
    logits: Tensor, masks: MaskRows, temperature: Tensor | None = None, *, workspace: Workspace | None = None
) -> Workspace:
    """Write the summary of each row to ``maxima``, ``sums`` and ``splits`` of the workspace, and return the workspace.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= masks.size``; rows may be
            strided.  Not modified.
        masks: the mask of each row.
        temperature: float64 or float32 ``[rows]``; 0 counts as 1.  If None, ``sums`` is not written.
        workspace: buffers to reuse; None allocates them.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.
    """
    workspace = workspace_for("chunk_summary", logits, masks, workspace)
    if temperature is not None:
        shape = (len(logits),)
        reals = (torch.float64, torch.float32)
        check_tensor("chunk_summary", "temperature", temperature, dtype=reals, shape=shape, device=logits.device)
    if backend_for(logits.device) == "torch":
        _sum_up(logits, masks, temperature, workspace)
    elif len(logits):
        from structgen_kernels.choices.jit.chunk_summary import chunk_summary_kernel

        split = workspace.constants(masks.size)["SPLIT"]
        is_aligned = logits.data_ptr() % 16 == 0 and logits.stride(0) % 16 == 0  # what Triton distinguishes
        launch(
            chunk_summary_kernel,
            (len(logits), -(-masks.size // split)),
            logits,
            logits.stride(0),
            masks.arguments(),
            masks.size,
            temperature,
            *workspace.arguments(),
            CHUNK=CHUNK,
            SPLIT=split,
            num_warps=_WARPS if is_aligned else 4 * _WARPS,
        )
    return workspace


def _sum_up(logits: Tensor, masks: MaskRows, temperature: Tensor | None, workspace: Workspace) -> None:
    """The reference implementation."""
    rows, size = len(logits), masks.size
    allowed = masks.allowed()
    values = logits[:, :size].to(torch.float64)
    kept, rest = values.masked_fill(~allowed, -torch.inf), values.masked_fill(allowed, -torch.inf)
    chunks, splits = -(-size // CHUNK), -(-size // SPLIT)
    largest, sums = _log_sums(kept, CHUNK, temperature)
    workspace.maxima[:rows, :chunks].copy_(largest)
    if temperature is not None:
        workspace.sums[:rows, :chunks].copy_(sums)
    words = torch.nn.functional.pad(allowed, (0, -size % 32)).view(rows, -1, 32).any(2)
    counts = torch.nn.functional.pad(words, (0, -words.shape[1] % (SPLIT // 32))).view(rows, splits, -1).sum(2)
    fields = [*_log_sums(kept, SPLIT, None), *_log_sums(rest, SPLIT, None), counts]
    for index, field in enumerate(fields):
        workspace.splits[:rows, index, :splits].copy_(field)


def _log_sums(values: Tensor, width: int, temperature: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the largest value of each block of ``width`` columns, and the sum of exponentials relative to it."""
    stretches = torch.nn.functional.pad(values, (0, -values.shape[1] % width), value=-torch.inf)
    stretches = stretches.view(len(values), -1, width)
    largest = stretches.max(2).values
    above = stretches - torch.where(largest == -torch.inf, 0, largest)[:, :, None]
    if temperature is not None:
        above = above / torch.where(temperature > 0, temperature, 1)[:, None, None]
    return largest, above.exp().sum(2)
