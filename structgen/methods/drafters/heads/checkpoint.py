"""Reading a folder of trained heads of any kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from structgen.errors import ModelError
from structgen.methods.drafters.heads.eagle import EagleHeads
from structgen.methods.drafters.heads.last_state import HydraHeads, MedusaHeads

if TYPE_CHECKING:
    import torch

    from structgen.methods.drafters.heads.trained_heads import DraftHeads
    from structgen.models.llama.model import LlamaModel

__all__ = ["heads_in"]


def heads_in(folder: Path, model: LlamaModel) -> DraftHeads:
    """Read a folder: see ``load_heads``.

    Raises:
        ModelError: as ``load_heads``.
    """
    name = folder.name
    config, weights = _read(folder, name)
    if "medusa_num_heads" in config:
        counts = _counts(config, "medusa", name)
        return MedusaHeads(model, weights, heads=counts[0], blocks=counts[1], name=name)
    if "hydra_num_heads" in config:
        counts = _counts(config, "hydra", name)
        return HydraHeads(model, weights, heads=counts[0], blocks=counts[1], name=name)
    architectures = config.get("architectures") or [""]
    if str(architectures[0]).startswith("Eagle") or "fc.weight" in weights:
        return EagleHeads(model, weights, name=name)
    raise ModelError(
        f"heads {name!r}",
        "config.json does not name the kind of heads",
        evidence=f"it has the keys {sorted(config)}",
        remedy="add medusa_num_heads, hydra_num_heads, or architectures with a name that begins with Eagle",
    )


def _read(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        weights: dict[str, torch.Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                weights |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  # not a mapping
    except (OSError, ValueError, SafetensorError) as error:
        raise ModelError(
            f"heads {name!r}", "their files cannot be read", evidence=f"{type(error).__name__}: {error} in {folder}"
        ) from error
    if not isinstance(config, dict):
        raise ModelError(f"heads {name!r}", "config.json is not an object", evidence=f"found {type(config).__name__}")
    if not weights:
        raise ModelError(f"heads {name!r}", "there are no weights", evidence=f"no file *.safetensors in {folder}")
    return config, weights


def _counts(config: dict[str, Any], kind: str, name: str) -> tuple[int, int]:
    """The number of heads, and of blocks in each."""
    heads, blocks = config[f"{kind}_num_heads"], config.get(f"{kind}_num_layers", 1)
    if not (isinstance(heads, int) and isinstance(blocks, int) and heads >= 1 and blocks >= 0):
        raise ModelError(
            f"heads {name!r}",
            f"config.json has {kind}_num_heads={heads!r} and {kind}_num_layers={blocks!r}",
            evidence="expected at least one head, and whole numbers",
        )
    return heads, blocks
