"""Intervals of decimal numbers as grammars over their digits, exact at both ends.

A number is written ``-?whole(.fraction)?``.  Read from the left, it is compared with a bound digit by digit; until
the first difference the text is *tight* on the bound, afterwards it is free.  So an interval is a chain of at most
four states a digit: tight below, tight above, tight on both, free.  Chains are built from their ends and share
their tails: O(digits) nodes.  What follows the point depends on little but the bounds' own fractions, and is kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from structgen.grammar.json_schema.terms import DIGIT, NONZERO_DIGIT, alternatives, chain, digits
from structgen.grammar.nodes import EMPTY, EPSILON, Choice, Grammar, Literal, Repeat

__all__ = ["Bound", "Places", "magnitudes", "run", "step"]

_POINT: Final = Literal(b".")
_ZERO: Final = Literal(b"0")


class Bound(NamedTuple):
    """A non-negative bound, as text.

    Attributes:
        whole: digits before the point, without leading zeros.
        fraction: digits after the point, without trailing zeros.
        is_open: whether the bound itself is outside.
    """

    whole: str
    fraction: str
    is_open: bool

    @property
    def is_zero(self) -> bool:
        """Whether the bound is closed at zero, so that it bounds no magnitude from below."""
        return self.whole == "0" and not self.fraction and not self.is_open


class Places(NamedTuple):
    """How many digits may be written: before the point, and after it (0: no point at all)."""

    whole: int
    fraction: int


def step(*edges: tuple[int, int, Grammar]) -> Grammar:
    """One digit and what follows it: edges (lowest digit, highest digit, rest), in order; equal rests are joined."""
    joined: list[tuple[int, int, Grammar]] = []
    for low, high, rest in edges:
        if low > high or rest is EMPTY:
            continue
        if joined and joined[-1][2] is rest and joined[-1][1] == low - 1:
            joined[-1] = (joined[-1][0], high, rest)
        else:
            joined.append((low, high, rest))
    return alternatives(*[chain(digits((2 << high) - (1 << low)), rest) for low, high, rest in joined])


def run(item: Grammar, least: int, most: int) -> Grammar:
    """``item`` from ``least`` to ``most`` times, at least ``least`` times."""
    return EPSILON if most <= 0 and least == 0 else Repeat(item, least, max(least, most))


@lru_cache(maxsize=1 << 10)
def _digits(least: int, most: int) -> Grammar:
    return run(DIGIT, least, most)


@lru_cache(maxsize=1 << 8)
def _zeros(least: int, most: int) -> Grammar:
    return run(_ZERO, least, most)


def magnitudes(low: Bound, high: Bound | None, places: Places) -> Grammar:
    """The numbers from ``low`` to ``high`` (``None``: as far as ``places.whole`` digits go), without sign.

    >>> str(magnitudes(Bound("7", "", False), Bound("12", "", False), Places(3, 0)))
    'b[7-9] | b[1] b[0-2]'
    """
    high_fraction, high_open = (high.fraction, high.is_open) if high else ("", False)
    ends = _Ends.of(low.fraction, low.is_open, high_fraction, high_open, places.fraction)
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
    """The numbers with as many digits before the point as the bounds, between them; from the last digit back."""
    length = len(low or high or "")
    both, below, above, free = ends.both, ends.low, ends.high, ends.free
    for index in range(length - 1, -1, -1):
        least = 1 if index == 0 and length > 1 else 0
        a, c = int(low[index]) if low else least, int(high[index]) if high else 9
        if low and high:
            both = step((a, a, both)) if a == c else step((a, a, below), (a + 1, c - 1, free), (c, c, above))
        below = step((a, a, below), (a + 1, 9, free))
        above = step((least, c - 1, free), (c, c, above))
        free = chain(_digits(length - index, length - index), ends.free)
    return both if low and high else below if low else above


class _Ends:
    """What may follow the digits before the point, for each state of comparison.

    Attributes:
        free: the number lies strictly between the bounds whatever follows.
        low, high: what was written equals the lower or upper bound so far; ``both``: it equals both.
    """

    def __init__(self, low_fraction: str, low_open: bool, high_fraction: str, high_open: bool, places: int) -> None:
        self._places = places
        self._low_fraction, self._low_open = low_fraction, low_open
        self._high_fraction, self._high_open = high_fraction, high_open
        if places == 0:
            self.free = self.low = self.high = EPSILON
            self.both = EPSILON
            return
        self.free = run(chain(_POINT, self._free(0)), 0, 1)
        may_end_low = not self._low_fraction and not self._low_open
        may_end_high = bool(self._high_fraction) or not self._high_open
        below, above, both = self._fractions()
        self.low = self.free if may_end_low else chain(_POINT, below)
        self.high = alternatives(EPSILON if may_end_high else EMPTY, chain(_POINT, above))
        ends_both = EPSILON if may_end_low and may_end_high else EMPTY
        self.both = alternatives(ends_both, chain(_POINT, above if may_end_low else both))

    @staticmethod
    @lru_cache(maxsize=256)
    def of(low_fraction: str, low_open: bool, high_fraction: str, high_open: bool, places: int) -> _Ends:
        """The ends of two bounds; those asked for last are kept."""
        return _Ends(low_fraction, low_open, high_fraction, high_open, places)

    def _free(self, done: int) -> Grammar:
        return _digits(1 if done == 0 else 0, self._places - done)

    def _fractions(self) -> tuple[Grammar, Grammar, Grammar]:
        """The fractions above the lower bound, below the upper one, and between both, from the last digit back."""
        low, high = self._low_fraction, self._high_fraction
        length = max(len(low), len(high))
        below = _above_zero(max(self._places - length, 1)) if self._low_open else self._free(length)
        above = EMPTY if self._high_open else _zeros(1 if length == 0 else 0, self._places - length)
        both = EMPTY if self._low_open else above
        for done in range(length - 1, -1, -1):
            free = self._free(done + 1)
            low_is_done = done >= len(low)
            a = 0 if low_is_done else int(low[done])
            if low_is_done and not self._low_open:
                next_below = self._free(done)
            else:
                next_below = step((a, a, below), (a + 1, 9, free))
            if done >= len(high):
                next_above = EMPTY if self._high_open else _zeros(1 if done == 0 else 0, self._places - done)
                c = 0
            else:
                c = int(high[done])
                end = EPSILON if done > 0 else EMPTY
                next_above = alternatives(end, step((0, c - 1, free), (c, c, above)))
            if low_is_done and not self._low_open:
                next_both = next_above
            elif a == c:
                next_both = step((a, a, both))
            elif a > c:
                next_both = EMPTY
            else:
                next_both = step((a, a, below), (a + 1, c - 1, free), (c, c, above))
            below, above, both = next_below, next_above, next_both
        return below, above, both


@lru_cache(maxsize=1 << 8)
def _above_zero(most: int) -> Grammar:
    """Up to ``most`` digits of which at least one is not zero."""
    term: Grammar = EMPTY
    for left in range(1, most + 1):
        term = alternatives(chain(NONZERO_DIGIT, _digits(0, left - 1)), chain(_ZERO, term))
    return term
