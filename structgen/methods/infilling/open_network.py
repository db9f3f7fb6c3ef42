"""Canvases with open slots of a recursive grammar: the completability test by the unread rests of calls."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, final

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.step.context import shared_length
from structgen.engine.mask import pack
from structgen.engine.parse.grammar_graph import SPECIAL_BASE
from structgen.errors import LimitExceeded
from structgen.methods.infilling.open_canvas import (
    EMPTY,
    ENDS_MASK,
    MAX_CACHED,
    MAX_STATES,
    NO_ENDS,
    OPEN,
    ROOT,
    SHIFT,
    CallPosition,
    CanvasSuffixes,
    EndSets,
    OpenCall,
    Stack,
    SuffixPosition,
    WithinSlot,
    nullable_states,
    token_groups,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.engine.constraint import Constraint

__all__ = ["NetworkOpen"]


@final
class NetworkOpen:
    """See ``OpenLanguage``; thread-safe by a lock.

    Args:
        constraint: defines the canvases. In the engine's network no rule begins with a call of itself.
        max_states: limit on the states of the network.

    Raises:
        LimitExceeded: the network has more states.

    Complexity: a query of a canvas takes O(states x positions) answers. Each walks a set of ends of tokens through the
        network, and is as large as there are runs of open slots and tokens after the position; answers are cached for
        all canvases with the same suffix. Positions within slots are as many as distinct sets of ends that calls leave
        unread, which are few. In a large vocabulary, tokens with equal effects everywhere count as one.
    """

    def __init__(self, constraint: Constraint, *, max_states: int = MAX_STATES) -> None:
        unfolded = _native.unfold_calls(constraint.native, max_states)
        if unfolded is None:
            raise LimitExceeded(
                "network of a grammar",
                limit="max_states",
                maximum=max_states,
                remedy="bound repetitions, or raise max_states",
            )
        next_, final_, calls, specials = unfolded
        vocabulary = self.vocabulary = constraint.vocabulary
        self._steps: list[dict[str, int]] = [
            {chr(byte): target for byte, target in enumerate(row) if target >= 0} for row in next_.tolist()
        ]
        self._calls: list[list[tuple[int, int]]] = [[] for _ in self._steps]
        for state, start, after in calls.tolist():
            self._calls[state].append((start, after))
        self._final = nullable_states(final_.astype(bool).tolist(), self._calls)
        self._spelled = [piece.decode("latin-1") for piece in vocabulary.tokens]
        for state, token, after in specials.tolist():
            self._spelled[token] = chr(SPECIAL_BASE + token)
            self._steps[state][chr(SPECIAL_BASE + token)] = after
        for token in vocabulary.eos:
            self._spelled[token] = ""
        self._group_of, self._pieces_of = token_groups(constraint, unfolded, self._final, self._spelled)
        self._any = frozenset(filter(None, self._pieces_of))
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._suffixes = CanvasSuffixes()
        self._ends = EndSets()
        self._moves: dict[tuple[int, int], tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {}
        self._cached: dict[tuple[int, ...], Any] = {}
        # The last canvas prefix, and the readings after each of its slots.
        self._read: tuple[list[int], list[frozenset[CallPosition]]] = ([], [frozenset([(0, ROOT)])])

    def completable(self, canvas: Canvas, /, *, at: int | None = None) -> bool:
        """See ``OpenLanguage.completable``."""
        slots = canvas.tolist()
        split = at if at is not None else next((index for index, slot in enumerate(slots) if slot < 0), len(slots))
        with self._lock:
            self._bound()
            suffix = self._suffixes.number(slots[split:])
            dead: set[tuple[OpenCall, SuffixPosition]] = set()
            return any(self._accepts((state,), call, suffix, dead) for state, call in self._readings(slots[:split]))

    def allowed(self, canvas: Canvas, slot: int, /) -> NDArray[np.int32]:
        """See ``OpenLanguage.allowed``."""
        slots = canvas.tolist()
        with self._lock:
            self._bound()
            pieces = self._pieces(self._readings(slots[:slot]), self._suffixes.number(slots[slot + 1 :]))
        held = np.array([piece in pieces for piece in self._pieces_of])
        return pack(held[self._group_of])

    def _bound(self) -> None:
        if len(self._cached) + len(self._moves) > MAX_CACHED:
            self._forget()

    def _pieces(self, readings: frozenset[CallPosition], suffix: int) -> set[str]:
        """The tokens that lead from readings to a suffix."""
        leading: set[str] = set()
        dead: set[tuple[OpenCall, SuffixPosition]] = set()
        accepted: dict[tuple[Stack, OpenCall], bool] = {}
        begins = {first for first in {piece[0] for piece in self._any} if self._after(readings, first)}
        for piece in self._any:
            if piece[0] not in begins:
                continue
            for each in self._after(readings, piece):
                if each not in accepted:
                    accepted[each] = self._accepts(*each, suffix, dead)
                if accepted[each]:
                    leading.add(piece)
                    break
        return leading

    def _readings(self, slots: list[int]) -> frozenset[CallPosition]:
        """The readings after the slots on the left."""
        read, readings = self._read
        shared = shared_length(read, slots)
        read, readings = read[:shared], readings[: shared + 1]
        for slot in slots[shared:]:
            read.append(slot)
            readings.append(self._read_slot(readings[-1], slot))
        self._read = read, readings
        return readings[-1]

    def _given(self, slot: int) -> int:
        """The number of the set of tokens that a slot may hold."""
        held = self._any if slot in (OPEN, FREE) else frozenset(filter(None, [self._spelled[slot]]))
        return self._ends.number(held)

    def _read_slot(self, readings: frozenset[CallPosition], slot: int) -> frozenset[CallPosition]:
        """The readings after one more slot."""
        after_slot: set[CallPosition] = set(readings) if slot == OPEN else set()
        given = self._given(slot)
        calls: dict[tuple[int, int], OpenCall] = {}
        returned: dict[OpenCall, set[int]] = {}
        seen: set[tuple[int, int, OpenCall]] = set()
        pending = [(state, given, call) for state, call in readings] if given else []
        while pending:
            item = pending.pop()
            if item in seen:
                continue
            seen.add(item)
            state, ends, call = item
            if self._final[state] and call is not ROOT:
                returned.setdefault(call, set()).add(ends)
                pending += [(after, ends, outer) for after, outer in call.waiting]
            read, reached = self._moves_of(state, ends)
            after_slot.update([(target, call) for target in read])
            pending += [(target, rest, call) for target, rest in reached]
            for callee, after in self._calls[state]:
                inner = calls.get((callee, ends))
                if inner is None:
                    inner = calls[callee, ends] = OpenCall()
                    pending.append((callee, ends, inner))
                inner.waiting[after, call] = None
                pending += [(after, rest, call) for rest in returned.get(inner, ())]
        return frozenset(after_slot)

    def _moves_of(self, state: int, ends: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The states after ends of one symbol; and the states after the first symbol of longer ends, with the rest."""
        moves = self._moves.get((state, ends))
        if moves is None:
            steps = self._steps[state]
            read: set[int] = set()
            reached: dict[int, set[str]] = {}
            for end in self._ends.sets[ends]:
                target = steps.get(end[0])
                if target is None:
                    continue
                if len(end) == 1:
                    read.add(target)
                else:
                    reached.setdefault(target, set()).add(end[1:])
            moves = self._moves[state, ends] = (
                tuple(read),
                tuple((target, self._ends.number(frozenset(rest))) for target, rest in reached.items()),
            )
        return moves

    def _after(self, readings: Iterable[CallPosition], piece: str) -> set[tuple[Stack, OpenCall]]:
        """The stacks and calls after one more token."""
        result: set[tuple[Stack, OpenCall]] = set()
        whole = self._ends.number(frozenset([piece]))
        pending = [(state, whole, call) for state, call in readings]
        seen: set[tuple[int, int, OpenCall]] = set()
        while pending:
            item = pending.pop()
            if item in seen:
                continue
            seen.add(item)
            state, ends, call = item
            within: WithinSlot = self._solve((state, ends))
            result.update([(stack, call) for stack in within.stacks])
            left = self._ends.union(within.left, ends) if self._final[state] else within.left
            if left:
                pending += [(after, left, outer) for after, outer in call.waiting]
        return result

    def _accepts(self, stack: Stack, call: OpenCall, suffix: int, dead: set[tuple[OpenCall, SuffixPosition]]) -> bool:
        """Whether a canvas suffix can be read from a stack, and then from the return of its call, to the end.

        Args:
            stack: states above the call.
            call: the call below them.
            suffix: the number of the canvas suffix.
            dead: calls whose return at a position leads nowhere; extended by this function.
        """
        positions = {suffix << SHIFT}
        for state in stack:
            reached: set[SuffixPosition] = set()
            for position in positions:
                reached |= self._solve((state, position, 0))
            positions = self._merged(reached)
        pending = [(call, position) for position in positions]
        seen: set[tuple[OpenCall, SuffixPosition]] = set()
        while pending:
            item = pending.pop()
            if item in seen or item in dead:
                continue
            if item[0] is ROOT and not item[1] & ENDS_MASK and self._suffixes.runs[item[1] >> SHIFT][0] == EMPTY:
                return True
            seen.add(item)
            at, position = item
            for after, outer in at.waiting:
                pending += [(outer, each) for each in self._solve((after, position, 0))]
        dead |= seen
        return False

    def _solve(self, key: tuple[int, ...]) -> Any:
        """Answer a query after the queries that it depends on, without recursion.

        Args:
            key: a state and a number of ends for ``_within``; a state, a position and 0 for ``_returns``.
        """
        cached = self._cached
        if key in cached:
            return cached[key]
        agenda, pending = [(key, self._answer(key))], {key}
        answer: Any = None
        while agenda:
            current, steps = agenda[-1]
            try:
                needed = steps.send(answer)
            except StopIteration as done:
                answer = cached[current] = done.value
                pending.discard(current)
                agenda.pop()
                continue
            answer = cached.get(needed)
            if answer is None:
                if needed in pending:
                    raise RuntimeError("a rule of the network begins with a call of itself")
                pending.add(needed)
                agenda.append((needed, self._answer(needed)))
        return answer

    def _answer(self, key: tuple[int, ...]) -> Generator[tuple[int, ...], Any, Any]:
        return self._within(*key) if len(key) == 2 else self._returns(key[0], key[1])

    def _within(self, start: int, ends: int) -> Generator[tuple[int, ...], Any, WithinSlot]:
        left: set[str] = set()
        stacks: set[Stack] = set()
        done: dict[int, set[str]] = {}
        pending: dict[int, set[str]] = {start: set(self._ends.sets[ends])}
        is_first = True
        while pending:
            state, new = pending.popitem()
            new -= done.setdefault(state, set())
            if not new:
                continue
            done[state] |= new
            if self._final[state] and not is_first:
                left |= new
            is_first = False
            given = self._ends.number(frozenset(new))
            read, reached = self._moves_of(state, given)
            stacks.update([(target,) for target in read])
            for target, rest in reached:
                pending.setdefault(target, set()).update(self._ends.sets[rest])
            for callee, after in self._calls[state]:
                inner: WithinSlot = yield callee, given
                stacks.update((*top, after) for top in inner.stacks)
                if inner.left:
                    pending.setdefault(after, set()).update(self._ends.sets[inner.left])
                if self._final[callee]:
                    pending.setdefault(after, set()).update(new)
        return WithinSlot(self._ends.number(frozenset(left)), tuple(sorted(stacks)))

    def _returns(self, state: int, at: SuffixPosition) -> Generator[tuple[int, ...], Any, frozenset[SuffixPosition]]:
        result: set[SuffixPosition] = set()
        cached = self._cached
        if self._final[state]:
            result.add(at)
        after, given = at >> SHIFT, at & ENDS_MASK
        if given == NO_ENDS:
            if after == EMPTY:
                return frozenset(result)
            slot, after = self._suffixes.parts[after]
            if slot == OPEN:  # skipping a part of a run of open slots reaches nothing new
                result |= yield state, self._suffixes.runs[at >> SHIFT][0] << SHIFT, 0
            given = self._given(slot)
        within: WithinSlot | None = cached.get((state, given))
        if within is None:
            within = yield state, given
        if within.left:
            result.add(after << SHIFT | within.left)
        # Stacks with equal lower states are followed together, the deepest first.
        waiting: dict[Stack, set[SuffixPosition]] = {stack: {after << SHIFT} for stack in within.stacks}
        for depth in range(max(map(len, within.stacks), default=0), 0, -1):
            for stack in [one for one in waiting if len(one) == depth]:
                positions = self._merged(waiting.pop(stack))
                reached = waiting.setdefault(stack[1:], set()) if depth > 1 else result
                top = stack[0]
                for each in positions:
                    key = top, each, 0
                    answer = cached.get(key)
                    if answer is None:
                        answer = yield key
                    reached |= answer
        return frozenset(self._merged(result))

    def _merged(self, positions: set[SuffixPosition]) -> set[SuffixPosition]:
        """The positions that matter: within one run of open slots, a position with more open slots subsumes the others.

        Ends unread in a slot are merged by union.
        """
        if len(positions) <= 1:
            return positions
        furthest: dict[int, tuple[int, int]] = {}  # by the end of the run: open slots left, and the suffix
        within: dict[int, dict[int, tuple[int, int]]] = {}  # likewise, with the ends, by open slots
        for position in positions:
            number, ends = position >> SHIFT, position & ENDS_MASK
            end, length = self._suffixes.runs[number]
            if not ends:
                if end not in furthest or furthest[end][0] < length:
                    furthest[end] = length, number
            else:
                slots = within.setdefault(end, {})
                slots[length] = (number, self._ends.union(slots[length][1], ends) if length in slots else ends)
        merged = {number << SHIFT for _, number in furthest.values()}
        for slots in within.values():
            every = NO_ENDS
            for length in sorted(slots, reverse=True):
                number, ends = slots[length]
                union = self._ends.union(every, ends)
                if union != every:
                    merged.add(number << SHIFT | ends)
                    every = union
        return merged
