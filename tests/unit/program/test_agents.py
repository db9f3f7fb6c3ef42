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


def _calls(*calls: dict[str, Any]) -> str:
    return json.dumps({"calls": list(calls)})


def _call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"tool": name, "arguments": arguments}


class _Meeting:
    """Tools that each wait until as many as are expected have been called: alone, one would wait for ever."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=10)
        self.stays = threading.Event()
        self.loops: list[Any] = []
        self.begun: list[str] = []
        self.ended: list[str] = []

    def meet(self, name: str) -> str:
        """Meet."""
        self.barrier.wait()
        return name

    async def wait(self, name: str) -> str:
        """Wait."""
        self.loops.append(asyncio.get_running_loop())
        await asyncio.to_thread(self.barrier.wait)
        if name == "bad":
            raise ValueError(name)
        return name

    async def stay(self, name: str) -> str:
        """Stay."""
        try:
            self.begun.append(name)
            if len(self.begun) == 2:
                self.stays.set()
            await asyncio.sleep(60)
        finally:
            self.ended.append(name)
        return name


MIXED = _calls(_call("wait", name="b"), _call("meet", name="a"), _call("wait", name="bad"), _call("wait", name="c"))
MIXED_RESULTS = ("b", "a", None, "c")


@pytest.mark.parametrize("is_awaited", [False, True])
def test_calls_of_one_step_run_side_by_side(json_vocabulary: Vocabulary, is_awaited: bool) -> None:
    """Functions and coroutines meet; results come in the order of the calls, and an error is one call's own."""
    meeting = _Meeting(4)
    made = agent([tool(meeting.meet), tool(meeting.wait)], answer=int, parallel=4)
    lm = _Scripted(json_vocabulary, MIXED, _answer(1))
    loop: list[Any] = []

    async def waited() -> AgentResult[int]:
        loop.append(asyncio.get_running_loop())
        return await made.aio("Go.", model=lm)

    result = asyncio.run(waited()) if is_awaited else made("Go.", model=lm)
    assert result.answer == 1
    assert tuple(call.result for call in result.calls) == MIXED_RESULTS
    assert [call.error for call in result.calls] == [None, None, "ValueError: bad", None]
    assert lm.prompts[-1][-1]["content"] == (
        "wait returned: b\nmeet returned: a\nwait failed: ValueError: bad\nwait returned: c"
    )
    (own,) = set(meeting.loops)
    assert loop in ([], [own])  # that of the coroutine that awaits the agent, if there is one


def test_a_loop_lasts_as_long_as_the_agent(json_vocabulary: Vocabulary) -> None:
    """What one call makes in the loop, another call can use."""
    tasks: list[Any] = []

    async def begin() -> None:
        tasks.append(asyncio.ensure_future(asyncio.sleep(0, "slept")))

    async def end() -> str:
        return str(await tasks[0])

    lm = _Scripted(json_vocabulary, json.dumps(_call("begin")), json.dumps(_call("end")), _answer("x"))
    result = agent([begin, end])("Go.", model=lm)
    assert [call.result for call in result.calls] == [None, "slept"]
    assert tasks[0].get_loop().is_closed()


@pytest.mark.parametrize("count", [2, 3])
def test_a_step_has_at_most_so_many_calls(json_vocabulary: Vocabulary, count: int) -> None:
    """The model wants three calls in each of two steps."""
    lm = _Scripted(json_vocabulary, *[_calls(*[_call("add", x=1)] * 3)] * 2, _answer(0))
    result = agent([add, fail], answer=int, parallel=count, max_steps=2)("Go.", model=lm)
    steps = [json.loads(turn["content"]) for turn in lm.prompts[-1] if turn["role"] == "assistant"]
    assert all(len(step["calls"]) <= count for step in steps)
    assert {call.result for call in result.calls if call.tool == "add"} == {11}
    if count == 3:
        assert (len(result.calls), result.is_forced) == (6, True)


def test_cancelling_an_agent_cancels_its_coroutines(json_vocabulary: Vocabulary) -> None:
    meeting = _Meeting(2)
    made = agent([tool(meeting.stay)], parallel=2)
    lm = _Scripted(json_vocabulary, _calls(_call("stay", name="a"), _call("stay", name="b")), _answer("x"))

    async def run() -> None:
        task = asyncio.create_task(made.aio("Go.", model=lm))
        await asyncio.to_thread(meeting.stays.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert sorted(meeting.ended) == ["a", "b"]
    assert lm.turns == 1  # the model wrote nothing more


def test_many_agents_await_programs_at_a_time(json_vocabulary: Vocabulary) -> None:
    """More than an executor has threads: each waits for a program that a coroutine of its tool awaits."""

    @program
    def inner() -> Literal["p", "q"]:
        """Inner."""

    async def ask_again() -> str:
        return await inner.aio()

    made = agent([ask_again])

    async def all_of_them() -> list[AgentResult[str]]:
        return await asyncio.gather(
            *(
                made.aio("Go.", model=_Scripted(json_vocabulary, json.dumps(_call("ask_again")), "q", _answer("end")))
                for _ in range(40)
            )
        )

    for result in asyncio.run(all_of_them()):
        assert (result.calls[0].result, result.answer) == ("q", "end")


@pytest.mark.parametrize("parallel", [1, 2])
def test_a_coroutine_may_call_an_agent_without_awaiting_it(json_vocabulary: Vocabulary, parallel: int) -> None:
    """It blocks its own loop, so the coroutines of the inner agent need another one."""

    async def leaf() -> int:
        await asyncio.sleep(0)
        return 7

    written = json.dumps(_call("leaf")) if parallel == 1 else _calls(_call("leaf"), _call("leaf"))

    async def middle() -> int:
        inner = agent([leaf], answer=int, parallel=parallel)
        return inner("Go.", model=_Scripted(json_vocabulary, written, _answer(1))).calls[-1].result

    outer = _Scripted(json_vocabulary, json.dumps(_call("middle")), _answer("x"))
    result = asyncio.run(asyncio.wait_for(agent([middle]).aio("Go.", model=outer), timeout=20))
    assert result.calls[0].result == 7


def test_wrong_agents() -> None:
    with pytest.raises(ProgramError, match=r"two tools have the name 'add'.*tool\(name="):
        agent([add, fail, add])
    with pytest.raises(ProgramError, match="it has no tools"):
        agent([])
    with pytest.raises(ProgramError, match=r"its tools must be a list; write agent\(\[tool\]\)"):
        agent(add)  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match="no function with a name"):
        agent([3])  # type: ignore[list-item]
    with pytest.raises(ProgramError, match="its answer is a grammar, and not a type"):
        agent([add], answer=regex("[ab]"))
    with pytest.raises(GrammarError):
        agent([add], answer=threading.Event)
    with pytest.raises(ValueError, match="max_steps must be at least 1"):
        agent([add], max_steps=0)
    with pytest.raises(ValueError, match="parallel must be at least 1"):
        agent([add], parallel=0)
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
