"""Rows for engines of Ray Data: what they are asked, and how answers are read; no Ray is needed for either."""

from __future__ import annotations

import json
import pickle
import sys
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import AfterValidator, BaseModel, Field

import structgen as sg
from structgen.errors import ArgumentError, GrammarError, ModelError, ProgramError
from structgen.integrations.ray import processor
from structgen.integrations.ray_engines import Call, HTTPAsking, Packed, VLLMAsking
from structgen.program import Program
from structgen.program.batch_row import item_seed


class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    tags: dict[str, Literal["a", 3]]


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("it is odd")
    return value


@sg.program(system="Be brief.", max_tokens=70)
def person(text: str, more: str = "") -> Person:
    """Who? {text}{more}"""


@sg.program
def number(text: str) -> Annotated[int, Field(ge=0, le=9), AfterValidator(_even)]:
    """{text}"""


@sg.program
def twice(text: str) -> Any:
    yield text
    first = yield sg.select(["a", "b"])
    return first, (yield sg.select(["c", "d"]))


def vllm(program: Program[..., Any], *, has_plugin: bool = True, **settings: Any) -> VLLMAsking:
    return VLLMAsking(Packed.of(program), Call("key", 5, settings), has_plugin)


def http(program: Program[..., Any], kind: Any = "vllm", **settings: Any) -> HTTPAsking:
    return HTTPAsking(Packed.of(program), Call("key", 5, settings), "small", kind)


def answered(asking: VLLMAsking, row: dict[str, Any], text: str, tokens: int = 9) -> dict[str, Any]:
    """The row of an answer of vLLM's engine."""
    return asking.row({**row, **asking(row), "generated_text": text, "num_generated_tokens": tokens})


def test_rows_without_the_column_that_tells_them_apart_are_refused() -> None:
    """Before anything is asked: without it, no error could be told from another."""
    for asking in (vllm(number), http(number)):
        with pytest.raises(ArgumentError, match=r"no column 'key'.*'text'.*id_column="):
            asking({"text": "1"})


def test_vllm_gets_messages_and_the_schema_as_text() -> None:
    """Arrow cannot change a text; the schema is the one that pydantic makes, as an independent validator sees."""
    row = {"key": "a", "text": "Ada", "other": 1}
    asked = vllm(person)(row)
    assert asked["__inference_error__"] == ""
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    assert "Who? Ada" in asked["messages"][1]["content"]
    params = asked["sampling_params"]
    assert params["max_tokens"] == 70
    assert params["temperature"] == 0
    assert params["seed"] == item_seed(5, "a") % (1 << 31)
    schema = json.loads(params["structured_outputs"]["json"])
    jsonschema.validate({"name": "Ada", "tags": {"x": 3}}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "Ada", "tags": {"x": 4}}, schema)
    assert pickle.loads(pickle.dumps(vllm(person)))(row) == asked


def test_answers_are_checked_here() -> None:
    """By the grammar and by the validators of the type; what is refused is an error."""
    row = {"key": "a", "text": "Ada"}
    text = '{"name": "Ada", "tags": {}}'
    good = answered(vllm(person), row, text)
    assert good == {
        "id": "a",
        "value": {"name": "Ada", "tags": {}},
        "error": None,
        "losses": [],
        **{"tokens": 9, "attempt": 1},  # noqa: PIE800  the row in two lines
    }
    for wrong in ('{"name": "Ada"}', "Ada", '{"name": "Ada", "tags": {"x": 4}}', text[:9]):
        assert answered(vllm(person), row, wrong)["error"] is not None
    assert answered(vllm(number), row, "4")["value"] == 4
    assert "it is odd" in answered(vllm(number), row, "3")["error"]
    assert answered(vllm(number), row, "4", tokens=256)["error"] is None


def test_without_the_plugin_losses_are_named() -> None:
    """xgrammar, the default backend of vLLM, leaves out keywords."""

    @sg.program
    def unique(text: str) -> Annotated[list[int], Field(json_schema_extra={"uniqueItems": True}, max_length=3)]:
        """{text}"""

    row = {"key": 1, "text": "x"}
    assert answered(vllm(unique), row, "[1, 2]")["losses"] == []
    (loss,) = answered(vllm(unique, has_plugin=False), row, "[1, 2]")["losses"]
    assert "uniqueItems" in loss
    assert answered(vllm(unique, has_plugin=False), row, "[1, 1]")["error"] is not None


