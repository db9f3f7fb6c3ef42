"""With a workspace, a step over canvases only launches kernels, as capture in a CUDA graph requires."""

from __future__ import annotations

import torch
from canvas_enumeration import a_case
from graph_capture import recorded_step
from kernel_chain_cases import a_chain_case, canvas_tables
from structgen_kernels.canvases.chain_messages import chain_backward, chain_forward, chain_label_masses
from structgen_kernels.canvases.chain_tree import log_matmul, max_matmul
from structgen_kernels.canvases.dingo import DingoWorkspace, dingo
from structgen_kernels.philox import Noise


def test_canvases_are_filled_by_the_same_launches_whatever_they_hold() -> None:
    language = a_case(1, is_deterministic=True, tail="free").language
    tables, batch, slots = canvas_tables(language), 2, 3
    canvas = torch.full((batch, slots), -1, dtype=torch.int32)
    logits, noise = torch.zeros(batch * slots, tables.layout.size), Noise.of(0, batch * slots)
    work = DingoWorkspace(tables, batch, slots)

    for given, name in ((None, "class_best_kernel"), (noise, "class_draw_kernel")):
        with recorded_step() as launches:
            dingo(logits, canvas, tables, noise=given, workspace=work)
        canvas[0, 1], logits[1], logits[4, 0] = 0, -torch.inf, torch.nan
        with recorded_step() as again:
            dingo(logits, canvas, tables, noise=given, workspace=work)
        assert launches == again
        chain = ["settle_labels_kernel", "chain_messages_kernel", "chain_runs_kernel", "label_classes_kernel"]
        assert [launch.kernel for launch in launches][-6:] == [*chain, name, "fill_canvas_kernel"]
        grids = {launch.kernel: launch.grid for launch in launches}
        assert grids["chain_messages_kernel"] == grids["chain_runs_kernel"] == (batch,)


def test_marginals_are_found_by_launches_alone() -> None:
    case = a_chain_case(0)
    messages = [torch.zeros(3, 5, 9, dtype=torch.float64) for _ in range(2)]
    masses = torch.zeros(3, 4, 5, dtype=torch.float64)

    with recorded_step() as launches:
        chain_backward(case.weights, case.edges, is_max=False, out=messages[0])
        chain_forward(case.weights, case.edges, is_max=False, out=messages[1])
        chain_label_masses(messages[1], messages[0], case.edges, is_max=False, out=masses)

    names = ["chain_messages_kernel", "chain_messages_kernel", "chain_label_masses_kernel"]
    assert [launch.kernel for launch in launches] == names


def test_products_wait_for_nothing() -> None:
    """Also where a scaled product would underflow, and with output buffers."""
    left = torch.tensor([[0.0, -1000.0], [-torch.inf, -5.0]]).expand(2, 3, 2, 2)
    out = torch.zeros(2, 3, 2, 2)

    with recorded_step() as launches:
        log_matmul(left, left.transpose(-1, -2), out=out)
        max_matmul(left, left, out=out)

    assert [launch.kernel for launch in launches] == ["log_matmul_kernel", "max_matmul_kernel"]
    assert {launch.grid for launch in launches} == {(6, 1, 1)}
