"""Load a ``TransformersDiffusion`` from a hub id or a folder of Hugging Face files.

Networks written for transformers 4 are created and filled here, without the loader of transformers 5.  The published
code of LLaDA and Dream is from early 2025.  Its forward passes still work, but the loader expects another declaration
of tied weights, and the table of rotary embeddings has lost its default entry.  So the network is created by its own
class, and its weights are read from the files one by one.
"""

from __future__ import annotations

import importlib.metadata
import json
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
import transformers
from huggingface_hub import snapshot_download
from safetensors.torch import load_file
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from structgen.errors import ModelError, StructgenError
from structgen.models.diffusion.transformers_model import TransformersDiffusion
from structgen.models.location import place
from structgen.models.transformers.loader import first_line, quiet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.models.protocol import Progress

__all__ = ["check_trust", "load_by_hand", "load_transformers_diffusion"]

_INDEX: Final = "model.safetensors.index.json"


def load_by_hand(
    location: str, config: Any, class_reference: str, *, dtype: torch.dtype | None, local_files_only: bool = True
) -> Any:
    """Create a network by the code in the model's files, which must be trusted, and load its weights.

    Args:
        location: a folder, or the id of a model whose files are in the hub's cache.
        config: the model's configuration.
        class_reference: the entry of ``auto_map`` that names the class.
        dtype: the dtype of the weights; None takes it from the configuration, else float32.
        local_files_only: do not query the hub for code.

    Raises:
        ModelError: weights are missing, or belong to another network.
    """
    folder = Path(location)
    if not folder.is_dir():
        folder = Path(snapshot_download(location, local_files_only=True))
    named = getattr(config, "dtype", None)
    target = dtype or (named if isinstance(named, torch.dtype) else torch.float32)
    with _as_in_transformers_4(), _default_dtype(target):
        network = get_class_from_dynamic_module(class_reference, location, local_files_only=local_files_only)
        model = network(config)
    missing, unknown = set(model.state_dict()), set()
    for shard in _shards(folder):
        weights = load_file(shard)
        unknown |= weights.keys() - model.state_dict().keys()
        missing -= weights.keys()
        cast = {name: value.to(target) if value.is_floating_point() else value for name, value in weights.items()}
        model.load_state_dict(cast, strict=False, assign=True)  # buffers that are not in the files keep their dtype
    if missing and getattr(config, "tie_word_embeddings", False):
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        head.weight = embedding.weight
        missing -= {name for name, weight in model.named_parameters(remove_duplicate=False) if weight is head.weight}
    if missing or unknown:
        raise ModelError(
            f"model {location!r}",
            "its weights do not match its network",
            evidence=f"{len(missing)} are missing: {_some(missing)}; {len(unknown)} are unused: {_some(unknown)}",
            remedy="check that the files are complete",
        )
    return model.eval()


def _shards(folder: Path) -> list[Path]:
    """Return the weight files.

    Raises:
        ModelError: there are none.
    """
    index = folder / _INDEX
    if index.is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return [folder / name for name in sorted(set(shards.values()))]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    raise ModelError(f"folder {str(folder)!r}", "contains no weights", remedy="add model.safetensors")


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
    """Restore the default entry of the table of rotary embeddings, and hide warnings about renamed settings."""
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


# In this order; a model with several of them returns the same logits through all.
_CLASSES = ("AutoModelForMaskedLM", "AutoModel", "AutoModelForCausalLM")


def check_trust(source: str | Path, *, trust_remote_code: bool) -> None:
    """Raise ``ModelError`` if a model contains code that is not trusted; downloads no weights."""
    with _explained(source, trusted=trust_remote_code), _silenced():
        transformers.AutoConfig.from_pretrained(str(source), trust_remote_code=trust_remote_code)


