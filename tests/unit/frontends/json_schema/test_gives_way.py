"""The native planner, the flattening and the reader of JSON give up the GIL while they work."""

from __future__ import annotations

import json
import signal
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest
from structgen_kernels import _native

from structgen.frontends.json_schema import JsonPolicy
from structgen.frontends.json_schema.native import DeferredGrammar, setting_of
from structgen.grammar.flattening import flatten, untrack
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Choice, Literal, Sequence
from structgen.grammar.nodes.description import Described

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no interval timers")

WITH_GIL = pytest.mark.skipif(
    bool(sysconfig.get_config_var("Py_GIL_DISABLED")), reason="free-threaded Python tracks all objects"
)
MOST_RUNS = 200
"""Of a native call of some milliseconds, within which the timer may not tick."""
LIMITS = Limits(grammar_nodes=1 << 30, steps=1 << 50)


def plan() -> Callable[[], object]:
    simple = setting_of(JsonPolicy(), LIMITS).simple
    assert simple is not None
    members = {f"n{at}": {"anyOf": [{"const": at}, {"enum": ["a", at + 1]}]} for at in range(40_000)}
    text = json.dumps({"type": "object", "properties": members})

    def run() -> object:
        planned = simple.plan(text)
        assert planned is not None
        return planned

    return run


def flattened() -> Callable[[], object]:
    parts = [Sequence([Literal(b"%d" % at), Choice([Literal(b"a%d" % at), Literal(b"b")])]) for at in range(100_000)]
    term = Choice(parts)
    return lambda: flatten(term, {}, None, 1 << 30)


def flattened_natively() -> Callable[[], object]:
    planned, limits = plan()(), LIMITS
    assert isinstance(planned, tuple)
    grammar = Described.deferred(
        planned[0], DeferredGrammar({}, setting_of(JsonPolicy(), limits), None, planned[1], None)
    )
    return lambda: flatten(grammar, {}, None, 1 << 30)


def untracked() -> Callable[[], object]:
    def run() -> object:
        return untrack(Choice([Choice([Literal(b"%d" % at)]) for at in range(100_000)]))

    return run


def read() -> Callable[[], object]:
    text = json.dumps([{"a": [at, str(at)]} for at in range(200_000)])
    return lambda: _native.read_json(text, 100, float)


@contextmanager
def ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call ``tick`` within native calls, for each millisecond of the process, which the system rounds up to a few.

    The native code gives way by calling a function of Python: what comes at any other place does not count.
    """

    def handle(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code is threading.main_thread.__code__:
            tick()

    before = signal.signal(signal.SIGVTALRM, handle)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0.001, 0.001)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("make", [plan, flattened, flattened_natively, read, pytest.param(untracked, marks=WITH_GIL)])
def test_python_goes_on_within_a_native_call(make: Callable[[], Callable[[], object]]) -> None:
    run = make()
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1

    with ticking(tick):
        for _ in range(MOST_RUNS):
            run()
            if ticks:
                break
    assert ticks


def repeat(run: Callable[[], object]) -> None:
    for _ in range(MOST_RUNS):
        run()


@pytest.mark.parametrize("make", [plan, flattened, flattened_natively, read])
def test_a_signal_ends_a_native_call(make: Callable[[], Callable[[], object]]) -> None:
    class Stop(Exception):
        pass

    run = make()

    def stop() -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        raise Stop

    with pytest.raises(Stop), ticking(stop):
        repeat(run)
    run()  # what it left is in order
