"""Model folders in the cache: whole or absent, made by one process at a time, with clear errors of the disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from structgen.errors import ModelError
from structgen.models import store
from structgen.models.protocol import silent


def build_two_files(folder: Path) -> str:
    """Fill a folder as a conversion does."""
    (folder / "small.txt").write_text("small")
    (folder / "large.bin").write_bytes(b"x" * 1000)
    return "a test"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An installed folder."""
    target = tmp_path / "models" / "m"
    store.install(target, build_two_files, needed_bytes=1000, progress=silent)
    return target


def test_an_installed_folder_is_whole(folder: Path) -> None:
    """The manifest lists the files and their sources, and nothing else remains."""
    assert store.find_fault(folder) is None
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["source"] == "a test"
    assert manifest["files"]["small.txt"] == {"bytes": 5, "sha256": hashlib.sha256(b"small").hexdigest()}
    assert sorted(path.name for path in folder.parent.iterdir() if not path.name.endswith(".lock")) == ["m"]


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (lambda folder: (folder / "large.bin").write_bytes(b"x" * 999), "large.bin has 999 bytes, not 1000"),
        (lambda folder: (folder / "small.txt").write_text("SMALL"), "small.txt has another checksum"),
        (lambda folder: (folder / "small.txt").unlink(), "small.txt is missing"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "manifest.json cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text('{"format": 99}'), "has format 99, not 1"),
        (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing"),
    ],
)
def test_damage_is_found_and_repaired(folder: Path, damage: object, fault: str) -> None:
    """Each kind of damage is named, and installing again repairs the folder."""
    damage(folder)  # type: ignore[operator]
    assert fault in (store.find_fault(folder) or "")
    store.install(folder, build_two_files, needed_bytes=1000, progress=silent)
    assert store.find_fault(folder) is None


def test_a_whole_folder_is_not_made_again(folder: Path) -> None:
    """The second installer finds the work done."""

    def fail(new: Path) -> str:
        raise AssertionError(new)

    store.install(folder, fail, needed_bytes=1000, progress=silent)


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    """Neither a half-made folder nor its space remains."""

    def break_off(new: Path) -> str:
        (new / "half.bin").write_bytes(b"x")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.install(tmp_path / "m", break_off, needed_bytes=1, progress=silent)
    assert [path.name for path in tmp_path.iterdir()] == [".m.lock"]


def test_leavings_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    """Half a gigabyte must not remain forever."""
    abandoned = tmp_path / ".making-m-abc"
    abandoned.mkdir()
    (abandoned / "half.bin").write_bytes(b"x")
    store.install(tmp_path / "m", build_two_files, needed_bytes=1, progress=silent)
    assert not abandoned.exists()


def test_too_little_space_is_said_before_any_work(tmp_path: Path) -> None:
    """The message has both numbers and what to do."""
    with pytest.raises(ModelError, match="the disk is full") as caught:
        store.install(tmp_path / "m", build_two_files, needed_bytes=1 << 62, progress=silent)
    assert f"{(1 << 62) >> 20} MiB are needed" in caught.value.evidence
    assert "STRUCTGEN_CACHE" in caught.value.remedy


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EDQUOT, "the disk is full"),
        (errno.EROFS, "the model cannot be stored there"),
        (errno.EACCES, "the model cannot be stored there"),
    ],
)
def test_errors_of_writing_are_explained(tmp_path: Path, number: int, problem: str) -> None:
    """The system's error while a file is written becomes an error that says what to do."""

    def write(new: Path) -> str:
        raise OSError(number, os.strerror(number), str(new))

    with pytest.raises(ModelError, match=problem) as caught:
        store.install(tmp_path / "m", write, needed_bytes=1, progress=silent)
    assert os.strerror(number) in caught.value.evidence
    assert "STRUCTGEN_CACHE" in caught.value.remedy


def test_a_cache_that_is_no_folder_is_explained(tmp_path: Path) -> None:
    """A file in the place of the cache is an error of the user's settings, not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="cannot be stored there"):
        store.install(tmp_path / "file" / "m", build_two_files, needed_bytes=1, progress=silent)


INSTALL_SLOWLY = """
import sys, time
from pathlib import Path
from structgen.models.protocol import silent
from structgen.models.store import install

target, log = map(Path, sys.argv[1:])

def build(new):
    with log.open("a") as file:
        file.write("built\\n")
    time.sleep(0.5)
    (new / "small.txt").write_text("small")
    return "a test"

install(target, build, needed_bytes=1, progress=silent)
"""


@pytest.mark.exhaustive
def test_processes_build_once(tmp_path: Path) -> None:
    """The first process builds; the others wait for it and use the result."""
    target, log = tmp_path / "models" / "m", tmp_path / "log"
    command = [sys.executable, "-c", INSTALL_SLOWLY, str(target), str(log)]
    processes = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    assert log.read_text() == "built\n"
    assert store.find_fault(target) is None


def test_waiting_is_reported(folder: Path) -> None:
    """A process that waits for another one reports it."""
    from filelock import FileLock

    stages: list[str] = []
    lock = FileLock(folder.parent / ".m.lock")
    lock.acquire()

    def report(stage: str, done: int, total: int | None, /) -> None:
        stages.append(stage)
        lock.release()

    store.install(folder, build_two_files, needed_bytes=1, progress=report)
    assert stages == ["wait for another process that prepares the model"]


def test_the_cache_may_be_chosen_or_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """STRUCTGEN_CACHE names the folder; if it is empty, no model is cached."""
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    assert store.model_folder("m") == tmp_path / "models" / "m"
    monkeypatch.setenv("STRUCTGEN_CACHE", "")
    with pytest.raises(ModelError, match="no cache folder"):
        store.model_folder("m")
