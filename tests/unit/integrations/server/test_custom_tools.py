"""Custom tools: inputs are texts of their grammars, judged by ``re`` and by Lark's own parser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import lark
import pytest
from openai import OpenAI

import structgen as sg
from structgen.engine.mask import allowed_ids, empty_masks
from structgen.frontends.chat import Family, families, load_family, read_reply
from structgen.frontends.free_text import any_text
from structgen.integrations.server.custom import InputReader
from structgen.integrations.server.description import Description
from structgen.integrations.server.protocol import APIError, ChatRequest
from structgen.integrations.server.tools import Form, Thinking, Tools

pytestmark = pytest.mark.timeout(120)

MESSAGES: list[Any] = [{"role": "user", "content": "?"}]
REGEX = r'[a-c"\\\n<é]{2,5}'
LARK = 'start: "(" start ")" | PART\nPART: /["a-c]{1,3}/'


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "grammar": {"syntax": syntax, "definition": definition}}


def custom(name: str, format: Any = None) -> dict[str, Any]:
    return {"type": "custom", "custom": {"name": name, **({} if format is None else {"format": format})}}


def judge(name: str, text: str) -> None:
    """By an engine that is not ours."""
    if name == "pattern":
        assert re.fullmatch(REGEX, text)
    elif name == "nested":
        lark.Lark(LARK).parse(text)
    else:
        assert name == "free"


CUSTOMS: list[Any] = [
    custom("pattern", grammar("regex", REGEX)),
    custom("nested", grammar("lark", LARK)),
    custom("free"),
]
FLAT: list[Any] = [
    {"type": "custom", "name": "pattern", "format": {"type": "grammar", "syntax": "regex", "definition": REGEX}},
    {"type": "custom", "name": "nested", "format": {"type": "grammar", "syntax": "lark", "definition": LARK}},
    {"type": "custom", "name": "free", "format": {"type": "text"}, "description": "Anything."},
]


@pytest.mark.parametrize("name", ["pattern", "nested", "free"])
def test_inputs_belong_to_their_grammars(client: OpenAI, name: str) -> None:
    """In chats and in responses, whole and as deltas: one input, for one seed."""
    fields: dict[str, Any] = {"model": "hash", "tool_choice": {"type": "custom", "custom": {"name": name}}}
    fields |= {"messages": MESSAGES, "tools": CUSTOMS, "max_tokens": 40}
    flat: dict[str, Any] = {"model": "hash", "input": "?", "tools": FLAT, "max_output_tokens": 40}
    flat |= {"tool_choice": {"type": "custom", "name": name}}
    for seed in range(4):
        message = client.chat.completions.create(**fields, seed=seed).choices[0].message
        (call,) = message.tool_calls or ()
        assert call.type == "custom"
        assert call.custom.name == name
        judge(name, call.custom.input)
        parts = []
        for chunk in client.chat.completions.create(**fields, seed=seed, stream=True):
            for delta in chunk.choices[0].delta.tool_calls or ():
                held = delta.custom  # type: ignore[attr-defined]
                parts.append(held["input"])
                assert held.get("name", name) == name
        assert len(parts) >= 2
        assert "".join(parts) == call.custom.input
        made: Any = client.responses.create(**flat, extra_body={"seed": seed})
        (item,) = made.output
        assert item.type == "custom_tool_call"
        assert item.name == name
        judge(name, item.input)
        with client.responses.stream(**flat, extra_body={"seed": seed}) as stream:
            events: list[Any] = list(stream)
            final: Any = stream.get_final_response()
        said = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
        (done,) = [event for event in events if event.type == "response.custom_tool_call_input.done"]
        assert "".join(said) == done.input == final.output[0].input == item.input


def test_calls_come_back_as_calls(client: OpenAI) -> None:
    """Of a function with the argument ``input``, in both endpoints."""
    call = {"id": "c1", "type": "custom", "custom": {"name": "free", "input": 'a "b"'}}
    messages: list[Any] = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]
    items: list[Any] = [
        {"role": "user", "content": "?"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "free", "input": 'a "b"'},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
    ]
    chat = client.chat.completions.create(
        model="hash", messages=messages, tools=CUSTOMS, tool_choice="none", max_tokens=20, seed=3
    )
    flat = client.responses.create(
        model="hash", input=items, tools=FLAT, tool_choice="none", max_output_tokens=20, extra_body={"seed": 3}
    )
    assert chat.choices[0].message.content == flat.output_text
    root = str(client.base_url).removesuffix("/v1/")
    tokens = httpx.post(f"{root}/tokenize", json={"messages": messages}).json()["tokens"]
    prompt = httpx.post(f"{root}/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert prompt.count('{"tool": "free", "arguments": {"input": "a \\"b\\""}}') == 1


WORDS = ["a", '"', "\\", "\n", "<", "é", '"\\', '"\\n', "</"]
FINITE = r'[a"\\\n<é]|"\\n?|</'


def of_one_id(name: str) -> Family:
    """A family in which calls have one id, so that their number is small."""
    family = load_family(name)
    one = "0" if re.fullmatch(family.calls.id, "0") else "abcdefghi" if family.calls.id else ""
    return replace(family, calls=replace(family.calls, id=one))


def replies(family: Family, tools: list[Any]) -> sg.Grammar:
    """The required calls of a family."""
    request = ChatRequest.model_validate({"messages": MESSAGES, "tools": tools, "tool_choice": "required"})
    bounds = sg.Limits()
    read = Tools.of(request.model_copy(update={"parallel_tool_calls": False}), bounds)
    vocabulary = sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    answer = Description(any_text(), "text", None)
    form = Form(family, has_tools=True)
    return form.replies(answer, read, Thinking(may_be=False), limits=bounds, vocabulary=vocabulary).grammar


def strings(made: sg.Grammar) -> Iterator[str]:
    """All strings of a grammar."""
    vocabulary = sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0])
    matcher, row = sg.compile(made, vocabulary).matcher(), empty_masks(257)
    written: list[int] = []
    waiting: list[tuple[int, int]] = [(0, -1)]
    while waiting:
        depth, token = waiting.pop()
        if token >= 0:
            matcher.rollback(len(written) - depth)
            del written[depth:]
            assert matcher.accept(token)
            written.append(token)
        matcher.fill_mask(row)
        for following in allowed_ids(row[0], 257):
            if following == 0:
                yield bytes(each - 1 for each in written).decode()
            else:
                waiting.append((len(written), int(following)))


@pytest.mark.parametrize("name", families())
def test_each_family_carries_exactly_the_texts(name: str) -> None:
    """Escapes, quotes and tags included: all strings, read back, are all texts of the expression."""
    family = of_one_id(name)
    made = replies(family, [custom("run", grammar("regex", FINITE))])
    told = [{"name": "run", "parameters": {"type": "object", "properties": {"input": {"type": "string"}}}}]
    found = set()
    for text in strings(made):
        (call,) = read_reply(text, family=family, tools=told).calls
        assert list(call.arguments) == ["input"]
        found.add(call.arguments["input"])
    assert found == set(WORDS)


def test_recursive_grammars_need_a_family_with_json() -> None:
    """Between tags the engine cannot tell that the closing tag is not part of the text."""
    for name in families():
        tools = [custom("run", grammar("lark", LARK))]
        if load_family(name).arguments.style == "json":
            assert isinstance(replies(load_family(name), tools), sg.Grammar)
        else:
            with pytest.raises(APIError, match=f"family {name}") as caught:
                replies(load_family(name), tools)
            assert caught.value.param == "tools[0].custom.format.grammar.definition"


def test_inputs_are_read_however_they_are_cut() -> None:
    """Whole escapes, and both halves of a character outside the basic plane, come together."""
    written = '{ "input" :"a\\"\\\\\\u0062\\ud83d\\ude00\\n\\/é" }'
    for size in range(1, len(written)):
        reader = InputReader()
        read = [reader.read(written[at : at + size]) for at in range(0, len(written), size)]
        assert "".join(read) == 'a"\\b😀\n/é'


@pytest.mark.parametrize(
    ("format", "param"),
    [
        ("text", "format"),
        ({"type": "json"}, "format"),
        ({"type": "text", "x": 1}, "format"),
        ({"type": "grammar"}, "format.syntax"),
        ({"type": "grammar", "grammar": "x"}, "format.grammar"),
        ({"type": "grammar", "grammar": {"syntax": "gbnf", "definition": "x"}}, "format.grammar.syntax"),
        ({"type": "grammar", "grammar": {"syntax": "lark"}}, "format.grammar.definition"),
        ({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: a"}}, "format.grammar.definition"),
        ({"type": "grammar", "grammar": {"syntax": "regex", "definition": "(?=a)b("}}, "format.grammar.definition"),
        (
            {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: <|im_end|>"}},
            "format.grammar.definition",
        ),
        ({"type": "grammar", "syntax": "lark", "definition": 'start: "a"', "x": 1}, "format.x"),
    ],
)
def test_bad_formats_are_refused_by_name(url: str, format: Any, param: str) -> None:
    """With the place of the fault."""
    body = {"messages": MESSAGES, "tools": [custom("run", format)], "max_tokens": 40}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == f"tools[0].custom.{param}"


def test_kinds_and_modes_are_not_mixed_up(url: str) -> None:
    """A custom tool is not chosen as a function; tools may be called as modes are."""
    function = {"type": "function", "function": {"name": "auto"}}
    both = [custom("none", grammar("regex", "[ab]")), function]
    for name, kind, wrong in (("none", "custom", "function"), ("auto", "function", "custom")):
        body = {"messages": MESSAGES, "tools": both, "max_tokens": 50, "seed": 1}
        chosen = {"type": kind, kind: {"name": name}}
        message = httpx.post(f"{url}/v1/chat/completions", json={**body, "tool_choice": chosen}, timeout=60).json()
        (call,) = message["choices"][0]["message"]["tool_calls"]
        assert call[kind]["name"] == name
        chosen = {"type": wrong, wrong: {"name": name}}
        refused = httpx.post(f"{url}/v1/chat/completions", json={**body, "tool_choice": chosen}, timeout=60)
        assert refused.json()["error"]["param"] == f"tool_choice.{wrong}.name"
    twice = httpx.post(f"{url}/v1/responses", json={"input": "?", "tools": [FLAT[0], {**FLAT[0]}]}, timeout=60)
    assert twice.json()["error"]["param"] == "tools[1].name"
