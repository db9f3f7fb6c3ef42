"""Rows in a buffer that stays are the masks that each matcher makes by itself."""

import gc
import random
from typing import Any
from weakref import ref

import numpy as np
import pytest

import structgen as sg
from structgen.engine.mask import allowed_ids, empty_masks, mask_width
from structgen.engine.row_buffer import RowBuffer
from structgen.errors import ArgumentError

WORDS = [b"the", b" quick", b'":', b'", "', b"name", b'"', b"12", b"\xc3\xa9", b"true", b"0.5", b"a,b"]
VOCABULARY = sg.Vocabulary(
    [*(bytes([value]) for value in range(256)), *WORDS, b"", b""], eos=[267], special={268: "<turn>"}
)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer"}, "tags": {"type": "array"}},
    "required": ["name"],
}
DISTINCT = {"type": "array", "items": {"type": "string", "maxLength": 3}, "uniqueItems": True}


def _constraints(limits: sg.Limits) -> list[sg.Constraint]:
    found = [sg.json_schema(SCHEMA), sg.json_schema(DISTINCT), sg.regex("[a-z ]{3,40}"), sg.select(["the", "then"])]
    vocabularies = [VOCABULARY, VOCABULARY, VOCABULARY.with_eos([267, 268]), VOCABULARY]
    pairs = zip(found, vocabularies, strict=True)
    return [sg.compile(grammar, vocabulary, limits=limits) for grammar, vocabulary in pairs]


def _own(matcher: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
    row = empty_masks(VOCABULARY)
    if matcher.is_terminated:
        row[:] = -1
        return row[0]
    left = None if matcher.limit is None else matcher.limit - matcher.history_length
    matcher.fill_mask(row, budget=left)
    return row[0]


LIMITS = {"few rows": sg.Limits(cache_bytes=2_000), "few states": sg.Limits(states=400), "usual": sg.Limits()}


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_rows_are_the_masks_of_the_matchers(limits: sg.Limits) -> None:
    """Along random texts, with and without limits, as answers end and others take their rows, and rows are dropped."""
    numbers = random.Random(4)
    constraints = _constraints(limits)
    rows = empty_masks(VOCABULARY, 6)
    buffer = RowBuffer(rows)
    matchers: list[Any] = []
    left_to_the_caller = 0
    for _ in range(250):
        while len(matchers) < numbers.choice([4, 5, 6]):
            made = numbers.choice(constraints).matcher()
            made.limit = numbers.choice([None, made.constraint.min_tokens() + numbers.randrange(12)])
            matchers.append(made)
        numbers.shuffle(matchers)
        left = buffer.fill(matchers)
        for row, matcher in enumerate(matchers):
            if row in left:
                assert matcher.limit == matcher.history_length
                left_to_the_caller += 1
            else:
                assert np.array_equal(rows[row], _own(matcher)), (row, matcher.taken())
        for matcher in matchers:
            if not matcher.is_terminated:
                assert matcher.accept(numbers.choice(allowed_ids(_own(matcher)).tolist()))
        matchers = [each for each in matchers if not each.is_terminated or numbers.random() < 0.5]
    assert left_to_the_caller


def test_a_row_that_was_written_by_others_is_written_again() -> None:
    """After ``forget``; until then nobody may write."""
    matcher = _constraints(sg.Limits())[0].matcher()
    rows = empty_masks(VOCABULARY)
    buffer = RowBuffer(rows)
    assert buffer.fill([matcher]) == []
    expected = rows.copy()
    rows[:] = 7
    buffer.forget()
    buffer.fill([matcher])
    assert np.array_equal(rows, expected)


class _Owner:
    """What a row belongs to."""

    def __init__(self, matcher: Any) -> None:
        self.matcher = matcher


def test_the_matcher_of_an_owner_is_asked_for_once() -> None:
    """Also where an owner has the key of another; owners without a row are let go."""
    constraint = _constraints(sg.Limits())[3]
    owners = {"a": _Owner(constraint.matcher()), "b": _Owner(constraint.matcher())}
    assert owners["b"].matcher.accept(256)
    rows, asked = empty_masks(VOCABULARY, 2), []
    buffer = RowBuffer(rows)

    def matcher_of(owner: _Owner) -> Any:
        asked.append(owner)
        return owner.matcher

    for keys in (["a", "b"], ["a", "b"], ["b", "a"]):
        assert buffer.fill_owned(owners, keys, matcher_of) == []
        for row, key in enumerate(keys):
            assert np.array_equal(rows[row], _own(owners[key].matcher))
    assert len(asked) == 4
    owners["a"] = _Owner(owners["b"].matcher)
    asked.clear()
    buffer.fill_owned(owners, ["b", "a"], matcher_of)
    assert asked == [owners["a"]]
    assert np.array_equal(rows[0], rows[1])
    asked.clear()
    gone = ref(owners.pop("a"))
    buffer.fill_owned(owners, ["b"], matcher_of)
    gc.collect()
    assert gone() is None


def test_what_does_not_fit_is_refused() -> None:
    """Nothing is written then."""
    matcher = _constraints(sg.Limits())[0].matcher()
    rows = empty_masks(VOCABULARY)
    buffer = RowBuffer(rows)
    with pytest.raises(IndexError, match="2 rows of a buffer that has 1"):
        buffer.fill([matcher, matcher])
    with pytest.raises(IndexError, match="2 rows"):
        buffer.fill_owned({"a": matcher}, ["a", "a"], lambda owner: owner)
    with pytest.raises(KeyError, match="b"):
        buffer.fill_owned({"a": matcher}, ["b"], lambda owner: owner)
    with pytest.raises(ArgumentError, match="must return a Matcher; found 3"):
        buffer.fill_owned({"a": 3}, ["a"], lambda owner: owner)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match=f"have 3 words; .* = {mask_width(VOCABULARY.size)}"):
        RowBuffer(np.zeros((1, 3), dtype=np.int32)).fill([matcher])
    with pytest.raises(TypeError):
        RowBuffer(np.zeros((1, 9), dtype=np.int64))  # type: ignore[arg-type]
    assert not rows.any()


def test_a_callable_that_changes_the_keys_is_refused() -> None:
    """Rather than read beyond them."""
    matcher, keys = _constraints(sg.Limits())[0].matcher(), ["a", "a"]

    def matcher_of(owner: Any) -> Any:
        keys.clear()
        return owner

    with pytest.raises(IndexError):
        RowBuffer(empty_masks(VOCABULARY, 2)).fill_owned({"a": matcher}, keys, matcher_of)
