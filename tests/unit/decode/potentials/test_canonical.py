"""Canonical outputs of grammars: the allowed tokens begin the tokenizer's own spelling of some string."""

from __future__ import annotations

import itertools
import random

import pytest
from split_tokenizers import STYLES, split_tokenizer, split_vocabulary, written_tokens

from structgen.decode import Greedy, Multinomial, Result, generate
from structgen.decode.potentials import Hypothesis
from structgen.decode.potentials.canonical import Canonical
from structgen.decode.sampling import SMC
from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.engine.canonical import Known, canonical_tokens
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.errors import ArgumentError, GenerationError, GrammarError, LimitExceeded
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Budget, ByteClass, Grammar, Repeat, SpecialToken, TokenSet, literal, sequence
from structgen.models import HashModel
from structgen.models.toy.hash import HashDiffusion
from structgen.testing import check_potential

PATTERNS = [
    "yes|no|yesterday|nothing",
    "[ab]{3}",
    "(a|b|ab| ){1,4}",
    " {1,4}[ab]?",
    r"[ \n]{1,3}a?",
    "'(s|t|re|a)'?s?",
    "[12]{1,4}[ab]{0,2}",
    "(é|è|a){1,3}",
    "(😀|一|a){1,2}",
    r'\{"(ab|ba|a)": ?(1|12|123)\}',
    "[,.']{1,4}",
    r"a[\n ]{2}b?|  ab",
    "[a1 ]{4}",
    "(e|a|\u0301|\u0323|é){1,4}",
    "e\u0301a?|ea|</?(think>|b)[ab]",
    "(a|<think>|<b){1,3}",
]
DAILY = ("llama", "qwen", "mistral")
BY_STYLE = [style if style in DAILY else pytest.param(style, marks=pytest.mark.nightly) for style in STYLES]


def strings(constraint: Constraint) -> list[str]:
    """Every string of a finite language, byte by byte."""
    found = []
    stack = [(constraint.matcher(), b"")]
    while stack:
        matcher, data = stack.pop()
        if matcher.is_accepting:
            found.append(data.decode())
        for byte in matcher.live_bytes():
            longer = matcher.fork()
            if longer.accept_bytes(bytes([byte])):
                stack.append((longer, data + bytes([byte])))
    return found


def following(outputs: set[tuple[int, ...]]) -> dict[tuple[int, ...], set[int]]:
    """The tokens that follow each prefix of some output."""
    after: dict[tuple[int, ...], set[int]] = {}
    for output in outputs:
        for length, token in enumerate(output):
            after.setdefault(output[:length], set()).add(token)
        after.setdefault(output, set())
    return after


