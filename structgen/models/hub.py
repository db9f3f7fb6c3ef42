"""Questions to the Hugging Face hub, with answers in seconds and errors that say what to do.

Left to themselves, the hub's libraries retry for 23 s without a network, once for each file.  One request
without retries tells whether the hub can be reached and knows the model, before anything heavy is imported.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING

from structgen.errors import ModelError
from structgen.models.placement import require
from structgen.models.source import SourceUnavailable
from structgen.models.store import FULL_DISK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from structgen.models.protocol import Progress

__all__ = ["Reach", "download", "fetch_weights", "reach"]

_TIMEOUT_S = 5.0
_WHOLE = "model.safetensors"
_PART = re.compile(r"model-\d+-of-\d+\.safetensors")


class Reach(Enum):
    """How the files of a model can be had."""

    ONLINE = "the hub has it"
    CACHED = "the hub cannot be reached, but the local cache of the hub has it"


def reach(repository: str) -> Reach:
    """Ask whether the hub, or its local cache, has the model ``repository``.

    Raises:
        SourceUnavailable: the hub cannot be reached and the cache lacks the model.
        ModelError: the hub does not know the model, or keeps it behind a licence.
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
    except Exception as error:  # the library changed its HTTP client twice, each with errors of its own
        if isinstance(try_to_load_from_cache(repository, "config.json"), str):
            return Reach.CACHED
        raise SourceUnavailable(
            subject,
            "it is not in the hub's local cache, and the Hugging Face hub cannot be reached",
            evidence=_first_line(error) or type(error).__name__,
            remedy="check the connection and HF_HUB_OFFLINE; a local model is named by its path, as ./name",
        ) from error
    return Reach.ONLINE


def download(repository: str, files: list[str], folder: Path, progress: Progress) -> None:
    """Download ``files`` of a model into ``folder``.

    Raises:
        SourceUnavailable: a file cannot be had.
        OSError: the disk is full.
    """
    from huggingface_hub import hf_hub_download

    with _transfer(repository):
        for done, name in enumerate(files):
            progress(f"download {repository}", done, len(files))
            hf_hub_download(repository, name, local_dir=folder)


def fetch_weights(repository: str, progress: Progress) -> None:
    """Bring the weights of a model into the hub's local cache, where transformers will find them.

    transformers would fetch them too, but without a word to ``progress`` for what may be many gigabytes.  The
    other files are small, and weights of older formats are left to it.

    Raises:
        SourceUnavailable: a file cannot be had.
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
    """Choose the files that transformers would: one whole file of safetensors, else its parts."""
    if _WHOLE in sizes:
        return {_WHOLE: sizes[_WHOLE]}
    return {name: sizes[name] for name in sorted(sizes) if _PART.fullmatch(name)}


@contextmanager
def _transfer(repository: str) -> Iterator[None]:
    """Keep the hub's progress bars off the terminal and sort its errors.

    Raises:
        SourceUnavailable: in place of any error but that of a full disk.
        OSError: the disk is full.
    """
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    except Exception as error:  # as in reach()
        if isinstance(error, OSError) and error.errno in FULL_DISK:
            raise
        raise SourceUnavailable(
            f"model {repository!r}", "the hub does not give it", evidence=_first_line(error)
        ) from error
    finally:
        if shown:
            enable_progress_bars()


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
