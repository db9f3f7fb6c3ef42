"""The cost of a pass: the table, assumptions about models, and a measurement by a clock that the model moves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import structgen as sg
from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary
from structgen.errors import ModelError
from structgen.models.pass_times import Company
from structgen.models.toy.hash import HashModel, HashSession

VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])


class Clock:
    """Tells the time that its models' passes took."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class TimedSession(HashSession):
    """Takes 2 s per pass and 0.1 s per row, more from 8 rows on, and every other time a second longer."""

    clock: Clock
    passes = 0

    def extend_all(self, token_ids: Sequence[int], /) -> Any:
        self.passes += 1
        self.clock.now += 2 + 0.1 * len(token_ids) + 0.5 * max(0, len(token_ids) - 8) + self.passes % 2
        return super().extend_all(token_ids)


class TimedModel(HashModel):
    """A hash model whose passes move a clock."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        super().__init__(VOCABULARY, **settings)
        self.clock = clock
        self.closed: list[TimedSession] = []

    def start(self) -> TimedSession:
        session = TimedSession(self)
        session.clock = self.clock
        return session


def test_the_time_is_linear_between_points() -> None:
    cost = CostModel(0.5, ((3, 1.2), (5, 2.0)))
    assert [cost.relative(rows) for rows in range(9)] == pytest.approx([0, 1, 1.1, 1.2, 1.6, 2, 2.5, 3, 3.5])
    assert cost.relatives(8).tolist() == [cost.relative(rows) for rows in range(9)]
    assert [CostModel(0.25).relative(rows) for rows in (0, 1, 5)] == [0, 1, 2]


def test_a_shared_table_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        CostModel(0.1).relatives(3)[0] = 1


@pytest.mark.parametrize(
    "settings",
    [
        {"row": -0.1},
        {"row": float("nan")},
        {"row": 0.1, "table": ((1, 1.0),)},
        {"row": 0.1, "table": ((4, 0.9),)},
        {"row": 0.1, "table": ((4, 1.2), (3, 1.3))},
        {"row": 0.1, "table": ((4, 1.2), (8, 1.1))},
        {"row": 0.1, "table": ((2.5, 1.2),)},
        {"row": 0.1, "seconds": 0.0},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="CostModel"):
        CostModel(**settings)


def test_a_measurement_finds_the_shortest_times() -> None:
    clock = Clock()
    cost = CostModel.measured(TimedModel(clock), rows=(1, 2, 4, 8, 12), repeats=4, clock=clock)
    assert cost.seconds == pytest.approx(2.1)
    assert [rows for rows, _ in cost.table] == [2, 4, 8, 12]
    assert [time for _, time in cost.table] == pytest.approx([2.2 / 2.1, 2.4 / 2.1, 2.8 / 2.1, 5.2 / 2.1])
    assert cost.row == pytest.approx(0.6 / 2.1)


def test_a_measurement_fits_a_short_context() -> None:
    clock = Clock()
    assert CostModel.measured(TimedModel(clock, max_context=9), rows=(1, 8), clock=clock).table
    with pytest.raises(ModelError, match="measure fewer rows"):
        CostModel.measured(TimedModel(clock, max_context=8), rows=(1, 8), clock=clock)


def test_a_measurement_is_never_falling() -> None:
    clock = Clock()
    cost = CostModel.measured(TimedModel(clock), rows=(1, 2), repeats=1, clock=clock)  # 3.1 s, then 2.2 s
    assert cost == CostModel(0.0, ((2, 1.0),), 3.1)


def test_a_measurement_that_makes_no_sense_is_refused() -> None:
    model = HashModel(VOCABULARY)
    for rows in ((1,), (2, 4), (1, 4, 4)):
        with pytest.raises(ValueError, match="ascend from 1"):
            CostModel.measured(model, rows=rows)
    with pytest.raises(ValueError, match="at least 1"):
        CostModel.measured(model, repeats=0)
    with pytest.raises(ModelError, match="takes no time"):
        CostModel.measured(model, clock=lambda: 0.0)


def test_what_is_assumed_depends_on_the_kind_of_device() -> None:
    def on(kind: str) -> Any:
        return SimpleNamespace(device=SimpleNamespace(type=kind))

    unknown = CostModel.assumed(HashModel(VOCABULARY))
    cpu = CostModel.assumed(SimpleNamespace(network=on("cpu")))
    gpu = CostModel.assumed(SimpleNamespace(model=on("cuda")))
    batched = CostModel.assumed(SimpleNamespace(model=SimpleNamespace(network=on("cpu"))))
    assert batched == cpu
    times = np.stack([each.relatives(64) for each in (gpu, cpu, unknown)])
    assert (np.diff(times[:, 2:], axis=0) > 0).all()


def test_a_model_that_holds_itself_is_of_unknown_kind() -> None:
    model = SimpleNamespace()
    model.model = model
    assert CostModel.assumed(model) == CostModel.assumed(HashModel(VOCABULARY))


def test_drafters_are_asked_only_where_drafts_can_pay() -> None:
    """Of n rows 70 % must be worth more than all cost: rows that cost a pass each never are, cheap ones always."""
    llama_cpp = CostModel(0.8, ((2, 2.04), (4, 3.6), (8, 6.81), (16, 13.23)))
    assert not llama_cpp.may_pay(32)
    assert CostModel(0.1, ((2, 1.9), (8, 2.1))).may_pay(32)
    assert not CostModel(0.1, ((2, 1.9), (8, 2.1))).may_pay(1)
    assert CostModel(0.69).may_pay(1)
    assert not CostModel(0.71).may_pay(32)


@pytest.mark.parametrize(("row", "asked"), [(0.3, True), (0.9, False)])
def test_costly_rows_ask_no_drafter(row: float, *, asked: bool) -> None:
    """With the model's own costs; a cost that the caller states is taken as it is."""
    model: Any = HashModel(VOCABULARY, writes="abab")
    model.pass_times = ((2, 1 + row), (4, 1 + 3 * row))
    grammar = sg.regex("[ab]{6}")
    for cost, expected in (("assumed", asked), (CostModel(row), True)):
        drafter = Asked()
        drafter.calls.clear()
        sg.generate(model, "a", grammar, drafter=Speculation(drafter, cost=cost))  # type: ignore[arg-type]
        assert bool(drafter.calls) == expected


