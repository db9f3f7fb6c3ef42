"""Equal languages have equal masks, however their grammars are written."""

from __future__ import annotations

import random

import numpy as np
import pytest
from grammar_rewrites import REWRITES, rewritten

from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import LimitExceeded, UnsatisfiableGrammar
from structgen.grammar.nodes import EPSILON, Choice, Grammar, Literal, Reference, Repeat, Rules, sequence
from structgen.grammar.reader import parse

TOKENS = [
    b"",
    *(bytes([value]) for value in b"abc()+"),
    b"ab",
    b"ba",
    b"aa",
    b"abc",
    b"((",
    b"))",
    b"a)",
    b"+a",
    b"b+b",
]
KNOWN = [
    'rules { s = s s | "a" } in s',
    'rules { e = e "+" t | t; t = "a" | "(" e ")" } in e',
    'rules { e = e "+" e | "a" | "(" e ")" } in e',
    'rules { s = "(" s ")" s | "" } in s',
    'rules { s = n s "b" | "a"; n = "" | "c" } in s',
    'rules { s = a "b" | "c"; a = s "a" | b; b = s | "ab" } in s',
    'rules { s = "a"* "b"? ("ab" | "a"){2,3} | "c" s } in s',
]


def random_rules(rng: random.Random) -> Rules:
    """Three rules over a few letters: left, right and hidden recursion, nullable cycles, ambiguity."""

    def term(depth: int) -> Grammar:
        kind = rng.randrange(8 if depth else 3)
        if kind == 0:
            return Reference(rng.choice("xyz"))
        if kind < 3:
            return Literal(rng.choice([b"a", b"b", b"ab", b"(", b")", b"c"]))
        if kind < 6:
            return sequence(*(term(depth - 1) for _ in range(rng.randint(1, 3))))
        if kind == 6:
            return Choice([term(depth - 1) for _ in range(rng.randint(1, 3))])
        low = rng.choice([0, 0, 1])
        return Repeat(term(depth - 1), low, rng.choice([None, None, low + 1]))

    def rule() -> Grammar:
        return Choice([*(term(2) for _ in range(rng.randint(1, 3))), *([EPSILON] if rng.random() < 0.2 else [])])

    return Rules({name: rule() for name in "xyz"}, Reference("x"))


def compiled(grammar: Grammar) -> Constraint | None:
    try:
        return compile(grammar, Vocabulary(TOKENS, eos=[0]))
    except UnsatisfiableGrammar:
        return None


def assert_same_masks(one: Constraint | None, other: Constraint | None, rng: random.Random, context: str) -> int:
    """Walk at random and compare every mask; return the number of masks."""
    assert (one is None) == (other is None), context
    if one is None or other is None:
        return 0
    compared = 0
    for _ in range(3):
        matchers = one.matcher(), other.matcher()
        masks = np.zeros((2, 1), dtype=np.int32)
        for _ in range(12):
            for row, matcher in enumerate(matchers):
                matcher.fill_mask(masks, row)
            assert masks[0] == masks[1], f"{context}\nafter {matchers[0].history_length} tokens"
            compared += 1
            allowed = [token for token in range(len(TOKENS)) if int(masks[0, 0]) >> token & 1]
            assert allowed, context
            token = rng.choice(allowed)
            if token == 0 or not all(matcher.accept(token) for matcher in matchers):
                break
    return compared


def check(grammar: Rules, rng: random.Random, chain: list[str]) -> int:
    changed: Rules | None = grammar
    for name in chain:
        following = rewritten(rng, changed, name)
        changed = changed if following is None else following
    if changed is grammar:
        return 0
    try:
        return assert_same_masks(compiled(grammar), compiled(changed), rng, f"{grammar!s}\n{chain}\n{changed!s}")
    except LimitExceeded:
        return 0


@pytest.mark.parametrize("name", REWRITES)
def test_one_rewriting(name: str) -> None:
    rng = random.Random(name)
    grammars = [parse(text) for text in KNOWN] + [random_rules(rng) for _ in range(100)]
    compared = sum(check(grammar, rng, [name]) for grammar in grammars if isinstance(grammar, Rules))
    assert compared > 20


@pytest.mark.parametrize("seed", range(3))
def test_chains_of_rewritings(seed: int) -> None:
    rng = random.Random(seed)
    compared = sum(check(random_rules(rng), rng, rng.choices(list(REWRITES), k=rng.randint(2, 5))) for _ in range(200))
    assert compared > 100


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(100, 120))
def test_many_chains_of_rewritings(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        check(random_rules(rng), rng, rng.choices(list(REWRITES), k=rng.randint(1, 6)))
