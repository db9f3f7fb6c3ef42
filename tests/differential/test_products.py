"""Intersections, complements and nested counts against Python's ``re``, text by text."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.errors import UnsatisfiableGrammar
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Complement, Grammar, Intersection, JsonString

ALPHABET = "ab1-:"
LONGEST = 5
TEXTS = ["".join(letters) for size in range(LONGEST + 1) for letters in itertools.product(ALPHABET, repeat=size)]
SYMBOLS = ["a", "[ab]", "[a1]", r"\d", "-", ":", "[-:]", ".", "[^a]"]
VOCABULARY = Vocabulary([bytes([value]) for value in range(256)] + [b"ab", b"a-", b"1:1", b"--"], eos=[0])


def counted(rng: random.Random) -> str:
    """A count, often with bounds close to those of others."""
    least = rng.choice([0, 0, 1, 1, 2])
    return f"{{{least},{least + rng.randrange(4)}}}" if rng.random() < 0.8 else f"{{{least},}}"


def pattern(rng: random.Random, depth: int = 2) -> str:
    """Counted loops in counted loops, with choices between loops that differ only in their bounds."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        symbol = rng.choice(SYMBOLS)
        if depth and rng.random() < 0.4:
            parts.append(f"(?:{pattern(rng, depth - 1)}){counted(rng)}")
        elif rng.random() < 0.3:
            parts.append(f"(?:{symbol}{counted(rng)}-|{symbol}{counted(rng)}-|{symbol}{counted(rng)})")
        else:
            parts.append(symbol + rng.choice(["", counted(rng)]))
    return "".join(parts)


def product(rng: random.Random) -> tuple[Grammar, set[str]]:
    """An intersection of patterns, some of them negated, with the strings of ``TEXTS`` that it accepts."""
    items: list[Grammar] = []
    members = set(TEXTS)
    for index in range(rng.randint(1, 4)):
        text = pattern(rng)
        matching = {found for found in members if re.fullmatch(text, found)}
        if index and rng.random() < 0.3:
            items.append(Complement(regex(text)))
            members -= matching
        else:
            items.append(regex(text))
            members = matching
    return Intersection(items), members


def walked(matcher: Matcher) -> set[str]:
    """The strings of ``TEXTS`` that are accepted, found by a walk over their trie that skips dead states."""
    found = set()

    def visit(prefix: str) -> None:
        if matcher.is_accepting:
            found.add(prefix)
        if len(prefix) == LONGEST:
            return
        for letter in ALPHABET:
            if matcher.accept_bytes(letter.encode()):
                visit(prefix + letter)
                matcher.rollback(1)

    visit("")
    return found


@pytest.mark.parametrize("seed", range(8))
def test_products_of_counts(seed: int) -> None:
    """Accepted strings, emptiness and shortest strings agree with ``re``; every live prefix can be completed."""
    rng = random.Random(seed)
    for _ in range(60):
        grammar, members = product(rng)
        try:
            constraint = compile(grammar, VOCABULARY, limits=Limits(steps=60_000_000))
        except UnsatisfiableGrammar:
            assert not members, grammar
            continue
        assert walked(constraint.matcher()) == members, grammar
        if members:
            assert constraint.shortest_bytes == min(map(len, members)), grammar
        else:
            assert constraint.shortest_bytes > LONGEST, grammar


def far(rng: random.Random) -> str:
    """Parts in sequence, with bounds that few texts reach."""
    parts = []
    for _ in range(rng.randint(1, 3)):
        symbol = rng.choice(["a", "-", ".", "a?-", "(?:a|--)"])
        least = rng.choice([0, 1, 2, 5, 8])
        parts.append(
            f"(?:{symbol}){{{least},{rng.choice([max(least, 8), 9, 10, 12])}}}" if rng.random() < 0.8 else symbol
        )
    return "".join(parts)


@pytest.mark.parametrize("seed", range(6))
def test_products_of_bounds_that_few_texts_meet(seed: int) -> None:
    """A text is live iff it is the prefix of a string; shortest strings, in JSON too, agree with ``re``.

    And the shortest strings, in JSON too, are those of ``re``.
    """
    rng = random.Random(seed)
    longest = 11
    texts = ["".join(letters) for size in range(longest + 1) for letters in itertools.product("a-", repeat=size)]
    for _ in range(25):
        patterns = [far(rng) for _ in range(rng.randint(1, 3))]
        negated = far(rng) if rng.random() < 0.4 else None
        items: list[Grammar] = [regex(text) for text in (*patterns, f"[a-]{{0,{longest}}}")]
        members = {text for text in texts if all(re.fullmatch(one, text) for one in patterns)}
        if negated is not None:
            items.append(Complement(regex(negated)))
            members = {text for text in members if not re.fullmatch(negated, text)}
        grammar = Intersection(items)
        if not members:
            with pytest.raises(UnsatisfiableGrammar):
                compile(grammar, VOCABULARY)
            continue
        constraint = compile(grammar, VOCABULARY)
        begun = {text[:size] for text in members for size in range(len(text) + 1)}
        matcher = constraint.matcher()
        for text in texts:
            matcher.reset()
            assert (matcher.accept_bytes(text.encode()) == len(text)) == (text in begun), (grammar, text)
        assert constraint.shortest_bytes == min(map(len, members)), grammar
        assert compile(JsonString(grammar), VOCABULARY).shortest_bytes == constraint.shortest_bytes + 2, grammar


@pytest.mark.parametrize("seed", range(4))
def test_loops_after_part_of_themselves(seed: int) -> None:
    """Where a loop may follow some of its own characters, also of several bytes, the language is that of ``re``."""
    rng = random.Random(seed)
    texts = ["".join(letters) for size in range(5) for letters in itertools.product("abé日", repeat=size)]
    classes = ["a", "[ab]", "é", "[é日]", "[aé]", "[^a]", "[^é]", "[^日]", "."]
    for _ in range(60):
        tail = rng.choice(classes) + rng.choice(["*", "+", "{0,2}"]) + rng.choice(["", "a", "é?"])
        parts = [
            rng.choice(classes) + rng.choice(["", "?", "*", "{0,2}", "{1,3}"]) + tail for _ in range(rng.randint(1, 3))
        ]
        text = rng.choice(["", "b?", "a*"]) + f"(?:{'|'.join([*parts, tail])})"
        length = f".{{{rng.randint(0, 2)},{rng.randint(2, 4)}}}"
        matcher = compile(Intersection([regex(text), regex(length)]), VOCABULARY).matcher()
        for found in texts:
            matcher.reset()
            data = found.encode()
            accepted = matcher.accept_bytes(data) == len(data) and matcher.is_accepting
            assert accepted == bool(re.fullmatch(text, found) and re.fullmatch(length, found)), (text, length, found)


def test_products_inside_json_strings() -> None:
    """The same holds for values of JSON strings, where an escape may spell any character."""
    rng = random.Random(11)
    for _ in range(60):
        grammar, members = product(rng)
        try:
            matcher = compile(JsonString(grammar), VOCABULARY).matcher()
        except UnsatisfiableGrammar:
            assert not members, grammar
            continue
        for text in rng.sample(TEXTS, 200) + sorted(members)[:20]:
            escaped = "".join(rng.choice([letter, f"\\u{ord(letter):04x}"]) for letter in text)
            data = f'"{escaped}"'.encode()
            accepted = matcher.accept_bytes(data)
            assert (accepted == len(data) and matcher.is_accepting) == (text in members), (grammar, escaped)
            matcher.reset()
