"""Structural tags against xgrammar and against an independent reading, string by string and token by token.

structgen must agree with the reading (``tag_reading``) always; xgrammar too, except where ``DIFFERENCES`` lists texts.
There it must differ, so that a row whose reason is gone fails. ``docs/reference/structural-tags.md`` judges each.
"""

from __future__ import annotations

import json
import random
import re
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tag_reading import Format, goes_on, is_read, random_format

from structgen.engine import Vocabulary, compile as compile_grammar
from structgen.errors import GrammarError
from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.structural_tag import structural_tag

BYTES = Vocabulary([*(bytes([value]) for value in range(256)), b""], eos=[256])
ANY_SPACE = JsonPolicy(whitespace="flexible")
FILE = Path(__file__).parents[1] / "fixtures" / "structural_tags.jsonl"
ROWS = [json.loads(line) for line in FILE.read_text("utf-8").splitlines()]
CASES: dict[str, tuple[Format, list[str]]] = {
    row["name"]: (row["format"], row["texts"]) for row in ROWS if "texts" in row
}
TOKEN_CASES: dict[str, tuple[Format, str]] = {
    row["name"]: (row["format"], row["tokens"]) for row in ROWS if "tokens" in row
}

DIFFERENCES: dict[str, set[str]] = {
    "json": {'{"name":"\\u0041bc"}'},
    "json any order": {'{"age":1,"age":1}', '{"name":"a","name":"b"}', '{"age":1}'},
    "json excludes length": {'"yyx"', '"abc"'},
    "json excludes pattern": {'"xy"'},
}
"""By case, the texts that xgrammar judges otherwise; ``docs/reference/structural-tags.md`` judges each."""


def mutated(name: str, texts: list[str]) -> list[str]:
    """The texts, and eight more that differ from them in a character or a cut."""
    dice = random.Random(name)
    made = list(texts)
    letters = sorted({character for text in texts for character in text}) or ["a"]
    while len(made) < len(texts) + 8:
        base = dice.choice(texts)
        at = dice.randint(0, len(base))
        new = dice.choice(letters)
        made.append(dice.choice([base[:at] + new + base[at:], base[:at] + base[at + 1 :], base + dice.choice(texts)]))
    return list(dict.fromkeys(made))


@cache
def words_of(name: str) -> tuple[str, ...]:
    return tuple(mutated(name, CASES[name][1]))


def tag_of(form: Format) -> dict[str, Any]:
    return {"type": "structural_tag", "format": form}


def accepted(form: Format, words: tuple[str, ...]) -> set[str]:
    constraint = compile_grammar(structural_tag(tag_of(form), policy=ANY_SPACE), BYTES)
    found = set()
    for word in words:
        matcher, data = constraint.matcher(), word.encode()
        if matcher.accept_bytes(data) == len(data) and matcher.is_accepting:
            found.add(word)
    return found


@pytest.mark.parametrize("name", CASES)
def test_the_reading(name: str) -> None:
    """structgen accepts the texts that the independent reading accepts."""
    form, _ = CASES[name]
    words = words_of(name)
    expected = is_read(form, words)
    assert accepted(form, words) == expected
    assert 0 < len(expected) < len(words) or name == "text"


class Peer:
    """xgrammar, with single bytes as tokens."""

    def __init__(self) -> None:
        self.library = pytest.importorskip("xgrammar", reason="xgrammar is not installed")
        tokens = [b"</s>", *(bytes([value]) for value in range(256))]
        self.compiler = self.library.GrammarCompiler(self.library.TokenizerInfo(tokens, stop_token_ids=[0]))

    def accepted(self, form: Format, words: tuple[str, ...]) -> set[str]:
        compiled = self.compiler.compile_structural_tag(json.dumps(tag_of(form)))
        found = set()
        for word in words:
            matcher = self.library.GrammarMatcher(compiled)
            if (not word or matcher.accept_string(word)) and matcher.accept_token(0):
                found.add(word)
        return found


@pytest.fixture(scope="module")
def peer() -> Peer:
    return Peer()


def test_xgrammar(peer: Peer) -> None:
    """xgrammar accepts the same texts, but for those that the table of the page judges."""
    found: dict[str, set[str]] = {}
    for name, (form, _) in CASES.items():
        words = words_of(name)
        if form.get("max_whitespace_cnt") == 0:
            with pytest.raises(RuntimeError, match="max_whitespace_cnt must be positive"):
                peer.accepted(form, words)
        elif different := accepted(form, words) ^ peer.accepted(form, words):
            found[name] = different
    assert found == DIFFERENCES


