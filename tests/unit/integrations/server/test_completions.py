"""Completions, tokens and texts over HTTP, with OpenAI's client."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from openai import OpenAI
from served_model import VOCABULARY

import structgen as sg
from structgen.frontends.free_text import any_text
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)


def model() -> HashModel:
    """The model that is served."""
    return HashModel(VOCABULARY, seed=1, max_context=2000)


def expected(prompt: str, seed: int, most: int = 16) -> str:
    """What ``generate`` writes."""
    sampler = sg.Multinomial()
    return sg.generate(model(), prompt, any_text(), max_tokens=most, sampler=sampler, seed=seed, chat=False).text


def test_prompts_are_texts_or_tokens(client: OpenAI) -> None:
    """One or several, each with its own answer; ``n`` of each."""
    first, second = expected("Say", 3), expected("Tell", 4)
    tokens = [VOCABULARY.tokenize("Say"), VOCABULARY.tokenize("Tell")]
    for prompt in ("Say", tokens[0]):
        answer = client.completions.create(model="hash", prompt=prompt, seed=3)
        assert [choice.text for choice in answer.choices] == [first]
    for prompts in (["Say", "Tell"], tokens):
        answer = client.completions.create(model="hash", prompt=prompts, seed=3, max_tokens=16)
        assert [choice.text for choice in answer.choices] == [first, second]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 7
    twice = client.completions.create(model="hash", prompt=["Say", "Say"], n=2, max_tokens=1)
    assert twice.usage is not None
    assert twice.usage.prompt_tokens == 2 * len(tokens[0])
    several = client.completions.create(model="hash", prompt=["Say", "Tell"], n=2, seed=2, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[1].text == "Say" + first
    assert several.choices[2].text == "Tell" + second


def spelled(data: bytes) -> str:
    """A token as OpenAI's interface names it."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@pytest.mark.parametrize("echo", [False, True])
