"""Budgets of tokens beside values that must differ, or labels, counted in plain Python."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from bpe_vocabularies import bpe_vocabulary
from budget_reference import Readings
from schema_as_written import as_written as json_schema

from structgen.engine import Matcher, Vocabulary, compile
from structgen.errors import GrammarError, LimitExceeded, UnsatisfiableGrammar, VocabularyError
from structgen.frontends.free_text import any_text
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    EPSILON,
    Budget,
    Choice,
    Distinct,
    Grammar,
    Literal,
    Reference,
    Repeat,
    Rules,
    Sequence,
    choice,
    literal,
    postorder,
    repeat,
    sequence,
)
from structgen.testing.state_walk import allowed_tokens

TOKENS = [
    b"a",
    b"b",
    b"[",
    b"]",
    b"1",
    b"2",
    b",",
    b"ab",
    b"a[",
    b"1,",
    b",1",
    b"b[1",
    b"]a",
    b"2]b",
    b"[1,1]",
    b"[2,",
    b"bab",
]
OTHERS = [bytes([value]) for value in (*range(0x20, 0x7F), *range(0x80, 0xC0)) if bytes([value]) not in TOKENS]
FEW = Vocabulary([*TOKENS, b""], eos=[len(TOKENS)])
COMPLETE = Vocabulary([*TOKENS, *OTHERS, b""], eos=[len(TOKENS) + len(OTHERS)])
MOST = 9
"""Tokens of the sequences that are enumerated."""


def array(item: Grammar, fewest: int, most: int) -> Grammar:
    """Arrays of ``fewest`` to ``most`` items."""
    some = sequence(item, repeat(sequence(",", item), max(fewest - 1, 0), most - 1))
    return sequence("[", some if fewest else choice(EPSILON, some), "]")


def texts(term: Grammar) -> set[bytes]:
    """The strings of a finite term, in any tokens."""
    match term:
        case Literal(data=data):
            return {data}
        case Sequence(items=items):
            return {b"".join(parts) for parts in itertools.product(*map(texts, items))}
        case Choice(items=items):
            return set().union(*map(texts, items))
        case Repeat(item=item, min=least, max=int(most)):
            return set().union(*(texts(Sequence([item] * count)) for count in range(least, most + 1)))
        case Distinct(item=item) | Budget(item=item):
            return texts(item)
    raise TypeError(type(term).__name__)


def members(grammar: Grammar) -> set[tuple[int, ...]]:
    """All token sequences of the language; each must have at most ``MOST`` tokens."""
    prefixes = {text[:end] for text in texts(grammar) for end in range(len(text) + 1)}
    level: list[tuple[tuple[int, ...], bytes]] = [((), b"")]
    found = set()
    while level:
        found |= {one for one, _ in level if Readings([TOKENS[token] for token in one]).are_any(grammar)}
        level = [
            ((*one, token), text + written)
            for one, text in level
            for token, written in enumerate(TOKENS)
            if text + written in prefixes
        ]
    return found


def check_everywhere(grammar: Grammar, tokens: Vocabulary) -> None:
    """Compare a matcher with all token sequences of the language, at each of their prefixes."""
    language, eos = members(grammar), tokens.eos[0]
    if not language:
        with pytest.raises((UnsatisfiableGrammar, VocabularyError)):
            compile(grammar, tokens)
        return
    constraint = compile(grammar, tokens)
    assert constraint.min_tokens() == min(map(len, language))
    ends: dict[tuple[int, ...], int] = {}  # for each prefix the fewest tokens that complete it
    for member in language:
        for count in range(len(member) + 1):
            ends[member[:count]] = min(len(member) - count, ends.get(member[:count], MOST * 9))
    every = range(len(TOKENS))
    paths = sorted(ends)
    for path in paths if len(paths) < 60 else random.Random(str(grammar)).sample(paths, 60):
        matcher = constraint.matcher()
        for count, token in enumerate(path):
            assert allowed_tokens(matcher, tokens.size) - {eos} == {t for t in every if (*path[:count], t) in ends}
            assert matcher.accept(token), path
        following = {token for token in every if (*path, token) in ends}
        expected = following | ({eos} if path in language else set())
        assert allowed_tokens(matcher, tokens.size) == expected, path
        assert matcher.is_accepting == (path in language)
        assert matcher.min_tokens() == ends[path]
        for budget in range(1, 7):
            short = {token for token in following if ends[*path, token] < budget}
            assert within(matcher, budget) == short | (expected & {eos}), (path, budget)
            assert matcher.needs_budget_mask(budget) or short == following, (path, budget)
        for token in every:
            assert matcher.fork().accept(token) == (token in following), (path, token)
            assert matcher.validate([token]) == (token in following)
        check_tree(matcher, path, set(ends))
        for count in range(len(path) + 1):  # rollback undoes the counts
            back = matcher.fork()
            back.rollback(count)
            before = path[: len(path) - count]
            assert allowed_tokens(back, tokens.size) - {eos} == {t for t in every if (*before, t) in ends}
            assert back.validate(path[len(path) - count :]) == count


def check_tree(matcher: Matcher, path: tuple[int, ...], known: set[tuple[int, ...]]) -> None:
    """Pairs of tokens that may follow, as a tree."""
    every = range(len(TOKENS))
    pairs = list(itertools.product(every, repeat=2))
    ids = [*every, *(second for _, second in pairs)]
    parents = [*([-1] * len(TOKENS)), *(first for first, _ in pairs)]
    expected = [(*path, token) in known for token in every] + [(*path, *pair) in known for pair in pairs]
    assert matcher.validate_tree(ids, parents) == expected
    words = np.zeros((1 + len(ids), (matcher.constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    assert matcher.fill_mask_tree(ids, parents, words) == expected
    for index in every:
        if expected[index]:
            after, alone = matcher.fork(), np.zeros_like(words[:1])
            assert after.accept(index)
            after.fill_mask(alone)
            assert np.array_equal(words[1 + index], alone[0])


def within(matcher: Matcher, budget: int) -> set[int]:
    """The tokens of the mask within a budget."""
    words = np.zeros((1, (matcher.constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    matcher.fill_mask_within(words, 0, budget)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())


PAIR = Distinct(array(choice("1", "2"), 2, 2))
SPARE = Distinct(array(choice("1", "2"), 0, 2), is_spare=True)
THOUGHT = literal("a") + Budget(choice("a", "b").many(0, 2), tokens=1)
NAMED = {
    "thought": THOUGHT + PAIR,
    "spare": THOUGHT + SPARE,
    "after": SPARE + Budget(literal("ab"), tokens=1),
    "both sides": Budget(literal("b") | "ba", tokens=1) + PAIR + Budget(literal("a") | "bab", tokens=2),
    "spanning": "b" + Budget(literal("ab[1,1]"), tokens=2) + SPARE,
    "impossible": Budget(literal("ba"), tokens=1) + SPARE,
    "ambiguous": Budget(choice("[1", "[1,1", "[2"), tokens=1) + choice(",1]", "]") | PAIR,
    "empty": Budget(literal("a").many(0, 3), tokens=2) + choice(Distinct(array(literal("1"), 2, 2)), "b"),
    "nested": Budget("a" + Budget(literal("b").many(0, 2), tokens=1) + "b", tokens=2) + PAIR,
}


@pytest.mark.parametrize("tokens", [FEW, COMPLETE], ids=["few-bytes", "all-bytes"])
@pytest.mark.parametrize("name", NAMED)
def test_what_matters(name: str, tokens: Vocabulary) -> None:
    """Budgets before, after and around an array without repetition are right, with tokens that span both."""
    check_everywhere(NAMED[name], tokens)


def term(chance: random.Random, depth: int) -> Grammar:
    """A random term with budgets and arrays without repetition side by side."""
    kind = chance.random()
    if depth and kind < 0.55:
        return sequence(*(term(chance, depth - 1) for _ in range(2)))
    if depth and kind < 0.7:
        return choice(*(term(chance, depth - 1) for _ in range(2)))
    if kind < 0.85:
        leaves = [literal(text) for text in ("a", "b", "ab", "ba", "bb", "[1,", "1]")]
        part = choice(*chance.sample(leaves, 2)).many(0, chance.randint(1, 2))
        return Budget(part, tokens=chance.randint(1, 2))
    if kind < 0.93:
        fewest = chance.randint(0, 2)
        return Distinct(array(choice("1", "2"), fewest, 2), is_spare=fewest < 2)
    return literal(chance.choice(["a", "b", ""]))


def some_terms(count: int) -> Iterator[Grammar]:
    """Random terms with both, the same each time."""
    for seed in itertools.count():
        found = term(random.Random(seed), 3)
        nodes = list(postorder(found))
        if not all(any(isinstance(node, kind) for node in nodes) for kind in (Budget, Distinct)):
            continue
        language = texts(found)
        if len(language) > 60 or max(map(len, language)) > MOST:
            continue
        yield found
        count -= 1
        if count == 0:
            return


def check_random(terms: Iterable[Grammar], tokens: Vocabulary) -> None:
    """Check all terms except the few whose text does not show at once where an array begins."""
    unclear = checked = 0
    for grammar in terms:
        try:
            check_everywhere(grammar, tokens)
            checked += 1
        except LimitExceeded as error:
            if "deciding where a value without repetition begins" not in str(error):
                raise
            unclear += 1
    assert checked > 4 * unclear


@pytest.mark.exhaustive
@pytest.mark.parametrize("tokens", [FEW, COMPLETE], ids=["few-bytes", "all-bytes"])
def test_random_terms(tokens: Vocabulary) -> None:
    """On random terms sequences, masks, masks with a budget, trees, forks and rollbacks agree."""
    check_random(some_terms(12), tokens)


@pytest.mark.nightly
@pytest.mark.parametrize("tokens", [FEW, COMPLETE], ids=["few-bytes", "all-bytes"])
def test_many_random_terms(tokens: Vocabulary) -> None:
    """The same holds for more terms."""
    check_random(some_terms(300), tokens)


ANSWERS = {
    "few values": {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2},
    "strings": {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "minItems": 2},
    "host names": {"type": "array", "items": {"type": "string", "format": "hostname"}},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_thought_before_an_answer(name: str) -> None:
    """Where a part may end at once, its budget removes exactly the tokens beyond it from the mask."""
    tokens = bpe_vocabulary("bytes")
    text_of, text, schema = tokens.tokens, any_text(until=">"), json_schema(ANSWERS[name])
    for most in (1, 3, 6):
        counted = compile("<" + Budget(text, tokens=most) + ">" + schema, tokens)
        free = compile("<" + text + ">" + schema, tokens)
        for seed in range(3):
            chance = random.Random(f"{name} {most} {seed}")
            one, other, counts = counted.matcher(), free.matcher(), [0]
            written = b""
            for _ in range(24):
                start = b"" if written else b"<"
                after = {
                    token: counts[-1]
                    + (b">" not in written and text_of[token].removeprefix(start)[:1] not in (b"", b">"))
                    for token in allowed_tokens(other, tokens.size)
                }
                allowed = allowed_tokens(one, tokens.size)
                rests = {token: missing(written + text_of[token]) for token in after}
                assert {token for token in after if after[token] + rests[token] <= most} <= allowed, written
                assert allowed <= {token for token in after if after[token] + (rests[token] > 0) <= most}, written
                plain = [token for token in allowed if text_of[token].isascii()]
                token = chance.choice(sorted(plain if plain and chance.random() < 0.6 else allowed))
                assert one.accept(token)
                assert other.accept(token)
                if one.is_terminated:
                    break
                written += text_of[token]
                counts.append(after[token])


def missing(text: bytes) -> int:
    """How many bytes a thought needs to finish its last character; each is a token, and some tokens hold several."""
    if b">" in text:
        return 0
    for count in range(1, min(4, len(text) + 1)):
        if text[-count] >= 0xC0:
            return max((2 if text[-count] < 0xE0 else 3 if text[-count] < 0xF0 else 4) - count, 0)
    return 0


def test_the_count_outlives_what_the_engine_forgets() -> None:
    """States are dropped at a limit and computed again; accepted tokens and items still count."""
    tokens = bpe_vocabulary("records")
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    constraint = compile(
        any_text(until="#").at_most(tokens=40) + "#" + json_schema(schema), tokens, limits=Limits(states=500)
    )
    x = tokens.tokens.index(b"x")
    matcher = constraint.matcher()
    assert all(matcher.accept(x) for _ in range(30))
    other = constraint.matcher()
    assert other.accept_bytes(b"#[0") == 3
    for number in range(1, 300):
        assert other.accept_bytes(f",{number}".encode()) == len(f",{number}")
    assert all(matcher.accept(x) for _ in range(10))
    assert not matcher.accept(x)
    assert {tokens.tokens[token][:1] for token in allowed_tokens(matcher, tokens.size)} == {b"#"}


@pytest.mark.parametrize(
    ("grammar", "part"),
    [
        (Budget(PAIR, tokens=3), "found in"),
        (Distinct(sequence("[", Budget(literal("1"), tokens=1), ",2]")), "found in"),
        (Rules({"pair": PAIR}, Budget(Reference("pair") + "a", tokens=3)), "refers to the other through rules"),
    ],
    ids=["around", "within", "by a rule"],
)
def test_one_within_the_other_is_refused(grammar: Grammar, part: str) -> None:
    """The error says where, and what to do instead."""
    with pytest.raises(GrammarError, match="a token budget is inside") as caught:
        compile(grammar, COMPLETE)
    assert part in str(caught.value)
    assert "bound that part in characters" in str(caught.value)
