"""Digits, and sequences and choices that drop what adds nothing."""

from __future__ import annotations

from typing import Final

from structgen.grammar.nodes import EMPTY, EPSILON, ByteClass, Choice, Distinct, Grammar, Sequence

__all__ = ["DIGIT", "NONZERO_DIGIT", "alternatives", "chain", "distinct"]

DIGIT: Final = ByteClass([(0x30, 0x39)])
NONZERO_DIGIT: Final = ByteClass([(0x31, 0x39)])


def alternatives(*terms: Grammar) -> Grammar:
    """The choice of the non-empty terms, each object once."""
    kept: list[Grammar] = []
    for term in terms:
        if term is not EMPTY and not any(term is other for other in kept):
            kept.append(term)
    return kept[0] if len(kept) == 1 else Choice(kept) if kept else EMPTY


def chain(*terms: Grammar) -> Grammar:
    """The sequence of the terms without empty strings; empty if one of them is the empty language."""
    kept: list[Grammar] = []
    for term in terms:
        if term is EMPTY:
            return EMPTY
        if term is not EPSILON:
            kept.append(term)
    return kept[0] if len(kept) == 1 else Sequence(kept) if kept else EPSILON


def distinct(term: Grammar) -> Grammar:
    """The arrays of ``term`` without equal items, or its objects without repeated names.

    At most one item, or one name that is not declared, may be required.
    """
    return term if term is EMPTY else Distinct(term, is_spare=True)
