"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk, Result, Step
from structgen.integrations.server.description import Description, described
from structgen.integrations.server.message import MessageWriter
from structgen.integrations.server.protocol import ChatRequest, parsed, sse, wrong
from structgen.integrations.server.scores import Answer, field_event, token_scores, usage
from structgen.integrations.server.settings import task_of
from structgen.integrations.server.tools import Tools
from structgen.integrations.server.writing import Scored, Trace
from structgen.program.json_cursor import FieldEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.frontends.chat.stream import ReplyReader
    from structgen.integrations.server.runner import Task
    from structgen.integrations.server.service import Service

__all__ = ["Turn", "complete", "prepared", "top_of"]

_DEFAULT_TOKENS = 1024
"""Tokens of an answer where the request does not say how many."""


async def complete(service: Service, data: object) -> Response:
    """Answer a chat.

    Raises:
        APIError: the request cannot be done.
        StructgenError: its description cannot be enforced, or the answer cannot be completed.
    """
    request = parsed(ChatRequest, data)
    service.check_model(request.model)
    count = request.n or 1
    with service.runner.admitted(count):
        turn = await asyncio.to_thread(prepared, service, request)
    task = turn.task
    answer = _ChatAnswer(service, request, turn)
    tasks = [replace(task, seed=task.seed + index) for index in range(count)]
    headers = service.headers(request, turn.description)
    if request.stream:
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        return sse(answer.streamed(tasks, wants_usage=wants_usage), headers=headers)
    return JSONResponse(answer.whole(tasks, await service.answers(tasks)), headers=headers)


@final
@dataclass(frozen=True, slots=True)
class Turn:
    """A request that can be answered.

    Attributes:
        description: what a reply may be.
        answer: what a reply without calls says.
        task: of the first reply.
        reader: makes a reader for one reply; it returns None if a reply is its text.
        customs: the names of custom tools.
    """

    description: Description
    answer: Description
    task: Task
    reader: Callable[[], ReplyReader | None]
    customs: frozenset[str] = frozenset()

    def writer(self, service: Service) -> MessageWriter:
        """A writer of one reply."""
        call_id = service.form.family.calls.id
        return MessageWriter(service.model.vocabulary, self.reader(), call_id=call_id, customs=self.customs)

    def finish_reason(self, writer: MessageWriter, result: Result) -> str:
        """Why a reply has ended."""
        return "tool_calls" if writer.has_calls else self.answer.finish_reason(result)


def prepared(service: Service, request: ChatRequest) -> Turn:
    """Read a request; in a thread, for this may take a while.

    Raises:
        APIError: the request cannot be done.
        StructgenError: its description cannot be enforced.
    """
    answer, form = described(request, service.limits, service.policy), service.form
    tools = Tools.of(request, service.limits)
    vocabulary = service.model.vocabulary
    prompt = form.prompt(request.messages, tools, request.chat_template_kwargs)
    tokens = tuple(service.model.encode_prompt(prompt))
    stated = request.max_completion_tokens or request.max_tokens
    max_tokens = service.max_answer_tokens(len(tokens), stated or _DEFAULT_TOKENS, is_stated=stated is not None)
    thinking = form.thinking(request.reasoning_effort, vocabulary, tokens, max_tokens)
    description = form.replies(answer, tools, thinking, limits=service.limits, vocabulary=vocabulary)

    def reader() -> ReplyReader | None:
        return form.reader(answer, tools, thinking)

    # A reply that has to be read is no free text, and no JSON, as a whole.
    sampled = description if reader() is None else replace(description, kind="tools")
    task = task_of(service, request, sampled, tokens, max_tokens, top=top_of(request))
    return Turn(description, answer, task, reader, frozenset(tools.inputs))


def top_of(request: ChatRequest) -> int | None:
    """How many tokens of each step are wanted with their log-probabilities.

    Raises:
        APIError: a number is given, and that they are wanted is not.
    """
    if request.top_logprobs and not request.logprobs:
        wrong("top_logprobs", "it needs logprobs: true")
    return request.top_logprobs or 0 if request.logprobs else None


@final
class _ChatAnswer:
    """The objects of one answer."""

    def __init__(self, service: Service, request: ChatRequest, turn: Turn) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": service.name}
        self._service = service
        self._turn = turn
        self._top = top_of(request)
        self._has_report = request.structgen is not None
        report = turn.description.report_for(request)
        self._extra = {"structgen": report} if report else {}

    def whole(self, tasks: Sequence[Task], answers: Sequence[Answer]) -> dict[str, Any]:
        """The answer as a whole."""
        choices = []
        for index, (task, answer) in enumerate(zip(tasks, answers, strict=True)):
            writer, result = self._turn.writer(self._service), answer.result
            choice = {
                "index": index,
                "message": writer.message(result.text, result.tokens),
                "logprobs": self._logprobs(answer.steps),
                "finish_reason": self._turn.finish_reason(writer, result),
            }
            report = answer.report(task, in_full=self._has_report)
            choices.append(choice | ({"structgen": report} if report else {}))
        head = {**self._head, "object": "chat.completion", "choices": choices, "usage": usage(tasks, answers)}
        return head | self._extra

    async def streamed(self, tasks: Sequence[Task], *, wants_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream."""
        answers = [Answer(self._service.model.vocabulary) for _ in tasks]
        writers = [self._turn.writer(self._service) for _ in tasks]
        for index in range(len(tasks)):
            yield self._chunk(index, {"role": "assistant", "content": ""}) | (self._extra if not index else {})
        async for index, item in self._service.merged(tasks):
            answers[index].note(item)
            writer = writers[index]
            match item:
                case Chunk():
                    for delta in writer.deltas(item.text, item.tokens):
                        yield self._chunk(index, delta)
                case Trace():
                    yield self._chunk(index, {}, report={"trace": item.to_json()})
                case Scored() if self._top is not None:
                    yield self._chunk(index, {}, logprobs=self._logprobs(item.steps))
                case FieldEnd():
                    yield self._chunk(index, {}, report={"events": [field_event(item)]})
                case Result():
                    for delta in writer.end():
                        yield self._chunk(index, delta)
                    report = answers[index].report(tasks[index], in_full=self._has_report)
                    yield self._chunk(index, {}, finish_reason=self._turn.finish_reason(writer, item), report=report)
        if wants_usage:
            yield {**self._head, "object": "chat.completion.chunk", "choices": [], "usage": usage(tasks, answers)}

    def _logprobs(self, steps: Sequence[Step]) -> dict[str, Any] | None:
        if self._top is None:
            return None
        return {"content": token_scores(self._service.model.vocabulary, steps, self._top), "refusal": None}

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish_reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
        report: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        choice |= {} if report is None else {"structgen": report}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}
