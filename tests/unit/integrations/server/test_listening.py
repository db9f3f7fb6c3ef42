"""Connections of the server."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

import pytest
from served_model import VOCABULARY
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from structgen.integrations.server.listening import Server, listen
from structgen.integrations.server.runner import Runner
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)


@contextmanager
def requested(parts: AsyncGenerator[bytes, None]) -> Iterator[socket.socket]:
    """A connection to a server that answers its request by these parts, and ends after the block."""

    async def endpoint(_: Request) -> StreamingResponse:
        return StreamingResponse(parts)

    server = Server(Starlette(routes=[Route("/", endpoint)]), Runner(HashModel(VOCABULARY)))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        with socket.create_connection(listening.getsockname(), timeout=30) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            yield connection
        server.should_exit = True
        thread.join(30)


def test_nothing_is_written_to_a_client_that_has_gone(caplog: pytest.LogCaptureFixture) -> None:
    """Of parts that are ready at once the first finds that the client has gone; asyncio does not warn of the others."""
    begun, is_gone, sent = threading.Event(), threading.Event(), list[int]()

    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"0"
        await asyncio.sleep(0)
        begun.set()
        is_gone.wait(30)  # the loop does not turn, so it does not learn that the client leaves
        for number in range(20):
            sent.append(number)
            yield b"more"

    with requested(parts()) as connection:
        assert begun.wait(30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends by a reset
        connection.close()
        is_gone.set()
    assert len(sent) > 10
    assert not [each.getMessage() for each in caplog.records if each.name == "asyncio"]


@pytest.mark.parametrize("size", [1 << 10, 8 << 20])
def test_a_client_that_sends_no_more_is_sent_the_rest(size: int) -> None:
    """What is sent, and not yet read, when the client ends its side arrives."""

    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"\0" * size

    with requested(parts()) as connection:
        found = connection.recv(100)
        connection.shutdown(socket.SHUT_WR)
        while part := connection.recv(1 << 16):
            found += part
    assert found.count(b"\0") == size
