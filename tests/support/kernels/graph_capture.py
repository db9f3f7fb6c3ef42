"""Shows that a step can be captured as a CUDA graph where there is no GPU.

Within ``recorded_step`` kernels are recorded instead of run, and whatever else torch is asked to do fails, but for
views, which touch no device: allocating, copying, computing, and looking at values on the host (``item``, ``bool``,
``nonzero``).  What a step launches must not depend on values, so two steps on different values are recorded as equal.
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
        kernel: its name.
        grid: how many programs.
        arguments: the numbers as they are, tensors by address, shape and stride.
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
"""Of tensors that are on the host already, torch does not tell a mode about these."""


def _refused(*_: Any, **__: Any) -> None:
    raise AssertionError("a tensor is copied to the host in a step")


@contextmanager
def recorded_step() -> Iterator[list[Launch]]:
    """Run operations by Triton's backend without running kernels.

    Yields:
        What is launched, in order.

    Raises:
        AssertionError: torch is asked to do anything but to launch kernels and to make views.
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
