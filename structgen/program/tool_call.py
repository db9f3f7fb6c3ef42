"""The calls of an agent's tools: several in parallel, coroutines too; and their results for the model."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias, final

from structgen.decode.step.background import Stopped, waiter

__all__ = ["Call", "CallRunner", "result_message"]

_Request: TypeAlias = "tuple[str, Callable[..., Any], dict[str, Any]]"
"""The name of a tool, its function, and the arguments."""

_POLL_S: Final = 0.05


@final
@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool.

    Attributes:
        tool: its name.
        arguments: what it was called with, by name, as values of the parameters' types; without defaults.
        result: what it returned; None where it raised.
        error: the exception as text, ``"ValueError: ..."``; None where it returned.
    """

    tool: str
    arguments: dict[str, Any]
    result: Any = None
    error: str | None = None


@final
class CallRunner:
    """Runs the calls of one agent; use it in a ``with`` statement.

    Coroutines run in the event loop of the coroutine that awaits the agent.  If nothing awaits it, they run in a loop
    of the agent's own, which lasts as long as the agent.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shared: asyncio.AbstractEventLoop | None = None  # that of the coroutine that awaits the agent
        self._own: tuple[asyncio.AbstractEventLoop, asyncio.Event, threading.Thread] | None = None
        self._abandoned = threading.Event()  # nobody waits for the calls that still run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._own is not None:
            loop, closing, thread = self._own
            loop.call_soon_threadsafe(closing.set)  # cancels what still runs
            thread.join()

    def run(self, requests: Sequence[_Request]) -> list[Call]:
        """Run some calls in parallel; return them in the order of the requests.

        A call that raises does not stop the others.  If the agent is cancelled, or interrupted by Ctrl-C, coroutines
        are cancelled, and functions run to their end.
        """
        waiting = waiter()
        # A coroutine that calls the agent, and does not await it, blocks its loop: nothing else can run there.
        self._shared = None if waiting is None or waiting.loop is asyncio._get_running_loop() else waiting.loop
        if len(requests) == 1:
            return [self._call(*requests[0])]
        try:
            with ThreadPoolExecutor(len(requests)) as pool:
                try:
                    calls = [functools.partial(self._call, *each) for each in requests]
                    futures = [pool.submit(contextvars.copy_context().run, call) for call in calls]
                    return [future.result() for future in futures]
                except BaseException:
                    self._abandoned.set()
                    raise
        finally:
            self._abandoned.clear()

    def _call(self, name: str, function: Callable[..., Any], given: dict[str, Any]) -> Call:
        """Call a tool; an exception becomes a message to the model, which may try again."""
        try:
            result = function(**given)
            if inspect.isawaitable(result):
                result = self._awaited(result)
            return Call(name, given, result=result)
        except Exception as error:
            return Call(name, given, error=f"{type(error).__name__}: {error}")

    def _awaited(self, value: Awaitable[Any]) -> Any:
        async def awaited() -> Any:
            return await value

        waiting = waiter()
        future = asyncio.run_coroutine_threadsafe(awaited(), self._shared or self._own_loop())
        try:
            while not wait([future], timeout=_POLL_S).done:
                if self._abandoned.is_set() or (waiting is not None and waiting.stopped.is_set()):
                    raise Stopped
        except BaseException:
            future.cancel()
            raise
        return future.result()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._own is None:
                started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

                async def serve() -> None:
                    closing = asyncio.Event()
                    started.set_result((asyncio.get_running_loop(), closing))
                    await closing.wait()

                thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
                thread.start()
                self._own = (*started.result(), thread)
            return self._own[0]


def result_message(call: Call) -> str:
    """The message to the model about a call."""
    if call.error is not None:
        return f"{call.tool} failed: {call.error}"
    return f"{call.tool} returned: {call.result if isinstance(call.result, str) else _written(call.result)}"


def _written(value: Any) -> str:
    """A value as JSON; what pydantic can't write is shown."""
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return json.dumps(to_jsonable_python(value, fallback=repr), ensure_ascii=False)
    except (PydanticSerializationError, RecursionError, ValueError):
        return repr(value)
