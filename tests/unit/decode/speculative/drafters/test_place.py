"""Places, against a matcher that is moved token by token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from structgen.decode.speculative.drafter import DraftState
from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.errors import LimitExceeded
from structgen.frontends.regex import regex
from structgen.methods.drafters.model_growth import DraftPosition

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
def test_places_are_what_the_grammar_says(ab_vocabulary: Vocabulary, pattern: str, most: int) -> None:
    """Along random outputs: what is forced is all that may come, and the rest of the mask is right."""
    constraint = compile(regex(pattern), ab_vocabulary)
    if constraint.min_tokens() > most:
        pytest.skip("no member fits the budget")
    random = np.random.default_rng(0)
    for _ in range(10):
        tokens: tuple[int, ...] = ()
        place = DraftPosition.after(constraint.matcher(), most)
        while place is not None:
            for token in place.forced:
                assert continuations(constraint, tokens, most - len(tokens)) >= {token}
                tokens = (*tokens, token)
            assert place.remaining == most - len(tokens)
            assert set(place.ids.tolist()) == continuations(constraint, tokens, place.remaining)
            assert len(place.ids) > 1
            token = int(random.choice(place.ids))
            following = place.then(token)
            assert place.matcher.history_length == len(tokens)
            if token in ab_vocabulary.eos:
                assert following is None
                break
            tokens, place = (*tokens, token), following


def test_where_only_the_end_is_left_there_is_no_place(ab_vocabulary: Vocabulary) -> None:
    """Also where the budget is spent."""
    constraint = compile(regex("(ab|ba)"), ab_vocabulary)
    start = DraftPosition.after(constraint.matcher(), 2)
    assert start is not None
    assert start.then(ab_vocabulary.tokens.index(b"ab")) is None
    longer = compile(regex("a[ab]{3}"), ab_vocabulary)
    matcher = longer.matcher()
    assert DraftPosition.after(matcher, 0) is None


def test_the_place_of_an_output_takes_its_mask(ab_vocabulary: Vocabulary) -> None:
    """Tokens that are blocked, though the grammar allows them, are not in it."""
    constraint = compile(regex("[ab]{2}"), ab_vocabulary)
    mask = np.zeros((1, (ab_vocabulary.size + 31) // 32), dtype=np.int32)
    constraint.matcher().fill_mask(mask)
    blocked = ab_vocabulary.tokens.index(b"ab")
    mask[0, blocked // 32] &= ~(1 << blocked % 32)
    place = DraftPosition.of(DraftState(constraint.matcher(), mask[0], 9, 0))
    spelled = {ab_vocabulary.tokens[token] for token in place.ids.tolist()}
    assert spelled == {b"a", b"b", b"aa", b"ba", b"bb"}
    assert place.forced == ()
    assert place.remaining == 9


def test_a_limit_ends_a_draft(ab_vocabulary: Vocabulary) -> None:
    """What would take more steps than an output may is not followed, and raises nothing."""
    whole = compile(regex("[ab]{2,5}"), ab_vocabulary)
    place = DraftPosition.after(whole.matcher(), 9)
    assert place is not None
    for raising in ("accept", "advance_forced", "fill_mask"):
        matcher: Any = Limited(place.matcher, raising)
        limited = DraftPosition(matcher, (), place.mask, place.ids, place.remaining)
        assert limited.then(int(place.ids[0])) is None
        assert place.then(int(place.ids[0])) is not None


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
