"""Tokens whose transitions are known are accepted without giving up the GIL."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="there is no GIL to give up"
)

VOCABULARY = Vocabulary([bytes([byte]) for byte in range(256)] + [b"</s>"], eos=(256,))
TEXT = b'{"name": "a long text of a few words", "age": 1234}'
REPEATED = 1_000
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}


@contextmanager
def counting() -> Iterator[list[int]]:
    """Yield the count of a thread that counts whenever it gets the GIL, which nobody has to give up."""
    counted, ends = [0], threading.Event()

    def count() -> None:
        while not ends.is_set():
            counted[0] += 1
            time.sleep(0.0002)

    before = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    thread.start()
    sys.setswitchinterval(1000)
    time.sleep(0.05)  # a thread that waits now does so for the interval that was set
    try:
        yield counted
    finally:
        ends.set()
        sys.setswitchinterval(before)
        thread.join()


def test_known_tokens_keep_the_gil() -> None:
    matcher = compile(json_schema(SCHEMA), VOCABULARY).matcher()
    assert all(map(matcher.accept, TEXT))
    with counting() as counted:
        before = counted[0]
        for _ in range(REPEATED):
            matcher.reset()
            for byte in TEXT:
                matcher.accept(byte)
            matcher.accept(ord("x"))
            matcher.accept(256)
        after_known = counted[0]
        while counted[0] == after_known:
            matcher.live_bytes()  # gives it up
    assert matcher.is_terminated
    assert after_known == before


def test_tokens_in_other_states_are_accepted_the_same() -> None:
    constraint = compile(json_schema(SCHEMA), VOCABULARY)
    matcher, again = constraint.matcher(), constraint.matcher()
    for byte in TEXT:
        assert matcher.accept(0) is False
        assert matcher.accept(byte) is again.accept(byte) is True
        assert matcher.state_id == again.state_id
    assert matcher.accept(256)
    assert not matcher.accept(256)
    matcher.rollback(3)
    assert [matcher.accept(byte) for byte in b"4}"] == [True, True]
    assert matcher.is_accepting
