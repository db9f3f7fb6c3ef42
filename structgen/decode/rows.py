"""Rows of logits in the loops that decode: arrays, or places in logits that stay where the model made them.

Whoever does not know the second kind takes ``on_host`` of a row, which copies it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.projection import log_mass, no_law
from structgen.models.protocol import Scoring

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.models.protocol import Logits, ResidentLogits

__all__ = ["ResidentRow", "Row", "Rows", "log_probability", "on_host"]


class ResidentRow(NamedTuple):
    """A row of logits that stay where the model made them.

    Attributes:
        logits: of its forward pass.
        place: which row.
    """

    logits: ResidentLogits
    place: int

    @property
    def shape(self) -> tuple[int]:
        """As of an array."""
        return (self.logits.shape[1],)


Row: TypeAlias = "Logits | ResidentRow"
"""The logits of one position, ``[V]``."""


def on_host(row: Row) -> Logits:
    """Return a row as an array; it is not written to."""
    return row.logits.host(row.place) if isinstance(row, ResidentRow) else row


def log_probability(row: Row, tokens: Sequence[int]) -> float:
    """Log of the probability that a row gives to some tokens together.

    Raises:
        GenerationError: the model returned NaN or positive infinity.
    """
    if not isinstance(row, ResidentRow):
        return log_mass(row[list(tokens)]) - log_mass(row)
    questions = [Scoring(row.place, token) for token in tokens]
    row.logits.foresee(questions)
    answers = [row.logits.ask(question) for question in questions]
    if not all(answer.is_finite for answer in answers):
        raise no_law()
    return log_mass(np.array([answer.log_z for answer in answers]))


@final
class Rows:
    """Some rows of a forward pass, one behind the other.

    Args:
        logits: of the pass.
        first: which row is the first.
        count: how many there are; None is all that follow.
    """

    __slots__ = ("_count", "_first", "_logits")

    def __init__(self, logits: Logits | ResidentLogits, first: int = 0, count: int | None = None) -> None:
        self._logits = logits
        self._first = first
        self._count = logits.shape[0] - first if count is None else count

    @classmethod
    def of(cls, row: Row) -> Rows:
        """Rows that are one."""
        return cls(row.logits, row.place, 1) if isinstance(row, ResidentRow) else cls(row[None])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Row]:
        return (self[index] for index in range(self._count))

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        index += self._first
        logits = self._logits
        return logits[index] if isinstance(logits, np.ndarray) else ResidentRow(logits, index)

    def on_host(self) -> Logits:
        """Return them as an array, ``[n, V]``; it is not written to."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return logits[self._first : self._first + self._count]
        return np.stack([on_host(row) for row in self])

    def were_run(self) -> NDArray[np.bool_]:
        """Which of them were computed, ``[n]``."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return ~np.isnan(self.on_host()[:, 0])
        return np.array([logits.was_run(self._first + index) for index in range(self._count)])

    def resident_top(self, places: Sequence[int], count: int) -> tuple[NDArray[np.int64], Logits] | None:
        """Return the largest logits of some of the rows as ``ResidentLogits.top`` does; None where they are arrays."""
        logits = self._logits
        if isinstance(logits, np.ndarray):
            return None
        return logits.top([self._first + place for place in places], count)
