"""The processes of ``structgen batch``: each loads the model once and runs lines, several in one forward pass.

Lines go to a process, and rows come back, over a pipe.  The processes end when the pipe does, whatever happens to the
one that started them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import queue
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, final

from structgen.cli.terminal import FAILED, Failure, status_of
from structgen.errors import StructgenError

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from structgen.cli.run_prompts import PromptLine

__all__ = ["Finished", "Job", "LineRunner", "run_in_processes"]

Finished: TypeAlias = "Callable[[PromptLine, dict[str, Any]], None]"
"""Takes a line and its row."""
LineRunner: TypeAlias = "Callable[[Iterable[PromptLine], Finished], None]"
"""Runs lines, and calls back for each as it is done, in its own thread."""


class Job(Protocol):
    """The work on each line: a dataclass that is sent to other processes."""

    @property
    def batch_size(self) -> int:
        """How many lines run in one forward pass."""

    def load(self, process: int, processes: int) -> LineRunner:
        """Load the model, in the process of this number, and return what runs lines.

        Raises:
            Failure, StructgenError: it cannot be loaded.
        """

    def failed(self, line: PromptLine, problem: str, attempt: int) -> dict[str, Any]:
        """The row of a line that could not be run."""


@final
@dataclass(eq=False)
class _Worker:
    """A process.

    Attributes:
        number: from 0.
        process: itself.
        connection: the pipe to it.
        lines: that it has, by index.
        is_ready: whether it has loaded the model.
        is_careful: whether it runs the lines that another process had when it died, one by one.
        is_told: whether the process has been told that there are no more lines.
    """

    number: int
    process: SpawnProcess
    connection: Connection
    is_careful: bool
    lines: dict[int, PromptLine] = field(default_factory=dict)
    is_ready: bool = False
    is_told: bool = False


def run_in_processes(job: Job, lines: Iterator[PromptLine], finished: Finished, *, processes: int) -> None:
    """Run lines in several processes.

    A process that dies, for instance because memory ran out, is replaced.  Its lines are run again, one at a time, and
    a line that kills its process a second time fails.

    Raises:
        Failure: a process cannot load the model.
        Exception: of ``lines`` and ``finished``; as an interruption, it ends all processes.
    """
    pool = _Pool(job, lines, finished, processes)
    try:
        pool.run()
    finally:
        pool.end()


@final
class _Pool:
    def __init__(self, job: Job, lines: Iterator[PromptLine], finished: Finished, processes: int) -> None:
        self._job = job
        self._lines = lines
        self._finished = finished
        self._processes = processes
        self._suspects: deque[PromptLine] = deque()
        self._is_exhausted = False  # whether all lines have been given to a process
        self._workers: list[_Worker] = []

    def run(self) -> None:
        for number in range(self._processes):
            self._start(number, is_careful=False)
        while self._workers:
            ready = wait([worker.connection for worker in self._workers])
            for worker in [worker for worker in self._workers if worker.connection in ready]:
                try:
                    message = worker.connection.recv()
                except (EOFError, OSError):
                    self._died(worker)
                    continue
                self._heard(worker, *message)

    def end(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()

    def _start(self, number: int, *, is_careful: bool) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        job = replace(self._job, batch_size=1) if is_careful else self._job  # type: ignore[type-var]  # a dataclass
        process = context.Process(target=_work, args=(job, number, self._processes, theirs))
        with _interrupts_held():  # Ctrl-C goes to all processes of a terminal, and this one ends the others
            process.start()
        theirs.close()
        self._workers.append(_Worker(number, process, ours, is_careful))

    def _replace(self, worker: _Worker) -> None:
        """Start what is to go on after a process that has ended, if anything is left that no other process will do."""
        worker.process.join()
        worker.connection.close()
        self._workers.remove(worker)
        if self._suspects or not self._is_exhausted:
            self._start(worker.number, is_careful=bool(self._suspects))

    def _heard(self, worker: _Worker, kind: str, *held: Any) -> None:
        if kind == "failed":
            raise Failure(*held)
        if kind == "row":
            index, row = held
            self._finished(worker.lines.pop(index), row)
        elif kind == "done":
            self._replace(worker)
            return
        worker.is_ready = True
        self._give(worker)

    def _give(self, worker: _Worker) -> None:
        """Give a process as many lines as keep it busy: those that run, and as many that wait."""
        room = 1 if worker.is_careful else 2 * self._job.batch_size
        with contextlib.suppress(OSError):  # it has died, as its connection will tell
            while len(worker.lines) < room and not worker.is_told:
                line = self._next(worker)
                if line is not None:
                    worker.lines[line.index] = line
                worker.is_told = line is None
                worker.connection.send(line)

    def _next(self, worker: _Worker) -> PromptLine | None:
        if worker.is_careful:
            return self._suspects.popleft() if self._suspects else None
        line = next(self._lines, None)
        self._is_exhausted = line is None
        return line

    def _died(self, worker: _Worker) -> None:
        worker.process.join()
        code = worker.process.exitcode or 0
        names = {each.value: each.name for each in signal.Signals}  # of real-time signals only the first and last
        how = names.get(-code, f"signal {-code}") if code < 0 else f"status {code}"
        if not worker.is_ready:
            raise Failure(f"a process ended with {how} while it loaded the model; try fewer --workers", FAILED)
        if worker.is_careful:
            for line in worker.lines.values():
                problem = f"the process that ran it ended with {how}, as did the one before it"
                self._finished(line, self._job.failed(line, problem, 2))
        else:
            self._suspects.extend(worker.lines.values())
        self._replace(worker)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(job: Job, process: int, processes: int, connection: Connection) -> None:
    """The main function of a process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines: queue.SimpleQueue[PromptLine | None] = queue.SimpleQueue()

    def receive() -> None:
        try:
            while (line := connection.recv()) is not None:
                lines.put(line)
            lines.put(None)
            connection.recv()  # nothing more comes but the end
        except (EOFError, OSError):
            os._exit(FAILED)

    threading.Thread(target=receive, daemon=True).start()
    try:
        run = job.load(process, processes)
    except Failure as error:
        connection.send(("failed", error.message, error.status))
        return
    except StructgenError as error:
        connection.send(("failed", str(error), status_of(error)))
        return
    connection.send(("ready",))
    run(iter(lines.get, None), lambda line, row: connection.send(("row", line.index, row)))
    connection.send(("done",))
