"""Responses over HTTP, as OpenAI's client parses and streams them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel
from served_model import VOCABULARY

import structgen as sg
from structgen.frontends.free_text import any_text
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)


class Thing(BaseModel):
    """What is asked for."""

    on: bool
    tags: list[str]


def alone(prompt: Any, grammar: Any, seed: int, most: int) -> str:
    """What ``generate`` writes."""
    model = HashModel(VOCABULARY, seed=1, max_context=2000)
    return sg.generate(model, prompt, grammar, max_tokens=most, sampler=sg.Multinomial(), seed=seed).text


def test_what_is_parsed_is_what_generate_writes(client: OpenAI) -> None:
    """Items and instructions are messages; an answer is complete within any limit."""
    grammar = sg.json_schema(openai.lib._pydantic.to_strict_json_schema(Thing))
    said: Any = [
        {"role": "user", "content": "Who?"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "And?"}]},
    ]
    messages = [{"role": "system", "content": "Be short."}] + [
        {"role": role, "content": text} for role, text in (("user", "Who?"), ("assistant", "I."), ("user", "And?"))
    ]
    for most in (18, 60):
        made = client.responses.parse(
            model="hash",
            input=said,
            instructions="Be short.",
            text_format=Thing,
            max_output_tokens=most,
            extra_body={"seed": 4, "structgen": {}},
        )
        assert made.output_text == alone(messages, grammar, 4, most)
        assert made.output_parsed == Thing.model_validate_json(made.output_text)
        assert made.status == "completed"
        assert made.usage is not None
        assert made.usage.output_tokens == made.structgen["tokens"] <= most  # type: ignore[attr-defined]


def test_streams_are_read_by_the_client(client: OpenAI) -> None:
    """Deltas, the final response, and fields as they become final."""
    fields: dict[str, Any] = {"model": "hash", "input": "Who?", "text_format": Thing, "max_output_tokens": 60}
    body = {"seed": 5, "structgen": {"events": True}}
    whole = client.responses.parse(**fields, extra_body=body)
    with client.responses.stream(**fields, extra_body=body) as stream:
        events = list(stream)
        final = stream.get_final_response()
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-1] == "response.completed"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == final.output_text
    assert final.output_text == whole.output_text
    assert final.output_parsed == whole.output_parsed
    found = [event.value for event in events if event.type == "response.structgen.field"]
    assert found[-1] == Thing.model_validate_json(final.output_text).model_dump()
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_free_text_that_is_cut_is_incomplete(client: OpenAI) -> None:
    """With the scores of its tokens, also in the deltas of a stream."""
    made = client.responses.create(
        model="hash",
        input="Who?",
        max_output_tokens=9,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
        extra_body={"seed": 6, "logit_bias": {"0": -100}},
    )
    assert (made.status, made.incomplete_details and made.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    (item,) = made.output
    scores = item.content[0].logprobs  # type: ignore[union-attr]
    assert b"".join(bytes(each.bytes) for each in scores).decode() == made.output_text  # type: ignore[union-attr]
    plain = client.responses.create(model="hash", input="Who?", max_output_tokens=30, extra_body={"seed": 6})
    assert plain.output_text == alone("Who?", any_text(), 6, 30)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"input": [{"type": "function_call_output", "output": "1"}]}, "input"),
        ({"max_tool_calls": 1}, "max_tool_calls"),
        ({"reasoning": {"effort": "low"}}, "reasoning"),
    ],
)
def test_what_is_not_done_is_refused_by_name(client: OpenAI, fields: dict[str, Any], param: str) -> None:
    """Stored state above all."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="hash", input="Who?", extra_body=fields)
    assert str(caught.value.param).startswith(param)


def test_defaults_that_change_nothing_are_taken(client: OpenAI) -> None:
    """Clients send them."""
    body = {"store": False, "tools": [], "tool_choice": "auto", "reasoning": {"effort": None}, "truncation": "disabled"}
    made = client.responses.create(model="hash", input="Who?", max_output_tokens=9, extra_body={"seed": 1, **body})
    assert made.output_text == alone("Who?", any_text(), 1, 9)
