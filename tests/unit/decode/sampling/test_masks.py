"""Masks are cached where they depend on the state alone."""

from __future__ import annotations

import json

import pytest
from function_model import FunctionModel

import structgen as sg
from structgen.decode.sampling.branch import MaskCache
from structgen.engine import Matcher, Vocabulary, compile

BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
PAIR = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[ab]$"},
    "uniqueItems": True,
    "minItems": 2,
    "maxItems": 2,
}


def after(text: bytes) -> Matcher:
    """A matcher that has read a prefix of a pair."""
    matcher = compile(sg.json_schema(PAIR, whitespace="compact"), BYTES).matcher()
    assert matcher.accept_bytes(text) == len(text)
    return matcher


def test_values_that_must_differ_are_no_part_of_the_state() -> None:
    masks = MaskCache(BYTES)
    for text, taken, left in ((b'["a","', b"a", b"b"), (b'["b","', b"b", b"a")):
        matcher = after(text)
        allowed = {BYTES.tokens[token] for token in masks.allowed(matcher, 30)}
        assert left in allowed
        assert taken not in allowed
        assert not masks.knows(matcher, 30)


def test_other_states_are_kept() -> None:
    masks = MaskCache(BYTES)
    matcher = compile(sg.regex("[ab]{3}"), BYTES).matcher()
    masks.allowed(matcher, 30)
    masks.allowed(matcher.fork(), 29)
    assert masks.knows(matcher, 28)
    assert masks.filled == 1


@pytest.mark.parametrize("sampler", [sg.samplers.SMC(particles=16), sg.samplers.BestOf(8)], ids=["smc", "best_of"])
def test_samplers_write_values_that_differ(sampler: sg.samplers.SMC | sg.samplers.BestOf) -> None:
    def distribution(text: bytes) -> dict[bytes, float]:
        return {b"a": 0.5, b"b": 0.5} if text.endswith(b'"') else {b'"': 0.7, b",": 0.2, b"]": 0.1}

    constraint = compile(sg.json_schema(PAIR, whitespace="compact"), BYTES)
    sampled = sg.sample(FunctionModel(BYTES, distribution), "a", constraint, sampler=sampler, max_tokens=20, seed=1)
    for sample in sampled.samples:
        assert sorted(json.loads(sample.result.text)) == ["a", "b"]
