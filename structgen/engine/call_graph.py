"""Which rules of a network call which, and which calls may be inlined."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["CallGraph"]


@final
class CallGraph:
    """Which rules call which.

    Attributes:
        recursive: the rules that may call themselves, directly or not, ascending.
    """

    def __init__(self, callees: dict[int, set[tuple[int, bool]]]) -> None:
        starts = sorted(callees)
        index = {start: at for at, start in enumerate(starts)}
        calls = np.zeros((len(starts), len(starts)), dtype=bool)
        inner = np.zeros_like(calls)  # calls that are not tail calls
        for start, found in callees.items():
            for callee, is_last in found:
                calls[index[start], index[callee]] = True
                inner[index[start], index[callee]] |= not is_last
        cyclic = np.flatnonzero(np.diagonal(_closure(calls)))
        self.recursive = [starts[at] for at in cyclic.tolist()]
        self._calls, self._inner = calls[np.ix_(cyclic, cyclic)], inner[np.ix_(cyclic, cyclic)]

    def recurs_without(self, called: Iterable[int]) -> bool:
        """Return whether some rule is still recursive without the calls of ``called``, tail calls left aside."""
        is_left = ~np.isin(self.recursive, list(called))
        reached = _closure(self._calls[np.ix_(is_left, is_left)])
        return bool((self._inner[np.ix_(is_left, is_left)] & reached.T).any())


def _closure(edges: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the transitive closure: reached by one edge or more."""
    reached = edges
    while True:
        further = reached | ((reached.astype(np.float32) @ reached.astype(np.float32)) > 0)
        if np.array_equal(further, reached):
            return reached
        reached = further
