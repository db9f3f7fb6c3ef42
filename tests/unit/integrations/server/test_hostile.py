"""Bad input to a real server ends in an answer or an error in OpenAI's shape, and the server goes on as before."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given, settings, strategies as st
from served_model import VOCABULARY, served

import structgen as sg
from structgen.integrations.server import app
from structgen.integrations.server.listening import listen
from structgen.integrations.server.protocol import APIError, ChatRequest
from structgen.integrations.server.runner import Runner
from structgen.integrations.server.service import Service
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)

CHAT = "/v1/chat/completions"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Who?"}], "max_tokens": 3}


def checked(answer: httpx.Response) -> str | None:
    """The code of an error, which has OpenAI's shape; None for an answer."""
    if answer.status_code == 200:
        return None
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return str(error["code"])


def connected(url: str, sent: bytes = b"") -> socket.socket:
    """A connection that has sent something."""
    parts = urlsplit(url)
    made = socket.create_connection((parts.hostname, parts.port), timeout=30)
    made.sendall(sent)
    return made


def head(length: int | None, path: str = CHAT) -> bytes:
    """The head of a request whose body has so many bytes, or comes in chunks."""
    body = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{body}\r\n\r\n".encode()


def until_closed(connection: socket.socket) -> bytes:
    """What the server sends before it closes the connection."""
    found = b""
    try:
        while part := connection.recv(1 << 16):
            found += part
    except ConnectionResetError:
        pass
    return found


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 1, 1 << 31, 1 << 63, 10**400, 1e-300, 5e-324, 1e308, "", "\x00", "json_schema", "auto"])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "json_schema", "schema", "role", "content", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = sorted(ChatRequest.model_fields)


@settings(max_examples=60)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, min_size=1, max_size=3))
def test_any_json_in_any_field_is_answered_or_refused(url: str, fields: dict[str, Any]) -> None:
    """A stream too."""
    checked(httpx.post(url + CHAT, json={**ASKED, **fields}, timeout=60))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"temperature": NaN}', "NaN is no number"),
        (b'{"temperature": -Infinity}', "-Infinity is no number"),
        (b'{"temperature": 1e999}', "too large"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "no JSON"),
        (b'{"seed": 1, "seed": 2}', "the name 'seed' twice"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', "no JSON"),
        (b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "no JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        ('{"messages": []}'.encode("utf-16"), "no JSON"),
        (b"", "no JSON"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"response_format": ' + b'{"not": ' * 900 + b"{}" + b"}" * 901, ""),
    ],
)
def test_what_readers_understand_differently_is_no_json(url: str, body: bytes, message: str) -> None:
    """RFC 8259 in UTF-8, and no more."""
    answer = httpx.post(url + CHAT, content=body, timeout=30)
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert checked(answer)


def test_paired_surrogates_are_text(url: str) -> None:
    """Escapes of a character outside the basic plane are no lone surrogates."""
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}], "max_tokens": 2}'
    assert httpx.post(url + CHAT, content=body, timeout=30).status_code == 200


def test_a_stream_of_noise_is_unicode(url: str) -> None:
    """Free text of a model that writes single bytes never has half a character in an event."""
    body = {**ASKED, "max_tokens": 300, "stream": True, "n": 4, "seed": 5}
    answer = httpx.post(url + CHAT, json=body, timeout=60)
    events = [json.loads(line[6:]) for line in answer.content.decode().splitlines() if line.startswith("data: {")]
    texts = [
        "".join(
            each["choices"][0]["delta"].get("content", "") for each in events if each["choices"][0]["index"] == index
        )
        for index in range(4)
    ]
    whole = httpx.post(url + CHAT, json={**body, "stream": False}, timeout=60).json()
    assert texts == [choice["message"]["content"] for choice in whole["choices"]]
    assert any(ord(character) > 127 for character in "".join(texts))


@pytest.mark.parametrize("length", [1 << 40, 10**30, None])
def test_a_huge_body_is_refused_before_it_is_read(url: str, length: int | None) -> None:
    """By its length alone; in chunks, after the bytes that are allowed; and the connection ends."""
    with connected(url, head(length)) as connection:
        if length is None:
            piece = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
            for _ in range(17):  # one more than is allowed
                connection.sendall(piece)
        found = until_closed(connection)
    assert found.startswith((b"HTTP/1.1 413", b"HTTP/1.1 400" if length == 10**30 else b"HTTP/1.1 413"))


