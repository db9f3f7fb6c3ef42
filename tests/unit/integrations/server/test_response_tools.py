"""Tools in responses, with OpenAI's client: the items are those that the chat of the same request has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from served_model import VOCABULARY, TaggedModel

from structgen.integrations.server.items import messages_of_items
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "name": "weather", "description": "Look.", "parameters": WEATHER, "strict": True},
    {"type": "function", "name": "now"},
]
SCHEMAS = {"weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {name: each[name] for name in each if name != "type"}} for each in TOOLS
]
FIELDS: dict[str, Any] = {"model": "hash", "input": "?", "tools": TOOLS, "max_output_tokens": 70}


def check(items: Any) -> list[str]:
    """The names of calls, whose arguments are valid."""
    for item in items:
        assert item.type == "function_call"
        assert item.status == "completed"
        jsonschema.validate(json.loads(item.arguments), SCHEMAS[item.name])
    assert len({item.call_id for item in items}) == len(items) == len({item.id for item in items})
    return [item.name for item in items]


def test_calls_are_items_whole_and_in_a_stream(client: OpenAI) -> None:
    """The same ones as in a chat; their deltas, joined, are their arguments."""
    fields: dict[str, Any] = {**FIELDS, "tool_choice": "required", "temperature": 0}
    whole = client.responses.create(**fields)
    check(whole.output)
    assert whole.status == "completed"
    assert (whole.tool_choice, whole.parallel_tool_calls) == ("required", True)
    assert [tool.name for tool in whole.tools] == ["weather", "now"]  # type: ignore[union-attr]
    message = (
        client.chat.completions.create(
            model="hash",
            messages=[{"role": "user", "content": "?"}],
            tools=CHAT_TOOLS,
            tool_choice="required",
            temperature=0,
            max_tokens=70,
        )
        .choices[0]
        .message
    )
    said: list[Any] = [[call.function.name, call.function.arguments] for call in message.tool_calls or ()]  # type: ignore[union-attr]
    assert said == [[item.name, item.arguments] for item in whole.output]  # type: ignore[union-attr]
    with client.responses.stream(**fields) as stream:
        events: list[Any] = list(stream)
        final = stream.get_final_response()
    assert [[item.name, item.arguments] for item in final.output] == said  # type: ignore[union-attr]
    for index, item in enumerate(final.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert [event.type for event in (own[0], own[-2], own[-1])] == [
            "response.output_item.added",
            "response.function_call_arguments.done",
            "response.output_item.done",
        ]
        deltas = [event.delta for event in own[1:-2]]
        assert {event.type for event in own[1:-2]} == {"response.function_call_arguments.delta"}
        assert "".join(deltas) == own[-2].arguments == own[-1].item.arguments == item.arguments  # type: ignore[union-attr]
        assert {event.item_id for event in own[1:-1]} == {item.id}
        assert own[0].item.arguments == ""
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_the_choice_is_kept(client: OpenAI) -> None:
    """Named, none, one at a time, and only those that are allowed."""

    def ask(**fields: Any) -> Any:
        return client.responses.create(**{**FIELDS, "extra_body": {"seed": 5}, **fields}).output

    for name in SCHEMAS:
        assert check(ask(tool_choice={"type": "function", "name": name})) == [name]
    (silent,) = ask(tool_choice="none", max_output_tokens=5)
    assert silent.type == "message"
    assert silent.content[0].text
    assert len(check(ask(tool_choice="required", parallel_tool_calls=False))) == 1
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "now"}]}
    assert set(check(ask(tool_choice=allowed))) == {"now"}


class City(BaseModel):
    """A tool, and an answer."""

    name: str
    big: bool


def test_parse_reads_arguments_and_answers(serve: Callable[..., str]) -> None:
    """As models, by the client's own helpers; an answer that the limit has shaped is complete all the same."""
    tool = openai.pydantic_function_tool(City)
    for script, most in (
        ('{"tool": "City", "arguments": {"name": "B", "big": true}}', 400),
        ('{"name": "Rome", "big": true}', 400),
        ('{"name": "Rome and other ones", "big": true}', 30),
    ):
        url = serve(HashModel(VOCABULARY, seed=1, writes=script))
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as own:
            fields: dict[str, Any] = {"tools": [tool], "text_format": City, "temperature": 0, "max_output_tokens": most}
            made = own.responses.parse(model="hash", input="?", **fields)
            with own.responses.stream(model="hash", input="?", **fields) as stream:
                streamed = stream.get_final_response()
        for each in (made, streamed):
            (item,) = each.output
            assert each.status == "completed"
            if "tool" in script:
                assert item.type == "function_call"
                assert item.parsed_arguments == City(name="B", big=True)
            else:
                assert each.output_parsed is not None
                assert script.startswith(each.output_parsed.name.join(('{"name": "', "")))


def test_a_conversation_with_calls_is_that_of_a_chat(client: OpenAI) -> None:
    """Items of an answer come back as they are, and their outputs after them."""
    first = client.responses.create(**FIELDS, tool_choice={"type": "function", "name": "weather"}, temperature=0)
    (call,) = first.output
    assert call.type == "function_call"
    output: list[Any] = [{"type": "input_text", "text": "sunny"}]
    items: list[Any] = [
        {"role": "user", "content": "?"},
        *(item.model_dump() for item in first.output),
        {"type": "function_call_output", "call_id": call.call_id, "output": output},
    ]
    fields: dict[str, Any] = {**FIELDS, "input": items, "tool_choice": "none", "extra_body": {"seed": 3}}
    answer = client.responses.create(**fields)
    messages: list[Any] = [
        {"role": "user", "content": "?"},
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": call.arguments}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    chat = client.chat.completions.create(
        model="hash", messages=messages, tools=CHAT_TOOLS, tool_choice="none", max_tokens=70, seed=3
    )
    assert answer.output_text == chat.choices[0].message.content
    assert answer.usage is not None
    assert chat.usage is not None
    assert answer.usage.input_tokens == chat.usage.prompt_tokens