def test_streams_say_the_same(client: OpenAI, *, echo: bool) -> None:
    """With the usage at the end."""
    fields: dict[str, Any] = {"model": "hash", "prompt": ["Say", "Tell"], "seed": 3, "echo": echo, "max_tokens": 9}
    whole = client.completions.create(**fields)
    texts, reasons = ["", ""], ["", ""]
    for chunk in client.completions.create(**fields, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert chunk.usage == whole.usage


def test_log_probabilities_have_the_form_of_completions(client: OpenAI) -> None:
    """Those of the model, and offsets into the text; streamed the same."""
    fields: dict[str, Any] = {"model": "hash", "prompt": "Say", "seed": 5, "logprobs": 2, "max_tokens": 12}
    choice = client.completions.create(**fields).choices[0]
    held = choice.logprobs
    assert held is not None
    context = VOCABULARY.tokenize("Say")
    ids = {spelled(data): token for token, data in enumerate(VOCABULARY.tokens)}
    parts = [VOCABULARY.tokens[ids[token]] for token in held.tokens or ()]
    assert b"".join(parts).decode() == choice.text
    assert held.text_offset == [len(b"".join(parts[:at]).decode("utf-8", "ignore")) for at in range(len(parts))]
    for token, logprob, top in zip(held.tokens or (), held.token_logprobs or (), held.top_logprobs or (), strict=True):
        row = model().start().extend(context).astype(float)
        assert logprob == pytest.approx(row[ids[token]] - math.log(math.fsum(np.exp(row))), abs=1e-4)
        assert len(top) <= 2
        assert max(top.values()) >= logprob - 1e-9
        context.append(ids[token])
    chunks = [chunk.choices[0].logprobs for chunk in client.completions.create(**fields, stream=True)]
    found = [each for each in chunks if each is not None]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [value for each in found for value in getattr(each, name)] == getattr(held, name)


def test_descriptions_are_enforced(client: OpenAI) -> None:
    """The fields of chats that describe answers, and stops of free text."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}}
    answer = client.completions.create(model="hash", prompt="Say", max_tokens=30, seed=1, extra_body=body)
    grammar = sg.json_schema(schema)
    sampler = sg.Multinomial()
    alone = sg.generate(model(), "Say", grammar, max_tokens=30, sampler=sampler, seed=1, chat=False)
    assert answer.choices[0].text == alone.text
    text = expected("Say", 3, 40)
    cut = client.completions.create(model="hash", prompt="Say", max_tokens=40, seed=3, stop=text[4:6])
    assert cut.choices[0].text == text[: text.find(text[4:6])]


@pytest.mark.parametrize(
    ("fields", "param", "reason"),
    [
        ({"suffix": "x"}, "suffix", "left to right"),
        ({"best_of": 3}, "best_of", "take n and choose"),
        ({"prompt": []}, "prompt", "expected a text, token ids"),
        ({"prompt": [999]}, "prompt", "no token 999"),
        ({"echo": True, "logprobs": 1}, "echo", "of the answer alone"),
        ({"tools": [{}]}, "tools", "a field of chats"),
        ({"logprobs": 50}, "logprobs", "less than or equal to 20"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "say it in max_tokens"),
        ({"prompt": "Say", "max_tokens": 5000}, "prompt", "the context holds 2000 tokens"),
        ({"structgen": {"trace": True}, "stream": True}, "structgen.trace", "of chats with stream"),
    ],
)
def test_what_is_not_done_is_refused_by_name(client: OpenAI, fields: dict[str, Any], param: str, reason: str) -> None:
    """With the reason, or what to do instead."""
    with pytest.raises(openai.BadRequestError, match=reason) as caught:
        client.completions.create(model="hash", prompt="Say", extra_body=fields)
    assert str(caught.value.param).startswith(param)


def test_the_report_is_that_of_chats(url: str) -> None:
    """Whole and in a stream, here and in responses."""
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    flat = {"type": "json_schema", "name": "a", "schema": schema}
    said: dict[str, Any] = {"response_format": form, "max_tokens": 30, "structgen": {"report": True}}

    def ask(path: str, **fields: Any) -> httpx.Response:
        return httpx.post(f"{url}/v1/{path}", json=fields, timeout=60)

    chat = ask("chat/completions", messages=[{"role": "user", "content": "?"}], **said)
    wanted = chat.json()["structgen"]["report"]
    assert wanted["counts"]["enforced"] > 0
    assert ask("completions", prompt="?", **said).json()["structgen"]["report"] == wanted
    streamed = ask("completions", prompt="?", stream=True, **said).text
    assert json.loads(streamed.split("\n\n")[0].removeprefix("data: "))["structgen"]["report"] == wanted
    held = ask("responses", input="?", text={"format": flat}, max_output_tokens=30, structgen={"report": True}).json()
    assert (held["structgen"]["report"]["counts"], held["structgen"]["cut_at"]) == (wanted["counts"], None)


def test_tokens_of_texts_and_texts_of_tokens(url: str) -> None:
    """In the form of vLLM's server."""
    made = httpx.post(f"{url}/tokenize", json={"model": "hash", "prompt": "abé", "return_token_strs": True}).json()
    assert made["tokens"] == VOCABULARY.tokenize("abé")
    assert (made["count"], made["max_model_len"]) == (len(made["tokens"]), 2000)
    assert made["token_strs"][0] == "ab"
    back = httpx.post(f"{url}/detokenize", json={"tokens": made["tokens"]}).json()
    assert back == {"prompt": "abé"}
    chat = httpx.post(f"{url}/tokenize", json={"messages": [{"role": "user", "content": "ab"}]}).json()
    assert chat["tokens"] == model().encode_prompt([{"role": "user", "content": "ab"}])
    wrong = httpx.post(f"{url}/detokenize", json={"tokens": [-1]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "tokens")
    assert httpx.post(f"{url}/tokenize", json={}).status_code == 400
