"""Tokens as symbols: masks and steps against a matcher over whole tokens that enumerates."""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
import pytest

from structgen.engine import Vocabulary, compile
from structgen.engine.parse.captures import captures_of_tokens
from structgen.errors import GrammarError
from structgen.grammar.nodes import (
    CharClass,
    Choice,
    Complement,
    Distinct,
    Grammar,
    Literal,
    Repeat,
    Sequence,
    SpecialToken,
    Tempered,
    TokenSet,
    choice,
    literal,
    repeat,
    sequence,
)
from structgen.grammar.reader import parse

TOKENS = [b"a", b"b", b"ab", b"ba", b"", b"", b"", b"aab"]
EOS, SPECIAL, UNUSED = 4, 5, 6
VOCABULARY = Vocabulary(TOKENS, eos=[EOS], special={SPECIAL: "<s>"})
WRITABLE = [token for token in range(len(TOKENS)) if token not in (EOS, UNUSED)]
LONGEST = 4

GRAMMARS: dict[str, Grammar] = {
    "text or symbol": choice(literal("abb"), sequence(TokenSet([2, 7]), "a")),
    "any": sequence(TokenSet([], is_excluded=True), "b"),
    "outside": repeat(TokenSet([0, (2, 3)], is_excluded=True), 1, 3),
    "after text": sequence(choice("a", "ab"), TokenSet([1, "<s>"]), choice("b", "")),
    "shared": repeat(choice(TokenSet([2]), literal("ba"), TokenSet([(0, 2)])), 0, 3),
    "special too": choice(sequence(SpecialToken("<s>"), "a"), sequence(TokenSet([5, 0]), "b")),
    "symbols in a row": sequence(TokenSet([0, 1]), TokenSet([(0, 7)]), repeat("b", 0, 2)),
}


def ends(node: Grammar, tokens: tuple[int, ...], place: tuple[int, int]) -> set[tuple[int, int]]:
    """Where a term that starts at a place can end: an index of a token and a byte in it."""
    match node:
        case Literal(data=data):
            index, offset = place
            for byte in data:
                if index == len(tokens) or not TOKENS[tokens[index]] or TOKENS[tokens[index]][offset] != byte:
                    return set()
                offset += 1
                if offset == len(TOKENS[tokens[index]]):
                    index, offset = index + 1, 0
            return {(index, offset)}
        case Sequence(items=items):
            places = {place}
            for item in items:
                places = {end for start in places for end in ends(item, tokens, start)}
            return places
        case Choice(items=items):
            return {end for item in items for end in ends(item, tokens, place)}
        case Repeat(item=item, min=least, max=most):
            places, found = {place}, set()
            for count in range((most if most is not None else LONGEST) + 1):
                found |= places if count >= least else set()
                places = {end for start in places for end in ends(item, tokens, start)}
            return found
        case SpecialToken():
            index, offset = place
            return {(index + 1, 0)} if offset == 0 and tokens[index : index + 1] == (SPECIAL,) else set()
        case TokenSet():
            index, offset = place
            if offset or index == len(tokens):
                return set()
            named = {SPECIAL if token == "<s>" else token for token in node.tokens if not isinstance(token, tuple)}
            named |= {id_ for token in node.tokens if isinstance(token, tuple) for id_ in range(token[0], token[1] + 1)}
            return {(index + 1, 0)} if (tokens[index] in named) != node.is_excluded else set()
    raise AssertionError(node)


@cache
def members(name: str) -> frozenset[tuple[int, ...]]:
    grammar = GRAMMARS[name]
    found = set()
    for length in range(LONGEST + 1):
        for tokens in product(WRITABLE, repeat=length):
            if (length, 0) in ends(grammar, tokens, (0, 0)):
                found.add(tokens)
    return frozenset(found)


@pytest.mark.parametrize("name", GRAMMARS)
def test_masks_and_steps(name: str) -> None:
    """At every prefix of a string the mask, EOS, accepted tokens, fewest tokens and masks with a budget agree."""
    constraint = compile(GRAMMARS[name], VOCABULARY)
    all_members = members(name)
    prefixes = {tokens[:length] for tokens in all_members for length in range(len(tokens) + 1)}
    row = np.zeros((1, 1), dtype=np.int32)
    for tokens in sorted(prefixes):
        matcher = constraint.matcher()
        assert all(map(matcher.accept, tokens))
        rest = [member for member in all_members if member[: len(tokens)] == tokens]
        expected = {member[len(tokens)] for member in rest if len(member) > len(tokens)}
        if len(tokens) < LONGEST:  # longer strings were not enumerated
            matcher.fill_mask(row)
            allowed = {token for token in range(len(TOKENS)) if row[0, 0] >> token & 1}
            assert allowed == expected | ({EOS} if tokens in all_members else set())
            assert {t for t in WRITABLE if matcher.validate([t])} == expected
            assert matcher.validate_tree(WRITABLE, [-1] * len(WRITABLE)) == [t in expected for t in WRITABLE]
        assert matcher.is_accepting == (tokens in all_members)
        assert matcher.min_tokens() == min(map(len, rest)) - len(tokens)
        for budget in range(1, LONGEST - len(tokens) + 1):
            matcher.fill_mask_within(row, 0, budget)
            within = {member[len(tokens)] for member in rest if 0 < len(member) - len(tokens) <= budget}
            allowed = {token for token in range(len(TOKENS)) if row[0, 0] >> token & 1} - {EOS}
            assert allowed == within, (tokens, budget)


