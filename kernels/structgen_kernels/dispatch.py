"""Which code answers an operation.

Triton's where the tensors are on a GPU, its reference implementation in torch elsewhere.

Every operation is one function.  The reference implementation states what it means, runs on any device, and is what the
kernel is tested against; the kernel is what is fast.  Triton's interpreter runs kernels on a CPU, slowly, which is how
they are tested where there is no GPU.
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
    """Return what runs operations on tensors of a device.

    Raises:
        BackendUnavailable: ``use_backend`` asked for Triton, which cannot run there.
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
    """Run all operations within, in this thread or task, by one backend."""
    token = _chosen.set(backend)
    try:
        yield
    finally:
        _chosen.reset(token)


def is_interpreted() -> bool:
    """Whether kernels are run by Triton's interpreter."""
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
