"""Arguments of another kind, or out of their bounds, and what the engine's methods answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from structgen.engine import Matcher, Vocabulary, compile, fill_mask_trees, fill_masks
from structgen.engine.row_buffer import RowBuffer
from structgen.errors import ArgumentError, VocabularyError
from structgen.frontends.regex import regex

BYTES = Vocabulary([b"", *(bytes([value]) for value in range(256))], eos=[0])
CONSTRAINT = compile(regex("[a-z]{2,8}"), BYTES)
A, B = 98, 99
"""The ids of "a" and "b"."""
HUGE = 10**5000
"""Python refuses to write it in decimal digits."""


def masks(rows: int = 3, kind: Any = np.int32) -> Any:
    return np.full((rows, (BYTES.size + 31) // 32), 7, dtype=kind)


class Index:
    """An int by ``__index__`` alone, as those of numpy and torch are."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


IDS: list[Callable[[Matcher, Any], object]] = [
    lambda matcher, token: matcher.accept(token),
    lambda matcher, token: matcher.validate([A, token]),
    lambda matcher, token: matcher.validate_tree([A, token], [-1, 0]),
    lambda matcher, token: matcher.fill_mask_tree([A, token], [-1, 0], masks()),
    lambda matcher, token: fill_mask_trees([matcher], [([A, token], [-1, 0])], masks()),
    lambda matcher, token: matcher.explain(token),
]
BUDGETS: list[Callable[[Matcher, Any], object]] = [
    lambda matcher, budget: matcher.fill_mask(masks(), budget=budget),
    lambda matcher, budget: matcher.fill_mask_within(masks(), 0, budget),
    lambda matcher, budget: matcher.needs_budget_mask(budget),
    lambda matcher, budget: matcher.completes_within(budget),
    lambda matcher, budget: matcher.advance_forced(budget),
    lambda matcher, budget: fill_masks([matcher], masks(), budget=budget),
    lambda matcher, budget: setattr(matcher, "limit", budget),
    lambda matcher, budget: matcher.allowed_tokens(budget),
]
ROWS: list[Callable[[Matcher, Any], object]] = [
    lambda matcher, row: matcher.fill_mask(masks(), row),
    lambda matcher, row: matcher.fill_mask_within(masks(), row, 9),
    lambda matcher, row: matcher.fill_mask_tree([A], [-1], masks(), row),
]
BITMASKS: list[Callable[[Matcher, Any], object]] = [
    lambda matcher, bitmask: matcher.fill_mask(bitmask),
    lambda matcher, bitmask: matcher.fill_mask_within(bitmask, 0, 9),
    lambda matcher, bitmask: matcher.fill_mask_tree([A], [-1], bitmask),
    lambda matcher, bitmask: fill_masks([matcher], bitmask),
    lambda matcher, bitmask: fill_mask_trees([matcher], [([A], [-1])], bitmask),
    lambda _, bitmask: RowBuffer(bitmask),
]
MATCHERS: list[Callable[[Any], object]] = [
    lambda matchers: fill_masks(matchers, masks()),
    lambda matchers: fill_masks(matchers, masks(), budget=3),
    lambda matchers: fill_mask_trees(matchers, [([A], [-1])], masks()),
    lambda matchers: RowBuffer(masks()).fill(matchers),
]


def said(error: type[Exception], call: Callable[..., object], *arguments: object) -> str:
    """The text of the error that a call raises: a subject, what is wrong, and evidence, in one line."""
    with pytest.raises(error) as raised:
        call(*arguments)
    text = str(raised.value)
    assert "incompatible" not in text
    assert "\n" not in text
    assert ": " in text
    return text


@pytest.fixture
def matcher() -> Matcher:
    """A matcher that has taken one token."""
    matcher = CONSTRAINT.matcher()
    assert matcher.accept(A)
    return matcher


@pytest.mark.parametrize("call", IDS)
@pytest.mark.parametrize("value", ["a", None, 1.5, [B]])
def test_what_is_no_id_is_named(matcher: Matcher, call: Callable[..., object], value: object) -> None:
    """The error says what was found, and the matcher stays where it is."""
    assert "found " in said(ArgumentError, call, matcher, value)
    assert matcher.taken() == [A]


