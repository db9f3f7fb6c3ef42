"""Connections: those that say nothing are closed, and answers that are being written are finished at the end."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from structgen.integrations.server.runner import Runner

__all__ = ["Server", "listen"]

_BACKLOG: Final = 512
_HEAD_S: Final = 30.0
"""Seconds in which the head of a request must arrive."""
_UNREAD_MS: Final = 120_000
"""Milliseconds for which a client may leave what it was sent, before the system ends its connection."""


class _Connection(H11Protocol):
    """A connection that is closed if the head of its next request does not arrive in time."""

    head_s = _HEAD_S
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_s, self._give_up)

    def _unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """Serves an application until it is told to exit.

    Then it finishes the answers that are being written, for ``grace_s`` seconds, while others are refused with 503.

    Args:
        app: the application.
        runner: writes its answers.
        grace_s: seconds for the answers that are being written.
        head_s: seconds in which the head of a request must arrive.
    """

    def __init__(self, app: Starlette, runner: Runner, *, grace_s: float = 30, head_s: float = _HEAD_S) -> None:
        connection = type("Connection", (_Connection,), {"head_s": head_s})
        # What is left after the grace time is cut off at once.
        super().__init__(uvicorn.Config(app, log_level="warning", http=connection, timeout_graceful_shutdown=1))
        self._runner = runner
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is being written, and close all connections.  A second signal does not wait."""
        finished = asyncio.ensure_future(self._runner.drained(self._grace_s))
        while not (finished.done() or self.force_exit):
            await asyncio.wait((finished,), timeout=0.1)
        finished.cancel()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address.

    Raises:
        OSError: it is in use, or not of this machine.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # connections inherit it
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
    return made