def test_one_reply_is_one_message() -> None:
    """Its thought, its text and its calls; two replies are two."""
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
    items: list[Any] = [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        call,
        {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}]},
        {**call, "call_id": "c3"},
    ]
    reply, result, last = messages_of_items(items)
    assert reply["reasoning_content"] == "Hm."
    assert reply["content"] == items[1]["content"]
    assert [each["id"] for each in reply["tool_calls"]] == ["c1", "c2"]
    assert result == {"role": "tool", "tool_call_id": "c2", "content": "2"}
    assert (last["reasoning_content"], last["content"], len(last["tool_calls"])) == ("So.", None, 1)


def test_a_reply_after_a_message_without_content_is_its_own() -> None:
    """What the assistant said is not put into the mouth of the user; a thought and its reply are one message."""
    said = messages_of_items([{"role": "user"}, {"role": "assistant", "content": "Yes."}])
    assert said == [{"role": "user", "content": None}, {"role": "assistant", "content": "Yes."}]
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    replies = [{"role": "assistant", "content": text} for text in ("Yes.", "No.")]
    assert [each["content"] for each in messages_of_items([thought, *replies])] == ["Yes.", "No."]


def test_thoughts_are_items_of_their_own(serve: Callable[..., str]) -> None:
    """Before the calls of a family, with their events and their tokens counted."""
    url = serve(TaggedModel(), tool_family="hermes")
    fields: dict[str, Any] = {**FIELDS, "max_output_tokens": 120, "temperature": 0.2, "extra_body": {"seed": 1}}
    fields |= {"tool_choice": "required", "reasoning": {"effort": "low", "summary": "auto"}}
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as own:
        raw = own.responses.with_raw_response.create(**fields)
        with own.responses.stream(**fields) as stream:
            events: list[Any] = list(stream)
            final: Any = stream.get_final_response()
    whole: Any = raw.parse()
    assert raw.headers["structgen-ignored"] == "reasoning.summary"
    thought, *calls = final.output
    assert thought.type == "reasoning"
    assert thought.content[0].text == whole.output[0].content[0].text != ""
    assert "think>" not in thought.content[0].text
    assert check(calls) == check(whole.output[1:])
    said = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(said) == thought.content[0].text
    assert 0 < final.usage.output_tokens_details.reasoning_tokens < final.usage.output_tokens
    assert whole.usage == final.usage
    chat = httpx.post(
        f"{url}/v1/chat/completions",
        json={
            "messages": [{"role": "user", "content": "?"}],
            "tools": CHAT_TOOLS,
            "tool_choice": "required",
            "reasoning_effort": "low",
            "max_tokens": 120,
            "temperature": 0.2,
            "seed": 1,
        },
        timeout=60,
    ).json()["choices"][0]["message"]
    assert chat["reasoning"] == thought.content[0].text
    assert [call["function"]["name"] for call in chat["tool_calls"]] == [call.name for call in calls]


def test_scores_are_of_the_text_alone(serve: Callable[..., str]) -> None:
    """Not of the thought before it, nor of tags."""
    url = serve(TaggedModel(), tool_family="hermes")
    fields: dict[str, Any] = {"model": "hash", "input": "?", "max_output_tokens": 60, "temperature": 0.2}
    fields |= {"extra_body": {"seed": 1}, "include": ["message.output_text.logprobs"], "reasoning": {"effort": "low"}}
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as own:
        whole: Any = own.responses.create(**fields)
        events: list[Any] = list(own.responses.create(**fields, stream=True))
    told = [score.bytes for event in events if event.type == "response.output_text.delta" for score in event.logprobs]
    (done,) = (event.logprobs for event in events if event.type == "response.output_text.done")
    assert len(told) > 1  # the last ones may come after the text
    assert told == [score.bytes for score in done][: len(told)]
    for each in (whole, events[-1].response):
        thought, message = each.output
        assert thought.type == "reasoning"
        (part,) = message.content
        assert b"".join(bytes(score.bytes) for score in part.logprobs).decode("utf-8", "replace") == part.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOLS[1], {"type": "function", "name": "a b"}]}, "tools[1].name"),
        ({"tools": [{"type": "function", "name": "x", "lazy": 1}]}, "tools[0].lazy"),
        (
            {"tools": [{"type": "function", "name": "x", "parameters": {"minProperties": -1}}]},
            "tools[0].parameters#/minProperties",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "f"}}, "tool_choice.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools", "mode": "any"}}, "tool_choice.mode"),
        ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "1"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "input[0].encrypted_content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "robot", "content": "?"}]}, "input"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"max_output_tokens": 1, "text": {"format": {"type": "json_object"}}}, "max_output_tokens"),
    ],
)
def test_errors_name_the_place_in_the_response(url: str, fields: dict[str, Any], param: str) -> None:
    """As clients have it, not as the chat that it stands for, and in the message too."""
    answer = httpx.post(f"{url}/v1/responses", json={"input": "?", **fields}, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert "function.name" not in error["message"]