def test_a_client_that_is_still_sending_can_read_why_it_is_refused(url: str) -> None:
    """A connection that is closed with unread bytes is reset, and the answer may be lost."""
    with connected(url, head(1 << 30)) as connection:
        assert connection.recv(1, socket.MSG_PEEK) == b"H"
        for _ in range(20):
            connection.sendall(b" " * 0x10000)
            time.sleep(0.001)
        found = b""
        while part := connection.recv(1 << 16):
            found += part
    assert found.startswith(b"HTTP/1.1 413")
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_large"


def test_what_is_no_exception_ends_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A panic of a library in Rust is a ``BaseException``: whoever waits for the answer gets it, and does not hang."""

    class Panic(BaseException):
        """As of PyO3."""

    async def run(_: Runner, task: Any) -> AsyncGenerator[Any, None]:
        await asyncio.sleep(0)
        if task:
            raise Panic
        yield

    async def answered() -> None:
        model = HashModel(VOCABULARY)
        service = Service(model, "hash", Runner(model), sg.Limits())
        await asyncio.wait_for(service.answers([cast("Any", object())]), 20)

    monkeypatch.setattr(Runner, "run", run)
    with pytest.raises(Panic):
        asyncio.run(answered())


def test_a_body_that_does_not_end_is_given_up(serve: Callable[..., str]) -> None:
    """After the seconds that a body has; so is a connection whose request has no end of its head."""
    url = serve(app={"body_s": 0.05}, head_s=0.05)
    with connected(url, head(100) + b'{"messages"') as connection:
        found = until_closed(connection)
    assert found.startswith(b"HTTP/1.1 408")
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["code"] == "body_too_slow"
    for sent in (b"", b"POST / HTTP/1.1\r\nX-Slow: "):
        with connected(url, sent) as connection:
            assert until_closed(connection) == b""
    with connected(url, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") as connection:
        assert until_closed(connection).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "(a{1,1000}){1,1000}"},
        {"type": "string", "pattern": "(.*a.*){40}b(.*c.{20}){9}"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"type": "array", "items": {"enum": [f"{index:x}" * 50 for index in range(6_000)]}, "uniqueItems": True},
        {"type": "object", "properties": {f"p{index}": {"multipleOf": 7919} for index in range(500)}},
        {"type": "array", "minItems": 10**9, "items": {}},
    ],
)
def test_schema_bombs_end_at_a_limit(serve: Callable[..., str], schema: dict[str, Any]) -> None:
    """Or are refused for another reason, or answered; others are answered meanwhile."""
    url = serve(limits=sg.Limits.strict())
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    began = time.process_time()
    answer = httpx.post(url + CHAT, json={**ASKED, "response_format": wanted}, timeout=60)
    assert checked(answer) in {None, "limit_exceeded", "max_tokens_too_small", "invalid_description"}
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/..%2f..%2fetc%2fpasswd",
        "/../../etc/passwd",
        "/v1/models/%00",
        "/v1/%ff",
        "//",
        "/v1/models/hash/../x",
    ],
)
def test_paths_that_try_to_leave_find_nothing(url: str, path: str) -> None:
    """Nothing is read from files by the path."""
    with connected(url, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()) as connection:
        found = until_closed(connection)
    assert found.startswith(b"HTTP/1.1 404")
    assert json.loads(found.partition(b"\r\n\r\n")[2])["error"]["type"] == "not_found_error"


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/chat/completions", "it is at '/v1/chat/completions': give clients the address that ends with /v1, once"),
        ("/v1/v1/models", "it is at '/v1/models': "),
        ("/v1/embeddings", "there are /, /detokenize, /health, /metrics, /tokenize, /v1/chat/completions, "),
        ("/" + "a" * 9_000, "aaa'; there are "),
    ],
)
def test_unknown_paths_are_told_where_things_are(url: str, path: str, told: str) -> None:
    """Most often the address of the client lacks /v1, or has it twice."""
    error = httpx.post(url + path, json={}).json()["error"]
    assert told in error["message"]
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [("GET", CHAT, {"POST"}), ("DELETE", "/v1/models", {"GET", "HEAD"}), ("OPTIONS", CHAT, {"POST"})],
)
def test_wrong_methods_are_told_the_right_one(url: str, method: str, path: str, allowed: set[str]) -> None:
    """In OpenAI's shape, with the header Allow."""
    answer = httpx.request(method, url + path)
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == allowed
    assert checked(answer) == "None"
    assert answer.json()["error"]["message"] == f"{path!r} takes {answer.headers['allow']}; found {method}"
    assert httpx.head(f"{url}/v1/models").status_code == 200


