"""The allocator of a long-running process."""

from __future__ import annotations

import gc
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from structgen import heap
from structgen.cli import main as command_line, serve

SCRIPT = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from structgen.heap import restart_with_malloc
restart_with_malloc()
print(os.getpid(), sys.getallocatedblocks() > 0, *sys.argv[1:])
"""


def test_heaps_are_shared_unless_the_user_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """By mallopt(M_ARENA_MAX, 2) of glibc."""
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(heap, "_of_glibc", lambda name: lambda *values: calls.append((name, *values)))
    monkeypatch.setenv("MALLOC_ARENA_MAX", "4")
    heap.share_heaps()
    assert calls == []
    monkeypatch.delenv("MALLOC_ARENA_MAX")
    heap.share_heaps()
    assert calls == [("mallopt", -8, 2)]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc")
@pytest.mark.parametrize(
    ("options", "chosen", "uses_pymalloc"),
    [((), None, False), ((), "pymalloc", True), (("-E",), None, True), (("-X", "utf8"), None, False)],
)
def test_a_process_starts_anew_on_the_heaps_of_glibc(
    options: tuple[str, ...], chosen: str | None, uses_pymalloc: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its arguments and number, unless it was told otherwise; only Python's own allocator counts its blocks."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYTHONMALLOC", chosen)
    command = [sys.executable, *options, str(script), "--name", "two words"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=60)
    assert said.split(maxsplit=2) == [str(process.pid), str(uses_pymalloc), "--name two words\n"]


def test_only_a_server_with_a_process_of_its_own_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller of ``main`` with arguments stays as it is."""
    calls: list[int] = []
    monkeypatch.setattr(serve, "restart_with_malloc", lambda: calls.append(1))
    unusable = ["serve", "--port", "0", "--trust-remote-code", "--decoder", "autoregressive"]
    assert command_line.main(unusable) == 2
    assert calls == []
    monkeypatch.setattr(sys, "argv", ["structgen", *unusable])
    monkeypatch.setattr(gc, "freeze", lambda: None)
    assert command_line.main() == 2
    assert calls == [1]
