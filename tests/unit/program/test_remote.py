"""Programs on remote models, without a server: the answers are checked here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from click.testing import CliRunner
from pydantic import BaseModel, Field, field_validator
from scripted_remote_model import Scripted

import structgen
from structgen.cli.main import cli
from structgen.errors import GenerationError, ProgramError, ValidationFailed
from structgen.frontends.regex import regex
from structgen.program import (
    Done,
    FieldFinal,
    Loss,
    ObjectFinal,
    RemoteModel,
    Retracted,
    Served,
    Text,
    fork,
    program,
    user,
)


class Person(BaseModel):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)

    @field_validator("name")
    @classmethod
    def is_capital(cls, name: str) -> str:
        if not name[:1].isupper():
            raise ValueError("it begins small")
        return name


class Flags(BaseModel):
    level: Literal["low", "medium", "high"]
    done: bool


@program(describe=False)
def extract(text: str) -> Person:
    """Who is it? {text}"""


ADA = '{"name": "Ada", "age": 36}'


def test_it_is_a_remote_model() -> None:
    assert isinstance(Scripted(), RemoteModel)


@pytest.mark.parametrize("piece", [1, 2, 7, 100])
@pytest.mark.parametrize("text", [ADA, '{"name":"Ada","age":36}', '\n {  "name"\t:\n"Ada" ,  "age" :36\n}\n\n'])
def test_whitespace_is_the_server_s(text: str, piece: int) -> None:
    run = extract.run("Ada", model=Scripted(text, piece=piece))
    assert run.value == Person(name="Ada", age=36)
    assert run.text == text
    for field in run.fields.values():
        assert json.loads(text.encode()[field.start : field.end]) == field.value


def test_nothing_is_known_of_scores() -> None:
    run = extract.run("Ada", model=Scripted(ADA))
    assert run.logprob is None
    assert run.log_z is None
    assert run.stats is None
    assert run.fields["name"].probability is None
    assert run.outcomes[0].probabilities == {}
    result = run.outcomes[0].result
    assert isinstance(result, Served)
    assert (result.requests, result.prompt_tokens, result.tokens, result.losses) == (1, 5, len(ADA), ())
    answer = json.loads(json.dumps(run.trace))["answers"][0]
    assert answer["logprob"] is None
    assert "steps" not in answer
    field = {"path": ["name"], "value": "Ada", "start": 9, "end": 14, "logprob": None, "is_cut": False}
    assert answer["fields"][0] == field


def test_fields_are_final_when_nothing_else_can_follow() -> None:
    @program(describe=False)
    def rate() -> Flags:
        """Rate it."""

    written, final = "", {}
    for event in rate.stream(model=Scripted('{"level": "medium", "done": true}', piece=1)):
        if isinstance(event, Text):
            written += event.text
        if isinstance(event, FieldFinal):
            final[event.name] = written
    assert final == {"level": '{"level": "m', "done": '{"level": "medium", "done": t'}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ('{"name": "ada", "age": 36}', "it begins small"),
        ('{"name": "Ada", "age": 360}', "found '0}', expected "),
        ('{"name": "Ada", "age": 3 6}', "found ' 6}', expected "),
        ('{"name": "Ada", "age": 36', "the text ends too early; expected "),
        ('{"name": "Ada", "age": 36} ok', "found 'ok', expected nothing more"),
        ("Sure! " + ADA, "found 'Su"),
        ("", "the text ends too early; expected '{'"),
        ('{"name": "A\ud800"', "found '"),
    ],
)
def test_what_does_not_do_is_asked_for_again(wrong: str, problem: str) -> None:
    model = Scripted(wrong, ADA)
    events = list(extract.stream("Ada", model=model))
    done = events[-1]
    assert isinstance(done, Done)
    assert done.run.value == Person(name="Ada", age=36)
    (retracted,) = [event for event in events if isinstance(event, Retracted)]
    assert problem in retracted.problem
    assert retracted.length == 0
    (violation,) = done.run.outcomes[0].violations
    assert violation.problem == retracted.problem
    first, second = model.prompts
    assert second[: len(first)] == first
    assert second[-2]["role"] == "assistant"
    assert problem in second[-1]["content"]
    assert model.seeds == [0, 1]
    assert model.closed == 2


def test_a_refused_field_ends_the_request_at_once() -> None:
    model = Scripted('{"name": "ada", "age": 36}', ADA, piece=1)
    texts: list[str] = []
    for event in extract.stream("Ada", model=model):
        if isinstance(event, Retracted):
            break
        if isinstance(event, Text):
            texts.append(event.text)
    assert "".join(texts) == '{"name": "ada"'


@pytest.mark.parametrize(("here", "there", "most"), [(8, 3, 3), (2, 3, 2), (8, 1, 1)])
def test_tries_end(here: int, there: int, most: int) -> None:
    model = Scripted(*['{"name": "ada", "age": 36}'] * 9, tries=there)
    with pytest.raises(ValidationFailed, match="all") as caught:
        extract("Ada", model=model, tries=here)
    assert len(caught.value.violations) == len(model.prompts) == most
    assert caught.value.place == "name"


def test_a_text_that_is_cut_off_is_an_error_unless_it_is_complete() -> None:
    with pytest.raises(GenerationError, match="cut it off at max_tokens=9"):
        extract("Ada", model=Scripted('{"name": "Ad', finish="length"), max_tokens=9)

    @program
    def write() -> str:
        """Write."""

    run = write.run(model=Scripted("Once upon a", finish="length"))
    assert (run.value, run.outcomes[0].result.finish_reason) == ("Once upon a", "length")


def test_generator_programs_send_their_turns() -> None:
    @program
    def talk() -> Iterator[Any]:
        yield "Name a colour."
        colour = yield regex("[a-z]+")
        yield user("And a number.")
        number = yield int
        yield f" because of {colour}: "
        reason = yield str
        return colour, number, reason

    model = Scripted("red", " 7", "so")
    run = talk.run(model=model)
    assert run.value == ("red", 7, "so")
    first = {"role": "user", "content": "Name a colour."}
    second = [{"role": "assistant", "content": "red"}, {"role": "user", "content": "And a number."}]
    assert model.prompts[0] == (first,)
    assert model.prompts[1] == (first, *second)
    assert model.prompts[2] == (first, *second, {"role": "assistant", "content": " 7 because of red: "})
    assert run.text == "Name a colour.redAnd a number. 7 because of red: so"


def test_forks_go_their_own_ways() -> None:
    @program
    def two() -> Iterator[Any]:
        yield "Say a letter."
        first, second = yield fork(2)
        a = yield first.ask(Literal["a", "b"])
        b = yield second.ask(Literal["a", "b"])
        return a + b

    model = Scripted("a", "b")
    assert two(model=model) == "ab"
    assert model.prompts[0] == model.prompts[1]


def test_without_chat_the_prompt_is_text() -> None:
    @program(chat=False, describe=False)
    def go_on() -> Literal["a", "b"]:
        """x ="""

    model = Scripted("c", "b")
    assert go_on(model=model) == "b"
    assert model.prompts == ["x =", "x ="]

    @program(chat=False)
    def turns() -> Iterator[Any]:
        yield user("x")

    with pytest.raises(ProgramError, match="chat=False"):
        turns(model=model)


def test_nothing_said_is_an_error() -> None:
    @program
    def silent() -> Iterator[Any]:
        yield int

    with pytest.raises(ProgramError, match="before anything was said"):
        silent(model=Scripted("1"))


def test_programs_that_it_calls_use_the_same_model_and_aio_works() -> None:
    @program
    def outer() -> Iterator[Any]:
        yield "x"
        number = yield int
        return number, extract("Ada")

    assert asyncio.run(outer.aio(model=Scripted("1", ADA))) == (1, Person(name="Ada", age=36))


def test_the_value_is_told_before_the_end() -> None:
    events = list(extract.stream("Ada", model=Scripted(ADA)))
    assert isinstance(events[-2], ObjectFinal)
    assert events[-2].value == Person(name="Ada", age=36)
    assert structgen.program.Run is type(events[-1].run)


def test_many_items_and_failures_of_some() -> None:
    model = Scripted("yes", "maybe", "no", tries=1)

    @program(describe=False)
    def choose(text: str) -> Literal["yes", "no"]:
        """{text}"""

    found = choose.map(["a", "b", "c"], model=model, batch_size=1)
    assert [held.run and held.run.value for held in found] == ["yes", None, "no"]
    assert isinstance(found[1].error, ValidationFailed)
    assert [prompt[0]["content"] for prompt in model.prompts] == ["a", "b", "c"]


def test_traces_are_shown_without_probabilities(tmp_path: Path) -> None:
    run = extract.run("Ada", model=Scripted('{"name": "ada"', ADA, losses=(Loss("#/a", "not", "is not enforced"),)))
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(run.trace))
    shown = CliRunner().invoke(cli, ["trace", str(path)]).output
    assert f"{len(ADA)} tokens in 2 requests; no probabilities" in shown
    assert "not enforced by the server: 'not' at #/a is not enforced" in shown
    assert 'name = "Ada"\n' in shown
    assert "it begins small" in shown
