"""The cost of rows: measured with a clock that the test turns, stored, and stated."""

from __future__ import annotations

from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from structgen.decode.speculative.cost import CostModel
from structgen.engine import Vocabulary
from structgen.errors import ModelError
from structgen.models import Batch, HashModel, pass_times
from structgen.models.pass_times import VARIABLE, FastestThreads, rows_within, time_of

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab"], eos=[0])


class Timed:
    """A model whose passes take the seconds of a table, linear between its entries, on a clock of their own."""

    name = "timed"

    def __init__(self, times: dict[int, float], max_context: int | None = None) -> None:
        self.now = 0.0
        self.rows: list[int] = []
        self.max_context = max_context
        self._times = times
        self._noise = count()

    def start(self) -> Any:
        """The model is its own session."""
        return self

    def extend_all(self, token_ids: list[int]) -> None:
        """Every third pass is disturbed, and takes half as long again."""
        self.rows.append(len(token_ids))
        disturbed = 1.5 if next(self._noise) % 3 == 1 else 1.0
        self.now += float(np.interp(len(token_ids), list(self._times), list(self._times.values()))) * disturbed

    extend = extend_all

    def truncate(self, length: int) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[float]:
    """Switches a second beside the measurements; times are stored in a folder of the test."""
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("STRUCTGEN_CACHE", str(tmp_path))
    switches_a_s, calls = [0.0], count()
    monkeypatch.setattr(pass_times, "process_time", pass_times.perf_counter)
    # every second call is the end of a measurement
    monkeypatch.setattr(pass_times, "_switches", lambda: switches_a_s[0] * 1e6 if next(calls) % 2 else 0.0)
    return switches_a_s


def measured(model: Timed, monkeypatch: pytest.MonkeyPatch, *facts: object) -> Any:
    """The table of a model in a process that knows none."""
    monkeypatch.setattr(pass_times, "_known", {})
    return pass_times.pass_times(model, facts, clock=lambda: model.now)  # type: ignore[arg-type]


@pytest.mark.usefixtures("load")
def test_the_shortest_times_count_and_the_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows beyond the measured ones cost as much each as the last ones."""
    model = Timed({1: 0.01, 2: 0.012, 16: 0.04})
    table = measured(model, monkeypatch)
    assert table == ((2, 1.2), (3, 1.4), (4, 1.6), (5, 1.8), (8, 2.4), (12, 3.2), (16, 4.0), (32, 7.2))
    assert model.now <= 0.9 + 6 * 0.015
    assert min(model.rows.count(rows) for rows in (1, 2, 4, 16)) >= 4


@pytest.mark.usefixtures("load")
def test_a_slow_model_runs_each_number_of_rows_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that costs cannot be known without."""
    model = Timed({1: 1.0, 2: 3.0, 3: 6.0, 4: 99.0})
    table = measured(model, monkeypatch)
    assert model.rows == [1, 1, 2, 3]
    assert table[:2] == ((2, 2.0), (3, 3.0))  # the last pass over one row is disturbed; three passes do for three rows


@pytest.mark.usefixtures("load")
def test_times_that_decrease_are_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table says that rows are free."""
    table = measured(Timed({1: 0.02, 2: 0.015, 4: 0.04, 8: 0.03, 16: 0.03}), monkeypatch)
    times = [1.0, *(time for _, time in table)]
    assert all(later >= before for before, later in pairwise(times))
    assert times[-1] > times[-2] > 1.2
    assert CostModel(0.1, table).relative(32) == times[-1]


@pytest.mark.usefixtures("load")
def test_it_is_measured_once_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next process reads it; other facts are measured anew."""
    model = Timed({1: 0.1, 2: 0.12, 4: 0.14, 16: 0.4})
    first = measured(model, monkeypatch, "a", 1)
    passes = len(model.rows)
    assert pass_times.pass_times(model, ("a", 1), clock=lambda: model.now) == first  # type: ignore[arg-type]
    assert measured(model, monkeypatch, "a", 1) == first
    assert len(model.rows) == passes
    measured(model, monkeypatch, "a", 2)
    assert len(model.rows) > passes


