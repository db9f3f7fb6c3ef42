"""Slots of a tensor of mask rows of one form: free, used, and used by a row without references."""

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
    """A row in the pool.

    Attributes:
        key: the key of the row.
        number: the number of the row in the pool.
        references: the reference count.
    """

    key: Hashable
    number: int
    references: int = 0


@final
class MaskSlots:
    """A growable tensor of rows of one form, with a free list and a list of rows without references (LRU).

    Attributes:
        rows: int32 ``[capacity, width]``.
        width: words per row.
        first: the number of the first row.
        most: the largest capacity.
        free: the free slots; the last one is used next.
        idle: the rows without references, by number, least recently used first.
        is_used: bool ``[capacity]``, whether each slot holds a row.
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
    def addable(self) -> int:
        """How many rows can be added if all rows without references are evicted."""
        return len(self.free) + len(self.idle) + self.most - len(self.rows)

    def has(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each number is that of a row in a used slot."""
        places = numbers - self.first
        found = (places >= 0) & (places < len(self.is_used))
        found[found] = self.is_used[places[found]]
        return found

    def hold(self, row: HeldRow) -> None:
        """Add a reference to a row."""
        row.references += 1
        self.idle.pop(row.number, None)

    def release(self, row: HeldRow) -> None:
        """Drop a reference to a row."""
        row.references -= 1
        if row.references == 0:
            self.idle[row.number] = row

    def evict(self) -> HeldRow:
        """Free the slot of the least recently used row without references, and return that row."""
        _, row = self.idle.popitem(last=False)
        self.is_used[row.number - self.first] = False
        self.free.append(row.number - self.first)
        return row

    def grow(self, more: int) -> None:
        """Double the capacity until at least ``more`` slots are added, up to ``most``."""
        capacity = doubled = len(self.rows)
        while doubled < capacity + more:
            doubled *= 2
        larger = _zeros(min(doubled, self.most), self.width, self.rows.device)
        larger[:capacity] = self.rows
        self.free = [*range(len(larger) - 1, capacity - 1, -1), *self.free]
        self.is_used = np.pad(self.is_used, (0, len(larger) - capacity))
        self.rows = larger

    def use(self, places: list[int]) -> None:
        """Mark the last free slots, which are ``places``, as used."""
        del self.free[len(self.free) - len(places) :]
        self.is_used[places] = True


def _zeros(rows: int, width: int, device: torch.device) -> torch.Tensor:
    # A tensor that is made in inference mode cannot be written in place outside it, where the pool may be used, too.
    with torch.inference_mode(mode=False):
        return torch.zeros((rows, width), dtype=torch.int32, device=device)
