"""The tree of products against the chain of messages, and against enumeration of all paths."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from canvas_enumeration import chi_square, chi_square_bound

from structgen.decode.diffusion.regular import Chain, Edges

torch = pytest.importorskip("torch")
from structgen_kernels.canvases.chain_tree import ChainTree, log_matmul, max_matmul, transition_matrices  # noqa: E402

LABELS = 3
DOUBLE = torch.float64


def random_edges(rng: np.random.Generator, states: int) -> Edges:
    """The automaton is nondeterministic, with parallel edges."""
    count = int(rng.integers(states, 5 * states))
    columns = (rng.integers(0, most, count).astype(np.int32) for most in (states, states, LABELS))
    return Edges(states, LABELS, rng.random(states) < 0.7, *columns)


def random_weights(rng: np.random.Generator, slots: int) -> np.ndarray:
    weights = np.log(rng.integers(1, 10, (slots, LABELS)) / 16.0)
    weights[rng.random((slots, LABELS)) < 0.1] = -np.inf
    return weights


def tree_of(edges: Edges, weights: np.ndarray, *, is_max: bool = False, dtype: torch.dtype = DOUBLE) -> ChainTree:
    columns = (torch.from_numpy(column.astype(np.int64)) for column in (edges.source, edges.target, edges.label))
    batch = torch.from_numpy(weights if weights.ndim == 3 else weights[None]).to(dtype)
    initial = torch.full((edges.states,), -math.inf, dtype=dtype)
    initial[0] = 0.0
    final = torch.from_numpy(np.where(edges.final, 0.0, -np.inf)).to(dtype)
    matrices = transition_matrices(batch, *columns, edges.states, is_max=is_max)
    return ChainTree(matrices, initial, final, is_max=is_max)


def paths(edges: Edges, weights: np.ndarray, *, is_max: bool) -> dict[tuple[int, ...], float]:
    """The weight of every path of states, as the sum or the maximum over its runs."""
    found: dict[tuple[int, ...], float] = {}
    for run in product(range(len(edges.source)), repeat=len(weights)):
        states = (0, *(int(edges.target[edge]) for edge in run))
        if edges.final[states[-1]] and all(edges.source[e] == s for e, s in zip(run, states, strict=False)):
            weight = math.exp(sum(weights[slot, edges.label[edge]] for slot, edge in enumerate(run)))
            found[states] = max(found.get(states, 0.0), weight) if is_max else found.get(states, 0.0) + weight
    return {path: weight for path, weight in found.items() if weight}


@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("seed", range(20))
def test_tree_equals_enumeration(seed: int, is_max: bool) -> None:
    """Totals, pair marginals and the best path of nondeterministic automata agree."""
    rng = np.random.default_rng(seed)
    edges, slots = random_edges(rng, 3), int(rng.integers(1, 4))
    weights = random_weights(rng, slots)
    tree, found = tree_of(edges, weights, is_max=is_max), paths(edges, weights, is_max=is_max)
    assert tree.is_possible.tolist() == [bool(found)]
    if not found:
        return
    reduce_ = max if is_max else sum
    total = reduce_(found.values())
    assert float(tree.total[0]) == pytest.approx(math.log(total), abs=1e-12)
    marginals = tree.pair_marginals()[0].exp().numpy()
    for slot, one, other in product(range(slots), range(3), range(3)):
        through = [weight for path, weight in found.items() if path[slot : slot + 2] == (one, other)]
        assert marginals[slot, one, other] == pytest.approx(reduce_([0.0, *through]) / total, abs=1e-12)
    if is_max:
        assert found[tuple(tree.best()[0].tolist())] == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("slots", [0, 1, 2, 3, 5, 8, 13, 64, 100])
def test_tree_equals_chain(slots: int, is_max: bool) -> None:
    """Even and odd numbers of slots on every level agree, with three chains at a time."""
    impossible = 0
    for seed in range(20):
        rng = np.random.default_rng(100 * slots + seed)
        edges = random_edges(rng, 6)
        weights = np.stack([random_weights(rng, slots) for _ in range(3)])
        tree = tree_of(edges, weights, is_max=is_max)
        chains = [Chain(edges, one, is_max=is_max) for one in weights]
        assert tree.total.tolist() == pytest.approx([chain.total for chain in chains], rel=1e-12, abs=1e-12)
        if bool(tree.is_possible.all()):
            break
        impossible += 1
    assert impossible < 20
    states = tree.best() if is_max else tree.draw(torch.Generator().manual_seed(1))
    assert states.shape == (3, slots + 1)
    for chain, path in zip(chains, states.tolist(), strict=True):
        assert path[0] == 0
        assert edges.final[path[-1]]
        each = [
            [
                chain.weights[slot, e]
                for s, t, e in zip(edges.source, edges.target, edges.label, strict=True)
                if (s, t) == pair
            ]
            for slot, pair in enumerate(pairwise(path))
        ]
        assert all(max(some, default=-math.inf) > -math.inf for some in each)
        if is_max:
            assert sum(map(max, each)) == pytest.approx(chain.total, rel=1e-12, abs=1e-12)
    if slots and not is_max:
        marginals = tree.pair_marginals().exp()
        for number, chain in enumerate(chains):
            by_state = np.exp(chain.forward() + chain.backward - chain.total)
            assert marginals[number].sum(-1).numpy() == pytest.approx(by_state[:-1], abs=1e-9)
            assert marginals[number].sum(-2).numpy() == pytest.approx(by_state[1:], abs=1e-9)


def test_paths_are_sampled_by_the_weight_of_their_runs() -> None:
    """Chi-square with alpha 1e-6 over 20,000 draws accepts; counting parallel edges once is rejected."""
    edges = Edges(
        3,
        LABELS,
        np.array([False, True, True]),
        *np.array([[0, 0, 0, 0, 1, 1, 2], [1, 1, 1, 2, 1, 2, 2], [0, 0, 1, 2, 1, 1, 0]], dtype=np.int32),
    )
    weights = np.log(np.array([[4, 2, 3], [1, 5, 2], [2, 2, 1]]) / 16.0)
    draws = 20_000
    tree = tree_of(edges, np.broadcast_to(weights, (draws, *weights.shape)).copy())
    counts = Counter(map(tuple, tree.draw(torch.Generator().manual_seed(5)).tolist()))
    found = paths(edges, weights, is_max=False)
    distribution = {path: Fraction(weight) / sum(map(Fraction, found.values())) for path, weight in found.items()}
    assert chi_square(counts, distribution) < chi_square_bound(len(distribution))
    once = paths(edges, weights, is_max=True)
    wrong = {path: Fraction(weight) / sum(map(Fraction, once.values())) for path, weight in once.items()}
    assert chi_square(counts, wrong) > chi_square_bound(len(wrong))


def rare_way(slots: int) -> tuple[Edges, np.ndarray]:
    """Two paths through the slots; only the one of weight 1e-3 per slot is accepting."""
    edges = Edges(
        4,
        LABELS,
        np.array([False, False, False, True]),
        *np.array([[0, 0, 1, 2, 2], [1, 2, 1, 2, 3], [0, 1, 0, 1, 2]], dtype=np.int32),
    )
    return edges, np.log(np.array([[0.999, 1e-3, 1.0]])).repeat(slots, axis=0)


def test_single_precision_does_not_lose_what_is_1e_288_of_the_rest() -> None:
    """A product of probabilities loses it, though every product is scaled by its largest number."""
    edges, weights = rare_way(97)
    wanted = 96 * math.log(1e-3)
    tree = tree_of(edges, weights, dtype=torch.float32)
    assert float(tree.total[0]) == pytest.approx(wanted, rel=1e-5)
    assert tree.draw(torch.Generator().manual_seed(0))[0].tolist() == [0, *[2] * 96, 3]
    assert tree.pair_marginals()[0, 50, 2, 2].item() == pytest.approx(0.0, abs=1e-3)
    scaled = torch.eye(4)
    for matrix in transition_matrices(
        torch.from_numpy(weights[None]).float(),
        *(torch.from_numpy(c.astype(np.int64)) for c in (edges.source, edges.target, edges.label)),
        4,
    )[0]:
        scaled = scaled @ matrix.exp()
        scaled /= scaled.amax()
    assert scaled[0, 3] == 0  # a control


def test_rows_and_columns_whose_largest_do_not_meet() -> None:
    """One scaled matrix product would round these terms to nothing."""
    left = torch.tensor([[0.0, -1000.0], [-math.inf, -5.0]])
    right = torch.tensor([[-1000.0, 0.0], [0.5, -math.inf]])
    wanted = torch.tensor([[math.log(1 + math.exp(0.5)) - 1000.0, 0.0], [-4.5, -math.inf]])
    assert torch.allclose(log_matmul(left, right), wanted)
    assert torch.equal(max_matmul(left, right), torch.tensor([[-999.5, 0.0], [-4.5, -math.inf]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_equal_sums_of_exponentials(dtype: torch.dtype) -> None:
    """Products are right for matrices whose numbers span more than any precision holds."""
    generator = torch.Generator().manual_seed(3)
    for span in (1.0, 100.0, 3000.0):
        left, right = (span * torch.randn((2, 3, 7, 7), generator=generator, dtype=dtype) for _ in range(2))
        left[torch.rand(left.shape, generator=generator) < 0.3] = -math.inf
        right[..., 2] = -math.inf
        through = left.unsqueeze(-1) + right.unsqueeze(-3)
        tolerance = 1e-5 if dtype == torch.float32 else 1e-12
        assert torch.allclose(
            log_matmul(left, right), torch.logsumexp(through, -2), rtol=tolerance, atol=10 * tolerance
        )
        assert torch.equal(max_matmul(left, right), through.amax(-2))


def test_a_chain_without_paths_is_an_error_and_not_a_draw() -> None:
    """The error comes even beside a chain with paths, where a draw or a maximum of its numbers would return states."""
    edges, weights = rare_way(4)
    for is_max in (True, False):
        tree = tree_of(edges, np.stack([weights, np.where(np.arange(3) == 2, -np.inf, weights)]), is_max=is_max)
        assert tree.is_possible.tolist() == [True, False]
        assert tree.total[1] == -math.inf
        for ask in (tree.best if is_max else tree.draw, tree.pair_marginals):
            with pytest.raises(ValueError, match="chain 1 has no path"):
                ask()


def test_a_tree_answers_only_what_it_holds() -> None:
    edges, weights = rare_way(4)
    with pytest.raises(ValueError, match="needs a tree of maxima"):
        tree_of(edges, weights).best()
    with pytest.raises(ValueError, match="draws need a tree of sums"):
        tree_of(edges, weights, is_max=True).draw()
    with pytest.raises(ValueError, match=r"for 3 states; found the shape \(1, 2, 4, 4\)"):
        ChainTree(torch.zeros(1, 2, 4, 4), torch.zeros(3), torch.zeros(3))
