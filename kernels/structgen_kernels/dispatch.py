"""The choice of a backend: Triton for tensors on a GPU, the reference implementation in torch elsewhere.

Every operation is one function with two backends.  The reference implementation defines the result, runs on any device,
and is what the kernel is tested against.  The kernel is fast.  Without a GPU, tests run kernels on the CPU in Triton's
interpreter, which is slow.
"""

from __future__ import annotations

import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from structgen_kernels.errors import BackendUnavailable

if TYPE_CHECKING:
    import torch

__all__ = ["Backend", "backend_for", "is_interpreted", "use_backend"]

Backend: TypeAlias = Literal["torch", "triton"]

_chosen: ContextVar[Backend | None] = ContextVar("structgen_kernels_backend", default=None)
_TRUE: Final = ("1", "true", "on", "yes")


def backend_for(device: torch.device) -> Backend:
    """Return the backend for tensors on a device.

    Raises:
        BackendUnavailable: ``use_backend`` selected Triton, and Triton cannot run on the device.
    """
    chosen = _chosen.get()
    if chosen is None:
        return "triton" if device.type == "cuda" and _has_triton(warn=True) else "torch"
    if chosen == "triton":
        if not _has_triton(warn=False):
            raise BackendUnavailable("triton", "it is not installed; pip install triton, or choose 'torch'")
        if device.type != "cuda" and not is_interpreted():
            raise BackendUnavailable(
                "triton",
                f"the tensors are on {str(device)!r}; move them to a CUDA device, choose 'torch', or set "
                "TRITON_INTERPRET=1 before the first kernel is imported",
            )
    return chosen


@contextmanager
def use_backend(backend: Backend) -> Iterator[None]:
    """Run all operations in the ``with`` block, in this thread or task, on one backend."""
    token = _chosen.set(backend)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in _TRUE


@cache
def _has_triton(*, warn: bool) -> bool:
    found = importlib.util.find_spec("triton") is not None
    if not found and warn:
        warnings.warn(
            "triton is not installed, so masks and samplers run as plain torch operations on the GPU, which is slower; "
            "pip install triton",
            RuntimeWarning,
            stacklevel=3,
        )
    return found