# --- random formats ---


ALL_WORDS = tuple("".join(word) for length in range(6) for word in product("ab", repeat=length))


@cache
def random_formats() -> list[tuple[Format, set[str]]]:
    """Formats that structgen reads, with the words that it accepts."""
    made: list[tuple[Format, set[str]]] = []
    for seed in range(600):
        form = random_format(random.Random(seed), 3)
        try:
            term = structural_tag(tag_of(form))
        except GrammarError:  # a pattern that no text can reach: test_structural_tag in the unit tests
            continue
        constraint = compile_grammar(term, BYTES)
        found = set()
        for word in ALL_WORDS:
            matcher = constraint.matcher()
            if matcher.accept_bytes(word.encode()) == len(word) and matcher.is_accepting:
                found.add(word)
        made.append((form, found))
    return made


def test_random_formats() -> None:
    """Of all words of up to five letters, structgen accepts those of the reading; most formats accept some of them."""
    sizes = []
    for form, found in random_formats():
        assert found == is_read(form, ALL_WORDS), form
        sizes.append(len(found))
    assert len(sizes) > 400
    assert sum(1 < size < len(ALL_WORDS) for size in sizes) > 240


def test_random_formats_xgrammar(peer: Peer) -> None:
    """So does xgrammar, but that it accepts more where a stop goes on after a trigger."""
    same = 0
    for form, found in random_formats():
        theirs = peer.accepted(form, ALL_WORDS)
        assert theirs == found or (goes_on(form) and theirs > found), form
        same += theirs == found
    assert 400 < same < len(random_formats())


# --- tokens ---

TOKENS = [b"", b"a", b"b", b"ab", b"<t>", b"</t>"]
LETTERS = "-ABCTU"
"""One letter for each token: a sequence of tokens is a word, and its language a regular expression."""


def sequences(first: Any, longest: int = 4) -> set[str]:
    """The sequences of up to ``longest`` tokens that a matcher accepts as complete; ``first`` accepts nothing yet."""
    found: set[str] = set()
    waiting: list[tuple[str, Any]] = [("", first)]
    while waiting:
        word, matcher = waiting.pop()
        for token, letter in enumerate(LETTERS):
            following = matcher.fork()
            if (token and len(word) == longest) or not following.accept_token(token):
                continue
            if token:
                waiting.append((word + letter, following))
            else:
                found.add(word)
    return found


class Own:
    """A matcher of structgen with the methods of xgrammar's."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher

    def fork(self) -> Own:
        return Own(self.matcher.fork())

    def accept_token(self, token: int) -> bool:
        return bool(self.matcher.accept(token))


class Masked:
    """A matcher of xgrammar that takes what its mask allows: budgets of tokens are in the mask only."""

    def __init__(self, library: Any, matcher: Any) -> None:
        self.library, self.matcher = library, matcher

    def fork(self) -> Masked:
        return Masked(self.library, self.matcher.fork())

    def accept_token(self, token: int) -> bool:
        mask = self.library.allocate_token_bitmask(1, len(TOKENS))
        self.matcher.fill_next_token_bitmask(mask)
        return bool(int(mask[0][0]) >> token & 1 and self.matcher.accept_token(token))


def words_of_tokens(pattern: str) -> set[str]:
    every = ("".join(word) for length in range(5) for word in product(LETTERS[1:], repeat=length))
    return {word for word in every if re.fullmatch(pattern, word)}


@pytest.mark.parametrize("name", TOKEN_CASES)
def test_tokens(name: str) -> None:
    """Of all sequences of up to four tokens, structgen accepts those of a regular expression over tokens."""
    form, pattern = TOKEN_CASES[name]
    constraint = compile_grammar(structural_tag(tag_of(form)), Vocabulary(TOKENS, eos=[0]))
    assert sequences(Own(constraint.matcher())) == words_of_tokens(pattern)


def test_tokens_xgrammar(peer: Peer) -> None:
    """xgrammar's masks allow the same sequences."""
    info = peer.library.TokenizerInfo(TOKENS, stop_token_ids=[0])
    compiler = peer.library.GrammarCompiler(info, cache_enabled=False)  # the cache mixes up sets of tokens (0.2.8)
    for name, (form, pattern) in TOKEN_CASES.items():
        compiled = compiler.compile_structural_tag(json.dumps(tag_of(form)))
        matcher = Masked(peer.library, peer.library.GrammarMatcher(compiled))
        assert sequences(matcher) == words_of_tokens(pattern), name
