"""The time of a forward pass by its number of rows and of threads, measured on the machine that runs it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from structgen import cache
from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["VARIABLE", "Company", "FastestThreads", "PassTimes", "measure", "pass_times", "rows_within", "time_of"]

PassTimes: TypeAlias = tuple[tuple[int, float], ...]
"""Numbers of rows, ascending from 2, each with the time of a pass relative to one row; times never decrease."""

VARIABLE: Final = "STRUCTGEN_PASS_TIMES"
"""The variable that states the times of all models, for runs that shall not depend on the machine."""

_ROWS: Final = (1, 2, 3, 4, 5, 8, 12, 16)
"""Products are made of so many rows at a time, often four: the next row costs as much as those before it together."""
_LEAST: Final = 3
_LEAST_ROW: Final = 0.04
"""No CPU that was measured had cheaper rows."""
_WARM_UP: Final = 6
_WARM_UP_S: Final = 0.3
_BUDGET_S: Final = 0.9
_DISTURBED: Final = 1.25
_BUSY: Final = 0.9
_SWITCHES_A_S: Final = 80.0
_MAX_DOUBTFUL: Final = 5
_MANY_ROWS: Final = 32
_MAX_ROWS: Final = 4096
_ROUNDING: Final = 1e-9
_FIRST_PASSES: Final = 2
_KEPT_TIMES: Final = 4
_REPEATED: Final = 32
_TRIALS: Final = 0.02
_SLOWER: Final = 0.15
_HALVED: Final = 8
_lock = Lock()
_known: dict[str, PassTimes] = {}


def pass_times(
    model: LanguageModel, facts: Sequence[object], *, clock: Callable[[], float] = perf_counter
) -> PassTimes | None:
    """Return the times of a model's passes: as stated by ``$STRUCTGEN_PASS_TIMES``, known, stored, or measured now.

    None if the model's context is too short to measure them.

    What was measured beside other load is doubtful: the next process measures again, and the shortest times of both
    count.  After five such measurements the load is taken to belong to the machine.

    Args:
        model: the model; measuring makes a session of it.
        facts: what the times depend on: weights, types, threads, versions.
        clock: returns seconds.

    Raises:
        ModelError: the variable is malformed.
    """
    stated = os.environ.get(VARIABLE)
    if stated:
        return _parsed(stated)
    if model.max_context is not None and model.max_context <= _ROWS[-1]:
        return None
    key = hashlib.sha256(repr((*facts, platform.node(), platform.machine(), _ROWS, "seconds")).encode()).hexdigest()[
        :32
    ]
    with _lock:
        if key not in _known:
            stored = cache.fetch("pass-times", key)
            known, doubtful = json.loads(stored) if stored is not None else ([], 1)
            shortest = {int(rows): float(time) for rows, time in known}
            if doubtful:
                load = _Load()
                found = measure(model, clock)
                is_doubtful = load.was_there() or any(
                    time > _DISTURBED * rows * found[1] for rows, time in found.items()
                )
                shortest |= {rows: min(time, shortest.get(rows, time)) for rows, time in found.items()}
                doubtful = (doubtful + 1) % (_MAX_DOUBTFUL + 1) if is_doubtful else 0
                cache.keep("pass-times", key, json.dumps([sorted(shortest.items()), doubtful]).encode())
            _known[key] = _table(shortest)
        return _known[key]


class _Load:
    """Tells whether other processes, or other threads of this one, took processors away since it was made.

    A thread that waits for a processor, or that loses its own, is counted by the system as switched involuntarily.
    Where the system does not count it, or a virtual machine loses a processor, the processes' time is less than that
    of the clock.
    """

    def __init__(self) -> None:
        self._began = perf_counter(), process_time(), _switches()

    def was_there(self) -> bool:
        """Whether there was enough of it to change what was measured."""
        began, used, switches = self._began
        passed = perf_counter() - began
        return process_time() - used < _BUSY * passed or _switches() - switches > _SWITCHES_A_S * passed


def _switches() -> int:
    """How often threads of this process were switched involuntarily; 0 where the system does not count it."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure(model: LanguageModel, clock: Callable[[], float] = perf_counter) -> dict[int, float]:
    """Measure the seconds of passes over 1 to 16 rows.

    Passes over one token come first, six or as many as .3 s allow: they read the weights, and a model may learn its
    number of threads from them.  Each number of rows is then run once, and again as long as another .9 s last, since a
    model may try numbers of threads for them too; a model whose passes take longer is measured with fewer, at least 1,
    2 and 3.  The shortest time of each counts.
    """
    session = model.start()
    times: dict[int, float] = {}
    spent, ones = 0.0, 0

    def run(rows: int) -> None:
        nonlocal spent
        began = clock()
        session.extend_all([0] * rows)
        taken = clock() - began
        spent += taken
        times[rows] = min(times.get(rows, taken), taken)
        session.truncate(1)

    try:
        session.extend([0])
        while times.get(1) is None or (ones < _WARM_UP and spent < _WARM_UP_S - times[1]):
            run(1)
            ones += 1
        spent = times[1]
        for rows in _ROWS[1:]:
            if len(times) < _LEAST or spent + rows / max(times) * times[max(times)] < _BUDGET_S:
                run(rows)
        while fitting := [rows for rows, time in times.items() if time > 0 and spent + time < _BUDGET_S]:
            for rows in fitting:
                if spent + times[rows] < _BUDGET_S:
                    run(rows)
    finally:
        session.close()
    return times


