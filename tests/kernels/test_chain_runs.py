"""Runs of kernels: the best run as on the host, and samples by their distribution and by their noise."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from canvas_enumeration import chi_square, chi_square_bound
from kernel_chain_cases import ChainCase, a_chain_case, runs_of
from structgen_kernels.canvases.chain_edges import ChainEdges
from structgen_kernels.canvases.chain_messages import chain_backward
from structgen_kernels.canvases.chain_runs import ChainRuns, chain_best, chain_draw
from structgen_kernels.choices.choice import CHOSEN, EMPTY
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import EmptyRowError, KernelArgumentError
from structgen_kernels.philox import STREAMS, Noise, random_words

from structgen.decode.diffusion.regular import Chain, Edges

NEAR = 1e-4
"""Scores that differ by less are a tie in float32."""


def best_of(case: ChainCase) -> ChainRuns:
    return chain_best(case.weights, case.edges, chain_backward(case.weights, case.edges, is_max=True))


def sampled_of(case: ChainCase, noise: Noise) -> ChainRuns:
    return chain_draw(case.weights, case.edges, chain_backward(case.weights, case.edges, is_max=False), noise)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("seed", range(8))
def test_the_best_run_is_the_one_of_the_processor(seed: int) -> None:
    """The first of several equal edges is taken; a canvas without a run has none."""
    case = a_chain_case(seed, slots=5, states=4 + seed, edges=10 + 5 * seed)
    found = best_of(case)
    for number, chain in enumerate(case.chains(is_max=True)):
        assert float(found.totals[number]) == chain.total
        if np.isfinite(chain.total):
            edges = chain.run()
            assert found.edges[number].tolist() == edges.tolist()
            assert found.labels[number].tolist() == case.host.label[edges].tolist()
            assert int(found.status[number]) == CHOSEN
        else:
            assert found.edges[number].tolist() == found.labels[number].tolist() == [-1] * 5
            assert int(found.status[number]) == EMPTY


def test_some_runs_are_chosen_among_equals_and_some_are_not_there() -> None:
    """A control for the test above."""
    ties = missing = 0
    for seed in range(8):
        case = a_chain_case(seed, slots=5, states=4 + seed, edges=10 + 5 * seed)
        backward = chain_backward(case.weights, case.edges, is_max=True)
        for number, chain in enumerate(case.chains(is_max=True)):
            missing += not np.isfinite(chain.total)
            if np.isfinite(chain.total):
                first = case.edges.source == 0
                weights = case.weights[number, 0, case.edges.label[first].long()].double()
                scores = weights + backward[number, 1, case.edges.target[first].long()]
                ties += int((scores == scores.max()).sum()) > 1
    assert ties >= 3
    assert missing >= 3


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("seed", range(2))
def test_draws_are_what_their_noise_says(seed: int) -> None:
    """Every choice is recomputed in double precision from the same random bits; near-ties may go either way."""
    case = a_chain_case(seed, batch=8, slots=4, states=6, edges=40)
    noise = Noise.of(100 * seed, 8 * 4, offset=7)
    found = sampled_of(case, noise)
    checked = 0
    for number, chain in enumerate(case.chains(is_max=False)):
        state = 0
        for slot in range(4 if np.isfinite(chain.total) else 0):
            at = np.flatnonzero(case.host.source == state)
            row = number * 4 + slot
            words = random_words(noise.seeds[row], noise.offsets[row], STREAMS["edge"], torch.from_numpy(at))
            high, low = (word.numpy().astype(np.float64) for word in words[:2])
            uniform = high / 2**32 + (low + 0.5) / 2**64
            with np.errstate(divide="ignore"):
                scores = (
                    chain.weights[slot, case.host.label[at]]
                    + chain.backward[slot + 1, case.host.target[at]]
                    - np.log(-np.log1p(-uniform))
                )
            order = np.sort(scores)[::-1]
            edge = int(found.edges[number, slot])
            assert edge in at
            if len(order) < 2 or order[0] - order[1] > NEAR:
                assert edge == at[scores.argmax()]
                checked += 1
            state = int(case.host.target[edge])
        assert float(found.totals[number]) == pytest.approx(chain.total, abs=1e-5)
        assert not np.isfinite(chain.total) or case.host.final[state]
    assert checked >= 10


def test_both_backends_draw_the_same_runs() -> None:
    case = a_chain_case(2, batch=24, slots=3, states=5, edges=40)
    noise = Noise.of(5, 24 * 3)
    made = []
    for backend in ("torch", "triton"):
        with use_backend(backend):  # type: ignore[arg-type]
            made.append(sampled_of(case, noise))
    assert torch.equal(made[0].edges, made[1].edges)
    assert torch.equal(made[0].status, made[1].status)
    assert len(set(map(tuple, made[0].edges.tolist()))) > 5


def test_runs_are_sampled_by_their_weight() -> None:
    """Chi-square with alpha 1e-6 over 20,000 samples; the same samples reject the uniform distribution."""
    cases = (a_chain_case(seed, batch=1, slots=3, states=3, labels=3, edges=7) for seed in range(100))
    case = next(case for case in cases if 6 <= len(runs_of(case.host, case.weights[0].numpy())) <= 20)
    draws = 20_000
    many = ChainCase(case.host, case.edges, case.weights.expand(draws, -1, -1))
    with use_backend("torch"):
        counts = Counter(map(tuple, sampled_of(many, Noise.of(1, draws * 3)).edges.tolist()))
    weights = runs_of(case.host, case.weights[0].numpy())
    distribution = {run: weight / sum(weights.values()) for run, weight in weights.items()}
    assert chi_square(counts, distribution) < chi_square_bound(len(distribution))
    assert chi_square(
        counts, {run: type(weight)(1, len(distribution)) for run, weight in distribution.items()}
    ) > chi_square_bound(len(distribution))


@pytest.mark.usefixtures("backend")
def test_a_canvas_does_not_depend_on_its_batch() -> None:
    """Neither its best run nor its sample depends on other canvases."""
    case = a_chain_case(6, batch=4, states=5)
    noise = Noise.of(9, 16)
    best, sampled = best_of(case), sampled_of(case, noise)
    for number in (0, 3):
        part = slice(number, number + 1)
        one = ChainCase(case.host, case.edges, case.weights[part])
        rows = slice(4 * number, 4 * number + 4)
        assert torch.equal(best_of(one).edges, best.edges[part])
        assert torch.equal(sampled_of(one, Noise(noise.seeds[rows], noise.offsets[rows])).edges, sampled.edges[part])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("slots", "states", "edges"), [(0, 5, 9), (1, 1, 1), (3, 1, 80), (2, 4, 0)])
def test_small_ones(slots: int, states: int, edges: int) -> None:
    """Chains without slots or edges work, and one state with more edges than a block, and an empty batch."""
    case = a_chain_case(3, slots=slots, states=states, edges=edges)
    sampled = sampled_of(case, Noise.of(0, 3 * slots))
    best = best_of(case)
    for number, chain in enumerate(case.chains(is_max=True)):
        wanted = chain.run().tolist() if np.isfinite(chain.total) else [-1] * slots
        assert best.edges[number].tolist() == wanted
        assert (int(sampled.edges[number].min()) >= 0 if slots else True) == bool(np.isfinite(chain.total) or not slots)
    none = ChainCase(case.host, case.edges, case.weights[:0])
    assert list(best_of(none).edges.shape) == [0, slots]


@pytest.mark.usefixtures("backend")
def test_a_canvas_without_a_run_stays_empty_though_later_slots_have_some() -> None:
    """From the second slot on there is a path from the start; in the first slot there is none."""
    columns = np.zeros((3, 1), dtype=np.int32)
    edges = ChainEdges.of(1, 1, [True], *columns)
    weights = torch.tensor([[[-torch.inf], [0.0]], [[0.0], [0.0]]])
    case = ChainCase(Edges(1, 1, np.array([True]), *columns), edges, weights)
    for runs in (best_of(case), sampled_of(case, Noise.of(0, 4))):
        assert runs.edges.tolist() == [[-1, -1], [0, 0]]
        assert runs.status.tolist() == [EMPTY, CHOSEN]
        with pytest.raises(EmptyRowError, match=r"row 0 \('first'\)"):
            runs.check(["first", "second"])


@pytest.mark.usefixtures("backend")
def test_128_slots_of_small_chances() -> None:
    """The only path to acceptance has e^-877 times the weight of another path, and is found in every slot."""
    columns = np.array([[0, 0, 1, 2, 2], [1, 2, 1, 2, 3], [0, 1, 0, 1, 2]], dtype=np.int32)
    final = np.array([False, False, False, True])
    weights = torch.tensor([0.999, 1e-3, 1.0]).log().repeat(1, 128, 1)
    case = ChainCase(Edges(4, 3, final, *columns), ChainEdges.of(4, 3, final, *columns), weights)
    chain = Chain(case.host, weights[0].numpy().astype(np.float64), is_max=True)
    runs = sampled_of(case, Noise.of(0, 128))
    assert runs.labels[0].tolist() == [1] * 127 + [2]
    assert runs.edges[0].tolist() == chain.run().tolist()


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"messages": torch.zeros(3, 4, 9, dtype=torch.float64)}, "messages"),
        ({"messages": torch.zeros(3, 5, 9)}, "messages"),
        ({"weights": torch.zeros(3, 4, 6)}, "weights"),
        ({"noise": Noise.of(0, 3)}, "noise"),
        ({"out": ChainRuns.empty(3, 5, "cpu")}, "out.edges"),
    ],
)
def test_wrong_arguments_are_refused_before_a_launch(change: dict[str, Any], argument: str) -> None:
    case = a_chain_case(0)
    messages = chain_backward(case.weights, case.edges, is_max=True)
    right = {"weights": case.weights, "edges": case.edges, "messages": messages, "noise": Noise.of(0, 12)}
    with pytest.raises(KernelArgumentError) as caught:
        chain_draw(**(right | change))  # type: ignore[arg-type]
    assert caught.value.argument == argument
