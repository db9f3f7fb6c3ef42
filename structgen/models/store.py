"""Folders of converted models in the user's cache: made once, whole or not there, checked before use."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from structgen.disk_cache import folder as cache_folder
from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from structgen.models.protocol import Progress

__all__ = ["FULL_DISK", "SourceUnavailable", "disk_faults", "find_fault", "install", "model_folder", "sha256_of"]


class SourceUnavailable(ModelError):
    """This source cannot give the model now (no network, no pip, not found); another one may.

    A source that gives something wrong (another checksum, a damaged archive) raises a plain ``ModelError``
    instead, which ends the search.
    """


MANIFEST = "manifest.json"
FORMAT = 1
SMALL_FILE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def model_folder(name: str) -> Path:
    """Return where a model belongs: ``models`` in ``$STRUCTGEN_CACHE`` or in the user's cache folder.

    Raises:
        ModelError: the cache is turned off, or there is no home folder.
    """
    root = cache_folder()
    if root is None:
        raise ModelError(
            f"model {name!r}",
            "there is no cache folder to keep it in",
            evidence="STRUCTGEN_CACHE is empty, or the user has no home folder",
            remedy="set STRUCTGEN_CACHE to a folder, or pass load_model() a model of your own",
        )
    return root / "models" / name


def find_fault(folder: Path) -> str | None:
    """Say what is wrong with a model folder, or return None when it is whole; reads few megabytes."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"{MANIFEST} has format {manifest['format']!r}, not {FORMAT}"
        for name, entry in manifest["files"].items():
            path = folder / name
            size = path.stat().st_size
            if size != entry["bytes"]:
                return f"{name} has {size} bytes, not {entry['bytes']}"
            if size <= SMALL_FILE_BYTES and sha256_of(path) != entry["sha256"]:
                return f"{name} has another checksum than the manifest says"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read: {error}"
    return None


def install(folder: Path, build: Callable[[Path], str], *, needed_bytes: int, progress: Progress) -> None:
    """Make ``folder`` unless it is there and whole.

    Args:
        folder: its final place.
        build: fills an empty folder and returns a line that says where the files came from.
        needed_bytes: disk space that building takes at its peak.
        progress: told while another process holds the lock.

    Raises:
        ModelError: the disk is full or not writable, or ``build`` failed; nothing is left behind.
    """
    from filelock import FileLock, Timeout

    parent = folder.parent
    with disk_faults(parent):
        parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(parent / f".{folder.name}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            progress("wait for another process that prepares the model", 0, None)
            lock.acquire()
    try:
        if find_fault(folder) is None:  # another process was faster
            return
        making = f".making-{folder.name}-"
        with disk_faults(parent):
            for abandoned in parent.glob(f"{making}*"):  # of processes that were killed: this one holds the lock
                shutil.rmtree(abandoned, ignore_errors=True)
            _check_space(parent, needed_bytes)
            with tempfile.TemporaryDirectory(prefix=making, dir=parent, ignore_cleanup_errors=True) as scratch:
                new = Path(scratch) / "new"
                new.mkdir()
                source = build(new)
                _write_manifest(new, source)
                if folder.exists():
                    folder.rename(Path(scratch) / "old")
                new.rename(folder)
    finally:
        lock.release()


def _check_space(parent: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise OSError(errno.ENOSPC, f"{free >> 20} MiB are free, {needed_bytes >> 20} MiB are needed")


def _write_manifest(folder: Path, source: str) -> None:
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.iterdir())
        if path.is_file()
    }
    manifest = {"format": FORMAT, "source": source, "files": files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


@contextmanager
def disk_faults(folder: Path) -> Iterator[None]:
    """Turn errors of writing into ``folder`` into a ``ModelError`` that says what to do.

    Raises:
        ModelError: in place of ``OSError``.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL_DISK:
            problem, remedy = (
                "the disk is full",
                "free space there, or set STRUCTGEN_CACHE to a folder on a larger disk",
            )
        else:
            problem, remedy = (
                "the model cannot be kept there",
                "set STRUCTGEN_CACHE to a folder that can be written",
            )
        raise ModelError(
            f"cache {str(folder)!r}", problem, evidence=error.strerror or str(error), remedy=remedy
        ) from error


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
