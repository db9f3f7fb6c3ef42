"""Bit-packed charts equal the chart of weights, and enumeration of all canvases."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from context_free_enumeration import GRAMMARS, an_instance
from graph_capture import recorded_step
from structgen_kernels.charts import boolean_products, chart_step
from structgen_kernels.charts.chart_step import CanvasChart, chart_closure
from structgen_kernels.charts.chart_tables import ChartTables
from structgen_kernels.dispatch import use_backend
from structgen_kernels.errors import KernelArgumentError

from structgen.decode.diffusion.context_free import ContextFreeLanguage
from structgen.decode.diffusion.context_free.plan import ALWAYS, ENDING
from structgen.decode.diffusion.mean_field import FREE


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run few programs, since the interpreter runs them one after the other."""
    monkeypatch.setattr(boolean_products, "_WORDS", 4096)
    monkeypatch.setattr(chart_step, "_ENTRIES", 1)


@cache
def language_of(name: str) -> ContextFreeLanguage:
    return ContextFreeLanguage(an_instance(name, 0).text.constraint, ambiguity="counted")


@cache
def tables_of(name: str) -> ChartTables:
    plan = language_of(name).plan
    return ChartTables.of(plan, root=plan.cell(0, ENDING), labels=len(plan.labels))


def held_by(name: str, canvases: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the labels that each slot allows, and where the string may end, for canvases of the same length."""
    language = language_of(name)
    has = language.counts > 0  # [labels, classes]
    has[ALWAYS] = True
    admissible = np.stack([np.stack([slot(language, has, held) for held in canvas]) for canvas in canvases])
    eos = language.eos_class
    ends = [
        [all(held == FREE or language.class_at(held) == eos for held in canvas[at:]) for at in range(len(canvas) + 1)]
        for canvas in canvases
    ]
    return torch.tensor(admissible), torch.tensor(ends)


def slot(language: ContextFreeLanguage, has: np.ndarray, held: int) -> np.ndarray:
    made: np.ndarray = has.any(1) if held == FREE else has[:, language.class_at(held)]
    return made


def expected(name: str, canvas: tuple[int, ...]) -> tuple[bool, np.ndarray, np.ndarray]:
    """Return, by the native chart, whether there is a completion, where it ends, and the labels of slots."""
    ends, labels = language_of(name).possible(np.array(canvas, dtype=np.int32))
    labels[:, ALWAYS] = False
    return bool(ends.any()), ends, labels


def canvases_of(name: str, slots: int, count: int) -> list[tuple[int, ...]]:
    return [an_instance(name, seed, slots=slots, fixed=0.35).canvas for seed in range(count)]


@pytest.mark.parametrize("name", list(GRAMMARS))
@pytest.mark.parametrize("slots", [1, 6])
def test_the_reference_judges_canvases_as_charts_of_weights_do(name: str, slots: int) -> None:
    canvases = [(FREE,) * slots, *canvases_of(name, slots, 12)]
    admissible, ends = held_by(name, canvases)

    chart = chart_closure(tables_of(name), admissible, ends)

    for at, canvas in enumerate(canvases):
        completable, where, labels = expected(name, canvas)
        assert chart.completable[at] == completable
        assert np.array_equal(chart.ends[at].numpy(), where)
        assert np.array_equal(chart.allowed[at].numpy(), labels)


@pytest.mark.parametrize("name", ["json across values", "ambiguous", "palindromes"])
def test_slots_may_hold_what_some_completion_has(name: str) -> None:
    language = language_of(name)
    classes = language.counts > 0
    for seed in range(4):
        case = an_instance(name, seed, slots=4, fixed=0.3)
        admissible, ends = held_by(name, [case.canvas])
        chart = chart_closure(tables_of(name), admissible, ends)
        found = (chart.allowed[0].numpy()[:, :, None] & classes[None]).any(1)[:, language.class_of]
        for at, wanted in enumerate(case.allowed()):
            allowed = set(np.flatnonzero(found[at]).tolist())
            if case.canvas[at] != FREE:
                allowed &= {case.canvas[at]}
            assert allowed == {token for token in wanted if token != case.text.eos}
        assert bool(chart.completable[0]) == bool(case.masses)


@pytest.mark.parametrize(
    ("name", "slots"),
    [
        ("json across values", 4),
        ("palindromes without centre", 3),
        *(pytest.param(name, 4, marks=pytest.mark.nightly) for name in GRAMMARS),
        pytest.param("brackets", 40, marks=pytest.mark.nightly),
        pytest.param("palindromes", 66, marks=pytest.mark.nightly),
    ],
)
def test_kernels_write_what_the_reference_does(name: str, slots: int) -> None:
    canvases = [(FREE,) * slots, *canvases_of(name, slots, 2)]
    admissible, ends = held_by(name, canvases)
    admissible[0] &= torch.rand(admissible.shape[1:], generator=torch.Generator().manual_seed(slots)) < 0.97
    tables = tables_of(name)
    with use_backend("torch"):
        wanted = chart_closure(tables, admissible, ends)
    with use_backend("triton"):
        found = chart_closure(tables, admissible, ends)
    for one, two in zip(of_chart(found), of_chart(wanted), strict=True):
        assert torch.equal(one, two)


@pytest.mark.usefixtures("backend")
def test_a_canvas_is_judged_alone_and_without_slots() -> None:
    tables = tables_of("brackets")
    admissible, ends = held_by("brackets", canvases_of("brackets", 2, 3))
    together = chart_closure(tables, admissible, ends)
    for at in range(3):
        alone = chart_closure(tables, admissible[at : at + 1], ends[at : at + 1])
        assert torch.equal(alone.outside[0], together.outside[at])
    empty = chart_closure(tables, admissible[:2, :0], torch.tensor([[True], [False]]))
    assert empty.completable.tolist() == [True, False]
    assert chart_closure(tables, admissible[:0], ends[:0]).allowed.shape == (0, 2, tables.labels)


def of_chart(chart: CanvasChart) -> tuple[torch.Tensor, ...]:
    return chart.inside, chart.outside, chart.ends, chart.completable, chart.allowed


def test_memory_is_used_again() -> None:
    tables = tables_of("as many")
    admissible, ends = held_by("as many", canvases_of("as many", 2, 3))
    with use_backend("triton"):
        chart = chart_closure(tables, admissible.flip(0).contiguous(), ends.flip(0).contiguous())
        assert chart_closure(tables, admissible, ends, chart=chart) is chart
        fresh = chart_closure(tables, admissible, ends)
    for one, two in zip(of_chart(chart), of_chart(fresh), strict=True):
        assert torch.equal(one, two)


def test_a_step_can_be_captured() -> None:
    tables = tables_of("brackets")
    admissible, ends = held_by("brackets", [(FREE,) * 3])
    chart = CanvasChart.empty(tables, 1, 3)
    with recorded_step() as seen:
        chart_closure(tables, admissible, ends, chart=chart)
    admissible.zero_()
    with recorded_step() as again:
        chart_closure(tables, admissible, ends, chart=chart)
    assert len(seen) == 5 + 4 * (len(tables.inside) + len(tables.outside))
    assert again == seen


def test_what_does_not_fit_is_refused() -> None:
    tables = tables_of("brackets")
    admissible, ends = held_by("brackets", [(FREE,) * 3])
    other = CanvasChart.empty(tables, 2, 3)
    for held, where, chart, argument in (
        (admissible[:, :, 1:], ends, None, "admissible"),
        (admissible.to(torch.int8), ends, None, "admissible"),
        (admissible, ends[:, 1:], None, "ends"),
        (admissible.expand(2, -1, -1), ends.expand(2, -1), None, "admissible and ends"),
        (admissible, ends, other, "chart"),
        (admissible, ends, replace(CanvasChart.empty(tables, 1, 3), tables=tables_of("json")), "chart"),
    ):
        with pytest.raises(KernelArgumentError) as caught:
            chart_closure(tables, held, where, chart=chart)
        assert caught.value.argument == argument
    with pytest.raises(KernelArgumentError):
        CanvasChart.empty(tables, -1, 3)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    name = "brackets"
    for slots in (6, 128):
        admissible = torch.ones((2, slots, tables_of(name).labels), dtype=torch.bool)
        chart_closure(tables_of(name), admissible, torch.ones((2, slots + 1), dtype=torch.bool))