def _table(seconds: Mapping[int, float]) -> PassTimes:
    """The table of measured seconds, relative to one row.

    Times that decrease, or where a row costs less than .04, are noise; so many rows can be run in as many passes, and
    what takes longer is noise too.  More rows are taken to cost as much each as the last ones that were measured, but
    at most the mean, and at least a third of it.
    """
    table, longest, one = [(1, 1.0)], 1.0, seconds[1]
    for rows in sorted(seconds)[1:]:
        relative = min(seconds[rows] / one, float(rows)) if one > 0 else 1.0
        longest = max(longest, relative, 1 + _LEAST_ROW * (rows - 1))
        table.append((rows, round(longest, 2)))
    (before, time), (rows, longest) = table[-2:]
    mean = (longest - 1) / (rows - 1)
    row = min(max((longest - time) / (rows - before), mean / 3), mean)
    return (*table[1:], (2 * rows, round(longest + rows * row, 2)))


def time_of(times: PassTimes, rows: float) -> float:
    """Return the time of a pass over so many rows, at least one, relative to one row; linear between the points."""
    points = ((1, 1.0), *times)
    (before, time), (more, longer) = next((pair for pair in pairwise(points) if rows <= pair[1][0]), points[-2:])
    return time + (longer - time) * (rows - before) / (more - before)


def rows_within(times: PassTimes, time: float) -> int:
    """Return how many rows, 1 to 4096, a pass may have that takes at most ``time``, relative to one row."""
    points = ((1, 1.0), *times)
    (before, passed), (more, longer) = next((pair for pair in pairwise(points) if time <= pair[1][1]), points[-2:])
    row = (longer - passed) / (more - before)
    return _MAX_ROWS if row == 0 else max(1, min(_MAX_ROWS, int(before + (time - passed) / row + _ROUNDING)))


class Company(NamedTuple):
    """What a sequence shares the next forward pass with.

    Attributes:
        others: how many other sequences.
        rows: their rows, all together.
        room: how many rows this one may have, so that the others do not wait for it.
    """

    others: int
    rows: int
    room: int


