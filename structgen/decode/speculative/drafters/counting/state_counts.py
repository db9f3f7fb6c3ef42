"""Which tokens came in which state of a grammar, counted over outputs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Final, final
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from structgen.engine import Constraint

__all__ = ["StateCounts"]

_MAX_STATES: Final = 1 << 14
_MOST_SUCCESSORS: Final = 16


@final
class StateCounts:
    """Counts of tokens for each engine and state; threads may share one.

    States are numbered by the engine of a vocabulary, alike for constraints of equal grammars, so that outputs of a
    grammar that was compiled anew go on with the same counts.  Of a state the 16 tokens that came most are kept, and
    the states that were not used for longest are forgotten beyond ``max_states``.  Counts go with their engine.

    Args:
        max_states: the most states of each engine, each with up to 32 counts.

    Raises:
        ValueError: ``max_states`` is less than 1.
    """

    def __init__(self, *, max_states: int = _MAX_STATES) -> None:
        if max_states < 1:
            raise ValueError(f"StateCounts: max_states must be at least 1; found {max_states!r}")
        self._max_states = max_states
        self._counts: WeakKeyDictionary[object, OrderedDict[Hashable, dict[int, int]]] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def states(self, constraint: Constraint) -> int:
        """How many states of the engine of a constraint are known."""
        with self._lock:
            return len(self._counts.get(_engine(constraint), ()))

    def add(self, constraint: Constraint, states: Iterable[Hashable], token: int) -> None:
        """Count a token that came in a state, which goes by several names, from precise to coarse."""
        with self._lock:
            known = self._counts.setdefault(_engine(constraint), OrderedDict())
            for state in states:
                counts = known.setdefault(state, {})
                counts[token] = counts.get(token, 0) + 1
                if len(counts) > 2 * _MOST_SUCCESSORS:
                    for rare in sorted(counts, key=counts.__getitem__)[:_MOST_SUCCESSORS]:
                        del counts[rare]
                known.move_to_end(state)
            while len(known) > self._max_states:
                known.popitem(last=False)

    def after(
        self, constraint: Constraint, states: Iterable[Hashable], count: int
    ) -> tuple[int, int, list[tuple[int, int]]]:
        """What came in a state.

        Args:
            constraint: the grammar.
            states: the names of the state, from precise to coarse; the first that is known counts.
            count: the most tokens.

        Returns:
            Which of the names that is (their number where none is), how often the state came, and its tokens with how
            often each came, the most frequent first.
        """
        level = 0
        with self._lock:
            known = self._counts.get(_engine(constraint))
            for state in states:
                counts = known.get(state) if known is not None else None
                if counts:
                    best = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:count]
                    return level, sum(counts.values()), best
                level += 1
        return level, 0, []


def _engine(constraint: Constraint) -> object:
    """What numbers the states of a constraint; the constraint itself where that is not its vocabulary's engine."""
    engine = constraint.vocabulary.engine
    return engine if engine is not None and constraint.is_of(engine) else constraint
