"""Where a model runs and in which numbers; the one place that turns names into torch's devices and dtypes."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from structgen.errors import ModelError

if TYPE_CHECKING:
    import torch

__all__ = ["Placement", "place", "require"]

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Placement:
    """A device, and the dtype of weights there; None keeps the dtype of the checkpoint."""

    device: torch.device
    dtype: torch.dtype | None


def require(*modules: str) -> None:
    """Import ``modules`` or say how to get them.

    Raises:
        ModelError: one of them is not installed or does not load.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:  # OSError: a shared library of torch does not load
            raise ModelError(
                f"package {module!r}",
                "running a model needs it and it cannot be imported",
                evidence=str(error),
                remedy="in a checkout of structgen: pip install -c constraints.txt '.[models]'",
            ) from error


def place(device: str, dtype: str) -> Placement:
    """Resolve the names of a device and a dtype.

    ``device="auto"`` is the first of CUDA, Apple's MPS and the CPU that is there.  ``dtype="auto"`` is
    float32 on a CPU and the checkpoint's own elsewhere.  bfloat16 would be faster on some CPUs, but its sums
    depend on how many tokens share a forward pass: logits of the embedded model differ by up to 1.75 between
    one pass over a prompt and one pass a token (8e-5 in float32), so that greedy text could change with the
    number of forced tokens.

    Raises:
        ModelError: torch is missing, does not know the name, or lacks the device.
    """
    require("torch")
    return Placement(found := _device(device), _dtype(dtype, found))


def _device(name: str) -> torch.device:
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ModelError(
            f"device {name!r}",
            "torch cannot use it",
            evidence=str(error).partition("\n")[0],
            remedy="choose 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'",
        ) from error
    return device


def _dtype(name: str, device: torch.device) -> torch.dtype | None:
    import torch

    name = str(name).removeprefix("torch.")
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in DTYPES:
        raise ModelError(f"dtype {name!r}", "unknown", remedy=f"choose 'auto' or one of {', '.join(DTYPES)}")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
