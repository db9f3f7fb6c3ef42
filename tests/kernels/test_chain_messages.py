"""Messages of kernels, compared with the host implementation and with enumeration of all runs."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from kernel_chain_cases import ChainCase, a_chain_case, canvas_tables, runs_of
from structgen_kernels.canvases.chain_edges import ChainEdges
from structgen_kernels.canvases.chain_messages import chain_backward, chain_forward, chain_label_masses
from structgen_kernels.canvases.chain_runs import chain_best, chain_draw
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError
from structgen_kernels.philox import Noise

from structgen import compile, json_schema
from structgen.decode.diffusion.regular import Chain, Edges, RegularLanguage
from structgen.decode.diffusion.token_automaton import byte_automaton, lift
from structgen.engine import Vocabulary
from structgen.grammars import JsonPolicy

SUM_TOLERANCE = 1e-6
"""The largest error of a sum per slot, in nats, for any magnitude."""

Messages = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def messages_of(weights: torch.Tensor, edges: ChainEdges, *, is_max: bool) -> Messages:
    backward = chain_backward(weights, edges, is_max=is_max)
    forward = chain_forward(weights, edges, is_max=is_max)
    return backward, forward, chain_label_masses(forward, backward, edges, is_max=is_max)


def check_against_the_processor(case: ChainCase, found: Messages, *, is_max: bool) -> None:
    slots = case.weights.shape[1]
    for number, chain in enumerate(case.chains(is_max=is_max)):
        reached = chain.reached  # kernels compute messages of the other states, too, and masses of impossible labels
        possible = np.isfinite(chain.weights)
        backward, forward, masses = (of[number].numpy() for of in found)
        for made, wanted in (
            (backward[reached], chain.backward[reached]),
            (forward[reached], chain.forward()[reached]),
            (masses[possible], chain.label_masses()[possible]),
        ):
            if is_max:
                assert np.array_equal(made, wanted)
            else:
                known = np.isfinite(wanted)
                assert np.array_equal(made[~known], wanted[~known])
                assert np.abs(made[known] - wanted[known]).max(initial=0) <= SUM_TOLERANCE * (slots + 1)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_messages_are_those_of_the_processor(seed: int, is_max: bool) -> None:
    """Maxima are equal bit for bit, sums to 1e-6 nats per slot, with strided weights."""
    case = a_chain_case(seed, states=3 + 6 * seed, edges=10 + 30 * seed)
    check_against_the_processor(case, messages_of(case.weights, case.edges, is_max=is_max), is_max=is_max)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("is_max", [True, False])
def test_many_states_and_one_where_all_edges_end(is_max: bool) -> None:
    """Rows of several tiles and a group wider than a block are summed right."""
    case = a_chain_case(1, batch=1, slots=2, states=400, labels=170, edges=1500)
    groups = case.edges.by_target
    assert len(groups.narrow) > groups.constants()["ROWS"]
    assert groups.wide_begin[-1] > groups.constants()["WIDE"]
    check_against_the_processor(case, messages_of(case.weights, case.edges, is_max=is_max), is_max=is_max)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("seed", range(4))
def test_totals_are_what_all_runs_weigh(seed: int) -> None:
    case = a_chain_case(seed, batch=2, slots=3, states=3, labels=3, edges=7)
    totals = [chain_backward(case.weights, case.edges, is_max=is_max)[:, 0, 0] for is_max in (True, False)]
    for number in range(2):
        weights = runs_of(case.host, case.weights[number].numpy()).values()
        for made, wanted in zip(totals, (max(weights, default=0), sum(weights)), strict=True):
            assert float(made[number]) == pytest.approx(math.log(wanted) if wanted else -math.inf, abs=1e-5)


def test_some_cases_are_possible_and_some_are_not() -> None:
    """A control for the test above."""
    cases = [a_chain_case(seed, batch=2, slots=3, states=3, labels=3, edges=7) for seed in range(4)]
    counts = [len(runs_of(case.host, one.numpy())) for case in cases for one in case.weights]
    assert max(counts) > 3
    assert min(counts) == 0


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("is_max", [True, False])
@pytest.mark.parametrize(("slots", "states", "edges"), [(0, 5, 9), (1, 5, 9), (1, 1, 1), (3, 1, 4), (2, 4, 0)])
def test_small_ones(slots: int, states: int, edges: int, is_max: bool) -> None:
    """Chains without slots, with one slot, one state or no edges work, and so does an empty batch."""
    case = a_chain_case(3, slots=slots, states=states, edges=edges)
    check_against_the_processor(case, messages_of(case.weights, case.edges, is_max=is_max), is_max=is_max)
    none = messages_of(case.weights[:0], case.edges, is_max=is_max)
    assert [list(made.shape) for made in none] == [[0, slots + 1, states]] * 2 + [[0, slots, 5]]


def two_ways(slots: int) -> tuple[Edges, ChainEdges, torch.Tensor]:
    """There are two paths through the slots; only the one of weight 1e-3 per slot reaches acceptance."""
    columns = np.array([[0, 0, 1, 2, 2], [1, 2, 1, 2, 3], [0, 1, 0, 1, 2]], dtype=np.int32)
    final = np.array([False, False, False, True])
    weights = torch.tensor([[0.999, 1e-3, 1.0]]).log().repeat(1, slots, 1).view(1, slots, 3)
    return Edges(4, 3, final, *columns), ChainEdges.of(4, 3, final, *columns), weights


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("is_max", [True, False])
def test_128_slots_of_small_chances_do_not_underflow(is_max: bool) -> None:
    """1e-381 underflows in double precision; its logarithm is exact beside a path with e^877 times the weight."""
    host, edges, weights = two_ways(128)
    backward = chain_backward(weights, edges, is_max=is_max)
    forward = chain_forward(weights, edges, is_max=is_max)
    wanted = 127 * float(weights[0, 0, 1])
    assert float(backward[0, 0, 0]) == pytest.approx(wanted, rel=1e-12)
    assert float(forward[0, -1, 3]) == pytest.approx(wanted, rel=1e-12)
    assert float(forward[0, -1, 1]) == pytest.approx(128 * math.log(0.999), rel=1e-4)
    chain = Chain(host, weights[0].numpy().astype(np.float64), is_max=is_max)
    assert backward[0].numpy()[chain.reached] == pytest.approx(chain.backward[chain.reached], rel=1e-12)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("is_max", [True, False])
def test_weights_that_are_no_numbers_count_as_nothing(is_max: bool) -> None:
    case = a_chain_case(5)
    broken, clean = case.weights.clone(), case.weights.clone()
    broken[0, 1, 2], broken[1, 0, 3], broken[2, 2, :] = torch.nan, torch.inf, torch.nan
    clean[0, 1, 2], clean[1, 0, 3], clean[2, 2, :] = -torch.inf, -torch.inf, -torch.inf
    for made, wanted in zip(
        messages_of(broken, case.edges, is_max=is_max), messages_of(clean, case.edges, is_max=is_max), strict=True
    ):
        assert torch.equal(made, wanted)
    assert float(chain_backward(broken, case.edges, is_max=is_max)[2, 0, 0]) == -math.inf


@pytest.mark.usefixtures("backend")
def test_a_canvas_does_not_depend_on_its_batch() -> None:
    case = a_chain_case(6, batch=4)
    together = messages_of(case.weights, case.edges, is_max=False)
    for number in (0, 3):
        alone = messages_of(case.weights[number : number + 1], case.edges, is_max=False)
        assert all(torch.equal(whole[number], one[0]) for whole, one in zip(together, alone, strict=True))


@pytest.mark.usefixtures("backend")
def test_a_schema_of_150_states() -> None:
    """Make the token automaton of nested objects; nearly every state has few edges."""
    case = schema_case(slots=3)
    assert 100 <= case.edges.states <= 200
    for is_max in (True, False):
        check_against_the_processor(case, messages_of(case.weights, case.edges, is_max=is_max), is_max=is_max)


def schema_case(slots: int) -> ChainCase:
    schema: dict[str, Any] = {"enum": ["red-one", "red-two", "blue-one"]}
    for name in (
        "colour",
        "status",
        "owner",
        "kind",
        "unit",
        "note",
        "street",
        "title",
        "city",
        "code",
        "size",
        "rank",
    ):
        schema = {"type": "object", "properties": {name: schema}, "required": [name], "additionalProperties": False}
    tokens = [bytes([byte]) for byte in range(32, 127)] + [b'", "', b'": "', b"na", b"me", b"st", b"-a", b""]
    vocabulary = Vocabulary(tokens, eos=[len(tokens) - 1])
    automaton = byte_automaton(
        compile(json_schema(json.dumps(schema), policy=JsonPolicy(whitespace="compact")), vocabulary)
    )
    assert automaton is not None
    language = RegularLanguage(lift(automaton, vocabulary), vocabulary)
    edges = language.edges
    weights = torch.randn(1, slots, edges.labels, generator=torch.Generator().manual_seed(2)) * 3
    # Every state is accepting, so that canvases of few slots have runs.
    final = np.ones(edges.states, dtype=bool)
    columns = edges.source, edges.target, edges.label
    host = Edges(edges.states, edges.labels, final, *columns)
    assert len(canvas_tables(language).edges) == len(edges.source)
    return ChainCase(host, ChainEdges.of(edges.states, edges.labels, final, *columns), weights)


def test_groups_hold_every_edge_once_and_in_order() -> None:
    """Narrow and wide groups together have all edges; the state after EOS does not widen the table."""
    case = a_chain_case(1, states=400, labels=170, edges=1500)
    edges = case.edges
    for groups, keys, left, right in (
        (edges.by_source, edges.source, edges.target, edges.label),
        (edges.by_target, edges.target, edges.source, edges.label),
        (edges.by_label, edges.label, edges.source, edges.target),
    ):
        found: dict[int, list[tuple[int, int]]] = {}
        for row, group in enumerate(groups.narrow.tolist()):
            pairs = zip(groups.left[:, row].tolist(), groups.right[:, row].tolist(), strict=True)
            found[group] = [pair for pair in pairs if pair[0] >= 0]
        for number, group in enumerate(groups.wide.tolist()):
            part = slice(int(groups.wide_begin[number]), int(groups.wide_begin[number + 1]))
            found[group] = list(zip(groups.wide_left[part].tolist(), groups.wide_right[part].tolist(), strict=True))
        wanted: dict[int, list[tuple[int, int]]] = {group: [] for group in range(groups.groups)}
        for key, *pair in zip(keys.tolist(), left.tolist(), right.tolist(), strict=True):
            wanted[key].append(tuple(pair))
        assert found == wanted
    assert edges.by_target.left.numel() < 4 * len(edges)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"weights": torch.zeros(3, 4, 5, dtype=torch.float16)}, "weights"),
        ({"weights": torch.zeros(3, 4, 6)}, "weights"),
        ({"weights": torch.zeros(4, 5)}, "weights"),
        ({"weights": torch.zeros(3, 4, 5, device="meta")}, "weights"),
        ({"out": torch.zeros(3, 4, 9, dtype=torch.float64)}, "out"),
        ({"out": torch.zeros(3, 5, 9)}, "out"),
        ({"out": torch.zeros(3, 5, 18, dtype=torch.float64)[:, :, :9]}, "out"),
    ],
)
def test_wrong_arguments_are_refused_before_a_launch(change: dict[str, Any], argument: str) -> None:
    case = a_chain_case(0)
    for operation in (chain_backward, chain_forward):
        with pytest.raises(KernelArgumentError) as caught:
            operation(**({"weights": case.weights, "edges": case.edges, "is_max": True} | change))
        assert caught.value.argument == argument


def test_edges_that_do_not_exist_are_refused() -> None:
    one = np.zeros(1, dtype=np.int32)
    for name, columns in {
        "source": (one + 2, one, one),
        "target": (one, one - 1, one),
        "label": (one, one, one + 1),
    }.items():
        with pytest.raises(KernelArgumentError) as caught:
            ChainEdges.of(2, 1, [True, True], *columns)
        assert caught.value.argument == name
    with pytest.raises(KernelArgumentError):
        ChainEdges.of(2, 1, [True], one, one, one)
    with pytest.raises(KernelArgumentError):
        ChainEdges.of(2, 1, [True, True], one, one, np.zeros(2, dtype=np.int32))
    case = a_chain_case(0)
    messages = chain_backward(case.weights, case.edges, is_max=True)
    with pytest.raises(KernelArgumentError):
        chain_label_masses(messages, messages[:, :-1], case.edges, is_max=True)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    with use_backend("triton"):
        case = a_chain_case(0, batch=2, slots=3, states=151, labels=170, edges=500)
        for is_max in (True, False):
            for weights in (case.weights, case.weights.double()):
                messages = messages_of(weights, case.edges, is_max=is_max)[0]
                if is_max:
                    chain_best(weights, case.edges, messages)
                else:
                    chain_draw(weights, case.edges, messages, Noise.of(0, 6))
