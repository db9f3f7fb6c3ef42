"""Generators that do work: run in a thread for a coroutine that may be cancelled, or closed for their return value.

``streamed`` is the thread of ``Program.astream``, and ``with_aio`` gives functions such as ``generate`` their
``aio``.  The work runs in a copy of the caller's context, so tools find the coroutine's loop in ``waiter``.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, ParamSpec, Protocol, Self, TypeVar, cast, final

if TYPE_CHECKING:
    import asyncio

__all__ = ["Returning", "Stopped", "Waiter", "WithAio", "awaited", "check_stopped", "streamed", "waiter", "with_aio"]

Parameters = ParamSpec("Parameters")
Item = TypeVar("Item")
Returned = TypeVar("Returned")
Value_co = TypeVar("Value_co", covariant=True)


class Stopped(BaseException):
    """The caller has stopped waiting; not an ``Exception``, so that only ``streamed`` catches it."""


@final
@dataclass(frozen=True, slots=True)
class Waiter:
    """Who waits for the work of this thread.

    Attributes:
        loop: the event loop of the coroutine.
        stopped: whether it was cancelled.
    """

    loop: asyncio.AbstractEventLoop
    stopped: threading.Event


_waiter: ContextVar[Waiter | None] = ContextVar("waiter", default=None)


def waiter() -> Waiter | None:
    """The coroutine that waits for the work of this thread; None if a plain call does."""
    return _waiter.get()


def check_stopped() -> None:
    """Stop the work here if the coroutine that waits for it was cancelled; called before each forward pass.

    Raises:
        Stopped: it was.
    """
    waiting = _waiter.get()
    if waiting is not None and waiting.stopped.is_set():
        raise Stopped


@final
class Returning(Generic[Item, Returned]):
    """A generator that is iterated over in a ``with`` block, which closes it, and then asked for its ``value``.

    Attributes:
        value: what the generator has returned; there is none before its end.
    """

    value: Returned

    def __init__(self, items: Generator[Item, None, Returned]) -> None:
        self._items = items

    def __enter__(self) -> Self:
        return self

    def __iter__(self) -> Generator[Item, None, None]:
        self.value = yield from self._items

    def __exit__(self, *_: object) -> None:
        self._items.close()


async def streamed(items: Generator[Item, None, None]) -> AsyncGenerator[Item, None]:
    """Run a generator in a thread, and yield its items here.

    If the coroutine is cancelled, or closes this iterator, the generator is closed before its next forward pass.  It is
    closed, and has freed what it holds, when this returns.
    """
    import asyncio  # most programs are called without

    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    queue: asyncio.Queue[tuple[bool, Item | BaseException | None]] = asyncio.Queue()
    stopped = threading.Event()

    def pump() -> None:
        _waiter.set(Waiter(loop, stopped))
        last: BaseException | None = None
        try:
            for item in items:
                if stopped.is_set():
                    break
                loop.call_soon_threadsafe(queue.put_nowait, (True, item))
        except Stopped:
            pass
        except BaseException as error:
            last = error
        finally:
            items.close()
            with suppress(RuntimeError):  # the loop was closed, so nobody waits
                loop.call_soon_threadsafe(queue.put_nowait, (False, last))
                loop.call_soon_threadsafe(ended.set_result, None)

    # A thread of its own: those of an executor are few, and the work may itself wait for others that need one.
    threading.Thread(target=contextvars.copy_context().run, args=(pump,), daemon=True).start()
    is_item = True
    try:
        while is_item:
            is_item, item = await queue.get()
            if is_item:
                yield cast("Item", item)
            elif isinstance(item, BaseException):
                raise item
    finally:
        if is_item:  # what the work has begun elsewhere may go on after its end
            stopped.set()
        await asyncio.shield(ended)


async def awaited(
    function: Callable[Parameters, Returned], /, *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Returned:
    """Call a function in a thread, and await its value; see ``streamed`` for what cancelling does."""

    def called() -> Generator[Returned, None, None]:
        yield function(*args, **kwargs)

    values = [value async for value in streamed(called())]
    return values[0]


class WithAio(Protocol[Parameters, Value_co]):
    """A function that can also be awaited, ``await function.aio(...)``."""

    def __call__(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value_co:
        """Call the function."""

    async def aio(self, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value_co:
        """Call the function in a thread, and await its value.

        Cancelling stops it before its next forward pass, and frees the model's cache.  ``asyncio.gather`` runs several
        at a time; each is a sequence of its own.
        """


def with_aio(function: Callable[Parameters, Value_co]) -> WithAio[Parameters, Value_co]:
    """Give a function its ``aio``: a decorator, which returns the function itself."""

    async def aio(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value_co:
        return await awaited(function, *args, **kwargs)

    functools.update_wrapper(aio, function, assigned=("__module__",))  # with its signature
    aio.__qualname__ = f"{function.__qualname__}.aio"
    aio.__doc__ = WithAio.aio.__doc__
    given = cast("WithAio[Parameters, Value_co]", function)
    given.aio = aio  # type: ignore[method-assign]
    return given
