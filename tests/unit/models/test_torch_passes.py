"""Passes of torch on a CPU run in one thread, which gives back values, errors and interruptions."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from structgen.models.torch_passes import TorchPasses, check_awaited  # noqa: E402

CPU = torch.device("cpu")


def passes(**options: Any) -> TorchPasses:
    """Those of a model on the CPU."""
    return TorchPasses(CPU, **{"learns": False, "is_checked": True, **options})


def test_all_threads_and_models_share_one() -> None:
    """It is none of theirs; what it asks for itself it runs at once."""
    models = [passes(), passes()]
    with ThreadPoolExecutor(4) as pool:
        ran_in = set(pool.map(lambda at: models[at % 2].run(threading.get_ident), range(16)))
        callers = set(pool.map(lambda _: threading.get_ident(), range(16)))
    assert len(ran_in) == 1
    assert not ran_in & (callers | {threading.get_ident()})
    assert models[0].run(lambda: models[1].run(threading.get_ident)) in ran_in


def test_what_depends_on_the_calling_thread_runs_there() -> None:
    """Passes of a GPU, passes under autocast, and those of the main thread that nothing could interrupt elsewhere."""
    here = threading.get_ident()
    assert TorchPasses(torch.device("cuda"), learns=False, is_checked=True).run(threading.get_ident) == here
    assert passes(is_checked=False).run(threading.get_ident) == here
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(passes(is_checked=False).run, threading.get_ident).result() != here
    with torch.autocast("cpu", torch.bfloat16):
        assert passes().run(threading.get_ident) == here


def test_errors_reach_the_caller() -> None:
    """And the next pass runs."""

    def fail() -> None:
        raise MemoryError("too many rows")

    model = passes()
    with pytest.raises(MemoryError, match="too many rows"):
        model.run(fail)
    assert model.run(lambda: 5) == 5


def test_nothing_is_held_after_a_pass() -> None:
    """Neither its tensors nor its value."""

    class Held:
        """Something that a weak reference can point to."""

    model, held = passes(), Held()
    reference = weakref.ref(held)
    model.run(lambda held=held: held)
    del held
    gc.collect()
    assert reference() is None


def test_an_interruption_ends_the_pass_first() -> None:
    """What is interrupted leaves its pass at the next layer, and waits for that: the pass writes to its caches."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        pytest.skip("the tests run where Ctrl-C is ignored")  # as shells start commands with &
    model, layers = passes(), []
    ended = threading.Event()

    def run() -> None:
        try:
            threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                check_awaited()
                layers.append(1)
                time.sleep(0.001)
        finally:
            ended.set()

    with pytest.raises(KeyboardInterrupt):
        model.run(run)
    assert ended.is_set()
    assert layers
    assert model.run(lambda: 7) == 7


def test_the_number_of_threads_is_that_of_the_caller() -> None:
    """What is learnt sets only the thread of the passes."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert passes().run(torch.get_num_threads) == 4
        learning = passes(learns=True)

        def one() -> int:
            threads = torch.get_num_threads()
            time.sleep(0.001 * threads)
            return threads

        found = [learning.run(one, rows=1) for _ in range(8)]
        assert found[:4] == [4, 4, 2, 2]
        assert found[-1] == 1
        assert torch.get_num_threads() == 4
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(torch.get_num_threads).result() == 4
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    """The one of its parent is not in it."""
    model = passes()
    model.run(lambda: 1)
    child = os.fork()
    if child == 0:
        os._exit(model.run(lambda: 3))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