@pytest.mark.parametrize("cost", [CostModel(0.2), CostModel(0.1, ((2, 1.4), (8, 1.9), (16, 3.0)), 0.5)], ids=str)
@pytest.mark.parametrize(("others", "rows"), [(1, 1), (1, 6), (3, 7), (15, 15), (15, 40)])
def test_rows_beside_others_cost_all_of_them(cost: CostModel, others: int, rows: int) -> None:
    """A row of a sequence makes the pass longer for everyone; in passes over one row of each, a share of one is 1."""
    beside = cost.beside(Company(others, rows, 99))
    share = cost.relative(1 + others) / (1 + others)
    for own in range(1, 60):
        longer = cost.relative(rows + own) - cost.relative(rows + 1)
        assert beside.relative(own) == pytest.approx(1 + longer / share)
    assert beside.seconds == (None if cost.seconds is None else pytest.approx(share * cost.seconds))
    assert cost.beside(Company(0, 0, 99)) is cost


class Shared(HashModel):
    """A model whose passes have had company from one of them on."""

    pass_times = ((2, 1.3), (4, 1.9))

    def __init__(self, came: int, company: Company) -> None:
        super().__init__(VOCABULARY, writes="ab" * 50)
        self.passes = 0
        self.came, self.then = came, company

    @property
    def company(self) -> Company:
        """Asked before each pass."""
        self.passes += 1
        return self.then if self.passes > self.came else Company(0, 0, 512)


@pytest.mark.parametrize(
    ("company", "pays"),
    [
        (Company(0, 0, 512), True),
        (Company(1, 1, 512), True),
        (Company(15, 15, 512), False),  # a row costs .3 alone, and .87 where 16 share the time of a pass
        (Company(1, 1, 2), True),
        (Company(1, 1, 1), False),  # no room
    ],
    ids=str,
)
def test_who_shares_the_passes_is_read_before_each(company: Company, *, pays: bool) -> None:
    """A draft token that pays alone is left out as soon as it would make the pass longer for many."""
    drafter = Asked(tree=DraftTree.chain((98,), 0.95))
    model = Shared(12, company)
    result = sg.generate(model, "a", sg.regex("[ab]{64}"), drafter=Speculation(drafter, cost="assumed"))
    drafts = result.stats.drafts
    assert drafts is not None
    assert drafts.passes >= result.stats.forwards - 1 > 12 if pays else drafts.passes == 12


@pytest.mark.parametrize(
    ("grammar", "tree", "least", "most"),
    [
        ("[ab]{200}", DraftTree(), 20, 28),
        ("[ab]{200}", DraftTree.chain((98,), 0.9), 190, 200),
        ("([ab]{4}[c-h]{4}){25}", DraftTree(), 30, 60),
    ],
    ids=["in vain", "worth it", "two kinds of position in vain"],
)
def test_a_drafter_rests_where_it_is_asked_in_vain(grammar: str, tree: DraftTree, least: int, most: int) -> None:
    """In fifteen of sixteen passes of each kind of position at last; not with costs of the caller's own."""
    model: Any = HashModel(VOCABULARY)
    model.pass_times = ((2, 1.3), (4, 1.9))
    bounds: tuple[tuple[Any, int, int], ...] = (("assumed", least, most), (CostModel(0.3), 190, 200))
    for cost, fewest, largest in bounds:
        drafter = Asked(asks=[], tree=tree)
        result = sg.generate(model, "a", sg.regex(grammar), drafter=Speculation(drafter, cost=cost))
        assert fewest <= len(drafter.asks) * 200 / result.stats.forwards <= largest


@dataclass(frozen=True)
class Asked(Drafter):
    """Proposes a tree, and counts the questions."""

    name = "asked"
    calls: list[int] = field(default_factory=list)
    asks: list[int] = field(default_factory=list)
    tree: DraftTree = field(default_factory=DraftTree)

    def start(self, context: Any, task: Any) -> Drafting:
        """Count."""
        self.calls.append(1)
        return Scripted(self)


class Scripted(Drafting):
    """Proposes the same tree each time."""

    def __init__(self, drafter: Asked) -> None:
        self._drafter = drafter

    def propose(self, context: Any, state: Any, budget: int) -> DraftTree:
        """Count, and return the tree."""
        self._drafter.asks.append(1)
        return self._drafter.tree.kept(range(len(self._drafter.tree)))
