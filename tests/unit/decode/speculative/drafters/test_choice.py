"""Positions of a grammar as draft tokens come to them, against the loop that takes tokens."""

from __future__ import annotations

import random

import numpy as np
import pytest
from handmade_passes import LETTERS, allowed, compiled, state_of

from structgen.decode import Multinomial, generate
from structgen.decode.speculative.drafters.table_growth import GrammarPosition, allowed_among
from structgen.engine import Vocabulary
from structgen.frontends.json_schema import json_schema
from structgen.models.toy.hash import HashModel

BYTES = Vocabulary([bytes([byte]) for byte in range(256)] + [b'": ', b', "', b"true", b""], eos=[259])
RECORD = {
    "type": "object",
    "properties": {"name": {"enum": ["anna", "anton", "bert"]}, "size": {"type": "integer"}, "on": {"type": "boolean"}},
    "required": ["name", "size", "on"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(8))
def test_choices_lie_where_the_loop_chooses(seed: int) -> None:
    """From one chosen token to the next one, with the same tokens forced in between."""
    grammar = json_schema(RECORD)
    model = HashModel(BYTES, seed=seed)
    result = generate(model, "x", grammar, max_tokens=60, sampler=Multinomial(), seed=seed, drafter=None)
    steps = [step for step in result.steps if step.token is not None]
    first = next(index for index, step in enumerate(steps) if not step.forced)
    matcher = compiled(grammar, BYTES).matcher()
    assert all(matcher.accept(step.token) for step in steps[:first] if step.token is not None)
    choice: GrammarPosition | None = GrammarPosition.of(state_of(matcher))
    place = first
    while choice is not None:
        token = result.tokens[place]
        assert choice.allows(token)
        assert {other for other in range(259) if choice.allows(other)} == allowed(choice.matcher) - {259}
        choice = choice.then(token)
        place += 1
        if choice is not None:
            assert choice.forced == result.tokens[place : place + len(choice.forced)]
            assert all(step.forced for step in steps[place : place + len(choice.forced)])
            place += len(choice.forced)
            if place == len(result.tokens):
                break  # the stop is chosen here
            assert not steps[place].forced


def test_nothing_follows_what_is_refused_or_ends() -> None:
    choice = GrammarPosition.of(state_of(compiled("(a|b)c?").matcher()))
    after_a = choice.then(1)
    assert after_a is not None
    assert choice.then(3) is None
    assert choice.then(0) is None
    assert not after_a.allows(0)  # the stop is allowed, and of no use
    assert after_a.allows(3)
    assert after_a.then(3) is None


def test_many_tokens_are_asked_about_at_once() -> None:
    rng = random.Random(0)
    bits = [rng.random() < 0.5 for _ in range(100)]
    words = np.zeros(4, dtype=np.uint32)
    for token, bit in enumerate(bits):
        words[token >> 5] |= np.uint32(bit << (token & 31))
    mask = words.view(np.int32)
    assert allowed_among(mask, np.arange(100)).tolist() == bits
    assert allowed_among(np.stack([mask, ~mask]), np.array([[3, 31, 99], [3, 31, 99]])).tolist() == [
        [bits[3], bits[31], bits[99]],
        [not bits[3], not bits[31], not bits[99]],
    ]
    assert LETTERS.size < 32
