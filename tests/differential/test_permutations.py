"""Permutations in the engine, against a plain enumeration of all orders."""

from __future__ import annotations

import random
from itertools import combinations, permutations, product

import pytest
from machine_load import at_most

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar
from structgen.grammar.nodes import (
    EMPTY,
    EPSILON,
    Choice,
    Grammar,
    Permutation,
    Reference,
    Rules,
    literal,
    sequence,
)
from structgen.testing import ReferenceMatcher

LONGEST = 4


def words_of(
    required: list[list[str]],
    optional: list[list[str]],
    rest: list[str],
    separators: list[str],
    low: int,
    high: int | None,
) -> set[str]:
    """All strings of at most ``LONGEST`` bytes, by enumeration of the items, their order and what stands between."""
    found: set[str] = set()
    items = [*required, *optional]
    most = 6 if high is None else high  # more extra items would be longer, or can be written with fewer
    for count in range(low, most + 1):
        for free in range(count + 1 if rest else 1):
            for chosen in combinations(range(len(items)), count - free):
                if not set(range(len(required))) <= set(chosen):
                    continue
                pools = [*(items[index] for index in chosen), *([rest] * free)]
                for order in set(permutations(tuple(map(tuple, pools)))):
                    between = [separators] * max(count - 1, 0)
                    for members in product(*order):
                        found.update(_joined(members, gaps) for gaps in product(*between))
    return {word for word in found if len(word) <= LONGEST}


def _joined(members: tuple[str, ...], gaps: tuple[str, ...]) -> str:
    return "".join(part for pair in zip(members, (*gaps, ""), strict=True) for part in pair) if members else ""


def any_of(words: list[str]) -> Grammar:
    return Choice([literal(word) for word in words])


def accepts(constraint: Constraint, text: bytes) -> bool:
    matcher = constraint.matcher()
    return matcher.accept_bytes(text) == len(text) and matcher.is_accepting


POOL = ["a", "b", "ab", "aa", "ba", "", "abb"]


@pytest.mark.parametrize("seed", range(4))
def test_members_against_enumeration(seed: int, ab_vocabulary: Vocabulary) -> None:
    """Items overlap, share prefixes, are empty or may be; so do separators and extra items."""
    rng = random.Random(seed)
    empty = 0

    def items() -> list[list[str]]:
        return [rng.sample(POOL, rng.randint(rng.random() > 0.1, 2)) for _ in range(rng.randint(0, 2))]

    for _ in range(150):
        required, optional = items(), items()
        rest, separators = rng.choice([[], [], ["a"], ["b", ""], ["ab"]]), rng.choice([[""], ["b"], ["a", ""], []])
        low, high = rng.choice([0, 0, 1, 2, 3]), rng.choice([None, None, 1, 2, 3])
        if high is not None and high < max(low, len(required)):
            continue
        parts = [any_of(item) for item in required], [any_of(item) for item in optional], any_of(rest)
        grammar = Permutation(*parts, any_of(separators), low, high)
        words = words_of(required, optional, rest, separators, low, high)
        try:
            constraint = compile(grammar, ab_vocabulary)
        except UnsatisfiableGrammar:
            assert not words, str(grammar)
            empty += 1
            continue
        for length in range(LONGEST + 1):
            for letters in product("ab", repeat=length):
                word = "".join(letters)
                assert accepts(constraint, word.encode()) == (word in words), f"{grammar}: {word!r}"
        if words:
            assert constraint.shortest_bytes == min(map(len, words)), str(grammar)
    assert empty > 5


def test_distances(ab_vocabulary: Vocabulary) -> None:
    """After every prefix of every string, the shortest completion is the one that enumeration finds."""
    pools = [["a"], ["bb", "abb"], ["ab"], ["aab"]]
    for due, (low, high) in product(range(3), [(0, None), (2, None), (3, 4), (1, 2), (4, 4)]):
        if high is not None and high < due:
            continue
        words: set[bytes] = set()
        for count in range(low, min(high or 4, 4) + 1):
            for order in permutations(range(4), count):
                if set(range(due)) <= set(order):
                    words.update("b".join(members).encode() for members in product(*(pools[i] for i in order)))
        items = [any_of(pool) for pool in pools]
        constraint = compile(Permutation(items[:due], items[due:], None, literal("b"), low, high), ab_vocabulary)
        for prefix in {word[:cut] for word in words for cut in range(len(word) + 1)}:
            matcher = constraint.matcher()
            assert matcher.accept_bytes(prefix) == len(prefix)
            completion = bytes(matcher.shortest_completion())
            shortest = min(len(word) for word in words if word.startswith(prefix))
            assert len(prefix) + len(completion) == shortest, prefix
            assert prefix + completion in words


def test_items_without_members(ab_vocabulary: Vocabulary) -> None:
    """Items without strings empty a permutation that requires them, and drop out where they are optional."""
    x, y = Reference("x"), Reference("y")
    lost = Rules({"x": Permutation([y], [literal("a")]), "y": sequence("a", y)}, x)
    with pytest.raises(UnsatisfiableGrammar):
        compile(lost, ab_vocabulary)
    kept = Rules({"x": Permutation([literal("b")], [y]), "y": sequence("a", y)}, x)
    constraint = compile(kept, ab_vocabulary)
    assert accepts(constraint, b"b")
    assert not constraint.matcher().accept_bytes(b"a")


def test_hundreds_of_items() -> None:
    """Thirty thousand orders of two items out of 300, and one full order, are read without a state for each subset."""
    names = [f"{prefix}_{index}" for index in range(60) for prefix in ("alpha", "alpine", "beta", "gamma", "g")]
    grammar = Permutation([], [literal(f'"{name}";') for name in names])
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    constraint = compile(grammar, vocabulary)
    order = list(names)
    random.Random(3).shuffle(order)
    with at_most(10):
        matcher = constraint.matcher()
        for name in order:
            text = f'"{name}";'.encode()
            fork = matcher.fork()
            assert matcher.accept_bytes(text) == len(text)
            assert matcher.is_accepting
            again = matcher.fork()
            assert again.accept_bytes(text) < len(text)
            assert fork.accept_bytes(text) == len(text)
        assert matcher.forced_bytes() == b""
        assert not matcher.accept_bytes(b'"')


def test_the_reference_knows_permutations_too() -> None:
    """The reference implementation keeps only prefixes that can be completed, with bounds and empty items."""
    term = Permutation([literal("a")], [literal("b"), EMPTY], None, EMPTY, 0, 2)
    matcher = ReferenceMatcher(term)
    assert matcher.allowed_bytes() == {ord("a")}
    bounded = ReferenceMatcher(Permutation([literal("a")], [literal("b")], literal("c"), EPSILON, 0, 2))
    assert bounded.accept_bytes(b"cc") == 1
    assert bounded.allowed_bytes() == {ord("a")}
