"""Every kernel compiles for GPUs, with the arguments that it is launched with, and keeps its numbers in registers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from kernel_builds import TARGETS, built

FILES = [
    file
    for file in sorted(Path(__file__).parent.glob("test_*.py"))
    if file.name != Path(__file__).name and "def launches(" in file.read_text(encoding="utf-8")
]
SHARED = {80: 163 * 1024, 90: 227 * 1024}
"""Bytes of shared memory that a program may have."""
OLDER = [pytest.param(target, marks=pytest.mark.nightly) for target in TARGETS[:-1]]
FEW = 32
"""Bytes that ptxas may keep in memory, so that one more program fits on a multiprocessor; it does so for Hopper."""
BARRIERS = {
    "chain_messages_kernel": 2,
    "follow_tree_kernel": 1,
    "masked_sample_kernel": 3,
    "settle_labels_kernel": 1,
    "verify_tree_kernel": 2,
}
"""Kernels whose threads read, or write over, what other threads of the same program stored, and the barriers between.

The interpreter knows nothing of threads, so that no other test sees one that is missing.
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings the compiler's tools on Linux only")
@pytest.mark.parametrize("target", [*OLDER, TARGETS[-1]])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem.removeprefix("test_"))
def test_kernels_compile_without_spilling(file: Path, target: int) -> None:
    entries = built(file, target)
    assert entries
    for entry in entries:
        assert entry["spilled_bytes"] <= FEW, entry
        assert entry["shared_bytes"] <= SHARED[entry["target"]], entry
        if entry["kernel"] in BARRIERS:
            assert entry["barriers"] >= BARRIERS[entry["kernel"]], entry
            assert entry["synchronisations"] >= entry["barriers"], entry
            assert entry["incoherent_loads"] == 0, entry
