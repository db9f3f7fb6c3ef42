"""Permutations in the IR: bounds, text, analyses, and left recursion."""

from __future__ import annotations

import pickle
import random
from itertools import combinations, permutations, product

import pytest

from structgen.errors import GrammarSyntaxError, UnsupportedFeature
from structgen.grammar.algebra import with_children
from structgen.grammar.analysis import Nullability, is_regular, productive_rules
from structgen.grammar.left_recursion import remove_left_recursion
from structgen.grammar.nodes import (
    EMPTY,
    EPSILON,
    Choice,
    Grammar,
    Permutation,
    Reference,
    Rules,
    literal,
    repeat,
    sequence,
)
from structgen.grammar.reader import parse
from structgen.testing.small_scope import language

A, B, C, D = (literal(text) for text in ("a", "b", "c", ","))


def test_members_are_all_orders() -> None:
    """The language has every order of the required items with every subset of the optional ones, with separators."""
    term = Permutation([A], [B, C], separator=D)
    words = {
        b",".join(order)
        for chosen in (c for n in range(3) for c in combinations([b"b", b"c"], n))
        for order in permutations([b"a", *chosen])
    }
    assert language(term, 5, b"abc,") == words


def test_further_members_and_bounds() -> None:
    """Items of ``rest`` repeat, and count."""
    term = Permutation([A], [], B, None, 2, 3)
    assert language(term, 4, b"ab") == {b"ab", b"ba", b"abb", b"bab", b"bba"}


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 2), (-1, None)])
def test_bounds_without_any_number_are_refused(low: int, high: int | None) -> None:
    """Bounds below the number of required items are refused too."""
    with pytest.raises(ValueError, match="contain no count"):
        Permutation([A, B], [C], None, D, low, high)


def test_immutable_values() -> None:
    """Equality is structural, and copies are equal."""
    term = Permutation([A], [B], C, D, 1, 4)
    assert term == Permutation([literal("a")], [literal("b")], C, D, 1, 4)
    assert pickle.loads(pickle.dumps(term)) == term
    assert term.children == (A, B, C, D)
    others = [
        Permutation([A, B], [], C, D, 2, 4),
        Permutation([], [A, B], C, D, 1, 4),
        Permutation([A], [B], C, D, 0, 4),
        Permutation([A], [B], C, D, 1, None),
        Permutation([A], [B], D, C, 1, 4),
    ]
    assert len({term, *others}) == 6
    changed = with_children(term, [B, A, D, C])
    assert changed == Permutation([B], [A], D, C, 1, 4)
    assert with_children(term, term.children) is term


@pytest.mark.parametrize(
    ("term", "text"),
    [
        (Permutation([A], [B, C], D, EPSILON), 'permutation("a"; "b", "c"; ","; "")'),
        (Permutation([], [Choice([A, B])], None, D, 1, 1), 'permutation{1}(; "a" | "b"; (|); ",")'),
        (Permutation([A, B], [], None, D, 0, 3), 'permutation{0,3}("a", "b"; ; (|); ",")'),
        (repeat(Permutation(min=2), 1, 2), 'permutation{2,}(; ; (|); ""){1,2}'),
        (Reference("permutation"), "<permutation>"),
    ],
)
def test_text(term: Grammar, text: str) -> None:
    """The text is plain and reads back."""
    assert str(term) == text
    assert parse(text) == term


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('permutation("a"; "b")', "expected"),
        ('permutation("a", ; "b"; (|); "")', "expected a term"),
        ('permutation("a"; "b"; "c", "d"; "")', "expected"),
        ('permutation{1}("a", "b"; ; (|); "")', "2 required items do not fit {1}"),
        ('permutation"a"', "expected '\\(' after 'permutation'"),
        ('"a", "b"', "expected"),
    ],
)
def test_faults_in_the_text(text: str, problem: str) -> None:
    """The error names them with their place."""
    with pytest.raises(GrammarSyntaxError, match=problem):
        parse(text)


def small_permutations(members: list[Grammar], separators: list[Grammar]) -> list[Permutation]:
    """All permutations with at most two items of a kind, with and without extra items, under small bounds."""
    lists = [list(chosen) for n in range(3) for chosen in combinations(members, n)]
    bounds = [(0, None), (1, None), (2, 3), (0, 1), (3, 3)]
    return [
        Permutation(required, optional, rest, separator, low, high)
        for required, optional in product(lists, lists)
        for rest in (EMPTY, members[0])
        for separator in separators
        for low, high in bounds
        if high is None or high >= max(low, len(required))
    ]


def test_nullability_and_emptiness() -> None:
    """The answers agree with the strings, also for items and separators that are or may be empty."""
    members, separators = [A, choice_of_a(), EMPTY], [EPSILON, choice_of_a(), A, EMPTY]
    terms = small_permutations(members, separators)
    rules = {str(index): term for index, term in enumerate(terms)}
    words = {name: language(term, 6, b"a") for name, term in rules.items()}
    assert Nullability(rules).rules == {name for name in rules if b"" in words[name]}
    assert productive_rules(rules) == {name for name in rules if words[name]}
    assert len(terms) > 500
    assert len({bool(found) for found in words.values()}) == 2
    nullable = Nullability({})
    assert all(nullable(term) == (b"" in words[name]) for name, term in rules.items())


def choice_of_a() -> Grammar:
    """An ``a`` or nothing."""
    return Choice([A, EPSILON])


def test_regular() -> None:
    """A permutation is regular iff its parts are."""
    assert is_regular(Permutation([A], [B], C, D))
    assert not is_regular(Rules({"x": Permutation([sequence("(", Reference("x"), ")")])}, Reference("x")))


def test_left_recursion_after_a_permutation_that_may_be_empty() -> None:
    """The permutation without the empty string takes its place."""
    members, separators = [A, choice_of_a()], [EPSILON, choice_of_a(), literal("b")]
    rng = random.Random(4)
    count = 0
    for term in rng.sample(small_permutations(members, separators), 150):
        grammar = Rules({"e": Choice([sequence(term, Reference("e"), "c"), B])}, Reference("e"))
        rewritten = remove_left_recursion(grammar)
        assert language(rewritten, 4, b"abc") == language(grammar, 4, b"abc"), str(grammar)
        count += rewritten is not grammar
    assert count > 40


def test_left_recursion_at_the_start_of_a_member_is_refused() -> None:
    """It would have to be known which item it is before the item ends."""
    e = Reference("e")
    grammar = Rules({"e": Choice([Permutation([sequence(e, "x")], [A]), B])}, e)
    with pytest.raises(UnsupportedFeature, match="a permutation starts with the left-recursive rule 'e'"):
        remove_left_recursion(grammar)
    inner = Rules({"e": Choice([Permutation([sequence("(", e, ")")], [A]), B])}, e)
    assert remove_left_recursion(inner) is inner