def test_what_was_measured_beside_other_load_is_measured_again(
    load: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shortest times of both count, and then they are known."""
    model = Timed({1: 0.01, 2: 0.02, 16: 0.16})
    load[0] = 1.0
    assert measured(model, monkeypatch)[0] == (2, 2.0), "it is used, for want of a better one"
    load[0] = 0.0
    model = Timed({1: 0.01, 2: 0.012, 16: 0.04})
    assert measured(model, monkeypatch)[0] == (2, 1.2)
    passes = len(model.rows)
    assert measured(model, monkeypatch)[0] == (2, 1.2)
    assert len(model.rows) == passes


def test_load_that_is_always_there_belongs_to_the_machine(load: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Five processes measure."""
    load[0] = 1.0
    model = Timed({1: 0.01, 2: 0.012, 16: 0.04})
    passes = []
    for _ in range(7):
        measured(model, monkeypatch)
        passes.append(len(model.rows))
    assert len(set(passes)) == 5
    assert passes[4:] == [passes[4]] * 3


def test_processors_that_others_take_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """By switches, or by the time that this process did not get."""
    now, used, switches = [0.0], [0.0], [0]
    monkeypatch.setattr(pass_times, "perf_counter", lambda: now[0])
    monkeypatch.setattr(pass_times, "process_time", lambda: used[0])
    monkeypatch.setattr(pass_times, "_switches", lambda: switches[0])
    for passed, processor, counted, was_there in (
        (1.0, 1.8, 30, False),
        (1.0, 1.8, 120, True),
        (0.5, 0.9, 60, True),
        (1.0, 0.6, 0, True),
        (2.0, 2.0, 120, False),
    ):
        load = pass_times._Load()
        now[0] += passed
        used[0] += processor
        switches[0] += counted
        assert load.was_there() == was_there


def test_a_short_context_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the usual figures apply."""
    monkeypatch.delenv(VARIABLE)
    assert pass_times.pass_times(Timed({}, max_context=8), ()) is None  # type: ignore[arg-type]


def test_stated_times_replace_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Malformed ones are refused."""
    monkeypatch.setenv(VARIABLE, "2:1.5 8:3")
    model: Any = Timed({})
    assert pass_times.pass_times(model, ()) == ((2, 1.5), (8, 3.0))
    for text in ("2:1.5", "2:1.5 8:1.2", "4:2 2:3", "1:1 2:2", "2;3 4;4", "2:1.5 8:inf", "2:nan 4:nan"):
        monkeypatch.setenv(VARIABLE, text)
        with pytest.raises(ModelError, match=r"\$STRUCTGEN_PASS_TIMES"):
            pass_times.pass_times(model, ())


def test_a_batch_has_the_times_of_its_model() -> None:
    """It asks while no pass runs."""
    model: Any = HashModel(VOCABULARY)
    with Batch(model) as batch:
        assert batch.pass_times is None
        model.pass_times = ((2, 1.5), (4, 2.0))
        assert CostModel.assumed(batch).table == ((2, 1.5), (4, 2.0))


def passes(chosen: FastestThreads, seconds: dict[int, float], count: int, rows: int = 1) -> list[int]:
    """Run passes whose time depends on the number of threads, every third one disturbed."""
    found = []
    for number in range(count):
        threads = chosen.of(rows)
        chosen.note(rows, threads, seconds[threads] * (3 if number % 3 == 1 else 1))
        found.append(threads)
    return found


def test_the_fastest_number_of_threads_is_found() -> None:
    """From the largest down, two passes each; then its neighbours now and then, for 2 % of the time each at most."""
    chosen = FastestThreads(8)
    found = passes(chosen, {8: 4.0, 4: 3.0, 2: 2.0, 1: 5.0}, 1000)
    assert found[:8] == [8, 8, 4, 4, 2, 2, 1, 1]
    assert 8 not in found[8:]
    assert 10 <= found[8:].count(4) <= 32
    assert 5 <= found[8:].count(1) <= 1000 * 0.02 / 1.5


def test_slower_numbers_of_threads_are_not_gone_through() -> None:
    """Where all threads are fastest, an eighth of them is never tried."""
    found = passes(FastestThreads(8), {8: 1.0, 4: 1.8, 2: 3.6, 1: 7.0}, 300)
    assert set(found) == {8, 4}
    assert found.count(8) >= 285


def test_the_number_of_threads_follows_the_machine() -> None:
    """When other processes leave, more threads are faster again."""
    chosen = FastestThreads(2)
    assert passes(chosen, {2: 2.0, 1: 1.0}, 100)[-20:].count(1) >= 19
    assert passes(chosen, {2: 0.5, 1: 1.0}, 100)[-20:].count(2) >= 19


def test_what_is_slower_for_few_rows_is_left_out_for_more() -> None:
    """Half the threads cost two passes for one group of rows, and then one now and then."""
    chosen = FastestThreads(2)
    assert passes(chosen, {2: 1.0, 1: 2.0}, 10, rows=16).count(1) == 2
    assert passes(chosen, {2: 1.5, 1: 3.0}, 20, rows=26).count(1) == 0
    assert passes(chosen, {2: 1.5, 1: 3.0}, 20, rows=26).count(1) == 1


def test_where_the_load_changes_other_rows_are_measured_anew() -> None:
    """What was known of a number of threads before it became the fastest says nothing any more."""
    chosen = FastestThreads(2)
    passes(chosen, {2: 1.2, 1: 1.0}, 10, rows=1)
    passes(chosen, {2: 1.2, 1: 1.0}, 10, rows=9)
    assert 2 in passes(chosen, {2: 0.5, 1: 1.0}, 60, rows=1)
    assert passes(chosen, {2: 0.5, 1: 1.0}, 6, rows=9)[-3:] == [2, 2, 2]


def test_numbers_of_rows_have_their_own_threads() -> None:
    """Many rows take all threads, or those of fewer, and are not learnt; nor is anything without alternatives."""
    chosen = FastestThreads(2)
    passes(chosen, {2: 2.0, 1: 1.0}, 10)
    assert [chosen.of(rows) for rows in (1, 8, 32, 512)] == [1, 1, 2, 2]
    assert set(passes(chosen, {2: 2.0, 1: 1.0}, 10, rows=32)) == {2}
    assert set(passes(FastestThreads(6, learns=False), {6: 1.0}, 10)) == {6}
    following = FastestThreads(2, follows=True)
    assert following.of(512) == 2
    passes(following, {2: 2.0, 1: 1.0}, 10)
    assert following.of(512) == 1
    assert set(passes(FastestThreads(1), {1: 1.0}, 10)) == {1}


@pytest.mark.usefixtures("load")
def test_times_that_cannot_be_are_doubtful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows cannot cost five passes: they count as two, and the next process measures again."""
    model = Timed({1: 0.01, 2: 0.05, 4: 0.052, 8: 0.06})
    assert measured(model, monkeypatch)[:3] == ((2, 2.0), (3, 3.0), (4, 4.0))
    passes = len(model.rows)
    measured(model, monkeypatch)
    assert len(model.rows) > passes


def test_rows_and_times_of_a_table() -> None:
    """Between points, and beyond the last; the rows within a time are the most that take no longer."""
    times = ((2, 1.5), (4, 2.0), (8, 4.0))
    assert [time_of(times, rows) for rows in (1, 2, 3, 4, 6, 8, 16)] == [1.0, 1.5, 1.75, 2.0, 3.0, 4.0, 8.0]
    for time in np.linspace(1.0, 40.0, 300):
        rows = rows_within(times, float(time))
        assert time_of(times, rows) <= time + 1e-9 < time_of(times, rows + 1) + 2e-9
    assert rows_within(((2, 1.0), (4, 1.0)), 1.0) == rows_within(((2, 1.0), (4, 1.0)), 3.0) == 4096
