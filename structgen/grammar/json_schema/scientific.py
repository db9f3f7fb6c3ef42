"""Bounded numbers with an exponent: ``d.ddd e xx`` with one digit before the point that is not zero.

Such a number ``m * 10 ** e`` with ``1 <= m < 10`` lies above ``b * 10 ** k``, written likewise, iff ``e > k``, or
``e == k`` and ``m > b``.  The mantissa is read first, so it is classed against the mantissas of both bounds; each
class then leaves an interval of exponents.
"""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

from structgen.grammar.json_schema.decimals import Bound, Places, magnitudes, step
from structgen.grammar.json_schema.terms import DIGIT, alternatives, chain
from structgen.grammar.nodes import EMPTY, EPSILON, ByteClass, Grammar, Literal, Repeat

__all__ = ["MARK", "MOST_EXPONENT", "exponents", "scientific_magnitudes"]

_LARGEST: Final = Decimal("1.7976931348623157e308")
_SMALLEST: Final = Decimal("5e-324")
"""The range of double precision; what is beyond it reads back as infinite or as zero."""
_EXPONENT_DIGITS: Final = 3
MOST_EXPONENT: Final = 10**_EXPONENT_DIGITS - 1
MARK: Final = ByteClass([(0x45, 0x45), (0x65, 0x65)])
"""What stands before an exponent."""
_PLUS: Final = Repeat(Literal(b"+"), 0, 1)
_MINUS: Final = Literal(b"-")


class _Normal(NamedTuple):
    """A positive bound as mantissa and exponent."""

    mantissa: Decimal
    exponent: int
    is_open: bool


def scientific_magnitudes(
    low: tuple[int | Decimal, bool], high: tuple[int | Decimal | None, bool], fraction_digits: int, shifts: int = 0
) -> Grammar:
    """The positive numbers of double precision between two bounds, each with whether it is open.

    With ``shifts``, the point may stand up to so many places before or after the one behind the first digit that is
    not zero: ``0.012e4``, ``1200e-1``.
    """
    least = _normal(*low) if low[0] >= _SMALLEST else _normal(_SMALLEST, is_open=False)
    most = _normal(_LARGEST, is_open=False) if high[0] is None or high[0] > _LARGEST else _normal(high[0], high[1])
    if most.mantissa == 0:
        return EMPTY
    pieces = [piece for piece in _pieces(least, most) if piece.first <= piece.last]
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
    places = Places(max(shift, 0) + 1, fraction_digits)
    if not shift:
        return magnitudes(piece.low, piece.high, places)
    return magnitudes(_moved(piece.low, shift), _moved(piece.high, shift), places)


def _moved(bound: Bound, shift: int) -> Bound:
    return _bound(Decimal(f"{bound.whole}.{bound.fraction or 0}").scaleb(shift), bound.is_open)


def _normal(bound: int | Decimal, is_open: bool) -> _Normal:
    number = Decimal(bound)
    _, digits, _ = number.as_tuple()
    return _Normal(Decimal((0, digits, 1 - len(digits))), number.adjusted(), is_open)


class _Piece(NamedTuple):
    """An interval of mantissas, and the exponents that they may have."""

    low: Bound
    high: Bound
    first: int
    last: int


def _pieces(least: _Normal, most: _Normal) -> list[_Piece]:
    """Divide the mantissas from 1 to 10 at those of the bounds."""
    points = sorted({Decimal(1), least.mantissa, most.mantissa, Decimal(10)})
    pieces: list[_Piece] = []
    for start, end in pairwise(points):
        above = start > least.mantissa or (start == least.mantissa and not least.is_open)
        below = start < most.mantissa or (start == most.mantissa and not most.is_open)
        _add(
            pieces, (start, start), is_open=False, first=least.exponent + (not above), last=most.exponent - (not below)
        )
        above, below = start >= least.mantissa, end <= most.mantissa
        _add(pieces, (start, end), is_open=True, first=least.exponent + (not above), last=most.exponent - (not below))
    return pieces


def _add(pieces: list[_Piece], ends: tuple[Decimal, Decimal], *, is_open: bool, first: int, last: int) -> None:
    """Append an interval, joined with the one before if its exponents are the same."""
    low, high = _bound(ends[0], is_open), _bound(ends[1], is_open)
    if pieces and pieces[-1][2:] == (first, last):
        low = pieces.pop().low
    pieces.append(_Piece(low, high, first, last))


def _bound(value: Decimal, is_open: bool) -> Bound:
    whole, _, fraction = format(value, "f").partition(".")
    return Bound(whole.lstrip("0") or "0", fraction.rstrip("0"), is_open)


def exponents(first: int, last: int) -> Grammar:
    """The exponents of an interval, with leading zeros up to three digits and an optional plus."""
    first, last = max(first, -MOST_EXPONENT), min(last, MOST_EXPONENT)
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
