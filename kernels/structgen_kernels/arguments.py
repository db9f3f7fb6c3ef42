"""Checks of arguments before a launch.  They read dtypes, shapes, strides and devices, never values on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FLOATS", "check_logits", "check_tensor"]

FLOATS: Final = (torch.float32, torch.float16, torch.bfloat16)
"""The dtypes of logits that kernels read."""


def check_logits(kernel: str, logits: Tensor, *, size: int) -> None:
    """Check logits ``[rows, columns]`` of a vocabulary of ``size`` tokens.  Rows may be strided.

    Raises:
        KernelArgumentError: the logits have another rank or dtype, their columns are not contiguous, or they have fewer
            columns than tokens.
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
    """Check one tensor.  Its last dimension must be contiguous.

    Args:
        kernel: the operation, for messages.
        argument: the name of the tensor in that operation, for messages.
        tensor: the tensor.
        dtype: the dtypes that are accepted.
        dims: the rank; None accepts any.
        shape: the shape, with None for a dimension of any length; None accepts any shape.
        device: the device; None accepts any.

    Raises:
        KernelArgumentError: the tensor differs.
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
