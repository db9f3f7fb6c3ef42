"""With buffers, orders and verifications only launch kernels, as capture in a CUDA graph requires."""

from __future__ import annotations

import torch
from graph_capture import recorded_step
from kernel_mask_cases import mask_case
from structgen_kernels.choices.gumbel_order import gumbel_order
from structgen_kernels.choices.token_order import Order, OrderWorkspace
from structgen_kernels.philox import Noise
from structgen_kernels.trees.draft_forest import DraftForest
from structgen_kernels.trees.draft_paths import DraftPaths
from structgen_kernels.trees.tree_following import follow_tree
from structgen_kernels.trees.tree_verification import DraftDistributions, verify_tree
from structgen_kernels.trees.verification_workspace import VerificationWorkspace


def test_steps_launch_kernels_and_do_nothing_else() -> None:
    forest = DraftForest.of([([-1, 0], [5, 6]), ([-1], [1])])
    paths = DraftPaths.buffers(forest)
    case = mask_case(5, 5000, seed=0)
    logits, noise = torch.zeros(5, 5000), Noise.of(0, 5)
    orders, order = OrderWorkspace(5, 5000, "cpu"), Order.buffers(5, 64, "cpu")
    distributions, few = DraftDistributions(torch.zeros(1, 5000), torch.zeros(5, dtype=torch.int32)), Noise.of(0, 2)
    workspace = VerificationWorkspace(3, 2, 5000, "cpu")
    chosen = torch.zeros(5, dtype=torch.int32)

    with recorded_step() as launches:
        gumbel_order(logits, noise, masks=case.masks, workspace=orders, out=order)
        gumbel_order(logits, noise, masks=case.masks, after=order, workspace=orders, out=order)
        follow_tree(forest, chosen, status=chosen, out=paths)
        verify_tree(logits, forest, distributions, few, masks=case.masks, workspace=workspace, out=paths)

    assert [(launch.kernel, launch.grid) for launch in launches] == [
        ("first_of_chunks_kernel", (5, 3)),
        ("take_in_order_kernel", (5,)),
        ("first_of_chunks_kernel", (5, 3)),
        ("take_in_order_kernel", (5,)),
        ("follow_tree_kernel", (2,)),
        ("sum_positions_kernel", (5, 5)),
        ("verify_tree_kernel", (2,)),
    ]
