"""Thoughts of few tokens before answers without repetition, written by every kind of sampler."""

from __future__ import annotations

import json

import pytest
from bpe_vocabularies import bpe_vocabulary
from result_equality import assert_alike

from structgen.decode import Greedy, generate
from structgen.engine import compile
from structgen.frontends.chat import answer, think
from structgen.frontends.json_schema import json_schema
from structgen.grammar.nodes import Budget
from structgen.models.toy.hash import HashModel
from structgen.samplers import AWRS, SMC

SCHEMA = {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "minItems": 2}
TOKENS = bpe_vocabulary("bytes")
RECORD = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a", "b"]}


@pytest.mark.parametrize(
    "sampler", [None, Greedy(), SMC(particles=2), AWRS()], ids=["sampled", "greedy", "smc", "awrs"]
)
def test_a_thought_before_an_answer(sampler: object) -> None:
    """The answer is valid, the thought keeps to its budget, and the whole to the output's budget."""
    constraint = compile(think(20) + answer(SCHEMA), TOKENS)
    for seed, spare in ((0, 0), (3, 60)):
        most = constraint.min_tokens() + spare
        result = generate(HashModel(TOKENS, seed=seed), "p", constraint, max_tokens=most, seed=seed, sampler=sampler)  # type: ignore[arg-type]
        assert len(result.tokens) <= most
        thought, _, text = result.text.removeprefix("<think>").partition("</think>")
        items = json.loads(text)
        assert len(items) >= 2
        assert len(set(items)) == len(items)
        assert set(items) <= {1, 2, 3}
        end = len(b"<think>" + thought.encode())
        assert number_of_tokens(result.tokens, len(b"<think>"), end) <= 20


def number_of_tokens(tokens: list[int] | tuple[int, ...], start: int, end: int) -> int:
    """The number of tokens that hold a byte of a part."""
    count = position = 0
    for token in tokens:
        after = position + len(TOKENS.tokens[token])
        count += position < end and after > start
        position = after
    return count


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
def test_drafts_change_nothing(seed: int) -> None:
    """Outputs are the same with and without drafts, also with a budget for the whole output."""
    for grammar in (think(20) + answer(SCHEMA), Budget(json_schema(RECORD), tokens=16)):
        constraint = compile(grammar, TOKENS)
        for most in (constraint.min_tokens() + 2, 50):
            model = HashModel(TOKENS, seed=seed)
            plain = generate(model, "p", constraint, max_tokens=most, seed=seed, drafter=None)
            assert_alike(plain, generate(model, "p", constraint, max_tokens=most, seed=seed, drafter="auto"))
            if isinstance(grammar, Budget):
                assert number_of_tokens(plain.tokens, 0, len(plain.text.encode())) <= 16
