"""Matcher states by token prefix, for hosts that show whole sequences and tell nothing of how they came about.

A host that reorders its rows (beams) or goes back (rejected drafts) is followed by looking the prefix up: a state
belongs to the tokens, not to a row.  The states used last are kept; others are made again from the start.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from structgen.engine import Constraint, Matcher

__all__ = ["PrefixState", "PrefixStates"]

_BACK: Final = 64


@final
@dataclass(frozen=True, slots=True)
class PrefixState:
    """Where a sequence of tokens stands.

    Attributes:
        matcher: the state after them, never advanced; None once the output has ended or left the language.
        refused_at: the position of the first token that does not belong there; None if all do.
        padding: the token after the EOS, which must be the only one there; None if there is none yet.
    """

    matcher: Matcher | None
    refused_at: int | None = None
    padding: int | None = None


@final
class PrefixStates:
    """States of one constraint by token prefix, least recently used dropped first.

    Args:
        constraint: what the sequences are to satisfy.
        capacity: how many states are kept; may be changed.
    """

    def __init__(self, constraint: Constraint, capacity: int) -> None:
        self._constraint = constraint
        self.capacity = capacity
        self._eos = frozenset(constraint.vocabulary.eos)
        self._states: OrderedDict[bytes, PrefixState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def state(self, tokens: NDArray[np.int64]) -> PrefixState:
        """The state after ``tokens``; one step where the state before the last of them is known."""
        found, known = None, len(tokens)
        while known >= 0 and len(tokens) - known <= _BACK and found is None:
            found = self._states.get(tokens[:known].tobytes())
            known -= 1
        state = found if found is not None else PrefixState(self._constraint.matcher())
        for position in range(known + 1 if found is not None else 0, len(tokens)):
            state = self._after(state, int(tokens[position]), position)
        self._keep(tokens.tobytes(), state)
        return state

    def _after(self, state: PrefixState, token: int, position: int) -> PrefixState:
        if state.refused_at is not None:
            return state
        if state.matcher is None:
            if token in self._eos or state.padding in (None, token):
                return PrefixState(None, padding=token if state.padding is None else state.padding)
            return PrefixState(None, refused_at=position)
        matcher = state.matcher.fork()
        if not matcher.accept(token):
            return PrefixState(None, refused_at=position)
        return PrefixState(None if matcher.is_terminated else matcher)

    def _keep(self, key: bytes, state: PrefixState) -> None:
        self._states[key] = state
        self._states.move_to_end(key)
        while len(self._states) > self.capacity:
            self._states.popitem(last=False)
