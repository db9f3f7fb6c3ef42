"""Canvases with open slots of a grammar that recurs, by what calls can leave unread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, final

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.parse.grammar_graph import SPECIAL_BASE
from structgen.engine.mask import pack
from structgen.errors import LimitExceeded
from structgen.methods.infilling.open_canvas import (
    EMPTY,
    ENDS_MASK,
    MAX_CACHED,
    MAX_STATES,
    NO_ENDS,
    OPEN,
    SHIFT,
    CallPosition,
    Ends,
    OpenCall,
    Stack,
    SuffixPosition,
    WithinSlot,
    nullable_states,
    token_groups,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.engine.constraint import Constraint

__all__ = ["NetworkOpen"]


@final
class NetworkOpen:
    """See ``OpenLanguage``; safe to share between threads, which wait for each other.

    Args:
        constraint: what the canvases spell.  In the engine's network no rule begins with a call of itself.
        most_states: states of the network.

    Raises:
        LimitExceeded: the network has more states than that.

    Complexity: a question about a canvas takes O(states x places) answers, each the walk of a set of ends of tokens
        through the network, and each as large as there are runs of open slots and tokens after the place; the answers
        are kept for all canvases with the same suffix.  Places within slots are as many as sets of ends that calls
        leave, which is few.  Of a vocabulary with more than a few tokens, those that do the same everywhere are one.
    """

    def __init__(self, constraint: Constraint, *, most_states: int = MAX_STATES) -> None:
        made = _native.unfold_calls(constraint.native, most_states)
        if made is None:
            raise LimitExceeded(
                "network of a grammar",
                limit="most_states",
                maximum=most_states,
                remedy="bound what repeats, or raise most_states",
            )
        next_, final_, calls, specials = made
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
        self._group_of, self._pieces_of = token_groups(constraint, made, self._final, self._spelled)
        self._any = frozenset(filter(None, self._pieces_of))
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._suffixes: list[tuple[int, int]] = [(EMPTY, EMPTY)]
        # Of each suffix: what is left of it after the open slots that it begins with, and how many these are.
        self._runs: list[tuple[int, int]] = [(EMPTY, 0)]
        self._ends: list[Ends] = [frozenset()]
        self._ends_numbers: dict[Ends, int] = {frozenset(): NO_ENDS}
        self._unions: dict[tuple[int, int], int] = {}
        self._every = self._ends_number(self._any)
        self._moves: dict[tuple[int, int], tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {}
        self._known: dict[tuple[int, ...], Any] = {}
        self._root = OpenCall()
        self._read: tuple[list[int], list[frozenset[CallPosition]]] = (
            [],
            [frozenset([(0, self._root)])],
        )  # what was read last

    def completable(self, canvas: Canvas, /, *, at: int | None = None) -> bool:
        """See ``OpenLanguage.completable``."""
        slots = canvas.tolist()
        split = at if at is not None else next((place for place, slot in enumerate(slots) if slot < 0), len(slots))
        with self._lock:
            self._bound()
            suffix = self._suffix(slots[split:])
            dead: set[tuple[OpenCall, SuffixPosition]] = set()
            return any(self._accepts((state,), call, suffix, dead) for state, call in self._readings(slots[:split]))

    def allowed(self, canvas: Canvas, slot: int, /) -> NDArray[np.int32]:
        """See ``OpenLanguage.allowed``."""
        slots = canvas.tolist()
        with self._lock:
            self._bound()
            pieces = self._pieces(self._readings(slots[:slot]), self._suffix(slots[slot + 1 :]))
        held = np.array([piece in pieces for piece in self._pieces_of])
        return pack(held[self._group_of])

    def _bound(self) -> None:
        if len(self._known) + len(self._moves) > MAX_CACHED:
            self._forget()

    def _pieces(self, readings: frozenset[CallPosition], suffix: int) -> set[str]:
        """The tokens that lead from readings to a suffix."""
        found: set[str] = set()
        begins: dict[str, bool] = {}
        dead: set[tuple[OpenCall, SuffixPosition]] = set()
        accepted: dict[tuple[Stack, OpenCall], bool] = {}
        for piece in self._any:
            first = piece[0]
            if first not in begins:
                begins[first] = bool(self._after(readings, first))
            if not begins[first]:
                continue
            for each in self._after(readings, piece):
                if each not in accepted:
                    accepted[each] = self._accepts(*each, suffix, dead)
                if accepted[each]:
                    found.add(piece)
                    break
        return found

    def _suffix(self, slots: Sequence[int]) -> int:
        """The number of a suffix of canvases."""
        number = EMPTY
        for slot in reversed(slots):
            key = slot, number
            found = self._numbers.get(key)
            if found is None:
                found = self._numbers[key] = len(self._suffixes)
                self._suffixes.append(key)
                end, length = self._runs[number]
                self._runs.append((end, length + 1) if slot == OPEN else (found, 0))
            number = found
        return number

    def _readings(self, slots: list[int]) -> frozenset[CallPosition]:
        """How the slots on the left can be read."""
        read, found = self._read
        known = 0
        while known < min(len(read), len(slots)) and read[known] == slots[known]:
            known += 1
        read, found = read[:known], found[: known + 1]
        for slot in slots[known:]:
            read.append(slot)
            found.append(self._read_slot(found[-1], slot))
        self._read = read, found
        return found[-1]

    def _given(self, slot: int) -> int:
        """The number of what a slot may hold."""
        return (
            self._every if slot in (OPEN, FREE) else self._ends_number(frozenset(filter(None, [self._spelled[slot]])))
        )

    def _read_slot(self, readings: frozenset[CallPosition], slot: int) -> frozenset[CallPosition]:
        """The readings after one slot more."""
        found: set[CallPosition] = set(readings) if slot == OPEN else set()
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
            if self._final[state] and call is not self._root:
                returned.setdefault(call, set()).add(ends)
                pending += [(after, ends, outer) for after, outer in call.waiting]
            read, reached = self._moves_of(state, ends)
            found.update([(target, call) for target in read])
            pending += [(target, rest, call) for target, rest in reached]
            for callee, after in self._calls[state]:
                inner = calls.get((callee, ends))
                if inner is None:
                    inner = calls[callee, ends] = OpenCall()
                    pending.append((callee, ends, inner))
                inner.waiting[after, call] = None
                pending += [(after, rest, call) for rest in returned.get(inner, ())]
        return frozenset(found)

    def _moves_of(self, state: int, ends: int) -> tuple[tuple[int, ...], tuple[tuple[int, int], ...]]:
        """The states in which ends of one symbol are read, and those after one symbol with what is left then."""
        found = self._moves.get((state, ends))
        if found is None:
            steps = self._steps[state]
            read: set[int] = set()
            reached: dict[int, set[str]] = {}
            for end in self._ends[ends]:
                target = steps.get(end[0])
                if target is None:
                    continue
                if len(end) == 1:
                    read.add(target)
                else:
                    reached.setdefault(target, set()).add(end[1:])
            found = self._moves[state, ends] = (
                tuple(read),
                tuple((target, self._ends_number(frozenset(rest))) for target, rest in reached.items()),
            )
        return found

    def _after(self, readings: Iterable[CallPosition], piece: str) -> set[tuple[Stack, OpenCall]]:
        """What is open after one token more: states above a call."""
        found: set[tuple[Stack, OpenCall]] = set()
        whole = self._ends_number(frozenset([piece]))
        pending = [(state, whole, call) for state, call in readings]
        seen: set[tuple[int, int, OpenCall]] = set()
        while pending:
            item = pending.pop()
            if item in seen:
                continue
            seen.add(item)
            state, ends, call = item
            within: WithinSlot = self._solve((state, ends))
            found.update([(stack, call) for stack in within.stacks])
            left = self._union(within.left, ends) if self._final[state] else within.left
            if left:
                pending += [(after, left, outer) for after, outer in call.waiting]
        return found

    def _accepts(self, stack: Stack, call: OpenCall, suffix: int, dead: set[tuple[OpenCall, SuffixPosition]]) -> bool:
        """Whether a suffix of a canvas can be read from a stack, and then from where the call returns, to the end.

        Args:
            stack: states above the call.
            call: which is open below them.
            suffix: of the canvas.
            dead: calls whose return at a place leads nowhere; more are added.
        """
        places = {suffix << SHIFT}
        for state in stack:
            reached: set[SuffixPosition] = set()
            for place in places:
                reached |= self._solve((state, place, 0))
            places = self._merged(reached)
        pending = [(call, place) for place in places]
        seen: set[tuple[OpenCall, SuffixPosition]] = set()
        while pending:
            item = pending.pop()
            if item in seen or item in dead:
                continue
            if item[0] is self._root and not item[1] & ENDS_MASK and self._runs[item[1] >> SHIFT][0] == EMPTY:
                return True
            seen.add(item)
            at, place = item
            for after, outer in at.waiting:
                pending += [(outer, each) for each in self._solve((after, place, 0))]
        dead |= seen
        return False

    def _solve(self, key: tuple[int, ...]) -> Any:
        """The answer to a question, after those to the questions that it raises; without recursion.

        Args:
            key: a state and a number of ends for ``_within``; a state, a place and 0 for ``_returns``.
        """
        known = self._known
        if key in known:
            return known[key]
        agenda, asked = [(key, self._answer(key))], {key}
        answer: Any = None
        while agenda:
            current, steps = agenda[-1]
            try:
                wanted = steps.send(answer)
            except StopIteration as done:
                answer = known[current] = done.value
                asked.discard(current)
                agenda.pop()
                continue
            answer = known.get(wanted)
            if answer is None:
                if wanted in asked:
                    raise RuntimeError("a rule of the network begins with a call of itself")
                asked.add(wanted)
                agenda.append((wanted, self._answer(wanted)))
        return answer

    def _answer(self, key: tuple[int, ...]) -> Generator[tuple[int, ...], Any, Any]:
        return self._within(*key) if len(key) == 2 else self._returns(key[0], key[1])

    def _within(self, start: int, ends: int) -> Generator[tuple[int, ...], Any, WithinSlot]:
        left: set[str] = set()
        stacks: set[Stack] = set()
        done: dict[int, set[str]] = {}
        pending: dict[int, set[str]] = {start: set(self._ends[ends])}
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
            given = self._ends_number(frozenset(new))
            read, reached = self._moves_of(state, given)
            stacks.update([(target,) for target in read])
            for target, rest in reached:
                pending.setdefault(target, set()).update(self._ends[rest])
            if self._calls[state]:
                for callee, after in self._calls[state]:
                    inner: WithinSlot = yield callee, given
                    stacks.update((*top, after) for top in inner.stacks)
                    if inner.left:
                        pending.setdefault(after, set()).update(self._ends[inner.left])
                    if self._final[callee]:
                        pending.setdefault(after, set()).update(new)
        return WithinSlot(self._ends_number(frozenset(left)), tuple(sorted(stacks)))

    def _returns(self, state: int, place: SuffixPosition) -> Generator[tuple[int, ...], Any, frozenset[SuffixPosition]]:
        found: set[SuffixPosition] = set()
        known = self._known
        if self._final[state]:
            found.add(place)
        after, given = place >> SHIFT, place & ENDS_MASK
        if given == NO_ENDS:
            if after == EMPTY:
                return frozenset(found)
            slot, after = self._suffixes[after]
            if slot == OPEN:  # to leave some of a run empty and not all leads to nothing new
                found |= yield state, self._runs[place >> SHIFT][0] << SHIFT, 0
            given = self._given(slot)
        within: WithinSlot | None = known.get((state, given))
        if within is None:
            within = yield state, given
        if within.left:
            found.add(after << SHIFT | within.left)
        # Stacks that go on alike below are followed together, the deepest first.
        waiting: dict[Stack, set[SuffixPosition]] = {stack: {after << SHIFT} for stack in within.stacks}
        for depth in range(max(map(len, within.stacks), default=0), 0, -1):
            for stack in [one for one in waiting if len(one) == depth]:
                places = self._merged(waiting.pop(stack))
                reached = waiting.setdefault(stack[1:], set()) if depth > 1 else found
                top = stack[0]
                for each in places:
                    key = top, each, 0
                    answer = known.get(key)
                    if answer is None:
                        answer = yield key
                    reached |= answer
        return frozenset(self._merged(found))

    def _ends_number(self, ends: Ends) -> int:
        number = self._ends_numbers.get(ends)
        if number is None:
            number = self._ends_numbers[ends] = len(self._ends)
            self._ends.append(ends)
        return number

    def _union(self, one: int, other: int) -> int:
        """The number of the ends that are in one of two sets."""
        if not one or not other or one == other:
            return one or other
        key = (one, other) if one < other else (other, one)
        number = self._unions.get(key)
        if number is None:
            number = self._unions[key] = self._ends_number(self._ends[one] | self._ends[other])
        return number

    def _merged(self, places: set[SuffixPosition]) -> set[SuffixPosition]:
        """The places that count: of those in one run of open slots, what leaves more of them open can do the same.

        Of what may be left in a slot, any end will do.
        """
        if len(places) <= 1:
            return places
        furthest: dict[int, tuple[int, int]] = {}  # by the end of the run: open slots that are left, and the suffix
        within: dict[int, dict[int, tuple[int, int]]] = {}  # likewise, with the ends, by open slots
        for place in places:
            number, ends = place >> SHIFT, place & ENDS_MASK
            end, length = self._runs[number]
            if not ends:
                if end not in furthest or furthest[end][0] < length:
                    furthest[end] = length, number
            else:
                slots = within.setdefault(end, {})
                slots[length] = (number, self._union(slots[length][1], ends) if length in slots else ends)
        merged = {number << SHIFT for _, number in furthest.values()}
        for slots in within.values():
            every = NO_ENDS
            for length in sorted(slots, reverse=True):
                number, ends = slots[length]
                union = self._union(every, ends)
                if union != every:
                    merged.add(number << SHIFT | ends)
                    every = union
        return merged
