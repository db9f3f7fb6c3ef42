"""Budgets as terms: their fields, their text, and which texts have few enough characters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, GrammarSyntaxError
from structgen.frontends.regex import regex
from structgen.grammar.algebra import with_children
from structgen.grammar.analysis import is_regular
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.lengths import longest
from structgen.grammar.nodes import (
    ANY_CHAR,
    Budget,
    Grammar,
    JsonString,
    Literal,
    Reference,
    Rules,
    SpecialToken,
    literal,
)
from structgen.grammar.reader import parse
from structgen.testing.reference import ReferenceMatcher
from structgen.testing.small_scope import language

A = Literal(b"a")
BYTES = Vocabulary([bytes([value]) for value in range(256)] + [b""], eos=[256])


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (A.at_most(tokens=20), 'budget tokens 20 ("a")'),
        (A.at_most(characters=0), 'budget characters 0 ("a")'),
        (A.at_most(tokens=1, characters=300).many(), 'budget tokens 1 characters 300 ("a")*'),
    ],
)
def test_text(node: Grammar, text: str) -> None:
    """Budgets are written with their bounds, and read back."""
    assert str(node) == text
    assert parse(text) == node


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('budget ("a")', "expected 'tokens' or 'characters'"),
        ('budget tokens ("a")', "expected a number of tokens"),
        ('budget tokens -1 ("a")', "expected a number of tokens"),
        ('budget tokens 1 tokens 2 ("a")', r"expected '\(' after the bounds"),
        ("budget characters 1", r"expected '\(' after the bounds"),
    ],
)
def test_faults_of_the_text(text: str, problem: str) -> None:
    """The error says what is missing."""
    with pytest.raises(GrammarSyntaxError, match=problem):
        parse(text)


def test_a_rule_may_have_the_name() -> None:
    """Then it is quoted."""
    rules = Rules({"budget": A}, Reference("budget"))
    assert parse(str(rules)) == rules
    assert "<budget>" in str(rules)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, ValueError),
        ({"tokens": -1}, ValueError),
        ({"characters": -1}, ValueError),
        ({"tokens": 1.5}, TypeError),
        ({"tokens": True}, TypeError),
        ({"characters": "3"}, TypeError),
    ],
)
def test_bounds_are_numbers(arguments: dict[str, object], error: type[Exception]) -> None:
    """At least one bound is given; bounds are not negative."""
    with pytest.raises(error, match="Budget:"):
        A.at_most(**arguments)  # type: ignore[arg-type]


def test_bounds_are_part_of_the_term() -> None:
    """Equal terms have equal bounds, also with other children."""
    node = Budget(A, tokens=2, characters=3)
    assert node == Budget(A, 2, 3)
    assert len({node, Budget(A, 2), Budget(A, 3, 3), Budget(A, 2, 4), A}) == 5
    assert with_children(node, [ANY_CHAR]) == Budget(ANY_CHAR, 2, 3)


def test_only_characters_stay_regular() -> None:
    """A number of tokens is no property of a text."""
    assert is_regular(A.at_most(characters=2))
    assert not is_regular(A.at_most(tokens=2))


@pytest.mark.parametrize(
    ("node", "bound"),
    [
        (A.many().at_most(characters=3), 12),
        (A.many(0, 5).at_most(characters=3), 5),
        (A.many(0, 5).at_most(tokens=3), 5),
        (Rules({"s": ("a" + Reference("s") | "a").at_most(tokens=3)}, Reference("s")), None),
    ],
)
def test_length(node: Grammar, bound: int | None) -> None:
    """A character takes at most four bytes; a vocabulary may have tokens of any length."""
    assert longest(node).at_most == bound
    assert not longest(node).is_unbounded


def test_left_recursion() -> None:
    """A budgeted part that starts with the rule itself cannot be rewritten; if it excludes the empty text it can."""
    e = Reference("e")
    with pytest.raises(GrammarError, match="a part with a budget starts with the left-recursive rule 'e'"):
        remove_left_recursion(Rules({"e": (e + "a").at_most(tokens=2) | "b"}, e))
    nullable = Rules({"e": A.many(0, 2).at_most(characters=1) + e + "b" | "c"}, e)
    assert language(remove_left_recursion(nullable), 5, b"abc") == language(nullable, 5, b"abc") >= {b"c", b"aacbb"}


CHARACTERS = [
    regex("[ab]*").at_most(characters=2),
    "x" + regex("(ab|é)*").at_most(characters=3) + "x",
    regex("é{2}|a{1,3}").at_most(characters=2).many(0, 2, sep="x"),
    JsonString(regex("[aé]*").at_most(characters=2)),
    ~(regex("a*").at_most(characters=2)) & regex("[ab]{0,4}"),
    regex("a+").at_most(characters=3).at_most(characters=1),
    (regex("a?") + "é").at_most(characters=1) + literal("b").at_most(characters=0).many(),
]


@pytest.mark.parametrize("grammar", CHARACTERS, ids=str)
def test_characters(grammar: Grammar) -> None:
    """The engine and the reference implementation agree with set algebra; code points count, not bytes."""
    letters = 'abx"é'.encode()
    members = language(grammar, 4, letters)
    assert members
    constraint = compile(grammar, BYTES)
    for size in range(4):
        for word in map(bytes, itertools.product(sorted(set(letters)), repeat=size)):
            reference, matcher = ReferenceMatcher(grammar), constraint.matcher()
            read = reference.accept_bytes(word)
            assert matcher.accept_bytes(word) == read
            assert matcher.is_accepting == reference.is_accepting
            if read == size:
                assert reference.is_accepting == (word in members), word
                words = np.zeros((1, 9), dtype=np.int32)
                matcher.fill_mask(words)
                allowed = set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())
                assert allowed - {256} == reference.allowed_bytes()


def test_characters_need_a_regular_part() -> None:
    """Recursion and special tokens are refused by name."""
    nested = Rules({"s": "(" + Reference("s") + ")" | "x"}, Reference("s"))
    with pytest.raises(GrammarError, match="a budget of characters"):
        compile(nested.at_most(characters=5), BYTES)
    special = Vocabulary([b"a", b"", b""], eos=[2], special={1: "<s>"})
    with pytest.raises(GrammarError, match="budgets of characters"):
        compile((A + SpecialToken("<s>")).at_most(characters=5), special)
