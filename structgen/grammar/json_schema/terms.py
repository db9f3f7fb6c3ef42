"""Digits, and sequences and choices that drop what adds nothing."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from structgen.grammar.nodes import EMPTY, EPSILON, ByteClass, Distinct, Grammar, choice_of, sequence_of

__all__ = ["DIGIT", "NONZERO_DIGIT", "alternatives", "chain", "digits", "distinct"]

DIGIT: Final = ByteClass([(0x30, 0x39)])
NONZERO_DIGIT: Final = ByteClass([(0x31, 0x39)])


@lru_cache(maxsize=1 << 10)
def digits(mask: int) -> Grammar:
    """One of the digits ``d`` with bit ``1 << d`` in ``mask``; the same object for the same digits.

    >>> str(digits(0b1000000111))
    'b[0-29]'
    """
    return ByteClass([(0x30 + digit, 0x30 + digit) for digit in range(10) if mask >> digit & 1])


def alternatives(*terms: Grammar) -> Grammar:
    """The choice of the non-empty terms, each object once."""
    if len(terms) == 2:
        first, second = terms
        if first is EMPTY or second is EMPTY or first is second:
            return second if first is EMPTY else first
        return choice_of(terms)
    kept = tuple({id(term): term for term in terms if term is not EMPTY}.values())
    return kept[0] if len(kept) == 1 else choice_of(kept) if kept else EMPTY


def chain(*terms: Grammar) -> Grammar:
    """The sequence of the terms without empty strings; empty if one of them is the empty language."""
    has_empty_strings = False
    for term in terms:
        if term is EMPTY:
            return EMPTY
        if term is EPSILON:
            has_empty_strings = True
    if has_empty_strings:
        terms = tuple([term for term in terms if term is not EPSILON])
    return terms[0] if len(terms) == 1 else sequence_of(terms) if terms else EPSILON


def distinct(term: Grammar, *, is_spare: bool = False, is_endless: bool = False) -> Grammar:
    """The arrays of ``term`` without equal items, or its objects without repeated names.

    With ``is_spare`` at most one item, or one name that is not declared, may be required; with ``is_endless`` those
    that are required never run out.  Then masks are cheaper.
    """
    return term if term is EMPTY else Distinct(term, is_spare, is_endless)
