"""Networks whose code was written for transformers 4, made and filled without the loader of transformers 5.

The published code of LLaDA and Dream is from early 2025.  Their forward passes run as they are; what breaks is around
them: the loader wants to know of tied weights in a form that they do not have, and a table of rotary embeddings has
lost its plainest entry.  So the network is made by its own class, and its weights are read from the files one by one.
"""

from __future__ import annotations

import json
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["load_by_hand"]

_INDEX: Final = "model.safetensors.index.json"


def load_by_hand(
    location: str, config: Any, class_reference: str, *, dtype: torch.dtype | None, local_files_only: bool = True
) -> Any:
    """Make a network by the code that comes with it, and fill it; its code must be trusted by now.

    Args:
        location: a folder, or the id of a model whose files are in the hub's cache.
        config: its configuration.
        class_reference: the entry of ``auto_map`` that names its class.
        dtype: of the weights; None for what the configuration says, else float32.
        local_files_only: do not ask the hub for code.

    Raises:
        ModelError: weights are missing, or are of another network.
    """
    folder = Path(location)
    if not folder.is_dir():
        folder = Path(snapshot_download(location, local_files_only=True))
    named = getattr(config, "dtype", None)
    wanted = dtype or (named if isinstance(named, torch.dtype) else torch.float32)
    with _as_in_transformers_4(), _default_dtype(wanted):
        network = get_class_from_dynamic_module(class_reference, location, local_files_only=local_files_only)
        model = network(config)
    missing, unknown = set(model.state_dict()), set()
    for shard in _shards(folder):
        weights = load_file(shard)
        unknown |= weights.keys() - model.state_dict().keys()
        missing -= weights.keys()
        cast = {name: value.to(wanted) if value.is_floating_point() else value for name, value in weights.items()}
        model.load_state_dict(cast, strict=False, assign=True)  # buffers that are in no file keep their own dtype
    if missing and getattr(config, "tie_word_embeddings", False):
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        head.weight = embedding.weight
        missing -= {name for name, weight in model.named_parameters(remove_duplicate=False) if weight is head.weight}
    if missing or unknown:
        raise ModelError(
            f"model {location!r}",
            "its weights are not those of its network",
            evidence=f"{len(missing)} are missing: {_some(missing)}; {len(unknown)} are of no use: {_some(unknown)}",
            remedy="check that the files are complete",
        )
    return model.eval()


def _shards(folder: Path) -> list[Path]:
    """Return the files of the weights.

    Raises:
        ModelError: there are none.
    """
    index = folder / _INDEX
    if index.is_file():
        places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(places.values()))]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    raise ModelError(f"folder {str(folder)!r}", "it holds no weights", remedy="add model.safetensors")


def _some(names: set[str]) -> str:
    return ", ".join(sorted(names)[:3]) or "none"


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _as_in_transformers_4() -> Iterator[None]:
    """Give the table of rotary embeddings its plain entry back, and keep quiet about settings that were renamed."""
    lacks = "default" not in ROPE_INIT_FUNCTIONS
    if lacks:
        ROPE_INIT_FUNCTIONS["default"] = _plain_rotary
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if lacks:
            del ROPE_INIT_FUNCTIONS["default"]


def _plain_rotary(config: Any, device: Any = None, seq_len: int | None = None, **_: Any) -> tuple[torch.Tensor, float]:
    """Return the frequencies of rotary embeddings (Su et al. 2021, arXiv 2104.09864), and a scale of 1."""
    parameters = getattr(config, "rope_parameters", None) or {}
    base = getattr(config, "rope_theta", None) or parameters["rope_theta"]
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    width = int(width * (getattr(config, "partial_rotary_factor", None) or 1.0))
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return 1.0 / base**exponents, 1.0
