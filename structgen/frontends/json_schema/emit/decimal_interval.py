"""Intervals of decimal numbers as grammars over their digits, exact at both ends, without and with an exponent.

With an exponent a number is written ``d.ddd e xx``, one non-zero digit before the point.  Integers may be written in
any form: ``1.0``, ``1e2``, ``2.50e1``, ``100e-2``.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from structgen.frontends.json_schema.term import DIGIT, NONZERO_DIGIT, alternatives, chain, digits
from structgen.grammar.nodes import EMPTY, EPSILON, ByteClass, Choice, Grammar, Literal, Repeat

__all__ = [
    "MARK",
    "MAX_EXPONENT",
    "Bound",
    "DecimalPlaces",
    "digit_run",
    "exponents",
    "integral_magnitudes",
    "magnitudes",
    "scientific_magnitudes",
    "step",
    "with_zero_fraction",
    "zero_with_exponent",
]

_POINT: Final = Literal(b".")
_ZERO: Final = Literal(b"0")


class Bound(NamedTuple):
    """A non-negative bound, as text.

    Attributes:
        whole: digits before the point, without leading zeros.
        fraction: digits after the point, without trailing zeros.
        is_open: whether the bound itself is excluded.
    """

    whole: str
    fraction: str
    is_open: bool

    @classmethod
    def of(cls, value: int | Decimal, *, is_open: bool) -> Bound:
        """The bound of the magnitude of a number."""
        text = format(value, "f") if isinstance(value, Decimal) else str(value)
        whole, _, fraction = text.lstrip("-").partition(".")
        return cls(whole.lstrip("0") or "0", fraction.rstrip("0"), is_open)

    @property
    def is_zero(self) -> bool:
        """Whether the bound is a closed zero, which is no lower bound of a magnitude."""
        return self.whole == "0" and not self.fraction and not self.is_open


class DecimalPlaces(NamedTuple):
    """The maximum number of digits before the point and after it (0: no point)."""

    whole: int
    fraction: int


def step(*edges: tuple[int, int, Grammar]) -> Grammar:
    """One digit and what follows it: ordered edges (first digit, last digit, rest); equal rests are joined."""
    joined: list[tuple[int, int, Grammar]] = []
    for low, high, rest in edges:
        if low > high or rest is EMPTY:
            continue
        if joined and joined[-1][2] is rest and joined[-1][1] == low - 1:
            joined[-1] = (joined[-1][0], high, rest)
        else:
            joined.append((low, high, rest))
    return alternatives(*[chain(digits((2 << high) - (1 << low)), rest) for low, high, rest in joined])


def digit_run(item: Grammar, min_count: int, max_count: int) -> Grammar:
    """``item`` repeated ``min_count`` to ``max_count`` times, at least ``min_count`` times."""
    return EPSILON if max_count <= 0 and min_count == 0 else Repeat(item, min_count, max(min_count, max_count))


@lru_cache(maxsize=1 << 10)
def _digits(min_count: int, max_count: int) -> Grammar:
    return digit_run(DIGIT, min_count, max_count)


@lru_cache(maxsize=1 << 8)
def _zeros(min_count: int, max_count: int) -> Grammar:
    return digit_run(_ZERO, min_count, max_count)


def magnitudes(low: Bound, high: Bound | None, places: DecimalPlaces) -> Grammar:
    """The numbers from ``low`` to ``high`` (``None``: as far as ``places.whole`` digits go), without sign.

    >>> str(magnitudes(Bound("7", "", False), Bound("12", "", False), DecimalPlaces(3, 0)))
    'b[7-9] | b[1] b[0-2]'
    """
    above = _FractionBound(high.fraction, high.is_open) if high else _FractionBound("", is_open=False)
    ends = _ends(_FractionBound(low.fraction, low.is_open), above, places.fraction)
    first, last = len(low.whole), places.whole if high is None else len(high.whole)
    at_low = at_high = EMPTY
    if low.is_zero:
        first = 1
    else:
        at_low = _whole(low.whole, high.whole if high and first == last else None, ends)
        first += 1
    if high is not None and first <= last:
        at_high = _whole(None, high.whole, ends)
        last -= 1
    return alternatives(at_low, _free(first, last, ends), at_high)


def _free(first: int, last: int, ends: _Ends) -> Grammar:
    """All numbers with ``first`` to ``last`` digits before the point."""
    if first > last:
        return EMPTY
    longer = chain(NONZERO_DIGIT, _digits(max(first, 1) - 1, last - 1))
    if first > 1:
        return chain(longer, ends.free)
    return chain(DIGIT if last == 1 else Choice((_ZERO, longer)), ends.free)


def _whole(low: str | None, high: str | None, ends: _Ends) -> Grammar:
    """The numbers between two bounds with as many digits before the point; made from the last digit back."""
    length = len(low or high or "")
    both, below, above, free = ends.both, ends.low, ends.high, ends.free
    for index in range(length - 1, -1, -1):
        min_digit = 1 if index == 0 and length > 1 else 0
        a, c = int(low[index]) if low else min_digit, int(high[index]) if high else 9
        if low and high:
            both = step((a, a, both)) if a == c else step((a, a, below), (a + 1, c - 1, free), (c, c, above))
        below = step((a, a, below), (a + 1, 9, free))
        above = step((min_digit, c - 1, free), (c, c, above))
        free = chain(_digits(length - index, length - index), ends.free)
    return both if low and high else below if low else above


class _FractionBound(NamedTuple):
    """The digits of a bound after the point, and whether the bound itself is excluded."""

    digits: str
    is_open: bool


class _Ends:
    """What may follow the digits before the point, for each state of comparison.

    Attributes:
        free: the number is strictly between the bounds, whatever follows.
        low, high: the digits so far equal those of the lower or upper bound; ``both``: of both.
    """

    def __init__(self, low: _FractionBound, high: _FractionBound, places: int) -> None:
        self._places = places
        if places == 0:
            self.free = self.low = self.high = self.both = EPSILON
            return
        self.free = digit_run(chain(_POINT, self._free(0)), 0, 1)
        may_end_low = not low.digits and not low.is_open
        may_end_high = bool(high.digits) or not high.is_open
        below, above, both = self._fractions(low, high)
        self.low = self.free if may_end_low else chain(_POINT, below)
        self.high = alternatives(EPSILON if may_end_high else EMPTY, chain(_POINT, above))
        ends_both = EPSILON if may_end_low and may_end_high else EMPTY
        self.both = alternatives(ends_both, chain(_POINT, above if may_end_low else both))

    def _free(self, done: int) -> Grammar:
        return _digits(1 if done == 0 else 0, self._places - done)

    def _fractions(self, lower: _FractionBound, upper: _FractionBound) -> tuple[Grammar, Grammar, Grammar]:
        """The fractions above the lower bound, below the upper one, and between both, from the last digit back."""
        low, high = lower.digits, upper.digits
        length = max(len(low), len(high))
        below = _above_zero(max(self._places - length, 1)) if lower.is_open else self._free(length)
        above = EMPTY if upper.is_open else _zeros(1 if length == 0 else 0, self._places - length)
        both = EMPTY if lower.is_open else above
        for done in range(length - 1, -1, -1):
            free = self._free(done + 1)
            low_is_done = done >= len(low)
            a = 0 if low_is_done else int(low[done])
            if low_is_done and not lower.is_open:
                next_below = self._free(done)
            else:
                next_below = step((a, a, below), (a + 1, 9, free))
            if done >= len(high):
                next_above = EMPTY if upper.is_open else _zeros(1 if done == 0 else 0, self._places - done)
                c = 0
            else:
                c = int(high[done])
                end = EPSILON if done > 0 else EMPTY
                next_above = alternatives(end, step((0, c - 1, free), (c, c, above)))
            if low_is_done and not lower.is_open:
                next_both = next_above
            elif a == c:
                next_both = step((a, a, both))
            elif a > c:
                next_both = EMPTY
            else:
                next_both = step((a, a, below), (a + 1, c - 1, free), (c, c, above))
            below, above, both = next_below, next_above, next_both
        return below, above, both


_ends: Final = lru_cache(maxsize=64)(_Ends)


@lru_cache(maxsize=1 << 8)
def _above_zero(max_count: int) -> Grammar:
    """Up to ``max_count`` digits, at least one of them nonzero."""
    term: Grammar = EMPTY
    for left in range(1, max_count + 1):
        term = alternatives(chain(NONZERO_DIGIT, _digits(0, left - 1)), chain(_ZERO, term))
    return term


_LARGEST: Final = Decimal("1.7976931348623157e308")
_SMALLEST: Final = Decimal("5e-324")
"""The exponents of double precision; numbers beyond it are read back as infinity or zero."""
_EXPONENT_DIGITS: Final = 3
MAX_EXPONENT: Final = 10**_EXPONENT_DIGITS - 1
MARK: Final = ByteClass([(0x45, 0x45), (0x65, 0x65)])
"""The mark before an exponent."""
_PLUS: Final = Repeat(Literal(b"+"), 0, 1)
_MINUS: Final = Literal(b"-")


class _Normal(NamedTuple):
    """A positive bound as mantissa and exponent."""

    mantissa: Decimal
    exponent: int
    is_open: bool

    @classmethod
    def of(cls, bound: int | Decimal, *, is_open: bool) -> _Normal:
        """The normal form of a number, with one digit before the point."""
        number = Decimal(bound)
        _, digits, _ = number.as_tuple()
        return cls(Decimal((0, digits, 1 - len(digits))), number.adjusted(), is_open)


def scientific_magnitudes(
    low: tuple[int | Decimal, bool], high: tuple[int | Decimal | None, bool], fraction_digits: int, shifts: int = 0
) -> Grammar:
    """The positive numbers of double precision between two bounds, each with whether it is open.

    With ``shifts``, the point may be up to this many places before or after its normal position, which is after the
    first nonzero digit: ``0.012e4``, ``1200e-1``.
    """
    (lowest, low_open), (highest, high_open) = low, high
    smallest = _Normal.of(lowest, is_open=low_open) if lowest >= _SMALLEST else _Normal.of(_SMALLEST, is_open=False)
    if highest is None or highest > _LARGEST:
        highest, high_open = _LARGEST, False
    largest = _Normal.of(highest, is_open=high_open)
    if largest.mantissa == 0:
        return EMPTY
    pieces = [piece for piece in _pieces(smallest, largest) if piece.first <= piece.last]
    return alternatives(
        *(
            chain(mantissas, MARK, exponents(piece.first - shift, piece.last - shift))
            for piece in pieces
            for shift in range(-min(shifts, fraction_digits - 1), shifts + 1)
            if (mantissas := _mantissas(piece, shift, fraction_digits)) is not EMPTY
        )
    )


def _mantissas(piece: _Piece, shift: int, fraction_digits: int) -> Grammar:
    """The mantissas of a piece with the point ``shift`` places further to the right."""
    places = DecimalPlaces(max(shift, 0) + 1, fraction_digits)
    if not shift:
        return magnitudes(piece.low, piece.high, places)
    return magnitudes(_moved(piece.low, shift), _moved(piece.high, shift), places)


def _moved(bound: Bound, shift: int) -> Bound:
    return Bound.of(Decimal(f"{bound.whole}.{bound.fraction or 0}").scaleb(shift), is_open=bound.is_open)


class _Piece(NamedTuple):
    """An interval of mantissas with an interval of exponents."""

    low: Bound
    high: Bound
    first: int
    last: int


def _pieces(smallest: _Normal, largest: _Normal) -> list[_Piece]:
    """Divide the mantissas from 1 to 10 at the mantissas of the bounds."""
    points = sorted({Decimal(1), smallest.mantissa, largest.mantissa, Decimal(10)})
    pieces: list[_Piece] = []
    for start, end in pairwise(points):
        above = start > smallest.mantissa or (start == smallest.mantissa and not smallest.is_open)
        below = start < largest.mantissa or (start == largest.mantissa and not largest.is_open)
        _add(
            pieces,
            (start, start),
            is_open=False,
            first=smallest.exponent + (not above),
            last=largest.exponent - (not below),
        )
        above, below = start >= smallest.mantissa, end <= largest.mantissa
        _add(
            pieces,
            (start, end),
            is_open=True,
            first=smallest.exponent + (not above),
            last=largest.exponent - (not below),
        )
    return pieces


def _add(pieces: list[_Piece], ends: tuple[Decimal, Decimal], *, is_open: bool, first: int, last: int) -> None:
    """Append an interval, or join it with the one before if the exponents are the same."""
    low, high = (Bound.of(end, is_open=is_open) for end in ends)
    if pieces and pieces[-1][2:] == (first, last):
        low = pieces.pop().low
    pieces.append(_Piece(low, high, first, last))


def exponents(first: int, last: int) -> Grammar:
    """The exponents of an interval, with leading zeros up to three digits and an optional plus."""
    first, last = max(first, -MAX_EXPONENT), min(last, MAX_EXPONENT)
    positive = _padded(max(first, 0), last)
    negative = _padded(max(-last, 0), -first)
    return alternatives(chain(_PLUS, positive), chain(_MINUS, negative))


@lru_cache(maxsize=1 << 10)
def _padded(first: int, last: int) -> Grammar:
    widths = range(1, _EXPONENT_DIGITS + 1)
    return alternatives(*(_of_width(first, min(last, 10**width - 1), width) for width in widths))


def _of_width(first: int, last: int, width: int) -> Grammar:
    """The numbers of an interval written in exactly ``width`` digits."""
    if first > last:
        return EMPTY
    low, high = f"{first:0{width}}", f"{last:0{width}}"
    both, below, above, free = EPSILON, EPSILON, EPSILON, EPSILON
    for index in range(width - 1, -1, -1):
        a, c = int(low[index]), int(high[index])
        both = step((a, a, both)) if a == c else step((a, a, below), (a + 1, c - 1, free), (c, c, above))
        below = step((a, a, below), (a + 1, 9, free))
        above = step((0, c - 1, free), (c, c, above))
        free = chain(DIGIT, free)
    return both


@lru_cache(maxsize=8)
def integral_magnitudes(digits: int) -> Grammar:
    """The magnitudes that are integers, with at most ``digits`` digits on either side of the point.

    With an exponent, a number is an integer iff the exponent is at least the number of digits after the point (without
    trailing zeros), or, without such digits, at least minus the number of trailing zeros.

    Complexity: O(digits ** 2) nodes.
    """

    def at_least(exponent: int) -> Grammar:
        return chain(MARK, exponents(exponent, MAX_EXPONENT))

    natural = Choice((_ZERO, chain(NONZERO_DIGIT, digit_run(DIGIT, 0, digits - 1))))
    plain = chain(natural, _trailing_zeros(digits), Choice((EPSILON, at_least(0))))
    shifted = [
        chain(
            digit_run(DIGIT, count - 1, count - 1), NONZERO_DIGIT, digit_run(_ZERO, 0, digits - count), at_least(count)
        )
        for count in range(1, digits + 1)
    ]
    shortened = [
        chain(
            NONZERO_DIGIT,
            digit_run(DIGIT, 0, digits - 1 - count),
            digit_run(_ZERO, count, count),
            _trailing_zeros(digits),
            chain(MARK, exponents(-count, -count)),
        )
        for count in range(1, digits)
    ]
    return alternatives(plain, chain(natural, _POINT, alternatives(*shifted)), *shortened, zero_with_exponent(digits))


def zero_with_exponent(digits: int) -> Grammar:
    """Zero with any exponent."""
    return chain(_ZERO, _trailing_zeros(digits), MARK, exponents(-MAX_EXPONENT, MAX_EXPONENT))


def with_zero_fraction(term: Grammar, digits: int) -> Grammar:
    """The integers of ``term``, also with a point and zeros."""
    return chain(term, _trailing_zeros(digits))


def _trailing_zeros(digits: int) -> Grammar:
    """Nothing, or a point and zeros."""
    return Choice((EPSILON, chain(_POINT, digit_run(_ZERO, 1, digits))))
