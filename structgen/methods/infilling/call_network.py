"""What canvases with open slots of a recursive grammar are read with: positions in the suffix, open calls, stacks.

A rule that is called somewhere on the canvas and what it may do there do not depend on what stands left of the call.
So for a state and a position, the *returns* are computed once: the positions at which the rule that is read there can
end.  A position is a boundary between slots, or lies within a slot: then some end of a token is left to be read, and
all ends that can be left in that slot at that position are one set, because the slot may hold any of the tokens.

What stands left of the slot that is queried is read once, slot by slot, with the calls that are open as a graph.  So a
query about the next token of a hole costs as much as the hole and the text after it, and most of that is known from
the last query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_STATES"]

MAX_STATES: Final = 100_000
"""States of a network."""

FEW_TOKENS: Final = 64
"""Tokens up to which it is not worth while to find out which of them do the same."""

MAX_CACHED: Final = 500_000
"""Answers that are kept."""

Ends: TypeAlias = "frozenset[str]"
"""Ends of tokens that are left to be read: one character a byte, or one for a special token.  Each has a number."""

SuffixPosition: TypeAlias = int
"""The number of the suffix of the canvas that comes after a slot, and below ``_SHIFT`` bits that of the ends which are
left of the slot; ``_NOTHING`` at its boundary."""

Stack: TypeAlias = "tuple[int, ...]"
"""States, the one that reads first."""

NetworkTables: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]"

EMPTY: Final = 0  # the number of the empty suffix
NO_ENDS: Final = 0  # the number of no ends
SHIFT: Final = 24
ENDS_MASK: Final = (1 << SHIFT) - 1


class WithinSlot(NamedTuple):
    """What a state can make of a set of ends of tokens, within one slot.

    Attributes:
        left: the number of the ends that are left where its rule returns, having read something.
        stacks: the states in which all is read: of its own rule last, of rules that it called before it.
    """

    left: int
    stacks: tuple[Stack, ...]


@final
class OpenCall:
    """Calls of one rule at one place; compared by identity.

    Attributes:
        waiting: the state after each call's return, and the call that it is made in.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, OpenCall], None] = {}


CallPosition: TypeAlias = "tuple[int, OpenCall]"
"""A state at a boundary of slots, and the call that it reads in."""


def nullable_states(final: list[bool], calls: list[list[tuple[int, int]]]) -> list[bool]:
    """From which states a rule can end with nothing read, calls of rules that can do so counted."""
    found = list(final)
    grown = True
    while grown:
        grown = False
        for state, made in enumerate(calls):
            if not found[state] and any(found[start] and found[after] for start, after in made):
                found[state] = grown = True
    return found
