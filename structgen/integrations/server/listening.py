"""Connections: idle ones are closed, and answers in progress are finished before the server exits."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from structgen.log import logger

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from structgen.integrations.server.runner import Runner

__all__ = ["Server", "listen"]

_BACKLOG: Final = 512
_HEAD_S: Final = 30.0
"""Seconds in which the head of a request must arrive."""
_LINGER_S: Final = 2.0
"""Seconds for which a client that was refused may go on to send its body."""
_KEEP_ALIVE_S: Final = 30
"""Seconds for which an idle connection is kept: longer than by clients, which lose a request if both close it together.

httpx, and so OpenAI's client, keeps connections for 5 s, as uvicorn does by default.
"""
_UNREAD_MS: Final = 120_000
"""Milliseconds for which a client may leave what it was sent, before the system ends its connection."""


class _Lingering:
    """A transport that, while its client is still sending, ends what is sent to it some time before it is closed.

    To close a connection with unread bytes resets it, and the client may lose its answer (RFC 9112, 9.6).
    """

    def __init__(self, transport: Any, protocol: H11Protocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self.lingers = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        """Send data; dropped if the connection is lost, which asyncio says to the application in the loop's next turn.

        Until then the application may write all that is ready, each part with a warning of asyncio's in the log.
        """
        if not self._transport.is_closing() or self._transport.get_write_buffer_size():
            self._transport.write(data)

    def close(self) -> None:
        if self.is_closing() or self._protocol.conn.their_state is not h11.SEND_BODY:
            self._transport.close()
            return
        try:
            self._transport.write_eof()
        except OSError:  # the client has gone
            self._transport.close()
            return
        self.lingers = True
        self._transport.resume_reading()
        self._protocol.loop.call_later(_LINGER_S, self._transport.close)


class _Connection(H11Protocol):
    """A connection that is closed if the head of its next request does not arrive in time."""

    head_s = _HEAD_S
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = _Lingering(transport, self)
        super().connection_made(self._transport)  # type: ignore[arg-type]
        self._watch()

    def data_received(self, data: bytes) -> None:
        if self._transport.lingers:
            return
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
    What is not done then ends with an error, in streams too.

    Args:
        app: the application.
        runner: writes its answers.
        grace_s: seconds for the answers that are being written.
        head_s: seconds in which the head of a request must arrive.
    """

    def __init__(self, app: Starlette, runner: Runner, *, grace_s: float = 30, head_s: float = _HEAD_S) -> None:
        connection = type("Connection", (_Connection,), {"head_s": head_s})
        # Answers that outlast the grace time are ended with an error, and have a second to send it to their clients.
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                http=connection,
                timeout_graceful_shutdown=1,
                timeout_keep_alive=_KEEP_ALIVE_S,
            )
        )
        self._runner = runner
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish what is being written, and close all connections.  A second signal does not wait."""
        finished = asyncio.ensure_future(self._runner.drained(self._grace_s))
        while not (finished.done() or self.force_exit):
            await asyncio.wait((finished,), timeout=0.1)
        finished.cancel()
        if left := self._runner.end():
            logger.error("the server ends; answers that were not done in time, and end with an error: %d", left)
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):  # of clients that do not read, or still send
            connection.transport.abort()
        await asyncio.sleep(0)


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address.

    Raises:
        OSError: it is in use, or not of this machine.
    """
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    # Connections inherit all of these.  asyncio sets the first one only for sockets that name their protocol.  Without
    # it the body of a response waits until the client's system confirms its head, 40 ms later.
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_MS)
    return made
