"""Masks are applied bit for bit, for all widths, strides and tail bits."""

from __future__ import annotations

import pytest
import torch
from kernel_mask_cases import WIDTHS, bitmask_of, mask_case
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.masks.apply_mask import apply_mask
from structgen_kernels.masks.mask_rows import MaskRows, MaskTable

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def logits_of(rows: int, columns: int, dtype: torch.dtype, seed: int, *, apart: int = 0) -> torch.Tensor:
    """Make random logits with some infinities; each row is followed by ``apart`` columns of padding."""
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(rows, columns + apart, generator=generator)
    whole[torch.rand(whole.shape, generator=generator) < 0.01] = -torch.inf
    return whole.to(dtype)[:, :columns]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", WIDTHS)
@pytest.mark.parametrize("is_aligned", [True, False])
def test_what_is_allowed_stays_and_all_else_is_minus_infinity(
    size: int, dtype: torch.dtype, *, is_aligned: bool
) -> None:
    rows = 9 if size < 10_000 else 3
    case = mask_case(rows, size, seed=size)
    logits = logits_of(rows, size + 5, dtype, seed=1, apart=-(size + 5) % 8 + (0 if is_aligned else 1))
    expected = logits.clone()
    expected[:, :size][~case.allowed] = -torch.inf
    expected[:, size:] = -torch.inf

    apply_mask(logits, case.masks)

    assert torch.equal(logits, expected)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("codes", [1, 3, 8])
def test_rows_are_united_and_subtracted(codes: int) -> None:
    case = mask_case(40, 700, seed=codes, codes=codes)
    logits = torch.zeros(40, 700)

    apply_mask(logits, case.masks)

    assert torch.equal(logits == 0, case.allowed)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("columns", range(33, 49))
def test_logits_that_are_not_written_keep_their_bits(columns: int) -> None:
    whole = torch.arange(5 * 48, dtype=torch.int16).reshape(5, 48) + 0x7F81  # NaN of many kinds
    before = whole.clone()
    allowed = torch.rand(3, 33, generator=torch.Generator().manual_seed(columns)) < 0.5

    apply_mask(whole.view(torch.bfloat16)[1:4, :columns], MaskRows.of_bitmask(bitmask_of(allowed), 33))

    is_written = torch.zeros(5, 48, dtype=torch.bool)
    is_written[1:4, :columns] = torch.nn.functional.pad(~allowed, (0, columns - 33), value=True)
    assert torch.equal(whole, before.masked_fill(is_written, -128))  # -128 has the bits of minus infinity


@pytest.mark.usefixtures("backend")
def test_rows_beside_the_logits_stay_as_they_are() -> None:
    whole = torch.ones(6, 100)

    apply_mask(whole[1:5, 20:60], MaskRows.of_bitmask(torch.zeros(4, 2, dtype=torch.int32), 40))

    expected = torch.ones(6, 100)
    expected[1:5, 20:60] = -torch.inf
    assert torch.equal(whole, expected)


@pytest.mark.usefixtures("backend")
def test_no_rows_and_everything_allowed() -> None:
    none = torch.zeros(0, 10)
    apply_mask(none, MaskRows.everything(0, 10, none.device))
    free = torch.zeros(2, 40)
    apply_mask(free, MaskRows.everything(2, 33, free.device))
    assert (free == 0).sum(1).tolist() == [33, 33]


def test_the_reference_expands_what_a_bitmask_says() -> None:
    allowed = torch.rand(5, 77) < 0.5
    assert torch.equal(MaskRows.of_bitmask(bitmask_of(allowed), 77).allowed(), allowed)


@pytest.mark.parametrize(
    ("logits", "argument"),
    [
        (torch.zeros(2, 40, dtype=torch.float64), "logits"),
        (torch.zeros(2, 32), "logits"),
        (torch.zeros(40), "logits"),
        (torch.zeros(40, 2).T, "logits"),
        (torch.zeros(3, 40), "masks"),
        (torch.zeros(2, 40, device="meta"), "masks"),
    ],
    ids=["dtype", "width", "dims", "strides", "rows", "device"],
)
def test_wrong_logits_are_refused_before_a_launch(logits: torch.Tensor, argument: str) -> None:
    masks = MaskRows.everything(2, 33, torch.device("cpu"))
    with pytest.raises(KernelArgumentError) as caught:
        apply_mask(logits, masks)
    assert caught.value.argument == argument


def test_wrong_tables_are_refused() -> None:
    sparse = MaskRows.everything(1, 8, torch.device("cpu")).table.sparse
    for dense, held in ((torch.zeros(1, 1), sparse), (torch.zeros(1, 1, dtype=torch.int32), sparse[:, :9])):
        with pytest.raises(KernelArgumentError):
            MaskTable(8, dense, held)
    with pytest.raises(KernelArgumentError):
        MaskTable(64, torch.zeros(1, 1, dtype=torch.int32), sparse)
    table = MaskTable(8, torch.zeros(1, 1, dtype=torch.int32), sparse)
    with pytest.raises(KernelArgumentError):
        MaskRows(table, torch.zeros(1, 9, dtype=torch.int32))
    with pytest.raises(KernelArgumentError):
        MaskRows(table, torch.zeros(1, 1, dtype=torch.int64))


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    case = mask_case(2, 700, seed=0)
    for dtype in DTYPES:
        for columns in (701, 704):  # rows are aligned to 16 bytes if they have 704
            apply_mask(torch.zeros(2, columns, dtype=dtype), case.masks)
