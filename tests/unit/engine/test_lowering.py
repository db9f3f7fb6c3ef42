"""From grammars to terms: what is kept, what is refused, and the distances found on the way."""

from __future__ import annotations

import re
from itertools import product

import pytest

from structgen.engine import Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    Complement,
    Grammar,
    Intersection,
    JsonString,
    Literal,
    Reference,
    Repeat,
    Rules,
    SpecialToken,
    choice,
    sequence,
)

VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)] + [b"", b"<s>"], eos=[256], special={257: "<s>"})
PATTERNS = [
    "a*b",
    "(ab|ba)*",
    ".{3,5}",
    "[^b]*b[^b]*",
    "(a|bb){2,}",
    "a?b{2}a?",
    "(.a)+",
    "b(a|b)*a",
    "(aa)*",
    "(aaa)*b?",
]
LONGEST = 9


def shortest(accepts: list[tuple[str, bool]]) -> int | None:
    """Length of the shortest word over two letters that satisfies all (pattern, wanted) pairs, by Python's ``re``."""
    tests = [(re.compile(pattern), wanted) for pattern, wanted in accepts]
    for length in range(LONGEST + 1):
        for letters in product("ab", repeat=length):
            word = "".join(letters)
            if all((test.fullmatch(word) is not None) == wanted for test, wanted in tests):
                return length
    return None


@pytest.mark.parametrize("second", PATTERNS)
@pytest.mark.parametrize("first", PATTERNS)
@pytest.mark.parametrize("wanted", [True, False])
def test_the_shortest_member_of_an_intersection_is_found(first: str, second: str, wanted: bool) -> None:
    """Over two letters it agrees with all words of up to nine letters; inside a JSON string two quotes are added."""
    letters = Repeat(choice("a", "b"))
    other = regex(second) if wanted else Complement(regex(second))
    term = Intersection((letters, regex(first), other))
    expected = shortest([(first, True), (second, wanted)])
    for grammar, extra in ((term, 0), (JsonString(term), 2)):
        if expected is None:
            with pytest.raises(UnsatisfiableGrammar):
                compile(grammar, VOCABULARY)
        else:
            assert compile(grammar, VOCABULARY).shortest_bytes == expected + extra


def test_the_search_goes_straight_to_a_member() -> None:
    """Sixty states are explored, not all that are nearer than the shortest string."""
    grammar = Intersection((regex("[0-9a-z]{40}"), regex("([0-9]{4}|[a-z]{2}){1,}"), regex(".*x")))
    assert compile(grammar, VOCABULARY, limits=Limits(regular_states=60)).shortest_bytes == 40


def test_equal_grammars_share_a_constraint() -> None:
    """The same grammar under the same limits is compiled once, as long as the engine lives."""
    grammar = regex("[a-c]{2,7}")
    first = compile(grammar, VOCABULARY)
    assert compile(grammar, VOCABULARY) is first
    assert compile(grammar, VOCABULARY, limits=Limits(states=1_000)) is not first
    VOCABULARY.constraints.clear()
    assert compile(grammar, VOCABULARY) is not first


def nested(depth: int) -> Grammar:
    """Complements in complements."""
    term: Grammar = Literal(b"a")
    for _ in range(depth):
        term = Complement(sequence(term, "b"))
    return term


@pytest.mark.parametrize(
    ("grammar", "limit"),
    [
        (Repeat(Literal(b"a"), 0, 2**31), "repetition count"),
        (Repeat(Literal(b"a"), 2**70), "repetition count"),
        (nested(65), "boolean nesting"),
        (sequence(*(Reference("r") | chr(code) for code in range(0x100, 0x200))), "grammar_nodes"),
    ],
)
def test_limits_are_named(grammar: Grammar, limit: str) -> None:
    """Counts, nesting and size are bounded before any term is made."""
    with pytest.raises(LimitExceeded) as caught:
        compile(Rules({"r": Literal(b"x")}, grammar), VOCABULARY, limits=Limits(grammar_nodes=300))
    assert caught.value.limit == limit


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (Reference("nobody"), "'nobody' is not defined"),
        (Rules({"r": choice("a", sequence("(", Reference("r"), ")"))}, JsonString(Reference("r"))), "'r' is recursive"),
        (Complement(SpecialToken("<s>")), "must be regular text"),
        (SpecialToken(256), "is an EOS token"),
        (SpecialToken(65), "is no special token"),
    ],
)
def test_what_cannot_be_lowered_is_an_error(grammar: Grammar, problem: str) -> None:
    """The message names the problem."""
    with pytest.raises(GrammarError, match=re.escape(problem)):
        compile(grammar, VOCABULARY)


def test_rules_inside_regular_parts_are_spliced_in() -> None:
    """Each reference belongs to the innermost rules around it, also where it is inlined."""
    inner = Rules({"r": Literal(b"in")}, sequence(Reference("r"), Reference("s")))
    grammar = Rules({"r": Literal(b"out"), "s": Literal(b"s")}, Intersection((inner, Complement(Reference("r")))))
    matcher = compile(grammar, VOCABULARY).matcher()
    assert matcher.forced_bytes() == b"ins"
