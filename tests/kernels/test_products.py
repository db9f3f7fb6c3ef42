"""Products of matrices of logarithms, and their tree, on each backend."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kernel_chain_cases import a_chain_case
from structgen_kernels.canvases.chain_tree import ChainTree, log_matmul, max_matmul, transition_matrices
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError

DTYPES = (torch.float32, torch.float64)
EPS = {torch.float32: 5e-7, torch.float64: 1e-14}


def matrices(
    shape: tuple[int, int, int], dtype: torch.dtype, span: float, seed: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make two batches of two trees of two nodes; the right one is transposed."""
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(seed)
    left = span * torch.randn((2, 2, rows, inner), generator=generator, dtype=dtype)
    right = span * torch.randn((2, 2, columns, inner), generator=generator, dtype=dtype).transpose(-1, -2)
    left[torch.rand(left.shape, generator=generator) < 0.3] = -torch.inf
    left[1, 0, 0] = -torch.inf
    right[..., columns // 2] = -torch.inf
    return left, right


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("span", [1.0, 1000.0])
@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 18, 3), (33, 2, 2), (2, 0, 3)], ids=str)
def test_products_equal_sums_of_exponentials(shape: tuple[int, int, int], span: float, dtype: torch.dtype) -> None:
    """One tile and several, no terms and more than a block, with a range of numbers beyond any precision."""
    left, right = matrices(shape, dtype, span)
    made = log_matmul(left, right)
    through = left.double().unsqueeze(-1) + right.double().unsqueeze(-3)
    wanted = torch.logsumexp(through, -2) if shape[1] else torch.full_like(made, -torch.inf).double()
    assert torch.equal(made == -torch.inf, wanted == -torch.inf)
    largest = float(wanted[wanted > -torch.inf].abs().max()) if shape[1] > 1 else 1.0
    torch.testing.assert_close(made.double(), wanted, rtol=EPS[dtype], atol=EPS[dtype] * max(1.0, largest))
    best = (left.unsqueeze(-1) + right.unsqueeze(-3)).amax(-2) if shape[1] else torch.full_like(made, -torch.inf)
    assert torch.equal(max_matmul(left, right), best)


@pytest.mark.usefixtures("backend")
def test_rows_and_columns_whose_largest_do_not_meet() -> None:
    """Some blocks underflow as scaled exponentials, wholly or in part, and others do not."""
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(shape, generator=generator) for shape in ((4, 40), (40, 4)))
    left[0, 16:32], right[16:32, 0] = -300.0, -300.0
    left[0, 16], right[17, 0] = 300.0, 290.0  # 300 meets -300, and 290 meets -300
    left[1, :16], right[:16, 1] = -torch.inf, -200.0
    left[2, ::2], right[1::2, 2] = -torch.inf, -torch.inf  # no terms meet
    wanted = torch.logsumexp(left.double().unsqueeze(-1) + right.double().unsqueeze(-3), -2)
    assert wanted[2, 2] == -torch.inf
    torch.testing.assert_close(log_matmul(left, right).double(), wanted, rtol=5e-7, atol=1e-6)


@pytest.mark.usefixtures("backend")
def test_results_are_written_where_they_are_wanted() -> None:
    left, right = matrices((3, 5, 4), torch.float32, 1.0)
    out = torch.full((2, 2, 3, 4), torch.nan)
    assert log_matmul(left, right, out=out) is out
    assert torch.equal(out, log_matmul(left, right))
    assert max_matmul(left, right, out=out) is out
    assert torch.equal(out[0, 1], max_matmul(left[0, 1], right[0, 1]))  # alone, without a batch
    five = torch.stack([left, left]), torch.stack([right, right])
    assert torch.equal(max_matmul(*five)[1], out)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("slots", [0, 1, 5])
def test_trees_equal_chains(slots: int, is_max: bool) -> None:
    """Totals and marginals of states for several chains; the best paths have the weight of the best runs."""
    cases = (a_chain_case(seed, slots=slots, states=4, edges=14) for seed in range(40))
    case = next(one for one in cases if all(np.isfinite(chain.total) for chain in one.chains(is_max=True)))
    chains, edges = case.chains(is_max=is_max), case.edges
    columns = edges.source.long(), edges.target.long(), edges.label.long()
    matrices_ = transition_matrices(case.weights, *columns, edges.states, is_max=is_max)
    tree = ChainTree(matrices_, edges.initial.float(), edges.final.float(), is_max=is_max)
    assert tree.total.tolist() == pytest.approx([chain.total for chain in chains], abs=1e-5)
    path = tree.best() if is_max else tree.draw(torch.Generator().manual_seed(0))
    assert path[:, 0].tolist() == [0, 0, 0]
    if not slots:
        return
    each = matrices_.gather(2, path[:, :-1, None, None].expand(-1, -1, 1, edges.states)).squeeze(2)
    weights = each.gather(2, path[:, 1:, None]).sum((1, 2))
    assert bool((weights > -torch.inf).all())
    if is_max:
        torch.testing.assert_close(weights, tree.total, rtol=0, atol=1e-5)
        return
    pairs = tree.pair_marginals().exp()
    for number, chain in enumerate(chains):
        by_state = np.exp(chain.forward() + chain.backward - chain.total)
        assert pairs[number].sum(-1).numpy() == pytest.approx(by_state[:-1], abs=1e-5)


@pytest.mark.parametrize("operation", [log_matmul, max_matmul])
def test_matrices_that_do_not_fit_are_refused(operation: object) -> None:
    assert callable(operation)
    one = torch.zeros(2, 3, 4)
    for left, right, argument in (
        (one.half(), one.half(), "left"),
        (one[0, 0], one, "left"),
        (one, one, "right"),
        (one, one.double().transpose(1, 2), "right"),
        (one, one[:1].transpose(1, 2), "right"),
        (one, one.transpose(1, 2).to("meta"), "right"),
    ):
        with pytest.raises(KernelArgumentError) as caught:
            operation(left, right)
        assert caught.value.argument == argument
    with pytest.raises(KernelArgumentError):
        operation(one, one.transpose(1, 2), out=torch.zeros(2, 3, 4))


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    with use_backend("triton"):
        for dtype in DTYPES:
            left, right = matrices((150, 150, 150), dtype, 1.0)
            log_matmul(left, right)
            max_matmul(left, right)