def test_pages_of_other_origins_may_ask_if_they_are_named(url: str, serve: Callable[..., str]) -> None:
    """And none by default."""
    asked = {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in httpx.options(url + CHAT, headers=asked).headers
    named = serve(app={"allow_origin": ["https://good.example"]})
    answer = httpx.options(named + CHAT, headers=asked)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "https://good.example")
    other = httpx.options(named + CHAT, headers={**asked, "Origin": "https://bad.example"})
    assert "access-control-allow-origin" not in other.headers


class Waits(HashModel):
    """A model whose passes wait for the test."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, seed=1)
        self.go_on = threading.Event()
        self.passes = 0

    def logits(self, state: int, matched: int) -> Any:
        assert self.go_on.wait(60)
        self.passes += 1
        return super().logits(state, matched)


def health(url: str) -> dict[str, Any]:
    """How busy the server is."""
    found: dict[str, Any] = httpx.get(f"{url}/health").json()
    return found


def test_a_client_that_goes_away_ends_an_answer_that_is_no_stream(serve: Callable[..., str]) -> None:
    """Before its next pass."""
    model = Waits()
    url = serve(model, max_running=1)
    body = json.dumps({**ASKED, "max_tokens": 1500}).encode()
    with connected(url, head(len(body)) + body):
        while health(url)["running"] != 1:
            time.sleep(0.01)
    model.go_on.set()
    while health(url)["running"]:
        time.sleep(0.01)
    assert model.passes < 1000


def test_parts_of_responses_are_sent_at_once() -> None:
    """Not when the client's system has confirmed the part before, which takes it 40 ms."""
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()) as connecting:
        connection, _ = listening.accept()
        with connection, connecting:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_reader_who_does_not_read_holds_no_place(serve: Callable[..., str]) -> None:
    """The answer is written to its end, and the next one gets its place."""
    url = serve(max_running=1)
    body = json.dumps({**ASKED, "max_tokens": 1500, "stream": True}).encode()
    with connected(url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head(len(body)) + body)
        assert httpx.post(url + CHAT, json=ASKED, timeout=60).status_code == 200


def test_at_the_end_answers_are_finished_and_others_refused() -> None:
    """The stream that runs ends with [DONE]; new requests and health checks get 503."""
    model = Waits()
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(1) as pool:
        with served(model, on_server=lambda server: found.update(server=server)) as url:
            body = {**ASKED, "max_tokens": 5, "stream": True}
            running = pool.submit(httpx.post, url + CHAT, json=body, timeout=60)
            while health(url)["running"] != 1:
                time.sleep(0.01)
            found["server"].should_exit = True
            while httpx.get(f"{url}/health").status_code == 200:
                time.sleep(0.01)
            refused = httpx.post(url + CHAT, json=ASKED, timeout=60)
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
            assert refused.json()["error"]["type"] == "server_error"
            model.go_on.set()
            answer = running.result()
        assert answer.text.endswith("data: [DONE]\n\n")
        assert '"finish_reason":"length"' in answer.text


def test_what_is_not_done_in_time_ends_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """A pass does not end: streams end with an event, others with 503, and the log has one line and no traceback."""
    model = Waits()
    found: dict[str, Any] = {}
    asked = [{**ASKED, "stream": True}, ASKED, {**ASKED, "n": 2}]
    bodies = [json.dumps(body).encode() for body in asked]
    serving = served(model, grace_s=0.2, max_running=2, on_server=lambda server: found.update(server=server))
    with ExitStack() as stack, caplog.at_level("WARNING"):
        with serving as url:
            answers = [stack.enter_context(connected(url, head(len(body)) + body)) for body in bodies]
            unfinished = stack.enter_context(connected(url, head(50) + b"{"))
            while (state := health(url))["running"] + state["waiting"] != 4:
                time.sleep(0.01)
        model.go_on.set()
        stream, *others, half = map(until_closed, [*answers, unfinished])
    told = {"type": "server_error", "param": None, "code": "shutting_down"}
    *_, event, done = [line for line in stream.decode().splitlines() if line.startswith("data: ")]
    assert done == "data: [DONE]"
    errors = [json.loads(event.removeprefix("data: "))["error"]]
    for answer in [*others, half]:
        assert answer.startswith(b"HTTP/1.1 503")
        errors.append(json.loads(answer.partition(b"\r\n\r\n")[2])["error"])
    for error in errors:
        assert error.pop("message").startswith("the server ")
        assert error == told
    lines = [(each.name, each.getMessage()) for each in caplog.records if each.exc_info is None]
    assert len(lines) == len(caplog.records)
    assert [line for name, line in lines if name == "structgen"] == [
        "the server ends; answers that were not done in time, and end with an error: 4"
    ]