@pytest.mark.parametrize("size", [pytest.param(270, marks=pytest.mark.nightly), 340])
@pytest.mark.parametrize("style", BY_STYLE)
@pytest.mark.parametrize("is_bounded", [False, True])
def test_the_allowed_tokens_are_those_of_the_enumerated_outputs(style: str, size: int, is_bounded: bool) -> None:
    vocabulary = split_vocabulary(style, size)
    for pattern in PATTERNS if style in DAILY[:1] else PATTERNS[::2]:
        constraint = compile(regex(pattern), vocabulary)
        outputs = {
            tuple(tokens)
            for text in strings(constraint)
            if vocabulary.decode(tokens := written_tokens(style, size, text)) == text.encode()
        }
        most = sorted(map(len, outputs))[len(outputs) // 2] if is_bounded else None
        outputs = {output for output in outputs if most is None or len(output) <= most}
        potential = Canonical(constraint, most)
        row = empty_masks(vocabulary)
        prefixes = following(outputs)
        for prefix in random.Random(0).sample(sorted(prefixes), min(len(prefixes), 16)):
            here = Hypothesis(constraint.grammar, vocabulary, prefix)
            matcher = constraint.matcher()
            assert all(map(matcher.accept, prefix))
            matcher.fill_mask(row)
            narrowed = [row[0].copy() for _ in range(3)]
            for each in narrowed:  # before anything is known of the state, when it is, and with a row that is kept
                potential.narrow(here, each)
            mask = set(allowed_ids(row[0] & potential.allowed(here), vocabulary.size).tolist()) - {*vocabulary.eos}
            assert all((each == (row[0] & potential.allowed(here))).all() for each in narrowed)
            allowed = {token for token in mask if potential.prefix(here.extended(token)) == 0}
            assert allowed == prefixes[prefix], (pattern, prefix)
            assert mask == allowed or is_bounded
            assert (potential.complete(here) == 0) == (prefix in outputs)


def test_random_grammars_over_a_small_tokenizer() -> None:
    vocabulary, tokenizer = split_vocabulary("smollm"), split_tokenizer("smollm")
    rng = random.Random(4)
    words = ["a", "ab", "b ", " b", "'s", "12", "\n", " ", "é", ", "]
    for _ in range(10):
        parts = [rng.sample(words, rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
        pattern = "".join(f"({'|'.join(part)}){{{rng.randint(0, 1)},{rng.randint(1, 2)}}}" for part in parts)
        constraint = compile(regex(pattern), vocabulary)
        outputs = {tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in strings(constraint)}
        canonical = canonical_tokens(vocabulary)
        prefixes = following(outputs)
        for prefix in rng.sample(sorted(prefixes), min(len(prefixes), 12)):
            matcher, state = constraint.matcher(), canonical.after_all(prefix)
            assert state is not None
            assert all(map(matcher.accept, prefix))
            exact = allowed_ids(canonical.allowed(matcher, state).row, vocabulary.size).tolist()
            full, part = empty_masks(vocabulary)[0], empty_masks(vocabulary)[0]
            matcher.fill_mask(full[None])
            part[:] = full & rng.getrandbits(31)
            for row in (full, part):
                known = Known(state)
                expected = set(exact) & {*allowed_ids(row, vocabulary.size).tolist()}
                canonical.narrow(known, lambda here=matcher: here, row)  # type: ignore[misc]
                assert known.allowed == tuple(exact)
                assert {*allowed_ids(row, vocabulary.size).tolist()} == expected
            assert {*exact} - {*vocabulary.eos} == prefixes[prefix], (pattern, prefix)
            assert (vocabulary.eos[0] in exact) == (prefix in outputs)


def is_written(style: str, result: Result) -> bool:
    """Whether the library itself encodes the text so."""
    return tuple(split_tokenizer(style).encode(result.text, add_special_tokens=False).ids) == result.tokens


@pytest.mark.parametrize("style", [pytest.param("gpt2", marks=pytest.mark.nightly), "llama"])
def test_generated_outputs_are_canonical(style: str) -> None:
    vocabulary = split_vocabulary(style)
    model = HashModel(vocabulary, seed=2)
    schema = {"type": "object", "properties": {"ab": {"type": "string", "maxLength": 6}}, "required": ["ab"]}
    plain = 0
    for grammar in (json_schema(schema), regex("[ab ,'12\n]{5,12}"), regex("ab|aba|abba 's")):
        for seed in range(2):
            result = generate(model, "a", grammar, sampler=Multinomial(), seed=seed, max_tokens=40, canonical=True)
            assert is_written(style, result)
            assert (
                result.tokens
                == generate(
                    model,
                    "a",
                    grammar,
                    sampler=Multinomial(),
                    seed=seed,
                    max_tokens=40,
                    canonical=True,
                    jump_forward=False,
                ).tokens
            )
            plain += is_written(style, generate(model, "a", grammar, sampler=Multinomial(), seed=seed, max_tokens=40))
    assert plain < 6  # otherwise the option would change nothing here
    greedy = generate(model, "a", regex("[ab ]{6}"), sampler=Greedy(), max_tokens=6, canonical=True)
    assert is_written(style, greedy)
    assert is_written(style, generate(model, "a", regex("[ab ]{6}"), sampler=SMC(4), max_tokens=6, canonical=True))


def test_the_laws_of_potentials_hold() -> None:
    constraint = compile(regex("(ab|a b|'s|é){1,6}"), split_vocabulary("gpt2"))
    check_potential(Canonical(constraint), constraint, random.Random(1), walks=6)


def test_a_budget_that_no_canonical_output_keeps() -> None:
    vocabulary = split_vocabulary("gpt2")
    model = HashModel(vocabulary, seed=0)
    texts = map("".join, itertools.product("ab'1 s", repeat=6))
    text, needed = next((text, count) for text in texts if (count := len(vocabulary.tokenize(text))) > shortest(text))
    assert generate(model, "a", literal(text), max_tokens=needed - 1).text == text
    with pytest.raises(GenerationError, match="canonical forbade"):
        generate(model, "a", literal(text), max_tokens=needed - 1, canonical=True)
    assert generate(model, "a", literal(text), max_tokens=needed, canonical=True).text == text


def shortest(text: str) -> int:
    return compile(literal(text), split_vocabulary("gpt2")).min_tokens()


@pytest.mark.parametrize(
    ("grammar", "named"),
    [
        (Budget(regex("[ab]+"), 3), "token budgets"),
        (sequence(TokenSet([260]), "a"), "sets of tokens"),
        (Repeat(ByteClass([(0x80, 0xFF)]), 1, 3), "no UTF-8"),
    ],
)
def test_grammars_of_tokens_and_bytes_are_refused(grammar: Grammar, named: str) -> None:
    with pytest.raises(GrammarError, match=named):
        generate(HashModel(split_vocabulary("gpt2")), "a", grammar, canonical=True)


def test_other_models_and_other_vocabularies_are_refused() -> None:
    vocabulary = split_vocabulary("gpt2")
    filling = HashDiffusion(Vocabulary([b"a", b"b", b"", b""], eos=[2], special={3: "<mask>"}))
    with pytest.raises(ValueError, match="canonical=True is not for model"):
        generate(filling, "a", literal("ab"), canonical=True)
    with pytest.raises(ArgumentError, match="cannot be decided exactly"):
        generate(HashModel(Vocabulary(vocabulary.tokens, eos=vocabulary.eos)), "a", literal("ab"), canonical=True)


def test_special_tokens_stand_between_texts() -> None:
    vocabulary = split_vocabulary("gpt2")
    marked = Vocabulary.load(split_tokenizer("gpt2"), eos=[])
    grammar = sequence(regex("ab|a"), SpecialToken("<|end|>"), regex("abab|'s"))
    result = generate(HashModel(marked, seed=1), "a", grammar, max_tokens=12, canonical=True)
    place = result.tokens.index(vocabulary.eos[0])
    for part in (result.tokens[:place], result.tokens[place + 1 :]):
        assert list(part) == vocabulary.tokenize(vocabulary.decode(part))


def test_the_search_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = split_vocabulary("gpt2")
    canonical = canonical_tokens(vocabulary)
    token = vocabulary.tokens.index(b"b")
    state = canonical.after(canonical.start, token)
    assert state is not None

    def after_b(limits: Limits) -> Matcher:
        matcher = compile(regex("b[ab]{8}"), vocabulary, limits=limits).matcher()
        assert matcher.accept(token)
        return matcher

    few, many = after_b(Limits(steps=500)), after_b(Limits())
    with pytest.raises(LimitExceeded, match="canonical completion"):
        canonical.can_complete(few, state)
    assert canonical.can_complete(many, state)
    assert canonical.can_complete(many, state, budget=8)
    monkeypatch.setattr("structgen.engine.completion_search._STEPS_PER_TRY", Limits().steps + 1)
    with pytest.raises(LimitExceeded, match="canonical completion"):
        canonical.can_complete(many, state, budget=8)
