"""What on this machine a user means by the name of a model."""

from __future__ import annotations

import re
from pathlib import Path

from structgen.errors import ModelError

__all__ = ["find_local"]

_REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_LISTED = 8


def find_local(source: str | Path) -> Path | None:
    """Return the GGUF file or folder of Hugging Face files that ``source`` names; None for an id of the hub.

    Raises:
        ModelError: there is no such file, or what is there is no model.
    """
    try:
        path = Path(source).expanduser()
        found = path.exists() and source != ""  # which Path reads as the working folder
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL in it, an unknown ~user
        raise ModelError(f"model {str(source)[:80]!r}", "it is no path", evidence=_reason(error)) from error
    if found:
        return _model_in(path) if path.is_dir() else _gguf(path)
    if isinstance(source, Path) or source.endswith(".gguf") or not _REPOSITORY_ID.fullmatch(source):
        raise ModelError(
            f"model {str(source)[:200]!r}",
            "there is no such file or folder",
            evidence=f"looked in {str(Path.cwd())!r}",
            remedy="check the path; the id of a model on the Hugging Face hub is spelled owner/name",
        )
    return None


def _reason(error: Exception) -> str:
    """Say what is wrong without the name, which may be long."""
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
        raise ModelError(subject, f"it holds {len(files)} models", evidence=listed, remedy="pass the path of one file")
    raise ModelError(
        subject,
        "it holds no model",
        remedy="pass a folder with config.json and weights, or with one *.gguf file",
    )


def _gguf(path: Path) -> Path:
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ModelError(
            f"file {str(path)!r}",
            "it is no GGUF file",
            evidence=f"it begins with {magic!r}",
            remedy="pass a GGUF file, or the folder that holds the files of a Hugging Face model",
        )
    return path
