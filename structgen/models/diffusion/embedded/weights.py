"""Reads and writes the weights of the embedded diffusion model: float16 in safetensors, sizes in its metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from structgen.errors import ModelError
from structgen.models.diffusion.embedded.network import DiffusionNetwork, NetworkShape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

__all__ = ["WEIGHTS", "load_network", "save_network"]

WEIGHTS = "weights.safetensors"


def save_network(folder: Path, shape: NetworkShape, weights: Mapping[str, Tensor]) -> None:
    """Write weights in float16; readers see the old file or the new one, never half of one."""
    half = {name: weight.detach().to("cpu", torch.float16).contiguous() for name, weight in weights.items()}
    new = folder / f"{WEIGHTS}.new"
    save_file(half, new, metadata={name: str(size) for name, size in shape.as_dict().items()})
    new.chmod(0o644)  # the library makes it private; a package is for everybody
    new.replace(folder / WEIGHTS)


def load_network(folder: Path, *, device: torch.device) -> DiffusionNetwork:
    """Read a network that ``save_network`` wrote; it computes in float32.

    Raises:
        ModelError: the file is missing or damaged.
    """
    path = folder / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            shape = NetworkShape(**{name: int(size) for name, size in file.metadata().items()})
            weights = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 - no mapping
        network = DiffusionNetwork(shape)
        network.load_state_dict(weights)
    except (OSError, SafetensorError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise ModelError(f"weights {path.name}", "they cannot be read", evidence=str(error)) from error
    return network.to(device).eval().requires_grad_(False)
