"""Places of mask rows of one form in a tensor: free, used, and those whose rows nobody holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HeldRow", "MaskSlots"]


@final
@dataclass(slots=True)
class HeldRow:
    """A row that is there.

    Attributes:
        key: what it was put in by.
        number: in the pool.
        references: how often it is held.
    """

    key: Hashable
    number: int
    references: int = 0


@final
class MaskSlots:
    """Rows of one form, and which of them have content.

    Attributes:
        rows: int32 ``[capacity, width]``.
        width: words of a row.
        first: the number of the first row.
        most: rows that it may grow to.
        free: places without content; the last is taken first.
        idle: rows that nobody holds by their numbers, the one held last the longest ago first.
        is_used: bool ``[capacity]``, which places have content.
    """

    def __init__(self, capacity: int, width: int, device: torch.device, *, first: int, most: int) -> None:
        self.rows = _zeros(capacity, width, device)
        self.width = width
        self.first = first
        self.most = most
        self.free = list(range(capacity - 1, -1, -1))
        self.idle: OrderedDict[int, HeldRow] = OrderedDict()
        self.is_used: NDArray[np.bool_] = np.zeros(capacity, dtype=np.bool_)

    @property
    def room(self) -> int:
        """Rows that may be added, where those that nobody holds may go."""
        return len(self.free) + len(self.idle) + self.most - len(self.rows)

    def has(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these numbers are rows with content."""
        places = numbers - self.first
        found = (places >= 0) & (places < len(self.is_used))
        found[found] = self.is_used[places[found]]
        return found

    def hold(self, row: HeldRow) -> None:
        """Count a reference to one of its rows."""
        row.references += 1
        self.idle.pop(row.number, None)

    def release(self, row: HeldRow) -> None:
        """Take back a reference."""
        row.references -= 1
        if row.references == 0:
            self.idle[row.number] = row

    def evict(self) -> HeldRow:
        """Free the place of the row that nobody holds and that was held last the longest ago, and return it."""
        _, row = self.idle.popitem(last=False)
        self.is_used[row.number - self.first] = False
        self.free.append(row.number - self.first)
        return row

    def grow(self, more: int) -> None:
        """Double until there are ``more`` places more, at least; no further than it may."""
        capacity = doubled = len(self.rows)
        while doubled < capacity + more:
            doubled *= 2
        larger = _zeros(min(doubled, self.most), self.width, self.rows.device)
        larger[:capacity] = self.rows
        self.free = [*range(len(larger) - 1, capacity - 1, -1), *self.free]
        self.is_used = np.pad(self.is_used, (0, len(larger) - capacity))
        self.rows = larger

    def use(self, places: list[int]) -> None:
        """Note that these places, the last free ones, have content now."""
        del self.free[len(self.free) - len(places) :]
        self.is_used[places] = True


def _zeros(rows: int, width: int, device: torch.device) -> torch.Tensor:
    # What is made in inference mode could not be written outside of it, where others may use the pool.
    with torch.inference_mode(mode=False):
        return torch.zeros((rows, width), dtype=torch.int32, device=device)
