"""Questions about descriptions over HTTP: the answers are those of the languages themselves, listed by hand."""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import pytest
from click.testing import CliRunner
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families
from served_model import VOCABULARY

from structgen.cli.main import cli
from structgen.models import HashModel

pytestmark = pytest.mark.timeout(120)

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "yy", 3]}, "b": {"type": "boolean"}}, "required": ["a"]}
STRINGS = [
    f'{{"a": {first}{second}}}'
    for first, second in itertools.product(('"x"', '"yy"', "3"), ("", ', "b": true', ', "b": false'))
]
"""All outputs, as ``json.dumps`` writes them."""


def asked(url: str, name: str, schema: object = SCHEMA, **body: Any) -> Any:
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = httpx.post(
        f"{url}/v1/structgen/{name}", content=json.dumps({"response_format": wanted, **body}), timeout=60
    )
    return answer.json() if answer.status_code == 200 else answer


def test_check_reports_every_keyword(url: str) -> None:
    """With its place; the shortest output and the example are outputs."""
    answer = asked(url, "check", SCHEMA | {"title": "t"})
    found = {entry["where"]: entry["status"] for entry in answer["entries"]}
    for place in ("#/type", "#/properties", "#/properties/a/enum", "#/properties/b/type", "#/required"):
        assert found[place] == "enforced"
    assert found["#/title"] != "enforced"
    assert answer["shortest"] == min(STRINGS, key=len)
    assert answer["shortest_bytes"] == min(map(len, STRINGS))
    assert answer["example"] in STRINGS


def test_check_names_what_is_refused(url: str) -> None:
    """In an answer, for that is what was asked; with the values of the command."""
    schema = {"type": "string", "maxLenght": 3, "$ref": "http://elsewhere/x"}
    answer = asked(url, "check", schema)
    told = CliRunner().invoke(cli, ["check", "--json", "-"], input=json.dumps(schema))
    assert told.exit_code != 0
    assert answer == json.loads(told.stdout.splitlines()[0])
    assert not answer["accepted"]
    assert "#/" in answer["error"]["message"]


@pytest.mark.parametrize("cut", [0, 1])
def test_match_decides(url: str, cut: int) -> None:
    """Each output is one, each proper prefix ends too early, and a change is found at its byte."""
    for text in STRINGS[:: 1 + cut]:
        document = text[: len(text) - cut]
        answer = asked(url, "match", document=document)
        assert answer["match"] is (document in STRINGS)
        if cut:
            assert (answer["offset"], answer["found"]) == (len(document), None)
    wrong = STRINGS[1].replace("true", "tru\N{WAVY DASH}")
    assert asked(url, "match", document=wrong)["offset"] == wrong.index("\N{WAVY DASH}")


@pytest.mark.parametrize("text", ["", "{", '{"a": ', '{"a": "y', '{"a": 3', '{"a": 3, "b": ', STRINGS[0]])
def test_explain_counts_the_tokens_that_may_come(url: str, text: str) -> None:
    """As many as begin the rest of an output; the nearest are among them."""
    rests = [each[len(text) :] for each in STRINGS if each.startswith(text)]
    fit = {
        data for data in map(bytes, VOCABULARY.tokens) if data and any(rest.encode().startswith(data) for rest in rests)
    }
    answer = asked(url, "explain", text=text, token="z")
    assert answer["allowed_tokens"] == len(fit)
    assert answer["may_end"] is ("" in rests)
    assert not answer["token"]["allowed"]
    assert {data.encode() for _, data in answer["token"]["nearest"]} <= fit
    for data in fit:
        number = VOCABULARY.tokens.index(data)
        assert asked(url, "explain", text=text, token=number)["token"]["allowed"]


def test_explain_says_where_a_prefix_leaves_the_language(url: str) -> None:
    """At the byte after the longest prefix of an output."""
    answer = asked(url, "explain", text='{"a": "yz')
    assert (answer["possible"], answer["offset"], answer["found"]) == (False, 8, "'z'")


def test_samples_are_outputs_and_equal_seeds_give_equal_ones(url: str) -> None:
    """All outputs occur; those of a larger language are valid by another library."""
    drawn = asked(url, "sample", n=100, seed=5)["strings"]
    assert set(drawn) == set(STRINGS)
    assert asked(url, "sample", n=100, seed=5)["strings"] == drawn
    assert asked(url, "sample", n=100, seed=6)["strings"] != drawn
    schema = {"type": "array", "items": {"type": "integer", "minimum": -5}, "maxItems": 4}
    for text in asked(url, "sample", schema, n=20, uniform=True, max_bytes=30)["strings"]:
        jsonschema.validate(json.loads(text), schema)


