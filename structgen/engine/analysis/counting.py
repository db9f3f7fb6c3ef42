"""Exact counts of derivations: the runs of a network by length, and the runs that read one string."""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from operator import mul
from typing import TYPE_CHECKING, Final, TypeAlias, final

from structgen.errors import LimitExceeded
from structgen.grammar.analysis import strongly_connected

if TYPE_CHECKING:
    import random
    from collections.abc import Generator, Mapping, Sequence

    from structgen.engine.analysis.edge_list import Transitions

__all__ = ["DerivationCounter", "LengthCounts", "shortest_runs"]

MAX_STEPS: Final = 20_000_000
"""Bound on the additions, plus an eighth of the multiplications, of counting: about ten seconds."""
_NEVER: Final = 1 << 60
"""Longer than any string."""


@final
class LengthCounts:
    """The exact number of runs of a network by state and length.

    Complexity: counting takes O(e * n + c * n ** 2) operations on numbers of O(n) bits, for e edges and c calls in
        strings of up to n bytes; a sample takes O(n * (d + k * n)) for d edges and k calls at a state.

    Attributes:
        transitions: the network.

    Source: P. Flajolet, P. Zimmermann, B. van Cutsem, "A calculus for the random generation of labelled combinatorial
    structures" (1994, TCS 132): the recursive method, which counts first and then samples by the counts.
    """

    def __init__(
        self, transitions: Transitions, max_length: int, *, are_shapes: bool = False, max_steps: int = MAX_STEPS
    ) -> None:
        """Count the runs of up to ``max_length`` symbols.

        With ``are_shapes``, runs that differ only in symbols between the same two states count as one.

        Raises:
            LimitExceeded: counting takes more than ``max_steps`` steps.
        """
        self.transitions = transitions
        self._are_shapes = are_shapes
        calls = transitions.calls
        self._least, self._reading = least, reading = shortest_runs(transitions)
        horizon = _horizons(transitions, least, reading, max_length)
        self._check_work(horizon, max_length, max_steps)
        nothing = [0] * (max_length + 1)
        self._counts = [nothing if left < 0 else [0] * least[state] for state, left in enumerate(horizon)]
        # A called rule reads from the same position on, so it is counted first; no rule calls itself there.
        graph = {state: [start for start, _ in calls[state]] for state in range(len(calls)) if horizon[state] >= 0}
        order = [state for component in strongly_connected(graph) for state in component if state in graph]
        for length in range(max_length + 1):
            products: dict[tuple[int, int], int] = {}  # several states share a call with the same rest
            for state in order:
                if least[state] <= length <= horizon[state]:
                    self._counts[state].append(self._count(state, length, products))

    def total(self, length: int) -> int:
        """Return the number of runs that read ``length`` symbols."""
        return self._counts[0][length] if 0 <= length < len(self._counts[0]) else 0

    def draw(self, length: int, rng: random.Random) -> tuple[int, ...]:
        """Sample a run uniformly from the runs of ``length`` symbols, and return what it reads; there must be one."""
        text: list[int] = []
        stack = [(0, length)]
        while stack:
            state, left = stack.pop()
            while left > 0:
                state, left = self._choose(state, left, rng, text, stack)
        return tuple(text)

    def _choose(
        self, state: int, left: int, rng: random.Random, text: list[int], stack: list[tuple[int, int]]
    ) -> tuple[int, int]:
        counts, transitions = self._counts, self.transitions
        index = rng.randrange(counts[state][left])
        for target, symbols, ways in transitions.reads[state]:
            each = counts[target][left - 1]
            number = each if self._are_shapes else each * ways
            if index < number:
                text.append(_weighted(symbols, transitions.ways, ways, rng))
                return target, left - 1
            index -= number
        for start, after in transitions.calls[state]:
            inside, outside = counts[start], counts[after]
            for inner in range(self._reading[start], left - self._least[after] + 1):
                number = inside[inner] and inside[inner] * outside[left - inner]
                if index < number:
                    stack.append((after, left - inner))
                    return start, inner
                index -= number
        raise RuntimeError("the counts of runs do not add up")

    def _count(self, state: int, length: int, products: dict[tuple[int, int], int]) -> int:
        counts, transitions = self._counts, self.transitions
        if length == 0:
            return int(transitions.final[state])
        total = 0
        for target, _, ways in transitions.reads[state]:
            each = counts[target][length - 1]
            total += each if self._are_shapes else ways * each
        for call in transitions.calls[state]:
            product = products.get(call)
            if product is None:
                start, after = call
                low, high = self._reading[start], length - self._least[after]
                outside = counts[after][length - high : length - low + 1] if low <= high else []
                outside.reverse()
                product = products[call] = sum(map(mul, counts[start][low : high + 1], outside))
            total += product
        return total

    def _check_work(self, horizon: list[int], max_length: int, max_steps: int) -> None:
        transitions, least = self.transitions, self._least
        calls: dict[tuple[int, int], int] = {}
        steps = 0
        for state, left in enumerate(horizon):
            if left >= 0:
                steps += (left + 1 - least[state]) * (1 + len(transitions.reads[state]))
                for start, after in transitions.calls[state]:
                    spare = max(left - self._reading[start] - least[after], 0)
                    calls[start, after] = max(calls.get((start, after), 0), spare)
        steps += sum(spare * spare // 8 for spare in calls.values())
        if steps > max_steps:
            raise LimitExceeded(
                "strings of a grammar",
                limit="counting steps",
                maximum=max_steps,
                evidence=f"its automaton has {len(horizon):,} states, for strings of up to {max_length:,} bytes",
                remedy="request shorter strings",
            )


def _weighted(symbols: tuple[int, ...], ways: Mapping[int, int], total: int, rng: random.Random) -> int:
    """Sample one of ``symbols`` with probability proportional to its ways."""
    index = rng.randrange(total)
    if total == len(symbols):
        return symbols[index]
    for symbol in symbols:
        index -= ways.get(symbol, 1)
        if index < 0:
            return symbol
    raise RuntimeError("the ways to read symbols do not add up")


def shortest_runs(transitions: Transitions) -> tuple[list[int], list[int]]:
    """Return the lengths of the shortest run and of the shortest non-empty run from each state to the end of its rule.

    A length is ``_NEVER`` if there is no run.

    Complexity: O(e log e) for e edges and calls.

    Source: D. E. Knuth, "A generalization of Dijkstra's algorithm" (1977, IPL 6).
    """
    before: dict[int, list[int]] = defaultdict(list)
    around: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for state, edges in enumerate(transitions.reads):
        for target, _, _ in edges:
            before[target].append(state)
    for state, called in enumerate(transitions.calls):
        for start, after in called:
            around[start].append((state, start, after))
            around[after].append((state, start, after))
    reading = [_NEVER] * len(transitions.final)
    least = [0 if is_final else _NEVER for is_final in transitions.final]
    agenda = [(1, source) for state, is_final in enumerate(transitions.final) if is_final for source in before[state]]
    while agenda:
        length, state = heappop(agenda)
        if length >= reading[state]:
            continue
        reading[state] = length
        if length < least[state]:
            least[state] = length
            for source in before[state]:
                if length + 1 < reading[source]:
                    heappush(agenda, (length + 1, source))
        for source, start, after in around[state]:
            through = reading[start] + least[after]
            if through < reading[source]:
                heappush(agenda, (through, source))
    return least, reading


def _horizons(transitions: Transitions, least: list[int], reading: list[int], max_length: int) -> list[int]:
    """Return how many symbols may be read from each state to the end of its rule; -1 if no run passes the state."""
    horizon = [-1] * len(least)
    levels: list[list[int]] = [[] for _ in range(max_length + 1)]
    levels[max_length].append(0)
    for left in range(max_length, -1, -1):
        agenda = levels[left]
        while agenda:
            state = agenda.pop()
            if horizon[state] >= left or least[state] > left:
                continue
            horizon[state] = left
            if left:
                levels[left - 1] += [target for target, _, _ in transitions.reads[state]]
            for start, after in transitions.calls[state]:
                inside, outside = reading[start], least[after]
                if inside + outside <= left:
                    levels[left - outside].append(start)
                    levels[left - inside].append(after)
    return horizon


_Ends: TypeAlias = "dict[int, int]"
_EndsGenerator: TypeAlias = "Generator[tuple[int, int], _Ends, _Ends]"


@final
class DerivationCounter:
    """Counts the runs of strings."""

    def __init__(self, transitions: Transitions) -> None:
        self._transitions = transitions
        self._targets: dict[int, dict[int, list[int]]] = {}

    def count(self, text: Sequence[int]) -> int:
        """Return the number of runs that read ``text``.

        Complexity: O(n ** 2 * s) for n symbols and s states reached at one position.
        """
        results: dict[tuple[int, int], _Ends] = {}
        stack: list[tuple[tuple[int, int], _EndsGenerator]] = [((0, 0), self._read(0, 0, text))]
        answer: _Ends | None = None
        while stack:
            key, reading = stack[-1]
            try:
                query = next(reading) if answer is None else reading.send(answer)
            except StopIteration as done:
                stack.pop()
                answer = results[key] = done.value
                continue
            answer = results.get(query)
            if answer is None:
                stack.append((query, self._read(*query, text)))
        return results[0, 0].get(len(text), 0)

    def _read(self, start: int, begin: int, text: Sequence[int]) -> _EndsGenerator:
        """Return how many runs of a rule from ``begin`` end at each position; yields queries of other rules."""
        transitions = self._transitions
        ends: _Ends = {}
        here: dict[int, dict[int, int]] = {begin: {start: 1}}  # runs by position and state
        for position in range(begin, len(text) + 1):
            states = here.pop(position, {})
            for state, ways in states.items():
                if transitions.final[state]:
                    ends[position] = ends.get(position, 0) + ways
                if position == len(text):
                    continue
                following = here.setdefault(position + 1, {})
                for target in self._after(state).get(text[position], ()):
                    following[target] = following.get(target, 0) + ways
                for called, after in transitions.calls[state]:
                    inner = yield called, position
                    for end, inside in inner.items():
                        if end > position:
                            reached = here.setdefault(end, {})
                            reached[after] = reached.get(after, 0) + ways * inside
        return ends

    def _after(self, state: int) -> dict[int, list[int]]:
        targets = self._targets.get(state)
        if targets is None:
            targets = self._targets[state] = {}
            for target, symbols, _ in self._transitions.reads[state]:
                for symbol in symbols:
                    targets.setdefault(symbol, []).append(target)
        return targets
