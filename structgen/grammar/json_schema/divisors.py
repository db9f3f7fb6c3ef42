"""What ``multipleOf`` and its negations say together, before any automaton is made.

A multiple of ``step`` is ``step`` times an integer, and such a number is a multiple of ``n`` iff that integer is
divisible by the numerator of ``n / step`` in lowest terms.  So conditions on one number are compared by divisibility
of integers.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from math import gcd, lcm

__all__ = ["common_multiple", "implies", "not_multiples"]


def common_multiple(one: Fraction, other: Fraction) -> Fraction:
    """The least number that is a multiple of both.

    >>> common_multiple(Fraction(3, 2), Fraction(5))
    Fraction(15, 1)
    """
    return Fraction(
        lcm(one.numerator * other.denominator, other.numerator * one.denominator),
        one.denominator * other.denominator,
    )


def not_multiples(step: Fraction | None, not_steps: Collection[Fraction]) -> tuple[Fraction, ...] | None:
    """The fewest and simplest numbers of which the same multiples of ``step`` are no multiples; ``None``: none is left.

    >>> not_multiples(Fraction(33), [Fraction(6), Fraction(8), Fraction(10)])
    (Fraction(2, 1),)
    >>> not_multiples(Fraction(120), [Fraction(8)]) is None
    True
    """
    if step is None:
        kept = {one for one in not_steps if not any(_divides(other, one) and other != one for other in not_steps)}
        return tuple(sorted(kept))
    quotients = {(one / step).numerator: one for one in sorted(not_steps, reverse=True)}
    if 1 in quotients:
        return None
    least = [one for one in quotients if not any(one % other == 0 and one != other for other in quotients)]
    return tuple(sorted(_reduced(quotients[one], one) for one in least))


def implies(step: Fraction | None, not_steps: Collection[Fraction], other: Fraction) -> bool:
    """Whether multiples of ``step`` that are no multiples of ``not_steps`` are no multiples of ``other`` either."""
    both = other if step is None else common_multiple(step, other)
    return any(_divides(one, both) for one in not_steps)


def _divides(one: Fraction, other: Fraction) -> bool:
    return (other / one).denominator == 1


def _reduced(one: Fraction, quotient: int) -> Fraction:
    """``one`` without the primes that do not divide ``quotient``, if it is an integer."""
    if one.denominator != 1:
        return one
    rest = one.numerator
    while (common := gcd(rest, quotient)) > 1:
        rest //= common
    return one / rest
