"""Numbers without a fractional part, however they are written: ``1.0``, ``1e2``, ``2.50e1``, ``100e-2``."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from structgen.grammar.json_schema.decimals import run
from structgen.grammar.json_schema.scientific import MARK, MOST_EXPONENT, exponents
from structgen.grammar.json_schema.terms import DIGIT, NONZERO_DIGIT, alternatives, chain
from structgen.grammar.nodes import EPSILON, Choice, Grammar, Literal

__all__ = ["integral_magnitudes", "with_zero_fraction", "zero_with_exponent"]

_ZERO: Final = Literal(b"0")
_POINT: Final = Literal(b".")


@lru_cache(maxsize=8)
def integral_magnitudes(digits: int) -> Grammar:
    """The magnitudes that are integers, with at most ``digits`` digits on either side of the point.

    With an exponent, a number is an integer iff the exponent is not smaller than the number of digits after the
    point, zeros at the end left out, or, where there are none, not below minus the number of zeros at the end.

    Complexity: O(digits ** 2) nodes.
    """
    natural = Choice((_ZERO, chain(NONZERO_DIGIT, run(DIGIT, 0, digits - 1))))
    plain = chain(natural, _zeros(digits), Choice((EPSILON, chain(MARK, exponents(0, MOST_EXPONENT)))))
    shifted = [
        chain(run(DIGIT, count - 1, count - 1), NONZERO_DIGIT, run(_ZERO, 0, digits - count), _from(count))
        for count in range(1, digits + 1)
    ]
    shortened = [
        chain(NONZERO_DIGIT, run(DIGIT, 0, digits - 1 - count), run(_ZERO, count, count), _zeros(digits), _only(-count))
        for count in range(1, digits)
    ]
    return alternatives(plain, chain(natural, _POINT, alternatives(*shifted)), *shortened, zero_with_exponent(digits))


def zero_with_exponent(digits: int) -> Grammar:
    """Zero with any exponent."""
    return chain(_ZERO, _zeros(digits), MARK, exponents(-MOST_EXPONENT, MOST_EXPONENT))


def with_zero_fraction(term: Grammar, digits: int) -> Grammar:
    """The numbers of ``term``, which have no point, also with zeros after a point."""
    return chain(term, _zeros(digits))


def _zeros(digits: int) -> Grammar:
    """No point, or one and zeros."""
    return Choice((EPSILON, chain(_POINT, run(_ZERO, 1, digits))))


def _from(least: int) -> Grammar:
    return chain(MARK, exponents(least, MOST_EXPONENT))


def _only(exponent: int) -> Grammar:
    return chain(MARK, exponents(exponent, exponent))
