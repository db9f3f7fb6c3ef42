"""Arrays as grammars, from the right; with ``contains`` or a negated assertion, one chain for each state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Items
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from structgen.errors import LimitExceeded
from structgen.frontends.json_schema.normal.container_assertion import ArrayLayout
from structgen.frontends.json_schema.normal.normal_form import Relation
from structgen.frontends.json_schema.term import alternatives, chain, followed, tail_of
from structgen.grammar.nodes import EMPTY, EPSILON, Choice, Grammar, Repeat, Sequence

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.plan import EmptinessProof, ProveEmpty
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["ArrayChain", "array_term"]

Part = TypeVar("Part")

_MAX_ITEM_PARSES: Final = 256
"""Parses of one item, by the assertions that it violates and the counters that it raises."""
_MAX_STEPS: Final = 30_000
"""Transitions of a chain: positions times states times parses."""


class ArrayState(NamedTuple):
    """The state between items: the negated assertions that are violated so far, as bits, and the counts."""

    violated: int
    counts: tuple[int, ...]


class ItemParse(NamedTuple):
    """One way to parse an item.

    Attributes:
        violates: the assertions that it violates; ``proves``: those where this restricts the value.
        raises: the counters that it raises; ``shows``: those where this restricts the value.
        value: the index of its schemas in the chain's ``locations``.
    """

    violates: int
    proves: int
    raises: int
    shows: int
    value: int


class _ItemOption(NamedTuple):
    """The part of one assertion in a parse of an item: its fields, and schemas of the value."""

    violates: int = 0
    proves: int = 0
    raises: int = 0
    shows: int = 0
    locations: tuple[Location, ...] = ()


Compare = Callable[["tuple[Location, ...]", "Location"], Relation]


class ArrayChain:
    """The arrays of a layout with ``contains`` or negated assertions.

    Attributes:
        locations: the conjunctions of schemas whose terms ``term`` takes.
    """

    def __init__(self, layout: ArrayLayout, compare: Compare) -> None:
        self._layout = layout
        self._compare = compare
        self.locations: list[tuple[Location, ...]] = []
        self._parses = [
            list(self._parses_of(locations, index)) for index, locations in enumerate((*layout.items, layout.rest))
        ]
        self._start = ArrayState(0, (0,) * len(layout.counted))
        # The steps of `term`, by the position of an item and the state before it.
        self._made: list[dict[ArrayState, list[tuple[int, ArrayState]]]] = [{} for _ in self._parses]

    def _parses_of(self, locations: tuple[Location, ...], index: int) -> Iterator[ItemParse]:
        ways: list[list[_ItemOption]] = []
        for number, assertion in enumerate(self._layout.negated):
            bit = 1 << number
            location = assertion.item(index)
            if location is None or location.schema is True:
                continue
            relation = Relation.OUTSIDE if location.schema is False else self._compare(locations, location)
            if relation is Relation.OUTSIDE:
                ways.append([_ItemOption(violates=bit)])
            elif relation is Relation.UNKNOWN:
                ways.append([_ItemOption(), _ItemOption(violates=bit, proves=bit, locations=(location.complement(),))])
        for number, assertion in enumerate(self._layout.counted):
            inside = assertion.contained
            if inside is None:
                continue
            bit = 1 << number
            relation = self._compare(locations, inside)
            if relation is Relation.INSIDE:
                ways.append([_ItemOption(raises=bit)])
            elif relation is Relation.UNKNOWN:
                outside = () if assertion.max_contained is None else (inside.complement(),)
                ways.append([_ItemOption(locations=outside), _ItemOption(raises=bit, shows=bit, locations=(inside,))])
        count = 1
        for way in ways:
            count *= len(way)
        if count > _MAX_ITEM_PARSES:
            assertion = (*self._layout.negated, *self._layout.counted)[0]
            raise LimitExceeded(
                assertion.location.subject(),
                limit="readings",
                maximum=_MAX_ITEM_PARSES,
                evidence="one item may violate or satisfy many schemas in many ways",
            )
        for chosen in product(*ways):
            self.locations.append((*locations, *(location for way in chosen for location in way.locations)))
            yield ItemParse(
                sum(way.violates for way in chosen),
                sum(way.proves for way in chosen),
                sum(way.raises for way in chosen),
                sum(way.shows for way in chosen),
                len(self.locations) - 1,
            )

    def term(self, values: Items[Grammar], syntax: Syntax) -> Grammar:
        """The arrays, given the terms of ``locations``; ``EMPTY`` means that there are none.

        Raises:
            LimitExceeded: there are too many states.

        Complexity: O(positions * states * parses), with one position for each item of the prefix and for each number of
        items that the bounds distinguish.
        """
        layout = self._layout
        last = self._last()
        reached = self._reached(values, last)
        after: dict[ArrayState, Grammar | None] = {}
        for index in range(last, 0, -1):
            here: dict[ArrayState, Grammar | None] = {}
            for state in sorted(reached[index], key=_progress, reverse=True):
                here[state] = self._tail(index, last, state, here if index == last else after, values, syntax)
            after = here
        first = (
            EMPTY
            if layout.max_count == 0
            else alternatives(*followed(self._steps(0, self._start, values), after, values))
        )
        may_be_empty = self._accepts(0, self._start)
        if first is EMPTY:
            return Sequence((syntax.open_array, syntax.end_array)) if may_be_empty else EMPTY
        some = chain(first, syntax.close_array)
        return syntax.array(some, may_be_empty=may_be_empty)

    def is_empty(self, parts: Items[Part], ask: ProveEmpty[Part]) -> EmptinessProof:
        """Whether ``term`` is empty, given the terms of ``locations``; false where there are too many states."""
        last = self._last()
        reached = {(0, self._start)}
        waiting = [(0, self._start)]
        while waiting:
            index, state = waiting.pop()
            if self._accepts(index, state):
                return False
            if index == self._layout.max_count:
                continue
            for parse in self._parses[min(index, len(self._parses) - 1)]:
                if parse.proves & state.violated:
                    continue
                counts = self._counted(parse, state.counts) if parse.raises else state.counts
                if counts is None:
                    continue
                step = min(index + 1, last), ArrayState(state.violated | parse.violates, counts)
                if step not in reached and not (yield ask(parts[parse.value])):
                    reached.add(step)
                    waiting.append(step)
            if len(reached) > _MAX_STEPS:
                return False
        return True

    def _last(self) -> int:
        """The number of items after which positions no longer differ, or the maximum number of items."""
        layout = self._layout
        if layout.max_count is not None:
            return max(layout.max_count, 1)
        bounds = [len(layout.items), layout.min_count, *(assertion.min_count for assertion in layout.negated)]
        bounds += [assertion.max_count + 1 for assertion in layout.negated if assertion.max_count is not None]
        bounds += [len(assertion.prefix) for assertion in layout.negated]
        return max(*bounds, 1)

    def _reached(self, values: Items[Grammar], last: int) -> list[set[ArrayState]]:
        """The reachable states, by number of items."""
        reached: list[set[ArrayState]] = [set() for _ in range(last + 1)]
        reached[0].add(self._start)
        total = 0
        for index in range(last):
            for state in reached[index]:
                after = {state for _, state in self._steps(index, state, values)}
                reached[index + 1] |= after
                total += len(after)
                self._bound(total)
        if self._layout.max_count is None:
            waiting = list(reached[last])
            while waiting:
                after = {state for _, state in self._steps(last, waiting.pop(), values)}
                total += len(after)
                self._bound(total)
                waiting += after - reached[last]
                reached[last] |= after
        return reached

    def _bound(self, steps: int) -> None:
        if steps > _MAX_STEPS:
            raise LimitExceeded(
                (self._layout.positive + self._layout.negated)[0].location.subject(),
                limit="states",
                maximum=_MAX_STEPS,
                evidence="items times what 'contains' and 'not' remember of the items before",
            )

    def _steps(self, index: int, state: ArrayState, values: Items[Grammar]) -> list[tuple[int, ArrayState]]:
        """The items that may come at ``index``, as indices of values, each with the state after it."""
        index = min(index, len(self._parses) - 1)
        result = self._made[index].get(state)
        if result is None:
            result = self._made[index][state] = []
            violated, counts = state
            for parse in self._parses[index]:
                if parse.proves & violated or values[parse.value] is EMPTY:
                    continue  # no proof needed: already violated
                raised = self._counted(parse, counts) if parse.raises else counts
                if raised is not None:
                    is_same = raised is counts and not parse.violates & ~violated
                    after = state if is_same else ArrayState(violated | parse.violates, raised)
                    result.append((parse.value, after))
        return result

    def _counted(self, parse: ItemParse, counts: tuple[int, ...]) -> tuple[int, ...] | None:
        """The counts after an item; ``None`` where it is not allowed."""
        result = list(counts)
        for number, assertion in enumerate(self._layout.counted):
            if not parse.raises >> number & 1:
                continue
            if assertion.max_contained is not None:
                result[number] += 1
                if result[number] > assertion.max_contained:
                    return None
            elif result[number] < assertion.min_contained:
                result[number] += 1
            elif parse.shows >> number & 1:
                return None  # the minimum is already reached
        return tuple(result)

    def _accepts(self, length: int, state: ArrayState) -> bool:
        layout = self._layout
        if length < layout.min_count:
            return False
        for count, counted in zip(state.counts, layout.counted, strict=True):
            if count < counted.min_contained:
                return False
        violated = state.violated
        for assertion in layout.negated:
            if (
                not violated & 1
                and length >= assertion.min_count
                and (assertion.max_count is None or length <= assertion.max_count)
            ):
                return False
            violated >>= 1
        return True

    def _tail(
        self,
        index: int,
        last: int,
        state: ArrayState,
        after: dict[ArrayState, Grammar | None],
        values: Items[Grammar],
        syntax: Syntax,
    ) -> Grammar | None:
        """What may come after ``index`` items; ``None`` where the array can no longer be completed."""
        steps = self._steps(index, state, values) if index < last or self._layout.max_count is None else []
        loops: list[Grammar] = []
        if index == last:
            loops = [values[value] for value, state_after in steps if state_after == state]
            steps = [step for step in steps if step[1] != state]
        rest = alternatives(*followed(steps, after, values))
        can_end = self._accepts(index, state)
        return tail_of(syntax.comma, alternatives(*loops), rest, can_end=can_end)


def _progress(state: ArrayState) -> tuple[int, int]:
    """The rank of a state; items never lead to a lower rank, or to another state of the same rank."""
    return state.violated.bit_count(), sum(state.counts)


def array_term(layout: ArrayLayout, items: Items[Grammar], rest: Grammar, syntax: Syntax) -> Grammar:
    """The arrays of a layout, given the terms of its prefix and of the rest (``EMPTY``: no such item).

    Complexity: O(len(items)), whatever the bounds.
    """
    min_count, max_count = layout.min_count, layout.max_count
    length = len(items) if max_count is None else min(len(items), max_count)
    for index in range(length):
        if items[index] is EMPTY:
            max_count = length = index
            break
    if rest is EMPTY and (max_count is None or max_count > length):
        max_count = length
    if max_count is not None and min_count > max_count:
        return EMPTY
    if max_count == 0:
        return Sequence((syntax.open_array, syntax.end_array))
    # From the right: `tail` is what may follow the item before `index`.
    comma = syntax.comma
    tail: Grammar = EPSILON
    if max_count is None or max_count > length:
        start = max(length, 1)
        tail = Repeat(
            Sequence((comma, rest)), max(min_count - start, 0), None if max_count is None else max_count - start
        )
    for index in range(length - 1, 0, -1):
        further = chain(comma, items[index], tail)
        tail = further if index < min_count else Choice((EPSILON, further))
    first = items[0] if length else rest
    some = chain(first, tail, syntax.close_array)
    return syntax.array(some, may_be_empty=not min_count)
