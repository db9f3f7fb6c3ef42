"""States of a constraint by token prefix, for libraries that pass whole sequences instead of new tokens."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np
from numpy.typing import NDArray

from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine import Constraint, Matcher

__all__ = ["PrefixState", "PrefixStates"]

_BACK: Final = 64


@final
@dataclass(slots=True)
class PrefixState:
    """The state after a sequence of tokens.

    Attributes:
        matcher: the state after them, never advanced; None once the output has ended or left the language.
        refused_at: the position of the first token that does not belong there; None if all do.
        padding: the token after the EOS, which must be the only one there; None if there is none yet.
        limit: the limit that ended the output; None for none.
    """

    matcher: Matcher | None
    refused_at: int | None = None
    padding: int | None = None
    limit: LimitExceeded | None = None

    def end(self, error: LimitExceeded, constraint: Constraint, tokens: Sequence[int]) -> None:
        """End the output ``tokens`` at a limit."""
        self.limit = copy.copy(error).ended(constraint.vocabulary.decode(tokens), tokens)
        self.matcher = None


@final
class PrefixStates:
    """States of one constraint by token prefix, least recently used dropped first; ``capacity`` may be changed.

    Rows are reordered (beams) and go back (rejected drafts): a state belongs to the tokens, not to a row.  What was
    dropped is made again from the start.
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
            state = self._after(state, tokens, position)
        self._keep(tokens.tobytes(), state)
        return state

    def _after(self, state: PrefixState, tokens: NDArray[np.int64], position: int) -> PrefixState:
        token = int(tokens[position])
        if state.refused_at is not None or state.limit is not None:
            return state
        if state.matcher is None:
            if token in self._eos or state.padding in (None, token):
                return PrefixState(None, padding=token if state.padding is None else state.padding)
            return PrefixState(None, refused_at=position)
        matcher = state.matcher.fork()
        try:
            if not matcher.accept(token):
                return PrefixState(None, refused_at=position)
        except LimitExceeded as error:
            ended = PrefixState(None)
            ended.end(error, self._constraint, tokens[: position + 1].tolist())
            return ended
        return PrefixState(None if matcher.is_terminated else matcher)

    def _keep(self, key: bytes, state: PrefixState) -> None:
        self._states[key] = state
        self._states.move_to_end(key)
        while len(self._states) > self.capacity:
            self._states.popitem(last=False)
