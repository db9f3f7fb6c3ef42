"""Load a diffusion model by its source; heavy packages are imported only when they are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from structgen.errors import ModelError
from structgen.models.location import find_local, require
from structgen.models.protocol import silent

if TYPE_CHECKING:
    from pathlib import Path

    from structgen.models.protocol import Progress
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["load_diffusion_model"]


def load_diffusion_model(  # noqa: PLR0913  public: each is a keyword with a default
    source: str | Path | tuple[Any, Any] | None = None,
    *,
    trust_remote_code: bool = False,
    device: str = "auto",
    dtype: str = "auto",
    mask_token: int | str | None = None,
    shift: int | None = None,
    resident: bool | None = None,
    progress: Progress | None = None,
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
        progress: called at each stage of loading; by default nothing is reported.

    Returns:
        A new model at each call.

    Raises:
        ModelError: the model cannot be found, fetched or loaded, its code is not trusted, or MASK or the shift is
            unknown; the message says what to do.
        VocabularyError: the bytes of its tokens are not well defined.
    """
    if source is None:
        if mask_token is not None or shift is not None or dtype not in ("auto", "float32"):
            raise ModelError(
                "the embedded diffusion model",
                "its MASK, shift and dtype float32 are fixed",
                evidence=f"found mask_token={mask_token!r}, shift={shift!r}, dtype={dtype!r}",
                remedy="leave them out",
            )
        return _embedded(device, resident)
    if isinstance(source, tuple):
        if len(source) != 2:
            raise ModelError("model", f"a pair (model, tokenizer) is expected, found {len(source)} things")
        require("torch")
        from structgen.models.diffusion.transformers_model import TransformersDiffusion

        return TransformersDiffusion(*source, mask_token=mask_token, shift=shift, resident=resident)
    return _named(
        source,
        trust_remote_code=trust_remote_code,
        device=device,
        dtype=dtype,
        mask_token=mask_token,
        shift=shift,
        resident=resident,
        progress=progress or silent,
    )


def _embedded(device: str, resident: bool | None) -> DiffusionModel:
    from structgen.models.diffusion.embedded.model import load_embedded_diffusion

    return load_embedded_diffusion(device=device, resident=resident)


def _named(source: str | Path, *, progress: Progress, **options: Any) -> DiffusionModel:
    """Resolve ``source`` before anything heavy is imported."""
    from structgen.models import location as hub

    local = find_local(source)
    if local is not None and local.is_file():
        raise ModelError(
            f"file {str(local)!r}",
            "diffusion models are not read from GGUF files",
            remedy="pass a folder of Hugging Face files, or (model, tokenizer)",
        )
    reach = None if local is not None else hub.reach(str(source))
    require("torch", "transformers")
    from structgen.models.diffusion.transformers_loader import check_trust, load_transformers_diffusion

    if reach is hub.Reach.ONLINE:
        check_trust(str(source), trust_remote_code=options["trust_remote_code"])  # before downloading many gigabytes
        hub.fetch_weights(str(source), progress)
    return load_transformers_diffusion(
        local if local is not None else str(source),
        progress=progress,
        local_files_only=reach is hub.Reach.CACHED,
        **options,
    )