@pytest.mark.parametrize("call", IDS)
def test_ids_that_no_vocabulary_has(matcher: Matcher, call: Callable[..., object]) -> None:
    """The error says which ids there are."""
    for value in (-1, -(2**40), 2**32, 2**70, HUGE):
        text = said(VocabularyError, call, matcher, value)
        assert "is out of range; the vocabulary has 257 tokens; use ids in 0..256" in text
    assert matcher.taken() == [A]


@pytest.mark.parametrize("call", BUDGETS)
def test_counts(matcher: Matcher, call: Callable[..., object]) -> None:
    """Those that are none, and negative ones, are refused; no count is too large."""
    for value in ("3", 1.5, [3]):
        assert f"must be an int; found {'the text' if value == '3' else ''}" in said(
            ArgumentError, call, matcher, value
        )
    for value in (-1, -(2**70), -HUGE):
        assert "; it counts the tokens" in said(ValueError, call, matcher, value)
    for large in (2**31, 2**32, 2**63, 2**64, HUGE, Index(9)):
        call(matcher, large)


@pytest.mark.parametrize("call", ROWS)
def test_rows(matcher: Matcher, call: Callable[..., object]) -> None:
    """A row that is not there is an IndexError, a negative one too."""
    for value in ("0", None, 0.0):
        assert "row must be the index of a row" in said(ArgumentError, call, matcher, value)
    for missing in (-1, 3, 2**64, -HUGE):
        assert said(IndexError, call, matcher, missing).endswith(" of 3")
    call(matcher, Index(1))


@pytest.mark.parametrize("call", BITMASKS)
def test_bitmasks(matcher: Matcher, call: Callable[..., object]) -> None:
    """The error says how an array differs."""
    for bitmask, found in (
        (None, "found None"),
        ([[0] * 9], "found a list"),
        (masks(kind=np.int64), "found int64 of shape [3, 9];"),
        (masks()[0], "found int32 of shape [9];"),
        (masks(9)[::3], "found int32 of shape [3, 9], not contiguous;"),
    ):
        assert found in said(ArgumentError, call, matcher, bitmask)


@pytest.mark.parametrize("call", MATCHERS)
@pytest.mark.parametrize(
    ("matchers", "found"),
    [(None, "found None"), (3, "found 3"), ([None], "None at index 0"), ([CONSTRAINT], "a Constraint at index 0")],
)
def test_what_is_no_list_of_matchers(call: Callable[..., object], matchers: object, found: str) -> None:
    """None in place of a matcher, too: it must not be read."""
    assert found in said(ArgumentError, call, matchers)


def test_an_owner_without_a_matcher() -> None:
    """Its row is not filled."""
    buffer = RowBuffer(masks())
    for owner in (3, CONSTRAINT, None):
        text = said(
            ArgumentError, buffer.fill_owned, {"a": owner or "x"}, ["a"], lambda each: None if each == "x" else each
        )
        assert "matcher_of must return a Matcher; found " in text


def test_other_arguments(matcher: Matcher) -> None:
    """Steps, texts, parents and trees; and a Matcher is made by a Constraint."""
    assert "count must be an int; found 1.0" in said(ArgumentError, matcher.rollback, 1.0)
    assert "the count is -1; " in said(ValueError, matcher.rollback, -1)
    for count in (2, 2**70, HUGE):
        assert "more steps than were taken; the matcher has taken 1" in said(ValueError, matcher.rollback, count)
    for data in ("a", None, 7, bytearray(b"a")):
        assert "data must be bytes; found " in said(ArgumentError, matcher.accept_bytes, data)
    for parents in (None, ["a"], [1.5]):
        assert "parents must be a list of ints" in said(ArgumentError, matcher.validate_tree, [A], parents)
    for trees in (None, [3], [([A],)]):
        assert "trees must be a list of pairs" in said(ArgumentError, fill_mask_trees, [matcher], trees, masks())
    for made in (CONSTRAINT, None, 3):
        assert "call constraint.matcher()" in said(ArgumentError, Matcher, made)
    assert matcher.taken() == [A]


def test_ids_by_index(matcher: Matcher) -> None:
    """Ints of other libraries are ids, in lists too."""
    assert matcher.validate([Index(B), np.int64(B)]) == 2  # type: ignore[list-item]
    assert matcher.validate(np.array([B, B])) == 2  # type: ignore[arg-type]
    assert matcher.validate_tree([Index(B)], [Index(-1)]) == [True]  # type: ignore[list-item]
    assert matcher.accept(np.int64(B))
    assert matcher.accept(Index(B))
