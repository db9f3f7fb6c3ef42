"""From a hub id or a folder of Hugging Face files to a ``TransformersDiffusion``.

Published diffusion models bring the code of their network with them, which runs with all rights of this process.  So it
is run only where the caller says so.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import transformers

from structgen.errors import ModelError, StructgenError
from structgen.models.diffusion.remote_code import load_by_hand
from structgen.models.diffusion.transformers_diffusion import TransformersDiffusion
from structgen.models.placement import place
from structgen.models.transformers_loader import first_line, quiet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import torch

    from structgen.models.protocol import Progress

__all__ = ["check_trust", "load_transformers_diffusion"]

# In this order: a model that offers several answers alike through all of them.
_CLASSES = ("AutoModelForMaskedLM", "AutoModel", "AutoModelForCausalLM")


def check_trust(source: str | Path, *, trust_remote_code: bool) -> None:
    """Raise ``ModelError`` where a model brings code that is not trusted; fetches no weights."""
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
    """Load a masked diffusion model and its tokenizer.

    Args:
        source: the id of a model on the hub, or a folder of Hugging Face files.
        trust_remote_code: whether to run the code that comes with the model.
        device: see ``load_diffusion_model``.
        dtype: see ``load_diffusion_model``.
        mask_token: see ``TransformersDiffusion``.
        shift: see ``TransformersDiffusion``.
        progress: told of the stages.
        resident: see ``TransformersDiffusion``.
        local_files_only: do not ask the hub.

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
                _add_generation_config(model, location, local_files_only)
        return TransformersDiffusion(
            model, tokenizer, mask_token=mask_token, shift=shift, name=location, resident=resident
        )


def _load_network(location: str, config: Any, *, dtype: torch.dtype | None, options: dict[str, Any]) -> Any:
    """Load the network as transformers does, or by hand where that fails on code that comes with the model."""
    offered = getattr(config, "auto_map", None) or {}
    name = next((each for each in _CLASSES if each in offered), _CLASSES[0])
    failure: str
    try:
        return getattr(transformers, name).from_pretrained(location, config=config, dtype=dtype or "auto", **options)
    except Exception as error:
        if name not in offered or not options["trust_remote_code"] or _lacks_memory(error):
            raise
        failure = f"{type(error).__name__}: {first_line(error)}"
    # Outside of the handler, whose traceback would hold on to the network that was half made.
    try:
        return load_by_hand(location, config, offered[name], dtype=dtype, local_files_only=options["local_files_only"])
    except Exception as error:
        error.add_note(f"transformers failed on it before: {failure}")
        raise


@contextmanager
def _silenced() -> Iterator[None]:
    """Keep the terminal free of bars, and of warnings about settings that older code spells as they were."""
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


@contextmanager
def _explained(source: str | Path, *, trusted: bool) -> Iterator[None]:
    """Turn whatever goes wrong into a ``ModelError`` that says what to do."""
    try:
        yield
    except StructgenError:
        raise
    except Exception as error:  # loading runs the code of many libraries and of the model; each fails in its own way
        raise ModelError(
            f"model {str(source)!r}",
            "transformers cannot load it as a masked diffusion model",
            evidence=f"{type(error).__name__}: {first_line(error)}",
            remedy=_remedy(error, trusted=trusted),
        ) from error


def _add_generation_config(model: Any, location: str, local_files_only: bool) -> None:
    """Read the generation settings for a network that does not: they may name MASK and the end tokens."""
    try:
        model.generation_config = transformers.GenerationConfig.from_pretrained(
            location, local_files_only=local_files_only
        )
    except (OSError, ValueError, TypeError):
        return  # there are none, or none that this version understands


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
