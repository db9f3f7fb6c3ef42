"""How many runs of a network read a text: one for each way to understand it."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, final

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from structgen.engine.members.transitions import Transitions

__all__ = ["Runs"]

_Ends: TypeAlias = "dict[int, int]"
_Reading: TypeAlias = "Generator[tuple[int, int], _Ends, _Ends]"


@final
class Runs:
    """Counts the runs of texts."""

    def __init__(self, transitions: Transitions) -> None:
        self._transitions = transitions
        self._targets: dict[int, dict[int, list[int]]] = {}

    def count(self, text: Sequence[int]) -> int:
        """Return the number of runs that read ``text``.

        Complexity: O(n ** 2 * s) for n symbols and s states that are reached at one place.
        """
        known: dict[tuple[int, int], _Ends] = {}
        stack: list[tuple[tuple[int, int], _Reading]] = [((0, 0), self._read(0, 0, text))]
        answer: _Ends | None = None
        while stack:
            key, reading = stack[-1]
            try:
                asked = next(reading) if answer is None else reading.send(answer)
            except StopIteration as done:
                stack.pop()
                answer = known[key] = done.value
                continue
            answer = known.get(asked)
            if answer is None:
                stack.append((asked, self._read(*asked, text)))
        return known[0, 0].get(len(text), 0)

    def _read(self, start: int, begin: int, text: Sequence[int]) -> _Reading:
        """Return how many runs of a rule from place ``begin`` end at each place; asks for those of other rules."""
        transitions = self._transitions
        ends: _Ends = {}
        here: dict[int, dict[int, int]] = {begin: {start: 1}}  # runs by place and state
        for place in range(begin, len(text) + 1):
            states = here.pop(place, {})
            for state, ways in states.items():
                if transitions.final[state]:
                    ends[place] = ends.get(place, 0) + ways
                if place == len(text):
                    continue
                following = here.setdefault(place + 1, {})
                for target in self._after(state).get(text[place], ()):
                    following[target] = following.get(target, 0) + ways
                for called, after in transitions.calls[state]:
                    inner = yield called, place
                    for end, inside in inner.items():
                        if end > place:
                            reached = here.setdefault(end, {})
                            reached[after] = reached.get(after, 0) + ways * inside
        return ends

    def _after(self, state: int) -> dict[int, list[int]]:
        known = self._targets.get(state)
        if known is None:
            known = self._targets[state] = {}
            for target, symbols, _ in self._transitions.reads[state]:
                for symbol in symbols:
                    known.setdefault(symbol, []).append(target)
        return known
