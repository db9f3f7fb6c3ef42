"""A server on the loopback that speaks OpenAI's protocol and gives scripted answers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CANARY = "Say hello."


class Stub:
    """The behaviour of the server; tests change it between requests.

    Attributes:
        dialects: the dialects whose constraints it enforces.
        texts: its answers in turn; canaries are answered separately.
        piece: characters in one event.
        instead: may handle a request by its number from 0, and returns whether it did.
        requests: path and body of all requests but canaries.
        canaries: bodies of the canaries.
        headers: of the last request.
    """

    def __init__(self) -> None:
        self.dialects: set[str] = {"vllm"}
        self.texts: list[str] = []
        self.piece = 4
        self.finish_reason: str | None = "stop"
        self.instead: Callable[[BaseHTTPRequestHandler, int], bool] = lambda handler, number: False
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.canaries: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.number = 0
        self.gone = threading.Event()
        self.url = ""

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body in self.requests]

    def says(self, body: dict[str, Any]) -> str:
        asked = body.get("prompt") or body["messages"][-1]["content"]
        return self._canary(body) if asked == CANARY else self.texts.pop(0)

    def _canary(self, body: dict[str, Any]) -> str:
        if "vllm" in self.dialects and "structured_outputs" in body:
            return str(body["structured_outputs"]["choice"][1])
        if "vllm_guided" in self.dialects and "guided_choice" in body:
            return str(body["guided_choice"][0])
        for dialect, name in (("sglang", "ebnf"), ("llama_server", "grammar")):
            if dialect in self.dialects and name in body:
                return re.findall('"(.*?)"', body[name])[0]
        if "openai" in self.dialects and "response_format" in body:
            schema = body["response_format"]["json_schema"]["schema"]
            return json.dumps({"answer": schema["properties"]["answer"]["enum"][1]})
        return "Hello! How can I help you today?"


def chunk(body: dict[str, Any], text: str | None, finish: str | None = None) -> bytes:
    held = {"text": text or ""} if "prompt" in body else {"delta": {} if text is None else {"content": text}}
    event = {"object": "chunk", "choices": [{"index": 0, "finish_reason": finish, **held}]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def reply(handler: BaseHTTPRequestHandler, status: int, body: Any, **headers: str) -> bool:
    """Answer with a status and JSON or text; return True, so that ``instead`` can return it."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)
    return True


def begin(handler: BaseHTTPRequestHandler) -> None:
    """Begin a stream of events."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.send_header("Connection", "close")
    handler.end_headers()


class _Handler(BaseHTTPRequestHandler):
    stub: Stub

    def do_POST(self) -> None:
        stub = self.stub
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub.headers = dict(self.headers)
        messages = body.get("messages") or [{"content": body["prompt"]}]
        is_canary = messages[-1]["content"] == CANARY
        number, stub.number = stub.number, stub.number + 1
        if is_canary:
            stub.canaries.append(body)
        else:
            stub.requests.append((self.path, body))
        if stub.instead(self, number):
            return
        begin(self)
        text = stub.says(body)
        self.wfile.write(b": a comment\n\n")
        try:
            for at in range(0, len(text), stub.piece):
                self.wfile.write(chunk(body, text[at : at + stub.piece]))
                self.wfile.flush()
                if is_canary or stub.piece > 3:
                    continue
                time.sleep(0.01)
        except OSError:
            stub.gone.set()
            return
        if stub.finish_reason is None:
            return
        self.wfile.write(chunk(body, None, "stop" if is_canary else stub.finish_reason))
        usage = {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": len(text)}}
        self.wfile.write(b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def running_stub() -> Iterator[Stub]:
    stub = Stub()
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": stub}))
    stub.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
