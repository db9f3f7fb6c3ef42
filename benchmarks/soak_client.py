"""A client of ``soak_server.py``: sends requests, and checks each answer by what HTTP and OpenAI's interface promise.

A request says which errors it may be answered with.  Any other status is a finding, and so are an error without
OpenAI's shape, a stream that does not end with ``[DONE]``, and an answer that does not come.
"""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
from soak_ledger import Ledger
from soak_sources import Output, Workbench, read, verdict

import structgen as sg

__all__ = ["BODY_S", "Answered", "Case", "Cases", "Client", "Gone", "Target"]

HANGS_S: Final = 600.0
BODY_S: Final = 30.0
"""Seconds in which the server waits for a body."""
CASES: Final = 1 << 11
LIMIT: Final = "400 limit_exceeded"
"""A limit on the work for the client's description, which may also be met while the answer is written."""
FULL: Final = "429 queue_full"
_ERROR: Final = {"message", "type", "param", "code"}
_COUNTS: Final = re.compile(r"(\d+) answers are being written and (\d+) wait")


class Gone(Exception):
    """The client has gone away, as it meant to."""


class Target(NamedTuple):
    """A server.

    Attributes:
        url: its address.
        key: what it asks for.
        room: how many answers it writes or lets wait.
        vocabulary: of its model.
    """

    url: str
    key: str
    room: int
    vocabulary: sg.Vocabulary


@dataclass(frozen=True, slots=True)
class Case:
    """A description, and what must become of it.

    Attributes:
        kind: ``"schema"``, ``"regex"`` or ``"lark"``.
        text: of the description.
        refusal: the error that it ends in; None if answers are written.
        least: tokens of its shortest string; 0 where it is refused.
        is_near: whether this process needs more than the strict limits for it.  What a limit stops depends on what an
            engine has met before: the server may refuse it or not, and what it writes is judged as any other output.
    """

    kind: str
    text: str
    refusal: str | None
    least: int
    is_near: bool = False


class Cases:
    """Random descriptions.  Which of them are refused is asked of the library, without a server."""

    def __init__(self, bench: Workbench, vocabulary: sg.Vocabulary) -> None:
        self._bench = bench
        self._vocabulary = vocabulary
        self._made = cache(self._make)

    def draw(self, rng: random.Random, kinds: str = "") -> Case:
        """One of them; only usable ones of these kinds if there are any given."""
        while True:
            case = self._made(rng.randrange(CASES))
            if not kinds or (case.kind[0] in kinds and case.refusal is None and not case.is_near):
                return case

    def _make(self, number: int) -> Case:
        kind, text = self._bench.notation(random.Random(f"case {number}"), "ssssrl")
        for limits in (sg.Limits.strict(), sg.Limits()):
            try:
                grammar = read(kind, text, limits).grammar
                least = sg.compile(grammar, self._vocabulary, limits=limits).min_tokens()
            except sg.errors.LimitExceeded:
                continue
            except sg.errors.GrammarError:
                return Case(kind, text, "400 invalid_description", 0)
            return Case(kind, text, None, least, is_near=limits != sg.Limits.strict())
        return Case(kind, text, LIMIT, 0)


class Answered(NamedTuple):
    """What came back.

    Attributes:
        code: the status with the code of the error; an empty text for an answer.
        value: the body, or the events of the stream.
    """

    code: str
    value: Any


