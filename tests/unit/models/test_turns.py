"""Turns of the threads of a batch."""

from __future__ import annotations

import sys
from threading import Thread

import pytest

from structgen.models import turns
from structgen.models.turns import Turns

NEEDS_LOCK = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this interpreter has no lock of its own"
)


@NEEDS_LOCK
def test_threads_go_on_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits until the first has ended its turn."""
    monkeypatch.setattr(turns, "_LONGEST_S", 60.0)
    shared, events = Turns(), []
    first = shared.take()
    assert first is not None

    def second() -> None:
        turn = shared.take()
        assert turn is not None
        events.append("second")
        turn.release()

    threads = [Thread(target=second) for _ in range(3)]
    for thread in threads:
        thread.start()
    events.append("first")
    first.release()
    for thread in threads:
        thread.join()
    assert events == ["first", "second", "second", "second"]


@NEEDS_LOCK
def test_a_thread_that_keeps_its_turn_loses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on, and what it releases later gives nobody a second turn."""
    monkeypatch.setattr(turns, "_LONGEST_S", 0.001)
    shared = Turns()
    kept = shared.take()
    second = shared.take()
    assert kept is not None
    assert second is not None
    assert second is not kept
    kept.release()
    assert second.locked()
    second.release()
    third = shared.take()
    assert third is second


def test_without_an_interpreter_lock_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads choose at the same time there."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    shared = Turns()
    assert shared.take() is None
    assert shared.take() is None
