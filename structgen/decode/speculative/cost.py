"""What a forward pass takes, by how many tokens it runs.

Guesses pay because the rows of a pass are not run one after the other: the weights are read once for all of them.  How
much a further row adds is a matter of the model and the machine, so it is a value of its own, and whoever decides how
many guesses to run (``worthwhile``, ``Sequoia``, ``Goodput``) asks it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Final, Self, final

import numpy as np
from numpy.typing import NDArray

from structgen.errors import ModelError

if TYPE_CHECKING:
    from structgen.models.protocol import LanguageModel

__all__ = ["CostModel"]

_ROWS: Final = (1, 2, 4, 8, 16, 32)


@final
@dataclass(frozen=True, slots=True)
class CostModel:
    """The time of a forward pass relative to that of one over a single row: linear between the points of a table.

    Attributes:
        row: what each row adds behind the last point of the table, relative to a pass over one row.
        table: numbers of rows, ascending and above 1, each with the time of a pass over so many; never falling.
        seconds: of a pass over one row, where it was measured.

    Raises:
        ValueError: a number is out of range, or the table is not ascending.

    Example:
        >>> cost = CostModel(0.1, ((8, 1.2),))
        >>> [round(cost.relative(rows), 2) for rows in (1, 8, 10)]
        [1.0, 1.2, 1.4]
    """

    row: float
    table: tuple[tuple[int, float], ...] = ()
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.row) and self.row >= 0):
            raise ValueError(f"CostModel: row must be finite and not negative; found {self.row!r}")
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"CostModel: seconds must be positive and finite, or None; found {self.seconds!r}")
        for (rows, time), (more, longer) in pairwise(((1, 1.0), *self.table)):
            if not (isinstance(more, int) and more > rows and math.isfinite(longer) and longer >= time):
                raise ValueError(
                    f"CostModel: table must ascend from 1 row, whose time is 1; found {(more, longer)!r} behind "
                    f"{(rows, time)!r}"
                )

    @classmethod
    def assumed(cls, model: LanguageModel) -> Self:
        """Return what passes of such a model usually take, the same on every machine.

        A model may say it itself (``pass_times``, a table as here).  Else a model of torch on a CPU reads its weights
        for a part of the time, and computes for the rest; on another device rows are nearly free.  Of a model that does
        not tell where it runs, rows are taken to cost more.
        """
        table = _table(model)
        if table is not None:
            (rows, time), (more, longer) = table[-2:]
            return cls((longer - time) / (more - rows), table)
        device = _device(model)
        if device is None:
            return cls(_UNKNOWN_ROW, _UNKNOWN_TABLE)
        return cls(_CPU_ROW, _CPU_TABLE) if device == "cpu" else cls(_GPU_ROW)

    @classmethod
    def measured(
        cls,
        model: LanguageModel,
        *,
        rows: Sequence[int] = _ROWS,
        context: int = 256,
        repeats: int = 5,
        clock: Callable[[], float] = perf_counter,
    ) -> Self:
        """Measure it on this machine.

        Each number of rows is run behind the same tokens, and the shortest time counts: what else the machine does can
        only make a pass longer.

        Args:
            model: the language model.
            rows: numbers of rows to measure, ascending from 1; at least two.
            context: how many tokens stand before them, fewer where the model holds no more.
            repeats: how often each is run.
            clock: tells seconds.

        Raises:
            ValueError: an argument is out of range.
            ModelError: the model holds fewer tokens than the largest number of rows and one more, or its passes take
                no time.
        """
        if len(rows) < 2 or rows[0] != 1 or any(more <= less for less, more in pairwise(rows)):
            raise ValueError(f"CostModel: rows must ascend from 1, two of them or more; found {tuple(rows)!r}")
        if context < 1 or repeats < 1:
            raise ValueError(f"CostModel: context and repeats must be at least 1; found {context!r} and {repeats!r}")
        times = _times(model, rows, context, repeats, clock)
        one = times[0]
        if not one > 0:
            raise ModelError(f"model {model.name!r}", "a pass over one token takes no time", evidence=f"found {one} s")
        relative = np.maximum.accumulate(np.maximum(times / one, 1.0))
        table = tuple((count, float(time)) for count, time in zip(rows[1:], relative[1:], strict=True))
        last = float((relative[-1] - relative[-2]) / (rows[-1] - rows[-2]))
        return cls(last, table, float(one))

    def relative(self, rows: int) -> float:
        """The time of a pass over ``rows`` tokens, where that over one is 1; none take no time."""
        if rows < 1:
            return 0.0
        before, time = 1, 1.0
        for more, longer in self.table:
            if rows <= more:
                return time + (longer - time) * (rows - before) / (more - before)
            before, time = more, longer
        return time + self.row * (rows - before)

    def relatives(self, most: int) -> NDArray[np.float64]:
        """``relative(0)`` to ``relative(most)``; the array is shared and must not be changed."""
        return _relatives(self, most)


# Of the embedded model on two cores.  The second row costs more than those behind it: a matrix is multiplied by one
# vector in one way, by several in another.
_CPU_ROW: Final = 0.08
_CPU_TABLE: Final = ((2, 1.3), (8, 1.9))
_GPU_ROW: Final = 0.004
_UNKNOWN_ROW: Final = 0.15
_UNKNOWN_TABLE: Final = ((2, 1.4),)


@lru_cache(maxsize=256)
def _relatives(cost: CostModel, most: int) -> NDArray[np.float64]:
    table = np.array([cost.relative(rows) for rows in range(most + 1)])
    table.flags.writeable = False
    return table


def _table(model: object) -> tuple[tuple[int, float], ...] | None:
    """What a model, or what is inside it, says of its passes."""
    return next((table for each in _layers(model) if (table := getattr(each, "pass_times", None)) is not None), None)


def _device(model: object) -> str | None:
    """The kind of device that a model, or what is inside it, says it is on."""
    kinds = (getattr(getattr(each, "device", None), "type", None) for each in _layers(model))
    return next((kind for kind in kinds if isinstance(kind, str)), None)


def _layers(model: object) -> Iterator[object]:
    """The model, and what is inside it."""
    seen: set[int] = set()
    inner: list[object] = [model]
    while inner:
        each = inner.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            inner += (getattr(each, name, None) for name in ("model", "network"))


def _times(
    model: LanguageModel, rows: Sequence[int], context: int, repeats: int, clock: Callable[[], float]
) -> NDArray[np.float64]:
    """The shortest time of a pass over each number of rows."""
    most = rows[-1]
    if model.max_context is not None:
        context = min(context, model.max_context - most)
    if context < 1:
        raise ModelError(
            f"model {model.name!r}",
            f"it is too short to measure passes over {most} tokens",
            evidence=f"it holds {model.max_context}",
            remedy="measure fewer rows",
        )
    words = model.encode_prompt("The quick brown fox jumps over the lazy dog.", chat=False)
    tokens = (words * (-(-(context + most) // len(words))))[: context + most]
    times = np.full(len(rows), np.inf)
    session = model.start()
    try:
        session.extend(tokens[:context])
        for _ in range(repeats):
            for index, count in enumerate(rows):
                began = clock()
                session.extend_all(tokens[context : context + count])
                times[index] = min(times[index], clock() - began)
                session.truncate(context)
    finally:
        session.close()
    return times
