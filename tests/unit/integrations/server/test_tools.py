"""Tools over HTTP, with OpenAI's client: calls are of the tools, their arguments valid, and their deltas JSON."""

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
from served_model import TAGGED, VOCABULARY, TaggedModel

import structgen as sg
from structgen.frontends.chat.family import family_of_template
from structgen.integrations.server.message import messages_of
from structgen.integrations.server.protocol import APIError, Message
from structgen.integrations.server.tools import PLAIN, Form, Tools
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)

MESSAGES: list[Any] = [{"role": "user", "content": "?"}]
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "weather", "description": "Look.", "parameters": WEATHER, "strict": True},
    },
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = {"weather": WEATHER, "now": {"type": "object", "maxProperties": 0}}


def check(calls: Any) -> list[str]:
    """The names of calls, whose arguments are valid."""
    for call in calls:
        assert call.type == "function"
        jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])
    assert len({call.id for call in calls}) == len(calls)
    return [call.function.name for call in calls]


def test_required_calls_are_written_whole_and_in_deltas(client: OpenAI) -> None:
    """The same ones: the first delta has the name, and the arguments, joined, are those of the whole."""
    fields: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 70, "temperature": 0}
    whole = client.chat.completions.create(model="hash", messages=MESSAGES, **fields).choices[0]
    assert whole.message.content is None
    assert whole.message.tool_calls
    check(whole.message.tool_calls)
    assert whole.finish_reason == "tool_calls"
    found: dict[int, list[Any]] = {}
    chunks = list(client.chat.completions.create(model="hash", messages=MESSAGES, stream=True, **fields))
    for chunk in chunks:
        for call in chunk.choices[0].delta.tool_calls or ():
            if call.index not in found:
                assert call.id
                found[call.index] = [call.function.name, ""]
            found[call.index][1] += call.function.arguments
    assert [found[index] for index in range(len(found))] == [
        [call.function.name, call.function.arguments] for call in whole.message.tool_calls
    ]
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_the_choice_is_kept(client: OpenAI) -> None:
    """Named, none, one at a time, and only those that are allowed."""

    def ask(**fields: Any) -> Any:
        fields = {"tools": TOOLS, "max_tokens": 60, "seed": 5, **fields}
        return client.chat.completions.create(model="hash", messages=MESSAGES, **fields).choices[0].message

    for name in SCHEMAS:
        assert check(ask(tool_choice={"type": "function", "function": {"name": name}}).tool_calls) == [name]
    silent = ask(tool_choice="none", max_tokens=5)
    assert silent.tool_calls is None
    assert silent.content
    assert len(check(ask(tool_choice="required", parallel_tool_calls=False).tool_calls)) == 1
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "now"}}]}
    choice: Any = {"type": "allowed_tools", "allowed_tools": allowed}
    assert set(check(ask(tool_choice=choice).tool_calls)) == {"now"}


class City(BaseModel):
    """A tool, and an answer."""

    name: str
    big: bool


def test_parse_reads_arguments_and_answers(client: OpenAI, serve: Callable[..., str]) -> None:
    """As models, by the client's own helpers; a call and an answer of a response_format exclude each other."""
    tool = openai.pydantic_function_tool(City)
    for script, is_call in (('{"tool": "City", "arguments": {"name": "B", "big": true}}', True),
                            ('{"name": "Rome", "big": true}', False)):  # fmt: skip
        url = serve(HashModel(VOCABULARY, seed=1, writes=script))
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as own:
            fields: dict[str, Any] = {"tools": [tool], "response_format": City, "temperature": 0, "max_tokens": 400}
            message = own.chat.completions.parse(model="hash", messages=MESSAGES, **fields).choices[0].message
            with own.chat.completions.stream(model="hash", messages=MESSAGES, **fields) as stream:
                streamed = stream.get_final_completion().choices[0].message
        for each in (message, streamed):
            if is_call:
                assert each.tool_calls
                assert each.tool_calls[0].function.parsed_arguments == City(name="B", big=True)
                assert not each.content
            else:
                assert each.parsed == City(name="Rome", big=True)
                assert not each.tool_calls


