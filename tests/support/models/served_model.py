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
from structgen.models import HashModel, LanguageModel

VOCABULARY = sg.Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b'", "', b"ab", b"true", b'"}'], eos=[0]
)

TAGGED = sg.Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b"", b"", b"", b""],
    eos=[0],
    special={257: "<think>", 258: "</think>", 259: "<tool_call>", 260: "</tool_call>"},
)


class TaggedModel(HashModel):
    """A model of noise that writes the tags of the family hermes where it can."""

    def __init__(self) -> None:
        super().__init__(TAGGED, seed=1)

    def logits(self, state: int, matched: int) -> Any:
        """Noise, with the tags before all else."""
        found = super().logits(state, matched)
        found[257:261] += 20
        return found


@contextmanager
def served(
    model: LanguageModel,
    *,
    limits: sg.Limits | None = None,
    app: Mapping[str, Any] | None = None,
    head_s: float = 30,
    grace_s: float = 5,
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
    server = Server(made, runner, grace_s=grace_s, head_s=head_s)
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
