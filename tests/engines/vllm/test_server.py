"""An unchanged vLLM server with one flag; answers are judged by ``json``, ``re`` and ``jsonschema-rs``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import NAME, Server

pytestmark = pytest.mark.vllm

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 5},
    },
    "required": ["name", "age", "tags"],
}
TAG = {"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": SCHEMA}, "end": "</f>"}
LEGACY = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}
Judge = Callable[[str], bool]


def _is_valid(text: str) -> bool:
    import jsonschema_rs

    return bool(jsonschema_rs.is_valid(SCHEMA, json.loads(text)))


def _has_valid_calls(text: str) -> bool:
    """Free text, in which each begun call is complete."""
    pieces = re.split(r"<f", text)[1:]
    return all(piece.startswith(">") and _is_valid(piece[1:].split("</f>")[0]) for piece in pieces)


@pytest.fixture(scope="module")
def server(start: Callable[..., Server]) -> Server:
    """With chunked prefill of short chunks, a cache that makes requests wait and be preempted, and tool calls."""
    return start(
        *("--structured-outputs-config.backend", "structgen"),
        *("--max-num-batched-tokens", "256", "--num-gpu-blocks-override", "18"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        VLLM_PLUGINS="structgen",
    )


@pytest.fixture(scope="module")
def drafting(start: Callable[..., Server]) -> Server:
    """Selected by the environment, with forced text as drafts."""
    drafts = {
        "method": "custom_class",
        "model": "structgen.integrations.vllm.proposer.ForcedText",
        "num_speculative_tokens": 8,
    }
    return start("--speculative-config", json.dumps(drafts), STRUCTGEN_VLLM="1")


KINDS: list[tuple[str, dict[str, Any], Judge]] = [
    ("json", {"structured_outputs": {"json": SCHEMA}}, _is_valid),
    (
        "response_format",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}},
        _is_valid,
    ),
    ("json_object", {"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
    (
        "regex",
        {"structured_outputs": {"regex": r"\d{4}-\d{2}"}},
        lambda text: re.fullmatch(r"\d{4}-\d{2}", text) is not None,
    ),
    (
        "lark",
        {"structured_outputs": {"grammar": 'start: "yes" | "no " /[a-z]{3}/'}},
        lambda text: re.fullmatch("yes|no [a-z]{3}", text) is not None,
    ),
    (
        "ebnf",
        {"structured_outputs": {"grammar": 'root ::= "yes" | "no " [a-z]+ "."'}},
        lambda text: re.fullmatch(r"yes|no [a-z]+\.", text) is not None,
    ),
    ("choice", {"structured_outputs": {"choice": ["ja", "nö"]}}, lambda text: text in ("ja", "nö")),
    (
        "structural_tag",
        {"response_format": {"type": "structural_tag", "format": TAG}},
        lambda text: _is_valid(text.removeprefix("<f>").removesuffix("</f>")),
    ),
    ("legacy", {"response_format": {"type": "structural_tag", **LEGACY}}, _has_valid_calls),
]


@pytest.mark.parametrize(("fields", "judge"), [each[1:] for each in KINDS], ids=[each[0] for each in KINDS])
@pytest.mark.parametrize("kind", ["server", "drafting"])
def test_every_kind_is_enforced_and_complete(
    kind: str, fields: dict[str, Any], judge: Judge, request: pytest.FixtureRequest
) -> None:
    """Within ``max_tokens``, with and without drafts, three answers at a time."""
    status, body = request.getfixturevalue(kind).ask(**fields, n=3)
    assert status == 200, body
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop"
        assert judge(choice["message"]["content"]), choice


@pytest.mark.parametrize("max_tokens", [18, 19, 25])
@pytest.mark.parametrize("kind", ["server", "drafting"])
def test_tight_limits_are_kept(kind: str, max_tokens: int, request: pytest.FixtureRequest) -> None:
    """Down to the number that the refusal names."""
    held: Server = request.getfixturevalue(kind)
    asked = {"structured_outputs": {"json": SCHEMA}}
    status, body = held.ask(**asked, max_tokens=3)
    needed = int(re.search(r"takes (\d+) tokens", body["error"]["message"])[1])  # type: ignore[index]
    assert status == 400
    assert needed <= 18
    status, body = held.ask(**asked, max_tokens=max_tokens)
    assert status == 200
    assert body["choices"][0]["finish_reason"] == "stop"
    assert _is_valid(body["choices"][0]["message"]["content"])
    assert body["usage"]["completion_tokens"] <= max_tokens


def test_streams_are_complete(server: Server) -> None:
    """Their deltas are the answer."""
    import httpx

    body = {"model": NAME, "messages": [{"role": "user", "content": "?"}], "stream": True, "max_tokens": 60}
    text, reason = "", None
    asked = {**body, "structured_outputs": {"json": SCHEMA}}
    with httpx.stream("POST", f"{server.address}/v1/chat/completions", json=asked, timeout=600) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                text += choice["delta"].get("content") or ""
                reason = choice["finish_reason"] or reason
    assert reason == "stop"
    assert _is_valid(text)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_strict_tools_are_called_with_valid_arguments(server: Server, choice: Any) -> None:
    """By the structural tag that vLLM makes of them."""
    strict = {**SCHEMA, "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": strict}}
    status, body = server.ask(tools=[tool], tool_choice=choice, max_tokens=120)
    assert status == 200, body
    calls = body["choices"][0]["message"]["tool_calls"]
    assert calls
    for call in calls:
        assert call["function"]["name"] == "f"
        assert _is_valid(call["function"]["arguments"])


def test_many_requests_of_many_kinds_at_once(server: Server) -> None:
    """With prompts of many chunks, and a cache too small for all; those that are refused end alone."""
    before = server.metric("num_preemptions_total")

    def asked(at: int) -> tuple[dict[str, Any], int, Any]:
        fields: dict[str, Any] = [*(each[1] for each in KINDS[:6]), {"structured_outputs": {"regex": "("}}][at % 7]
        words = "word " * (300 if at % 3 == 0 else 3)
        return fields, *server.ask(**fields, messages=[{"role": "user", "content": words}], max_tokens=200)

    with ThreadPoolExecutor(14) as pool:
        for at, (_, status, body) in enumerate(pool.map(asked, range(28))):
            if at % 7 == 6:
                assert status == 400
                continue
            assert status == 200, body
            choice = body["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert KINDS[at % 7][2](choice["message"]["content"]), (at, choice)
    assert server.metric("num_preemptions_total") > before


@pytest.mark.parametrize(
    "options",
    [("--tensor-parallel-size", "2"), ("--data-parallel-size", "2"), ("--api-server-count", "2")],
    ids=["tensor", "data", "servers"],
)
def test_several_processes(start_for_test: Callable[..., Server], options: tuple[str, str]) -> None:
    """Each process has the plug-in: those that answer refuse, those that schedule fill the rows of all workers."""
    held = start_for_test("--structured-outputs-config.backend", "structgen", *options)
    bad = [_bad(at) for at in range(8)]
    good = [each[1] for each in KINDS] * 3
    with ThreadPoolExecutor(8) as pool:
        refused = [pool.submit(held.ask, **fields) for fields in bad]
        answers = list(pool.map(lambda fields: held.ask(**fields, max_tokens=200), good))
    assert {each.result()[0] for each in refused} == {400}
    for (name, _, judge), (status, body) in zip(KINDS * 3, answers, strict=True):
        assert status == 200, (name, body)
        choice = body["choices"][0]
        assert choice["finish_reason"] == "stop", (name, choice)
        assert judge(choice["message"]["content"]), (name, choice)


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


TEXT_FORMAT = {"type": "json_schema", "name": "n"}
REFUSED = [
    ({"structured_outputs": {"json": '{"type":'}}, "structured_outputs.json", "not valid JSON"),
    (
        {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "strin"}}}}},
        "structured_outputs.json#/properties/a/type",
        "string",
    ),
    (
        {"structured_outputs": {"json": {"minimum": 3, "maximum": 2, "type": "integer"}}},
        "structured_outputs.json",
        "no",
    ),
    ({"structured_outputs": {"regex": "(a{1000}){1000}b(a{500}){900}"}}, "structured_outputs", "steps"),
    ({"structured_outputs": {"regex": "a\x00"}}, "structured_outputs.regex", "NUL"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex", "unclosed"),
    ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar", "not defined"),
    ({"structured_outputs": {"json": SCHEMA}, "min_tokens": 5}, "min_tokens", "leave it out"),
    ({"structured_outputs": {"json": SCHEMA}, "ignore_eos": True}, "ignore_eos", "leave it out"),
    ({"structured_outputs": {"json": SCHEMA}, "stop_token_ids": [100]}, "stop_token_ids", "ordinary text"),
    ({"structured_outputs": {"json": SCHEMA}, "max_tokens": 6}, "max_tokens", "takes"),
    ({"structured_outputs": {"json": _nested(100)}}, "structured_outputs.json#/properties/a/properties/a", "$defs"),
    ({"structured_outputs": {"json": SCHEMA}, "use_beam_search": True, "n": 2}, "use_beam_search", "leave it out"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=lambda each: str(each)[:40])
def test_bad_input_is_refused_before_the_model_runs(
    server: Server, fields: dict[str, Any], param: str, message: str, *, stream: bool
) -> None:
    """HTTP 400 with the place and what to do, of streams too."""
    status, body = server.ask(**fields, stream=stream)
    assert status == 400, body
    assert body["error"]["param"].startswith(param)
    assert message in body["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x", "structured_outputs": {"json": {"type": "strin"}}}),
        ("/v1/responses", {"input": "x", "text": {"format": {**TEXT_FORMAT, "schema": {"type": "strin"}}}}),
    ],
)
def test_streams_of_other_routes_are_refused_too(server: Server, path: str, fields: dict[str, Any]) -> None:
    """Before they have a status."""
    status, body = server.ask(path, **fields, stream=True)
    assert status == 400, body
    assert body["error"]["param"] == "structured_outputs.json#/type"


def test_an_unknown_keyword_is_an_annotation(server: Server) -> None:
    """As JSON Schema says; ``/structgen/check`` lists it."""
    schema = {**SCHEMA, "requird": ["b"]}
    status, body = server.ask(structured_outputs={"json": schema})
    assert status == 200
    assert _is_valid(body["choices"][0]["message"]["content"])
    _, body = server.ask("/structgen/check", structured_outputs={"json": schema})
    assert {"keyword": "requird", "where": "#/requird", "status": "annotation"} in body["entries"]


def _bad(at: int) -> dict[str, Any]:
    """A request that is refused, each with another description."""
    name = f"k{at}"
    of = [
        {"json": f'{{"type": "{name}'},
        {"json": {"type": "object", "properties": {name: {"type": "strin"}}}},
        {"json": {"type": "object", "properties": {name: {"enum": []}}, "required": [name]}},
        {"regex": f"(a{{1000}}){{1000}}{name}(a{{500}}){{900}}"},
        {"regex": f"{name}\x00"},
        {"json": {**_nested(100), "title": name}},
        {"grammar": f"start: {name}"},
    ]
    return {"structured_outputs": of[at % len(of)], "stream": at % 2 == 1}


def test_refusals_disturb_no_other_request(server: Server) -> None:
    """Fifteen requests go on while others are refused."""
    with ThreadPoolExecutor(20) as pool:
        good = [pool.submit(server.ask, structured_outputs={"json": SCHEMA}, max_tokens=150) for _ in range(15)]
        bad = [pool.submit(server.ask, **_bad(at)) for at in range(70)]
        assert {each.result()[0] for each in bad} == {400}
    for each in good:
        status, body = each.result()
        assert status == 200, body
        assert body["choices"][0]["finish_reason"] == "stop"
        assert _is_valid(body["choices"][0]["message"]["content"])


def test_refusals_leave_the_memory_as_it_was(server: Server, record_property: Callable[..., None]) -> None:
    """A thousand after the first hundreds, which fill caches that are bounded."""
    resident = []
    with ThreadPoolExecutor(8) as pool:
        for begin in range(0, 1250, 250):
            answers = pool.map(lambda at: server.ask(**_bad(at)), range(begin, begin + 250))
            assert {status for status, _ in answers} == {400}
            resident.append(server.resident())
    record_property("resident_mib", [size >> 20 for size in resident])
    assert resident[-1] - resident[0] < 32 << 20


def test_thoughts_of_a_real_parser_are_free(start: Callable[..., Server], thinking: str) -> None:
    """With vLLM's parser of DeepSeek R1: the answer is constrained, and complete; streams have the same parts."""
    import httpx

    options = ("--structured-outputs-config.backend", "structgen", "--reasoning-parser", "deepseek_r1")
    held = start(*options, of=thinking)
    # The model of noise would think forever: the end of thoughts is made likely.  In the answer it is masked.
    fields = {"structured_outputs": {"json": SCHEMA}, "logit_bias": {"5": 9.0}, "max_tokens": 400}
    thoughts = set()
    for _ in range(4):
        status, body = held.ask(**fields)
        assert status == 200, body
        choice = body["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert _is_valid(choice["message"]["content"])
        thoughts.add(choice["message"]["reasoning"])
    assert len(thoughts) > 1
    asked = {"model": NAME, "messages": [{"role": "user", "content": "?"}], "stream": True, **fields}
    text = ""
    with httpx.stream("POST", f"{held.address}/v1/chat/completions", json=asked, timeout=600) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content") or ""
    assert _is_valid(text)


def test_forced_text_takes_fewer_steps(drafting: Server) -> None:
    """vLLM's own counters say how many drafts were accepted.

    Each byte of these names is a token of its own.  Of other names, a model of noise would write spellings that no
    tokenizer and no real model writes.
    """
    names = [f"{chr(0x2D30 + at)}ⴷⴹⴻⴼⴽ" for at in range(6)]
    schema = {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, "required": names}
    before = drafting.metric("spec_decode_num_accepted_tokens_total")
    status, body = drafting.ask(structured_outputs={"json": schema}, max_tokens=400, temperature=0)
    assert status == 200
    assert sorted(json.loads(body["choices"][0]["message"]["content"])) == sorted(names)
    accepted = drafting.metric("spec_decode_num_accepted_tokens_total") - before
    assert accepted >= 0.6 * body["usage"]["completion_tokens"]


def test_routes_say_what_is_enforced(server: Server) -> None:
    """With ``VLLM_PLUGINS=structgen``."""
    status, body = server.ask("/structgen/check", structured_outputs={"json": SCHEMA})
    assert status == 200
    assert {"keyword": "maximum", "where": "#/properties/age/maximum", "status": "enforced"} in body["entries"]
    status, body = server.ask("/structgen/explain", structured_outputs={"regex": "ab"}, text="ax")
    assert (status, body["accepted"], body["expected"]) == (200, "a", "'b'")
    status, body = server.ask("/structgen/check", structured_outputs={"regex": "("})
    assert (status, body["error"]["param"]) == (400, "structured_outputs.regex")
