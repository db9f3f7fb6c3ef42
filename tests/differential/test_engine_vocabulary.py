"""On real vocabularies, sampled masks equal accepting each token alone, and the reference implementation."""

from __future__ import annotations

import json
import random

import pytest

from structgen.engine import Matcher, Vocabulary, compile
from structgen.grammar.nodes import (
    ANY_CHAR,
    CharClass,
    Complement,
    Grammar,
    JsonString,
    Reference,
    Rules,
    choice,
    literal,
    repeat,
    sequence,
)
from structgen.testing import Effort, ReferenceMatcher, check_laws
from structgen.testing.state_walk import allowed_tokens

STATES, SAMPLE = 20, 4_000
"""Sampled states of a grammar; tokens of a state that the reference is asked about."""

DOCUMENTS = [
    '{"name": "Ada Lovelace", "age": 36, "tags": ["a", "\\u00e9t\\u00e9"], "next": null}',
    '{"name":"\\ud83d\\ude00 O\'Neil \\"x\\"","age":7,"tags":[],"next":'
    '{"name":"日本語","age":100,"tags":["",""],"next":null}}',
    '{"name": "\\\\ back\\/slash\\n", "age": 0, "tags": ["été", "😀"], "next": '
    '{"name": "", "age": 12, "tags": [], "next": null}}',
]


def person() -> Grammar:
    """A recursive JSON record with bounded and unbounded strings, an integer and an array."""
    space = repeat(" ", 0, 1)
    colon, comma = sequence(":", space), sequence(",", space)
    digit = CharClass([(0x30, 0x39)])
    age = choice("0", sequence(CharClass([(0x31, 0x39)]), repeat(digit, 0, 2)))
    tag = JsonString(repeat(CharClass([(0x20, 0x7F), (0xA0, 0x10FFFF)]), 0, 12))
    tags = sequence("[", repeat(sequence(tag, repeat(sequence(comma, tag))), 0, 1), "]")
    fields: list[tuple[str, Grammar]] = [
        ("name", JsonString(repeat(ANY_CHAR))),
        ("age", age),
        ("tags", tags),
        ("next", choice(Reference("person"), "null")),
    ]
    members = [sequence(f'"{name}"', colon, value) for name, value in fields]
    separated = [part for member in members for part in (comma, member)][1:]
    return Rules({"person": sequence("{", *separated, "}")}, Reference("person"))


def wide() -> Grammar:
    """Wide character classes, a counted class and a complement: their masks allow many tokens."""
    word = repeat(CharClass([(0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F)]), 1, 9)
    free = Complement(sequence(repeat(ANY_CHAR), choice("\n", "END"), repeat(ANY_CHAR)))
    return sequence(word, repeat(sequence(" ", word), 0, 3), ":", free, choice("\nEND", "\n"))


GRAMMARS = {
    "person": (person(), [text.encode() for text in DOCUMENTS]),
    "wide": (wide(), ["Straße frei und weit: whatever 日本語 E EN\nEND".encode(), b"a: END of\n"]),
}


def test_the_documents_are_what_the_grammar_means() -> None:
    """They parse as JSON and the reference accepts them, so the sampled states lie inside strings of the grammar."""
    for text in DOCUMENTS:
        assert set(json.loads(text)) == {"name", "age", "tags", "next"}
    for grammar, texts in GRAMMARS.values():
        for data in texts[: len(texts) if grammar is GRAMMARS["person"][0] else 1]:
            matcher = ReferenceMatcher(grammar)
            assert matcher.accept_bytes(data) == len(data)
            assert matcher.is_accepting


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("deepseek_vocabulary", "person"),
        pytest.param("deepseek_vocabulary", "wide", marks=pytest.mark.nightly),
        ("smollm_vocabulary", "person"),
        pytest.param("smollm_vocabulary", "wide", marks=pytest.mark.nightly),
    ],
)
def test_masks_in_sampled_states(source: str, name: str, request: pytest.FixtureRequest) -> None:
    """The engine is asked for every token alone, the reference implementation for thousands of them."""
    vocabulary: Vocabulary = request.getfixturevalue(source)
    grammar, texts = GRAMMARS[name]
    rng = random.Random(7)
    constraint = compile(grammar, vocabulary)
    places = [(text, end) for text in texts for end in range(len(text) + 1)]
    sampled = rng.sample(places, min(STATES, len(places)))
    for text, end in sampled:
        prefix = text[:end]
        matcher = constraint.matcher()
        reference = ReferenceMatcher(grammar)
        read = matcher.accept_bytes(prefix)
        assert read == reference.accept_bytes(prefix), prefix
        compare(matcher, reference, vocabulary, rng, prefix[:read])


