"""Positions of a grammar, against the decoding loop and against a matcher that is moved token by token."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from handmade_passes import LETTERS, allowed, compiled, state_of

from structgen.decode import Multinomial, generate
from structgen.decode.speculative.drafter import DraftState, GrammarPosition, allowed_among
from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.errors import LimitExceeded
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
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
    """They go from one chosen token to the next, with the same forced tokens between."""
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
    assert not after_a.allows(0)  # the stop is allowed, but useless
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


PATTERNS = ["(ab|ba){1,4}", "a{3}(b|c)d{2}", "[ab]{2,5}", "(abc|abd)e?", "a+b"]


def continuations(constraint: Constraint, tokens: tuple[int, ...], remaining: int) -> set[int]:
    """The tokens after which the output can still be completed within the budget, EOS included."""
    found = set()
    for token in range(constraint.vocabulary.size):
        matcher = constraint.matcher()
        assert all(matcher.accept(before) for before in tokens)
        if matcher.accept(token):
            is_stop = token in constraint.vocabulary.eos
            needed = 0 if is_stop else matcher.min_tokens()
            if is_stop or (needed is not None and needed <= remaining - 1):
                found.add(token)
    return found


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("most", [3, 6, 40])
def test_positions_are_what_the_grammar_says(ab_vocabulary: Vocabulary, pattern: str, most: int) -> None:
    """Along random outputs the forced tokens are all that may come, and the rest of the mask is right."""
    constraint = compile(regex(pattern), ab_vocabulary)
    if constraint.min_tokens() > most:
        pytest.skip("no string fits the budget")
    random = np.random.default_rng(0)
    for _ in range(10):
        tokens: tuple[int, ...] = ()
        position = GrammarPosition.after(constraint.matcher(), most)
        while position is not None:
            for token in position.forced:
                assert continuations(constraint, tokens, most - len(tokens)) >= {token}
                tokens = (*tokens, token)
            assert position.remaining == most - len(tokens)
            assert set(position.ids.tolist()) == continuations(constraint, tokens, position.remaining)
            assert len(position.ids) > 1
            token = int(random.choice(position.ids))
            following = position.then(token)
            assert position.matcher.history_length == len(tokens)
            if token in ab_vocabulary.eos:
                assert following is None
                break
            tokens, position = (*tokens, token), following


def test_where_only_the_end_is_left_there_is_no_position(ab_vocabulary: Vocabulary) -> None:
    """This includes spent budgets."""
    constraint = compile(regex("(ab|ba)"), ab_vocabulary)
    start = GrammarPosition.after(constraint.matcher(), 2)
    assert start is not None
    assert start.then(ab_vocabulary.tokens.index(b"ab")) is None
    longer = compile(regex("a[ab]{3}"), ab_vocabulary)
    matcher = longer.matcher()
    assert GrammarPosition.after(matcher, 0) is None


def test_the_position_of_an_output_takes_its_mask(ab_vocabulary: Vocabulary) -> None:
    """Blocked tokens are not in it, though the grammar allows them."""
    constraint = compile(regex("[ab]{2}"), ab_vocabulary)
    mask = np.zeros((1, (ab_vocabulary.size + 31) // 32), dtype=np.int32)
    constraint.matcher().fill_mask(mask)
    blocked = ab_vocabulary.tokens.index(b"ab")
    mask[0, blocked // 32] &= ~(1 << blocked % 32)
    position = GrammarPosition.of(DraftState(constraint.matcher(), mask[0], 9, 0), within_budget=True)
    spelled = {ab_vocabulary.tokens[token] for token in position.ids.tolist()}
    assert spelled == {b"a", b"b", b"aa", b"ba", b"bb"}
    assert position.forced == ()
    assert position.remaining == 9


def test_a_limit_ends_a_draft(ab_vocabulary: Vocabulary) -> None:
    """A draft that would need more steps than an output may take is not followed, and raises nothing."""
    whole = compile(regex("[ab]{2,5}"), ab_vocabulary)
    position = GrammarPosition.after(whole.matcher(), 9)
    assert position is not None
    for raising in ("accept", "advance_forced", "fill_mask"):
        matcher: Any = Limited(position.matcher, raising)
        for remaining in (position.remaining, None):
            limited = GrammarPosition(matcher, position.mask, (), remaining)
            assert limited.then(int(position.ids[0])) is None
        assert position.then(int(position.ids[0])) is not None


class Limited:
    """A matcher with one method that reaches a limit."""

    def __init__(self, matcher: Matcher, raising: str) -> None:
        self._matcher = matcher
        self._raising = raising

    def fork(self) -> Limited:
        return Limited(self._matcher.fork(), self._raising)

    def __getattr__(self, name: str) -> Any:
        if name == self._raising:
            raise LimitExceeded("engine", limit="steps", maximum=1)
        return getattr(self._matcher, name)


def test_a_position_offers_more_than_eos() -> None:
    """With several EOS ids, those alone are no choice."""
    vocabulary = Vocabulary([b"a", b"b", b"", b""], eos=[2, 3])
    position = GrammarPosition.after(compile(regex("a|b"), vocabulary).matcher())
    assert position is not None
    assert position.ids.tolist() == [0, 1]
    assert position.then(0) is None


def test_without_a_budget_positions_go_on_beyond_it(ab_vocabulary: Vocabulary) -> None:
    """Tables draft as if the output could go on; the grammar walk cuts at the budget."""
    state = state_of(compile(regex("a[ab]{4}"), ab_vocabulary).matcher(), remaining=1)
    token = ab_vocabulary.tokens.index(b"a")
    after = GrammarPosition.of(state).then(token)
    assert after is not None
    assert after.remaining is None
    assert GrammarPosition.of(state, within_budget=True).then(token) is None
