"""Ctrl-C ends long work at once, and what was at work goes on to give right results.

The signal is pending when the native call begins: a chain of C functions runs no Python code in between, which would
handle it.  That the work was not done is seen by the engine's own count of steps.
"""

from __future__ import annotations

import _thread
import random
from collections.abc import Callable
from functools import partial
from operator import call
from typing import Any

import numpy as np
import pytest
from structgen_kernels import _native

import structgen as sg
from structgen.engine.lowering import lower, native_limits, shared_engine
from structgen.engine.mask import empty_masks
from structgen.grammar.flattening import flatten
from structgen.models import HashModel
from structgen.potentials import Hypothesis, Potential

WIDE = sg.regex("|".join(f".*{chr(97 + i % 26)}{chr(97 + i // 26)}.*cd{i}.*" for i in range(110)))
NARROW = sg.regex(".*a.{7}") & sg.regex(".*b.{6}c.*")
MANY = sg.json_schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(6000)}})
EVERY = 250_000
"""After so many steps the engine asks for signals."""


def vocabulary() -> sg.Vocabulary:
    """A vocabulary whose engine nothing has been compiled in yet."""
    pairs = [bytes([one, other]) for one in range(97, 123) for other in range(97, 123)]
    name = f"<{random.random()}>"
    return sg.Vocabulary([*(bytes([value]) for value in range(256)), *pairs, b"", b""], eos=[932], special={933: name})


def interrupted(work: Callable[[], object]) -> None:
    """Do work in C with a signal pending."""
    with pytest.raises(KeyboardInterrupt):
        list(map(call, (_thread.interrupt_main, work)))


def steps(made: sg.Vocabulary) -> int:
    """The steps of the last call of the engine of a vocabulary."""
    return shared_engine(made).native.statistics["steps"]


def mask(state: sg.Matcher) -> bytes:
    """The mask of the next token."""
    masks = empty_masks(state.constraint.vocabulary)
    state.fill_mask(masks)
    return masks.tobytes()


def test_a_mask_can_be_interrupted() -> None:
    """The matcher then makes the right mask."""
    whole = sg.compile(WIDE, vocabulary()).matcher()
    right, needed = mask(whole), steps(whole.constraint.vocabulary)
    state = sg.compile(WIDE, vocabulary()).matcher()
    masks = empty_masks(state.constraint.vocabulary)
    interrupted(partial(state.fill_mask, masks))
    assert EVERY <= steps(state.constraint.vocabulary) < 2 * EVERY < needed
    assert mask(state) == right
    assert state.accept_bytes(b"abcd0") == 5


def test_a_batch_of_masks_can_be_interrupted() -> None:
    """Nobody begins another mask, in any thread; the next call fills all."""
    whole = sg.compile(WIDE, vocabulary()).matcher()
    right = mask(whole)
    states = [sg.compile(WIDE, vocabulary()).matcher() for _ in range(12)]
    masks = np.zeros((12, len(right) // 4), np.int32)
    interrupted(partial(_native.fill_masks, states, masks))
    assert sum(row.tobytes() == right for row in masks) < 6
    few = states[:2]
    sg.fill_masks(few, masks)
    assert [row.tobytes() for row in masks[:2]] == [right, right]


@pytest.mark.parametrize("grammar", [NARROW, MANY], ids=["an intersection", "many members"])
def test_compiling_can_be_interrupted(grammar: sg.Grammar) -> None:
    """The vocabulary then compiles the same grammar, and others, as one that was never interrupted does."""
    other = vocabulary()
    (whole, *_), place = lower(grammar, shared_engine(other), other, sg.Limits())
    assert whole is not None
    needed = place.native.statistics["terms"]
    mine = vocabulary()
    engine = shared_engine(mine)
    flat = flatten(grammar, engine.lowered, mine, sg.Limits().grammar_nodes, None)
    interrupted(partial(_native.couple, engine.native, flat, mine.eos, native_limits(sg.Limits()), is_own=True))
    assert engine.native.statistics["terms"] < 0.9 * needed
    for each in (sg.regex("[ab]+"), grammar):
        one, two = (sg.compile(each, place).matcher() for place in (mine, other))
        assert (one.min_tokens(), mask(one)) == (two.min_tokens(), mask(two))
        for _ in range(12):
            allowed = two.allowed_tokens(1000)
            if not allowed:
                break
            assert one.accept(allowed[-1])
            assert two.accept(allowed[-1])
            assert mask(one) == mask(two)


def test_reading_a_long_text_can_be_interrupted() -> None:
    """The state is as before."""
    state = sg.compile(sg.regex("(?s).*"), vocabulary()).matcher()
    for read in (_native.Matcher.accept_bytes, _native.Matcher.validate):
        subject: Any = b"a" * (3 * EVERY) if read is _native.Matcher.accept_bytes else [97] * (3 * EVERY)
        interrupted(partial(read, state, subject))
        assert state.history_length == 0
    assert state.accept_bytes(b"abc") == 3


class Interrupting(Potential):
    """Interrupts at the n-th question, and counts them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.asked = 0

    def complete(self, hypothesis: Hypothesis) -> float:
        """Every output weighs the same."""
        return self.prefix(hypothesis)

    def prefix(self, hypothesis: Hypothesis) -> float:
        """So does every prefix."""
        self.asked += 1
        if self.asked == self.at:
            _thread.interrupt_main()
        return 0.0


@pytest.mark.parametrize("kind", ["generate", "sample"])
def test_generation_and_sampling_can_be_interrupted(kind: str) -> None:
    """They end within the token or round at hand; the model and the settings then give what they give otherwise."""
    lm = HashModel(vocabulary(), seed=3)
    grammar, sampler = sg.regex("[a-z]{40}"), sg.samplers.SMC(8)

    def run(potential: Interrupting) -> Any:
        if kind == "generate":
            return sg.generate(lm, "x", grammar, max_tokens=60, potentials=[potential]).tokens
        return [
            each.result.tokens for each in sg.sample(lm, "x", grammar, sampler=sampler, potentials=[potential]).samples
        ]

    whole = Interrupting(0)
    right = run(whole)
    cut = Interrupting(whole.asked // 2)
    with pytest.raises(KeyboardInterrupt):
        run(cut)
    assert cut.asked <= cut.at + 1
    assert run(Interrupting(0)) == right
