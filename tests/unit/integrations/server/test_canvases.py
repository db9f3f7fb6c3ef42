"""Diffusion models over HTTP: canvases within their descriptions and limits, given out in the order of the text."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import lark
import numpy as np
import pytest
from openai import OpenAI
from pydantic import BaseModel
from served_model import served

import structgen as sg
from structgen.models.diffusion import HashDiffusion

pytestmark = pytest.mark.timeout(120)

VOCABULARY = sg.Vocabulary(
    [b"", *(bytes([byte]) for byte in range(256)), b'{"', b'":', b'","', b"true", b""], eos=[0], special={261: "<mask>"}
)
MESSAGES: list[Any] = [{"role": "user", "content": "?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "big": {"type": "boolean"}},
    "required": ["name", "big"],
    "additionalProperties": False,
}
NESTED = 'start: "(" start ")" | "x"'


class Slow:
    """A model of noise whose passes wait until they may go on, and are counted."""

    def __init__(self) -> None:
        self._inner = HashDiffusion(VOCABULARY, seed=1)
        self.name, self.vocabulary, self.mask_token = "slow", VOCABULARY, self._inner.mask_token
        self.max_context = None
        self.encode_prompt = self._inner.encode_prompt
        self.gate = threading.Semaphore(0)
        self.passes = self.closed = 0

    def start(self, prompt_ids: Any, /) -> Any:
        """A denoiser that waits."""
        inner, model = self._inner.start(prompt_ids), self

        class Waiting:
            forwards = property(lambda _: inner.forwards)

            def denoise(self, *args: Any, **options: Any) -> Any:
                model.gate.acquire()
                model.passes += 1
                return inner.denoise(*args, **options)

            def close(self) -> None:
                model.closed += 1
                inner.close()

        return Waiting()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server with a diffusion model of noise."""
    model = HashDiffusion(VOCABULARY, seed=1)
    model.max_context = 2000
    with served(model) as address:
        yield address


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    """OpenAI's client."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as made:
        yield made


class City(BaseModel):
    """What is asked for."""

    name: str
    big: bool


def test_answers_are_those_of_generate(client: OpenAI) -> None:
    """Sampled at the temperature of the request, the most probable canvas at 0, complete within the limit."""
    model = HashDiffusion(VOCABULARY, seed=1)
    grammar = sg.json_schema(SCHEMA, whitespace="compact")
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    for temperature, sampler in ((0, sg.diffusion.Dingo()), (0.7, sg.diffusion.Posterior())):
        made = client.chat.completions.create(
            model="hash", messages=MESSAGES, response_format=form, max_tokens=26, temperature=temperature, seed=3
        )
        alone = sg.generate(
            model, MESSAGES, grammar, max_tokens=26, sampler=sampler, temperature=temperature or 1.0, seed=3
        )
        (choice,) = made.choices
        assert choice.message.content == alone.text
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(alone.text), SCHEMA)
        assert made.usage is not None
        assert made.usage.completion_tokens == alone.stats.tokens <= 26


def test_streams_are_in_the_order_of_the_text(client: OpenAI) -> None:
    """Deltas join to the whole, in several pieces, with fields once they are final; responses have them too."""
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    fields: dict[str, Any] = {"model": "hash", "messages": MESSAGES, "response_format": form, "max_tokens": 30}
    fields |= {"seed": 5, "extra_body": {"structgen": {"events": True}}}
    whole = client.chat.completions.create(**fields)
    chunks: list[Any] = list(client.chat.completions.create(**fields, stream=True))
    deltas = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert "".join(deltas) == whole.choices[0].message.content
    assert len(deltas) > 2
    events = [
        event
        for chunk in chunks
        for event in (chunk.choices[0].model_extra or {}).get("structgen", {}).get("events", ())
    ]
    found = {event["pointer"]: event["value"] for event in events}
    assert found[""] == json.loads("".join(deltas))
    assert found["/big"] == found[""]["big"]
    assert chunks[-1].choices[0].finish_reason == "stop"
    made = client.responses.parse(model="hash", input="?", text_format=City, max_output_tokens=60)
    assert made.output_parsed is not None


@pytest.mark.parametrize(
    ("fields", "judge"),
    [
        ({"regex": "[ab]{3}é(x|yz)"}, lambda text: re.fullmatch("[ab]{3}é(x|yz)", text)),
        ({"structured_outputs": {"choice": ["one", "two"]}}, lambda text: text in ("one", "two")),
        ({"structured_outputs": {"grammar": NESTED}}, lambda text: lark.Lark(NESTED).parse(text)),
        ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
        ({}, lambda text: isinstance(text, str)),
    ],
)
def test_completions_take_descriptions(url: str, fields: dict[str, Any], judge: Callable[[str], Any]) -> None:
    """Regular and recursive ones, several at a time, each with its own seed; and free text."""
    body = {"prompt": ["a", "b"], "n": 2, "max_tokens": 12, "seed": 1, **fields}
    choices = httpx.post(f"{url}/v1/completions", json=body, timeout=90).json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert all(judge(choice["text"]) for choice in choices)
    alone = httpx.post(f"{url}/v1/completions", json={**body, "prompt": "b", "seed": 3, "n": 1}, timeout=90).json()
    assert alone["choices"][0]["text"] == choices[2]["text"]


def test_calls_are_filled_too(client: OpenAI) -> None:
    """As any other description."""
    tool: Any = {"type": "function", "function": {"name": "find", "parameters": SCHEMA}}
    made = client.chat.completions.create(
        model="hash", messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=70
    )
    (call,) = made.choices[0].message.tool_calls or ()
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMA)


def test_policies_and_samplers_have_names(url: str) -> None:
    """Those of the command line."""
    body = {"messages": MESSAGES, "regex": "[ab]{12}", "max_tokens": 12, "seed": 1}
    passes = {}
    for policy in ("static", {"name": "static", "per_step": 6}):
        extra = {"sampler": "dingo", "policy": policy}
        answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "structgen": extra}, timeout=60).json()
        passes[str(policy)] = answer["choices"][0]["structgen"]["forwards"]
    assert sorted(passes.values()) == [2, 12]


class Caching(HashDiffusion):
    """A model of noise that keeps what it said of slots, and counts the slots that it runs."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, seed=1)
        self.live: list[int] = []

    def start(self, prompt_ids: Any, /) -> Any:
        """A denoiser whose slots that are not live say what they said before."""
        inner, model = super().start(prompt_ids), self

        class Keeping:
            forwards = property(lambda _: inner.forwards)
            denoise, close = staticmethod(inner.denoise), staticmethod(inner.close)

            def forget(self) -> None:
                self.said: Any = None

            def denoise_live(self, canvas: Any, live: Any) -> Any:
                now = inner.denoise(canvas[None])[0]
                self.said = now if self.said is None else np.where(live[:, None], now, self.said)
                model.live.append(int(live.sum()))
                return self.said.copy()

        return Keeping()


