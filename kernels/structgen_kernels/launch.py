"""Launches of kernels on the device of their tensors, with a grid that a GPU accepts.

Triton launches on torch's current device and stream, even if the tensors are on another device.  In a process with
several GPUs the kernel would then access memory of another device, or fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["launch"]

_MAX_PROGRAMS: Final = 65_535
"""The largest number of programs along the second and the third axis of a grid."""


def launch(kernel: Any, grid: Sequence[int], *arguments: Any, **options: Any) -> None:
    """Launch a kernel on the current stream of the device of its first tensor, without allocation or synchronization.

    Args:
        kernel: a function compiled by ``triton.jit``.
        grid: the number of programs along one to three axes, at most ``2**31 - 1`` along the first.
        arguments: the positional arguments of the kernel, at least one of them a tensor.
        options: ``constexpr`` arguments and options of compilation, such as ``num_warps``.

    Raises:
        KernelArgumentError: there are too many programs.
    """
    if max(grid[1:], default=0) > _MAX_PROGRAMS:
        raise KernelArgumentError(
            kernel.fn.__name__, "grid", f"{list(grid)} has more than {_MAX_PROGRAMS:,} programs along its later axes"
        )
    options.setdefault("enable_fp_fusion", True)  # the default depends on the version of Triton
    device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
    if device.type != "cuda":  # Triton's interpreter
        kernel[tuple(grid)](*arguments, **options)
        return
    with torch.cuda.device(device):
        kernel[tuple(grid)](*arguments, **options)
