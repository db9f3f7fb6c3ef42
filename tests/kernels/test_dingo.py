"""Canvases filled on the device, compared with the posterior on the host and with enumeration."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from canvas_enumeration import Case, Runs, a_case, chi_square, chi_square_bound
from kernel_chain_cases import canvas_tables
from structgen_kernels.canvases.canvas_tables import CanvasTables
from structgen_kernels.canvases.chain_edges import ChainEdges
from structgen_kernels.canvases.dingo import DingoWorkspace, Filled, dingo
from structgen_kernels.canvases.label_scores import ClassLabels
from structgen_kernels.choices.choice import CHOSEN, EMPTY, NON_FINITE
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import EmptyRowError, KernelArgumentError, NonFiniteLogitsError
from structgen_kernels.philox import Noise

from structgen.decode.diffusion.mean_field import FREE, MeanField

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def logits_of(case: Case, columns: int = 0) -> torch.Tensor:
    """Make one row per slot; the logits of fixed slots are poison; there are more columns than tokens."""
    distribution = [[math.log(share) if share else -math.inf for share in row] for row in case.distribution]
    rows = torch.tensor(distribution, dtype=torch.float32).view(len(case.canvas), case.runs.size)
    whole = torch.full((len(rows), case.runs.size + columns), torch.inf)
    whole[:, : case.runs.size] = rows
    whole[torch.tensor(case.array) != FREE] = torch.nan
    return whole


def filled_of(case: Case, tables: CanvasTables, noise: Noise | None = None) -> Filled:
    return dingo(logits_of(case, 3), torch.tensor(case.array)[None], tables, tail=case.tail, noise=noise)


def check(case: Case, best: Filled, sampled: Filled) -> None:
    """Compare with all completions in exact fractions."""
    if not case.weights:
        for filled in (best, sampled):
            assert filled.status.tolist() == [EMPTY]
            assert filled.tokens.tolist() == [[-1] * len(case.canvas)]
            assert filled.log_prob.tolist() == filled.totals.tolist() == [-math.inf]
        return
    for filled in (best, sampled):
        assert filled.status.tolist() == [CHOSEN]
        weight = case.weights[tuple(filled.tokens[0].tolist())]
        assert float(filled.log_prob[0]) == pytest.approx(math.log(weight), abs=2e-5)
    assert float(best.totals[0]) == pytest.approx(math.log(max(case.weights.values())), abs=2e-5)
    assert float(best.log_prob[0]) == float(best.totals[0])
    assert float(sampled.totals[0]) == pytest.approx(math.log(case.mass()), abs=2e-5)


@pytest.mark.parametrize("tail", ["free", "scored"])
@pytest.mark.parametrize("is_deterministic", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_everything_equals_enumeration(seed: int, is_deterministic: bool, tail: str) -> None:
    """Best completion, samples and masses equal enumeration, with fixed slots, tails and parallel edges."""
    case = a_case(seed, is_deterministic=is_deterministic, tail=tail)  # type: ignore[arg-type]
    tables = canvas_tables(case.language)
    for backend in ("torch", "triton") if seed < 4 else ("torch",):
        with use_backend(backend):  # type: ignore[arg-type]
            check(case, filled_of(case, tables), filled_of(case, tables, Noise.of(seed, len(case.canvas))))


def test_cases_of_kernels_are_of_many_kinds() -> None:
    """A control for the test above."""
    kinds = [(seed, kind, tail) for seed in range(4) for kind in (True, False) for tail in ("free", "scored")]
    cases = [a_case(seed, is_deterministic=kind, tail=tail) for seed, kind, tail in kinds]  # type: ignore[arg-type]
    solvable = [case for case in cases if case.weights]
    assert len(solvable) >= 4
    assert len(cases) - len(solvable) >= 2
    assert sum(any(held != FREE for held in case.canvas) for case in solvable) >= 2
    assert sum(any(case.runs.length(tokens) < len(tokens) - 1 for tokens in case.weights) for case in solvable) >= 2


def test_published_vectors(shared_data: Path) -> None:
    """Masses and best sequences that were computed exactly elsewhere; some in Triton."""
    cases = json.loads((shared_data / "vectors.json").read_text(encoding="utf-8"))["dfa_meanfield"]
    for number, case in enumerate(cases):
        size, slots = case["vocab"], len(case["probs"])
        moves = tuple((source, target, token) for source, token, target in case["delta"])
        runs = Runs(case["states"], moves, frozenset(case["accept"]), (size,), size + 1)
        distribution = [[float(Fraction(share)) for share in row] + [0.0] for row in case["probs"]]
        logits, canvas = torch.tensor(distribution).log(), torch.full((1, slots), FREE, dtype=torch.int32)
        mass = Fraction(case["Z_accept"])
        for backend in ("torch", "triton") if number < 3 else ("torch",):
            with use_backend(backend):  # type: ignore[arg-type]
                best = dingo(logits, canvas, canvas_tables(runs.language()), tail="scored")
                sampled = dingo(
                    logits, canvas, canvas_tables(runs.language()), tail="scored", noise=Noise.of(number, slots)
                )
            if mass == 0:  # probability 0 counts as e^-80
                assert float(sampled.totals[0]) < -60
                continue
            assert float(sampled.totals[0]) == pytest.approx(math.log(mass), abs=2e-5)
            assert float(best.totals[0]) == pytest.approx(math.log(Fraction(case["map_accept"]["prob"])), abs=2e-5)


def rich_case(*, is_deterministic: bool) -> Case:
    cases = (a_case(seed, is_deterministic=is_deterministic, tail="free") for seed in range(1000, 1400))
    fitting = (case for case in cases if 6 <= len(case.weights) <= 40 and len(case.canvas) >= 3)
    return next(case for case in fitting if min(case.posterior().values()) > Fraction(5, 4000))


@pytest.mark.parametrize("is_deterministic", [True, False])
def test_draws_have_the_posterior_distribution(is_deterministic: bool) -> None:
    """Chi-square with alpha 1e-6 over 4,000 samples; the uniform distribution over completions is rejected."""
    case, draws = rich_case(is_deterministic=is_deterministic), 4_000
    slots = len(case.canvas)
    logits = logits_of(case).repeat(draws, 1)
    canvas = torch.tensor(case.array).repeat(draws, 1)
    with use_backend("torch"):
        sampled = dingo(logits, canvas, canvas_tables(case.language), tail=case.tail, noise=Noise.of(3, draws * slots))
    counts = Counter(map(tuple, sampled.tokens.tolist()))
    distribution = case.posterior()
    assert chi_square(counts, distribution) < chi_square_bound(len(distribution))
    assert chi_square(counts, dict.fromkeys(distribution, Fraction(1, len(distribution)))) > chi_square_bound(
        len(distribution)
    )


def canvases(batch: int, dtype: torch.dtype) -> tuple[CanvasTables, torch.Tensor, torch.Tensor]:
    """Make several canvases of a nondeterministic language with fixed slots; one of them has no completion."""
    case = rich_case(is_deterministic=False)
    slots = len(case.canvas)
    generator = torch.Generator().manual_seed(7)
    logits = torch.randn(batch * slots, case.runs.size + 4, generator=generator).to(dtype)
    canvas = torch.full((batch, slots), FREE, dtype=torch.int32)
    fillings = list(case.runs.fillings([FREE] * slots))
    for number in range(1, batch):
        slot = number % slots
        canvas[number, slot] = fillings[number % len(fillings)][slot]
    canvas[-1, 0] = case.runs.size + 5  # no token
    return canvas_tables(case.language), logits, canvas


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_both_backends_fill_the_same_canvases(dtype: torch.dtype) -> None:
    """For a batch with a reused workspace, at one temperature and at one per slot."""
    tables, logits, canvas = canvases(4, dtype)
    noise = Noise.of(2, len(logits))
    work = DingoWorkspace(tables, *canvas.shape)
    for scale, given in ((1.0, None), (torch.rand(len(logits)) + 0.5, noise)):
        with use_backend("torch"):
            wanted = dingo(logits, canvas, tables, scale=scale, noise=given)
        with use_backend("triton"):
            made = dingo(logits, canvas, tables, scale=scale, noise=given, workspace=work)
        assert torch.equal(made.tokens, wanted.tokens)
        assert made.status.tolist() == wanted.status.tolist() == [CHOSEN] * 3 + [EMPTY]
        for one, other in ((made.log_prob, wanted.log_prob), (made.totals, wanted.totals)):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-5)


@pytest.mark.usefixtures("backend")
def test_a_canvas_does_not_depend_on_its_batch() -> None:
    tables, logits, canvas = canvases(3, torch.float32)
    slots, noise = canvas.shape[1], Noise.of(2, len(logits))
    together = dingo(logits, canvas, tables, noise=noise)
    for number in (0, 1):
        rows = slice(number * slots, number * slots + slots)
        alone = dingo(
            logits[rows],
            canvas[number : number + 1],
            tables,
            noise=Noise(noise.seeds[rows], noise.offsets[rows]),
        )
        for whole, one in (
            (together.tokens, alone.tokens),
            (together.log_prob, alone.log_prob),
            (together.totals, alone.totals),
        ):
            assert torch.equal(whole[number], one[0])


def test_the_best_is_the_one_of_the_processor() -> None:
    """For random logits, where no two completions have the same probability: the same tokens at all temperatures."""
    tables, logits, canvas = canvases(8, torch.float32)
    language = rich_case(is_deterministic=False).language
    slots, size = canvas.shape[1], tables.layout.size
    for scale in (1.0, 3.0):
        with use_backend("torch"):
            filled = dingo(logits, canvas, tables, scale=scale)
        for number in range(7):
            held = canvas[number].numpy()
            rows = logits[number * slots : number * slots + slots, :size].numpy()[held == FREE]
            best = language.posterior(MeanField(held, rows, temperature=1 / scale), tail="free").best()
            assert filled.tokens[number].tolist() == best.tokens.tolist()
            assert float(filled.log_prob[number]) == pytest.approx(best.log_prob, abs=2e-5)


@pytest.mark.usefixtures("backend")
def test_logits_that_are_no_distribution_are_told_from_canvases_without_completion() -> None:
    """NaN in fixed slots is ignored, NaN in free slots is reported, and other canvases are not affected."""
    tables, logits, canvas = canvases(4, torch.float32)
    slots = canvas.shape[1]
    clean = dingo(logits, canvas, tables, tail="scored").tokens.clone()
    fixed = int((canvas[1] != FREE).nonzero()[0, 0])
    logits[slots + fixed] = torch.nan
    logits[2 * slots + int((canvas[2] == FREE).nonzero()[0, 0]), 1] = torch.nan
    filled = dingo(logits, canvas, tables, tail="scored")
    assert filled.status.tolist() == [CHOSEN, CHOSEN, NON_FINITE, EMPTY]
    assert torch.equal(filled.tokens[:2], clean[:2])
    assert filled.tokens[2].tolist() == [-1] * slots
    assert not filled.log_prob.isnan().any()
    with pytest.raises(NonFiniteLogitsError, match="row 2"):
        filled.check()
    logits[:] = 0
    with pytest.raises(EmptyRowError, match=r"row 3 \('d'\)"):
        dingo(logits, canvas, tables, tail="scored").check(list("abcd"))


@pytest.mark.usefixtures("backend")
def test_no_canvases_and_no_slots() -> None:
    tables, logits, canvas = canvases(2, torch.float32)
    assert list(dingo(logits[:0], canvas[:0], tables).tokens.shape) == [0, canvas.shape[1]]
    empty = dingo(logits[:0], canvas[:, :0].contiguous(), tables)
    starts = float(tables.edges.final[0])  # the empty text may or may not be in the language
    assert empty.log_prob.tolist() == [starts, starts]
    assert list(empty.tokens.shape) == [2, 0]


def test_128_slots_of_small_chances() -> None:
    """The logits of every slot favour other tokens than the only string, and all slots are filled."""
    runs = Runs(1, ((0, 0, 0),), frozenset({0}), (2,), 3)
    logits = torch.tensor([[1e-3, 0.998, 1e-3]]).log().repeat(128, 1)
    canvas = torch.full((1, 128), FREE, dtype=torch.int32)
    canvas[0, 127] = 0  # no tail
    with use_backend("torch"):
        filled = dingo(logits, canvas, canvas_tables(runs.language()))
    assert filled.tokens.tolist() == [[0] * 128]
    assert float(filled.log_prob[0]) == pytest.approx(127 * math.log(1e-3), abs=1e-3)


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"canvas": torch.zeros(3, 2, dtype=torch.int64)}, "canvas"),
        ({"canvas": torch.zeros(1, 2, dtype=torch.int32)}, "canvas"),
        ({"logits": torch.zeros(6, 2)}, "logits"),
        ({"tail": "none"}, "tail"),
        ({"noise": Noise.of(0, 2)}, "noise"),
    ],
)
def test_wrong_arguments_are_refused_before_a_launch(change: dict[str, Any], argument: str) -> None:
    tables, logits, canvas = canvases(2, torch.float32)
    with pytest.raises(KernelArgumentError) as caught:
        dingo(**({"logits": logits, "canvas": canvas, "tables": tables} | change))
    assert caught.value.argument == argument
    work = DingoWorkspace(tables, 3, canvas.shape[1])
    with pytest.raises(KernelArgumentError):
        dingo(logits, canvas, tables, workspace=work)


def test_tables_that_do_not_fit_are_refused() -> None:
    tables = canvases(2, torch.float32)[0]
    edges = ChainEdges.of(1, 2, [True], [0], [0], [1])
    two = ClassLabels.of(np.array([0, 1, 2]), np.array([0, 1]), tables.layout.classes)
    other = ClassLabels.of(np.array([0, 1, 2]), np.array([0, 1]), tables.layout.classes + 1)
    CanvasTables.of(edges, tables.layout, two, -1)
    for labels, filler in ((tables.labels, 0), (other, 0), (two, tables.layout.size)):
        with pytest.raises(KernelArgumentError):
            CanvasTables.of(edges, tables.layout, labels, filler)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    for dtype in DTYPES:
        tables, logits, canvas = canvases(2, dtype)
        dingo(logits, canvas, tables)
        dingo(logits, canvas, tables, tail="scored", noise=Noise.of(0, len(logits)))