def test_blocks_and_reuse_are_those_of_generate(serve: Callable[..., str]) -> None:
    """A pass runs the slots of a block, after the first one of each block."""
    model, alone = Caching(), Caching()
    ways: list[tuple[Any, Any]] = [
        ({"name": "delayed", "interval": 3}, sg.diffusion.DelayedReuse(interval=3)),
        ("dual", sg.diffusion.DualReuse()),
    ]
    url = serve(model)
    for named, reuse in ways:
        body = {"messages": MESSAGES, "regex": "[a-f]{12}", "max_tokens": 12, "seed": 1, "temperature": 0}
        body["structgen"] = {"block": 4, "reuse": named}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
        grammar = sg.regex("[a-f]{12}")
        expected = sg.generate(alone, MESSAGES, grammar, max_tokens=12, block=4, reuse=reuse, seed=1)
        assert answer["choices"][0]["message"]["content"] == expected.text
    assert model.live == alone.live
    assert sum(model.live[-12:]) == 3 * (12 + 3 * 4)


def test_a_model_that_keeps_nothing_reuses_nothing(serve: Callable[..., str]) -> None:
    """Streams are refused too, before their status is sent."""
    body = {"messages": MESSAGES, "max_tokens": 9, "stream": True, "structgen": {"reuse": "dual"}}
    refused = httpx.post(f"{serve(Slow())}/v1/chat/completions", json=body, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "structgen.reuse")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 5}, "top_k"),
        ({"min_p": 0.5}, "min_p"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": "x"}, "stop"),
        ({"structgen": {"sampler": "smc"}}, "structgen.sampler"),
        ({"structgen": {"sampler": "beam"}}, "structgen.sampler"),
        ({"structgen": {"policy": "fast"}}, "structgen.policy"),
        ({"structgen": {"policy": {"name": "threshold", "confidence": 7}}}, "structgen.policy"),
        ({"structgen": {"block": 0}}, "structgen.block"),
        ({"structgen": {"reuse": "all"}}, "structgen.reuse"),
        ({"structgen": {"marginals": True}, "regex": "a|b"}, "structgen.marginals"),
        ({"structgen": {"canonical": True}}, "structgen.canonical"),
        ({"structgen": {"trace": True}, "stream": True}, "structgen.trace"),
        ({"max_tokens": 2, "regex": "a{9}"}, "max_tokens"),
        ({"max_tokens": 5000}, "messages"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"uniqueItems": True}}}},
            "response_format",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(url: str, fields: dict[str, Any], param: str) -> None:
    """Before the model runs, in streams too; values that change nothing are taken."""
    answer = httpx.post(
        f"{url}/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 9, **fields}, timeout=60
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    neutral = {"top_p": 1, "top_k": -1, "frequency_penalty": 0, "logit_bias": {}, "logprobs": False, "stop": None}
    body = {"messages": MESSAGES, "max_tokens": 4, "regex": "ab", **neutral}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).status_code == 200


