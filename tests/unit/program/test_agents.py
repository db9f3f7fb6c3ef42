"""Agents on models without weights that prefer to write one reply after the other."""

from __future__ import annotations

import asyncio
import json
import threading
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

import structgen
from structgen.decode import Multinomial
from structgen.engine import Vocabulary
from structgen.errors import BudgetError, GrammarError, ProgramError
from structgen.frontends.regex import regex
from structgen.models.toy.hash import HashModel
from structgen.program import AgentResult, Call, Done, FieldFinal, Text, agent, program, tool


@tool
def add(x: int, y: Annotated[int, Field(description="a summand")] = 10) -> int:
    """Add two numbers."""
    return x + y


@tool
def fail(reason: Literal["a", "b"]) -> None:
    """Fail."""
    raise KeyError(f"because of {reason}")


class _Scripted(HashModel):
    """Prefers the replies in turn: the n-th in the n-th turn of the assistant."""

    def __init__(self, vocabulary: Vocabulary, *replies: str, **settings: Any) -> None:
        super().__init__(vocabulary, **settings)
        self.models = [HashModel(vocabulary, writes=reply, **settings) for reply in replies]
        self.turns = 0
        self.prompts: list[list[dict[str, str]]] = []

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        if chat:
            turns = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            self.prompts.append(turns)
            self.script = self.models[min(self.turns, len(self.models) - 1)].script
            self.turns += 1
        return super().encode_prompt(prompt, chat=chat)


CALL = '{"tool": "add", "arguments": {"x": 2, "y": 3}}'
SHORT = '{"tool": "add", "arguments": {"x": 2}}'
FAIL = '{"tool": "fail", "arguments": {"reason": "b"}}'


def _answer(value: Any) -> str:
    return json.dumps({"answer": value})


def test_calls_then_an_answer(json_vocabulary: Vocabulary) -> None:
    lm = _Scripted(json_vocabulary, CALL, SHORT, FAIL, _answer(12))
    run = agent([add, fail], answer=int).run("How much?", model=lm)
    assert run.value == AgentResult(
        12,
        (
            Call("add", {"x": 2, "y": 3}, 5),
            Call("add", {"x": 2}, 12),
            Call("fail", {"reason": "b"}, None, "KeyError: 'because of b'"),
        ),
    )
    assert not run.value.is_forced
    last = lm.prompts[-1]
    assert [turn["role"] for turn in last] == ["user", "assistant"] * 3 + ["user"]
    assert [turn["content"] for turn in last[1:]] == [
        CALL,
        "add returned: 5",
        SHORT,
        "add returned: 12",
        FAIL,
        "fail failed: KeyError: 'because of b'",
    ]
    assert len(run.outcomes) == 4
    assert json.loads(json.dumps(run.trace))["value"]["answer"] == 12


def test_the_prompt_shows_the_tools(json_vocabulary: Vocabulary) -> None:
    lm = _Scripted(json_vocabulary, _answer("x"))
    result = agent([add, fail], system="Be brief.")("How much?", model=lm)
    assert result == AgentResult("x", ())
    assert lm.prompts[0][0] == {"role": "system", "content": "Be brief."}
    text = lm.prompts[0][1]["content"]
    assert text.startswith("How much?")
    assert "add: Add two numbers." in text
    assert '"y": integer (optional)  // a summand' in text
    assert '"answer": text' in text


def test_the_last_answer_is_forced(json_vocabulary: Vocabulary) -> None:
    lm = _Scripted(json_vocabulary, CALL)
    result = agent([add, fail], answer=int, max_steps=2)("How much?", model=lm, max_tokens=90)
    assert result.is_forced
    assert [call.result for call in result.calls] == [5, 5]
    assert isinstance(result.answer, int)
    assert lm.prompts[-1][-1]["content"] == "add returned: 5\nNo further calls are possible. Answer now."


class Colour(Enum):
    RED = "red"


class Report(BaseModel):
    title: str = Field(max_length=5)
    colour: Colour


