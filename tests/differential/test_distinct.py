"""Arrays and objects without repetition: masks equal enumeration of the language, in every state."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.errors import GrammarError, UnsatisfiableGrammar
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import (
    EPSILON,
    CharClass,
    Choice,
    Distinct,
    Grammar,
    JsonString,
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
from structgen.testing.node_semantics import repeats
from structgen.testing.state_walk import allowed_tokens

EVERY_BYTE = [bytes([byte]) for byte in range(256)]
SCALARS = (
    *("1", "2", "10", "12", "1.0", "1e1", "10e-1", "0", "-0", "0.0", "-1", "true", "null"),
    *('"a"', '"b"', '"ab"', '""', r'"\u0061"', r'"a\u0062"', r'"\""', '" "', '"]"'),
)
NAMES = ('"a"', '"b"', r'"\u0061"', '""')
LARGEST = 4_000
"""Members of a language that is enumerated."""


@pytest.fixture(scope="module")
def byte_vocabulary() -> Vocabulary:
    """One token a byte."""
    return Vocabulary([b"", *EVERY_BYTE], eos=[0])


def array(item: Grammar, fewest: int, most: int) -> Grammar:
    """Arrays of ``fewest`` to ``most`` items."""
    some = sequence(item, repeat(sequence(",", item), max(fewest - 1, 0), most - 1))
    return sequence("[", some if fewest else choice(EPSILON, some), "]")


def members_of_objects(name: Grammar, value: Grammar, fewest: int, most: int) -> Grammar:
    """Objects of ``fewest`` to ``most`` members."""
    some = sequence(name, ":", value, repeat(sequence(",", name, ":", value), max(fewest - 1, 0), most - 1))
    return sequence("{", some if fewest else choice(EPSILON, some), "}")


def language(term: Grammar) -> set[bytes]:
    """All strings of a finite term, computed from the inside out."""
    found: dict[int, set[bytes]] = {}
    for node in postorder(term):
        parts = [found[id(child)] for child in node.children]
        match node:
            case Literal():
                members = {node.data}
            case Sequence():
                members = {b""}
                for part in parts:
                    members = {a + b for a in members for b in part}
            case Choice():
                members = set().union(*parts)
            case Repeat(min=least, max=int(most)):
                power, members = {b""}, set()
                for count in range(most + 1):
                    members |= power if count >= least else set()
                    power = {a + b for a in power for b in parts[0]}
            case Distinct():
                members = {word for word in parts[0] if not repeats(word)}
            case _:
                raise TypeError(f"{type(node).__name__} is not enumerated here")
        found[id(node)] = members
    return found[id(term)]


def without_marks(term: Grammar) -> Grammar:
    """The same term with all distinctness marks removed."""
    made: dict[int, Grammar] = {}
    for node in postorder(term):
        parts = [made[id(child)] for child in node.children]
        match node:
            case Distinct():
                made[id(node)] = parts[0]
            case Sequence() | Choice():
                made[id(node)] = type(node)(parts)
            case Repeat():
                made[id(node)] = Repeat(parts[0], node.min, node.max)
            case _:
                made[id(node)] = node
    return made[id(term)]


def random_value(rng: random.Random, depth: int, *, is_spare: bool) -> Grammar:
    """A small language of JSON values, with distinctness marks in many places."""
    kind = rng.random()
    if depth == 0 or kind < 0.45:
        return choice(*rng.sample(SCALARS, rng.randint(1, 3)))
    if kind < 0.9:
        most = rng.randint(1, 3 if depth == 2 else 2)
        fewest = rng.randint(0, 1 if is_spare else min(2, most))
        item = random_value(rng, depth - 1, is_spare=is_spare)
        if kind < 0.75:
            value = array(item, fewest, most)
        else:
            names = choice(*rng.sample(NAMES, rng.randint(1, 3)))
            value = members_of_objects(names, item, min(fewest, 1), min(most, 2))
        return Distinct(value, is_spare) if rng.random() < 0.6 else value
    return choice(*(random_value(rng, depth - 1, is_spare=is_spare) for _ in range(2)))


def random_cases(seed: int, count: int) -> Iterator[tuple[Grammar, set[bytes], list[bytes]]]:
    """Grammars with their strings, and tokens cut from the texts that repetition would allow."""
    rng = random.Random(seed)
    while count:
        is_spare = rng.random() < 0.5
        term = random_value(rng, 2, is_spare=is_spare)
        if rng.random() < 0.3:  # another way to read the text, in which repetition is allowed
            term = choice(term, random_value(rng, 1, is_spare=is_spare))
        if rng.random() < 0.2:
            term = sequence("x ", term)
        texts = sorted(language(without_marks(term))) if any(isinstance(n, Distinct) for n in postorder(term)) else []
        if not 0 < len(texts) <= LARGEST:
            continue
        tokens = set()
        for _ in range(60):
            text = rng.choice(texts)
            start = rng.randrange(len(text))
            tokens.add(text[start : start + rng.randint(2, 9)])
        yield term, language(term), sorted(tokens)
        count -= 1


def compare(term: Grammar, members: set[bytes], tokens: list[bytes], longest: int) -> int:
    """Compare all states up to a length of the text; return their number."""
    tokens = [b"", *tokens, *EVERY_BYTE]
    vocabulary = Vocabulary(tokens, eos=[0])
    try:
        constraint = compile(term, vocabulary)
    except UnsatisfiableGrammar:
        assert not members, term
        return 0
    prefixes = {word[:end] for word in members for end in range(len(word) + 1)}
    tried = [prefix for prefix in prefixes if len(prefix) <= longest]
    for prefix in tried:
        matcher = constraint.matcher()
        assert matcher.accept_bytes(prefix) == len(prefix), (str(term), prefix)
        wanted = {i for i, token in enumerate(tokens) if token and prefix + token in prefixes}
        wanted |= {0} if prefix in members else set()
        got = allowed_tokens(matcher, len(tokens))
        missing, extra = ([tokens[i] for i in sorted(ids)] for ids in (wanted - got, got - wanted))
        assert got == wanted, f"{term} after {prefix!r}: missing {missing}, too many {extra}"
        assert matcher.is_accepting == (prefix in members)
        check_accept(matcher, wanted - {0}, len(tokens), prefix)
    return len(tried)


def check_accept(matcher: Matcher, wanted: set[int], size: int, prefix: bytes) -> None:
    """``accept`` and ``validate`` take what the mask allows; only a sample is checked, since accepting is slower."""
    rng = random.Random(prefix)
    for token in rng.sample(range(1, size), 12):
        assert matcher.validate([token]) == (token in wanted), (prefix, token)
        assert matcher.fork().accept(token) == (token in wanted), (prefix, token)


@pytest.mark.parametrize("count", [130, pytest.param(400, marks=pytest.mark.nightly)])
def test_masks_of_random_grammars_equal_enumeration(count: int) -> None:
    """Numbers, strings, containers, names and nested marks are covered, and alternatives without them."""
    states = sum(compare(*case, longest=14) for case in random_cases(seed=7, count=count))
    assert states > count * 35


@pytest.mark.parametrize(
    ("term", "count"),
    [
        (Distinct(array(choice("1", "2"), 2, 4)), 2),
        (Distinct(sequence("[", choice("1", "2", "3"), ",1]")), 2),
        (Distinct(array(choice("0", "-0", "0.0", "0e5"), 0, 3), is_spare=True), 5),
        (Distinct(members_of_objects(choice(*NAMES), literal("1"), 0, 2), is_spare=True), 15),
        (choice(Distinct(array(choice("1", "2"), 2, 2)), array(literal("1"), 1, 3)), 5),
    ],
    ids=["required items", "a later constant", "zeros", "names", "an alternative that may repeat"],
)
def test_named_cases(term: Grammar, count: int) -> None:
    """The strings of these cases can be counted by hand."""
    members = language(term)
    assert len(members) == count, members
    tokens = [
        word[i:j] for word in language(without_marks(term)) for i in range(len(word)) for j in range(i + 2, i + 6)
    ]
    assert compare(term, members, sorted(set(tokens)), longest=99) > count


def test_numbers_of_any_spelling_are_compared_by_value(byte_vocabulary: Vocabulary) -> None:
    """Numbers are equal by decimal value, even where double precision cannot distinguish them."""
    digits = repeat(choice(*"0123456789"), 1)
    exponent = sequence(choice("e", "E"), repeat(choice("+", "-"), 0, 1), digits)
    number = sequence(repeat("-", 0, 1), digits, repeat(sequence(".", digits), 0, 1), repeat(exponent, 0, 1))
    constraint = compile(Distinct(sequence("[", number, ",", number, "]"), is_spare=True), byte_vocabulary)
    for one, other, are_equal in [
        ("1", "1.0", True),
        ("100", "1E+2", True),
        ("-0.0", "0e7", True),
        ("0.001", "1e-3", True),
        ("1", "-1", False),
        ("9007199254740993", "9007199254740992", False),
        ("1e400", "1e401", False),
        ("10", "1", False),
        (f"1e{'0' * 20}3", "1000", True),
    ]:
        for first, second in [(one, other), (other, one)]:
            text = f"[{first},{second}]".encode()
            assert (constraint.matcher().accept_bytes(text) == len(text)) != are_equal, text


def test_nested_values_are_compared_without_regard_to_order_of_members(byte_vocabulary: Vocabulary) -> None:
    """Objects are compared as sets of members, arrays in order."""
    value = Reference("value")
    string = choice('"a"', '"b"', r'"\u0061"')
    pair = sequence(string, ":", value)
    rules = {
        "value": choice(
            string,
            "1",
            sequence("[", value, repeat(sequence(",", value)), "]"),
            sequence("{", pair, repeat(sequence(",", pair)), "}"),
        )
    }
    term = Rules(rules, Distinct(sequence("[", value, ",", value, "]")))
    constraint = compile(term, byte_vocabulary)
    for text, is_member in [
        ('[{"a":1,"b":[1]},{"b":[1],"a":1}]', False),
        ('[{"a":1,"b":[1]},{"b":[1],"\\u0061":1}]', False),
        ('[{"a":1,"b":[1]},{"b":1,"a":[1]}]', True),
        ('["a",["a"]]', True),
        ('[["a","b"],["b","a"]]', True),
        ('[["a","a"],["a"]]', True),
        ('[["a",1],["\\u0061",1]]', False),
        ('[{"a":{"b":1,"b":1}},1]', False),
    ]:
        matcher = constraint.matcher()
        assert (matcher.accept_bytes(text.encode()) == len(text) and matcher.is_accepting) == is_member, text


def test_what_may_be_empty_or_must_be_regular_is_refused(byte_vocabulary: Vocabulary) -> None:
    """A mark needs exactly one array or object, and no automaton can intersect it."""
    with pytest.raises(GrammarError, match="may be empty"):
        compile(Distinct(EPSILON), byte_vocabulary)
    with pytest.raises(GrammarError, match="must be regular"):
        compile(Distinct(literal("[]")) & literal("[]"), byte_vocabulary)


def test_positions_survive_the_engine_forgetting(byte_vocabulary: Vocabulary) -> None:
    """Limits that force the engine to drop its states change no answer."""
    number = choice("0", sequence(choice(*"123456789"), repeat(choice(*"0123456789"), 0, 2)))
    term = Distinct(sequence("[", number, repeat(sequence(",", number)), "]"), is_spare=True)
    constraint = compile(term, byte_vocabulary, limits=Limits(states=400))
    matcher = constraint.matcher()
    matcher.accept_bytes(b"[0")
    for number in range(1, 300):
        assert matcher.accept_bytes(f",{number}".encode()) == len(f",{number}")
        fork = matcher.fork()
        assert fork.accept_bytes(b",0,") == len(b",")  # nothing but 0 begins with 0, and it is already there
    matcher.rollback(100)
    assert matcher.accept_bytes(b",250]") == len(b",250]")


ENDLESS = {
    "letters": array(JsonString(repeat(literal("a"))), 2, 4),
    "two letters": array(sequence('"', repeat(CharClass([(0x61, 0x62)])), '"'), 2, 3),
    "numbers": array(sequence(CharClass([(0x31, 0x39)]), repeat(CharClass([(0x30, 0x39)]))), 3, 3),
    "names": members_of_objects(JsonString(repeat(literal("a"))), choice("0", "1"), 2, 3),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_supply_needs_no_search(name: str) -> None:
    """Where values never run out, ``is_endless`` gives the same masks as a search for every token."""
    term = ENDLESS[name]
    texts = [
        b'"a',
        b'":1,"',
        b'","',
        b'",',
        b"aa",
        b'"":',
        b'[""',
        b'{"a":1',
        b"1,1",
        b"2,",
        b'a"',
        b'":0}',
        b"\\u0061",
    ]
    tokens = [b"", *texts, *EVERY_BYTE]
    vocabulary = Vocabulary(tokens, eos=[0])
    searched, promised = (compile(Distinct(term, is_endless=flag), vocabulary) for flag in (False, True))
    rng = random.Random(name)
    states = 0
    for _ in range(5):
        one, other = searched.matcher(), promised.matcher()
        for step in range(16):
            allowed = allowed_tokens(one, len(tokens))
            assert allowed == allowed_tokens(other, len(tokens)), one
            states += 1
            if step % 8 == 0:
                budget = (one.min_tokens() or 0) + rng.randint(0, 3)
                assert other.min_tokens() == one.min_tokens()
                assert tokens_within(one, len(tokens), budget) == tokens_within(other, len(tokens), budget)
                assert other.needs_budget_mask(budget)
            usual = [token for token in allowed if 0 < token <= len(texts)] or sorted(allowed - {0})
            if not usual:
                break
            token = rng.choice(usual if rng.random() < 0.7 else sorted(allowed - {0}) or usual)
            assert one.accept(token)
            assert other.accept(token)
    assert states > 30


def tokens_within(matcher: Matcher, size: int, budget: int) -> set[int]:
    """The tokens of the mask within a budget."""
    words = np.zeros((1, (size + 31) // 32), dtype=np.int32)
    matcher.fill_mask_within(words, 0, budget)
    return set(np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little")).tolist())
