"""What clients send beside the question: each field is done, refused by name, or named as one that changes nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsBase

from structgen.integrations.server.message import messages_of
from structgen.integrations.server.protocol import APIError, ChatRequest, Message, parsed
from structgen.integrations.server.tools import Form

pytestmark = pytest.mark.timeout(120)

MESSAGES: list[Any] = [{"role": "user", "content": "?"}]


def ask(url: str, body: dict[str, Any]) -> httpx.Response:
    """The answer to a chat."""
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def test_every_field_of_the_client_is_decided() -> None:
    """A field that OpenAI's client learns to send needs a place among those that are done, neutral or refused."""
    refused = {"audio", "function_call", "functions", "moderation", "web_search_options"}
    for name in sorted(set(CompletionCreateParamsBase.__annotations__) - set(ChatRequest.model_fields)):
        body = {"messages": MESSAGES, name: {"x": 1}}
        if name in refused:
            with pytest.raises(APIError, match=f"^{name}: .*leave it out, and "):
                parsed(ChatRequest, body)
        elif name in ("modalities", "verbosity"):
            neutral = {"modalities": ["text"], "verbosity": "medium"}[name]
            assert parsed(ChatRequest, {**body, name: neutral}).ignored == (name,)
            with pytest.raises(APIError, match=f"^{name}: .*leave it out, and "):
                parsed(ChatRequest, body)
        else:
            assert parsed(ChatRequest, body).ignored == (name,)
        assert parsed(ChatRequest, {**body, name: None}).ignored == (name,)


def test_fields_that_change_nothing_change_nothing(url: str) -> None:
    """The answer has the same text with them, and a header names them."""
    body = {"messages": MESSAGES, "seed": 3, "max_tokens": 12}
    said = {"prediction": {"type": "content", "content": "x"}, "modalities": ["text"], "verbosity": "medium"}
    said |= {"store": True, "metadata": {"a": "b"}, "user": "u", "service_tier": "auto", "safety_identifier": "s"}
    said |= {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit"}, "prompt_cache_retention": "24h"}
    bare, full = (ask(url, each) for each in (body, body | said))
    assert full.json()["choices"] == bare.json()["choices"]
    assert full.headers["structgen-ignored"] == ", ".join(sorted(said))


@pytest.mark.parametrize("fields", [{"verbosity": "low"}, {"modalities": ["text", "audio"]}, {"functions": []}])
def test_fields_that_would_change_the_output_are_refused(url: str, fields: dict[str, Any]) -> None:
    """With what to do instead."""
    answer = ask(url, {"messages": MESSAGES, **fields})
    (name,) = fields
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert "leave it out, and " in answer.json()["error"]["message"]


def test_verbosity_of_responses_is_refused_too(url: str) -> None:
    """Where it is not what is the default."""
    for word, status in (("medium", 200), ("low", 400)):
        body = {"input": "?", "max_output_tokens": 2, "text": {"verbosity": word}}
        assert httpx.post(f"{url}/v1/responses", json=body, timeout=60).status_code == status


def told(*messages: dict[str, Any], form: Form | None = None) -> list[dict[str, Any]]:
    """Messages as the chat template takes them."""
    return messages_of([Message.model_validate(each) for each in messages], form or Form())


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([{"type": "text", "text": None}], "messages[0].content[0].text"),
        ([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": 1}], "messages[0].content[1].refusal"),
        ([{"type": "text", "text": "a"}, {"type": "image_url"}], "messages[0].content[1]"),
        (3, "messages[0].content"),
    ],
)
def test_content_that_is_no_text_is_refused(content: object, place: str) -> None:
    """And not written out: ``None`` is no text that anyone said."""
    with pytest.raises(APIError) as caught:
        told({"role": "user", "content": content})
    assert caught.value.param == place


def test_participants_keep_their_names() -> None:
    """Templates that tell them apart read ``name``."""
    assert told({"role": "user", "name": "Ada", "content": "?"}) == [{"role": "user", "name": "Ada", "content": "?"}]


def test_refusals_of_earlier_turns_are_what_was_said() -> None:
    """As a member of the message, or as a part of its content."""
    said = [{"role": "assistant", "content": "I must not."}]
    assert told({"role": "assistant", "content": None, "refusal": "I must not."}) == said
    assert told({"role": "assistant", "content": [{"type": "refusal", "refusal": "I must not."}]}) == said


def test_calls_in_the_former_form_are_calls() -> None:
    """``function_call`` and the role ``function`` are what ``tool_calls`` and the role ``tool`` have replaced."""
    former = (
        {"role": "assistant", "content": None, "function_call": {"name": "now", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "now", "content": "noon"},
    )
    plain = told(*former)
    assert [each["content"] for each in plain] == ['{"tool": "now", "arguments": {"a": 1}}', "now returned: noon"]
    (call,) = told(*former, form=Form(has_tools=True))[0]["tool_calls"]
    assert call["function"] == {"name": "now", "arguments": {"a": 1}}


def test_members_of_messages_that_nothing_reads_are_named(url: str) -> None:
    """Those of replies that clients send back; a name that does not fit into a header is not written there."""
    reply = {"role": "assistant", "content": "x", "annotations": [], "parsed": {"a": 1}, "é\n": 1, "audio": None}
    part = {"type": "text", "text": "?", "cache_control": {"type": "ephemeral"}}
    answer = ask(url, {"messages": [reply, {"role": "user", "content": [part]}], "max_tokens": 2})
    assert answer.headers["structgen-ignored"] == "messages.*, messages.content.cache_control, messages.parsed"


def test_a_header_does_not_grow_with_the_body(url: str) -> None:
    """Members without end are named no more than up to a number."""
    reply = {"role": "assistant", "content": "x", **{f"member{index}": 1 for index in range(5000)}}
    answer = ask(url, {"messages": [reply], "max_tokens": 2})
    assert len(answer.headers["structgen-ignored"].split(", ")) == 32


@pytest.mark.parametrize(
    ("member", "param"),
    [
        ({"audio": {"id": "a"}}, "messages.0.audio"),
        ({"name": 1}, "messages.0.name"),
        ({"reasoning_content": ["x"]}, "messages.0.reasoning_content"),
        ({"function_call": "now"}, "messages[0].tool_calls[0].function"),
        ({"content": [{"type": "file", "file": {}}]}, "messages[0].content[0]"),
    ],
)
def test_malformed_messages_are_refused(url: str, member: dict[str, Any], param: str) -> None:
    """With the place of the fault."""
    messages = [{"role": "assistant", "content": "x", **member}]
    answer = ask(url, {"messages": messages, "max_tokens": 2})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
