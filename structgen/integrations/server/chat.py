"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, final

from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk, Result, Step
from structgen.integrations.server.description import described
from structgen.integrations.server.protocol import APIError, ChatRequest, Message, parsed
from structgen.integrations.server.scores import Answer, field_event, token_scores, usage
from structgen.integrations.server.settings import task_of
from structgen.integrations.server.stream import sse
from structgen.integrations.server.writing import FieldEnd, Scored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.integrations.server.runner import Task
    from structgen.integrations.server.service import Service

__all__ = ["complete", "plain"]

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
    service.runner.admit(count)
    description, task = await asyncio.to_thread(_prepared, service, request)
    answer = _ChatAnswer(service, request)
    tasks = [service.task_with_seed(task, task.seed + index) for index in range(count)]
    headers = service.headers(request, description)
    if request.stream:
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        return sse(answer.streamed(tasks, wants_usage=wants_usage), headers=headers)
    return JSONResponse(answer.whole(tasks, await service.answers(tasks)), headers=headers)


def _prepared(service: Service, request: ChatRequest) -> tuple[Any, Task]:
    """The description of a request and the task of its first answer; in a thread, for this may take a while."""
    description = described(request, service.limits)
    messages = [plain(message) for message in request.messages]
    tokens = tuple(service.model.encode_prompt(messages))
    max_tokens = request.max_completion_tokens or request.max_tokens or _DEFAULT_TOKENS
    max_tokens = service.room(
        len(tokens), max_tokens, is_stated=bool(request.max_completion_tokens or request.max_tokens)
    )
    return description, task_of(service, request, description, tokens, max_tokens, top=_top(request))


def _top(request: ChatRequest) -> int | None:
    """How many tokens of each step are wanted with their log-probabilities.

    Raises:
        APIError: a number is given, and that they are wanted is not.
    """
    if request.top_logprobs and not request.logprobs:
        raise APIError(400, "top_logprobs: it needs logprobs: true", param="top_logprobs", code="invalid_value")
    return request.top_logprobs or 0 if request.logprobs else None


def plain(message: Message) -> dict[str, Any]:
    """A message as ``encode_prompt`` takes it.

    Raises:
        APIError: it has parts that are no text.
    """
    content = message.content
    if isinstance(content, list):
        texts = []
        for part in content:
            if not (isinstance(part, dict) and part.get("type") in ("text", "input_text", "output_text")):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise APIError(
                    400, f"messages: the model reads text only; found a part of type {kind!r:.60}", param="messages"
                )
            texts.append(str(part.get("text", "")))
        content = "".join(texts)
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": "" if content is None else content}


@final
class _ChatAnswer:
    """The objects of one answer."""

    def __init__(self, service: Service, request: ChatRequest) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": service.name}
        self._service = service
        self._top = _top(request)
        self._has_report = request.structgen is not None

    def whole(self, tasks: Sequence[Task], answers: Sequence[Answer]) -> dict[str, Any]:
        """The answer as a whole."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": answer.result.text, "refusal": None},
                "logprobs": self._logprobs(answer.steps),
                "finish_reason": answer.result.finish_reason,
            }
            | ({"structgen": answer.report(task)} if self._has_report else {})
            for index, (task, answer) in enumerate(zip(tasks, answers, strict=True))
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": usage(tasks, answers)}

    async def streamed(self, tasks: Sequence[Task], *, wants_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream."""
        answers = [Answer(self._service.model.vocabulary) for _ in tasks]
        for index in range(len(tasks)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, item in self._service.merged(tasks):
            answers[index].note(item)
            match item:
                case Chunk() if item.text:
                    yield self._chunk(index, {"content": item.text})
                case Scored() if self._top is not None:
                    yield self._chunk(index, {}, logprobs=self._logprobs(item.steps))
                case FieldEnd():
                    yield self._chunk(index, {}, report={"events": [field_event(item)]})
                case Result():
                    report = answers[index].report(tasks[index]) if self._has_report else None
                    yield self._chunk(index, {}, finish_reason=item.finish_reason, report=report)
        if wants_usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": usage(tasks, answers),
            }

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
