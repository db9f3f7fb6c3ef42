"""Objects as grammars, where a state must be tracked from member to member.

Negated assertions must be violated by some member, by a missing name or by the number of members; with
``dependentRequired`` one name requires others.  The members are chained from the right as in ``object_term``, one chain
for each state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Items
from operator import is_
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from structgen.errors import LimitExceeded, UnsupportedFeature
from structgen.frontends.json_schema.emit.object_parse import (
    MemberParse,
    ObjectState,
    new_tuple,
    parses_after,
    union_of_permutations,
)
from structgen.frontends.json_schema.emit.object_term import may_repeat, refuse_count, refuse_size
from structgen.frontends.json_schema.normal.normal_form import Relation
from structgen.frontends.json_schema.normal.object_layout import region_locations
from structgen.frontends.json_schema.term import alternatives, distinct, followed, tail_of
from structgen.grammar.nodes import EMPTY, Grammar, Sequence, choice_of, sequence_of

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.plan import EmptinessProof, ProveEmpty
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.object_layout import DeclaredName, NameRegion, ObjectLayout
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["ObjectChain"]

Part = TypeVar("Part")

_MAX_STATES: Final = 50_000
"""Names times states of a chain."""
_MAX_MEMBER_PARSES: Final = 256
"""Parses of one member, by the assertions that it violates."""


Compare = Callable[["tuple[Location, ...]", "Location"], Relation]


class _MemberOption(NamedTuple):
    violates: int
    proves: int
    locations: tuple[Location, ...]
    languages: tuple[Grammar, ...]


class ObjectChain:
    """The objects of a layout with negated assertions or dependent names.

    Attributes:
        locations: the conjunctions of schemas whose terms ``term`` takes.
    """

    def __init__(self, layout: ObjectLayout, compare: Compare) -> None:
        self._layout = layout
        self._compare = compare
        self.locations: list[tuple[Location, ...]] = []
        # Values by which an undeclared member violates an assertion, where its name is one of those that may run out.
        self._exhaustible: set[int] = set()
        self._members = [list(self._parses_of_entry(entry)) for entry in layout.entries]
        self._others = [parse for region in layout.others for parse in self._parses_of_region(region)]
        index = {entry.name: number for number, entry in enumerate(layout.entries)}
        self._calls = [0] * len(index)  # by entry: the later entries that must occur with it
        self._called_by = [0] * len(index)  # by entry: the later entries that must not occur without it
        for name, others in layout.dependents.items():
            for other in others:
                if layout.entries[index[other]].is_required:
                    continue
                if index[other] > index[name]:
                    self._calls[index[name]] |= 1 << index[other]
                else:
                    self._called_by[index[other]] |= 1 << index[name]
        self._missing = [
            sum(1 << number for number, assertion in enumerate(layout.negated) if entry.name in assertion.required)
            for entry in layout.entries
        ]
        self._cap = _cap(layout)
        self._terms: list[tuple[Items[Grammar], Syntax, Grammar]] = []

    @property
    def names(self) -> list[str | None]:
        """The declared name of each of ``locations``; ``None`` for undeclared names."""
        found: list[str | None] = [None] * len(self.locations)
        for entry, parses in zip(self._layout.entries, self._members, strict=True):
            for parse in parses:
                found[parse.value] = entry.name
        return found

    def _value(self, locations: tuple[Location, ...]) -> int:
        self.locations.append(locations)
        return len(self.locations) - 1

    def _parses_of_entry(self, entry: DeclaredName) -> Iterator[MemberParse]:
        if entry.is_forbidden:
            return
        if not self._layout.negated:  # the usual case
            yield MemberParse(0, 0, entry.key, self._value(entry.locations))
            return
        choices = [_MemberOption(0, 0, (), ())]
        for number, assertion in enumerate(self._layout.negated):
            negated = assertion.locations_of(entry.name)
            if assertion.names is True:
                if not negated:  # the usual case
                    continue
                is_bad_name = False
            else:
                is_bad_name = not self._layout.name_rules((assertion.names_location(),)).admits(entry.name)
            outside = self._outside(entry.locations, negated)
            choices = self._watch(choices, 1 << number, None if is_bad_name else outside)
        for violates, proves, locations, _ in choices:
            yield MemberParse(violates, proves, entry.key, self._value((*entry.locations, *locations)))

    def _parses_of_region(self, region: NameRegion) -> Iterator[MemberParse]:
        choices = [_MemberOption(0, 0, (), ())]
        for number, assertion in enumerate(self._layout.negated):
            bit = 1 << number
            bad_names: Grammar | None = EMPTY
            if assertion.names is not True:
                bad_names = self._layout.name_rules((assertion.names_location().complement(),)).language()
            outside = self._outside(region.locations, region_locations((assertion,), region.matched))
            grown = self._watch(choices, bit, None if bad_names is None else outside)
            if bad_names is not None and bad_names is not EMPTY:
                grown += [
                    _MemberOption(c.violates | bit, c.proves | bit, c.locations, (*c.languages, bad_names))
                    for c in choices
                ]
            choices = grown
        for violates, proves, locations, languages in choices:
            key = region.within(languages) if languages else region.key
            value = self._value((*region.locations, *locations))
            if locations and (languages or not region.is_open):
                self._exhaustible.add(value)
            yield MemberParse(violates, proves, key, value)

    def _outside(self, locations: tuple[Location, ...], negated: tuple[Location, ...]) -> list[Location] | None:
        """The complements by which a value of ``locations`` may violate ``negated``.

        ``None`` where every value does.
        """
        result: list[Location] = []
        for location in negated:
            relation = Relation.OUTSIDE if location.schema is False else self._compare(locations, location)
            if relation is Relation.OUTSIDE:
                return None
            if relation is Relation.UNKNOWN:
                result.append(location.complement())
        return result

    def _watch(self, choices: list[_MemberOption], bit: int, outside: list[Location] | None) -> list[_MemberOption]:
        """Add the ways in which a member violates an assertion: always, or by one of ``outside``."""
        if outside is None:
            return [_MemberOption(c.violates | bit, c.proves, c.locations, c.languages) for c in choices]
        grown = choices + [
            _MemberOption(c.violates | bit, c.proves | bit, (*c.locations, location), c.languages)
            for c in choices
            for location in outside
        ]
        if len(grown) > _MAX_MEMBER_PARSES:
            assertion = self._layout.negated[0]
            raise LimitExceeded(
                assertion.location.subject(),
                limit="readings",
                maximum=_MAX_MEMBER_PARSES,
                evidence="one member may violate many negated schemas in many ways",
            )
        return grown

    def term(self, values: Items[Grammar], syntax: Syntax) -> Grammar:
        """The objects, given the terms of ``locations``; ``EMPTY`` if there are none.

         Equal arguments give the same term.

        Raises:
            UnsupportedFeature: members must be counted, and names outside of patterns may be repeated; or no name
                may be repeated, and some may run out.
            LimitExceeded: there are too many states.

        Complexity: O(names * states * parses); the states are at most exponential in the number of negated assertions
        and of open dependencies.
        """
        for terms, written, term in self._terms:
            if written is syntax and all(map(is_, terms, values)):
                return term
        term = _ObjectChainBuilder(self, values, syntax).term()
        self._terms.append((values, syntax, term))
        return term

    def is_empty(self, parts: Items[Part], ask: ProveEmpty[Part]) -> EmptinessProof:
        """Whether ``term`` is empty, given the terms of ``locations``.

        False where there are too many states, or where names that may be repeated would have to be counted.
        """
        others = [parse for parse in self._others if parse.key is not EMPTY]
        count = len(self._members)
        reached = {(0, ObjectState())}
        waiting = [(0, ObjectState())]
        while waiting:
            index, state = waiting.pop()
            if index == count and self.accepts(state):
                return False
            after: list[tuple[int, ObjectState]] = []
            for value, begun in parses_after(others, self.begin(state)):
                if (index, begun) not in reached and not (yield ask(parts[value])):
                    after.append((index, begun))
            if index < count:
                skipped = self.skip(index, state)
                if skipped is not None:
                    after.append((index + 1, skipped))
                for value, taken in parses_after(self._members[index], self.take(index, state)):
                    if (index + 1, taken) not in reached and not (yield ask(parts[value])):
                        after.append((index + 1, taken))
            for step in after:
                if step not in reached:
                    reached.add(step)
                    waiting.append(step)
            if len(reached) > _MAX_STATES:
                return False
        return True

    def begin(self, state: ObjectState) -> ObjectState | None:
        """The state after a member with an undeclared name, before violations; ``None`` if it is not allowed."""
        max_count = self._layout.max_others
        if state.size == self._layout.max_count or state.others == max_count:
            return None
        others = state.others if max_count is None else state.others + 1
        return new_tuple(
            ObjectState, (state.violated, state.due, state.forbidden, min(state.size + 1, self._cap), others)
        )

    def take(self, index: int, state: ObjectState) -> ObjectState | None:
        """The state after the entry at ``index``, before violations; ``None`` if it is not allowed."""
        if state.size == self._layout.max_count or state.forbidden >> index & 1:
            return None
        due = (state.due | self._calls[index]) & ~(1 << index)
        return new_tuple(
            ObjectState, (state.violated, due, state.forbidden, min(state.size + 1, self._cap), state.others)
        )

    def skip(self, index: int, state: ObjectState) -> ObjectState | None:
        """The state without the entry at ``index``; ``None`` if it may not be missing."""
        if self._layout.entries[index].is_required or state.due >> index & 1:
            return None
        violated = state.violated | self._missing[index]
        forbidden = (state.forbidden | self._called_by[index]) & ~(1 << index)
        if violated == state.violated and forbidden == state.forbidden:
            return state
        return new_tuple(ObjectState, (violated, state.due, forbidden, state.size, state.others))

    def accepts(self, state: ObjectState) -> bool:
        """Whether an object may end here, after all entries."""
        if state.size < self._layout.min_count:
            return False
        for number, assertion in enumerate(self._layout.negated):
            is_counted_out = state.size < assertion.min_count or (
                assertion.max_count is not None and state.size > assertion.max_count
            )
            if not (state.violated >> number & 1 or is_counted_out):
                return False
        return True


def _cap(layout: ObjectLayout) -> int:
    """The number of members above which more make no difference."""
    bounds = [layout.min_count, *(assertion.min_count for assertion in layout.negated)]
    bounds += [
        max_count + 1
        for max_count in (layout.max_count, *(assertion.max_count for assertion in layout.negated))
        if max_count is not None
    ]
    return max(bounds)


class _ObjectChainBuilder:
    """Chains the members from the right, for all reachable states."""

    def __init__(self, chain: ObjectChain, values: Items[Grammar], syntax: Syntax) -> None:
        self._chain = chain
        self._layout = layout = chain._layout
        self._syntax = syntax
        self._values = values
        self._begun: dict[ObjectState, list[tuple[int, ObjectState]]] = {}
        # By the number of decided entries: the states after leaving out the next entry, and after taking it.
        self._skipped: list[dict[ObjectState, ObjectState | None]] = []
        self._taken: list[dict[ObjectState, list[tuple[int, ObjectState]]]] = []
        self._others = [r for r in chain._others if values[r.value] is not EMPTY and r.key is not EMPTY]
        self._members = [[r for r in parses if values[r.value] is not EMPTY] for parses in chain._members]
        most_needed = max(
            [
                layout.min_count,
                *(assertion.max_count + 1 for assertion in layout.negated if assertion.max_count is not None),
            ]
        )
        required = sum(entry.is_required for entry in layout.entries)
        self._repeats_count = bool(self._others) and most_needed - required > 1  # a text could repeat undeclared names
        if self._repeats_count and not all(region.is_open for region in layout.others):
            refuse_count(layout)
        spare = None if layout.max_count is None else layout.max_count - required
        forbids = bool(self._others) and may_repeat(spare, layout.max_others, syntax)
        if forbids and any(parse.value in chain._exhaustible for parse in self._others):
            _refuse_comparison(layout)
        self._compares = self._repeats_count or forbids
        self._is_spare = not self._repeats_count and not any(parse.violates for parse in self._others)
        # The members, by the index of their values.
        self._made = {
            parse.value: sequence_of((parse.key, syntax.colon, values[parse.value]))
            for parses in (*self._members, self._others)
            for parse in parses
        }

    def term(self) -> Grammar:
        term = self._chained()
        return distinct(term, is_spare=self._is_spare, is_endless=True) if self._compares else term

    def _chained(self) -> Grammar:
        if self._syntax.policy.order == "any":
            return union_of_permutations(self._layout, self._members, self._others, self._values, self._syntax)
        count = len(self._members)
        before, after = self._reached()
        tails: dict[ObjectState, Grammar | None] = {}
        following: dict[ObjectState, Grammar] = {}
        ends: dict[ObjectState, bool] = {}  # whether an object may end without further entries
        for index in range(count, -1, -1):
            following_here: dict[ObjectState, Grammar] = {}
            ends_here: dict[ObjectState, bool] = {}
            for state in before[index] | after[index]:
                if index == count:
                    following_here[state] = EMPTY
                    ends_here[state] = self._chain.accepts(state)
                    continue
                skipped = self._skipped[index][state]
                members = followed(self._taken[index][state], tails, self._made)
                if skipped is not None and following[skipped] is not EMPTY:
                    members.append(following[skipped])
                following_here[state] = _choice_of_members(members)
                ends_here[state] = skipped is not None and ends[skipped]
            tails_here: dict[ObjectState, Grammar | None] = {}
            for state in sorted(after[index], key=_progress, reverse=True):
                tails_here[state] = self._tail(state, following_here[state], tails_here, can_end=ends_here[state])
            following, tails, ends = following_here, tails_here, ends_here
        start = ObjectState()
        first = alternatives(following[start], *followed(self._steps(start), tails, self._made))
        empty = ends[start]
        syntax = self._syntax
        if first is EMPTY:
            return Sequence((syntax.open_object, syntax.end_object)) if empty else EMPTY
        some = Sequence((first, syntax.close_object))
        return syntax.object(some, may_be_empty=empty)

    def _reached(self) -> tuple[list[set[ObjectState]], list[set[ObjectState]]]:
        """By the number of decided entries: the states after a left-out entry, and the states after a member."""
        count = len(self._members)
        before: list[set[ObjectState]] = [set() for _ in range(count + 1)]
        after: list[set[ObjectState]] = [set() for _ in range(count + 1)]
        before[0].add(ObjectState())
        after[0].update(state for _, state in self._steps(ObjectState()))
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
            if total > _MAX_STATES:
                refuse_size(self._layout)
            if index == count:
                break
            members = self._members[index]
            skips = {state: self._chain.skip(index, state) for state in here}
            takes = {state: parses_after(members, self._chain.take(index, state)) for state in here}
            before[index + 1].update([state for state in skips.values() if state is not None])
            after[index + 1].update([state for steps in takes.values() for _, state in steps])
            self._skipped.append(skips)
            self._taken.append(takes)
        return before, after

    def _steps(self, state: ObjectState) -> list[tuple[int, ObjectState]]:
        """The members with undeclared names that may come, as indices of values."""
        cached = self._begun.get(state)
        if cached is None:
            cached = self._begun[state] = parses_after(self._others, self._chain.begin(state))
        return cached

    def _tail(
        self, state: ObjectState, following: Grammar, tails: dict[ObjectState, Grammar | None], *, can_end: bool
    ) -> Grammar | None:
        """What may follow a member; ``None`` where the object can no longer be completed."""
        steps = self._steps(state)
        more = [] if following is EMPTY else [following]
        more += followed([step for step in steps if step[1] != state], tails, self._made)
        loop = _choice_of_members([self._made[value] for value, after in steps if after == state])
        return tail_of(self._syntax.comma, loop, _choice_of_members(more), can_end=can_end)


def _refuse_comparison(layout: ObjectLayout) -> None:
    """Refuse to compare names where a member that must come may need a name that was written: a dead end.

    Raises:
        UnsupportedFeature: always.
    """
    location = layout.negated[0].location
    raise UnsupportedFeature(
        location.subject(),
        "repeated",
        where=location.pointer,
        problem="an undeclared member may have to violate a negated schema, and patterns leave few names for it",
        remedy='use repeated="allowed"',
    )


def _choice_of_members(terms: list[Grammar]) -> Grammar:
    """The choice of different nonempty terms, without the checks of ``alternatives``: thousands are made."""
    return choice_of(tuple(terms)) if len(terms) > 1 else terms[0] if terms else EMPTY


def _progress(state: ObjectState) -> tuple[int, int, int]:
    """The rank of a state; undeclared members never lead to a lower rank."""
    return state.violated.bit_count(), state.size, state.others