@pytest.mark.parametrize("symbol", [SpecialToken("<s>"), TokenSet([5])])
@pytest.mark.parametrize("least", [0, 1])
def test_symbols_after_counted_characters(least: int, symbol: Grammar) -> None:
    """Where all bytes are tokens, rows are made from counts of characters: the symbol stays."""
    tokens = [*TOKENS, *(bytes([value]) for value in range(256))]
    vocabulary = Vocabulary(tokens, eos=[EOS], special={SPECIAL: "<s>"})
    constraint = compile(sequence(repeat(CharClass([(97, 98)]), least, 2), symbol, "x"), vocabulary)
    row = np.zeros((1, (len(tokens) + 31) // 32), dtype=np.int32)
    for text in ("", "a", "bb", "ab"):
        matcher = constraint.matcher()
        assert matcher.accept_bytes(text.encode()) == len(text)
        matcher.fill_mask(row)
        bits = np.unpackbits(row.view(np.uint8), bitorder="little")
        fits = [at for at, token in enumerate(tokens) if token and not token.strip(b"ab")]
        expected = {at for at in fits if len(text) + len(tokens[at]) <= 2}
        assert set(map(int, np.flatnonzero(bits))) == expected | ({SPECIAL} if len(text) >= least else set())


def test_captures_see_the_tokens() -> None:
    """The same bytes in other tokens have another reading."""
    grammar = choice(sequence(TokenSet([2]).named("symbol"), "a"), sequence("a", literal("ba").named("text")))
    assert captures_of_tokens(grammar, [2, 0], VOCABULARY) == {"symbol": "ab"}
    assert captures_of_tokens(grammar, [0, 3], VOCABULARY) == {"text": "ba"}


def test_large_sets_are_one_symbol() -> None:
    """A set of nearly all tokens of a large vocabulary takes little time and memory."""
    vocabulary = Vocabulary([b"", *(b"%x" % i for i in range(100_000))], eos=[0])
    constraint = compile(sequence(repeat(TokenSet([5], is_excluded=True), 0, 50), "!" * 0, "a"), vocabulary)
    matcher = constraint.matcher()
    row = np.zeros((1, (vocabulary.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask(row)
    assert int(np.bitwise_count(row.view(np.uint32)).sum()) == 99_999
    assert matcher.accept(99_999)
    assert not matcher.accept(5)


def test_explanations_name_tokens() -> None:
    """Special tokens are named by their text, others by their id."""
    explanation = compile(TokenSet([0, SPECIAL]), VOCABULARY).matcher().explain(1)
    assert not explanation.allowed
    assert "<[0]>" in str(explanation)
    assert "<s>" in str(explanation)


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        (TokenSet([EOS]), "no token that could be written"),
        (TokenSet([UNUSED]), "no token that could be written"),
        (TokenSet([99]), "out of range"),
        (Complement(TokenSet([0])), "must be regular text"),
    ],
)
def test_what_cannot_be_a_symbol(grammar: Grammar, problem: str) -> None:
    """EOS, missing ids and ordinary tokens without text are refused, and any symbol inside regular text."""
    with pytest.raises(GrammarError, match=problem):
        compile(grammar, VOCABULARY)


def test_items_that_must_differ_stand_alone() -> None:
    """Their text would be unknown after a symbol."""
    grammar = sequence(TokenSet([0]), Distinct(sequence("[", repeat("1,", 0, 1), "1]")))
    with pytest.raises(GrammarError, match="a token set cannot be combined with items"):
        compile(grammar, VOCABULARY)


@pytest.mark.parametrize(
    "grammar",
    [
        TokenSet([5, (7, 9), 6, "<s>"]),
        TokenSet([], is_excluded=True),
        Tempered(sequence("a", TokenSet([1], is_excluded=True)), 0.7),
    ],
)
def test_the_text_is_read_back(grammar: Grammar) -> None:
    """The printed text reads back as the same term."""
    assert parse(str(grammar)) == grammar


def test_special_tokens_of_the_same_name() -> None:
    """Each of them is the token that a grammar names; one that is EOS is not."""
    vocabulary = Vocabulary([b"", b"a", b"", b"", b""], eos=[0], special={0: "<s>", 2: "<t>", 3: "<s>", 4: "<t>"})
    for grammar in (sequence("a", SpecialToken("<t>")), sequence("a", TokenSet(["<t>"]))):
        matcher = compile(grammar, vocabulary).matcher()
        row = np.zeros((1, 1), dtype=np.int32)
        assert matcher.accept(1)
        matcher.fill_mask(row)
        assert row[0, 0] == 1 << 2 | 1 << 4
    assert compile(SpecialToken("<s>"), vocabulary).matcher().accept(3)
    nested = compile(repeat(choice("a", SpecialToken("<t>")), 2, 2), vocabulary).matcher()
    assert [nested.accept(token) for token in (4, 3, 2)] == [True, False, True]
