"""A program over many items, several at a time in one forward pass."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeAlias, TypeVar, final

from structgen.decode.step.background import check_stopped
from structgen.errors import ArgumentError, found as found_kind
from structgen.markup import card, shortened, table
from structgen.models.batching import Batch
from structgen.models.protocol.diffusion import DiffusionModel
from structgen.program.backends.remote_answer import RemoteModel
from structgen.program.stream.event import Done
from structgen.progress import Progress, shown

if TYPE_CHECKING:
    from structgen.program.definition import Program
    from structgen.program.execution import AnyModel
    from structgen.program.outcome import Run

__all__ = ["Mapped", "MappedItems", "map_items", "run_batched"]

_MAX_ROWS: Final = 200
_MAX_CELL: Final = 300

Value = TypeVar("Value")
Item = TypeVar("Item")
_Arguments: TypeAlias = "tuple[tuple[Any, ...], dict[str, Any]]"


@final
@dataclass(frozen=True, slots=True)
class Mapped(Generic[Value]):
    """The outcome of one item.

    Attributes:
        index: of the item.
        run: the program's result; None if it failed.
        error: why it failed; None if it did not.  A ``LimitExceeded`` has the text of the answer that it ended.
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

    def cells(self) -> tuple[str, str, str]:
        """The value or the error, how it ended, and what it cost; each a short text."""
        if self.run is None:
            return shortened(f"{type(self.error).__name__}: {self.error}", _MAX_CELL), "failed", ""
        cost = "" if self.run.stats is None else self.run.stats.summary
        return shortened(repr(self.run.value), _MAX_CELL), self.run.finish_reason, cost

    def _repr_html_(self) -> str:
        if self.run is None:
            return card(f"Item {self.index}", table([("error", *self.cells())]))
        return self.run._repr_html_()

    def __repr__(self) -> str:
        found = f"{type(self.error).__name__}: {shortened(str(self.error))}" if self.run is None else repr(self.run)
        return f"Mapped({self.index}, {found})"


@final
class MappedItems(list[Mapped[Value]]):
    """The result of ``Program.map``: a list, which a notebook shows as a table."""

    def _repr_html_(self) -> str:
        failed = sum(mapped.run is None for mapped in self)
        rows = [(str(mapped.index), *mapped.cells()) for mapped in self[:_MAX_ROWS]]
        if len(self) > _MAX_ROWS:
            rows.append(("...", f"{len(self) - _MAX_ROWS:,} more", "", ""))
        items = "1 item" if len(self) == 1 else f"{len(self):,} items"
        return card(f"{items}, {failed} failed", table(rows))


def map_items(
    program: Program[..., Value],
    items: Iterable[Any],
    *,
    model: AnyModel,
    batch_size: int,
    progress: Progress | bool | None,
    settings: Mapping[str, Any],
) -> MappedItems[Value]:
    """Run ``program`` for each item: see ``Program.map`` and ``run_batched``.

    Raises:
        ValueError: ``batch_size`` is less than 1.
        ArgumentError: ``items`` is a text.
    """
    if isinstance(items, (str, bytes)):
        raise ArgumentError("map", "expected a list of items", evidence=found_kind(items), remedy="write map([text])")
    calls = [_arguments_of(item) for item in items]
    found: list[Mapped[Value] | None] = [None] * len(calls)

    def run(index: int, model: AnyModel, stopped: threading.Event) -> Mapped[Value]:
        return _run_item(program, index, calls[index], {**settings, "model": model}, stopped)

    with shown(progress=progress) as report:
        report("run programs", 0, len(calls))
        done = 0

        def finished(index: int, mapped: Mapped[Value]) -> None:
            nonlocal done
            found[index] = mapped
            done += 1
            report("run programs", done, len(calls))

        run_batched(range(len(calls)), run, finished, model=model, batch_size=batch_size)
    return MappedItems(held for held in found if held is not None)


def run_batched(
    items: Iterable[Item],
    run: Callable[[Item, AnyModel, threading.Event], Value],
    finished: Callable[[Item, Value], None],
    *,
    model: AnyModel,
    batch_size: int,
) -> None:
    """Call ``run`` for all items, ``batch_size`` at a time in one forward pass.

    One thread for each slot of the batch; a thread takes the next item when it has finished one.  The forward passes of
    all are run together.  A server batches requests itself; passes over canvases are not batched.

    Args:
        items: taken one by one, each in some thread, none before there is room for it.  A pass waits for a thread that
            waits for its item.
        run: called in a thread, with an item, the model to run on, and an event that is set once its value is no
            longer needed; raises nothing.
        finished: called in the thread of the caller, with each item and what ``run`` returned, in the order in which
            they finish.
        model: what the batch runs on.
        batch_size: the number of threads.

    Raises:
        ValueError: ``batch_size`` is less than 1.
        Exception: of ``items`` or ``finished``; as an interruption, it stops all.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1; found {batch_size}")
    pending = iter(items)
    count = min(batch_size, len(items)) if isinstance(items, Sized) else batch_size
    lock, news = threading.Lock(), threading.Condition()
    stopped = threading.Event()
    done: deque[Callable[[], None] | None] = (
        deque()
    )  # what the caller's thread has to do; None for each thread that ends

    def tell(what: Callable[[], None] | None) -> None:
        with news:
            done.append(what)
            news.notify_all()

    def work(worker: Any) -> None:
        try:
            with worker:
                for item in _unclaimed(pending, lock):
                    if stopped.is_set():
                        return
                    tell(functools.partial(finished, item, run(item, batch or model, stopped)))
        except BaseException as error:  # of the items, or a panic of a library: the caller's thread raises it
            tell(functools.partial(_raise, error))
        finally:
            tell(None)

    with nullcontext() if isinstance(model, (RemoteModel, DiffusionModel)) else Batch(model) as batch:
        workers = [nullcontext() if batch is None else batch.worker() for _ in range(count)]
        threads = [  # each knows the coroutine that waits for all, which ``check_stopped`` asks for
            threading.Thread(target=contextvars.copy_context().run, args=(work, worker), daemon=True)
            for worker in workers
        ]
        for thread in threads:
            thread.start()
        try:
            for what in _as_told(len(threads), done, news):
                what()
        finally:
            stopped.set()
            is_interrupted = any(thread.is_alive() for thread in threads)
            if batch is not None and is_interrupted:
                batch.close()
            if not (is_interrupted and isinstance(model, RemoteModel)):  # whose server may take a minute to answer
                for thread in threads:
                    thread.join()


def _raise(error: BaseException) -> NoReturn:
    raise error


def _as_told(
    threads: int, done: deque[Callable[[], None] | None], news: threading.Condition
) -> Iterator[Callable[[], None]]:
    """Yield what the threads add to ``done``, until all have ended."""
    while threads:
        with news:
            while not done:
                check_stopped()  # on a server nothing else does
                news.wait(timeout=1)  # without a limit, Ctrl-C would have to wait on some systems
            what = done.popleft()
        if what is None:
            threads -= 1
        else:
            yield what


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


def _unclaimed(items: Iterator[Item], lock: threading.Lock) -> Iterator[Item]:
    """The items that no other thread has taken."""
    while True:
        with lock:
            try:
                item = next(items)
            except StopIteration:
                return
        yield item
