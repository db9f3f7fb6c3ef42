"""Resolve names: of models to local files or files of the hub, of devices and dtypes to those of torch."""

from __future__ import annotations

import importlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from structgen.errors import ArgumentError, ModelError, found, install
from structgen.models.store import FULL_DISK, SourceUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from structgen.models.protocol import Progress

__all__ = [
    "Placement",
    "Reach",
    "check_complete",
    "configuration",
    "download",
    "fetch_weights",
    "find_local",
    "place",
    "reach",
    "require",
]

DTYPES = ("float32", "bfloat16", "float16", "int8")


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and the dtype of the weights; None keeps the dtype of the checkpoint."""

    device: torch.device
    dtype: torch.dtype | None


def require(*modules: str) -> None:
    """Import ``modules``.

    Raises:
        ModelError: one of them is not installed or does not load; the message says how to get it.
    """
    for module in modules:
        try:
            importlib.import_module(module)
        except (ImportError, OSError) as error:  # OSError: a shared library of torch does not load
            raise ModelError(
                f"package {module!r}",
                "it is needed to run a model, and it cannot be imported",
                evidence=str(error),
                remedy=install("models"),
            ) from error


def place(device: str, dtype: str) -> Placement:
    """Resolve the names of a device and a dtype.

    ``device="auto"`` is the first available of CUDA, Apple's MPS and the CPU.  ``dtype="auto"`` is float32 on a CPU and
    the checkpoint's own elsewhere.  bfloat16 would be faster on some CPUs, but its sums depend on how many tokens share
    a forward pass: logits of the embedded model differ by up to 1.75 between one pass over a prompt and one pass per
    token (8e-5 in float32), so greedy text could change with the number of forced tokens.

    Raises:
        ModelError: torch is missing, does not know the name, or lacks the device.
    """
    require("torch")
    return Placement(resolved := _device(device), _dtype(dtype, resolved))


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
        raise ModelError(
            f"dtype {name!r}", "it is no known dtype", remedy=f"choose 'auto' or one of {', '.join(DTYPES)}"
        )
    dtype: torch.dtype = getattr(torch, name)
    return dtype


_TIMEOUT_S = 5.0
_WHOLE = "model.safetensors"
_PART = re.compile(r"model-\d+-of-\d+\.safetensors")


class Reach(Enum):
    """Where the files of a model are available."""

    ONLINE = "the hub has it"
    CACHED = "the hub cannot be reached, but the local cache of the hub has it"


def reach(repository: str) -> Reach:
    """Return whether the hub or only its local cache has the model ``repository``.

    Raises:
        SourceUnavailable: the hub cannot be reached and the cache lacks the model.
        ModelError: the hub does not know the model, or requires a licence to be accepted.
    """
    require("huggingface_hub")
    from huggingface_hub import HfApi, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    subject = f"model {repository!r}"
    try:
        HfApi().model_info(repository, timeout=_TIMEOUT_S)
    except GatedRepoError as error:
        raise ModelError(
            subject,
            "the hub gives it only to users who accepted its terms",
            evidence=_first_line(error),
            remedy="accept them on the model's page and log in with 'hf auth login'",
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            subject,
            "it is neither a local file or folder nor a model on the Hugging Face hub",
            evidence=_first_line(error),
            remedy="check the spelling; for a private model, log in with 'hf auth login'",
        ) from error
    except Exception as error:  # the library changed its HTTP client twice, each with its own errors
        if isinstance(try_to_load_from_cache(repository, "config.json"), str):
            return Reach.CACHED
        raise SourceUnavailable(
            subject,
            "there is no such file or folder, and the Hugging Face hub, which may have it, cannot be reached",
            evidence=f"looked in {str(Path.cwd())!r} and in the hub's local cache; "
            f"{_first_line(error) or type(error).__name__}",
            remedy="check the spelling: ./name is a folder with config.json, weights and tokenizer, or a *.gguf file; "
            "owner/name is a model on the hub; without a name it is the embedded model; or check the connection and "
            "HF_HUB_OFFLINE",
        ) from error
    return Reach.ONLINE


def configuration(source: str | Path) -> dict[str, Any]:
    """The content of a model's config.json; empty where there is none, as of a GGUF file, or it cannot be read.

    Of a model on the hub it is downloaded, unless the hub's local cache has it.

    Raises:
        ModelError: as ``find_local``.
    """
    local = find_local(source)
    try:
        if local is None:
            from huggingface_hub import hf_hub_download, try_to_load_from_cache

            held_path = try_to_load_from_cache(str(source), "config.json")
            if not isinstance(held_path, str):
                reach(
                    str(source)
                )  # a download without the hub is tried for half a minute, with lines on standard error
                held_path = hf_hub_download(str(source), "config.json", etag_timeout=_TIMEOUT_S)
            path = Path(held_path)
        else:
            path = local / "config.json"
        held = json.loads(path.read_text("utf-8"))
    except Exception:  # loading the model reports the problem; the hub's library has many kinds of errors
        return {}
    return held if isinstance(held, dict) else {}


def download(repository: str, files: list[str], folder: Path, progress: Progress) -> None:
    """Download ``files`` of a model into ``folder``.

    Raises:
        SourceUnavailable: a file cannot be downloaded.
        OSError: the disk is full.
    """
    from huggingface_hub import hf_hub_download

    with _transfer(repository):
        for done, name in enumerate(files):
            progress(f"download {repository}", done, len(files))
            hf_hub_download(repository, name, local_dir=folder)


def fetch_weights(repository: str, progress: Progress) -> None:
    """Download the weights of a model into the hub's local cache, where transformers will find them.

    transformers would download them too, but would not report progress of what may be many gigabytes.  It still
    downloads the other files, which are small, and weights in older formats.

    Raises:
        SourceUnavailable: a file cannot be downloaded.
        ModelError: the disk is full.
    """
    from huggingface_hub import HfApi, hf_hub_download

    stage = f"download {repository}"
    try:
        with _transfer(repository):
            info = HfApi().model_info(repository, files_metadata=True, timeout=_TIMEOUT_S)
            sizes = _chosen_weights({file.rfilename: file.size or 0 for file in info.siblings or ()})
            done, total = 0, sum(sizes.values())
            for name, size in sizes.items():
                progress(stage, done, total)
                hf_hub_download(repository, name, revision=info.sha)
                done += size
    except OSError as error:
        raise ModelError(
            f"model {repository!r}",
            "the disk is full",
            evidence=_first_line(error),
            remedy="free space, or set HF_HOME to a folder on a larger disk",
        ) from error


def _chosen_weights(sizes: dict[str, int]) -> dict[str, int]:
    """Return the files that transformers would choose: one safetensors file, else its shards."""
    if _WHOLE in sizes:
        return {_WHOLE: sizes[_WHOLE]}
    return {name: sizes[name] for name in sorted(sizes) if _PART.fullmatch(name)}


@contextmanager
def _transfer(repository: str) -> Iterator[None]:
    """Hide the hub's progress bars and convert its errors.

    Raises:
        SourceUnavailable: any error except a full disk.
        OSError: the disk is full.
    """
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except Exception as error:  # as in reach()
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise
        raise SourceUnavailable(
            f"model {repository!r}", "the hub does not provide it", evidence=_first_line(error)
        ) from error
    finally:
        if shown:
            enable_progress_bars()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


_REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_LISTED = 8


def find_local(source: str | Path) -> Path | None:
    """Return the GGUF file or folder of Hugging Face files that ``source`` names; None for a hub id.

    Raises:
        ModelError: there is no such file, or it is not a model.
        ArgumentError: ``source`` is no name, for instance a model of transformers without its tokenizer.
    """
    if not isinstance(source, (str, PathLike)):
        remedy = "pass its name, its path, or the pair (model, tokenizer)"
        raise ArgumentError("model", "expected a name or a path", evidence=found(source), remedy=remedy)
    try:
        path = Path(source).expanduser()
        exists = path.exists() and source != ""  # Path("") is the working folder
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL in it, an unknown ~user
        raise ModelError(f"model {str(source)[:80]!r}", "not a valid path", evidence=_reason(error)) from error
    if exists:
        return _model_in(path) if path.is_dir() else _gguf(path)
    if isinstance(source, Path) or source.endswith(".gguf") or not _REPOSITORY_ID.fullmatch(source):
        raise ModelError(
            f"model {str(source)[:200]!r}",
            "there is no such file or folder",
            evidence=f"looked in {str(Path.cwd())!r}",
            remedy="check the path; the id of a model on the Hugging Face hub is spelled owner/name",
        )
    return None


_WEIGHTS: Final = (".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack")
_TOKENIZERS: Final = ("tokenizer", "vocab", "tekken", "spiece", "sentencepiece", "merges")


def check_complete(folder: Path) -> None:
    """Check that a folder of Hugging Face files has weights and a tokenizer, before anything heavy is imported.

    Raises:
        ModelError: it lacks one of them.
    """
    names = [path.name for path in folder.iterdir()]
    for what, is_there, example in (
        ("weights", any(name.endswith(_WEIGHTS) for name in names), "model.safetensors"),
        ("tokenizer", any(name.startswith(_TOKENIZERS) or ".tiktoken" in name for name in names), "tokenizer.json"),
    ):
        if not is_there:
            raise ModelError(
                f"folder {str(folder)!r}",
                f"it has a config.json and no {what}",
                evidence=f"it holds {', '.join(sorted(names)[:_LISTED])}",
                remedy=f"put {example} beside it, or name the folder that has it",
            )


def _reason(error: Exception) -> str:
    """Return the error's text without the path, which may be long."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _model_in(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    files = sorted(folder.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    subject = f"folder {str(folder)!r}"
    if files:
        listed = ", ".join(path.name for path in files[:_LISTED]) + (", ..." if len(files) > _LISTED else "")
        raise ModelError(subject, f"contains {len(files)} models", evidence=listed, remedy="pass the path of one file")
    raise ModelError(
        subject, "contains no model", remedy="pass a folder with config.json and weights, or with one *.gguf file"
    )


def _gguf(path: Path) -> Path:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(
            f"file {str(path)!r}",
            "not a GGUF file",
            evidence=f"it begins with {magic!r}",
            remedy="pass a GGUF file, or the folder with the files of a Hugging Face model",
        )
    return path
