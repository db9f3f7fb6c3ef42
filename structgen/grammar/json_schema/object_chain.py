"""Objects as grammars, where something must be remembered from member to member.

Negated facets must be violated by some member, by a missing name or by the number of members; ``dependentRequired``
calls for names by others.  The members are chained from the right as in ``object_terms``, one chain for each state of
what is remembered.  A member that may violate a facet is read in two ways, as a violation and as any member; so
states are sets of facets that are known to be violated, and a text may be read in several ways.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from structgen.errors import LimitExceeded
from structgen.grammar.json_schema.normal_form import Relation
from structgen.grammar.json_schema.object_alternatives import union_of_permutations
from structgen.grammar.json_schema.object_layout import names_place, places_of_region
from structgen.grammar.json_schema.object_terms import refuse_count, refuse_size
from structgen.grammar.json_schema.terms import alternatives, chain, distinct
from structgen.grammar.nodes import EMPTY, EPSILON, Choice, Grammar, Repeat, Sequence

if TYPE_CHECKING:
    from structgen.grammar.json_schema.object_layout import Entry, ObjectLayout, OtherNames
    from structgen.grammar.json_schema.places import Place
    from structgen.grammar.json_schema.proofs import Answer, Ask
    from structgen.grammar.json_schema.syntax import Syntax

__all__ = ["ObjectChain"]

Part = TypeVar("Part")

_MOST_STATES: Final = 50_000
"""Names times states of a chain."""
_MOST_READINGS: Final = 256
"""Ways to read one member, by the facets that it violates."""


class State(NamedTuple):
    """What is remembered between members.

    Attributes:
        violated: the watched facets that are known to be violated, as bits.
        due: the entries that must still come, and ``barred`` those that must not, as bits.
        size: how many members were written, as far as that matters.
        others: how many of them have undeclared names, where that is bounded.
    """

    violated: int = 0
    due: int = 0
    barred: int = 0
    size: int = 0
    others: int = 0


class Reading(NamedTuple):
    """One way to read a member.

    Attributes:
        violates: the facets that it violates, and ``proves`` those of them for which a narrower name or value is asked.
        key: its name.
        value: which of the chain's places its value belongs to.
    """

    violates: int
    proves: int
    key: Grammar
    value: int


Compare = Callable[["tuple[Place, ...]", "Place"], Relation]


class _Choice(NamedTuple):
    violates: int
    proves: int
    places: tuple[Place, ...]
    languages: tuple[Grammar, ...]


class ObjectChain:
    """The objects of a layout with watched facets or dependent names.

    Attributes:
        places: the conjunctions of schemas whose terms ``term`` needs.
    """

    def __init__(self, layout: ObjectLayout, compare: Compare) -> None:
        self._layout = layout
        self._compare = compare
        self.places: list[tuple[Place, ...]] = []
        self._members = [list(self._readings_of_entry(entry)) for entry in layout.entries]
        self._others = [reading for region in layout.others for reading in self._readings_of_region(region)]
        index = {entry.name: number for number, entry in enumerate(layout.entries)}
        self._calls = [0] * len(index)  # by an entry: the later ones that must come with it
        self._called_by = [0] * len(index)  # the later ones that must not come without it
        for name, others in layout.dependents.items():
            for other in others:
                if layout.entries[index[other]].is_required:
                    continue
                if index[other] > index[name]:
                    self._calls[index[name]] |= 1 << index[other]
                else:
                    self._called_by[index[other]] |= 1 << index[name]
        self._missing = [
            sum(1 << number for number, facet in enumerate(layout.watched) if entry.name in facet.required)
            for entry in layout.entries
        ]
        self._cap = _cap(layout)

    def _value(self, places: tuple[Place, ...]) -> int:
        self.places.append(places)
        return len(self.places) - 1

    def _readings_of_entry(self, entry: Entry) -> Iterator[Reading]:
        if entry.is_forbidden:
            return
        choices = [_Choice(0, 0, (), ())]
        for number, facet in enumerate(self._layout.watched):
            watched = facet.places_of(entry.name)
            if facet.names is True:
                if not watched:  # as for most names
                    continue
                is_bad_name = False
            else:
                is_bad_name = not self._layout.name_rules((names_place(facet),)).admits(entry.name)
            outside = self._outside(entry.places, watched)
            choices = self._watch(choices, 1 << number, None if is_bad_name else outside)
        for violates, proves, places, _ in choices:
            yield Reading(violates, proves, entry.key, self._value((*entry.places, *places)))

    def _readings_of_region(self, region: OtherNames) -> Iterator[Reading]:
        choices = [_Choice(0, 0, (), ())]
        for number, facet in enumerate(self._layout.watched):
            bit = 1 << number
            bad_names: Grammar | None = EMPTY
            if facet.names is not True:
                bad_names = self._layout.name_rules((names_place(facet).complement(),)).language()
            outside = self._outside(region.places, places_of_region((facet,), region.matched))
            grown = self._watch(choices, bit, None if bad_names is None else outside)
            if bad_names is not None and bad_names is not EMPTY:
                grown += [
                    _Choice(c.violates | bit, c.proves | bit, c.places, (*c.languages, bad_names)) for c in choices
                ]
            choices = grown
        for violates, proves, places, languages in choices:
            key = region.within(languages) if languages else region.key
            yield Reading(violates, proves, key, self._value((*region.places, *places)))

    def _outside(self, places: tuple[Place, ...], watched: tuple[Place, ...]) -> list[Place] | None:
        """The schemas by which values of ``places`` violate ``watched``; ``None`` where all of them do."""
        found: list[Place] = []
        for place in watched:
            relation = Relation.OUTSIDE if place.schema is False else self._compare(places, place)
            if relation is Relation.OUTSIDE:
                return None
            if relation is Relation.UNKNOWN:
                found.append(place.complement())
        return found

    def _watch(self, choices: list[_Choice], bit: int, outside: list[Place] | None) -> list[_Choice]:
        """Add the ways in which a member violates a facet: in any case, or by one of ``outside``."""
        if outside is None:
            return [_Choice(c.violates | bit, c.proves, c.places, c.languages) for c in choices]
        grown = choices + [
            _Choice(c.violates | bit, c.proves | bit, (*c.places, place), c.languages)
            for c in choices
            for place in outside
        ]
        if len(grown) > _MOST_READINGS:
            facet = self._layout.watched[0]
            raise LimitExceeded(
                facet.place.subject(),
                limit="readings",
                maximum=_MOST_READINGS,
                evidence="one member may violate many negated schemas in many ways",
            )
        return grown

    def term(self, values: Items[Grammar], syntax: Syntax) -> Grammar:
        """The objects, given the terms of ``places``; ``EMPTY`` means that there are none.

        Raises:
            UnsupportedFeature: the number of members matters, and names that patterns leave may be repeated.
            LimitExceeded: there are too many states.

        Complexity: O(names * states * readings); the states are at most exponential in the number of watched facets
        and of open dependencies.
        """
        return _Builder(self, values, syntax).term()

    def is_empty(self, parts: Items[Part], ask: Ask[Part]) -> Answer:
        """Whether ``term`` makes nothing of the terms of ``places``, given these.

        Where there are too many states, or names that may be repeated would have to be counted, the answer is no.
        """
        others = [reading for reading in self._others if reading.key is not EMPTY]
        count = len(self._members)
        found = {(0, State())}
        waiting = [(0, State())]
        while waiting:
            index, state = waiting.pop()
            if index == count and self.accepts(state):
                return False
            after: list[tuple[int, State]] = []
            for reading in others:
                begun = None if reading.proves & state.violated else self.begin(reading, state)
                if begun is not None and (index, begun) not in found and not (yield ask(parts[reading.value])):
                    after.append((index, begun))
            if index < count:
                skipped = self.skip(index, state)
                if skipped is not None:
                    after.append((index + 1, skipped))
                for reading in self._members[index]:
                    taken = None if reading.proves & state.violated else self.take(index, reading, state)
                    if taken is not None and (index + 1, taken) not in found and not (yield ask(parts[reading.value])):
                        after.append((index + 1, taken))
            for step in after:
                if step not in found:
                    found.add(step)
                    waiting.append(step)
            if len(found) > _MOST_STATES:
                return False
        return True

    def begin(self, reading: Reading, state: State) -> State | None:
        """The state after a member with an undeclared name."""
        after = self._counted(reading, state)
        if after is None or self._layout.most_others is None:
            return after
        return None if after.others == self._layout.most_others else after._replace(others=after.others + 1)

    def _counted(self, reading: Reading, state: State) -> State | None:
        """The state after a member."""
        size = min(state.size + 1, self._cap)
        if self._layout.most is not None and size > self._layout.most:
            return None
        return State(state.violated | reading.violates, state.due, state.barred, size)

    def take(self, index: int, reading: Reading, state: State) -> State | None:
        """The state after the entry at ``index``, if it may come."""
        after = self._counted(reading, state)
        if after is None or state.barred >> index & 1:
            return None
        due = (state.due | self._calls[index]) & ~(1 << index)
        return after if due == after.due else State(after.violated, due, after.barred, after.size)

    def skip(self, index: int, state: State) -> State | None:
        """The state where the entry at ``index`` does not come, if it may be missing."""
        if self._layout.entries[index].is_required or state.due >> index & 1:
            return None
        violated = state.violated | self._missing[index]
        barred = (state.barred | self._called_by[index]) & ~(1 << index)
        if violated == state.violated and barred == state.barred:
            return state
        return State(violated, state.due, barred, state.size)

    def accepts(self, state: State) -> bool:
        """Whether an object may end here, with no entry left."""
        if state.size < self._layout.fewest:
            return False
        for number, facet in enumerate(self._layout.watched):
            is_counted_out = state.size < facet.fewest or (facet.most is not None and state.size > facet.most)
            if not (state.violated >> number & 1 or is_counted_out):
                return False
        return True


def _cap(layout: ObjectLayout) -> int:
    """The number of members from which on more make no difference."""
    bounds = [layout.fewest, *(facet.fewest for facet in layout.watched)]
    bounds += [most + 1 for most in (layout.most, *(facet.most for facet in layout.watched)) if most is not None]
    return max(bounds)


class _Builder:
    """Chains the members from the right, for all states that can be reached."""

    def __init__(self, chain: ObjectChain, values: Items[Grammar], syntax: Syntax) -> None:
        self._chain = chain
        self._layout = layout = chain._layout
        self._syntax = syntax
        self._values = values
        self._made: dict[int, Grammar] = {}  # the members, by the place of their values
        self._begun: dict[State, list[tuple[Reading, State]]] = {}
        self._skipped: dict[tuple[int, State], State | None] = {}
        self._taken: dict[tuple[int, State], list[tuple[Reading, State]]] = {}
        self._others = [r for r in chain._others if values[r.value] is not EMPTY and r.key is not EMPTY]
        self._members = [[r for r in readings if values[r.value] is not EMPTY] for readings in chain._members]
        most_needed = max([layout.fewest, *(facet.most + 1 for facet in layout.watched if facet.most is not None)])
        required = sum(entry.is_required for entry in layout.entries)
        self._repeats_count = bool(self._others) and most_needed - required > 1  # a text could repeat undeclared names
        if self._repeats_count and not all(region.is_open for region in layout.others):
            refuse_count(layout)

    def term(self) -> Grammar:
        term = self._chained()
        return distinct(term, is_endless=True) if self._repeats_count else term

    def _chained(self) -> Grammar:
        if self._syntax.policy.order == "any":
            return union_of_permutations(self._layout, self._members, self._others, self._values, self._syntax)
        count = len(self._members)
        before, after = self._reached()
        tails: dict[State, Grammar | None] = {}
        following: dict[State, Grammar] = {}
        ends: dict[State, bool] = {}  # whether an object may end with no entry from here on
        for index in range(count, -1, -1):
            following_here: dict[State, Grammar] = {}
            ends_here: dict[State, bool] = {}
            for state in before[index] | after[index]:
                if index == count:
                    following_here[state] = EMPTY
                    ends_here[state] = self._chain.accepts(state)
                else:
                    skipped = self._skipped[index, state]
                    following_here[state] = self._next(index, state, skipped, tails, following)
                    ends_here[state] = skipped is not None and ends[skipped]
            tails_here: dict[State, Grammar | None] = {}
            for state in sorted(after[index], key=_progress, reverse=True):
                tails_here[state] = self._tail(state, following_here[state], tails_here, can_end=ends_here[state])
            following, tails, ends = following_here, tails_here, ends_here
        start = State()
        parts = [following[start]]
        for reading, state in self._steps(start):
            tail = tails[state]
            if tail is not None:
                parts.append(chain(self._member(reading), tail))
        first = alternatives(*parts)
        empty = ends[start]
        syntax = self._syntax
        if first is EMPTY:
            return Sequence((syntax.open_object, syntax.end_object)) if empty else EMPTY
        some = Sequence((first, syntax.close_object))
        return Sequence((syntax.open_object, Choice((syntax.end_object, some)) if empty else some))

    def _reached(self) -> tuple[list[set[State]], list[set[State]]]:
        """By the number of entries decided: the states that entries left out lead to, and those after a member."""
        count = len(self._members)
        before: list[set[State]] = [set() for _ in range(count + 1)]
        after: list[set[State]] = [set() for _ in range(count + 1)]
        before[0].add(State())
        after[0].update(state for _, state in self._steps(State()))
        total = 0
        for index in range(count + 1):
            waiting = list(after[index])
            while waiting:
                for _, state in self._steps(waiting.pop()):
                    if state not in after[index]:
                        after[index].add(state)
                        waiting.append(state)
            here = before[index] | after[index]
            total += len(here)
            if total > _MOST_STATES:
                refuse_size(self._layout)
            if index == count:
                break
            for state in here:
                skipped = self._skipped[index, state] = self._chain.skip(index, state)
                if skipped is not None:
                    before[index + 1].add(skipped)
                takes = self._taken[index, state] = list(self._takes(index, state))
                after[index + 1].update([taken for _, taken in takes])
        return before, after

    def _steps(self, state: State) -> list[tuple[Reading, State]]:
        """The members with undeclared names that may come."""
        found = self._begun.get(state)
        if found is None:
            found = self._begun[state] = []
            for reading in self._others:
                if not reading.proves & state.violated:  # what is violated already needs no proof
                    after = self._chain.begin(reading, state)
                    if after is not None:
                        found.append((reading, after))
        return found

    def _takes(self, index: int, state: State) -> Iterator[tuple[Reading, State]]:
        for reading in self._members[index]:
            if not reading.proves & state.violated:
                after = self._chain.take(index, reading, state)
                if after is not None:
                    yield reading, after

    def _next(
        self,
        index: int,
        state: State,
        skipped: State | None,
        tails: dict[State, Grammar | None],
        following: dict[State, Grammar],
    ) -> Grammar:
        """What may come after a comma, the entries from ``index`` on and no others before the first of them."""
        members: list[Grammar] = []
        for reading, after in self._taken[index, state]:
            tail = tails[after]
            if tail is not None:
                members.append(chain(self._member(reading), tail))
        if skipped is not None:
            members.append(following[skipped])
        return alternatives(*members)

    def _tail(
        self, state: State, following: Grammar, tails: dict[State, Grammar | None], *, can_end: bool
    ) -> Grammar | None:
        """What may come after a member; ``None`` where no object can be ended any more."""
        comma = self._syntax.comma
        loops: list[Grammar] = []
        more = [following]
        for reading, after in self._steps(state):
            if after == state:
                loops.append(self._member(reading))
            else:
                tail = tails[after]
                if tail is not None:
                    more.append(chain(self._member(reading), tail))
        rest = alternatives(*more)
        if rest is EMPTY and not can_end:
            return None
        end: Grammar = EPSILON
        if rest is not EMPTY:
            end = chain(comma, rest)
            if can_end:
                end = Choice((EPSILON, end))
        loop = alternatives(*loops)
        return end if loop is EMPTY else chain(Repeat(chain(comma, loop)), end)

    def _member(self, reading: Reading) -> Grammar:
        member = self._made.get(reading.value)
        if member is None:
            member = chain(reading.key, self._syntax.colon, self._values[reading.value])
            self._made[reading.value] = member
        return member


def _progress(state: State) -> tuple[int, int, int]:
    """Undeclared members only ever lead to states of a higher rank, or nowhere."""
    return state.violated.bit_count(), state.size, state.others
