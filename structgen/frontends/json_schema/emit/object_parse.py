"""Objects whose members must be tracked: the state between members, and the ways to parse one member.

A member that may violate an assertion is parsed in two ways, as a violation and as any member; so states are sets of
assertions that are certainly violated, and a string may have several parses.  Where members come in any order, the
objects are a union of permutations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Items
from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.errors import UnsupportedFeature
from structgen.frontends.json_schema.emit.object_term import MemberCounts, permuted
from structgen.frontends.json_schema.term import alternatives, chain
from structgen.grammar.nodes import EMPTY, Grammar

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout

__all__ = ["union_of_permutations"]

new_tuple: Final = tuple.__new__
"""Makes an ``ObjectState`` in less than half the time of its constructor."""


class ObjectState(NamedTuple):
    """The state between members.

    Attributes:
        violated: the negated assertions that are violated so far, as bits.
        due: the entries that must still occur, as bits; ``forbidden``: the entries that must not.
        size: the number of members so far, as far as it matters.
        others: the number of members with undeclared names, where the policy bounds it.
    """

    violated: int = 0
    due: int = 0
    forbidden: int = 0
    size: int = 0
    others: int = 0

    def violating(self, assertions: int) -> ObjectState:
        """The state with these assertions violated too."""
        violated = self.violated | assertions
        return (
            self
            if violated == self.violated
            else new_tuple(ObjectState, (violated, self.due, self.forbidden, self.size, self.others))
        )


class MemberParse(NamedTuple):
    """One way to parse a member.

    Attributes:
        violates: the assertions that it violates; ``proves``: those where this restricts the name or value.
        key: its name.
        value: the index of its schemas in the chain's ``locations``.
    """

    violates: int
    proves: int
    key: Grammar
    value: int


def parses_after(parses: Items[MemberParse], after: ObjectState | None) -> list[tuple[int, ObjectState]]:
    """The possible parses of a member, each with the index of its value and the state after it.

    ``after`` is the state after the member, before violations; ``None``: the member is not allowed.
    """
    if after is None:
        return []
    violated = after.violated
    states = {violated: after}  # by violated assertions: made once for all parses that lead there
    result: list[tuple[int, ObjectState]] = []
    for violates, proves, _, value in parses:
        if not proves & violated:  # no proof needed: already violated
            state = states.get(violated | violates)
            if state is None:
                state = states[violated | violates] = after.violating(violates)
            result.append((value, state))
    return result


_MAX_ALTERNATIVES: Final = 256
"""Cases of one object."""


class _ObjectCase(NamedTuple):
    """One way to violate all negated assertions and to satisfy all dependencies.

    Attributes:
        present: the entries that must occur, each with the assertions that it must violate, as bits.
        absent: the entries that must not, as bits.
        others: for each member with an undeclared name, the assertions that it must violate, as bits.
        min_count, max_count: the bounds on the number of members.
    """

    present: tuple[tuple[int, int], ...]
    absent: int
    others: tuple[int, ...]
    min_count: int
    max_count: int | None

    def with_entry(self, index: int, violates: int) -> _ObjectCase | None:
        """The case where an entry also occurs and violates assertions; ``None`` if it must not occur."""
        if self.absent >> index & 1:
            return None
        present = dict(self.present)
        present[index] = present.get(index, 0) | violates
        return self._replace(present=tuple(sorted(present.items())))

    def without_entry(self, index: int) -> _ObjectCase | None:
        """The case where an entry does not occur; ``None`` if it must."""
        if any(index == other for other, _ in self.present):
            return None
        return self._replace(absent=self.absent | 1 << index)

    def with_other(self, bit: int) -> Iterator[_ObjectCase]:
        """The cases where an undeclared member, an earlier one or a new one, violates an assertion."""
        for position, violates in enumerate(self.others):
            others = (*self.others[:position], violates | bit, *self.others[position + 1 :])
            yield self._replace(others=tuple(sorted(others)))
        yield self._replace(others=tuple(sorted((*self.others, bit))))


def union_of_permutations(
    layout: ObjectLayout,
    entries: Items[Items[MemberParse]],
    others: Items[MemberParse],
    values: Items[Grammar],
    syntax: Syntax,
) -> Grammar:
    """The objects, in any order, of a layout that has negated assertions or dependent names.

    ``entries`` are the possible parses of each entry, ``others`` those of members with undeclared names, and ``values``
    the terms that ``value`` of a parse indexes.

    Returns:
        ``EMPTY`` if there is no such object.

    Raises:
        UnsupportedFeature: there are too many cases.

    Complexity: O(cases * entries); the cases are exponential in the number of assertions and dependencies, and bounded.
    """

    def read(parses: Items[MemberParse], violates: int) -> Grammar:
        """The members that violate certain assertions, with no further restriction."""
        matching = [one for one in parses if one.violates & violates == violates and not one.proves & ~violates]
        return alternatives(*(chain(one.key, syntax.colon, values[one.value]) for one in matching))

    def term(case: _ObjectCase) -> Grammar:
        present = dict(case.present)
        required = [read(entries[index], violates) for index, violates in case.present]
        required += [read(others, violates) for violates in case.others]
        optional = [plain[i] for i in range(len(entries)) if i not in present and not case.absent >> i & 1]
        left = None if layout.max_others is None else layout.max_others - len(case.others)
        if left is not None and left < 0:
            return EMPTY
        return permuted(required, optional, rest, MemberCounts(case.min_count, case.max_count, left), syntax)

    plain = [read(parses, 0) for parses in entries]
    rest = read(others, 0)
    return alternatives(*map(term, _object_cases(layout, entries, others)))


def _object_cases(
    layout: ObjectLayout, entries: Items[Items[MemberParse]], others: Items[MemberParse]
) -> list[_ObjectCase]:
    required = tuple((index, 0) for index, entry in enumerate(layout.entries) if entry.is_required)
    cases = [_ObjectCase(required, 0, (), layout.min_count, layout.max_count)]
    for number in range(len(layout.negated)):
        grown = [new for case in cases for new in _violating(case, number, layout, entries, others)]
        cases = _bounded(grown, layout)
    index = {entry.name: position for position, entry in enumerate(layout.entries)}
    for name, called in layout.dependents.items():
        positions = [index[name], *(index[other] for other in called)]
        cases = _bounded([new for case in cases for new in _depending(case, positions)], layout)
    return cases


def _violating(
    case: _ObjectCase, number: int, layout: ObjectLayout, entries: Items[Items[MemberParse]], others: Items[MemberParse]
) -> Iterator[_ObjectCase]:
    """The cases in which an assertion is also violated."""
    assertion, bit = layout.negated[number], 1 << number
    if _is_violated(case, number, layout, entries):  # already, without a choice
        yield case
        return
    for position, parses in enumerate(entries):
        if any(parse.violates & bit for parse in parses):
            with_it = case.with_entry(position, bit)
            if with_it is not None:
                yield with_it
        if layout.entries[position].name in assertion.required:
            without = case.without_entry(position)
            if without is not None:
                yield without
    if any(parse.violates & bit for parse in others):
        yield from case.with_other(bit)
    if assertion.min_count > 0:
        max_count = assertion.min_count - 1
        yield case._replace(max_count=max_count if case.max_count is None else min(max_count, case.max_count))
    if assertion.max_count is not None:
        yield case._replace(min_count=max(case.min_count, assertion.max_count + 1))


def _is_violated(case: _ObjectCase, number: int, layout: ObjectLayout, entries: Items[Items[MemberParse]]) -> bool:
    """Whether a case already violates a further assertion."""
    assertion = layout.negated[number]
    if any(case.absent >> i & 1 and entry.name in assertion.required for i, entry in enumerate(layout.entries)):
        return True
    if case.max_count is not None and case.max_count < assertion.min_count:
        return True
    if assertion.max_count is not None and max(case.min_count, len(case.present)) > assertion.max_count:
        return True
    return any(all(parse.violates >> number & 1 for parse in entries[position]) for position, _ in case.present)


def _depending(case: _ObjectCase, positions: list[int]) -> Iterator[_ObjectCase]:
    """The cases where the first of some entries does not occur, or all of them do."""
    present = {position for position, _ in case.present}
    if case.absent >> positions[0] & 1 or present.issuperset(positions[1:]):  # the dependency holds already
        yield case
        return
    without = case.without_entry(positions[0])
    if without is not None:
        yield without
    together: _ObjectCase | None = case
    for position in positions:
        together = together and together.with_entry(position, 0)
    if together is not None:
        yield together


def _bounded(cases: list[_ObjectCase], layout: ObjectLayout) -> list[_ObjectCase]:
    cases = list(dict.fromkeys(cases))
    if len(cases) > _MAX_ALTERNATIVES:
        location = (layout.negated + layout.positive)[0].location
        raise UnsupportedFeature(
            location.subject(),
            "order",
            where=location.pointer,
            problem=f"in any order, its conditions on several members make more than {_MAX_ALTERNATIVES} alternatives",
            remedy='use order="declared"',
        )
    return cases
