"""A real server on a port of this machine, with a model of noise; its tests need the extra ``server``."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

import structgen as sg
from structgen.integrations.server.app import application
from structgen.integrations.server.runner import Runner
from structgen.integrations.server.service import Service
from structgen.models import LanguageModel

VOCABULARY = sg.Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b'", "', b"ab", b"true", b'"}'], eos=[0]
)


@contextmanager
def served(
    model: LanguageModel,
    *,
    api_key: str | None = None,
    max_body: int = 1 << 20,
    tool_family: str | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Serve a model; the address of its interface."""
    service = Service(model, model.name, Runner(model, **settings), sg.Limits(), tool_family)
    app = application(service, api_key=api_key, max_body=max_body)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
