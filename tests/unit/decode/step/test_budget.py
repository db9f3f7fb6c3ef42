"""Where a budget decided: against enumeration, and against outputs with larger budgets."""

from __future__ import annotations

import random
import re
from itertools import product

import pytest

from structgen.decode import Greedy, Multinomial, generate
from structgen.decode.step.result import BudgetWatch
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"ba", b"aab"], eos=[0])
PATTERNS = ["(ab)*", "a*b", "[ab]*", "(aab|b){1,3}", "a(b|ab)?", "(a|b){2,4}b"]


def _sequences(pattern: str, longest: int) -> set[tuple[int, ...]]:
    """All token sequences of up to ``longest`` tokens whose text matches."""
    texts = VOCABULARY.tokens
    return {
        tokens
        for length in range(longest + 1)
        for tokens in product(range(1, 6), repeat=length)
        if re.fullmatch(pattern, b"".join(texts[token] for token in tokens).decode())
    }


@pytest.mark.parametrize("pattern", PATTERNS)
def test_cuts_are_those_of_enumeration(pattern: str) -> None:
    """A position is cut if some token leads to a longer sequence and to none within the budget."""
    constraint = compile(regex(pattern), VOCABULARY)
    everything = _sequences(pattern, 6)
    for budget in range(constraint.min_tokens(), 4):
        within = {tokens for tokens in everything if len(tokens) <= budget}
        starts = {tokens[:length] for tokens in within for length in range(1, budget + 1) if length <= len(tokens)}
        longer = {tokens[:length] for tokens in everything for length in range(1, len(tokens) + 1)}
        watch = BudgetWatch(constraint, budget)
        for tokens in sorted(within):
            watch.truncate(0)
            expected = None
            for position in range(len(tokens) + 1):
                matcher = constraint.matcher()
                assert all(matcher.accept(token) for token in tokens[:position])
                before = tokens[:position]
                excluded = [
                    token for token in range(1, 6) if (*before, token) in longer and (*before, token) not in starts
                ]
                forced = matcher.forced_tokens()[:1]
                if (set(forced) & set(excluded)) if forced else excluded:
                    expected = position
                    break
            assert watch.cut_at(tokens, is_complete=True) == expected, (tokens, budget)
            assert watch.cut_at(tokens, is_complete=False) == (None if expected == len(tokens) else expected)


def test_tokens_that_are_removed_are_forgotten() -> None:
    """The answer depends on the tokens that are left alone."""
    constraint = compile(regex("(aab|b){1,3}|a*b"), VOCABULARY)
    watch = BudgetWatch(constraint, 4)
    sequences = sorted(tokens for tokens in _sequences("(aab|b){1,3}|a*b", 4))
    rng = random.Random(1)
    before: tuple[int, ...] = ()
    for _ in range(200):
        tokens = rng.choice(sequences)[: rng.randint(0, 4)]
        watch.truncate(
            next((at for at, pair in enumerate(zip(before, tokens, strict=False)) if pair[0] != pair[1]), len(tokens))
        )
        before = tokens
        assert watch.cut_at(tokens, is_complete=False) == BudgetWatch(constraint, 4).cut_at(tokens, is_complete=False)


SCHEMAS = [
    {"type": "array", "items": {"enum": ["one", "two", "three"]}, "maxItems": 6},
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name"],
        "additionalProperties": False,
    },
    {"type": "string", "maxLength": 20},
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=["array", "object", "string"])
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=["greedy", "multinomial"])
def test_outputs_are_equal_up_to_the_cut(schema: object, sampler: Greedy | Multinomial) -> None:
    """A larger budget changes nothing before the cut, and nothing at all without a cut."""
    pieces = [bytes([byte]) for byte in range(256)] + [b'"one"', b'"two", "', b"ee", b'{"name": ', b'"}', b'", "']
    vocabulary = Vocabulary([b"", *pieces], eos=[0])
    constraint = compile(json_schema(schema, whitespace="single"), vocabulary)
    cuts = 0
    for seed in range(16):
        model = HashModel(vocabulary, seed=seed) if seed else HashModel(vocabulary)
        budget = constraint.min_tokens() + seed
        short = generate(model, "a", constraint, max_tokens=budget, sampler=sampler, seed=seed)
        long = generate(model, "a", constraint, max_tokens=80, sampler=sampler, seed=seed)
        end = len(short.tokens) if short.cut_at is None else short.cut_at
        assert short.tokens[:end] == long.tokens[:end]
        if short.cut_at is None:
            assert short.tokens == long.tokens
        assert short.finish_reason == ("stop" if short.cut_at is None else "length")
        cuts += short.cut_at is not None
    assert cuts >= 4
