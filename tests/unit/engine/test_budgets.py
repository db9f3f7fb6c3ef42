"""Budgets of tokens: a matcher accepts what some reading of the token sequence allows, counted in plain Python."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import numpy as np
import pytest
from bpe_vocabularies import bpe_vocabulary
from budget_reference import Symbol, members

from structgen.decode.diffusion.token_automaton import refuse_infinite_checks
from structgen.engine import Matcher, Vocabulary, compile
from structgen.errors import GrammarError, UnsatisfiableGrammar, VocabularyError
from structgen.frontends.free_text import any_text
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.lengths import longest
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    ANY_CHAR,
    Budget,
    CharClass,
    Choice,
    Grammar,
    Reference,
    Repeat,
    Rules,
    Sequence,
    SpecialToken,
    literal,
    postorder,
)

LENGTH = 4
SMALL = [b"a", b"b", b"aa", b"ab", b"bba"]
BYTES = [bytes([value]) for value in (*range(0x20, 0x7F), *range(0x80, 0xC0)) if bytes([value]) not in SMALL]


def vocabulary(others: list[bytes]) -> Vocabulary:
    """The tokens of ``SMALL``, others that occur in no text of "a" and "b", and two special tokens."""
    tokens = [*SMALL, *others, b"", b""]
    return Vocabulary(tokens, eos=[len(tokens) - 1], special={len(tokens) - 2: "<s>", len(tokens) - 1: "<end>"})


FEW, COMPLETE = vocabulary([]), vocabulary(BYTES)
"""With the second, every byte is a token: distances in bytes prove much, and masks come from rows."""


def term(random_: random.Random, depth: int) -> Grammar:
    """A random term with budgeted parts."""
    kind = random_.random()
    if depth == 0 or kind < 0.2:
        leaves = [literal("a"), literal("b"), literal("ab"), literal("aab"), CharClass([(97, 98)]), literal("")]
        return random_.choice([*leaves, SpecialToken("<s>")])
    if kind < 0.42:
        return Sequence([term(random_, depth - 1) for _ in range(random_.randint(2, 3))])
    if kind < 0.58:
        return Choice([term(random_, depth - 1) for _ in range(2)])
    if kind < 0.7:
        return Repeat(term(random_, depth - 1), random_.randint(0, 1), random_.randint(1, 3))
    return Budget(term(random_, depth - 1), tokens=random_.choice([0, 1, 1, 1, 2, 2, 3]))


def some_terms(count: int) -> Iterator[Grammar]:
    """Terms with budgets and texts of at most ``LENGTH`` tokens, the same each time."""
    for seed in itertools.count():
        found = term(random.Random(seed), 4)
        if not any(isinstance(node, Budget) for node in postorder(found)):
            continue
        if (longest(found).at_most or LENGTH + 1) <= LENGTH:
            yield found
            count -= 1
            if count == 0:
                return


NESTED = Rules({"s": Budget("a" + (Reference("s") | "b") + "b", tokens=2)}, Reference("s"))
AMBIGUOUS = Sequence([Budget(CharClass([(97, 98)]).many(0, 3), tokens=1), Budget(literal("b").many(0, 3), tokens=1)])
EARLY = "b" + Budget(literal("ba"), tokens=1) + "a"  # only a token that begins before the part can write it
AFTER = Budget(literal("a").many(1, 3), tokens=2) + (literal("b") | "")


def bits(matcher: Matcher, *, within: int | None = None) -> set[int]:
    """The tokens of a mask."""
    size = matcher.constraint.vocabulary.size
    words = np.full((1, (size + 31) // 32), -1, dtype=np.int32)
    if within is None:
        matcher.fill_mask(words)
    else:
        matcher.fill_mask_within(words, 0, within)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


def check_everywhere(grammar: Grammar, tokens: Vocabulary) -> None:
    """Compare a matcher with all token sequences of the language, at each of their prefixes."""
    spelled: dict[int, list[Symbol]] = {index: list(text) for index, text in enumerate(SMALL)}
    spelled[next(index for index, name in tokens.special.items() if name == "<s>")] = ["<s>"]
    eos = tokens.eos[0]
    language = set(members(grammar, spelled, LENGTH))
    prefixes = sorted({member[:count] for member in language for count in range(len(member) + 1)})
    if not language:
        with pytest.raises((UnsatisfiableGrammar, VocabularyError)):
            compile(grammar, tokens)
        return
    constraint = compile(grammar, tokens)
    assert constraint.min_tokens() == min(map(len, language))
    known = set(prefixes)
    for path in prefixes:
        matcher = constraint.matcher()
        assert all(map(matcher.accept, path)), path
        following = {token for token in spelled if (*path, token) in known}
        expected = following | ({eos} if path in language else set())
        assert bits(matcher) == expected, path
        assert matcher.is_accepting == (path in language)
        least = min(len(member) - len(path) for member in language if member[: len(path)] == path)
        assert [matcher.completes_within(budget) for budget in range(LENGTH)] == [
            least <= budget for budget in range(LENGTH)
        ], path
        for budget in range(1, LENGTH - len(path) + 1):
            short = {
                m[len(path)] for m in language if m[: len(path)] == path and len(path) < len(m) <= len(path) + budget
            }
            assert bits(matcher, within=budget) == short | (expected & {eos}), (path, budget)
            assert matcher.needs_budget_mask(budget) or short == following, (path, budget)
        for token in spelled:
            assert matcher.fork().accept(token) == (token in following), (path, token)
            assert matcher.validate([token]) == (token in following)
        check_tree(matcher, path, known, sorted(spelled))
        for count in range(len(path) + 1):  # rollback undoes the counts
            back = matcher.fork()
            back.rollback(count)
            assert back.validate(path[len(path) - count :]) == count


def check_tree(matcher: Matcher, path: tuple[int, ...], known: set[tuple[int, ...]], tokens: list[int]) -> None:
    """Pairs of tokens that may follow, as a tree."""
    pairs = list(itertools.product(tokens, repeat=2))
    ids = [*tokens, *(second for _, second in pairs)]
    parents = [*([-1] * len(tokens)), *(tokens.index(first) for first, _ in pairs)]
    expected = [(*path, token) in known for token in tokens] + [(*path, *pair) in known for pair in pairs]
    assert matcher.validate_tree(ids, parents) == expected
    words = np.zeros((1 + len(ids), (matcher.constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    assert matcher.fill_mask_tree(ids, parents, words) == expected
    for index, (token, is_allowed) in enumerate(zip(ids, expected, strict=True)):
        if is_allowed and parents[index] == -1:
            after = matcher.fork()
            after.accept(token)
            alone = np.zeros_like(words[:1])
            after.fill_mask(alone)
            assert np.array_equal(words[1 + index], alone[0])


@pytest.mark.parametrize("tokens", [FEW, COMPLETE], ids=["few-bytes", "all-bytes"])
@pytest.mark.parametrize("grammar", [NESTED, AMBIGUOUS, EARLY, AFTER], ids=["nested", "ambiguous", "early", "after"])
def test_what_matters(grammar: Grammar, tokens: Vocabulary) -> None:
    """A part inside itself, two readings with different counts, and a token that begins before its part are right."""
    check_everywhere(grammar, tokens)


@pytest.mark.exhaustive
@pytest.mark.parametrize("tokens", [FEW, COMPLETE], ids=["few-bytes", "all-bytes"])
def test_all_token_sequences(tokens: Vocabulary) -> None:
    """On random terms sequences, masks, masks with a budget, trees, forks and rollbacks agree."""
    for grammar in some_terms(25):
        check_everywhere(grammar, tokens)


@pytest.mark.nightly
@pytest.mark.parametrize("tokens", [FEW, COMPLETE], ids=["few-bytes", "all-bytes"])
def test_all_token_sequences_of_many_terms(tokens: Vocabulary) -> None:
    """The same holds for more terms."""
    for grammar in some_terms(600):
        check_everywhere(grammar, tokens)


def test_a_walk_never_ends_in_the_middle() -> None:
    """Whatever allowed tokens are sampled, the text can be completed, and each part keeps to its budget."""
    tokens = bpe_vocabulary("bytes")
    item = json_schema({"type": "array", "items": {"type": "string"}})
    grammar = "<" + any_text(until=">").at_most(tokens=6) + ">" + item.at_most(tokens=9) + "!"
    constraint = compile(grammar, tokens)
    for seed in range(12):
        draw = random.Random(seed)
        matcher, taken = constraint.matcher(), []
        while True:
            allowed = sorted(bits(matcher))
            assert allowed, taken
            token = draw.choice(allowed)
            assert matcher.accept(token)
            if matcher.is_terminated:
                break
            taken.append(token)
        text = b"".join(tokens.tokens[token] for token in taken)
        first = text.index(b">")
        spans = [(1, first), (first + 1, len(text) - 1)]
        ends = list(itertools.accumulate(len(tokens.tokens[token]) for token in taken))
        starts = [0, *ends[:-1]]
        counts = [sum(s < high and e > low for s, e in zip(starts, ends, strict=True)) for low, high in spans]
        assert counts[0] <= 6
        assert counts[1] <= 9


def test_the_count_outlives_what_the_engine_forgets() -> None:
    """States are dropped at a limit and computed again; accepted tokens still count."""
    tokens = bpe_vocabulary("records")
    grammar = any_text(until="ABCDEFGH").at_most(tokens=100) + "ABCDEFGH"
    constraint = compile(grammar, tokens, limits=Limits(states=500))
    matcher, used, is_forgotten = constraint.matcher(), 0, False
    x = tokens.tokens.index(b"x")
    assert all(matcher.accept(x) for _ in range(60))
    for count in range(1, 8):  # make other states, until there are too many
        other = constraint.matcher()
        for character in "ABCDEFG"[:count] * (90 // count):
            assert other.accept(tokens.tokens.index(character.encode()))
            is_forgotten |= constraint.native.states_used < used
            used = constraint.native.states_used
    assert is_forgotten
    assert all(matcher.accept(x) for _ in range(40))
    assert not matcher.accept(x)
    assert {tokens.tokens[token][:1] for token in bits(matcher)} == {b"A"}


def test_forced_tokens_keep_to_the_budget() -> None:
    """If the canonical tokens of a forced text are too many for its part, none of them is forced."""
    constraint = compile(Budget(literal("ab"), tokens=1), COMPLETE)
    matcher = constraint.matcher()
    assert all(matcher.fork().accept(token) for token in matcher.forced_tokens()[:1])
    assert bits(matcher) == {SMALL.index(b"ab")}


def test_a_real_vocabulary(deepseek_vocabulary: Vocabulary) -> None:
    """A part of many tokens accepts exactly as many as it may, then only its end."""
    grammar = "<think>" + any_text(until="</think>").at_most(tokens=50) + "</think>" + regex("[0-9]{1,3}")
    matcher = compile(grammar, deepseek_vocabulary).matcher()
    words = deepseek_vocabulary.tokenize(b"<think>" + b" I count and count" * 40)
    taken = matcher.validate(words)
    start = len(deepseek_vocabulary.tokenize(b"<think>"))
    assert taken - start <= 50
    assert taken - start >= 49  # the token in which the part begins may hold bytes of it
    assert all(map(matcher.accept, words[:taken]))
    assert matcher.min_tokens() is not None
    assert all(deepseek_vocabulary.tokens[token].startswith(b"<") for token in bits(matcher))


def test_parts_that_no_tokens_can_write_are_refused() -> None:
    """Compilation raises the error, which says how many tokens the part takes."""
    with pytest.raises(UnsatisfiableGrammar, match=r"takes 2 tokens of this vocabulary; its budget is 1"):
        compile("a" + Budget(literal("bb"), tokens=1), FEW)


@pytest.mark.parametrize(
    "grammar",
    [
        Budget(literal("a"), tokens=1) & "a",
        ~Budget(literal("a"), tokens=1),
        Budget(Budget(literal("a"), tokens=1), characters=2),
    ],
    ids=["intersection", "complement", "characters"],
)
def test_tokens_are_not_counted_where_only_text_is(grammar: Grammar) -> None:
    """Budgets of tokens would have no meaning there."""
    with pytest.raises(GrammarError, match="budget of 1 token"):
        compile(grammar, FEW)


def test_what_does_not_count_tokens_refuses_budgets() -> None:
    """Canvases refuse them."""
    with pytest.raises(GrammarError, match="has token budgets"):
        refuse_infinite_checks(compile(Budget(ANY_CHAR.many(), tokens=3), COMPLETE))
    refuse_infinite_checks(compile(Budget(ANY_CHAR.many(), characters=3), COMPLETE))
