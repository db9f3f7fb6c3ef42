"""``uniqueItems`` over finitely many values: each value at most once, in any order.

Items that may have equal values are enumerated by value: 1 and 1.0 are one value with two spellings.  After the prefix
come permutations of the remaining values.  Where values cannot be enumerated, items are compared while the text is
written (``Distinct``); ``UniqueItems.is_settled`` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence as Items
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor
from typing import TYPE_CHECKING, Final, TypeVar

from structgen.frontends.json_schema.emit.number import number_term
from structgen.frontends.json_schema.emit.syntax import NULL_TERM, values_term
from structgen.frontends.json_schema.normal.scalar_assertion import NumberAssertion
from structgen.frontends.json_schema.source.json_value import ANY, BOOLEAN, FRACTION, INTEGER, NULL, value_key
from structgen.frontends.json_schema.term import alternatives, chain
from structgen.grammar.nodes import EMPTY, EPSILON, Choice, Grammar, Literal, Permutation, Sequence

if TYPE_CHECKING:
    from structgen.frontends.json_schema.emit.plan import EmptinessProof, ProveEmpty
    from structgen.frontends.json_schema.emit.syntax import Syntax
    from structgen.frontends.json_schema.normal.container_assertion import ArrayLayout
    from structgen.frontends.json_schema.normal.disjunct import Disjunct
    from structgen.frontends.json_schema.normal.normal_form import NormalForm
    from structgen.frontends.json_schema.normal.validity import Validity
    from structgen.frontends.json_schema.source.json_value import Json
    from structgen.frontends.json_schema.source.location import Location

__all__ = ["UniqueItems"]

Part = TypeVar("Part")

_MAX_VALUES: Final = 5_000
"""Values of one item that are enumerated."""
_MAX_INTEGERS: Final = 1_000
"""Integers of an interval that are enumerated."""
_MAX_STATES: Final = 1_000
"""States of a prefix: positions, each with the values that were used before."""
_BOOLEANS: Final = {True: Literal(b"true"), False: Literal(b"false")}


@dataclass(slots=True, eq=False)
class _ItemPosition:
    """The items at one position.

    Attributes:
        locations: their schemas.
        disjuncts: their normal form.
        values: by key, the values and their texts; ``None`` where they are not enumerated.
        plan: the index of its term in the argument of ``UniqueItems.term``.
    """

    locations: tuple[Location, ...]
    disjuncts: list[Disjunct]
    values: dict[object, tuple[Json, Grammar]] | None = None
    plan: int = -1

    @property
    def types(self) -> int:
        """The types of the items, as bits."""
        result = 0 if self.locations else ANY
        for disjunct in self.disjuncts:
            result |= disjunct.types
        return result


class UniqueItems:
    """The arrays of a layout with ``uniqueItems``.

    Attributes:
        locations: the conjunctions of schemas whose terms ``term`` takes.
        disjuncts: the disjuncts of the positions with enumerated values.
        size: the number of these values.
        is_settled: whether ``term`` may be called.  False if some items are neither enumerated nor provably different
            from all others, or if the prefix has too many states.
    """

    def __init__(self, layout: ArrayLayout, forms: NormalForm, validity: Validity, syntax: Syntax) -> None:
        """Enumerate the values."""
        self._layout = layout
        self._syntax = syntax
        self._validity = validity
        self.locations: list[tuple[Location, ...]] = []
        length = len(layout.items)
        self._has_rest = layout.max_count is None or layout.max_count > length
        positions = [*layout.items, layout.rest] if self._has_rest else layout.items
        self._positions = [_ItemPosition(locations, forms.disjuncts(locations)) for locations in positions]
        self.disjuncts: list[list[Disjunct]] = []
        self.size = 0
        for position in self._positions:
            position.values = self._finite_values(position)
            if position.values is None:
                position.plan = len(self.locations)
                self.locations.append(position.locations)
            else:
                self.disjuncts.append(position.disjuncts)
                self.size += len(position.values)
        repeats = self._has_rest and (layout.max_count is None or layout.max_count > length + 1)
        is_finite = not repeats or self._positions[-1].values is not None
        self.is_settled = (
            not layout.is_stateful
            and is_finite
            and all(map(self._are_apart, self._pairs()))
            and _has_few_states(layout, self._positions, syntax, has_rest=self._has_rest)
        )

    def _pairs(self) -> Iterator[tuple[_ItemPosition, _ItemPosition]]:
        """The pairs of positions where at most one is enumerated; the enumerated one is first."""
        for one, other in combinations(self._positions, 2):
            if one.values is None or other.values is None:
                yield (other, one) if one.values is None else (one, other)

    def _are_apart(self, pair: tuple[_ItemPosition, _ItemPosition]) -> bool:
        """Whether no value is possible at both positions; the second is not enumerated."""
        first, second = pair
        if not first.types & second.types:
            return True
        if first.values is None:
            return False
        return not any(self._validity.satisfies(value, second.locations) for value, _ in first.values.values())

    def _finite_values(self, position: _ItemPosition) -> dict[object, tuple[Json, Grammar]] | None:
        if not position.locations:
            return None
        result: dict[object, tuple[Json, Grammar]] = {}
        for disjunct in position.disjuncts:
            values = self._values_of_disjunct(disjunct)
            if values is None:
                return None
            for value, text in values:
                key = value_key(value)
                cached = result.get(key)
                result[key] = value, text if cached is None else alternatives(cached[1], text)
            if len(result) > _MAX_VALUES:
                return None
        return result

    def _values_of_disjunct(self, disjunct: Disjunct) -> list[tuple[Json, Grammar]] | None:
        """The values with their texts; a value may occur several times."""
        if disjunct.refusals:
            return None
        if disjunct.values:
            source, fractions = disjunct.values[0], bool(disjunct.types & FRACTION)
            return [
                (
                    value,
                    values_term([value], self._syntax.inside(1), source.location, source.keyword, fractions=fractions),
                )
                for value in self._validity.constants(disjunct)
            ]
        if disjunct.types & ~(BOOLEAN | NULL | INTEGER):
            return None
        result: list[tuple[Json, Grammar]] = []
        if disjunct.types & INTEGER:
            assertion = disjunct.number or NumberAssertion()
            numbers = _integers(assertion)
            if numbers is None:
                return None
            result += ((number, self._integer_term(number, assertion, disjunct)) for number in numbers)
        if disjunct.types & BOOLEAN:
            result += _BOOLEANS.items()
        if disjunct.types & NULL:
            result.append((None, NULL_TERM))
        return result

    def _integer_term(self, number: int, assertion: NumberAssertion, disjunct: Disjunct) -> Grammar:
        """The texts of one integer that ``assertion`` admits."""
        if self._syntax.policy.numbers == "canonical":
            text = Literal(str(number).encode())
            return text if number else Choice((text, Literal(b"-0")))
        point = NumberAssertion(lower=number, upper=number)
        return number_term(assertion.meet(point), self._syntax, disjunct.origins, integral=True)

    def term(self, terms: Items[Grammar]) -> Grammar:
        """The arrays, given the terms of ``locations``; ``EMPTY`` means that there are none.

        Complexity: O(values), times the states of a prefix whose positions share values.
        """
        return _UniqueItemsBuilder(self._layout, self._positions, terms, self._syntax, has_rest=self._has_rest).term()

    def is_empty(self, parts: Items[Part], ask: ProveEmpty[Part]) -> EmptinessProof:
        """Whether ``term`` is empty, given the terms of ``locations``.

        Raises:
            UnsupportedFeature: as ``term``.
        """
        terms: list[Grammar] = [EMPTY] * len(parts)
        for index, part in enumerate(parts):
            if not (yield ask(part)):
                terms[index] = NULL_TERM  # any nonempty term
        return self.term(terms) is EMPTY


def _integers(assertion: NumberAssertion) -> list[int] | None:
    """The integers that the assertion admits, if they are few."""
    if assertion.lower is None or assertion.upper is None or assertion.upper - assertion.lower > _MAX_INTEGERS:
        return None
    return [number for number in range(floor(assertion.lower), ceil(assertion.upper) + 1) if assertion.admits(number)]


def _has_few_states(layout: ArrayLayout, positions: list[_ItemPosition], syntax: Syntax, *, has_rest: bool) -> bool:
    """Whether the values that positions of the prefix share give few states."""
    builder = _UniqueItemsBuilder(layout, positions, [EMPTY] * len(positions), syntax, has_rest=has_rest)
    return not layout.items or len(builder.states()) <= _MAX_STATES


class _UniqueItemsBuilder:
    """Chains the items of a prefix; a state is a position with the used values that are possible again later."""

    def __init__(
        self,
        layout: ArrayLayout,
        positions: list[_ItemPosition],
        terms: Items[Grammar],
        syntax: Syntax,
        *,
        has_rest: bool,
    ) -> None:
        self._layout = layout
        self._positions = positions
        self._length = len(positions) - has_rest
        self._terms = terms
        self._syntax = syntax
        self._later: list[frozenset[object]] = [frozenset()] * (len(positions) + 1)
        for index in range(len(positions) - 1, -1, -1):
            self._later[index] = self._later[index + 1].union(positions[index].values or ())
        self._made: dict[tuple[int, frozenset[object]], Grammar] = {}

    def term(self) -> Grammar:
        syntax = self._syntax
        for key in reversed(list(self.states())):
            self._made[key] = self._items(*key)
        some = chain(syntax.lead, self._made[0, frozenset()], syntax.close_array)
        if self._layout.min_count:
            return chain(syntax.open_array, some)
        return Sequence((syntax.open_array, alternatives(syntax.end_array, some)))

    def states(self) -> dict[tuple[int, frozenset[object]], None]:
        """All states, each before its successors; or just over ``_MAX_STATES`` of them."""
        result: dict[tuple[int, frozenset[object]], None] = {(0, frozenset()): None}
        waiting = list(result)
        for index, used in waiting:
            for _, after in self._steps(index, used):
                if after not in result:
                    result[after] = None
                    waiting.append(after)
            if len(waiting) > _MAX_STATES:
                break
        return result

    def _steps(self, index: int, used: frozenset[object]) -> Iterator[tuple[Grammar, tuple[int, frozenset[object]]]]:
        """The items that may come at a position of the prefix, with the state after each."""
        if index >= self._length or index == self._layout.max_count:
            return
        values, later = self._positions[index].values, self._later[index + 1]
        if values is None:
            yield self._terms[self._positions[index].plan], (index + 1, used & later)
            return
        alike: list[Grammar] = []  # not possible at later positions
        for key, (_, text) in values.items():
            if key in later and key not in used:
                yield text, (index + 1, (used | {key}) & later)
            elif key not in used:
                alike.append(text)
        yield alternatives(*alike), (index + 1, used & later)

    def _items(self, index: int, used: frozenset[object]) -> Grammar:
        """What may come from ``index`` on, at least one item."""
        if index == self._layout.max_count:
            return EMPTY
        if index < self._length:
            return alternatives(*(chain(item, self._after(*state)) for item, state in self._steps(index, used)))
        if len(self._positions) == self._length:
            return EMPTY
        position = self._positions[-1]
        if position.values is None:
            return self._terms[position.plan] if self._layout.min_count <= index + 1 else EMPTY
        left = [text for key, (_, text) in position.values.items() if key not in used]
        min_count = max(self._layout.min_count - index, 1)
        max_count = None if self._layout.max_count is None else self._layout.max_count - index
        if len(left) < min_count or (max_count is not None and max_count < min_count):
            return EMPTY
        return Permutation((), left, None, self._syntax.comma, min_count, max_count)

    def _after(self, index: int, used: frozenset[object]) -> Grammar:
        """What may follow the item before ``index``."""
        more = self._made[index, used]
        further = EMPTY if more is EMPTY else chain(self._syntax.comma, more)
        if index < self._layout.min_count:
            return further
        return EPSILON if further is EMPTY else Choice((EPSILON, further))
