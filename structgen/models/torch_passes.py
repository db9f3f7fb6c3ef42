"""One thread runs the forward passes of torch on the CPU, with the number of threads that is fastest at the moment.

GNU OpenMP gives each thread that calls torch threads of its own.  Between the hundreds of products of a pass, these
spin for a moment, so that the next product finds them awake.  But as soon as all of them together are more than the
processors, they sleep, and a pass over one token takes twice as long.  So all passes of a process run in one thread,
whichever thread asks for them.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, final

import torch

from structgen.models.pass_times import FastestThreads

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TorchPasses", "check_awaited"]

Value = TypeVar("Value")

_SIGNALS_S: Final = 0.1
"""How often a caller looks for signals while it waits."""


class _Abandoned(BaseException):
    """The caller has stopped waiting for the pass; not an ``Exception``, so that only the thread catches it."""


class _Job(Generic[Value]):
    """Work for the thread."""

    def __init__(self, work: Callable[[], Value]) -> None:
        self.work = work
        self.is_abandoned = False
        self.value: Value | None = None
        self.error: BaseException | None = None
        self.running = threading.Lock()  # held until the work has ended
        self.running.acquire()


@final
class _Thread:
    """The thread, which is started when it is first needed."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start again, in a forked process, which has none of the threads of its parent."""
        self._start = threading.Lock()
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._identity: int | None = None
        self._current: _Job[Any] | None = None

    def run(self, work: Callable[[], Value]) -> Value:
        """Do the work in the thread and return its value, or raise its error.

        After an interruption the caller waits until the work has ended too: it writes to the caches of the caller.
        """
        if self._identity == threading.get_ident():
            return work()
        if self._identity is None:
            with self._start:
                if self._identity is None:
                    thread = threading.Thread(target=self._serve, name="structgen-passes", daemon=True)
                    thread.start()
                    self._identity = thread.ident
        job = _Job(work)
        self._jobs.put(job)
        try:
            # A signal that arrives just before the wait does not end it, and its handler runs after that.
            while not job.running.acquire(timeout=_SIGNALS_S):
                pass
        except BaseException:
            job.is_abandoned = True
            while not _acquired(job.running):
                pass
            raise
        if job.error is not None:
            raise job.error
        return cast("Value", job.value)

    def check_awaited(self) -> None:
        """Leave the work here if its caller was interrupted."""
        if self._current is not None and self._current.is_abandoned:
            raise _Abandoned

    def _serve(self) -> None:
        while True:
            job = self._jobs.get()
            self._current = job
            try:
                if not job.is_abandoned:
                    job.value = job.work()
            except BaseException as error:
                job.error = error
            self._current = None
            job.running.release()
            del job  # it holds caches


def _acquired(lock: threading.Lock) -> bool:
    try:
        return lock.acquire()
    except KeyboardInterrupt:  # a second one, while the work ends
        return False


_thread = _Thread()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_thread.forget)


def check_awaited() -> None:
    """Leave a pass here if its caller was interrupted; called between the layers."""
    _thread.check_awaited()


@final
class TorchPasses:
    """Runs the passes of one model.

    Those of a GPU, and those under ``torch.autocast``, which is a setting of the thread, run in the calling thread.

    Args:
        device: the device of the model.
        learns: whether the number of threads is learnt (``FastestThreads``): only for a model whose logits do not
            depend on it.  Otherwise it is torch's.
        is_checked: whether passes call ``check_awaited``.  Those that do not run in the main thread if it asks for
            them, where Ctrl-C ends them.
    """

    def __init__(self, device: torch.device, *, learns: bool, is_checked: bool) -> None:
        self._is_on_cpu = device.type == "cpu"
        self._learns = learns
        self._is_checked = is_checked
        self._most = 0
        self._threads = FastestThreads(1)

    def run(self, work: Callable[[], Value], *, rows: int = 0) -> Value:
        """Run a pass, or other work with tensors, and return its value.

        Args:
            work: what to run.
            rows: its number of rows, if it is a pass by whose time the number of threads is learnt.
        """
        is_here = not self._is_checked and threading.current_thread() is threading.main_thread()
        if is_here or not self._is_on_cpu or torch.is_autocast_enabled("cpu"):
            return work()
        most = torch.get_num_threads()  # of the caller

        def run() -> Value:
            if self._most != most:
                self._most = most
                self._threads = FastestThreads(most, learns=self._learns, follows=True)
            threads = self._threads.of(max(1, rows))
            _set_threads(threads)
            began = perf_counter()
            value = work()
            if rows:
                self._threads.note(rows, threads, perf_counter() - began)
            return value

        return _thread.run(run)


class _OpenMP:
    """The number of threads of OpenMP, which each thread has of its own: that of the thread that makes this object.

    It stays torch's where ``threadpoolctl`` is not installed.
    """

    def __init__(self) -> None:
        self._now = torch.get_num_threads()  # the first call in a thread sets the number
        self._libraries: list[Any] = []
        with suppress(ImportError):
            from threadpoolctl import ThreadpoolController  # looks through the libraries of the process

            self._libraries = ThreadpoolController().select(user_api="openmp").lib_controllers

    def set(self, threads: int) -> None:
        """Set it."""
        if threads != self._now:
            for library in self._libraries:
                library.set_num_threads(threads)
            self._now = threads


_openmp = threading.local()


def _set_threads(threads: int) -> None:
    """Set the number of threads of this thread's products; other threads keep theirs."""
    if not hasattr(_openmp, "own"):
        _openmp.own = _OpenMP()
    _openmp.own.set(threads)
