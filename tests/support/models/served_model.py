"""A real server on a port of this machine, with a model of noise; its tests need the extra ``server``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structgen as sg
from structgen.integrations.server.app import application
from structgen.integrations.server.listening import Server, listen
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
    limits: sg.Limits | None = None,
    app: Mapping[str, Any] | None = None,
    head_s: float = 30,
    on_server: Callable[[Server], object] = lambda _: None,
    api_key: str | None = None,
    max_body: int = 1 << 20,
    tool_family: str | None = None,
    **settings: Any,
) -> Iterator[str]:
    """Serve a model; the address of its interface.

    ``app`` are further arguments of ``application``; ``settings`` are those of ``Runner``; ``on_server`` is
    given the server.
    """
    runner = Runner(model, **settings)
    service = Service(model, model.name, runner, limits or sg.Limits(), tool_family)
    made = application(service, api_key=api_key, max_body=max_body, **(app or {}))
    server = Server(made, runner, grace_s=5, head_s=head_s)
    on_server(server)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
