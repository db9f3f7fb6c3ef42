"""Apply masks to logits in place: the logits of excluded tokens become minus infinity.

Bytes: mask words are read.  Of groups of 8 columns, those with an excluded token are written, and those with an allowed
token too are read first.  For 256 rows of 131,072 bfloat16 logits with no token allowed, that is 4 MiB read and 64 MiB
written; with half of the tokens allowed at random, 68 MiB read and 64 MiB written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from structgen_kernels.arguments import check_logits
from structgen_kernels.dispatch import backend_for
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.masks.mask_rows import MaskRows

__all__ = ["apply_mask"]

_WORDS: Final = 256
"""Mask words per program, 8,192 columns."""


def apply_mask(logits: Tensor, masks: MaskRows) -> None:
    """Set the logits of all columns that are not allowed to minus infinity, columns beyond the vocabulary included.

    Accesses are of 16 bytes if all rows start at multiples of 16 bytes, and else of single logits.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]`` with ``columns >= masks.size``; rows may be
            strided.
        masks: the mask of each row.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.
    """
    check_logits("apply_mask", logits, size=masks.size)
    if len(logits) != len(masks) or logits.device != masks.table.device:
        raise KernelArgumentError(
            "apply_mask",
            "masks",
            f"must be {len(logits)} rows on {str(logits.device)!r}, not {len(masks)} on {str(masks.table.device)!r}",
        )
    if backend_for(logits.device) == "torch":
        logits[:, : masks.size].masked_fill_(~masks.allowed(), -torch.inf)
        logits[:, masks.size :].fill_(-torch.inf)
    elif logits.numel():
        from structgen_kernels.masks.jit.apply_mask import apply_mask_kernel

        columns = logits.shape[1]
        grid = (len(logits), -(-columns // (_WORDS * 32)))
        launch(
            apply_mask_kernel,
            grid,
            logits,
            logits.stride(0),
            columns,
            masks.arguments(),
            masks.size,
            ALIGNED=(logits.data_ptr() | logits.stride(0) * logits.element_size()) % 16 == 0,
            WORDS=_WORDS,
        )