def test_all_that_leaves_nothing_behind(serve: Callable[..., str]) -> None:
    """200 connections that vanish, half-open streams, bad requests: threads, sessions and tasks are as before."""
    model = HashModel(VOCABULARY, seed=1, max_context=2000)
    url = serve(model, max_queue=500)
    assert httpx.post(url + CHAT, json=ASKED, timeout=60).status_code == 200
    threads, tasks = set(threading.enumerate()), counted()
    stream = json.dumps({**ASKED, "max_tokens": 1000, "stream": True}).encode()
    for index in range(200):
        sent = (b"", b"POST /v1", head(50) + b"{", head(len(stream)) + stream, b"\x16\x03\x01 noise\r\n\r\n")[index % 5]
        connected(url, sent).close()
    while (state := health(url))["running"] or state["waiting"]:
        time.sleep(0.01)
    assert httpx.post(url + CHAT, json=ASKED, timeout=60).status_code == 200
    for _ in range(1000):
        left = {each for each in set(threading.enumerate()) - threads if not each.name.startswith("asyncio_")}
        if not left and counted() <= tasks:
            break
        time.sleep(0.01)
    assert not left
    assert counted() <= tasks


def test_what_refers_to_itself_is_freed_while_nothing_is_written(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what collections of young objects do not look at; then the allocator gives free memory back."""

    class Kept:
        pass

    returned = threading.Event()
    monkeypatch.setattr(app, "return_memory", returned.set)
    monkeypatch.setattr(app, "_RETURN_S", 0.01)
    monkeypatch.setattr(app, "_DISPOSED_S", 0.0)
    kept = Kept()
    kept.itself = kept  # type: ignore[attr-defined]
    known = weakref.ref(kept)
    gc.collect()  # it is old
    del kept
    assert known() is not None
    young = [[] for _ in range(2_000)]  # type: ignore[var-annotated]
    health(serve())
    while known() is not None:
        time.sleep(0.01)
    assert returned.wait(30)
    assert len(young) == 2_000


def test_an_answer_is_freed_when_it_ends(serve: Callable[..., str]) -> None:
    """No object of an answer refers to itself, so none waits for a full collection, which may be minutes away."""
    url = serve()
    schema = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 4}, "b": {"type": "boolean"}}}
    schema["required"] = ["a", "b"]
    asked = {**ASKED, "max_tokens": 30, "seed": 1}
    described = {**asked, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    bodies: list[dict[str, Any]] = [
        *(asked, {**asked, "n": 2, "stop": ["e"]}, described, {**described, "stream": True, "logprobs": True}),
        {**described, "structgen": {"sampler": {"name": "smc", "particles": 2}, "marginals": False}},
        {**described, "structgen": {"marginals": True, "events": True}},
        {**asked, "max_tokens": 60, "tools": [tool], "tool_choice": "required"},
        {**described, "max_tokens": 2},
        {**asked, "guided_json": {"type": "strin"}},
    ]
    responses = {"input": "Who?", "max_output_tokens": 30, "text": {"format": {"type": "json_schema", "name": "x"}}}
    responses["text"]["format"]["schema"] = schema

    def ask() -> None:
        for body in bodies:
            httpx.post(url + CHAT, json=body, timeout=60)
        assert httpx.post(f"{url}/v1/responses", json=responses, timeout=60).status_code == 200
        with httpx.stream("POST", url + CHAT, json={**asked, "max_tokens": 400, "stream": True}, timeout=60) as left:
            next(left.iter_lines())
        while (state := health(url))["running"] or state["waiting"]:
            time.sleep(0.01)

    ask()  # what is made once
    gc.collect()
    gc.disable()
    try:
        ask()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        of_answers = ("structgen.decode", "structgen.engine", "structgen.models", "structgen.integrations")
        found = {type(each).__qualname__ for each in gc.garbage if type(each).__module__.startswith(of_answers)}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert found <= {"Connection", "_Lingering"}  # uvicorn's connections refer to themselves


def counted() -> int:
    """How many tasks of event loops there are."""
    gc.collect()
    return sum(type(each) is asyncio.Task and not each.done() for each in gc.get_objects())


def test_requests_that_are_prepared_take_room() -> None:
    """Each is asked once: what was admitted is not refused later, and many at a time do not overfill the queue."""
    runner = Runner(HashModel(VOCABULARY), max_running=1, max_queue=2)
    with runner.admitted(2), runner.admitted():
        with pytest.raises(APIError) as caught, runner.admitted():
            pass
        assert caught.value.code == "queue_full"
    with pytest.raises(ValueError, match="malformed"), runner.admitted(3):
        raise ValueError("malformed")
    with runner.admitted(3):
        pass
    asyncio.run(runner.close())
