"""The laws of ``structgen.testing`` hold for the engine, on random grammars and random vocabularies."""

from __future__ import annotations

import random

import pytest
from grammar_strategies import json_terms, regular_terms, rule_terms, text_terms, vocabularies
from hypothesis import assume, given, settings, strategies as st

from structgen.engine import Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar, VocabularyError
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Grammar,
    JsonString,
    Reference,
    Rules,
    SpecialToken,
    choice,
    literal,
    repeat,
    sequence,
)
from structgen.testing import LAWS, Effort, ReferenceMatcher, check_laws
from structgen.testing.matcher_laws import MatcherLaw
from structgen.testing.state_walk import finds_valid_string

SMALL = Effort(walks=2, length=6)
TEXT_LETTERS = "aé€😀"
SEEDS = st.integers(0, 2**32)
EVERY_BYTE = [bytes([byte]) for byte in range(256)]
FEWER = settings(max_examples=settings().max_examples // 3)  # each example walks through many states


def check(grammar: Grammar, tokens: list[bytes], seed: int) -> None:
    """Check all laws, if the language is not empty."""
    try:
        constraint = compile(grammar, Vocabulary(tokens, eos=[0]))
    except UnsatisfiableGrammar:
        assume(ReferenceMatcher(grammar).is_live)  # a wasted example; a wrong refusal fails below
        raise
    except VocabularyError:
        vocabulary = Vocabulary(tokens, eos=[0])
        assert not finds_valid_string(ReferenceMatcher(grammar), vocabulary, fuel=2_000)
        return
    check_laws(constraint, random.Random(seed), SMALL)


@given(regular_terms(b"ab"), vocabularies(b"ab"), SEEDS)
@FEWER
def test_laws_hold_for_regular_terms(term: Grammar, tokens: list[bytes], seed: int) -> None:
    """Sequences, choices, repetitions, intersections and complements of bytes."""
    check(term, [*tokens, *EVERY_BYTE], seed)


@given(regular_terms(b"ab", boolean=False), vocabularies(b"ab"), SEEDS)
@FEWER
def test_laws_hold_where_few_bytes_are_tokens(term: Grammar, tokens: list[bytes], seed: int) -> None:
    """A vocabulary of a and b and longer tokens, enumerated in full."""
    check(term, tokens, seed)


@given(text_terms("aé€"), vocabularies(b"a"), st.sets(st.sampled_from(list("aé€".encode()))), SEEDS)
@FEWER
def test_laws_hold_where_some_bytes_are_no_tokens(
    term: Grammar, tokens: list[bytes], missing: set[int], seed: int
) -> None:
    """All bytes but a few are tokens; characters that need the others may still be whole tokens."""
    spelled = [data for data in [*tokens[1:], *EVERY_BYTE] if len(data) > 1 or data[0] not in missing]
    check(term, [b"", *spelled, "aé".encode(), "€".encode()], seed)


@given(rule_terms(b"ab"), vocabularies(b"ab"), SEEDS)
@FEWER
def test_laws_hold_for_rules(term: Grammar, tokens: list[bytes], seed: int) -> None:
    """Rules may have any recursion and any ambiguity."""
    check(term, [*tokens, *EVERY_BYTE], seed)


@given(rule_terms(b"ab", nested=True), vocabularies(b"ab"), SEEDS)
@FEWER
def test_laws_hold_for_rules_inside_rules(term: Grammar, tokens: list[bytes], seed: int) -> None:
    """Inner rules may shadow names, and rules may be shared."""
    check(term, [*tokens, *EVERY_BYTE], seed)


@given(text_terms(TEXT_LETTERS), vocabularies(TEXT_LETTERS.encode()), SEEDS)
@FEWER
def test_laws_hold_for_texts(term: Grammar, tokens: list[bytes], seed: int) -> None:
    """Tokens may cut characters of several bytes anywhere."""
    check(term, [*tokens, *EVERY_BYTE], seed)


@given(json_terms('a"\\\n\x01é'), vocabularies(b'"\\u0an[],1', max_length=5), SEEDS)
@FEWER
def test_laws_hold_for_json_strings(term: Grammar, tokens: list[bytes], seed: int) -> None:
    """Tokens may cut escapes anywhere."""
    check(term, [*tokens, *EVERY_BYTE], seed)


def json_value() -> Grammar:
    """Any JSON value with at most one space between its parts."""
    value, space = Reference("value"), repeat(" ", 0, 1)
    digits = repeat(CharClass([(0x30, 0x39)]), 1, 3)
    string = JsonString(repeat(ANY_CHAR))
    member = sequence(string, space, ":", space, value)

    def listed(item: Grammar, opening: str, closing: str) -> Grammar:
        more = repeat(sequence(space, ",", space, item))
        return sequence(opening, space, repeat(sequence(item, more, space), 0, 1), closing)

    number = sequence(repeat("-", 0, 1), choice("0", digits), repeat(sequence(".", digits), 0, 1))
    return Rules(
        {"value": choice(listed(member, "{", "}"), listed(value, "[", "]"), string, number, "true", "false", "null")},
        value,
    )


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_each_law_holds_for_json(law: MatcherLaw, json_vocabulary: Vocabulary) -> None:
    """The laws hold for JSON values, with tokens that span the boundaries of JSON tokens."""
    law(compile(json_value(), json_vocabulary), random.Random(11), Effort(walks=4, length=20))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_each_law_holds_with_special_tokens_and_several_ends(law: MatcherLaw) -> None:
    """Two EOS ids, padding without bytes, tokens with equal bytes, and special tokens in the grammar."""
    tokens = [b"", b"a", b"b", b"ab", b"<x>", b"", b"ab", b"<", b"x", b">", b"", *([b""] * 30)]
    vocabulary = Vocabulary(tokens, eos=[0, 10], special={4: "<x>", 5: "<y>"})
    grammar = sequence(
        repeat(choice("ab", "<x>"), 1, 3),
        repeat(choice(SpecialToken("<x>"), sequence("ab", SpecialToken("<y>"))), 0, 2),
        Rules({"s": choice(sequence("a", Reference("s"), "b"), SpecialToken("<y>"))}, Reference("s")),
    )
    law(compile(grammar, vocabulary), random.Random(3), Effort(walks=6, length=8))


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_each_law_holds_without_eos(law: MatcherLaw) -> None:
    """Without EOS in the vocabulary the matcher accepts, and the mask has no bit for the end."""
    vocabulary = Vocabulary([b"a", b"b", b"ab", b"ba", b"aab"])
    law(compile(repeat(choice("ab", sequence(repeat("a"), "b")), 1, 3), vocabulary), random.Random(2), SMALL)


def test_the_shortest_member_in_bytes_is_found(ab_vocabulary: Vocabulary) -> None:
    """``shortest_bytes`` agrees with breadth-first search by the reference implementation."""
    grammars = [
        sequence(repeat(choice("ab", "b"), 2, 4), "a"),
        Rules({"s": choice(sequence("a", Reference("s"), "b"), sequence(Reference("s"), "a"), "bb")}, Reference("s")),
        repeat(choice("a", "b")) & ~choice("", "a", "b") & ~sequence("b", repeat(choice("a", "b"))),
        literal("abab"),
    ]
    for grammar in grammars:
        states, length = [ReferenceMatcher(grammar)], 0
        while not any(state.is_accepting for state in states):
            pairs = [(state.fork(), byte) for state in states for byte in b"ab"]
            states = [state for state, byte in pairs if state.advance(byte)]
            length += 1
        assert compile(grammar, ab_vocabulary).shortest_bytes == length, str(grammar)
