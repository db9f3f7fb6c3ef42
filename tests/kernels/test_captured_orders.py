"""With buffers given, orders and verifications launch kernels and do nothing else, as a captured graph needs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from kernel_masks import mask_case
from structgen_kernels.dispatch import use_backend
from structgen_kernels.draft_forest import DraftForest
from structgen_kernels.draft_paths import DraftPaths
from structgen_kernels.gumbel_order import gumbel_order
from structgen_kernels.philox import Noise
from structgen_kernels.token_order import Order, OrderWorkspace
from structgen_kernels.tree_following import follow_tree
from structgen_kernels.tree_verification import DraftLaws, verify_tree
from structgen_kernels.verification_workspace import VerificationWorkspace
from torch.utils._python_dispatch import TorchDispatchMode


class Nothing(TorchDispatchMode):
    """Fails where torch is asked to do something on a device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} is called in a step")


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """Names and grids of the kernels that would be launched."""
    from structgen_kernels.jit import gumbel_order, tree_following, tree_verification

    found: list[tuple[str, tuple[int, ...]]] = []

    class Recorder:
        def __init__(self, name: str) -> None:
            self._name = name

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *args, **kwargs: found.append((self._name, grid))

    for module in (gumbel_order, tree_following, tree_verification):
        for name in vars(module):
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Recorder(name))
    return found


def test_steps_launch_kernels_and_do_nothing_else(launched: list[tuple[str, tuple[int, ...]]]) -> None:
    forest = DraftForest.of([([-1, 0], [5, 6]), ([-1], [1])])
    paths = DraftPaths.buffers(forest)
    case = mask_case(5, 5000, seed=0)
    logits, noise = torch.zeros(5, 5000), Noise.of(0, 5)
    orders, order = OrderWorkspace(5, 5000, "cpu"), Order.buffers(5, 64, "cpu")
    laws, few = DraftLaws(torch.zeros(1, 5000), torch.zeros(5, dtype=torch.int32)), Noise.of(0, 2)
    workspace = VerificationWorkspace(3, 2, 5000, "cpu")
    chosen = torch.zeros(5, dtype=torch.int32)

    with use_backend("triton"), Nothing():
        gumbel_order(logits, noise, masks=case.masks, workspace=orders, out=order)
        gumbel_order(logits, noise, masks=case.masks, after=order, workspace=orders, out=order)
        follow_tree(forest, chosen, status=chosen, out=paths)
        verify_tree(logits, forest, laws, few, masks=case.masks, workspace=workspace, out=paths)

    assert launched == [
        ("first_of_chunks_kernel", (5, 3)),
        ("take_in_order_kernel", (5,)),
        ("first_of_chunks_kernel", (5, 3)),
        ("take_in_order_kernel", (5,)),
        ("follow_tree_kernel", (2,)),
        ("sum_positions_kernel", (5, 5)),
        ("verify_tree_kernel", (2,)),
    ]
