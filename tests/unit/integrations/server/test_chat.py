"""Chats over HTTP, with OpenAI's client: what it reads, and that answers are those of ``generate``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from served_model import VOCABULARY

import structgen as sg
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)

MESSAGES: list[Any] = [{"role": "user", "content": "Who?"}]


class Person(BaseModel):
    """What is asked for."""

    name: str
    age: int
    tags: list[str]


def alone(index: int, max_tokens: int) -> str:
    """The answer of ``generate``."""
    model = HashModel(VOCABULARY, seed=1, max_context=2000)
    grammar = sg.json_schema(openai.lib._pydantic.to_strict_json_schema(Person))
    return sg.generate(model, [{"role": "user", "content": f"Who {index}?"}], grammar, max_tokens=max_tokens).text


@pytest.mark.parametrize("max_tokens", [27, 40, 200])
def test_what_is_parsed_is_complete_within_any_limit(client: OpenAI, max_tokens: int) -> None:
    """Even with a model of noise, and whatever the seed."""
    for seed in range(3):
        answer = client.chat.completions.create(
            model="hash",
            messages=MESSAGES,
            max_tokens=max_tokens,
            seed=seed,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": openai.lib._pydantic.to_strict_json_schema(Person)},
            },
        )
        text = answer.choices[0].message.content
        assert text is not None
        Person.model_validate_json(text)
        assert answer.usage is not None
        assert answer.usage.completion_tokens <= max_tokens


def test_interleaved_requests_are_answered_as_alone(client: OpenAI) -> None:
    """Sixteen at a time, of different lengths, half of them streamed."""

    def ask(index: int) -> str:
        arguments: dict[str, Any] = {
            "model": "hash",
            "messages": [{"role": "user", "content": f"Who {index}?"}],
            "max_tokens": 27 + 7 * index,
            "temperature": 0,
            "response_format": Person,
        }
        if index % 2:
            with client.chat.completions.stream(**arguments) as stream:
                text = "".join(event.delta for event in stream if event.type == "content.delta")
                parsed = stream.get_final_completion().choices[0].message.parsed
            assert parsed == Person.model_validate_json(text)
            return text
        content = client.chat.completions.create(
            **{
                **arguments,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "p", "schema": openai.lib._pydantic.to_strict_json_schema(Person)},
                },
            }
        )
        return content.choices[0].message.content or ""

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(16)))
    assert found == [alone(index, 27 + 7 * index) for index in range(16)]


def test_several_answers_have_seeds_of_their_own(client: OpenAI) -> None:
    """The first is that of the seed, and all are valid."""
    several = client.chat.completions.create(model="hash", messages=MESSAGES, n=4, seed=7, max_tokens=12)
    texts = [choice.message.content for choice in several.choices]
    assert len(set(texts)) == 4
    one = client.chat.completions.create(model="hash", messages=MESSAGES, seed=7, max_tokens=12)
    assert one.choices[0].message.content == texts[0]


def test_a_json_object_is_one(client: OpenAI) -> None:
    """The document of RFC 8259, whatever the noise."""
    answer = client.chat.completions.create(
        model="hash", messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=40, seed=3
    )
    jsonschema.validate(json.loads(answer.choices[0].message.content or ""), {"type": "object"})


def test_a_stream_ends_with_its_usage(client: OpenAI) -> None:
    """In a chunk without choices, as clients expect it."""
    chunks = list(
        client.chat.completions.create(
            model="hash", messages=MESSAGES, max_tokens=9, seed=1, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 9
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["length"]


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        (b"{", 400, None, "no JSON"),
        (b"[" * 100_000, 400, None, ""),
        (b"[1]", 400, None, "must be a JSON object"),
        (b'{"messages": []}', 400, "messages", "at least 1 item"),
        (b'{"messages": [{"role": "user", "content": "x"}], "temperature": "1"}', 400, "temperature", "number"),
        (b'{"messages": [{"role": "user", "content": "x"}], "guided_magic": 1}', 400, "guided_magic", "not supported"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "max_token": 1}',
            400,
            "max_token",
            "leave it out; is 'max_tokens' meant?",
        ),
        (b'{"messages": [{"role": "user", "content": "x"}], "model": "gpt-9"}', 404, "model", "there is no 'gpt-9'"),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 9999}',
            400,
            "messages",
            "the context holds 2000",
        ),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema",'
            b' "json_schema": {"schema": {"type": "string", "minLength": 500}}}, "max_tokens": 20}',
            400,
            "max_tokens",
            "at least",
        ),
        (
            b'{"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_schema",'
            b' "json_schema": {"schema": {"type": "strin"}}}}',
            400,
            "response_format.json_schema.schema#/type",
            "#/type",
        ),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
            400,
            "messages[0].content[0]",
            "image_url",
        ),
        (b'{"x": "' + b"x" * (1 << 20) + b'"}', 413, None, "larger than"),
    ],
)
def test_bad_requests_are_explained(url: str, body: bytes, status: int, param: str | None, message: str) -> None:
    """In OpenAI's shape, and the server goes on."""
    answer = httpx.post(f"{url}/v1/chat/completions", content=body, timeout=30)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]
    assert httpx.get(f"{url}/health").json()["status"] == "ok"


def test_fields_that_change_nothing_are_named(url: str) -> None:
    """In a header of the answer."""
    body = {"messages": MESSAGES, "user": "me", "metadata": {}, "max_tokens": 2}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body)
    assert answer.headers["structgen-ignored"] == "metadata, user"


def test_a_wrong_key_is_refused(serve: Callable[..., str]) -> None:
    """Everywhere but where a load balancer looks."""
    url = serve(api_key="secret")
    for headers in ({}, {"Authorization": "Bearer secre"}, {"Authorization": "secret"}):
        for path in ("/v1/models", "/v1/models/hash"):
            assert httpx.get(url + path, headers=headers).status_code == 401
        assert httpx.post(f"{url}/v1/chat/completions", json={}, headers=headers).status_code == 401
    assert httpx.get(f"{url}/health").status_code == 200
    with OpenAI(base_url=f"{url}/v1", api_key="secret") as client:
        assert [model.id for model in client.models.list()] == ["hash"]
        assert client.models.retrieve("hash").id == "hash"
        with pytest.raises(openai.NotFoundError, match="there is no 'other'"):
            client.models.retrieve("other")


class Slow(HashModel):
    """A model whose passes wait for the test."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, seed=1)
        self.go_on = threading.Event()
        self.passes = 0

    def logits(self, state: int, matched: int) -> Any:
        assert self.go_on.wait(60)
        self.passes += 1
        return super().logits(state, matched)


def test_a_full_queue_says_so(serve: Callable[..., str]) -> None:
    """With the time after which to try again; those that were admitted are answered."""
    model = Slow()
    url = serve(model, max_running=1, max_queue=1)
    body = {"messages": MESSAGES, "max_tokens": 2}
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(httpx.post, f"{url}/v1/chat/completions", json=body, timeout=60) for _ in range(2)]
        while httpx.get(f"{url}/health").json() != {"status": "ok", "running": 1, "waiting": 1}:
            time.sleep(0.01)
        refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        model.go_on.set()
        assert [each.result().status_code for each in asked] == [200, 200]


def test_a_client_that_goes_away_ends_its_answer(serve: Callable[..., str]) -> None:
    """Before the next pass, so that the only place is free for the next request."""
    model = Slow()
    url = serve(model, max_running=1)
    body = {"messages": MESSAGES, "max_tokens": 1500, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    model.go_on.set()
    after = httpx.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 2}, timeout=60)
    assert after.status_code == 200
    assert model.passes < 1000
