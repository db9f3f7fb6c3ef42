"""Every kernel compiles for GPUs with the arguments of its launches, without spilling registers."""

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
"""The most bytes of shared memory per program."""
OLDER = [pytest.param(target, marks=pytest.mark.nightly) for target in TARGETS[:-1]]
FEW = 32
"""The most bytes that ptxas may spill; for Hopper it spills a few to fit one more program on a multiprocessor."""
BARRIERS = {
    "chain_messages_kernel": 2,
    "follow_tree_kernel": 1,
    "masked_sample_kernel": 3,
    "settle_labels_kernel": 1,
    "verify_tree_kernel": 2,
}
"""Kernels whose threads read or overwrite values that other threads of the program stored, and their barriers.

The interpreter has no threads, so no other test detects a missing barrier.
"""


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings the compiler's tools on Linux only")
@pytest.mark.parametrize("target", [*OLDER, TARGETS[-1]])
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem.removeprefix("test_"), marks=pytest.mark.nightly if at % 8 else ())
        for at, file in enumerate(FILES)
    ],
)
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


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings the compiler's tools on Linux only")
@pytest.mark.parametrize("target", [*OLDER, TARGETS[-1]])
def test_masks_of_aligned_rows_are_applied_sixteen_bytes_at_a_time(target: int) -> None:
    entries = built(Path(__file__).with_name("test_apply_mask.py"), target)
    aligned = [entry for entry in entries if entry["constants"]["ALIGNED"]]
    assert len(aligned) == 3  # one for each dtype
    assert len(entries) > len(aligned)
    for entry in aligned:
        assert entry["loads"]["16"] == entry["stores"]["16"] > 0, entry
        assert sum(entry["stores"].values()) == entry["stores"]["16"] + 1, entry  # the last group of a row
        assert "2" not in entry["loads"], entry


@pytest.mark.skipif(sys.platform != "linux", reason="Triton brings the compiler's tools on Linux only")
@pytest.mark.parametrize("target", [*OLDER, TARGETS[-1]])
def test_the_pass_over_aligned_logits_loads_sixteen_bytes_at_a_time(target: int) -> None:
    entries = built(Path(__file__).with_name("test_chunk_summary.py"), target)
    loads = [entry["loads"] for entry in entries if entry["types"]["logits_ptr"] == "*bf16"]
    assert len(loads) == 2  # rows of 5,000 columns are not aligned
    assert ["2" in each for each in loads] == [True, False]
    assert loads[1]["16"] >= 4  # 32 columns for each thread
