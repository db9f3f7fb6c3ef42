"""Language models with one protocol, and diffusion models with another.

Importing this package imports neither torch nor transformers; ``load_model`` and ``load_diffusion_model`` do.  They
find a model by its name before they import anything heavy.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from structgen.errors import ModelError
from structgen.log import log_loading
from structgen.models import location
from structgen.models.batching import Batch
from structgen.models.llama.embedded import EOS, NAME, embedded_folder, embedded_gguf, load_embedded
from structgen.models.llama_cpp.library import library
from structgen.models.location import find_local, require
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
from structgen.models.store import SourceUnavailable
from structgen.models.toy.hash import HashModel
from structgen.progress import with_progress

if TYPE_CHECKING:
    from structgen.models.llama_cpp.model import LlamaCppModel
    from structgen.models.protocol.diffusion import DiffusionModel
    from structgen.models.transformers.model import TransformersModel

__all__ = [
    "Batch",
    "HashModel",
    "LanguageModel",
    "Mixture",
    "PackedModel",
    "Progress",
    "Prompt",
    "Runtime",
    "Session",
    "SuperposableSession",
    "embedded_folder",
    "from_transformers",
    "load_diffusion_model",
    "load_model",
]

Runtime: TypeAlias = Literal["auto", "torch", "llama.cpp"]
"""What runs the forward passes of a model."""


@log_loading
@with_progress
def load_model(  # noqa: PLR0913  public: each is a keyword with a default
    source: str | Path | tuple[Any, Any] | None = None,
    *,
    device: str = "auto",
    dtype: str = "auto",
    progress: Progress | bool | None = None,
    threads: int | None = None,
    resident: bool | None = None,
    runtime: Runtime = "auto",
) -> LanguageModel:
    """Load a language model.

    Args:
        source: None for the embedded model (SmolLM2-135M-Instruct, fetched on first use); else the id of a causal
            language model on the Hugging Face hub, a folder of its files, a GGUF file, a folder with one GGUF file,
            or a loaded pair ``(model, tokenizer)`` of transformers.  A local path takes precedence over a hub id.
        device: ``"auto"`` (a GPU if there is one), or a device of torch such as ``"cpu"`` or ``"cuda:1"``.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, ``"int8"`` (x86 CPUs: weights of 8 bits in products, the
            rest in float32), or ``"auto"``: on a CPU float32, and int8 for the embedded model; the checkpoint's own
            elsewhere.  In llama.cpp the weights stay as the file has them.
        progress: True shows the stages of loading on a terminal or in a notebook, False nothing; None what takes more
            than two seconds, in a notebook; or a callback, which is called at each stage.
        threads: CPU threads: of llama.cpp for this model, of torch for the whole process; None leaves torch's setting
            as it is, and gives llama.cpp all cores.
        resident: whether logits stay on the model's device and tokens are sampled there; None: only on a GPU.  The
            output is the same up to rounding in float32.
        runtime: ``"llama.cpp"`` runs a GGUF file, or the embedded model, with its quantised weights; it needs no torch.
            ``"torch"`` runs any source.  ``"auto"`` is llama.cpp for these, where it is installed and no setting asks
            for torch: a GPU, a ``dtype``, or ``resident``.

    Returns:
        A new model at each call.

    Raises:
        ModelError: the model cannot be found, fetched, checked or loaded; the message says what to do.
        VocabularyError: the bytes of its tokens are not well defined.
    """
    report = progress if callable(progress) else silent
    # GNU OpenMP reads these variables when torch is imported.  A pass over one token takes twice as long with threads
    # that sleep whenever they wait, and ten times as long with threads that spin for long, when another process uses
    # one of their processors.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", _SPINS)
    if runtime not in get_args(Runtime):
        raise ModelError(
            f"runtime={runtime!r}", "there is no such runtime", remedy=f"choose one of {', '.join(get_args(Runtime))}"
        )
    if runtime == "llama.cpp":
        return _load_llama_cpp(source, device=device, dtype=dtype, progress=report, threads=threads)
    if runtime == "auto" and dtype == "auto" and not resident and _is_for_llama_cpp(source, device):
        try:
            return _load_llama_cpp(source, device=device, dtype=dtype, progress=report, threads=threads)
        except SourceUnavailable:
            if not _has_torch():  # else the converted weights may be in the cache, or on the hub
                raise
    if threads is not None:
        _set_threads(threads)
    if source is None:
        return load_embedded(device=device, dtype=dtype, progress=report, resident=resident)
    if isinstance(source, tuple):
        return from_transformers(*_pair(source), resident=resident)
    local = find_local(source)
    if local is not None and local.is_dir():
        location.check_complete(local)
    reach = None if local is not None else location.reach(str(source))
    require("torch", "transformers")
    if reach is location.Reach.ONLINE:
        location.fetch_weights(str(source), report)
    from structgen.models.transformers.loader import load_transformers

    return load_transformers(
        local if local is not None else str(source),
        device=device,
        dtype=dtype,
        progress=report,
        local_files_only=reach is location.Reach.CACHED,
        resident=resident,
    )


_SPINS: Final = "3000"
"""Turns of a loop, about a hundredth of a millisecond: longer than most of the time between two products of a pass."""
_GPUS: Final = ("/dev/nvidiactl", "/dev/kfd")
"""What the drivers of NVIDIA's and AMD's GPUs make: looking for them takes no import of torch."""


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


def _is_for_llama_cpp(source: str | Path | tuple[Any, Any] | None, device: str) -> bool:
    """Whether llama.cpp is the better runtime for a model: a GGUF file on a machine on which torch has no GPU."""
    if isinstance(source, tuple) or device not in ("auto", "cpu"):
        return False
    if source is not None:
        path = find_local(source)
        if path is None or not path.is_file():
            return False
    if not _has_torch():
        return True
    if device == "auto" and any(os.path.exists(each) for each in _GPUS):
        return False
    try:
        library()
    except ModelError:
        return False
    return True


def _load_llama_cpp(
    source: str | Path | tuple[Any, Any] | None, *, device: str, dtype: str, progress: Progress, threads: int | None
) -> LlamaCppModel:
    """Load a GGUF file, or that of the embedded model, with llama.cpp."""
    for setting, value, known in (("device", device, ("auto", "cpu")), ("dtype", dtype, ("auto",))):
        if value not in known:
            raise ModelError(
                f"{setting}={value!r}",
                "llama.cpp takes the weights as the file has them, and the devices that it was built for",
                remedy=f"choose {setting}={' or '.join(map(repr, known))}, or runtime='torch'",
            )
    if threads is not None and threads < 1:
        raise ModelError(f"threads={threads}", "at least one thread is needed")
    path = None if source is None or isinstance(source, tuple) else find_local(source)
    if source is not None and (path is None or path.is_dir()):
        raise ModelError(
            f"model {str(source)[:200]!r}",
            "llama.cpp runs GGUF files",
            evidence="it is a folder of Hugging Face files" if path is not None else "there is no such file",
            remedy="name a *.gguf file, or leave out runtime='llama.cpp'",
        )
    library()  # before anything is fetched
    from structgen.models.llama_cpp.model import LlamaCppModel

    eos: tuple[int | str, ...] | None = None
    name = None
    if path is None:
        path, name, eos = embedded_gguf(progress=progress), NAME, EOS
    progress("load the model", 0, None)
    return LlamaCppModel(path, name=name, device=device, threads=threads, eos=eos)


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


@log_loading
@with_progress
def load_diffusion_model(  # noqa: PLR0913  public: each is a keyword with a default
    source: str | Path | tuple[Any, Any] | None = None,
    *,
    trust_remote_code: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    mask_token: int | str | None = None,
    shift: int | None = None,
    resident: bool | None = None,
    progress: Progress | bool | None = None,
) -> DiffusionModel:
    """Load a masked diffusion language model.

    Args:
        source: None for the embedded model, which is small and comes with the package; else the id of a model on the
            Hugging Face hub (``"GSAI-ML/LLaDA-8B-Instruct"``, ``"Dream-org/Dream-v0-Instruct-7B"``), a folder of its
            files, or a loaded pair ``(model, tokenizer)``.  A local path takes precedence over a hub id.
        trust_remote_code: whether to run the code in the model's files, which published diffusion models need; the code
            can do whatever this process can.
        device: ``"auto"`` (a GPU if there is one), or a device of torch such as ``"cpu"`` or ``"cuda:1"``.
        dtype: ``"float32"``, ``"bfloat16"``, ``"float16"``, or ``"auto"``: float32 on a CPU, the checkpoint's own
            elsewhere.  Logits are float32 whatever the dtype.
        mask_token: MASK, as an id or the text of a special token; None takes it from the model's files.
        shift: 0 if the network's logits at position ``i`` are about position ``i`` (LLaDA), 1 if they are about
            ``i + 1`` (Dream, DiffuCoder); None uses the shift of the model's family.
        resident: whether logits stay on the model's device and are queried there; None: only on a GPU.
        progress: True shows the stages of loading on a terminal or in a notebook, False nothing; None what takes more
            than two seconds, in a notebook; or a callback, which is called at each stage.

    Returns:
        A new model at each call.

    Raises:
        ModelError: the model cannot be found, fetched or loaded, its code is not trusted, or MASK or the shift is
            unknown; the message says what to do.
        VocabularyError: the bytes of its tokens are not well defined.
    """
    report = progress if callable(progress) else silent
    if source is None:
        if mask_token is not None or shift is not None or dtype not in ("auto", "float32"):
            raise ModelError(
                "the embedded diffusion model",
                "its MASK, shift and dtype float32 are fixed",
                evidence=f"found mask_token={mask_token!r}, shift={shift!r}, dtype={dtype!r}",
                remedy="leave them out",
            )
        from structgen.models.diffusion.embedded.model import load_embedded_diffusion

        return load_embedded_diffusion(device=device, resident=resident)
    if isinstance(source, tuple):
        pair = _pair(source)
        require("torch")
        from structgen.models.diffusion.transformers_model import TransformersDiffusion

        return TransformersDiffusion(*pair, mask_token=mask_token, shift=shift, resident=resident)
    local = find_local(source)
    if local is not None and local.is_file():
        raise ModelError(
            f"file {str(local)!r}",
            "diffusion models are not read from GGUF files",
            remedy="pass a folder of Hugging Face files, or (model, tokenizer)",
        )
    reach = None if local is not None else location.reach(str(source))
    require("torch", "transformers")
    from structgen.models.diffusion.transformers_loader import check_trust, load_transformers_diffusion

    if dtype == "int8":
        raise ModelError("dtype='int8'", "diffusion models run in floating point", remedy="choose dtype='auto'")
    if reach is location.Reach.ONLINE:
        check_trust(str(source), trust_remote_code=trust_remote_code)  # before downloading many gigabytes
        location.fetch_weights(str(source), report)
    return load_transformers_diffusion(
        local if local is not None else str(source),
        trust_remote_code=trust_remote_code,
        device=device,
        dtype=dtype,
        mask_token=mask_token,
        shift=shift,
        resident=resident,
        progress=report,
        local_files_only=reach is location.Reach.CACHED,
    )


def _pair(source: tuple[Any, ...]) -> tuple[Any, Any]:
    if len(source) != 2:
        raise ModelError(
            "model",
            "a pair (model, tokenizer) is expected",
            evidence=f"found {len(source)} items",
            remedy="pass load_model((model, tokenizer))",
        )
    return source[0], source[1]


def _set_threads(threads: int) -> None:
    if threads < 1:
        raise ModelError(f"threads={threads}", "at least one thread is needed")
    require("torch")
    import torch

    torch.set_num_threads(threads)
