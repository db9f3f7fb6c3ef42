"""The most probable allowed token, its log-probability, and the probability of the allowed tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from graph_capture import recorded_step
from kernel_mask_cases import bitmask_of, mask_case
from structgen_kernels.choices.choice import CHOSEN, EMPTY, MASSLESS, NON_FINITE, Choice
from structgen_kernels.choices.masked_argmax import masked_argmax
from structgen_kernels.choices.step_workspace import Workspace
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import EmptyRowError, KernelArgumentError, NonFiniteLogitsError
from structgen_kernels.masks.mask_rows import MaskRows

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def assert_is(choice: Choice, logits: torch.Tensor, allowed: torch.Tensor) -> None:
    """Compare with numpy in float64: tokens exactly, logs to 1e-5."""
    for row, mask in enumerate(allowed.numpy()):
        values = logits[row, : len(mask)].to(torch.float64).numpy()
        ids = np.flatnonzero(mask)
        with np.errstate(divide="ignore"):
            mass = np.logaddexp.reduce(values)
            kept = np.logaddexp.reduce(values[ids]) if len(ids) else -np.inf
        found = [float(field[row]) for field in (choice.log_p, choice.log_z, choice.log_mass)]
        if kept == -np.inf:
            assert (int(choice.status[row]), int(choice.tokens[row])) == (MASSLESS if len(ids) else EMPTY, -1)
            assert found == pytest.approx([-math.inf, -math.inf, mass], abs=1e-5)
        else:
            token = ids[values[ids].argmax()]
            assert (int(choice.status[row]), int(choice.tokens[row])) == (CHOSEN, token)
            assert found == pytest.approx([values[token] - kept, kept - mass, mass], abs=1e-5, rel=1e-6)
            assert found[1] <= 0


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(
    ("size", "dtype"),
    [*((size, dtype) for size in (1, 31, 33) for dtype in DTYPES), (32, torch.float32), (4097, torch.float16)],
    ids=str,
)
def test_the_best_allowed_token_of_each_row(size: int, dtype: torch.dtype) -> None:
    case = mask_case(5, size, seed=size + 1)
    generator = torch.Generator().manual_seed(size)
    whole = (torch.randn(5, size + 9, generator=generator) * 9).to(dtype)
    whole[torch.rand(whole.shape, generator=generator) < 0.05] = -torch.inf
    whole[0, :size] = -torch.inf
    whole[1] = whole[1].round() * 8  # ties, and exponentials that vanish beside the largest
    whole[:, size + 1 :] = torch.nan
    logits = whole[:, : size + 4]
    before = logits.clone()

    choice = masked_argmax(logits, case.masks, workspace=Workspace(7, size + 1000, "cpu"))

    assert_is(choice, logits, case.allowed)
    assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))


def test_a_large_vocabulary_by_the_kernel() -> None:
    case = mask_case(1, 131_073, seed=5, possible=True)
    logits = torch.randn(1, 131_080, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    with use_backend("triton"):
        choice = masked_argmax(logits, case.masks)
    assert_is(choice, logits, case.allowed)


@pytest.mark.usefixtures("backend")
def test_of_equal_logits_the_lowest_id_wins() -> None:
    logits = torch.zeros(3, 400)
    logits[1, 130:] = -0.0
    logits[2, [300, 140, 399]] = 2.0
    allowed = torch.ones(3, 400, dtype=torch.bool)
    allowed[1, :129] = False
    allowed[2, :141] = False
    choice = masked_argmax(logits, MaskRows.of_bitmask(bitmask_of(allowed), 400))
    assert choice.tokens.tolist() == [0, 129, 300]
    assert choice.log_z[0] == 0  # everything is allowed: exactly


@pytest.mark.usefixtures("backend")
def test_a_mask_that_keeps_almost_nothing_or_almost_all() -> None:
    logits = torch.zeros(2, 300)
    logits[0, 17] = -300.0
    logits[1, 17] = -15.0
    allowed = torch.zeros(2, 300, dtype=torch.bool)
    allowed[0, 17] = True
    allowed[1] = ~allowed[0]
    choice = masked_argmax(logits, MaskRows.of_bitmask(bitmask_of(allowed), 300))
    assert choice.log_z.tolist() == pytest.approx([-300 - math.log(299), -math.exp(-15) / 299], rel=1e-5)
    assert choice.log_p.tolist() == pytest.approx([0, -math.log(299)], rel=1e-6)


@pytest.mark.usefixtures("backend")
@pytest.mark.filterwarnings("ignore:(invalid value|All-NaN):RuntimeWarning")
def test_rows_that_are_no_distribution_and_rows_without_a_token_are_named() -> None:
    logits = torch.zeros(5, 70)
    logits[1, 3] = math.nan
    logits[3, 69] = math.inf
    allowed = torch.ones(5, 70, dtype=torch.bool)
    allowed[[0, 3]] = False
    allowed[4, 1:] = False
    logits[4, 0] = -math.inf
    choice = masked_argmax(logits, MaskRows.of_bitmask(bitmask_of(allowed), 70))

    assert choice.status.tolist() == [EMPTY, NON_FINITE, CHOSEN, NON_FINITE, MASSLESS]
    assert choice.tokens.tolist() == [-1, -1, 0, -1, -1]
    assert choice.log_p.isneginf().tolist() == choice.log_z.isneginf().tolist() == [True, True, False, True, True]
    assert not choice.log_mass.isnan().any()
    with pytest.raises(NonFiniteLogitsError) as broken:
        choice.check(list("abcde"))
    assert broken.value.rows == (1, 3)
    assert "1 ('b'), 3 ('d')" in str(broken.value)
    choice.status[[1, 3]] = CHOSEN
    with pytest.raises(EmptyRowError) as empty:
        choice.check()
    assert empty.value.rows == (0, 4)
    assert "row 0, 4" in str(empty.value)
    choice.status[[0, 4]] = CHOSEN
    choice.check()


def test_the_kernel_finds_in_a_row_what_it_finds_in_it_alone() -> None:
    case = mask_case(3, 2500, seed=3)
    logits = torch.randn(3, 2500, generator=torch.Generator().manual_seed(1))
    with use_backend("triton"):
        together = masked_argmax(logits, case.masks)
        alone = masked_argmax(logits[2:], MaskRows(case.masks.table, case.masks.codes[2:].clone()))
    for one, other in zip(together.arguments(), alone.arguments(), strict=True):
        assert torch.equal(one[2:], other)


def test_a_step_with_a_workspace_launches_two_kernels_and_does_nothing_else() -> None:
    case, workspace = mask_case(3, 5000, seed=0), Workspace(4, 5000, "cpu")
    steps = []
    logits = torch.zeros(3, 5000)
    for value in (0.0, math.nan):
        logits.fill_(value)
        with recorded_step() as step:
            masked_argmax(logits, case.masks, workspace=workspace)
        steps.append(step)
    assert [(launch.kernel, launch.grid) for launch in steps[0]] == [
        ("chunk_summary_kernel", (3, 2)),
        ("masked_argmax_kernel", (3,)),
    ]
    assert steps[0] == steps[1]
    with pytest.raises(AssertionError, match="empty"), recorded_step():
        masked_argmax(logits, case.masks)  # which has to allocate


@pytest.mark.usefixtures("backend")
def test_no_rows() -> None:
    cpu = torch.device("cpu")
    assert masked_argmax(torch.zeros(0, 9), MaskRows.everything(0, 9, cpu)).tokens.shape == (0,)


def test_wrong_arguments_are_refused_before_a_launch() -> None:
    masks = MaskRows.everything(2, 33, torch.device("cpu"))
    for logits in (torch.zeros(2, 32), torch.zeros(2, 40, dtype=torch.float64), torch.zeros(40, 2).T):
        with pytest.raises(KernelArgumentError, match="'masked_argmax': logits"):
            masked_argmax(logits, masks)
    with pytest.raises(KernelArgumentError, match="'masked_argmax': workspace"):
        masked_argmax(torch.zeros(2, 40), masks, workspace=Workspace(2, 32, "cpu"))


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    case = mask_case(2, 5000, seed=0)
    for dtype in DTYPES:
        masked_argmax(torch.zeros(2, 5000, dtype=dtype), case.masks)
