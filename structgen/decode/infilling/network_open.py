"""Canvases with open slots of a grammar that recurs, by what calls can leave unread.

A rule that is called somewhere on the canvas and what it may do there do not depend on what stands left of the call.
So for a state and a place, the *returns* are found once: the places at which the rule that is read there can end.  A
place is a boundary between slots, or lies within a slot: then some end of a token is left to be read, and all ends that
can be left in that slot at that place are one set, because the slot may hold any of the tokens.

What stands left of the slot that is asked about is read once, slot by slot, with the calls that are open as a graph.
So a question about the next token of a hole costs as much as the hole and the text behind it, and most of that is known
from the last question.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, final

import numpy as np
from structgen_kernels import _native

from structgen.decode.diffusion.context_free.token_network import DEAD_CLASS, lift
from structgen.decode.diffusion.mean_field import FREE
from structgen.decode.infilling.open_canvas import OPEN
from structgen.decode.linked import SPECIAL_BASE
from structgen.decode.mask_words import mask_words
from structgen.engine.network import Network, network_of
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from structgen.decode.diffusion.posterior import Canvas
    from structgen.engine.constraint import Constraint

__all__ = ["MOST_STATES", "NetworkOpen"]

MOST_STATES: Final = 100_000
"""States of a network."""

_FEW_TOKENS: Final = 64
"""Tokens up to which it is not worth while to find out which of them do the same."""

_MOST_KNOWN: Final = 500_000
"""Answers that are kept."""

Ends: TypeAlias = "frozenset[str]"
"""Ends of tokens that are left to be read: one character a byte, or one for a special token.  Each has a number."""

Place: TypeAlias = int
"""The number of the suffix of the canvas that comes after a slot, and below ``_SHIFT`` bits that of the ends which are
left of the slot; ``_NOTHING`` at its boundary."""

Stack: TypeAlias = "tuple[int, ...]"
"""States, the one that reads first."""

_Tables: TypeAlias = "tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int32], NDArray[np.int32]]"

_END: Final = 0  # the number of the empty suffix
_NOTHING: Final = 0  # the number of no ends
_SHIFT: Final = 24
_BELOW: Final = (1 << _SHIFT) - 1


class _Within(NamedTuple):
    """What a state can make of a set of ends of tokens, within one slot.

    Attributes:
        left: the number of the ends that are left where its rule returns, having read something.
        stacks: the states in which all is read: of its own rule last, of rules that it called before it.
    """

    left: int
    stacks: tuple[Stack, ...]


@final
class _Call:
    """Calls of one rule at one place; compared by identity.

    Attributes:
        waiting: the state after each call's return, and the call that it is made in.
    """

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[tuple[int, _Call], None] = {}


Reading: TypeAlias = "tuple[int, _Call]"
"""A state at a boundary of slots, and the call that it reads in."""


@final
class NetworkOpen:
    """See ``OpenLanguage``; safe to share between threads, which wait for each other.

    Args:
        constraint: what the canvases spell.  In the engine's network no rule begins with a call of itself.
        most_states: states of the network.

    Raises:
        LimitExceeded: the network has more states than that.

    Complexity: a question about a canvas takes O(states x places) answers, each the walk of a set of ends of tokens
        through the network, and each as large as there are runs of open slots and tokens behind the place; the answers
        are kept for all canvases with the same suffix.  Places within slots are as many as sets of ends that calls
        leave, which is few.  Of a vocabulary with more than a few tokens, those that do the same everywhere are one.
    """

    def __init__(self, constraint: Constraint, *, most_states: int = MOST_STATES) -> None:
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
        self._final = _nullable(final_.astype(bool).tolist(), self._calls)
        self._spelled = [piece.decode("latin-1") for piece in vocabulary.tokens]
        for state, token, after in specials.tolist():
            self._spelled[token] = chr(SPECIAL_BASE + token)
            self._steps[state][chr(SPECIAL_BASE + token)] = after
        for token in vocabulary.eos:
            self._spelled[token] = ""
        self._group_of, self._pieces_of = self._groups(constraint, made)
        self._any = frozenset(filter(None, self._pieces_of))
        self._lock = threading.Lock()
        self._forget()

    def _groups(self, constraint: Constraint, made: _Tables) -> tuple[NDArray[np.int32], list[str]]:
        """Which tokens do the same wherever they stand, and one of each group; those that do nothing have none."""
        if constraint.vocabulary.size > _FEW_TOKENS:
            try:
                lifted = lift(self._lifting(constraint, made), constraint.vocabulary)
            except LimitExceeded:
                pass  # every token is then a group of its own
            else:
                _, first = np.unique(lifted.class_of, return_index=True)
                pieces = [""] * lifted.classes
                for token in first.tolist():
                    if lifted.class_of[token] != DEAD_CLASS:
                        pieces[int(lifted.class_of[token])] = self._spelled[token]
                return lifted.class_of, pieces
        numbers: dict[str, int] = {"": 0}
        groups = [numbers.setdefault(piece, len(numbers)) for piece in self._spelled]
        return np.array(groups, dtype=np.int32), list(numbers)

    def _lifting(self, constraint: Constraint, made: _Tables) -> Network:
        """A network in which every call reads something: the engine's own, where it is one."""
        next_, final_, calls, specials = made
        if any(self._final[start] for _, start, _ in calls.tolist()):
            return network_of(constraint)
        called = tuple((state, start, after) for state, start, after in calls.tolist())
        special = tuple((state, token, after) for state, token, after in specials.tolist())
        return Network(next_, final_.astype(bool), called, special, is_deterministic=False)

    def _forget(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._suffixes: list[tuple[int, int]] = [(_END, _END)]
        # Of each suffix: what is left of it behind the open slots that it begins with, and how many these are.
        self._runs: list[tuple[int, int]] = [(_END, 0)]
        self._ends: list[Ends] = [frozenset()]
        self._ends_numbers: dict[Ends, int] = {frozenset(): _NOTHING}
        self._unions: dict[tuple[int, int], int] = {}
        self._every = self._ends_number(self._any)
        self._moves: dict[tuple[int, int], tuple[tuple[int, ...], tuple[tuple[int, int], ...]]] = {}
        self._known: dict[tuple[int, ...], Any] = {}
        self._root = _Call()
        self._read: tuple[list[int], list[frozenset[Reading]]] = (
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
            dead: set[tuple[_Call, Place]] = set()
            return any(self._accepts((state,), call, suffix, dead) for state, call in self._readings(slots[:split]))

    def allowed(self, canvas: Canvas, slot: int, /) -> NDArray[np.int32]:
        """See ``OpenLanguage.allowed``."""
        slots = canvas.tolist()
        with self._lock:
            self._bound()
            pieces = self._pieces(self._readings(slots[:slot]), self._suffix(slots[slot + 1 :]))
        held = np.array([piece in pieces for piece in self._pieces_of])
        return mask_words(held[self._group_of])

    def _bound(self) -> None:
        if len(self._known) + len(self._moves) > _MOST_KNOWN:
            self._forget()

    def _pieces(self, readings: frozenset[Reading], suffix: int) -> set[str]:
        """The tokens that lead from readings to a suffix."""
        found: set[str] = set()
        begins: dict[str, bool] = {}
        dead: set[tuple[_Call, Place]] = set()
        accepted: dict[tuple[Stack, _Call], bool] = {}
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
        number = _END
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

    def _readings(self, slots: list[int]) -> frozenset[Reading]:
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

    def _read_slot(self, readings: frozenset[Reading], slot: int) -> frozenset[Reading]:
        """The readings after one slot more."""
        found: set[Reading] = set(readings) if slot == OPEN else set()
        given = self._given(slot)
        calls: dict[tuple[int, int], _Call] = {}
        returned: dict[_Call, set[int]] = {}
        seen: set[tuple[int, int, _Call]] = set()
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
                    inner = calls[callee, ends] = _Call()
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

    def _after(self, readings: Iterable[Reading], piece: str) -> set[tuple[Stack, _Call]]:
        """What is open after one token more: states above a call."""
        found: set[tuple[Stack, _Call]] = set()
        whole = self._ends_number(frozenset([piece]))
        pending = [(state, whole, call) for state, call in readings]
        seen: set[tuple[int, int, _Call]] = set()
        while pending:
            item = pending.pop()
            if item in seen:
                continue
            seen.add(item)
            state, ends, call = item
            within: _Within = self._solve((state, ends))
            found.update([(stack, call) for stack in within.stacks])
            left = self._union(within.left, ends) if self._final[state] else within.left
            if left:
                pending += [(after, left, outer) for after, outer in call.waiting]
        return found

    def _accepts(self, stack: Stack, call: _Call, suffix: int, dead: set[tuple[_Call, Place]]) -> bool:
        """Whether a suffix of a canvas can be read from a stack, and then from where the call returns, to the end.

        Args:
            stack: states above the call.
            call: which is open below them.
            suffix: of the canvas.
            dead: calls whose return at a place leads nowhere; more are added.
        """
        places = {suffix << _SHIFT}
        for state in stack:
            reached: set[Place] = set()
            for place in places:
                reached |= self._solve((state, place, 0))
            places = self._merged(reached)
        pending = [(call, place) for place in places]
        seen: set[tuple[_Call, Place]] = set()
        while pending:
            item = pending.pop()
            if item in seen or item in dead:
                continue
            if item[0] is self._root and not item[1] & _BELOW and self._runs[item[1] >> _SHIFT][0] == _END:
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

    def _within(self, start: int, ends: int) -> Generator[tuple[int, ...], Any, _Within]:
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
                    inner: _Within = yield callee, given
                    stacks.update((*top, after) for top in inner.stacks)
                    if inner.left:
                        pending.setdefault(after, set()).update(self._ends[inner.left])
                    if self._final[callee]:
                        pending.setdefault(after, set()).update(new)
        return _Within(self._ends_number(frozenset(left)), tuple(sorted(stacks)))

    def _returns(self, state: int, place: Place) -> Generator[tuple[int, ...], Any, frozenset[Place]]:
        found: set[Place] = set()
        known = self._known
        if self._final[state]:
            found.add(place)
        after, given = place >> _SHIFT, place & _BELOW
        if given == _NOTHING:
            if after == _END:
                return frozenset(found)
            slot, after = self._suffixes[after]
            if slot == OPEN:  # to leave some of a run empty and not all leads to nothing new
                found |= yield state, self._runs[place >> _SHIFT][0] << _SHIFT, 0
            given = self._given(slot)
        within: _Within | None = known.get((state, given))
        if within is None:
            within = yield state, given
        if within.left:
            found.add(after << _SHIFT | within.left)
        # Stacks that go on alike below are followed together, the deepest first.
        waiting: dict[Stack, set[Place]] = {stack: {after << _SHIFT} for stack in within.stacks}
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

    def _merged(self, places: set[Place]) -> set[Place]:
        """The places that count: of those in one run of open slots, what leaves more of them open can do the same.

        Of what may be left in a slot, any end will do.
        """
        if len(places) <= 1:
            return places
        furthest: dict[int, tuple[int, int]] = {}  # by the end of the run: open slots that are left, and the suffix
        within: dict[int, dict[int, tuple[int, int]]] = {}  # likewise, with the ends, by open slots
        for place in places:
            number, ends = place >> _SHIFT, place & _BELOW
            end, length = self._runs[number]
            if not ends:
                if end not in furthest or furthest[end][0] < length:
                    furthest[end] = length, number
            else:
                slots = within.setdefault(end, {})
                slots[length] = (number, self._union(slots[length][1], ends) if length in slots else ends)
        merged = {number << _SHIFT for _, number in furthest.values()}
        for slots in within.values():
            every = _NOTHING
            for length in sorted(slots, reverse=True):
                number, ends = slots[length]
                union = self._union(every, ends)
                if union != every:
                    merged.add(number << _SHIFT | ends)
                    every = union
        return merged


def _nullable(final: list[bool], calls: list[list[tuple[int, int]]]) -> list[bool]:
    """From which states a rule can end with nothing read, calls of rules that can do so counted."""
    found = list(final)
    grown = True
    while grown:
        grown = False
        for state, made in enumerate(calls):
            if not found[state] and any(found[start] and found[after] for start, after in made):
                found[state] = grown = True
    return found