def load_transformers_diffusion(  # noqa: PLR0913  as load_diffusion_model
    source: str | Path,
    *,
    trust_remote_code: bool,
    device: str,
    dtype: str,
    mask_token: int | str | None,
    shift: int | None,
    progress: Progress,
    resident: bool | None = None,
    local_files_only: bool = False,
) -> TransformersDiffusion:
    """Load a masked diffusion model and its tokenizer: ``load_diffusion_model``, with its arguments.

    With ``local_files_only`` the hub is not queried.

    Raises:
        ModelError: the files do not make a masked diffusion model, or their code is not trusted.
    """
    placement = place(device, dtype)
    location = str(source)
    options: dict[str, Any] = {"local_files_only": local_files_only, "trust_remote_code": trust_remote_code}
    with _explained(source, trusted=trust_remote_code):
        with _silenced():
            config = transformers.AutoConfig.from_pretrained(location, **options)
            progress("load the tokenizer", 0, None)
            tokenizer = transformers.AutoTokenizer.from_pretrained(location, **options)
            progress("load the model", 0, None)
            model = _load_network(location, config, dtype=placement.dtype, options=options)
            model.to(placement.device)
            if getattr(getattr(model, "generation_config", None), "mask_token_id", None) is None:
                _add_generation_config(model, location, local_files_only=local_files_only)
        return TransformersDiffusion(
            model, tokenizer, mask_token=mask_token, shift=shift, name=location, resident=resident
        )


def _load_network(location: str, config: Any, *, dtype: torch.dtype | None, options: dict[str, Any]) -> Any:
    """Load the network by transformers, or by hand if that fails for a model with its own code."""
    offered = getattr(config, "auto_map", None) or {}
    name = next((each for each in _CLASSES if each in offered), _CLASSES[0])
    failure: str
    try:
        return getattr(transformers, name).from_pretrained(location, config=config, dtype=dtype or "auto", **options)
    except Exception as error:
        if name not in offered or not options["trust_remote_code"] or _lacks_memory(error):
            raise
        failure = f"{type(error).__name__}: {first_line(error)}"
    # Outside the handler: its traceback would keep the partly created network in memory.
    try:
        return load_by_hand(location, config, offered[name], dtype=dtype, local_files_only=options["local_files_only"])
    except Exception as error:
        error.add_note(f"transformers failed on it before: {failure}")
        raise


@contextmanager
def _silenced() -> Iterator[None]:
    """Hide progress bars, and warnings about renamed settings in older code."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def _explained(source: str | Path, *, trusted: bool) -> Iterator[None]:
    """Convert any error into a ``ModelError`` that says what to do."""
    try:
        yield
    except StructgenError:
        raise
    except Exception as error:  # loading runs many libraries and the model's code, with errors of their own
        raise ModelError(
            f"model {str(source)!r}",
            "transformers cannot load it as a masked diffusion model",
            evidence=f"{type(error).__name__}: {first_line(error)}",
            remedy=_remedy(error, trusted=trusted),
        ) from error


def _add_generation_config(model: Any, location: str, *, local_files_only: bool) -> None:
    """Read the generation settings, which may name MASK and EOS, for a network without them."""
    try:
        model.generation_config = transformers.GenerationConfig.from_pretrained(
            location, local_files_only=local_files_only
        )
    except (OSError, ValueError, TypeError):
        return  # no settings, or none that this version understands


def _lacks_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "out of memory" in str(error)


def _remedy(error: BaseException, *, trusted: bool) -> str:
    text = str(error)
    if "trust_remote_code" in text and not trusted:
        return "it brings code of its own: read that code, then pass trust_remote_code=True to run it"
    if isinstance(error, ImportError):
        return "install what its code needs"
    if _lacks_memory(error):
        return "choose a smaller model, dtype='bfloat16' or another device"
    version = importlib.metadata.version("transformers")
    return (
        f"check that the files are complete and that their code works with transformers {version}; else load the model "
        "with the code and the version that it was written for and pass load_diffusion_model((model, tokenizer))"
    )