class FastestThreads:
    """The number of threads for each pass, learnt from the times of the passes before it.

    A pass over few rows is many short products, between which all threads wait for each other.  That can take longer
    than one thread takes for all of it, above all where two processors are one core.

    Numbers of threads are the largest one, its half, and so on.  A pass over 32 rows and more takes the largest, or the
    one that is the fastest for 24 to 31 rows.  Fewer rows are learnt in groups (1, 2 to 3, 4 to 7, 8 to 11, 12 to 15,
    16 to 23, 24 to 31).  Two passes each take the number that is the fastest for fewer rows, at first the largest, its
    neighbours, and the neighbours of the fastest until that is one in between.  A smaller number that is clearly slower
    for fewer rows is left out, since it can only be slower for more.  The shortest of the last four times of each
    number counts.  After 32 passes, or more where that would take over 2 % of the time, a pass takes a neighbour of the
    fastest number: so the choice follows the load of the machine.  Where another number becomes the fastest, the load
    has changed: its times for other rows are forgotten, and measured anew.

    Args:
        most: the largest number.
        learns: whether other numbers are tried at all.
        follows: whether passes over many rows take the fastest number of those over fewer.
    """

    def __init__(self, most: int, *, learns: bool = True, follows: bool = False) -> None:
        self._follows = follows
        self._numbers = [most]
        while learns and self._numbers[-1] > 1:
            self._numbers.append(self._numbers[-1] // 2)
        self._times: list[list[deque[float]]] = [
            [deque(maxlen=_KEPT_TIMES) for _ in self._numbers] for _ in range(_group(_MANY_ROWS))
        ]
        self._passes = 0
        self._tried = [0] * len(self._numbers)  # the number of the pass that did so last

    def of(self, rows: int) -> int:
        """Return the number of threads for the next pass over so many rows."""
        if len(self._numbers) == 1:
            return self._numbers[0]
        if rows >= _MANY_ROWS:
            return self._numbers[self._best(len(self._times) - 1) if self._follows else 0]
        group = _group(rows)
        times = self._times[group]
        best = self._best(group)
        neighbours = [at for at in (best + 1, best - 1) if 0 <= at < len(times)]
        for at in (best, *neighbours):
            if len(times[at]) < _FIRST_PASSES and not self._is_slower_below(group, at):
                return self._numbers[at]
        for at in neighbours:
            extra = min(times[at]) / min(times[best]) - 1 if times[at] else _SLOWER
            if self._passes - self._tried[at] >= max(_REPEATED, extra / _TRIALS):
                return self._numbers[at]
        return self._numbers[best]

    def _is_slower_below(self, group: int, at: int) -> bool:
        """Whether a number is clearly slower than a larger one for fewer rows, by the nearest group that has both."""
        for times in reversed(self._times[:group]):
            if times[at] and (larger := [min(known) for known in times[:at] if known]):
                return min(times[at]) > (1 + _SLOWER) * min(larger)
        return False

    def _best(self, group: int) -> int:
        """The index of the fastest number for a group, or for the nearest one of fewer rows that has times."""
        while group and not any(self._times[group]):
            group -= 1
        times = self._times[group]
        return min((at for at, known in enumerate(times) if known), key=lambda at: min(times[at]), default=0)

    def note(self, rows: int, threads: int, seconds: float) -> None:
        """Note the time of a pass."""
        if rows < _MANY_ROWS and len(self._numbers) > 1:
            group = _group(rows)
            at = self._numbers.index(threads)
            self._passes += 1
            self._tried[at] = self._passes
            before = self._best(group)
            # More rows of a group take longer, by less than in proportion.
            self._times[group][at].append(max(seconds, 1e-9) / rows ** (0.5 if rows < _HALVED else 0.75))
            if (best := self._best(group)) != before:
                for other, times in enumerate(self._times):
                    if other != group and self._best(other) != best:
                        times[best].clear()


def _group(rows: int) -> int:
    """The group of a number of rows: each octave is one, and from eight rows on two."""
    octave = rows.bit_length()
    return octave if rows < _HALVED else 2 * octave - 4 + (rows >> (octave - 2) & 1)


def _parsed(text: str) -> PassTimes:
    """Read a table such as ``2:1.3 8:1.9``."""
    try:
        table = tuple((int(rows), float(time)) for rows, _, time in (each.partition(":") for each in text.split()))
    except ValueError:
        table = ()
    if len(table) < 2 or any(
        more <= rows or not time <= longer < float("inf")
        for (rows, time), (more, longer) in zip(((1, 1.0), *table), table, strict=False)
    ):
        raise ModelError(
            f"${VARIABLE}",
            "expected numbers of rows, ascending from 2, each with the time of a pass relative to one row",
            evidence=f"found {text[:100]!r}",
            remedy="write two or more, as in '2:1.3 8:1.9'",
        )
    return table
