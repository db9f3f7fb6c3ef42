"""The disk cache by content, for the next process.

A missing, damaged or unwritable entry is a miss and never an error. Entries are raw bytes with a checksum (no
pickle: reading one runs nothing), written to a temporary file and renamed, so that a reader sees a whole entry or none.
The folder is capped in bytes; the least recently used entries go first. It is
``$STRUCTGEN_CACHE``, or ``structgen`` in the user's cache folder; ``STRUCTGEN_CACHE=`` (empty) turns it off.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

__all__ = ["Locked", "fetch", "folder", "keep", "make_private"]

MAX_FOLDER_BYTES = 512 << 20
MAX_ENTRY_BYTES = 128 << 20

_MAGIC = b"structgen cache 1\n"
_CHECKSUM_BYTES = 32
_HEAD_BYTES = len(_MAGIC) + _CHECKSUM_BYTES
_ABANDONED_AFTER_S = 3600


def folder() -> Path | None:
    """The folder of the cache, which may not exist; None if the cache is off or there is no home folder."""
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
    """Return the payload stored under ``kind`` and ``key``; None if there is no intact entry."""
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
        os.utime(path)  # most recently used: removed last
    except OSError:
        return None
    return payload


def keep(kind: str, key: str, payload: bytes) -> bool:
    """Store ``payload`` under ``kind`` and ``key``; False on failure."""
    where = folder()
    if where is None or len(payload) > MAX_ENTRY_BYTES:
        return False
    import tempfile  # slow to import, and most processes only read

    temporary = None
    try:
        make_private(where)
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


def make_private(where: Path) -> None:
    """Make a folder, and the folders above it that are missing, for this user alone.

    ``Path.mkdir`` gives its mode to the last folder only.  One that exists keeps its mode, unless it is the default
    folder, which other versions made readable by others.

    Raises:
        OSError: it cannot be made.
    """
    missing = [each for each in (where, *where.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if not missing and not os.environ.get("STRUCTGEN_CACHE") and where == folder() and where.stat().st_mode & 0o077:
        where.chmod(0o700)


def _checksum(payload: bytes) -> bytes:
    return hashlib.blake2b(payload, digest_size=_CHECKSUM_BYTES).digest()


def _prune(where: Path, *, spare: Path) -> None:
    """Remove abandoned files, and the least recently used entries until the folder is within its cap."""
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


class Locked:
    """Base class of objects that threads share under ``_lock``; a copy or a pickle is a consistent snapshot."""

    _lock: threading.Lock

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return copy.deepcopy({name: value for name, value in self.__dict__.items() if name != "_lock"})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()
