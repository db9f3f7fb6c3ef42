"""The rows of a forward pass, as llama.cpp reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from structgen.models.llama_cpp.library import RowBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PASS_ROWS", "Part", "Rows"]

PASS_ROWS: Final = 512
"""The most rows of one call of llama.cpp; longer requests run in several."""


class Part(NamedTuple):
    """Some rows as llama.cpp reads them.

    Attributes:
        batch: with the addresses of ``arrays``.
        requested_rows: the rows whose logits are requested.
        arrays: what ``batch`` refers to.
    """

    batch: RowBatch
    requested_rows: list[int]
    arrays: tuple[object, ...]


class Rows:
    """The rows of a pass: tokens with their positions and sequences."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.requested_count = 0
        self._long: list[tuple[int, int]] = []
        self._positions: list[int] = []
        self._numbers: list[list[int]] = []
        self._requested: list[bool] = []

    def add(self, token: int, position: int, numbers: list[int], *, requested: bool) -> None:
        """Add a row of the sequences ``numbers``, which must not change any more."""
        self.tokens.append(token)
        self._positions.append(position)
        self._numbers.append(numbers)
        self._requested.append(requested)
        self.requested_count += requested

    def begin_long(self, count: int) -> None:
        """Note that the next ``count`` rows are those of one long request."""
        self._long.append((len(self.tokens), len(self.tokens) + count))

    def calls(self, short: int) -> Iterator[tuple[int, int]]:
        """The ranges of rows that run in one call: up to ``PASS_ROWS`` of a long request, or ``short`` of others."""
        at = 0
        for start, stop in (*self._long, (len(self.tokens), len(self.tokens))):
            for first, last, most in ((at, start, short), (start, stop, PASS_ROWS)):
                for begin in range(first, last, most):
                    yield begin, min(begin + most, last)
            at = stop

    def part(self, start: int, stop: int, *, companion: int | None = None) -> Part:
        """Return the rows from ``start`` to before ``stop``.

        Args:
            start: the first row.
            stop: the row after the last.
            companion: a sequence that gets a copy of the last row, None for no copy.
        """
        copies = [] if companion is None else [[companion]]
        selected = [*range(start, stop), *(stop - 1 for _ in copies)]
        tokens = np.array([self.tokens[row] for row in selected], dtype=np.int32)
        positions = np.array([self._positions[row] for row in selected], dtype=np.int32)
        sequences = [*self._numbers[start:stop], *copies]
        counts = np.array([len(numbers) for numbers in sequences], dtype=np.int32)
        numbers = np.array([number for each in sequences for number in each], dtype=np.int32)
        starts = (np.cumsum(counts) - counts) * numbers.itemsize + numbers.ctypes.data
        pointers = starts.astype(np.uintp)
        requested = np.array([*self._requested[start:stop], *(False for _ in copies)], dtype=np.int8)
        arrays = (tokens, positions, counts, pointers, requested)
        addresses = [each.ctypes.data for each in arrays]
        batch = RowBatch(len(tokens), addresses[0], None, *addresses[1:])
        return Part(batch, np.flatnonzero(requested).tolist(), (*arrays, numbers))
