"""Multiples of a number as grammars over decimal digits.

Reading a digit ``d`` maps the remainder ``r`` to ``(10 r + d) mod n``.  The number of digits is
bounded, so the automaton is unrolled into an acyclic term; states that accept the same digits are one object.  For a
large ``n`` there is one automaton for each power of a prime in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction
from itertools import chain as joined, repeat
from typing import Final

from structgen.frontends.json_schema.emit.decimal_interval import DecimalPlaces, digit_run
from structgen.frontends.json_schema.term import DIGIT, NONZERO_DIGIT, alternatives, chain, digits
from structgen.grammar.flattening import untrack
from structgen.grammar.nodes import EMPTY, EPSILON, Choice, Grammar, Intersection, Literal, choices_of, sequences_of
from structgen.memory_cache import NUMBERS, ContentCache

__all__ = ["MAX_MULTIPLE_STATES", "WHOLE_DIGITS", "multiples", "multiples_bytes", "multiples_states", "remainders"]

MAX_MULTIPLE_STATES: Final = 50_000
"""The maximum number of states of the automaton: digits times remainders."""
_MAX_UNROLLED: Final = 25_000
"""Above this modulus, the multiples are the intersection of the multiples of its prime powers."""
WHOLE_DIGITS: Final = 20
"""Digits before the point of a multiple, unless a bound needs more or the step is a power of ten."""
_ZERO: Final = Literal(b"0")
_POINT: Final = Literal(b".")
_DIFFERENT: Final = 11
"""Ten rests and ``EMPTY``, if no two are the same."""
_DIGITS: Final = [digits(1 << digit) for digit in range(10)]

_ENTRY_BYTES: Final = 1 << 10
_NODE_BYTES: Final = 150
"""Of a node of an automaton, more than was measured."""
_multiples_cache: Final[ContentCache[tuple[Grammar, int]]] = ContentCache(NUMBERS)

_DigitState = dict[int, Grammar]


def remainders(step: Fraction, *, integral: bool) -> int:
    """The number of remainders that the automaton for multiples of ``step`` distinguishes."""
    return _scaled(step)[0] if integral else step.numerator * 10 ** _fraction_places(step) // step.denominator


def multiples_states(step: Fraction, places: DecimalPlaces) -> int:
    """At most how many states ``multiples`` has; 0 where the automaton would have too many."""
    modulus = remainders(step, integral=places.fraction == 0)
    if modulus * places.whole > MAX_MULTIPLE_STATES:
        return 0
    digits = places.whole + (_fraction_places(step) if places.fraction else 0)
    return sum(_parts(modulus, places)) * digits


def multiples(step: Fraction, places: DecimalPlaces) -> Grammar:
    """The magnitudes that are multiples of ``step``; ``places.fraction == 0`` means integers only.

    ``step`` must have a finite decimal expansion.  Zero is a multiple.  Recent results are cached.

    >>> str(multiples(Fraction(10), DecimalPlaces(3, 0)))
    '"0" | b[1-9] b[0-9]? "0"'

    Complexity: O(digits * remainders).
    """
    key = step, places
    cached = _multiples_cache.get(key)
    if cached is None:
        made = _Automata()
        term = made.multiples(step, places)
        size = _ENTRY_BYTES + _NODE_BYTES * made.nodes
        cached = term, size
        untrack(term)
        _multiples_cache.put(key, cached, size)
    return cached[0]


def multiples_bytes(steps: Iterable[Fraction | None], places: DecimalPlaces) -> int:
    """About the memory of the multiples of all steps; 0 if one is not cached."""
    cached = [_multiples_cache.get((step, places)) for step in steps if step is not None]
    return sum(each[1] for each in cached if each) if all(cached) else 0


class _Automata:
    """Makes terms of multiples.

    Attributes:
        nodes: at least how many nodes were made.
    """

    def __init__(self) -> None:
        self.nodes = 0

    def multiples(self, step: Fraction, places: DecimalPlaces) -> Grammar:
        """The multiples of ``step``, made anew."""
        if places.fraction == 0:
            modulus, zeros = _scaled(step)
            tail = EPSILON if zeros == 0 else Literal(b"0" * zeros)
            if modulus == 1:
                return Choice((_ZERO, chain(NONZERO_DIGIT, digit_run(DIGIT, 0, places.whole - 1 - zeros), tail)))
            parts = _parts(modulus, places)
            return _common([alternatives(_ZERO, self._whole(part, {0: tail}, places.whole)) for part in parts])
        count = _fraction_places(step)
        modulus = step.numerator * 10**count // step.denominator
        factors = []
        for part in _parts(modulus, places):
            ends = self._fractions(part, count, places.fraction)
            factors.append(alternatives(chain(_ZERO, ends.get(0, EMPTY)), self._whole(part, ends, places.whole)))
        return _common(factors)

    def _whole(self, modulus: int, ends: _DigitState, places: int) -> Grammar:
        """Digits before the point, the first nonzero; ``ends`` is what may follow, by remainder."""
        reached: list[Iterable[int]] = [{digit % modulus for digit in range(1, 10)}]
        for _ in range(places - 2):
            before = reached[-1]
            if not isinstance(before, range):
                following = {(10 * remainder + digit) % modulus for remainder in before for digit in range(10)}
                before = range(modulus) if len(following) == modulus else following
            reached.append(before)
        after = ends
        for remainders_here in reversed(reached[: places - 1]):
            after = self._layer(modulus, after, ends, remainders_here)
        return _edges([EMPTY, *(after.get(digit % modulus, EMPTY) for digit in range(1, 10))])

    def _layer(self, modulus: int, after: _DigitState, ends: _DigitState, reached: Iterable[int]) -> _DigitState:
        """The states before ``after``, one digit earlier, for some remainders; equal states become one object."""
        row = list(map(after.get, range(modulus), repeat(EMPTY)))
        row *= 1 + -(-9 // modulus)  # remainders wrap around
        starts = {remainder: 10 * remainder % modulus for remainder in reached}
        edges = self._edges_from(row, dict.fromkeys(starts.values()), modulus)
        layer = {remainder: edges[start] for remainder, start in starts.items()}
        stops: dict[tuple[int, int], Grammar] = {}
        for remainder, end in ends.items():
            term = layer.get(remainder)
            if term is not None:
                layer[remainder] = stops.setdefault((id(end), id(term)), alternatives(end, term))
        return {remainder: term for remainder, term in layer.items() if term is not EMPTY}

    def _edges_from(self, row: list[Grammar], starts: Collection[int], modulus: int) -> dict[int, Grammar]:
        """For each start, a choice of the digits, each with what follows it: ten members of a row."""
        numbers = list(map(id, row))
        # Most layers of a large modulus have another rest for each remainder.
        if modulus >= len(_DIGITS) and len({*numbers, id(EMPTY)}) == modulus + 1:
            self.nodes += _DIFFERENT * len(starts)
            return dict(zip(starts, _full_edges(row, starts), strict=True))
        keys = {start: tuple(numbers[start : start + 10]) for start in starts}
        first = {key: start for start, key in keys.items()}
        counts = {key: len({*key, id(EMPTY)}) for key in first}
        self.nodes += sum(counts.values())
        full = [start for key, start in first.items() if counts[key] == _DIFFERENT]
        made = {key: _edges(row[start : start + 10]) for key, start in first.items() if counts[key] < _DIFFERENT}
        made.update(zip(map(keys.__getitem__, full), _full_edges(row, full), strict=True))
        return {start: made[key] for start, key in keys.items()}

    def _fractions(self, modulus: int, count: int, places: int) -> _DigitState:
        """What may follow the digits before the point, by remainder: nothing, or the point and a fraction."""
        places = max(places, count)
        layer: _DigitState = {0: digit_run(_ZERO, 1 if count == 0 else 0, places - count)}
        for done in range(count - 1, -1, -1):
            scale = 10 ** (count - done)
            stops = {r: EPSILON for r in range(modulus) if done > 0 and r * scale % modulus == 0}
            layer = self._layer(modulus, layer, stops, range(modulus))
        scale = 10**count
        return {
            r: alternatives(EPSILON if r * scale % modulus == 0 else EMPTY, chain(_POINT, layer[r]))
            for r in range(modulus)
            if r in layer
        }


def _common(terms: list[Grammar]) -> Grammar:
    return terms[0] if len(terms) == 1 else Intersection(terms)


def _parts(modulus: int, places: DecimalPlaces) -> list[int]:
    """The modulus, or its prime powers if it is large."""
    if modulus * places.whole <= _MAX_UNROLLED:
        return [modulus]
    parts, rest, prime = [], modulus, 2
    while rest > 1:
        if prime * prime > rest:
            prime = rest
        part = 1
        while rest % prime == 0:
            rest, part = rest // prime, part * prime
        if part > 1:
            parts.append(part)
        prime += 1
    return parts


def _scaled(step: Fraction) -> tuple[int, int]:
    """``modulus`` and ``zeros``: the integers that are multiples of ``step`` are those of ``modulus * 10 ** zeros``."""
    modulus, zeros = step.numerator, 0
    while modulus % 10 == 0:
        modulus, zeros = modulus // 10, zeros + 1
    return modulus, zeros


def _fraction_places(step: Fraction) -> int:
    """The number of decimals of ``step``."""
    denominator, count = step.denominator, 0
    while denominator > 1:
        denominator //= 10 if denominator % 10 == 0 else 2 if denominator % 2 == 0 else 5
        count += 1
    return count


def _full_edges(row: list[Grammar], starts: Collection[int]) -> list[Grammar]:
    """For each start, a choice of the ten digits, each with what follows it: ten different rests."""
    rests = joined.from_iterable([row[start : start + 10] for start in starts])
    edges = sequences_of(list(zip(_DIGITS * len(starts), rests, strict=True)))
    return choices_of(list(zip(*[iter(edges)] * 10, strict=True)))


def _edges(rests: list[Grammar]) -> Grammar:
    """A digit and what follows it, for each digit; digits with the same rest are one class."""
    by_rest: dict[int, int] = {}
    for digit, rest in enumerate(rests):
        by_rest[id(rest)] = by_rest.get(id(rest), 0) | 1 << digit
    by_rest.pop(id(EMPTY), None)
    # The lowest bit says where the rest is.
    edges = [chain(digits(mask), rests[(mask & -mask).bit_length() - 1]) for mask in by_rest.values()]
    return alternatives(*edges)