def test_rows_that_cannot_be_asked_pass_by_the_engine() -> None:
    """Ray leaves rows with an error alone; they have what the engine would look for."""
    asking = vllm(person)
    row = {"key": 1, "words": "x"}
    asked = asking(row)
    assert "the arguments do not fit" in asked["__inference_error__"]
    assert asked.keys() == vllm(person)({"key": 1, "text": "x"}).keys()
    found = asking.row({**row, **asked})
    assert "the arguments do not fit" in found["error"]
    assert found["value"] is None


def test_an_engine_is_asked_once() -> None:
    """A program that asks again is an error of each row; thoughts, which its settings tell, are refused at once."""
    error = answered(vllm(twice), {"key": 1, "text": "x"}, "a")["error"]
    assert "it is asked once for a row, and the program asks again" in error
    with pytest.raises(ProgramError, match="thoughts are requests of their own"):
        vllm(person, think=20).check()
    with pytest.raises(ProgramError, match="servers sample their tokens themselves"):
        vllm(person, sampler=sg.AWRS()).check()
    with pytest.raises(GrammarError, match="OpenAI takes JSON Schemas alone"):
        http(sg.program(_letters), "openai").check()
    vllm(person).check()
    http(person).check()


def _letters(text: str) -> Annotated[str, sg.regex("[a-z]+")]:
    """{text}"""


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llama_server", "openai"])
def test_bodies_of_requests(kind: str) -> None:
    """They are texts, with all that a client of such a server sends; answers come out of OpenAI's wrapper."""
    asking = http(number, kind)
    row = {"key": 2, "text": "x"}
    body = json.loads(asking(row)["payload"]["body"])
    assert body["model"] == "small"
    assert body["messages"][-1]["role"] == "user"
    assert body["seed"] == item_seed(5, 2) % (1 << 31)
    text = '{"answer": 8}' if kind == "openai" else "8"
    choice = {"message": {"content": text}, "finish_reason": "stop"}
    response = {"choices": [choice], "usage": {"completion_tokens": 3, "prompt_tokens": None}}
    found = asking.row({**row, **asking(row), "http_response": response})
    assert (found["value"], found["error"], found["tokens"]) == (8, None, 3)
    refused = asking.row({**row, **asking(row), "http_response": {"error": {"message": "no such model"}}})
    assert "it refuses the request; no such model" in refused["error"]
    cut = asking.row({**row, **asking(row), "http_response": {"choices": [{**choice, "finish_reason": "length"}]}})
    assert cut["value"] == 8, "it was complete with its last token"
    filtered = {"choices": [{"message": {"content": text}, "finish_reason": "content_filter"}]}
    found = asking.row({**row, **asking(row), "http_response": filtered})
    assert "the answer ended for 'content_filter'" in found["error"]
    silent = {"choices": [{"message": {"content": None, "refusal": "I won't."}, "finish_reason": "stop"}]}
    found = asking.row({**row, **asking(row), "http_response": silent})
    assert "the model refuses to answer; I won't." in found["error"]


def test_programs_of_the_main_script_go_without_their_name() -> None:
    """The main script of another process is another module."""

    def ask(text: str) -> Literal["a", "b"]:
        """{text}"""

    ask.__module__ = "__main__"
    made = sg.program(system="x")(ask)
    packed = Packed.of(made)
    assert packed.program is None
    unpacked = packed.unpacked()
    assert (unpacked.settings, unpacked.system) == (made.settings, "x")
    assert unpacked.prompt("one") == made.prompt("one")
    assert unpacked.function.__annotations__ == {"text": str, "return": Literal["a", "b"]}  # which were texts
    assert ask.__annotations__["text"] == "str"
    assert Packed.of(person).unpacked() is person


def test_ray_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ModelError, match=r"pip install 'structgen-lm\[ray\]'"):
        processor(person)
