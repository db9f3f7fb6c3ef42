"""Content-addressed files on disk that spare a second process the same work.

A cache may fail, never the program: a missing, damaged or unwritable entry is a miss.  Entries are raw bytes
with a checksum (no pickle: reading one runs nothing), written to a temporary file and renamed, so that a
reader sees a whole entry or none.  The folder is capped in bytes; the entries used longest ago go first.

The folder is ``$STRUCTGEN_CACHE``, or ``structgen`` in the user's cache folder; ``STRUCTGEN_CACHE=`` (empty)
turns the cache off.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

__all__ = ["fetch", "folder", "keep"]

MAX_FOLDER_BYTES = 512 << 20
MAX_ENTRY_BYTES = 128 << 20

_MAGIC = b"structgen cache 1\n"
_CHECKSUM_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + _CHECKSUM_BYTES
_ABANDONED_AFTER_S = 3600


def folder() -> Path | None:
    """The folder of the cache, which need not exist; None where it is turned off or there is no home."""
    chosen = os.environ.get("STRUCTGEN_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "structgen"
        if sys.platform == "win32":
            return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "structgen" / "Cache"
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structgen"
    except RuntimeError:  # no home folder
        return None


def fetch(kind: str, key: str) -> bytes | None:
    """Return the payload kept under ``kind`` and ``key``, or None where there is none that is whole."""
    where = folder()
    if where is None:
        return None
    path = where / f"{kind}-{key}.bin"
    try:
        if path.stat().st_size > MAX_ENTRY_BYTES + _HEAD_BYTES:
            return None
        with path.open("rb") as file:
            head, payload = file.read(_HEAD_BYTES), file.read()
        if head != _MAGIC + _checksum(payload):
            path.unlink()
            return None
        os.utime(path)  # used now: the last to be removed
    except OSError:
        return None
    return payload


def keep(kind: str, key: str, payload: bytes) -> bool:
    """Keep ``payload`` under ``kind`` and ``key``; False where it could not be kept."""
    where = folder()
    if where is None or len(payload) > MAX_ENTRY_BYTES:
        return False
    import tempfile  # slow to import, and most processes only read

    temporary = None
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".writing-", dir=where)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + _checksum(payload))
            file.write(payload)
        path = where / f"{kind}-{key}.bin"
        os.replace(temporary, path)
        _prune(where, spare=path)
    except OSError:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        return False
    return True


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES).digest()


def _prune(where: Path, *, spare: Path) -> None:
    """Remove the entries used longest ago until the folder is within its cap; files of dead writers too."""
    entries, total = [], 0
    now = time.time()
    for path in where.iterdir():
        try:
            status = path.stat()
            if path.name.startswith(".writing-"):
                if now - status.st_mtime > _ABANDONED_AFTER_S:
                    path.unlink()
            elif path.suffix == ".bin":
                entries.append((status.st_mtime_ns, path.name, status.st_size))
                total += status.st_size
        except OSError:  # another process was faster
            continue
    for _, name, size in sorted(entries):
        if total <= MAX_FOLDER_BYTES:
            return
        if name != spare.name:
            (where / name).unlink(missing_ok=True)
            total -= size
