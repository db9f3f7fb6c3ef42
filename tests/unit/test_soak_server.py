"""What the clients of the server's soak do goes well on a server of toys, and what is wrong is found."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema_rs")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from served_model import VOCABULARY, served
from soak_client import FULL, Cases, Client, Target
from soak_ledger import Ledger
from soak_refusals import REFUSALS, strangers
from soak_requests import ACTIONS, chat, responses
from soak_sources import Workbench

import structgen as sg
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)

KEY = "soak-key"
TURNS: dict[Callable[[Client, random.Random], None], float] = {**ACTIONS, **REFUSALS}


@pytest.fixture(scope="module")
def cases() -> Cases:
    """Generated schemas alone."""
    bench = Workbench(0, has_embedded=False)
    vars(bench).update(schemas=[])
    return Cases(bench, VOCABULARY)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    model = HashModel(VOCABULARY, seed=1, max_context=20_000)
    settings: dict[str, Any] = {"limits": sg.Limits.strict(), "max_body": 4 << 20, "max_running": 8, "max_queue": 16}
    with served(model, api_key=KEY, **settings) as address:
        yield address


def findings(url: str, cases: Cases, turn: Callable[[Client, random.Random], None], seeds: range) -> Ledger:
    """What becomes of some turns of one client."""
    ledger = Ledger()
    client = Client(Target(url, KEY, 24, VOCABULARY), cases, ledger)
    for seed in seeds:
        with client.working(turn.__name__, seed):
            turn(client, random.Random(seed))
    client.http.close()
    return ledger


@pytest.mark.parametrize("turn", TURNS, ids=lambda turn: turn.__name__)
def test_each_turn_goes_well(url: str, cases: Cases, turn: Callable[[Client, random.Random], None]) -> None:
    ledger = findings(url, cases, turn, range(3))
    assert ledger.findings == []
    assert ledger.tasks[turn.__name__] == 3
    assert set(ledger.verdicts[turn.__name__]) <= {"valid"}


@contextmanager
def stubbed(status: int, body: bytes) -> Iterator[str]:
    """A server that says the same to all."""

    class Stub(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.do_POST()

        def do_PUT(self) -> None:
            self.do_POST()

        def do_DELETE(self) -> None:
            self.do_POST()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


WRONG = {"message": {"content": "\0"}, "finish_reason": "length", "index": 0, "delta": {"content": "\0"}}


@pytest.mark.parametrize(
    ("turn", "status", "body", "expected"),
    [
        (chat, 200, json.dumps({"choices": [WRONG], "usage": {"completion_tokens": 9999}}).encode(), "does not admit"),
        (chat, 200, b"data: " + json.dumps({"choices": [WRONG]}).encode() + b"\n\n", "the stream has no end"),
        (responses, 500, b'{"error": {"message": "x", "type": "x", "param": null, "code": null}}', "status 500"),
        (responses, 400, b'{"detail": "x"}', "no error of OpenAI's"),
        (responses, 429, b'{"error": {"message": "x", "type": "x", "param": null, "code": "queue_full"}}', "not full"),
        (strangers, 200, b'{"choices": []}', "expected ['401 invalid_api_key']"),
    ],
)
def test_what_is_wrong_is_found(
    cases: Cases, turn: Callable[[Client, random.Random], None], status: int, body: bytes, expected: str
) -> None:
    """An invalid output, a stream that is cut off, a server error, another shape, and a refusal that does not come."""
    turns = {"chat": range(12), "responses": range(4), "strangers": range(1)}[turn.__name__]
    with stubbed(status, body) as url:
        found: list[str] = []
        for seed in turns:  # some of them do not expect an answer, and cannot read what is no stream, or is one
            try:
                found += findings(url, cases, turn, range(seed, seed + 1)).findings
            except (ValueError, KeyError):
                continue
    assert any(expected in each for each in found)


def test_a_full_queue_is_the_clients_affair(cases: Cases) -> None:
    """If the server says how full it is, and when to come again; the stub does not."""
    with stubbed(429, b'{"error": {"message": "x", "type": "x", "param": null, "code": "queue_full"}}') as url:
        ledger = findings(url, cases, responses, range(3))
    assert ledger.errors["responses"][FULL] > 0
    assert all("not full" in finding for finding in ledger.findings)
