"""A program over many items, several at a time in one forward pass."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, final

from structgen.models.batching import Batch
from structgen.models.protocol import silent
from structgen.models.protocol.diffusion import DiffusionModel
from structgen.program.backends.remote_answer import RemoteModel
from structgen.program.stream.event import Done

if TYPE_CHECKING:
    from structgen.models.protocol import Progress
    from structgen.program.definition import Program
    from structgen.program.execution import AnyModel
    from structgen.program.outcome import Run

__all__ = ["Mapped", "map_items"]

Value = TypeVar("Value")
_Arguments: TypeAlias = "tuple[tuple[Any, ...], dict[str, Any]]"


@final
@dataclass(frozen=True, slots=True)
class Mapped(Generic[Value]):
    """What became of one item.

    Attributes:
        index: of the item.
        run: the program's result; None if it failed.
        error: why it failed; None if it did not.
    """

    index: int
    run: Run[Value] | None
    error: Exception | None

    @property
    def value(self) -> Value:
        """The program's value.

        Raises:
            Exception: the error of the item.
        """
        if self.error is not None:
            raise self.error
        if self.run is None:
            raise RuntimeError("an item has neither a result nor an error")
        return self.run.value


def map_items(
    program: Program[..., Value],
    items: Iterable[Any],
    *,
    model: AnyModel,
    batch_size: int,
    progress: Progress | bool,
    settings: Mapping[str, Any],
) -> list[Mapped[Value]]:
    """Run ``program`` for each item: see ``Program.map``.

    One thread for each slot of the batch; a thread takes the next item when it has finished one.  The forward passes
    of all are run together; all else of a program is its thread's own.  A server puts requests together by itself;
    passes over canvases are not put together.

    Raises:
        ValueError: ``batch_size`` is less than 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; found {batch_size}")
    calls = [_arguments_of(item) for item in items]
    found: list[Mapped[Value] | None] = [None] * len(calls)
    pending = iter(range(len(calls)))
    lock, finished = threading.Lock(), threading.Condition()
    stopped = threading.Event()
    done: list[int] = []

    def work(worker: Any) -> None:
        with worker:
            for index in _unclaimed(pending, lock):
                if stopped.is_set():
                    return
                found[index] = _run_item(program, index, calls[index], {**settings, "model": batch or model}, stopped)
                with finished:
                    done.append(index)
                    finished.notify_all()

    with nullcontext() if isinstance(model, (RemoteModel, DiffusionModel)) else Batch(model) as batch:
        workers = [nullcontext() if batch is None else batch.worker() for _ in range(min(batch_size, len(calls)))]
        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            with _progress_callback(len(calls), progress=progress) as report:
                _watch(threads, done, finished, len(calls), report)
        finally:
            stopped.set()
            if batch is not None and any(thread.is_alive() for thread in threads):  # interrupted
                batch.close()
            for thread in threads:
                thread.join()
    return [held for held in found if held is not None]


@contextmanager
def _progress_callback(total: int, *, progress: Progress | bool) -> Iterator[Progress]:
    """The callback for the number of finished items: a bar if it is True."""
    if progress is not True:
        yield progress or silent
        return
    import click

    with click.progressbar(length=total, label="run programs", file=sys.stderr, show_pos=True) as bar:

        def advance(_stage: str, count: int, _total: int | None, /) -> None:
            bar.update(count - bar.pos)

        yield advance


def _watch(
    threads: Sequence[threading.Thread], done: list[int], finished: threading.Condition, total: int, progress: Progress
) -> None:
    """Report how many items are through until all are."""

    def news() -> bool:
        return len(done) > reported or not any(thread.is_alive() for thread in threads)

    reported = -1
    while reported < total:
        with finished:
            finished.wait_for(news, timeout=1)
            count = len(done)
        if count > reported:
            reported = count
            progress("run programs", reported, total)
        elif news():  # the threads have ended without
            return


def _run_item(
    program: Program[..., Value], index: int, call: _Arguments, settings: Mapping[str, Any], stopped: threading.Event
) -> Mapped[Value]:
    """Run one item; whatever goes wrong is that item's."""
    arguments, names = call
    try:
        for event in program.stream(*arguments, **names, **settings):
            if isinstance(event, Done):
                return Mapped(index, event.run, None)
            if stopped.is_set():
                break
    except Exception as error:  # the other items go on
        error.add_note(f"in item {index} of {program.name}.map")
        return Mapped(index, None, error)
    return Mapped(index, None, InterruptedError(f"item {index} was not finished"))


def _arguments_of(item: Any) -> _Arguments:
    """A mapping holds arguments by name, a tuple by position; all else is the only argument."""
    if isinstance(item, Mapping):
        return (), dict(item)
    if isinstance(item, tuple):
        return item, {}
    return (item,), {}


def _unclaimed(numbers: Iterator[int], lock: threading.Lock) -> Iterator[int]:
    """The numbers that no other thread has taken."""
    while True:
        with lock:
            number = next(numbers, None)
        if number is None:
            return
        yield number
