"""Ambiguity, left recursion of every kind, and deep recursion: polynomial, and with the right masks."""

from __future__ import annotations

import numpy as np
import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.grammar.nodes import Grammar
from structgen.grammar.reader import parse

VOCABULARY = Vocabulary(
    [b"", *(bytes([value]) for value in range(256)), b"aa", b"aaaa", b"ab", b"n+", b"+n", b"n+n", b"bb"], eos=[0]
)
CASES = {
    "s s": ('rules { s = s s | "a" } in s', '"a"+', "a"),
    "s s s": ('rules { s = s s s | s s | "a" } in s', '"a"+', "a"),
    "cycle": ('rules { s = t t | "a"; t = s | "" } in s', '"a"*', "a"),
    "sums": ('rules { e = e "+" e | "-" e | "n" } in e', '"-"* "n" ("+" "-"* "n")*', "n+"),
    "hidden": ('rules { s = n s "a" | "a"; n = "" | "a" } in s', '"a"+', "a"),
    "indirect": ('rules { s = t "a" | "a"; t = s "a" | "a" | s } in s', '"a"+', "a"),
    "palindromes": ('rules { s = "a" s "a" | "a" | "" } in s', '"a"*', "a"),
    "right": ('rules { s = "a" s | "a" } in s', '"a"+', "a"),
}


def mask(matcher: Matcher) -> bytes:
    row = np.zeros((1, (VOCABULARY.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(row)
    return row.tobytes()


@pytest.mark.parametrize("name", CASES)
def test_masks_are_those_of_the_plain_language(name: str) -> None:
    """The states grow at most linearly in the length of the text."""
    ambiguous, plain, text = CASES[name]
    constraint = compile(parse(ambiguous), VOCABULARY)
    one, other = constraint.matcher(), compile(parse(plain), VOCABULARY).matcher()
    used = []
    for _ in range(3):
        for byte in text.encode() * (40 // len(text)):
            assert mask(one) == mask(other)
            assert one.is_accepting == other.is_accepting
            assert one.accept_bytes(bytes([byte])) == other.accept_bytes(bytes([byte])) == 1
        used.append(constraint.native.states_used)
    assert used[2] - used[1] <= used[1] - used[0] + 40


def grows(grammar: Grammar, length: int) -> int:
    constraint = compile(grammar, VOCABULARY)
    matcher = constraint.matcher()
    for _ in range(length):
        assert matcher.accept_bytes(b"a") == 1
    return constraint.native.states_used


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["s s", "s s s", "cycle"])
def test_a_thousand_bytes_of_ambiguity(name: str) -> None:
    """The states of an ambiguous grammar stay far below the limits, and grow linearly."""
    half, whole = (grows(parse(CASES[name][0]), length) for length in (500, 1_000))
    assert whole < 5_000
    assert whole - half < 1.2 * half


def test_deep_recursion() -> None:
    tail = compile(parse('rules { s = "a" s | "b" } in s'), VOCABULARY)
    assert tail.matcher().accept_bytes(b"a" * 100_000 + b"b") == 100_001
    assert tail.native.states_used < 20  # a call in last position pushes nothing
    nested = compile(parse('rules { s = "a" s "b" | "b" } in s'), VOCABULARY).matcher()
    assert nested.accept_bytes(b"a" * 100_000 + b"b" * 100_001) == 200_001
    assert nested.is_accepting
    assert nested.accept_bytes(b"b") == 0
