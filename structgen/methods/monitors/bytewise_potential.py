"""Potentials that read the bytes of an output from left to right, each byte once."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from structgen.decode.potentials.potential import Potential

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Hypothesis

__all__ = ["BytewisePotential"]

StateT = TypeVar("StateT")

_KEPT_STATES: Final = 4096
_MAX_LOOKBACK: Final = 64


class BytewisePotential(Potential, Generic[StateT]):
    """A potential whose answer is a state: None forbids, and every other allows.

    A subclass says what state the output begins in, and what becomes of a state with more bytes.  States must not
    change once they are made: sequences that begin alike share them.

    Complexity: O(new bytes) a token for as long as the states of its beginnings are kept, which are the last 4096.
    """

    sees = "bytes"

    def __init__(self) -> None:
        self._states: OrderedDict[bytes, StateT | None] = OrderedDict()

    @abstractmethod
    def _begin(self) -> StateT | None:
        """The state of an output of which nothing is written."""

    @abstractmethod
    def _read(self, state: StateT, data: bytes, start: int) -> StateT | None:
        """The state after ``data``, from that after ``data[:start]``; it must not matter how the bytes are split."""

    @abstractmethod
    def _may_end(self, state: StateT, data: bytes) -> bool:
        """Whether the output may end."""

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        return -math.inf if self._at(hypothesis) is None else 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        """See ``Potential``."""
        state = self._at(hypothesis)
        return 0.0 if state is not None and self._may_end(state, hypothesis.data) else -math.inf

    def _at(self, hypothesis: Hypothesis) -> StateT | None:
        """The state after the bytes of ``hypothesis``."""
        data, states = hypothesis.data, self._states
        if data in states:
            states.move_to_end(data)
            return states[data]
        start = self._longest_known(hypothesis)
        state = self._begin() if start is None else states[data[:start]]
        if state is not None and (start or 0) < len(data):
            state = self._read(state, data, start or 0)
        states[data] = state
        if len(states) > _KEPT_STATES:
            states.popitem(last=False)
        return state

    def _longest_known(self, hypothesis: Hypothesis) -> int | None:
        """The length of the beginning after which the state is known, of those at which a token ends."""
        data, tokens, end = hypothesis.data, hypothesis.vocabulary.tokens, len(hypothesis.data)
        for token in hypothesis.tokens[: -_MAX_LOOKBACK - 1 : -1]:
            end -= len(tokens[token])
            if data[:end] in self._states:
                return end
        return None
