"""Which slots are revealed when, decided without a look at what the others hold.

The law of a trajectory has a factor for the choice of slots.  It is the same for the model alone and for a sampler that
keeps to a language, and leaves the weights, only if the choice does not depend on the tokens: so an order is told which
slots are free and nothing else.  Confidence is no such order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FixedOrder", "LeftToRight", "RandomOrder", "RevealOrder"]


@runtime_checkable
class RevealOrder(Protocol):
    """A rule for which slots are revealed next; a value."""

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """Return some of the free slots, at least one.

        Args:
            free: the free slots, from left to right, at least one.
            generator: of random numbers.
        """


@final
@dataclass(frozen=True, slots=True)
class RandomOrder:
    """Any slots, each as likely as the others.

    Attributes:
        per_step: how many in each step.

    Raises:
        ValueError: ``per_step`` is below 1.
    """

    per_step: int = 1

    def __post_init__(self) -> None:
        _check(self)

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """See ``RevealOrder.reveal``."""
        return generator.permutation(free)[: self.per_step]


@final
@dataclass(frozen=True, slots=True)
class LeftToRight:
    """The leftmost slots.

    Attributes:
        per_step: how many in each step.

    Raises:
        ValueError: ``per_step`` is below 1.
    """

    per_step: int = 1

    def __post_init__(self) -> None:
        _check(self)

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """See ``RevealOrder.reveal``."""
        del generator
        return free[: self.per_step]


@final
@dataclass(frozen=True, slots=True)
class FixedOrder:
    """An order that is written down.

    Attributes:
        slots: in which order; those that are fixed already are passed over.
        per_step: how many in each step.

    Raises:
        ValueError: ``per_step`` is below 1; in ``reveal``, a free slot is missing from ``slots``.
    """

    slots: tuple[int, ...]
    per_step: int = 1

    def __post_init__(self) -> None:
        _check(self)

    def reveal(self, free: NDArray[np.intp], generator: np.random.Generator, /) -> NDArray[np.intp]:
        """See ``RevealOrder.reveal``."""
        del generator
        rank = {slot: at for at, slot in reversed([*enumerate(self.slots)])}
        missing = [slot for slot in free.tolist() if slot not in rank]
        if missing:
            raise ValueError(f"FixedOrder: slots must name every free slot of the canvas; slot {missing[0]} is missing")
        at = sorted(range(len(free)), key=lambda index: rank[int(free[index])])
        return free[at[: self.per_step]]


def _check(order: RandomOrder | LeftToRight | FixedOrder) -> None:
    if not isinstance(order.per_step, int) or order.per_step < 1:
        raise ValueError(f"{type(order).__name__}: per_step must be an integer of at least 1; found {order.per_step!r}")
