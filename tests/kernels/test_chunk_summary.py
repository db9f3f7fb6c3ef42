"""The summaries of chunks and splits equal float64, for all widths, strides and tail bits."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_mask_cases import mask_case
from structgen_kernels.choices.chunk_summary import chunk_summary
from structgen_kernels.choices.step_workspace import SPLIT, Workspace
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.masks.mask_rows import MaskRows

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def log_sum(top: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """Return the logs of sums that are given as the largest exponent and a sum relative to it."""
    return top.to(torch.float64) + total.to(torch.float64).log()


def expected_log_sum(values: torch.Tensor) -> float:
    """Return the same, computed with Python floats."""
    finite = [value for value in values.to(torch.float64).tolist() if value > -math.inf]
    top = max(finite, default=-math.inf)
    return top + math.log(math.fsum(math.exp(value - top) for value in finite)) if finite else -math.inf


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("size", "dtype"),
    [*((size, dtype) for size in (1, 31, 32, 33) for dtype in DTYPES), (4097, torch.float32)],
    ids=str,
)
def test_sums_are_those_of_float64(size: int, dtype: torch.dtype) -> None:
    rows = 3
    case = mask_case(rows, size, seed=size)
    generator = torch.Generator().manual_seed(size)
    whole = torch.randn(rows, size + 7, generator=generator) * 20
    whole[torch.rand(whole.shape, generator=generator) < 0.05] = -torch.inf
    whole[:, size:] = torch.nan  # columns that do not count
    logits = whole.to(dtype)[:, : size + 2]
    temperature = torch.tensor([0.7, 1.0, 0.0], dtype=torch.float64)

    workspace = chunk_summary(logits, case.masks, temperature, workspace=Workspace(rows + 1, size + 300, "cpu"))

    values = logits[:, :size].to(torch.float64)
    kept, rest = values.masked_fill(~case.allowed, -torch.inf), values.masked_fill(case.allowed, -torch.inf)
    for row in range(rows):
        scale = float(temperature[row]) or 1.0
        for chunk, part in enumerate(kept[row].split(128)):
            found = log_sum(workspace.maxima[row, chunk] / scale, workspace.sums[row, chunk])
            assert float(workspace.maxima[row, chunk]) == float(part.max())
            assert float(found) == pytest.approx(expected_log_sum(part / scale), abs=3e-6, rel=1e-6)
        splits = -(-size // SPLIT)
        for field, side in ((0, kept), (2, rest)):
            found = log_sum(workspace.splits[row, field, :splits], workspace.splits[row, field + 1, :splits])
            expected = [expected_log_sum(part) for part in side[row].split(SPLIT)]
            assert found.tolist() == pytest.approx(expected, abs=3e-6, rel=1e-6)
        words = [bool(word.any()) for word in case.allowed[row].split(32)]
        assert int(workspace.splits[row, 4, :splits].sum()) == sum(words)


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN):RuntimeWarning")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_distribution_makes_a_sum_nan_allowed_or_not(value: float) -> None:
    logits = torch.zeros(3, 300)
    logits[0, 5] = logits[1, 200] = logits[2, 299] = value
    allowed = torch.zeros(3, 10, dtype=torch.int32)
    allowed[1:] = -1

    workspace = chunk_summary(logits, MaskRows.of_bitmask(allowed, 299), torch.ones(3))

    assert (workspace.splits[:, 1] + workspace.splits[:, 3]).isnan()[:, 0].tolist() == [True, True, False]


def test_the_kernel_sums_each_row_as_it_does_alone() -> None:
    case = mask_case(3, 2500, seed=3)
    logits, temperature = torch.randn(3, 2500, generator=torch.Generator().manual_seed(1)), torch.tensor([1, 0.5, 2])
    with use_backend("triton"):
        together = chunk_summary(logits, case.masks, temperature)
        masks = MaskRows(case.masks.table, case.masks.codes[1:2].clone())
        alone = chunk_summary(logits[1:2], masks, temperature[1:2])
    for name in ("maxima", "sums", "splits"):
        assert torch.equal(getattr(together, name)[1:2], getattr(alone, name))


def test_wrong_arguments_are_refused_before_a_launch() -> None:
    masks = MaskRows.everything(2, 33, torch.device("cpu"))
    logits = torch.zeros(2, 40)
    wrong = [
        ({"logits": torch.zeros(2, 32)}, "logits"),
        ({"logits": torch.zeros(3, 40)}, "masks"),
        ({"temperature": torch.ones(3)}, "temperature"),
        ({"temperature": torch.ones(2, dtype=torch.int32)}, "temperature"),
        ({"workspace": Workspace(1, 40, "cpu")}, "workspace"),
        ({"workspace": Workspace(2, 32, "cpu")}, "workspace"),
        ({"workspace": Workspace(2, 40, "meta")}, "workspace"),
    ]
    for change, argument in wrong:
        with pytest.raises(KernelArgumentError) as caught:
            chunk_summary(**({"logits": logits, "masks": masks} | change))
        assert caught.value.argument == argument


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    case = mask_case(2, 5000, seed=0)
    for dtype in DTYPES:
        chunk_summary(torch.zeros(2, 5000, dtype=dtype), case.masks, torch.ones(2))
    chunk_summary(torch.zeros(2, 8192, dtype=torch.bfloat16), mask_case(2, 8192, seed=0).masks, torch.ones(2))
