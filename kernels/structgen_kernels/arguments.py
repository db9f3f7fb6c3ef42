"""Checks of arguments, before anything is launched.  They look at shapes and types, never at values on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FLOATS", "check_logits", "check_tensor"]

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
"""The types of logits that kernels read."""


def check_logits(kernel: str, logits: Tensor, *, size: int) -> None:
    """Check logits ``[rows, columns]`` of a vocabulary of ``size`` tokens; rows may lie apart, columns may not.

    Raises:
        KernelArgumentError: they have another number of dimensions, another type, columns that are not next to each
            other, or fewer columns than there are tokens.
    """
    check_tensor(kernel, "logits", logits, dtype=FLOATS, dims=2)
    if logits.shape[1] < size:
        raise KernelArgumentError(kernel, "logits", f"have {logits.shape[1]} columns for {size} tokens")


def check_tensor(  # noqa: PLR0913  the properties of a tensor, each by name
    kernel: str,
    argument: str,
    tensor: Tensor,
    *,
    dtype: torch.dtype | Sequence[torch.dtype],
    dims: int | None = None,
    shape: Sequence[int | None] | None = None,
    device: torch.device | None = None,
) -> None:
    """Check one tensor, whose last dimension must be contiguous.

    Args:
        kernel: the operation.
        argument: what the tensor is called there.
        tensor: it.
        dtype: what it may hold.
        dims: how many dimensions it must have.
        shape: what it must be like; None for any length.
        device: where it must be.

    Raises:
        KernelArgumentError: it is not so.
    """
    allowed = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
    if tensor.dtype not in allowed:
        wanted = " or ".join(str(each).removeprefix("torch.") for each in allowed)
        raise KernelArgumentError(kernel, argument, f"must be {wanted}, not {str(tensor.dtype).removeprefix('torch.')}")
    if dims is not None and tensor.dim() != dims:
        raise KernelArgumentError(kernel, argument, f"must have {dims} dimensions, not the shape {list(tensor.shape)}")
    if shape is not None and (
        tensor.dim() != len(shape)
        or any(want is not None and have != want for have, want in zip(tensor.shape, shape, strict=True))
    ):
        wanted = ", ".join("any" if each is None else str(each) for each in shape)
        raise KernelArgumentError(kernel, argument, f"must have the shape [{wanted}], not {list(tensor.shape)}")
    if tensor.dim() and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise KernelArgumentError(
            kernel, argument, f"must be contiguous in its last dimension, where it has a stride of {tensor.stride(-1)}"
        )
    if device is not None and tensor.device != device:
        raise KernelArgumentError(kernel, argument, f"must be on {str(device)!r}, not on {str(tensor.device)!r}")