@pytest.mark.parametrize("seed", range(6))
def test_whatever_the_model_wants_the_loop_ends_with_an_answer(json_vocabulary: Vocabulary, seed: int) -> None:
    lm = HashModel(json_vocabulary, seed=seed)
    result = agent([add, fail], answer=Report, max_steps=3, sampler=Multinomial(), max_tokens=60)(
        "Do it.", model=lm, seed=seed
    )
    assert isinstance(result.answer, Report)
    assert len(result.calls) <= 3
    assert result.is_forced == (len(result.calls) == 3)
    for call in result.calls:
        assert call.tool in ("add", "fail")
        assert (call.result is None) == (call.error is not None) == (call.tool == "fail")
        if call.tool == "add":
            assert call.result == call.arguments["x"] + call.arguments.get("y", 10)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (str, 'a "text"'),
        (Literal["yes", "no"], "no"),
        (Annotated[str, structgen.grammars.Regex("[a-z]{2}[0-9]")], "ab1"),
        (Colour, "red"),
        (list[int], [1, 2]),
        (int | None, None),
        (dict[str, bool], {"tool": True}),
    ],
)
def test_answers_of_any_type(json_vocabulary: Vocabulary, kind: Any, value: Any) -> None:
    result = agent([add], answer=kind)("Go.", model=_Scripted(json_vocabulary, _answer(value)))
    assert result.answer == (Colour.RED if kind is Colour else value)


def test_results_of_any_kind_are_told(json_vocabulary: Vocabulary) -> None:
    results = iter(["text", Report(title="t", colour=Colour.RED), [1.5, None], object, {1: float("nan")}])

    def look() -> Any:
        return next(results)

    lm = _Scripted(json_vocabulary, *['{"tool": "look", "arguments": {}}'] * 6, _answer("done"))
    result = agent([look])("Go.", model=lm)
    told = [turn["content"] for turn in lm.prompts[-1][2::2]]
    assert told[:3] == [
        "look returned: text",
        'look returned: {"title": "t", "colour": "red"}',
        "look returned: [1.5, null]",
    ]
    assert told[3].startswith("look returned: ")
    assert result.calls[5].error == "StopIteration: "
    assert result.answer == "done"


def test_tools_may_ask_the_same_model(json_vocabulary: Vocabulary) -> None:
    @program
    def inner() -> Literal["p", "q"]:
        """Inner."""

    def ask_again() -> str:
        return inner()

    lm = _Scripted(json_vocabulary, '{"tool": "ask_again", "arguments": {}}', "q", _answer("end"))
    result = agent([ask_again])("Go.", model=lm)
    assert (result.calls[0].result, result.answer) == ("q", "end")


def test_events_and_waiting(json_vocabulary: Vocabulary) -> None:
    made = agent([add], answer=int, name="adder")
    events = list(made.stream("Go.", model=_Scripted(json_vocabulary, CALL, _answer(5))))
    assert isinstance(events[-1], Done)
    assert events[-1].run.program == "adder"
    assert [event.name for event in events if isinstance(event, FieldFinal)][-1] == "answer"
    written = "".join(event.text for event in events if isinstance(event, Text) and event.written)
    assert written == CALL + _answer(5)
    result = asyncio.run(made.aio("Go.", model=_Scripted(json_vocabulary, CALL, _answer(5))))
    assert result == AgentResult(5, (Call("add", {"x": 2, "y": 3}, 5),))


def test_wrong_agents() -> None:
    with pytest.raises(ProgramError, match=r"two tools have the name 'add'.*tool\(name="):
        agent([add, fail, add])
    with pytest.raises(ProgramError, match="it has no tools"):
        agent([])
    with pytest.raises(ProgramError, match="no function with a name"):
        agent([3])  # type: ignore[list-item]
    with pytest.raises(ProgramError, match="its answer is a grammar, and not a type"):
        agent([add], answer=regex("[ab]"))
    with pytest.raises(GrammarError):
        agent([add], answer=threading.Event)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        agent([add], max_steps=0)
    with pytest.raises(TypeError, match="unknown settings chat, temperature"):
        agent([add], temperature=1, chat=False)
    assert structgen.program.agent is agent


def test_wrong_calls(json_vocabulary: Vocabulary) -> None:
    made = agent([add])
    with pytest.raises(ProgramError, match="the task is of type int"):
        made(3, model=HashModel(json_vocabulary))
    with pytest.raises(ProgramError, match="missing a required argument: 'task'"):
        made(model=HashModel(json_vocabulary))
    with pytest.raises(BudgetError):
        made("Go.", model=HashModel(json_vocabulary), max_tokens=2)
