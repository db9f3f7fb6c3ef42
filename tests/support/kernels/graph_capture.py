"""Check without a GPU that a step can be captured as a CUDA graph.

Within ``recorded_step`` kernels are recorded instead of run.  Every other operation of torch fails, except views, which
do not touch the device: allocation, copies, computation, and reads of values on the host (``item``, ``bool``,
``nonzero``).  The launches of a step must not depend on values, so the records of two steps on different values are
equal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from structgen_kernels.dispatch import use_backend
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Launch", "recorded_step"]


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel.

    Attributes:
        kernel: the name of the kernel.
        grid: the number of programs along each axis.
        arguments: numbers by value, tensors by address, shape and stride.
    """

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


class _NothingButViews(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            raise AssertionError(f"{func} is called in a step, where only kernels may be launched")
        return func(*args, **(kwargs or {}))


_TO_HOST = ("tolist", "numpy", "cpu")
"""For tensors on the host, torch does not dispatch these methods to a mode."""


def _refused(*_: Any, **__: Any) -> None:
    raise AssertionError("a tensor is copied to the host in a step")


@contextmanager
def recorded_step() -> Iterator[list[Launch]]:
    """Run operations on the Triton backend, but record kernels instead of running them.

    Yields:
        The launches, in order.

    Raises:
        AssertionError: torch runs an operation other than a view.
    """
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    found: list[Launch] = []

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        named = (f"{name}={_seen(value)}" for name, value in sorted(options.items()))
        found.append(Launch(kernel.fn.__name__, tuple(grid), (*map(_seen, args), *named)))

    with (
        mock.patch.multiple(torch.Tensor, **dict.fromkeys(_TO_HOST, _refused)),
        mock.patch.object(InterpretedFunction, "run", run),
        mock.patch.object(JITFunction, "run", run),
        use_backend("triton"),
        _NothingButViews(),
    ):
        yield found


def _seen(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return "tensor", value.data_ptr(), tuple(value.shape), value.stride()
    return value