def compare(
    matcher: Matcher, reference: ReferenceMatcher, vocabulary: Vocabulary, rng: random.Random, prefix: bytes
) -> None:
    """Compare one mask: all of it with the engine's own ``accept``, a sample with the reference implementation."""
    mask = allowed_tokens(matcher, vocabulary.size)
    alone = set()
    fork = matcher.fork()
    for token in range(vocabulary.size):
        if fork.accept(token):
            alone.add(token)
            fork.rollback(1)
    assert mask == alone, f"after {prefix!r}: {sorted(mask ^ alone)[:8]}"
    assert matcher.is_accepting == reference.is_accepting
    texts = [t for t in range(vocabulary.size) if t not in vocabulary.special and t not in vocabulary.eos]
    allowed = sorted(mask - set(vocabulary.special) - set(vocabulary.eos))
    tried = {*rng.sample(texts, SAMPLE), *rng.sample(allowed, min(SAMPLE // 4, len(allowed)))}
    chosen = sorted(tried)
    wanted = {chosen[i] for i in reference.mask([vocabulary.tokens[token] for token in chosen])}
    got = mask & tried
    assert got == wanted, f"after {prefix!r}: {[(t, vocabulary.tokens[t]) for t in sorted(got ^ wanted)[:8]]}"


def test_properties_hold_on_a_real_vocabulary(deepseek_vocabulary: Vocabulary) -> None:
    """All properties hold; where a property tries tokens one by one, it tries a sample."""
    for grammar, _ in GRAMMARS.values():
        check_laws(compile(grammar, deepseek_vocabulary), random.Random(3), Effort(walks=1, length=4, tokens=200))


def test_spellings_of_a_document_all_lead_to_its_end(deepseek_vocabulary: Vocabulary) -> None:
    """The canonical tokens, single bytes and random splits of each document are accepted to the end."""
    grammar, texts = GRAMMARS["person"]
    constraint = compile(grammar, deepseek_vocabulary)
    by_bytes = {
        data: token
        for token, data in enumerate(deepseek_vocabulary.tokens)
        if data and token not in deepseek_vocabulary.special
    }
    rng = random.Random(1)
    for text in texts:
        canonical = deepseek_vocabulary.tokenize(text)
        single = [by_bytes[bytes([byte])] for byte in text]
        split, start = [], 0
        while start < len(text):
            ends = [end for end in range(start + 1, min(len(text), start + 16) + 1) if text[start:end] in by_bytes]
            end = rng.choice(ends)
            split.append(by_bytes[text[start:end]])
            start = end
        for tokens in (canonical, single, split):
            matcher = constraint.matcher()
            assert matcher.validate(tokens) == len(tokens)
            assert all(matcher.accept(token) for token in tokens)
            assert matcher.is_accepting
            assert matcher.accept(deepseek_vocabulary.eos[0])
            assert matcher.is_terminated


def test_what_is_no_member_is_refused_at_its_first_wrong_byte(deepseek_vocabulary: Vocabulary) -> None:
    """``accept_bytes`` stops where the reference implementation does."""
    grammar, _ = GRAMMARS["person"]
    constraint = compile(grammar, deepseek_vocabulary)
    wrong = [
        b'{"name": "x", "age": 01',
        b'{"name": "\\ud83d", "age"',
        b'{"name": "\\x"',
        b'{"name": "\n"',
        b'{"name": "\xc3\x28"',
        b'{"name": "x", "age": 1000',
        b'{"name": "x", "age": 1, "tags": ["1234567890123"',
        b'{"name": "x", "age": 1, "tags": ["\\u001f"',
        b'{"name": "x", "age": 1, "tags": ["a",]',
    ]
    for data in wrong:
        reference = ReferenceMatcher(grammar)
        wanted = reference.accept_bytes(data)
        assert wanted < len(data)
        assert constraint.matcher().accept_bytes(data) == wanted, data


def test_a_literal_leaves_only_its_own_spellings(deepseek_vocabulary: Vocabulary) -> None:
    """The mask at the start of a text allows exactly the tokens that the text starts with."""
    text = b"Hello, structured world!"
    matcher = compile(literal(text), deepseek_vocabulary).matcher()
    ordinary = [i for i in range(deepseek_vocabulary.size) if i not in deepseek_vocabulary.special]
    wanted = {i for i in ordinary if (data := deepseek_vocabulary.tokens[i]) and text.startswith(data)}
    assert allowed_tokens(matcher, deepseek_vocabulary.size) == wanted
