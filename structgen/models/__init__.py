"""Language models with one protocol.

Importing this package imports neither torch nor transformers; ``load_model`` does.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structgen.errors import ModelError
from structgen.models.batching import Batch
from structgen.models.diffusion.loading import load_diffusion_model
from structgen.models.llama.embedded import embedded_folder, load_embedded
from structgen.models.location import require
from structgen.models.protocol import (
    LanguageModel,
    Mixture,
    PackedModel,
    Progress,
    Prompt,
    Session,
    SuperposableSession,
    silent,
)
from structgen.models.toy.hash import HashModel

if TYPE_CHECKING:
    from structgen.models.transformers.model import TransformersModel

__all__ = [
    "Batch",
    "HashModel",
    "LanguageModel",
    "Mixture",
    "PackedModel",
    "Progress",
    "Prompt",
    "Session",
    "SuperposableSession",
    "embedded_folder",
    "from_transformers",
    "load_diffusion_model",
    "load_model",
]


def load_model(
    source: str | Path | tuple[Any, Any] | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | None = None,
    threads: int | None = None,
    resident: bool | None = None,
) -> LanguageModel:
    """Load a language model.

    Args:
        source: None for the embedded model (SmolLM2-135M-Instruct, fetched on first use); else the id of a causal
            language model on the Hugging Face hub, a folder of its files, a GGUF file, a folder with one GGUF file,
            or a loaded pair ``(model, tokenizer)`` of transformers.  A local path takes precedence over a hub id.
        device: ``"auto"`` (a GPU if there is one), or a device of torch such as ``"cpu"`` or ``"cuda:1"``.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"``: float32 on a CPU, the checkpoint's
            own elsewhere.
        progress: called at each stage of loading; by default nothing is reported.
        threads: CPU threads of torch, for the whole process; None leaves torch's setting as it is.
        resident: whether logits stay on the model's device and tokens are sampled there; None: only on a GPU.  The
            output is the same up to rounding in float32.

    Returns:
        A new model at each call.

    Raises:
        ModelError: the model cannot be found, fetched, checked or loaded; the message says what to do.
        VocabularyError: the bytes of its tokens are not well defined.
    """
    # OpenMP reads this variable when torch is imported.  Waiting threads that spin make a forward pass about ten times
    # slower when another process uses one of their cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if threads is not None:
        _set_threads(threads)
    if source is None:
        return load_embedded(device=device, dtype=dtype, progress=progress, resident=resident)
    if isinstance(source, tuple):
        return from_transformers(*_pair(source), resident=resident)
    return _load_named(source, device=device, dtype=dtype, progress=progress or silent, resident=resident)


def from_transformers(
    model: Any, tokenizer: Any, *, name: str | None = None, resident: bool | None = None
) -> TransformersModel:
    """Wrap a loaded causal language model of transformers and its tokenizer.

    Args:
        model: the loaded model, or the result of ``torch.compile``.
        tokenizer: the tokenizer of the model.
        name: the model's name in messages.
        resident: see ``load_model``.

    Raises:
        ModelError: the model keeps no key-value cache, or names no EOS.
        VocabularyError: the bytes of the tokenizer's tokens are not well defined.
    """
    require("torch", "transformers")
    from structgen.models.transformers.model import TransformersModel

    return TransformersModel(model, tokenizer, name=name, resident=resident)


def _load_named(
    source: str | Path, *, device: str, dtype: str, progress: Progress, resident: bool | None
) -> LanguageModel:
    """Resolve ``source`` before anything heavy is imported."""
    from structgen.models import location as hub
    from structgen.models.location import find_local

    local = find_local(source)
    reach = None if local is not None else hub.reach(str(source))
    require("torch", "transformers")
    if reach is hub.Reach.ONLINE:
        hub.fetch_weights(str(source), progress)
    from structgen.models.transformers.loader import load_transformers

    return load_transformers(
        local if local is not None else str(source),
        device=device,
        dtype=dtype,
        progress=progress,
        local_files_only=reach is hub.Reach.CACHED,
        resident=resident,
    )


def _pair(source: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(source) != 2:
        raise ModelError("model", f"a pair (model, tokenizer) is expected, found {len(source)} things")
    return source[0], source[1]


def _set_threads(threads: int) -> None:
    if threads < 1:
        raise ModelError(f"threads={threads}", "at least one thread is needed")
    require("torch")
    import torch

    torch.set_num_threads(threads)