@pytest.mark.parametrize(
    ("name", "body", "param", "message"),
    [
        ("match", {}, "document", "required"),
        ("explain", {"token": 10**9}, "token", "263 tokens"),
        ("explain", {"tokn": "x"}, "tokn", "not supported"),
        ("sample", {"max_bytes": 10**9}, "max_bytes", "4096"),
        ("sample", {"n": 1000}, "n", "128"),
        ("sample", {"max_bytes": 3}, None, "3"),
        ("check", {"response_format": {"type": "text"}}, "response_format", "no description"),
        ("check", {"model": "gpt-9"}, "model", "there is no"),
    ],
)
def test_bad_questions_are_explained(
    url: str, name: str, body: dict[str, Any], param: str | None, message: str
) -> None:
    """In OpenAI's shape."""
    answer = asked(url, name, **body)
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def metrics(url: str) -> dict[str, float]:
    """The values of all samples, by name and labels."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics").text)
    return {
        " ".join([sample.name.removeprefix("structgen_"), *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
    }


def test_metrics_and_log_are_those_of_the_answers(serve: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    """Tokens as in ``usage``; refusals by their code; a line for each request."""
    caplog.set_level(logging.INFO, "structgen")
    url = serve()
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        usages = []
        for stream in (False, True):
            answer: Any = client.chat.completions.create(
                model="hash",
                messages=[{"role": "user", "content": "Who?"}],
                response_format=wanted,
                max_tokens=50,
                **({"stream": True, "stream_options": {"include_usage": True}} if stream else {}),
            )
            usages.append([*answer][-1].usage if stream else answer.usage)
    assert asked(url, "check", {"type": "strin"})["accepted"] is False
    assert httpx.get(f"{url}/nowhere").status_code == 404
    found = metrics(url)
    forced = sum(usage.completion_tokens_details.model_extra["forced_tokens"] for usage in usages)
    tokens = sum(usage.completion_tokens for usage in usages)
    assert found["tokens_total prompt"] == sum(usage.prompt_tokens for usage in usages)
    assert found["tokens_total forced"] == forced
    assert found["tokens_total accepted"] + found["tokens_total sampled"] == tokens - forced
    assert found["requests_total /v1/chat/completions 200"] == 2
    assert found["requests_total other 404"] == 1
    assert found["refused_total invalid_description"] == 1
    assert found["first_token_seconds_count"] == found["compile_seconds_count"] == 2
    assert (found["running"], found["waiting"], found["cancelled_total"]) == (0, 0, 0)
    lines = [each.getMessage() for each in caplog.records if each.getMessage().startswith("POST '/v1/chat")]
    shown = [
        re.search(r" 200 schema=([0-9a-f]{8}) prompt=(\d+) tokens=(\d+) forced=(\d+) passes=\d+", line)
        for line in lines
    ]
    assert [(int(each[2]), int(each[3])) for each in shown if each] == [
        (usage.prompt_tokens, usage.completion_tokens) for usage in usages
    ]
    assert len({each[1] for each in shown if each}) == 1


class Held(HashModel):
    """A model whose passes wait for the test."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY, seed=1)
        self.go_on = threading.Event()

    def logits(self, state: int, matched: int) -> Any:
        assert self.go_on.wait(60)
        return super().logits(state, matched)


def test_a_client_that_goes_away_is_counted(serve: Callable[..., str], caplog: pytest.LogCaptureFixture) -> None:
    """Once, and as no answer; what it was sent until then was an answer like others."""
    caplog.set_level(logging.INFO, "structgen")
    model = Held()
    url = serve(model)
    schema = {"type": "string", "minLength": 1500}
    body = {
        "messages": [{"role": "user", "content": "Who?"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        "max_tokens": 9000,
        "stream": True,
    }
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        next(answer.iter_lines())
    model.go_on.set()
    while not (found := metrics(url))["cancelled_total"]:
        time.sleep(0.01)
    assert found["requests_total /v1/chat/completions 499"] == found["cancelled_total"] == 1
    assert found["tokens_total sampled"] == 0
    assert any(" cancelled " in each.getMessage() for each in caplog.records)
