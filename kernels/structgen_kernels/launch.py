"""Launches of kernels: on the device that their tensors are on, with no more programs than a GPU takes.

Triton launches on the device at which torch stands, and its current stream, wherever the tensors are.  Where a process
has several GPUs, a kernel would then read and write across devices, or fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["launch"]

_MAX_PROGRAMS: Final = 65_535
"""Programs along the second and the third axis of a grid."""


def launch(kernel: Any, grid: Sequence[int], *arguments: Any, **options: Any) -> None:
    """Launch a kernel on the current stream of the device of its first tensor; nothing is allocated or waited for.

    Args:
        kernel: what ``triton.jit`` returns.
        grid: programs along one to three axes; the first may have ``2**31 - 1``.
        arguments: of the kernel, by position; at least one is a tensor.
        options: its constants, and what it is compiled with.

    Raises:
        KernelArgumentError: there are too many programs.
    """
    if max(grid[1:], default=0) > _MAX_PROGRAMS:
        raise KernelArgumentError(
            kernel.fn.__name__, "grid", f"{list(grid)} has more than {_MAX_PROGRAMS:,} programs along its later axes"
        )
    options.setdefault("enable_fp_fusion", True)  # said here, for what Triton does by itself depends on its version
    device = next(each.device for each in arguments if isinstance(each, torch.Tensor))
    if device.type != "cuda":  # Triton's interpreter
        kernel[tuple(grid)](*arguments, **options)
        return
    with torch.cuda.device(device):
        kernel[tuple(grid)](*arguments, **options)
