"""LiteLLM: schemas, tools and streams, by its providers for OpenAI's interface and for vLLM."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest
from asked import MESSAGES, MODEL, MOST, TOOL, City

litellm = pytest.importorskip("litellm")
PROVIDERS = ["openai", "hosted_vllm"]


@pytest.fixture(scope="module", params=PROVIDERS)
def at(base_url: str, request: Any) -> dict[str, Any]:
    """Where the server is, for each provider."""
    return {"model": f"{request.param}/{MODEL}", "api_base": base_url, "api_key": "none", "num_retries": 0}


def check(calls: Any) -> None:
    """Calls of the tool, with arguments of its schema."""
    assert calls
    for call in calls:
        assert call.function.name == "population"
        jsonschema.validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])


def test_a_response_format_is_the_model(at: dict[str, Any]) -> None:
    """A pydantic model, and a schema."""
    schema = {"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": City.model_json_schema()}}
    for form in (City, schema):
        answer = litellm.completion(messages=MESSAGES, response_format=form, max_tokens=MOST, **at)
        City.model_validate_json(answer.choices[0].message.content)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.completion_tokens <= MOST


def test_an_object_is_one(at: dict[str, Any]) -> None:
    answer = litellm.completion(messages=MESSAGES, response_format={"type": "json_object"}, max_tokens=30, **at)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)


def test_a_loop_calls_a_tool_and_answers(at: dict[str, Any]) -> None:
    """The message of the call goes back as LiteLLM holds it."""
    history = list(MESSAGES)
    fields: dict[str, Any] = {"tools": [TOOL], "parallel_tool_calls": False, "max_tokens": MOST, "temperature": 0, **at}
    message = litellm.completion(messages=history, tool_choice="required", **fields).choices[0].message
    check(message.tool_calls)
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "name": "population", "content": "2 million"}
    history += [message, result]
    fields |= {"max_tokens": 8}
    assert litellm.completion(messages=history, tool_choice="none", **fields).choices[0].message.content


def test_streams_hold_the_model_and_calls(at: dict[str, Any]) -> None:
    """Joined by the client."""
    fields: dict[str, Any] = {"messages": MESSAGES, "max_tokens": MOST, "stream": True, **at}
    chunks = list(litellm.completion(response_format=City, stream_options={"include_usage": True}, **fields))
    City.model_validate_json("".join(each.choices[0].delta.content or "" for each in chunks if each.choices))
    assert chunks[-1].usage.completion_tokens <= MOST
    chunks = list(litellm.completion(tools=[TOOL], tool_choice="required", **fields))
    check(litellm.stream_chunk_builder(chunks, messages=MESSAGES).choices[0].message.tool_calls)


def test_settings_are_taken(at: dict[str, Any]) -> None:
    answer = litellm.completion(
        messages=MESSAGES,
        temperature=0.5,
        top_p=0.9,
        n=2,
        seed=1,
        stop=["\n\n"],
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": 1},
        logprobs=True,
        top_logprobs=1,
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        max_completion_tokens=4,
        **at,
    )
    assert [len(choice.logprobs.content) for choice in answer.choices] == [4, 4]


def test_refusals_are_errors_of_the_client(at: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError, match=r"functions.*take tools"):
        litellm.completion(messages=MESSAGES, functions=[TOOL["function"]], max_tokens=4, **at)


def test_other_endpoints(base_url: str) -> None:
    """Texts, responses, and answers that are awaited."""
    at = {"model": f"openai/{MODEL}", "api_base": base_url, "api_key": "none"}
    assert litellm.text_completion(prompt="Hello", max_tokens=4, **at).choices[0].text
    assert litellm.responses(input="Hello", max_output_tokens=16, **at).output[0].content[0].text
    awaited = asyncio.run(litellm.acompletion(messages=MESSAGES, max_tokens=4, **at))
    assert awaited.choices[0].message.content
