"""Requests of batch files, which the application answers in this process, without a socket."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, Final, final

from structgen.grammar.limits import Limits
from structgen.integrations.server.app import application
from structgen.integrations.server.runner import Runner
from structgen.integrations.server.service import Service

if TYPE_CHECKING:
    from structgen.decode import AnyModel

__all__ = ["InProcess"]

_QUEUE: Final = 1 << 30
_NOT_STREAMED: Final = {
    "error": {
        "message": "stream: a row holds a whole answer; leave it out",
        "type": "invalid_request_error",
        "param": "stream",
        "code": "invalid_value",
    }
}


@final
class InProcess:
    """The server's answers to bodies.  To be made, used and closed in one event loop.

    Args:
        model: the model.
        max_running: how many answers are written at the same time.
        name: under which requests know the model; None: its own name.
    """

    def __init__(self, model: AnyModel, *, max_running: int, name: str | None = None) -> None:
        self._runner = Runner(model, max_running=max_running, max_queue=_QUEUE)
        # The descriptions are the user's own, and trusted.
        self._app = application(Service(model, name or model.name, self._runner, Limits()))

    async def answer(self, url: str, body: dict[str, Any], *, seed: int) -> tuple[int, Any]:
        """Return the status and the body of the answer to ``POST url``.

        ``seed`` is for a request that has none: without it, the server would choose one.
        """
        if body.get("stream"):
            return 400, _NOT_STREAMED
        data = json.dumps(_seeded(url, body, seed)).encode()
        status, parts = 500, list[bytes]()

        async def receive() -> dict[str, Any]:
            nonlocal data
            if data:
                sent, data = data, b""
                return {"type": "http.request", "body": sent, "more_body": False}
            await asyncio.Event().wait()  # the client does not go away; the application cancels this wait
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": "POST",
            "path": url,
            "raw_path": url.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [],
            "client": None,
            "server": None,
        }
        await self._app(scope, receive, send)
        return status, json.loads(b"".join(parts))

    async def close(self) -> None:
        """Free the model's caches."""
        await self._runner.close(0)


def _seeded(url: str, body: dict[str, Any], seed: int) -> dict[str, Any]:
    options = body.get("structgen")
    if body.get("seed") is not None or (isinstance(options, dict) and options.get("seed") is not None):
        return body
    if not url.endswith("/responses"):
        return {**body, "seed": seed}
    if options is not None and not isinstance(options, dict):
        return body  # which the server refuses
    return {**body, "structgen": {**(options or {}), "seed": seed}}