def test_policies_are_of_canvases(serve: Callable[..., str]) -> None:
    """A model that writes token by token refuses them; both say what they are."""
    url = serve()
    for name, value in (("policy", "static"), ("block", 4), ("reuse", "dual")):
        body = {"messages": MESSAGES, "structgen": {name: value}}
        refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert refused.json()["error"]["param"] == f"structgen.{name}"
    assert httpx.get(f"{url}/v1/models").json()["data"][0]["structgen"] == {"decoder": "autoregressive"}


def test_the_kind_is_told(client: OpenAI) -> None:
    """With the room of the context."""
    (model,) = client.models.list().data
    assert model.model_extra is not None
    assert model.model_extra["structgen"] == {"decoder": "diffusion"}
    assert model.model_extra["max_model_len"] == 2000


def test_a_canvas_ends_with_its_client() -> None:
    """Before the next pass, and its caches are freed; others go on."""
    model = Slow()
    with served(model, max_running=1, max_queue=1) as url:
        body = {"messages": MESSAGES, "regex": "[ab]{30}", "max_tokens": 30, "stream": True}
        with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as stream:
            next(stream.iter_lines())
            model.gate.release()
        time.sleep(0.1)
        model.gate.release()  # of a pass that had begun
        ended = time.monotonic() + 60
        while httpx.get(f"{url}/health").json()["running"] and time.monotonic() < ended:
            time.sleep(0.05)
        assert model.closed == 1
        assert model.passes <= 3
        model.gate.release(100)
        answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": False}, timeout=60).json()
        assert re.fullmatch("[ab]{30}", answer["choices"][0]["message"]["content"])


def test_the_time_of_a_canvas_is_limited() -> None:
    """Its next pass does not begin."""
    model = Slow()
    with served(model, time_limit_s=0.5) as url:
        threading.Timer(2, model.gate.release, (1000,)).start()
        body = {"messages": MESSAGES, "regex": "[ab]{30}", "max_tokens": 30}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "time_limit"
        assert model.passes == 1
        assert model.closed == 1


def test_the_embedded_model_fills_what_it_is_told() -> None:
    """The facts of the prompt come back in the schema, from the model that the command serves by default."""
    pytest.importorskip("torch")
    text = "pet: Rex the dog, 4 years, has its shots"
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "kind": {"enum": ["cat", "dog", "rabbit"]},
            "age": {"type": "integer", "minimum": 0, "maximum": 30},
        },
        "required": ["name", "kind", "age"],
        "additionalProperties": False,
    }
    with served(sg.load_diffusion_model(device="cpu")) as url:
        body = {"messages": [{"role": "user", "content": text}], "format": schema, "max_tokens": 30, "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "structgen": {"policy": "factor"}}, timeout=90)
    (choice,) = answer.json()["choices"]
    assert json.loads(choice["message"]["content"]) == {"name": "Rex", "kind": "dog", "age": 4}
    assert choice["structgen"]["forwards"] < choice["structgen"]["tokens"]