def test_thoughts_and_calls_of_a_family_have_their_fields(serve: Callable[..., str]) -> None:
    """The tags are tokens, and no text of a reply holds them."""
    url = serve(TaggedModel(), tool_family="hermes")
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 120, "seed": 1, "temperature": 0.2, "tools": TOOLS}
    for effort in (None, "low", "max"):
        extra = {"tool_choice": "required", "reasoning_effort": effort}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body | extra, timeout=60)
        assert answer.status_code == 200, answer.text
        message = answer.json()["choices"][0]["message"]
        assert message["reasoning"] == message["reasoning_content"]
        assert "think>" not in message["reasoning"]
        for call in message["tool_calls"]:
            jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMAS[call["function"]["name"]])
    silent = httpx.post(
        f"{url}/v1/chat/completions", json=body | {"reasoning_effort": "none", "tool_choice": "none", "max_tokens": 9}
    )
    assert set(silent.json()["choices"][0]["message"]) == {"role", "content", "refusal"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": ["function"]}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "x", "strict": True}}]}, "tools[0].custom.strict"),
        ({"tools": [TOOLS[1], {"type": "function", "function": {"name": "a b"}}]}, "tools[1].function.name"),
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x", "lazy": 1}}]}, "tools[0].function.lazy"),
        (
            {"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]},
            "tools[0].function.parameters#/type",
        ),
        (
            {"tools": [TOOLS[1], {"type": "function", "function": {"name": "x", "parameters": {"minProperties": -1}}}]},
            "tools[1].function.parameters#/minProperties",
        ),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice.function.name"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, "tool_choice.custom.name"),
        ({"tools": TOOLS, "tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tools": TOOLS, "response_format": {"type": "json_object"}}, "response_format"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"function_call": "auto"}, "function_call"),
    ],
)
def test_bad_tools_are_refused_by_name(url: str, fields: dict[str, Any], param: str) -> None:
    """With the place of the fault."""
    answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES, **fields}, timeout=60)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


CALLED: list[Any] = [
    {"role": "user", "content": "?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "noon"}]},
]


def test_calls_and_results_come_back() -> None:
    """As the template takes them, or as text where it knows none."""
    given = [Message.model_validate(each) for each in CALLED]
    plain = messages_of(given, Form())
    assert [each["content"] for each in plain] == ["?", '{"tool": "now", "arguments": {"a": 1}}', "now returned: noon"]
    assert [each["role"] for each in plain] == ["user", "assistant", "user"]
    told = messages_of(given, Form(has_tools=True))
    assert told[1]["tool_calls"][0]["function"] == {"name": "now", "arguments": {"a": 1}}
    assert told[2] == {"role": "tool", "content": "noon", "tool_call_id": "c1", "name": "now"}
    wrong = [{**CALLED[1], "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}]
    with pytest.raises(APIError, match="JSON object"):
        messages_of([Message.model_validate(each) for each in wrong], Form())


def test_the_model_is_told_of_its_tools() -> None:
    """By the template if it can, else in the system message, in the form in which it has to call."""
    tools = Tools(({"type": "function", "function": {"name": "now", "parameters": {}}},), "auto", ("now",))
    given = [Message(role="system", content="Be kind."), Message(role="user", content="?")]
    (system, _) = Form().prompt(given, tools)
    assert system["content"].startswith("Be kind.\n\nYou can call")
    assert '{"tool": "NAME", "arguments": ARGUMENTS}' in system["content"]
    assert Form().prompt(given[1:], tools)[0]["role"] == "system"
    chat: Any = Form(has_tools=True).prompt(given, tools)
    assert chat.tools == list(tools.functions)
    assert chat[0]["content"] == "Be kind."


@pytest.mark.parametrize(
    ("written", "family"),
    [
        ('# Tools\0<tool_call></tool_call>\0<tool_call>\n{"name": "\0", "arguments": \0}\n</tool_call>', "hermes"),
        ("<tool_call>\n<function=\0>\n\0<parameter=\0</parameter>\0</function>\n</tool_call>", "qwen3-coder"),
        ("<tool_call>\0<arg_key>\0</arg_key>\0<arg_value>\0</arg_value>\0</tool_call>", "glm-4.7"),
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>\0<｜tool▁sep｜>\0<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            "deepseek-v3.1",
        ),
        ("[AVAILABLE_TOOLS]\0[TOOL_CALLS]\0[CALL_ID]\0[ARGS]", "mistral-v11"),
        ('<|python_tag|>\0{"name": "\0", "parameters": \0}', "llama3"),
        ("<|im_start|>\0tools", None),
    ],
)
def test_the_template_shows_the_family(written: str, family: str | None) -> None:
    """By the texts that it puts around calls."""
    found = family_of_template(written)
    assert (None if found is None else found.name) == family


def test_models_without_tools_in_their_template_write_plain_calls() -> None:
    """Also those whose template has none, and whose thoughts have tokens."""
    assert Form.of(HashModel(VOCABULARY)) == Form(PLAIN)
    form = Form.of(HashModel(TAGGED))
    assert form.family.name == "plain"
    assert form.family.thought is not None
    with pytest.raises(sg.GrammarError, match="--tool-family plain"):
        Form.of(HashModel(VOCABULARY), "glm-4.5")