class Client:
    """One of the clients.

    Args:
        target: the server.
        cases: descriptions.
        ledger: of all clients.
    """

    def __init__(self, target: Target, cases: Cases, ledger: Ledger) -> None:
        self.target = target
        self.cases = cases
        self.seed = 0
        self._ledger = ledger
        self._name = ""
        headers = {"Authorization": f"Bearer {target.key}"}
        self.http = httpx.Client(base_url=target.url, headers=headers, timeout=HANGS_S)

    @contextmanager
    def working(self, name: str, seed: int) -> Iterator[None]:
        """Name what the client does, for findings."""
        self._name, self.seed = name, seed
        began = time.monotonic()
        try:
            yield
        except Gone:
            self.note("gone away")
        except httpx.TimeoutException as error:
            self.found(f"no answer in {HANGS_S:.0f} s: {type(error).__name__}")
        except httpx.TransportError as error:
            self.found(f"the connection failed: {error!r}")
        else:
            self._ledger.took(name, seed, 1e3 * (time.monotonic() - began))
        with self._ledger.lock:
            self._ledger.tasks[name] += 1

    def note(self, what: str) -> None:
        """Count how a request ended other than with an answer."""
        with self._ledger.lock:
            self._ledger.errors[self._name][what] += 1

    def found(self, what: str) -> None:
        """Note something wrong."""
        self._ledger.found(f"{self._name}, seed {self.seed}: {what}")

    def check(self, holds: object, what: str) -> None:
        """Note something wrong unless it holds."""
        if not holds:
            self.found(what)

    def judge(self, outputs: list[Output], body: Any) -> None:
        """Judge outputs by the validators of their sources."""
        verdicts = [(verdict(output), output) for output in outputs]
        with self._ledger.lock:
            self._ledger.verdicts[self._name].update(each for each, _ in verdicts)
        for each, (source, text) in verdicts:
            if each == "invalid":
                self.found(f"{source.kind} {source.text:.1500} does not admit {text!r:.800}; asked {said(body)}")

    def post(self, path: str, body: Any, may: set[str] = frozenset()) -> Any:  # type: ignore[assignment]
        """Send a request; the body of its answer, or None for an error that it may end in."""
        return self._settled(self._whole(path, body), may, body)

    def refused(self, path: str, body: Any, codes: set[str], **settings: Any) -> None:
        """Send a request that must be refused with one of these codes, as a stream or not."""
        found = self._whole(path, body, **settings)
        self.check(
            found.code in codes, f"expected {sorted(codes)}; found {found.code or found.value!r:.300}; {said(body)}"
        )
        self.note(found.code or "answered")

    def stream(self, path: str, body: Any, may: set[str] = frozenset(), *, leave: int = -1, wait_s: float = 0.0) -> Any:  # type: ignore[assignment]
        """Send a request and read its stream; its events, or None for an error that it may end in.

        Raises:
            Gone: the client has left after ``leave`` events.
        """
        return self._settled(self._events(path, {**body, "stream": True}, leave, wait_s), may, body)

    def _settled(self, found: Answered, may: set[str], body: Any) -> Any:
        if not found.code:
            return found.value
        self.note(found.code)
        self.check(found.code in may, f"{found.code}: {found.value!r:.600}; asked {said(body)}")
        return None

    def _whole(self, path: str, body: Any, **settings: Any) -> Answered:
        sent = {"content": body} if isinstance(body, bytes) else {"json": body}
        answer = self.http.request(settings.pop("method", "POST"), path, **sent, **settings)
        if answer.status_code == 200:
            return Answered("", answer.json())
        return Answered(self._code(answer), answer.text)

    def _events(self, path: str, body: Any, leave: int, wait_s: float) -> Answered:
        events: list[dict[str, Any]] = []
        is_done = False
        with self.http.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                return Answered(self._code(answer), answer.text)
            for line in answer.iter_lines():
                if not line.startswith("data: "):
                    continue
                self.check(not is_done, "an event after [DONE]")
                is_done = line == "data: [DONE]"
                if not is_done:
                    events.append(json.loads(line[6:]))
                if len(events) == leave:
                    raise Gone
                time.sleep(wait_s)
        self.check(is_done, f"the stream has no end: {events[-1:]}; asked {said(body)}")
        errors = [event["error"] for event in events if "choices" not in event and event.get("error")]
        if errors:
            self.check(set(errors[0]) == _ERROR, f"an error without OpenAI's shape: {errors[0]}")
            return Answered(f"in the stream {errors[0]['code']}", errors[0])
        return Answered("", events)

    def _code(self, answer: httpx.Response) -> str:
        """The status and code of an error, which must be the client's."""
        try:
            error = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            error = {}
        self.check(set(error) == _ERROR and bool(error.get("message")), f"no error of OpenAI's: {answer.text:.300}")
        self.check(400 <= answer.status_code < 500, f"status {answer.status_code}: {answer.text:.600}")
        if answer.status_code == 429:
            counts = _COUNTS.search(error.get("message") or "")
            self.check(
                counts is not None and "retry-after" in answer.headers, f"a queue that is not full: {answer.text}"
            )
        return f"{answer.status_code} {error.get('code')}"

    def connected(self, sent: bytes = b"") -> socket.socket:
        """A connection that has sent something."""
        parts = urlsplit(self.target.url)
        made = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=HANGS_S)
        made.sendall(sent)
        return made

    def head(self, path: str, length: int) -> bytes:
        """The head of a request whose body has so many bytes."""
        fields = f"Host: x\r\nAuthorization: Bearer {self.target.key}\r\nContent-Length: {length}"
        return f"POST {path} HTTP/1.1\r\n{fields}\r\n\r\n".encode()


def said(body: Any) -> str:
    """A body, for findings."""
    return (json.dumps(body) if not isinstance(body, bytes) else repr(body))[:1500]
