"""Ids of masks: equal ids mean equal masks, however much the engine forgets."""

from __future__ import annotations

import random

import numpy as np

import structgen as sg
from structgen.engine import Matcher, Vocabulary, compile

# Equal vocabularies share an engine: with a unique token these tests have an engine of their own.
BYTES = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b"\x00 of these tests"], eos=[0])


def row_of(matcher: Matcher) -> bytes:
    """The tokens that it allows."""
    row = np.zeros((1, 9), dtype=np.int32)
    matcher.fill_mask(row)
    return row.tobytes()


def test_equal_numbers_are_equal_masks_when_the_engine_forgets() -> None:
    # Constraints of one vocabulary share the states, and an engine that forgets uses their numbers again.
    patterns = ("(a|b)*c[0-9]{3}|x[a-z]{2,150}", "y[0-9a-f]{20,160}z", "(k[l-n]{1,70}){2}")
    constraints = [compile(sg.regex(pattern), BYTES, limits=sg.Limits(states=250)) for pattern in patterns]
    chance = random.Random(1)
    by_mask_id: dict[tuple[int, int | None], bytes] = {}
    epochs: set[tuple[int, int]] = set()
    for count in range(40):
        which = count % len(constraints)
        matcher = constraints[which].matcher()
        while not matcher.is_terminated:
            row, number = row_of(matcher), matcher.mask_id
            assert number is not None
            assert by_mask_id.setdefault((which, number), row) == row
            assert matcher.state_id == number
            epochs.add((which, number >> 32))
            # It ends late, so that many states are made.
            allowed = matcher.allowed_tokens(300)
            assert matcher.accept(chance.choice(allowed) if allowed and chance.random() < 0.98 else 0) or allowed
        assert by_mask_id.setdefault((which, matcher.mask_id), row_of(matcher)) == bytes(36)
    # The first has an engine of its own when it has used its states in the shared one, and that engine forgets.
    assert sum(which == 0 for which, _ in epochs) > 2, "no engine has forgotten anything"
    assert {epoch for which, epoch in epochs if which != 0} < {epoch for which, epoch in epochs if which == 0}


def test_there_is_none_where_what_was_read_decides() -> None:
    schema = {"type": "array", "items": {"type": "string", "pattern": "^[ab]$"}, "uniqueItems": True}
    constraint = compile(sg.json_schema(schema, whitespace="compact"), BYTES)
    one, other = constraint.matcher(), constraint.matcher()
    assert one.accept_bytes(b'["a","') == other.accept_bytes(b'["b","') == 6
    assert one.state_id == other.state_id
    assert row_of(one) != row_of(other)
    assert one.mask_id is None
    assert other.mask_id is None
