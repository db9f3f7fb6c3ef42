"""Objects whose members must be tracked: the state between members, and the ways to parse one member.

A member that may violate an assertion is parsed in two ways, as a violation and as any member; so states are sets of
assertions that are certainly violated, and a string may have several parses.  Where members come in any order, the
objects are a union of permutations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Items
from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.errors import UnsupportedFeature
from structgen.frontends.json_schema.emit.object_term import permuted
from structgen.frontends.json_schema.term import alternatives, chain
from structgen.grammar.nodes import EMPTY, Grammar

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout

__all__ = ["union_of_permutations"]

new_tuple: Final = tuple.__new__
"""Makes a ``State`` of all its fields in less than half the time that its own constructor takes."""


class ObjectState(NamedTuple):
    """What is remembered between members.

    Attributes:
        violated: the watched assertions that are known to be violated, as bits.
        due: the entries that must still come, and ``barred`` those that must not, as bits.
        size: how many members were written, as far as that matters.
        others: how many of them have undeclared names, where that is bounded.
    """

    violated: int = 0
    due: int = 0
    barred: int = 0
    size: int = 0
    others: int = 0

    def violating(self, assertions: int) -> ObjectState:
        """The same where these assertions are violated as well."""
        violated = self.violated | assertions
        return (
            self
            if violated == self.violated
            else new_tuple(ObjectState, (violated, self.due, self.barred, self.size, self.others))
        )


class MemberParse(NamedTuple):
    """One way to read a member.

    Attributes:
        violates: the assertions that it violates, and ``proves`` those of them for which a narrower name or value is
            asked.
        key: its name.
        value: which of the chain's places its value belongs to.
    """

    violates: int
    proves: int
    key: Grammar
    value: int


def parses_after(parses: Items[MemberParse], after: ObjectState | None) -> list[tuple[int, ObjectState]]:
    """The ways to read a member, each with the place of its value and the state then.

    Args:
        parses: all the ways.
        after: the state after the member, whatever it violates; ``None``: it may not come.
    """
    if after is None:
        return []
    violated = after.violated
    states = {violated: after}  # by what is violated: made once for all readings that lead there
    found: list[tuple[int, ObjectState]] = []
    for violates, proves, _, value in parses:
        if not proves & violated:  # what is violated already needs no proof
            state = states.get(violated | violates)
            if state is None:
                state = states[violated | violates] = after.violating(violates)
            found.append((value, state))
    return found


_MAX_ALTERNATIVES: Final = 256
"""Choices of reasons for one object."""


class _ObjectCase(NamedTuple):
    """Why an object is valid.

    Attributes:
        present: the entries that must occur, each with the assertions that it violates, as bits.
        absent: the entries that must not, as bits.
        others: the assertions that a member with an undeclared name violates, one number for each such member.
        min_count, max_count: the bounds on the number of members.
    """

    present: tuple[tuple[int, int], ...]
    absent: int
    others: tuple[int, ...]
    min_count: int
    max_count: int | None

    def with_entry(self, index: int, violates: int) -> _ObjectCase | None:
        """The same where an entry occurs and violates some assertions; ``None`` if it must not occur."""
        if self.absent >> index & 1:
            return None
        present = dict(self.present)
        present[index] = present.get(index, 0) | violates
        return self._replace(present=tuple(sorted(present.items())))

    def without_entry(self, index: int) -> _ObjectCase | None:
        """The same where an entry does not occur; ``None`` if it must."""
        if any(index == other for other, _ in self.present):
            return None
        return self._replace(absent=self.absent | 1 << index)

    def with_other(self, bit: int) -> Iterator[_ObjectCase]:
        """The same where a member with an undeclared name, one of the known ones or another, violates an assertion."""
        for location, violates in enumerate(self.others):
            others = (*self.others[:location], violates | bit, *self.others[location + 1 :])
            yield self._replace(others=tuple(sorted(others)))
        yield self._replace(others=tuple(sorted((*self.others, bit))))


def union_of_permutations(
    layout: ObjectLayout,
    entries: Items[Items[MemberParse]],
    others: Items[MemberParse],
    values: Items[Grammar],
    syntax: Syntax,
) -> Grammar:
    """The objects of a layout in any order.

    Args:
        layout: with watched assertions or dependent names.
        entries: the possible readings of each entry.
        others: the possible readings of members with undeclared names.
        values: the terms of the values that readings name.
        syntax: the punctuation.

    Returns:
        ``EMPTY`` if there is no such object.

    Raises:
        UnsupportedFeature: there are too many choices of reasons.

    Complexity: O(choices * entries); the choices are exponential in the number of assertions and dependencies, and
        bounded.
    """

    def read(parses: Items[MemberParse], violates: int) -> Grammar:
        """The members that violate certain assertions, without being asked to prove more."""
        found = [r for r in parses if r.violates & violates == violates and not r.proves & ~violates]
        return alternatives(*(chain(r.key, syntax.colon, values[r.value]) for r in found))

    def term(choice: _ObjectCase) -> Grammar:
        present = dict(choice.present)
        required = [read(entries[index], violates) for index, violates in choice.present]
        required += [read(others, violates) for violates in choice.others]
        optional = [plain[i] for i in range(len(entries)) if i not in present and not choice.absent >> i & 1]
        left = None if layout.max_others is None else layout.max_others - len(choice.others)
        if left is not None and left < 0:
            return EMPTY
        return permuted(required, optional, rest, choice.min_count, choice.max_count, syntax, max_others=left)

    plain = [read(parses, 0) for parses in entries]
    rest = read(others, 0)
    return alternatives(*map(term, _object_cases(layout, entries, others)))


def _object_cases(
    layout: ObjectLayout, entries: Items[Items[MemberParse]], others: Items[MemberParse]
) -> list[_ObjectCase]:
    required = tuple((index, 0) for index, entry in enumerate(layout.entries) if entry.is_required)
    choices = [_ObjectCase(required, 0, (), layout.min_count, layout.max_count)]
    for number in range(len(layout.negated)):
        grown = [new for choice in choices for new in _violating(choice, number, layout, entries, others)]
        choices = _bounded(grown, layout)
    index = {entry.name: location for location, entry in enumerate(layout.entries)}
    for name, called in layout.dependents.items():
        locations = [index[name], *(index[other] for other in called)]
        choices = _bounded([new for choice in choices for new in _depending(choice, locations)], layout)
    return choices


def _violating(
    choice: _ObjectCase,
    number: int,
    layout: ObjectLayout,
    entries: Items[Items[MemberParse]],
    others: Items[MemberParse],
) -> Iterator[_ObjectCase]:
    """The ways in which an assertion is violated."""
    assertion, bit = layout.negated[number], 1 << number
    if _is_violated(choice, number, layout, entries):  # whatever else is the case
        yield choice
        return
    for location, parses in enumerate(entries):
        if any(parse.violates & bit for parse in parses):
            with_it = choice.with_entry(location, bit)
            if with_it is not None:
                yield with_it
        if layout.entries[location].name in assertion.required:
            without = choice.without_entry(location)
            if without is not None:
                yield without
    if any(parse.violates & bit for parse in others):
        yield from choice.with_other(bit)
    if assertion.min_count > 0:
        max_count = assertion.min_count - 1
        yield choice._replace(max_count=max_count if choice.max_count is None else min(max_count, choice.max_count))
    if assertion.max_count is not None:
        yield choice._replace(min_count=max(choice.min_count, assertion.max_count + 1))


def _is_violated(choice: _ObjectCase, number: int, layout: ObjectLayout, entries: Items[Items[MemberParse]]) -> bool:
    """Whether the reasons chosen so far violate a further assertion."""
    assertion = layout.negated[number]
    if any(choice.absent >> i & 1 and entry.name in assertion.required for i, entry in enumerate(layout.entries)):
        return True
    if choice.max_count is not None and choice.max_count < assertion.min_count:
        return True
    if assertion.max_count is not None and max(choice.min_count, len(choice.present)) > assertion.max_count:
        return True
    return any(all(parse.violates >> number & 1 for parse in entries[location]) for location, _ in choice.present)


def _depending(choice: _ObjectCase, locations: list[int]) -> Iterator[_ObjectCase]:
    """The first of some entries does not occur, or all of them do."""
    present = {location for location, _ in choice.present}
    if choice.absent >> locations[0] & 1 or present.issuperset(locations[1:]):  # it holds
        yield choice
        return
    without = choice.without_entry(locations[0])
    if without is not None:
        yield without
    together: _ObjectCase | None = choice
    for location in locations:
        together = together and together.with_entry(location, 0)
    if together is not None:
        yield together


def _bounded(choices: list[_ObjectCase], layout: ObjectLayout) -> list[_ObjectCase]:
    kept = list(dict.fromkeys(choices))
    if len(kept) > _MAX_ALTERNATIVES:
        location = (layout.negated + layout.positive)[0].location
        raise UnsupportedFeature(
            location.subject(),
            "order",
            where=location.pointer,
            problem=f"in any order, its conditions on several members make more than {_MAX_ALTERNATIVES} alternatives",
            remedy='use order="declared"',
        )
    return kept
