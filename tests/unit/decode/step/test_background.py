"""Generations that a coroutine awaits."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import threading
from typing import Any

import pytest
from pydantic import BaseModel, Field

import structgen as sg
from structgen.decode.step.background import streamed, waiter
from structgen.engine import Vocabulary
from structgen.errors import BudgetError
from structgen.models import HashModel
from structgen.models.diffusion import HashDiffusion
from structgen.models.toy.hash import HashSession

BYTES = [b"", *(bytes([byte]) for byte in range(256))]
VOCABULARY = Vocabulary(BYTES, eos=[0])
MASKED = Vocabulary([*BYTES, b""], eos=[0], special={257: "<mask>"})
TEXT = sg.regex("[a-z ]{40}")


class _Note(BaseModel):
    text: str = Field(pattern="^[a-z ]{40}$")


class _Gated(HashModel):
    """Waits in the third computation of logits until it may go on."""

    def __init__(self) -> None:
        super().__init__(VOCABULARY)
        self.sessions: list[HashSession] = []
        self.rows = 0
        self.reached, self.may_go = threading.Event(), threading.Event()

    def start(self) -> HashSession:
        self.sessions.append(super().start())
        return self.sessions[-1]

    def logits(self, state: int, matched: int) -> Any:
        self.rows += 1
        if self.rows == 3:
            self.reached.set()
            assert self.may_go.wait(timeout=20)
        return super().logits(state, matched)


def test_several_run_at_a_time_and_give_what_calls_give() -> None:
    """The outputs are those of plain calls, in the order of the calls."""
    lm = HashModel(VOCABULARY)

    async def outputs() -> list[Any]:
        return await asyncio.gather(
            *(sg.generate.aio(lm, "x", TEXT, sampler=sg.Multinomial(), seed=seed) for seed in range(4)),
            sg.sample.aio(lm, "x", TEXT, sampler=sg.samplers.SMC(particles=3), seed=1),
            sg.generate.aio(HashDiffusion(MASKED), "x", sg.regex("[ab]{4}"), canvas=4),
        )

    *texts, samples, canvas = asyncio.run(outputs())
    assert [each.text for each in texts] == [
        sg.generate(lm, "x", TEXT, sampler=sg.Multinomial(), seed=seed).text for seed in range(4)
    ]
    plain = sg.sample(lm, "x", TEXT, sampler=sg.samplers.SMC(particles=3), seed=1)
    assert [each.text for each in samples.results] == [each.text for each in plain.results]
    assert canvas.text == sg.generate(HashDiffusion(MASKED), "x", sg.regex("[ab]{4}"), canvas=4).text


@pytest.mark.parametrize("what", ["tokens", "whole outputs", "infill", "extract", "map"])
def test_cancelling_stops_before_the_next_pass_and_frees_the_cache(what: str) -> None:
    lm = _Gated()

    async def cancelled() -> None:
        if what == "tokens":
            waiting = sg.generate.aio(lm, "x", TEXT, drafter=None)
        elif what == "infill":
            waiting = sg.infill.aio(lm, ["<", sg.grammars.hole(40), ">"], "<" + TEXT + ">")
        elif what == "extract":
            waiting = sg.extract.arun(_Note, "x", model=lm, drafter=None, evidence=False)
        elif what == "map":
            waiting = sg.extract.amap([(_Note, "x")] * 3, model=lm, batch_size=1, drafter=None, evidence=False)
        else:
            waiting = sg.sample.aio(lm, "x", TEXT, sampler=sg.samplers.SMC(particles=2), drafter=None)
        task = asyncio.ensure_future(waiting)
        await asyncio.to_thread(lm.reached.wait, 20)
        task.cancel()
        await asyncio.sleep(0)  # the cancellation arrives while the pass runs
        lm.may_go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    assert 3 <= lm.rows <= 12  # of at least 40; a pass over the forced text computes ten of them
    assert {session.length for session in lm.sessions} == {0}


def test_errors_pass_through() -> None:
    with pytest.raises(BudgetError):
        asyncio.run(sg.generate.aio(HashModel(VOCABULARY), "x", TEXT, max_tokens=3))


def test_closing_the_stream_closes_the_generator() -> None:
    closed = threading.Event()
    seen: list[object] = []

    def numbers() -> Any:
        seen.append(waiter())
        try:
            yield from range(10_000)
        finally:
            closed.set()

    async def first() -> int:
        stream = streamed(numbers())
        async for number in stream:
            await stream.aclose()  # type: ignore[attr-defined]
            return number
        raise AssertionError

    assert asyncio.run(first()) == 0
    assert closed.is_set()
    assert seen != [None]
    assert waiter() is None


def test_the_functions_are_functions_and_have_one_signature() -> None:
    for function in (sg.generate, sg.sample, sg.infill):
        assert inspect.isfunction(function)
        assert inspect.iscoroutinefunction(function.aio)
        assert inspect.signature(function) == inspect.signature(function.aio)
        assert pickle.loads(pickle.dumps(function)) is function
