"""Programs on servers of each kind: their requests, their results, and their errors."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from openai_stub_server import Stub, begin, chunk, reply, running_stub
from pydantic import BaseModel, Field, field_validator

import structgen
from structgen.decode import Multinomial
from structgen.errors import GenerationError, GrammarError, ModelError, ProgramError, ValidationFailed
from structgen.frontends.regex import regex
from structgen.integrations.openai_server import OpenAIServer
from structgen.program import Done, FieldFinal, Retracted, program, user

pytest.importorskip("httpx", reason="httpx is not installed")

KINDS = ("vllm", "sglang", "llama_server", "openai")


@pytest.fixture
def stub() -> Iterator[Stub]:
    with running_stub() as held:
        yield held


@pytest.fixture
def connect(stub: Stub) -> Iterator[Any]:
    made: list[OpenAIServer] = []

    def connected(kind: Any = "vllm", **settings: Any) -> OpenAIServer:
        if kind is not None:
            stub.dialects = {kind}
        made.append(
            structgen.integrations.openai_server.remote(settings.pop("url", stub.url), "m", kind=kind, **settings)
        )
        return made[-1]

    yield connected
    for server in made:
        server.close()


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)

    @field_validator("name")
    @classmethod
    def is_capital(cls, name: str) -> str:
        if not name[:1].isupper():
            raise ValueError("it begins small")
        return name


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"title": "Name", "type": "string", "maxLength": 12},
        "age": {"title": "Age", "type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "age"],
    "title": "Person",
    "additionalProperties": False,
}
STRICT = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 130}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ADA = '{"name": "Ada", "age": 36}'


@program(describe=False)
def extract(text: str) -> Person:
    """Who is it? {text}"""


@program(describe=False)
def choose() -> Literal["yes", "no"]:
    """Is it?"""


@program(describe=False)
def count() -> int:
    """How many?"""


@program(describe=False)
def digits() -> Iterator[Any]:
    yield "Digits?"
    return (yield regex("[0-9]{2}"))


def said(value: str, kind: str) -> str:
    """A text as a server of that kind sends it; OpenAI wraps it in an object."""
    return json.dumps({"answer": value}) if kind == "openai" else value


@pytest.mark.parametrize("kind", KINDS)
def test_a_type_goes_out_as_a_schema(stub: Stub, connect: Any, kind: str) -> None:
    model = connect(kind)
    stub.texts = [ADA]
    assert extract("Ada", model=model) == Person(name="Ada", age=36)
    ((path, body),) = stub.requests
    assert path == "/v1/chat/completions"
    common = {
        "model": "m",
        "messages": [{"role": "user", "content": "Who is it? Ada"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "seed": 0,
    }
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    expected: dict[str, Any] = {
        # docs.vllm.ai, Structured Outputs: {"structured_outputs": {"json": ...}}
        "vllm": {"structured_outputs": {"json": SCHEMA}, "max_tokens": 256},
        # docs.sglang.io, Structured Outputs, OpenAI compatible API, JSON Schema directly
        "sglang": {"response_format": form, "max_tokens": 256},
        # llama.cpp, grammars/README.md, JSON Schemas: inside the response_format body field
        "llama_server": {"response_format": form, "max_tokens": 256},
        # OpenAI, Structured Outputs: strict, closed, all required
        "openai": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": STRICT, "strict": True},
            },
            "max_completion_tokens": 256,
        },
    }
    assert body == {**common, **expected[kind]}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("vllm", {"structured_outputs": {"choice": ["yes", "no"]}}),
        ("sglang", {"ebnf": 'root ::= "yes" | "no"\n'}),
        ("llama_server", {"grammar": 'root ::= "yes" | "no"\n'}),
        (
            "openai",
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {
                        "name": "answer",
                        "strict": True,
                        "schema": {
                            "type": "object",
                            "properties": {"answer": {"type": "string", "enum": ["yes", "no"]}},
                            "required": ["answer"],
                            "additionalProperties": False,
                        },
                    },
                }
            },
        ),
    ],
)
def test_choices(stub: Stub, connect: Any, kind: str, expected: dict[str, Any]) -> None:
    stub.texts = [said("no", kind)]
    model = connect(kind)
    run = choose.run(model=model)
    assert (run.value, run.text) == ("no", "no")
    (body,) = stub.bodies
    assert {name: body[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("kind", "name"), [("vllm", "structured_outputs"), ("sglang", "ebnf"), ("llama_server", "grammar")]
)
def test_grammars_go_out_as_gbnf(stub: Stub, connect: Any, kind: str, name: str) -> None:
    stub.texts = ["42"]
    assert digits(model=connect(kind)) == "42"
    held = stub.bodies[0][name]
    gbnf = held["grammar"] if kind == "vllm" else held
    assert gbnf.startswith("root ::= ")
    assert "[0-9]{2,2}" in gbnf


def test_openai_takes_no_grammars_and_that_is_said_before_any_request(stub: Stub, connect: Any) -> None:
    with pytest.raises(GrammarError, match="no grammars"):
        digits(model=connect("openai"))
    assert stub.number == 0


def test_values_that_are_no_objects_come_wrapped_from_openai(stub: Stub, connect: Any) -> None:
    stub.texts = ['{ "answer" : 12 }']
    run = count.run(model=connect("openai"))
    assert (run.value, run.text) == (12, "12")
    schema = stub.bodies[0]["response_format"]["json_schema"]["schema"]
    assert schema["properties"] == {"answer": {"type": "integer"}}


def test_a_plain_text_needs_no_constraint(stub: Stub, connect: Any) -> None:
    @program
    def write() -> str:
        """Write."""

    stub.texts = ["Once."]
    assert write(model=connect()) == "Once."
    assert not stub.bodies[0].keys() & {"structured_outputs", "response_format"}


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama_server"])
def test_without_chat_the_prompt_is_gone_on_with(stub: Stub, connect: Any, kind: str) -> None:
    @program(chat=False, describe=False)
    def number() -> int:
        """x ="""

    stub.texts = ["7"]
    assert number(model=connect(kind)) == 7
    ((path, body),) = stub.requests
    assert path == "/v1/completions"
    assert body["prompt"] == "x ="
    assert "messages" not in body
    held = {
        "vllm": {"structured_outputs": {"json": {"type": "integer"}}},
        "sglang": {"json_schema": '{"type": "integer"}'},
        "llama_server": {"json_schema": {"type": "integer"}},
    }[kind]
    assert {name: body[name] for name in held} == held


def test_openai_has_no_constraint_without_chat(stub: Stub, connect: Any) -> None:
    @program(chat=False)
    def number() -> int:
        """x ="""

    with pytest.raises(GrammarError, match="leave chat=True"):
        number(model=connect("openai"))
    assert stub.number == 0


# --- the canary ---


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_ignores_constraints_is_told_apart_once(stub: Stub, connect: Any, kind: str) -> None:
    model = connect(kind)
    stub.dialects = set()
    with pytest.raises(ModelError, match="ignores the constraint") as caught:
        extract("Ada", model=model)
    assert stub.url in str(caught.value)
    assert "Hello" in str(caught.value)
    assert stub.requests == []


def test_the_canary_is_asked_once(stub: Stub, connect: Any) -> None:
    model = connect()
    stub.texts = ["yes", "no", ADA]
    choose(model=model)
    choose(model=model)
    extract("Ada", model=model)
    assert len(stub.canaries) == 1
    words = stub.canaries[0]["structured_outputs"]["choice"]
    assert len(set(words)) == 2
    assert all(re.fullmatch("[a-z]{8}", word) for word in words)
    assert not any(word in json.dumps(stub.canaries[0]["messages"]) for word in words)


def test_the_words_of_the_canary_are_new_each_time(stub: Stub, connect: Any) -> None:
    stub.texts = ["yes", "yes"]
    choose(model=connect())
    choose(model=connect())
    first, second = (body["structured_outputs"]["choice"] for body in stub.canaries)
    assert not set(first) & set(second)


def test_older_vllm_is_asked_by_the_older_names(stub: Stub, connect: Any) -> None:
    model = connect("vllm")
    stub.dialects = {"vllm_guided"}
    stub.texts = [ADA, "yes", "42"]
    extract("Ada", model=model)
    choose(model=model)
    digits(model=model)
    first, second, third = stub.bodies
    assert first["guided_json"] == SCHEMA
    assert second["guided_choice"] == ["yes", "no"]
    assert third["guided_grammar"].startswith("root ::= ")
    assert len(stub.canaries) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_is_found_out(stub: Stub, connect: Any, kind: str) -> None:
    stub.dialects = {kind}
    stub.texts = [said("yes", kind)]
    assert choose(model=connect(None)) == "yes"


def test_a_server_that_refuses_parameters_is_asked_by_other_names(stub: Stub, connect: Any) -> None:
    def strict(handler: Any, number: int) -> bool:
        body = (stub.canaries or stub.bodies)[-1]
        if "response_format" in body:
            return False
        return reply(handler, 400, {"error": {"message": "Unrecognized request argument"}})

    stub.dialects, stub.instead, stub.texts = {"openai"}, strict, [said("yes", "openai")]
    assert choose(model=connect(None)) == "yes"


# --- what comes is checked ---


def test_a_violation_is_told_and_asked_again(stub: Stub, connect: Any) -> None:
    stub.texts = ['{"name": "ada", "age": 36}', '{"name": "Ada", "age": 999}', ADA]
    events = list(extract.stream("Ada", model=connect()))
    done = events[-1]
    assert isinstance(done, Done)
    assert done.run.value.name == "Ada"
    assert sum(isinstance(event, Retracted) for event in events) == 2
    served = done.run.outcomes[0].result
    assert (served.requests, served.prompt_tokens, served.tokens) == (3, 11, len(ADA))
    assert "it begins small" in stub.bodies[1]["messages"][-1]["content"]
    assert [body["seed"] for body in stub.bodies] == [0, 1, 2]


def test_tries_end_with_all_violations(stub: Stub, connect: Any) -> None:
    stub.texts = ["maybe"] * 5
    with pytest.raises(ValidationFailed) as caught:
        choose(model=connect(tries=2))
    assert len(caught.value.violations) == 2
    assert len(stub.requests) == 2


def test_fields_come_while_the_server_writes(stub: Stub, connect: Any) -> None:
    def slowly(handler: Any, number: int) -> bool:
        if not stub.requests:
            return False
        begin(handler)
        handler.wfile.write(chunk(stub.bodies[-1], ADA[:16]))
        handler.wfile.flush()
        seen.wait(10)
        handler.wfile.write(chunk(stub.bodies[-1], ADA[16:], "stop") + b"data: [DONE]\n\n")
        return True

    seen = threading.Event()
    stub.instead = slowly
    names = []
    for event in extract.stream("Ada", model=connect()):
        if isinstance(event, FieldFinal):
            names.append(event.name)
            assert seen.is_set() == (event.name != "name")
            seen.set()
    assert names == ["name", "age"]


def test_stopping_early_ends_the_request(stub: Stub, connect: Any) -> None:
    @program
    def write() -> str:
        """Write."""

    stub.texts, stub.piece = ["x" * 300_000], 3
    events = write.stream(model=connect())
    next(events)
    events.close()
    assert stub.gone.wait(10)


def test_cut_off(stub: Stub, connect: Any) -> None:
    stub.texts, stub.finish_reason = ['{"name": "Ad'], "length"
    with pytest.raises(GenerationError, match="cut it off at max_tokens=7"):
        extract("Ada", model=connect(), max_tokens=7)
    assert stub.bodies[0]["max_tokens"] == 7


# --- conversations ---


@program
def talk() -> Iterator[Any]:
    yield "Name a colour."
    colour = yield Literal["red", "blue"]
    yield " because "
    reason = yield str
    return colour, reason


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama_server"])
def test_the_assistant_s_turn_is_gone_on_with(stub: Stub, connect: Any, kind: str) -> None:
    stub.texts = ["red", "so"]
    assert talk(model=connect(kind)) == ("red", "so")
    last = stub.bodies[-1]
    assert last["messages"][-1] == {"role": "assistant", "content": "red because "}
    flags = {name: last[name] for name in ("continue_final_message", "add_generation_prompt") if name in last}
    assert flags == ({} if kind == "llama_server" else {"continue_final_message": True, "add_generation_prompt": False})


def test_openai_can_t_go_on_with_it(stub: Stub, connect: Any) -> None:
    stub.texts = [said("red", "openai"), "so"]
    with pytest.raises(ProgramError, match="yield user"):
        talk(model=connect("openai"))


def test_turns_work_everywhere(stub: Stub, connect: Any) -> None:
    @program(system="Be brief.")
    def two() -> Iterator[Any]:
        yield "First?"
        first = yield Literal["a", "b"]
        yield user("Second?")
        second = yield Literal["a", "b"]
        return first + second

    stub.texts = [said("a", "openai"), said("b", "openai")]
    assert two(model=connect("openai")) == "ab"
    assert [turn["role"] for turn in stub.bodies[-1]["messages"]] == ["system", "user", "assistant", "user"]


def test_aio_runs_several_at_once(stub: Stub, connect: Any) -> None:
    model = connect()
    stub.texts = ["yes"] * 8

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(choose.aio(model=model) for _ in range(8)))

    assert asyncio.run(all_of_them()) == ["yes"] * 8
    assert len(stub.canaries) == 1


def test_samplers(stub: Stub, connect: Any) -> None:
    stub.texts = ["yes", said("yes", "openai")]
    choose(model=connect(), sampler=Multinomial(temperature=0.5, top_p=0.9, top_k=7, min_p=0.1), seed=1 << 40)
    body = stub.bodies[0]
    assert [body[name] for name in ("temperature", "top_p", "top_k", "min_p", "seed")] == [0.5, 0.9, 7, 0.1, 0]
    with pytest.raises(ProgramError, match="no top_k"):
        choose(model=connect("openai"), sampler=Multinomial(top_k=7))

    class Own:
        lossless = False

        def draw(self, log_p: Any, generator: Any) -> int:
            return 0

    with pytest.raises(ProgramError, match="Own"):
        choose(model=connect(), sampler=Own())


# --- what fails ---


def test_the_key_is_sent_and_not_shown(stub: Stub, connect: Any) -> None:
    model = connect(api_key="secret-key")
    stub.texts = ["yes"]
    choose(model=model)
    assert stub.headers["Authorization"] == "Bearer secret-key"
    assert "secret-key" not in repr(model) + model.name


def test_nobody_is_there(connect: Any) -> None:
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:9/v1: it can't be reached.*POST /chat/completions.*'m'.*start"):
        choose(model=connect(url="http://127.0.0.1:9/v1"))


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (400, {"error": {"message": "too long", "type": "x"}}, "too long"),
        (401, {"error": "no key"}, r"no key.*api_key="),
        (404, {"object": "error", "message": "The model `m` does not exist."}, "does not exist.*the model's name"),
        (422, {"detail": [{"msg": "extra"}]}, "extra"),
        (500, "Internal Server Error", "Internal Server Error.*log"),
        (503, {"error": {"message": "Loading model"}}, "Loading model"),
        (302, "", "HTTP 302"),
    ],
)
def test_statuses(stub: Stub, connect: Any, status: int, body: Any, says: str) -> None:
    stub.instead = lambda handler, number: number > 0 and reply(handler, status, body)
    with pytest.raises(ModelError, match=f"(?s)HTTP {status}.*") as caught:
        choose(model=connect())
    assert re.search(says, str(caught.value))
    assert str(caught.value).startswith(f"server {stub.url}: ")


def test_it_waits_where_the_server_asks_for_it(stub: Stub, connect: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", lambda seconds: slept.append(seconds) if seconds != 0.01 else None)
    busy = {"error": {"message": "busy"}}
    stub.instead = lambda handler, number: 0 < number < 3 and reply(handler, 429, busy, Retry_After="2")
    stub.texts = ["yes"]
    assert choose(model=connect()) == "yes"
    assert slept == [2, 2]


@pytest.mark.parametrize(("headers", "requests"), [({}, 1), ({"Retry_After": "3600"}, 1), ({"Retry_After": "1"}, 4)])
def test_it_does_not_wait_for_ever(
    stub: Stub, connect: Any, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], requests: int
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    stub.instead = lambda handler, number: number > 0 and reply(handler, 429, {"error": "busy"}, **headers)
    with pytest.raises(ModelError, match=r"HTTP 429.*busy"):
        choose(model=connect())
    assert len(stub.requests) == requests


def test_a_server_that_stalls(stub: Stub, connect: Any) -> None:
    def stall(handler: Any, number: int) -> bool:
        if number:
            begin(handler)
            handler.wfile.write(chunk({}, "ye"))
            handler.wfile.flush()
            time.sleep(1.5)
        return bool(number)

    stub.instead = stall
    with pytest.raises(ModelError, match=r"no sign for 0\.3 s.*timeout="):
        choose(model=connect(timeout=0.3))


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (b"data: {not json}\n\n", "no stream of chunks"),
        (b"data: [1]\n\n", "no stream of chunks"),
        (b'data: {"id": 3}\n\n', "no stream of chunks"),
        (b'data: {"choices": [{"index": 0}]}\n\n', "no stream of chunks"),
        (b'data: {"choices": [{"delta": {"content": 3}}]}\n\n', "no stream of chunks"),
        (b"<html>Welcome</html>", "Welcome"),
        (b'{"choices": []}', "no stream of chunks"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "it failed.*out of memory"),
        (chunk({}, "yes"), "broke off"),
        (b"", "broke off"),
    ],
)
def test_answers_that_make_no_sense(stub: Stub, connect: Any, sent: bytes, says: str) -> None:
    def nonsense(handler: Any, number: int) -> bool:
        if number:
            begin(handler)
            handler.wfile.write(sent)
        return bool(number)

    stub.instead = nonsense
    with pytest.raises(ModelError, match=says) as caught:
        choose(model=connect())
    assert stub.url in str(caught.value)
    assert "POST /chat/completions" in str(caught.value)


def test_refusals_of_the_model(stub: Stub, connect: Any) -> None:
    def refuse(handler: Any, number: int) -> bool:
        if number:
            begin(handler)
            handler.wfile.write(b'data: {"choices": [{"delta": {"refusal": "I can not."}}]}\n\n')
        return bool(number)

    stub.instead = refuse
    with pytest.raises(GenerationError, match="I can not"):
        choose(model=connect())


def test_arguments_are_checked() -> None:
    for settings in ({"kind": "tgi"}, {"tries": 0}, {"timeout": 0}):
        with pytest.raises(ValueError, match="remote: "):
            structgen.integrations.openai_server.remote("http://localhost/v1", "m", **settings)
    with pytest.raises(ValueError, match="give an address"):
        structgen.integrations.openai_server.remote("localhost:8000", "m")
