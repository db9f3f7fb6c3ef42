"""What the interpreter hides: a GPU's rounding and program order, NaN in maxima, several GPUs, too large grids."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import structgen_kernels
import torch
from kernel_mask_cases import mask_case
from rough_interpreter import maxima_with_nan, rough_interpreter
from structgen_kernels.canvases.chain_edges import ChainEdges
from structgen_kernels.canvases.chain_messages import chain_backward
from structgen_kernels.canvases.class_layout import ClassLayout
from structgen_kernels.canvases.class_scores import class_scores
from structgen_kernels.choices.choice import CHOSEN, NON_FINITE
from structgen_kernels.choices.gumbel_order import gumbel_order
from structgen_kernels.choices.masked_argmax import masked_argmax
from structgen_kernels.choices.masked_sample import Shape, masked_sample
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.launch import launch
from structgen_kernels.masks.apply_mask import apply_mask
from structgen_kernels.philox import Noise
from torch._subclasses import FakeTensorMode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROWS, SIZE = 6, 260


class _Kernel:
    """A fake kernel that records its launches."""

    def __init__(self) -> None:
        self.fn = self.test_kernel
        self.launches: list[tuple[Any, ...]] = []

    def test_kernel(self) -> None:
        """Set the name."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **options: self.launches.append((grid, arguments, options))


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, seen = _Kernel(), []

    @contextmanager
    def device(place: torch.device) -> Iterator[None]:
        seen.append((place, len(kernel.launches)))
        yield
        seen.append((place, len(kernel.launches)))

    monkeypatch.setattr(torch.cuda, "device", device)
    with FakeTensorMode():
        there = torch.zeros(3, device="cuda:1")

    launch(kernel, (2, 1), 5, None, there, BLOCK=32)

    place = torch.device("cuda:1")
    assert seen == [(place, 0), (place, 1)]
    assert kernel.launches == [((2, 1), (5, None, there), {"BLOCK": 32, "enable_fp_fusion": True})]


def test_products_are_not_fused_with_sums_where_a_kernel_says_so() -> None:
    kernel = _Kernel()
    launch(kernel, (1,), torch.zeros(1), enable_fp_fusion=False)
    assert kernel.launches[0][2] == {"enable_fp_fusion": False}


@pytest.mark.parametrize("grid", [(1, 65_536), (1, 1, 65_536), (7, 1, 100_000)])
def test_grids_that_no_gpu_takes_are_refused(grid: tuple[int, ...]) -> None:
    kernel = _Kernel()
    with pytest.raises(KernelArgumentError, match=r"test_kernel.*65,535"):
        launch(kernel, grid, torch.zeros(1))
    assert not kernel.launches


def test_the_first_axis_of_a_grid_may_be_long() -> None:
    kernel = _Kernel()
    launch(kernel, (1 << 20, 65_535), torch.zeros(1))
    assert len(kernel.launches) == 1


def test_nothing_else_launches_kernels() -> None:
    for file in Path(structgen_kernels.__file__).parent.glob("*.py"):
        calls = re.findall(r"\w*kernel\[.*", file.read_text(encoding="utf-8"))
        assert calls == ["kernel[tuple(grid)](*arguments, **options)"] * (2 if file.stem == "launch" else 0), file.name


def _logits(seed: int) -> torch.Tensor:
    return torch.randn(ROWS, SIZE, generator=torch.Generator().manual_seed(seed)) * 4


def test_masks_and_choices_hold_where_arithmetic_is_rough() -> None:
    case, logits = mask_case(ROWS, SIZE, seed=5, possible=True), _logits(1)
    expected = masked_argmax(logits, case.masks)
    masked = logits.clone()
    with rough_interpreter(), use_backend("triton"):
        found = masked_argmax(logits, case.masks)
        apply_mask(masked, case.masks)

    assert torch.equal(masked > -torch.inf, case.allowed)
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.status, expected.status)
    for name in ("log_p", "log_z", "log_mass"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=2e-5)


def test_orders_hold_no_token_twice_where_arithmetic_is_rough() -> None:
    logits, noise = _logits(2)[:2], Noise.of(3, 2)
    with rough_interpreter(), use_backend("triton"):
        first = gumbel_order(logits, noise, count=16)
        rest = gumbel_order(logits, noise, count=16, after=first)
    keys = torch.cat([first.keys, rest.keys], dim=1)
    assert (keys.diff(dim=1) <= 0).all()
    for tokens in torch.cat([first.tokens, rest.tokens], dim=1).tolist():
        assert len(set(tokens)) == 32


def test_classes_and_chains_hold_where_arithmetic_is_rough() -> None:
    layout = ClassLayout.of(torch.randint(0, 9, (SIZE,), generator=torch.Generator().manual_seed(3)).int(), 9)
    edges = ChainEdges.of(3, 9, [False, True, True], [0, 0, 1, 1, 2, 2], [0, 1, 1, 2, 2, 0], [1, 2, 3, 4, 5, 8])
    logits = _logits(4)
    expected = class_scores(logits, layout, scale=1.5, moments=True)
    messages = chain_backward(expected.log_sums[None], edges, is_max=False)
    with rough_interpreter(), use_backend("triton"):
        found = class_scores(logits, layout, scale=1.5, moments=True)
        passed = chain_backward(expected.log_sums[None], edges, is_max=False)

    assert torch.equal(found.maxima, expected.maxima)
    for name in ("log_maxima", "log_sums", "mean_logs", "log_norms"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=2e-5)
    torch.testing.assert_close(passed, messages, rtol=1e-6, atol=1e-5)


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    return masked_argmax(logits, mask_case(ROWS, SIZE, seed=7, possible=True).masks).status


def _sample(logits: torch.Tensor) -> torch.Tensor:
    shape = Shape(torch.full((ROWS,), 0.7), torch.zeros(ROWS).int(), torch.ones(ROWS), torch.zeros(ROWS))
    masks = mask_case(ROWS, SIZE, seed=7, possible=True).masks
    return masked_sample(logits, masks, shape, Noise.of(1, ROWS)).status


def _order(logits: torch.Tensor) -> torch.Tensor:
    return gumbel_order(logits, Noise.of(1, ROWS), count=3).status


def _classes(logits: torch.Tensor) -> torch.Tensor:
    return class_scores(logits, ClassLayout.of((torch.arange(SIZE) % 11).int(), 11)).status


@pytest.mark.filterwarnings("ignore:invalid value")  # infinity minus infinity
@pytest.mark.parametrize("spread", [True, False])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("status_of", [_argmax, _sample, _order, _classes])
def test_nan_is_found_whatever_maxima_make_of_it(
    status_of: Callable[[torch.Tensor], torch.Tensor], value: float, spread: bool
) -> None:
    logits = _logits(6)
    logits[1, 0] = logits[3, SIZE - 1] = value
    logits[4] = value
    logits[5, :200] = -torch.inf

    with maxima_with_nan(spread=spread), use_backend("triton"):
        status = status_of(logits)

    assert (status[[1, 3, 4]] == NON_FINITE).all()
    assert (status[[0, 2]] == CHOSEN).all()
