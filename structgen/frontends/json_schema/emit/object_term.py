"""Objects as grammars: declared members in their order, others anywhere between.

Members are chained from the right.  After a member, with the names before ``i`` decided::

    tail(i) = (comma other)* (nothing | comma next(i))      nothing: if all names from i on are optional
    next(i) = member(i) tail(i + 1) | next(i + 1)           the second: if i is optional

This gives one chain, linear in the number of names and unambiguous, and each comma is read before the next member is
chosen.  If the number of members is bounded, there is one chain for each number of members beyond the required ones; if
the policy bounds undeclared members, one for each number of those.  With ``order="any"`` the members are a permutation.
Names are compared while they are written (``Distinct``) if two or more undeclared ones are required, because a text
could repeat one; and if the policy forbids repetitions and the bound allows two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from structgen.errors import LimitExceeded
from structgen.frontends.json_schema.source.location import refused
from structgen.frontends.json_schema.term import alternatives, chain, distinct
from structgen.grammar.nodes import (
    EMPTY,
    EPSILON,
    Choice,
    Grammar,
    Permutation,
    Repeat,
    Sequence,
    choice_of,
    sequence_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence as Items

    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.object_layout import ObjectLayout

__all__ = ["MemberCounts", "object_term", "permuted", "refuse_count", "refuse_size"]

_Member = tuple[Grammar, Grammar, bool]
_Tail = tuple[Grammar, ...]

_MAX_STATES: Final = 200_000
"""Names times counts of a chain with a bounded number of members."""


class MemberCounts(NamedTuple):
    """The bounds on the number of members, and on those with undeclared names; ``None``: no bound."""

    min_count: int
    max_count: int | None
    max_others: int | None


def object_term(layout: ObjectLayout, values: Items[Grammar], others: Items[Grammar], syntax: Syntax) -> Grammar:
    """The objects of a layout, given the terms of its values (``EMPTY``: there is no such value).

    Raises:
        UnsupportedFeature: ``minProperties`` counts undeclared names, and there may be too few of them.
        LimitExceeded: the number of names times the bound on members is too large.

    Complexity: O(names), times the bound on the number of members if there is one.
    """
    members = _possible_members(layout, values)
    if members is None:
        return EMPTY
    other = EMPTY
    if others:
        regions = zip(layout.others, others, strict=True)
        other = alternatives(*(chain(region.key, syntax.colon, value) for region, value in regions))
    required = sum(is_required for _, _, is_required in members)
    need = max(layout.min_count - required, 0)
    spare = None if layout.max_count is None else layout.max_count - required
    optional = len(members) - required
    bound = layout.max_others if other is not EMPTY else 0
    if (spare is not None and spare < need) or (bound is not None and need > optional + bound):
        return EMPTY
    repeats_count = other is not EMPTY and need > 1
    if repeats_count and not any(
        r.is_open and value is not EMPTY for r, value in zip(layout.others, others, strict=True)
    ):
        refuse_count(layout)
    compares = repeats_count or (other is not EMPTY and may_repeat(spare, bound, syntax))
    if other is EMPTY and spare is not None and spare >= optional:
        spare = None  # there are fewer names than the bound
    if syntax.policy.order == "any":
        due = [chain(key, syntax.colon, value) for key, value, is_required in members if is_required]
        free = [chain(key, syntax.colon, value) for key, value, is_required in members if not is_required]
        term = permuted(due, free, other, MemberCounts(layout.min_count, layout.max_count, bound), syntax)
        return distinct(term, is_spare=need <= 1, is_endless=True) if compares else term
    steps = need if spare is None else spare
    counts = range(1 if other is EMPTY or bound is None else bound + 1)  # of undeclared members, where they are bounded
    if (len(members) + 1) * (steps + 1) * len(counts) > _MAX_STATES:
        refuse_size(layout)
    first = _first_member(members, other, syntax, need=need, spare=spare, counts=counts)
    if first is EMPTY:
        return Sequence((syntax.open_object, syntax.end_object))
    some = Sequence((first, syntax.close_object))
    term = syntax.object(some, may_be_empty=not (required or need))
    return distinct(term, is_spare=need <= 1, is_endless=True) if compares else term


def _possible_members(layout: ObjectLayout, values: Items[Grammar]) -> list[_Member] | None:
    """The declared members that an object can have; ``None`` if it cannot have a required one."""
    members: list[_Member] = []
    for entry, value in zip(layout.entries, values, strict=True):
        if value is not EMPTY and not entry.is_forbidden:
            members.append((entry.key, value, entry.is_required))
        elif entry.is_required:
            return None
    return members


def _first_member(
    members: list[_Member], other: Grammar, syntax: Syntax, *, need: int, spare: int | None, counts: range
) -> Grammar:
    """The first member with those after it: one chain for each number of members that are not required.

    Args:
        members: the declared members.
        other: any undeclared member; ``EMPTY``: there are none.
        syntax: the punctuation.
        need: how many members an object must have besides the required ones.
        spare: how many it may have; ``None``: any number.
        counts: the numbers of undeclared members, each with a chain of its own; only 0 where these are not bounded.
    """
    rows: list[_MemberRow] = []  # for one more member, by the number of undeclared members
    for extra in range(need if spare is None else spare, -1, -1):
        above, rows = rows, []
        for count in reversed(counts):
            declared = above[count] if above else None
            is_full = len(counts) > 1 and count == counts[-1]
            next_row = None if len(counts) == 1 or is_full else above[count + 1] if above else rows[0]
            row = _MemberRow(
                members,
                EMPTY if is_full else other,
                syntax,
                _RowsAfter(declared, declared if len(counts) == 1 else next_row),
                is_capped=spare == extra,
                may_end=extra >= need,
            )
            rows.insert(0, row)
    return rows[0].first


def may_repeat(spare: int | None, max_others: int | None, syntax: Syntax) -> bool:
    """Whether the policy forbids repetitions, and an object may have two members with undeclared names."""
    has_room = (spare is None or spare > 1) and (max_others is None or max_others > 1)
    return has_room and syntax.policy.repeated == "forbidden"


def permuted(
    required: Items[Grammar], optional: Items[Grammar], other: Grammar, counts: MemberCounts, syntax: Syntax
) -> Grammar:
    """The objects with as many of these members as ``counts`` says, in any order."""
    min_count, max_count, max_others = counts
    optional = [member for member in optional if member is not EMPTY]
    if other is not EMPTY and max_others is not None:
        optional += [other] * max_others
        other = EMPTY
    if any(member is EMPTY for member in required) or (
        max_count is not None and max_count < max(min_count, len(required))
    ):
        return EMPTY
    if other is EMPTY and min_count > len(required) + len(optional):
        return EMPTY
    if max_count == 0 or (other is EMPTY and not required and not optional):
        return Sequence((syntax.open_object, syntax.end_object))
    listed = Permutation(required, optional, other, syntax.comma, max(min_count, 1), max_count)
    some = Sequence((listed, syntax.close_object))
    return syntax.object(some, may_be_empty=not (min_count or required))


class _RowsAfter(NamedTuple):
    """The rows after an optional declared member, and after any other member; ``None``: the same row."""

    declared: _MemberRow | None
    others: _MemberRow | None


class _MemberRow:
    """The chain for one number of members beyond the required ones.

    Attributes:
        first: the members of a nonempty object.
        tails: for each ``i`` the parts of ``tail(i)``; ``None`` where the object cannot be completed.
    """

    __slots__ = ("first", "tails")
    first: Grammar
    tails: list[_Tail | None]

    def __init__(
        self,
        members: list[_Member],
        other: Grammar,
        syntax: Syntax,
        after: _RowsAfter,
        *,
        is_capped: bool,
        may_end: bool,
    ) -> None:
        """Make the chain from the right.

        ``other`` is any undeclared member, ``after`` the rows after a member.  With ``is_capped`` only required members
        may follow; with ``may_end`` enough members were written.
        """
        comma, colon = syntax.comma, syntax.colon
        declared, others = after
        loops = others is None and not is_capped and other is not EMPTY
        loop = (Repeat(Sequence((comma, other))),) if loops else ()
        tails: list[_Tail | None] = [None] * (len(members) + 1)
        tails_declared = tails if declared is None else declared.tails
        tails_others = tails if others is None else others.tails
        following = EMPTY  # next(i)
        can_end = may_end
        for index in range(len(members), -1, -1):
            if index < len(members):
                key, value, is_required = members[index]
                tail = tails[index + 1] if is_required else tails_declared[index + 1]
                is_possible = tail is not None and (is_required or not is_capped)
                member = sequence_of((key, colon, value, *(tail or ()))) if is_possible else EMPTY
                if is_required:
                    can_end = False
                    following = member
                elif is_possible:
                    following = member if following is EMPTY else choice_of((member, following))
            more = following
            counted = tails_others[index]
            if others is not None and not is_capped and other is not EMPTY and counted is not None:
                begun = Sequence((other, *counted))
                more = begun if more is EMPTY else Choice((begun, more))
            if more is not EMPTY:
                more = sequence_of((comma, more))
                tails[index] = (*loop, choice_of((EPSILON, more)) if can_end else more)
            elif can_end:
                tails[index] = loop
        self.tails = tails
        self.first = following
        start = tails_others[0]
        if other is not EMPTY and not is_capped and start is not None:
            first = chain(other, *start)
            self.first = first if following is EMPTY else Choice((first, following))


def refuse_count(layout: ObjectLayout) -> None:
    """Refuse to count names that may be repeated and may run out: generation could reach a dead end.

    Raises:
        UnsupportedFeature: always.
    """
    assertion = max(layout.positive + layout.negated, key=lambda assertion: assertion.min_count)
    refused(
        assertion.location,
        "minProperties",
        f"a text may repeat names that patterns leave, so {layout.min_count} distinct ones cannot be counted",
        remedy="declare the names under 'properties' with \"additionalProperties\": false, or list more in 'required'",
    )


def refuse_size(layout: ObjectLayout) -> None:
    """Refuse a chain with too many states.

    Raises:
        LimitExceeded: always.
    """
    assertion = (layout.positive + layout.negated)[0]
    raise LimitExceeded(
        assertion.location.subject(),
        limit="states",
        maximum=_MAX_STATES,
        evidence=f"{len(layout.entries)} names with what must be remembered of the members before",
    )
