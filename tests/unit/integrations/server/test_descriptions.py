"""The descriptions that clients of several servers send: each is kept, by another validator, or refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import lark
import pytest

from structgen.integrations.server.protocol import NOTES, ChatRequest
from structgen.integrations.wire import is_lark

pytestmark = pytest.mark.timeout(120)

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 70}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
EBNF = 'root ::= "<" [0-9]+ ">"'
LARK = 'sum: NUMBER ("+" NUMBER)* // ::=\nNUMBER: /[0-9]{1,3}/'
TAG = {"type": "tag", "begin": "<b>", "content": {"type": "regex", "pattern": "[a-c]{2,5}"}, "end": "</b>"}
TAGS = {"type": "structural_tag", "format": TAG}
LEGACY = {
    "type": "structural_tag",
    "structures": [{"begin": "<t>", "schema": SCHEMA, "end": "</t>"}],
    "triggers": ["<t>"],
}

Judge = Callable[[str], object]


def fits(text: str) -> bool:
    """Whether a text is JSON of the schema."""
    return jsonschema.Draft202012Validator(SCHEMA).is_valid(json.loads(text))


def is_object(text: str) -> bool:
    """Whether a text is a JSON object."""
    return isinstance(json.loads(text), dict)


def has_tags(text: str) -> bool:
    """Whether each opened tag holds what it should."""
    return all(fits(rest.split("</t>")[0]) for rest in text.split("<t>")[1:])


def of(pattern: str) -> Judge:
    """A judge by ``re``."""
    return re.compile(pattern).fullmatch


def parses(text: str) -> bool:
    """Whether Lark itself parses a text."""
    return bool(lark.Lark(LARK, start="sum").parse(text))


HONOURED: list[tuple[dict[str, Any], Judge]] = [
    ({"response_format": {"type": "text"}}, lambda text: True),
    ({"response_format": {"type": "json_object"}}, is_object),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, fits),
    ({"response_format": {"type": "json_schema", "schema": SCHEMA}}, fits),
    *(
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **strict}}}, fits)
        for strict in ({}, {"strict": True}, {"strict": False}, {"strict": None, "description": "d"})
    ),
    ({"response_format": TAGS}, of("<b>[abc]{2,5}</b>")),
    ({"response_format": LEGACY}, has_tags),
    ({"structured_outputs": {"json": SCHEMA}}, fits),
    ({"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}}, fits),
    (
        {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
        lambda text: "\n" not in text and fits(text),
    ),
    ({"structured_outputs": {"json": SCHEMA, "disable_additional_properties": True}}, fits),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "(  )?"}},
        lambda text: re.fullmatch(r'\{(  )?"a"(  )?:.*', text) and fits(text),
    ),
    ({"structured_outputs": {"regex": r"\d{3}-[a-f]+"}}, of("[0-9]{3}-[a-f]+")),
    ({"structured_outputs": {"choice": ["no", "yes", "yes"]}}, of("no|yes")),
    ({"structured_outputs": {"grammar": EBNF}}, of("<[0-9]+>")),
    ({"structured_outputs": {"grammar": LARK}}, parses),
    ({"structured_outputs": {"json_object": True}}, is_object),
    ({"structured_outputs": {"structural_tag": json.dumps(TAGS)}}, of("<b>[abc]{2,5}</b>")),
    ({"guided_json": SCHEMA}, fits),
    ({"guided_json": json.dumps(SCHEMA), "guided_whitespace_pattern": " ?"}, fits),
    ({"guided_json_object": True}, is_object),
    ({"guided_regex": "[ab]{4}"}, of("[ab]{4}")),
    ({"guided_choice": ["p", "q"]}, of("p|q")),
    ({"guided_grammar": LARK}, parses),
    ({"structural_tag": json.dumps(TAGS)}, of("<b>[abc]{2,5}</b>")),
    ({"regex": "[0-9]{2}"}, of("[0-9]{2}")),
    ({"ebnf": EBNF}, of("<[0-9]+>")),
    ({"json_schema": json.dumps(SCHEMA)}, fits),
    ({"json_schema": SCHEMA}, fits),
    ({"grammar": EBNF, "regex": None}, of("<[0-9]+>")),
    ({"grammar": '%llguidance {}\nstart: "a" | "b"'}, of("a|b")),
    ({"grammar": "", "regex": "[0-9]{2}"}, of("[0-9]{2}")),
    ({"format": "json"}, is_object),
    ({"format": SCHEMA}, fits),
]
"""Requests whose description is kept."""

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
    ({"response_format": {"type": "json_object", "strict": True}}, "response_format.strict", "not supported"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "expected an object"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "lax": 1}}},
        "response_format.json_schema.lax",
        "not supported",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"properties": {"a b": 3}}},
            }
        },
        "response_format.json_schema.schema#/properties/a%20b",
        "",
    ),
    (
        {"structured_outputs": {"json": {"items": {"type": "strin"}}}},
        "structured_outputs.json#/items/type",
        "strin",
    ),
    ({"response_format": {**TAGS, "format": {"type": "or"}}}, "response_format#/format", "elements"),
    ({"structured_outputs": {}}, "structured_outputs", "found none"),
    ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs.regex", "structured_outputs.json and"),
    ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object", "true or false"),
    (
        {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "JSON",
    ),
    (
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        "structured_outputs.disable_any_whitespace",
        "",
    ),
    ({"structured_outputs": {"regex": "a(?<=b)c("}}, "structured_outputs.regex", ""),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "one or more"),
    ({"structured_outputs": {"regex": "a", "_backend": "outlines"}}, "structured_outputs._backend", "not supported"),
    ({"structured_outputs": {"grammar": "start: missing"}}, "structured_outputs.grammar", "missing"),
    (
        {"structured_outputs": {"grammar": "%import .secret.X\nstart: X"}},
        "structured_outputs.grammar",
        "relative import",
    ),
    ({"guided_decoding_backend": "outlines"}, "guided_decoding_backend", "not supported"),
    ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "guided_json"),
    (
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
        "structured_outputs.whitespace_pattern",
        "empty",
    ),
    ({"guided_choice": [1]}, "guided_choice", "texts"),
    ({"ebnf": "root ::= ("}, "ebnf", ""),
    ({"grammar": 7}, "grammar", "text"),
    ({"format": "yaml"}, "format", "json"),
    ({"regex": "a", "ebnf": EBNF}, "ebnf", "by regex and by ebnf"),
    ({"response_format": {"type": "json_object"}, "guided_json": SCHEMA}, "guided_json", "response_format and"),
    ({"grammar_lazy": True}, "grammar_lazy", "not supported"),
    ({"functions": []}, "functions", "not supported"),
    ({"structgen": {"reports": True}}, "structgen.reports", ""),
]
"""Requests whose description is refused, and the place that the error names."""

MESSAGES = [{"role": "user", "content": "?"}]


@pytest.mark.parametrize(
    ("fields", "judge"), HONOURED, ids=lambda each: str(each)[:60] if isinstance(each, dict) else ""
)
def test_what_is_described_is_written(url: str, fields: dict[str, Any], judge: Judge) -> None:
    """By a model of noise, so that nothing but the description makes it so."""
    body = {"messages": MESSAGES, "max_tokens": 40, "seed": 1, **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    text = answer.json()["choices"][0]["message"]["content"]
    assert judge(text), text


@pytest.mark.parametrize(("fields", "param", "message"), REFUSED, ids=lambda each: str(each)[:60])
def test_what_is_refused_is_named(url: str, fields: dict[str, Any], param: str, message: str) -> None:
    """With the place in the field of the client, and before the model writes anything."""
    answer = httpx.post(f"{url}/v1/chat/completions", json={"messages": MESSAGES, **fields}, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"].startswith(param)
    assert message in error["message"]


def test_every_field_of_a_request_is_tried() -> None:
    """A new field of a chat needs a case here, or among the tools, or in the tests of sampling."""
    tried = {name for fields, *_ in (*HONOURED, *REFUSED) for name in fields}
    elsewhere = {"messages", "model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "ignored"}
    sampling = {"seed", "temperature", "top_p", "top_k", "min_p", "n", "stop", "logprobs", "top_logprobs"}
    sampling |= {"frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"}
    tools = {"tools", "tool_choice", "parallel_tool_calls", "reasoning_effort", "chat_template_kwargs"}
    describing = set(ChatRequest.model_fields) - elsewhere - sampling - tools
    assert describing & {"regex", "format", "structured_outputs"}
    assert describing <= tried | NOTES


def test_the_report_says_what_is_enforced(url: str) -> None:
    """On request, with the places of the client; a header says it in short."""
    schema = {**SCHEMA, "title": "T"}
    fields = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    body = {"messages": MESSAGES, "max_tokens": 60, **fields}
    plain = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
    assert "structgen" not in plain.json()
    assert re.fullmatch(r"json; enforced=\d+; annotation=1", plain.headers["structgen-enforced"])
    body["structgen"] = {"report": True}
    report = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()["structgen"]["report"]
    found = {entry["where"]: entry["status"] for entry in report["entries"]}
    assert found["#/properties/a/minimum"] == "enforced"
    assert found["#/title"] == "annotation"
    assert {entry["field"] for entry in report["entries"]} == {"response_format.json_schema.schema"}
    lines = httpx.post(f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=60).text.split("\n\n")
    assert json.loads(lines[0].removeprefix("data: "))["structgen"]["report"] == report


@pytest.mark.parametrize(
    ("text", "expected"),
    [(LARK, True), (EBNF, False), ('start: "a"\n# root ::= x', True), ('x: "a"\ny ::= "b"', False), ("", True)],
)
def test_lark_is_told_from_ebnf_as_in_vllm(text: str, expected: bool) -> None:
    """By the ``::=`` of rules, outside of comments."""
    assert is_lark(text) is expected
