"""OpenAI's client for Python: what it parses, whole and in streams, is the model that was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from asked import MESSAGES, MODEL, MOST, TOOL, City

openai = pytest.importorskip("openai")


class Population(openai.BaseModel):
    """How many people live in a city."""

    city: str


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=base_url, api_key="none", max_retries=0) as made:
        yield made


@pytest.mark.parametrize("seed", range(3))
def test_chats_are_parsed(client: Any, seed: int) -> None:
    """The client validates ``message.parsed`` itself, and refuses answers that were cut."""
    answer = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, response_format=City, seed=seed, max_completion_tokens=20 + 10 * seed
    )
    (choice,) = answer.choices
    assert isinstance(choice.message.parsed, City)
    assert json.loads(choice.message.content) == choice.message.parsed.model_dump()
    assert choice.finish_reason == "stop"
    assert answer.usage.completion_tokens <= 20 + 10 * seed


def test_chats_are_streamed(client: Any) -> None:
    """The deltas, joined, are the answer, and usage comes last."""
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        response_format=City,
        max_tokens=MOST,
        seed=1,
        stream_options={"include_usage": True},
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        last = stream.get_final_completion()
    assert last.choices[0].message.parsed == City.model_validate_json(text)
    assert last.usage.completion_tokens > 0


def test_calls_are_parsed_and_streamed(client: Any) -> None:
    """Arguments come as models, and a result is told in the next turn."""
    fields: dict[str, Any] = {
        "model": MODEL,
        "tools": [openai.pydantic_function_tool(Population)],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "max_tokens": MOST,
        "temperature": 0,
    }
    message = client.chat.completions.parse(messages=MESSAGES, **fields).choices[0].message
    with client.chat.completions.stream(messages=MESSAGES, **fields) as stream:
        streamed = stream.get_final_completion().choices[0]
    (call,) = message.tool_calls
    assert isinstance(call.function.parsed_arguments, Population)
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.parsed_arguments == call.function.parsed_arguments
    result = {"role": "tool", "tool_call_id": call.id, "content": "2 million"}
    after = client.chat.completions.create(
        messages=[*MESSAGES, message, result], **fields | {"tool_choice": "none", "max_tokens": 8}
    )
    assert after.choices[0].message.tool_calls is None
    assert after.choices[0].message.content


def test_a_named_tool_is_called(client: Any) -> None:
    choice = {"type": "function", "function": {"name": "population"}}
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice=choice, max_tokens=MOST
    )
    (call,) = answer.choices[0].message.tool_calls
    jsonschema.validate(json.loads(call.function.arguments), TOOL["function"]["parameters"])


def test_responses_are_parsed_and_streamed(client: Any) -> None:
    """``output_parsed`` is the model that was asked for."""
    fields: dict[str, Any] = {"model": MODEL, "input": MESSAGES, "text_format": City, "max_output_tokens": MOST}
    made = client.responses.parse(**fields, instructions="Be brief.", store=False)
    assert isinstance(made.output_parsed, City)
    assert made.status == "completed"
    with client.responses.stream(**fields) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_parsed == City.model_validate_json(text)


def test_what_a_newer_client_sends_is_taken_or_refused_by_name(client: Any) -> None:
    """Fields that change nothing are named in a header; one that would is an error of the client's own type."""
    said: dict[str, Any] = {"modalities": ["text"], "store": True, "prediction": {"type": "content", "content": "x"}}
    raw = client.chat.completions.with_raw_response.create(
        model=MODEL,
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "name": "Ada", "content": [{"type": "text", "text": "Hello"}]},
        ],
        max_completion_tokens=4,
        reasoning_effort="none",
        **said,
    )
    assert raw.headers["structgen-ignored"] == ", ".join(sorted(said))
    assert raw.parse().choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="say in the messages") as caught:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, verbosity="low")
    assert caught.value.param == "verbosity"
