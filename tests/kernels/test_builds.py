"""Every kernel compiles for GPUs, with the arguments that it is launched with, and keeps its numbers in registers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kernel_builds import built

FILES = [
    file
    for file in sorted(Path(__file__).parent.glob("test_*.py"))
    if file.name != Path(__file__).name and "def launches(" in file.read_text(encoding="utf-8")
]
SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have."""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings the compiler's tools on Linux only")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("test_"))
def test_kernels_compile_without_spilling(file: Path) -> None:
    entries = built(file)
    assert entries
    for entry in entries:
        assert entry["spilled_bytes"] == 0, entry
        assert entry["shared_bytes"] <= SHARED[entry["target"]], entry
