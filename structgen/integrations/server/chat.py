"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk
from structgen.decode.step.result import Result
from structgen.decode.step.sampler import Greedy, Multinomial
from structgen.engine import compile
from structgen.integrations.server.description import Description, described
from structgen.integrations.server.message import MessageWriter
from structgen.integrations.server.protocol import ChatRequest, Sampling, parsed
from structgen.integrations.server.runner import Task
from structgen.integrations.server.stream import sse
from structgen.integrations.server.tools import Tools

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode import AnySampler
    from structgen.frontends.chat.stream import ReplyReader
    from structgen.integrations.server.service import Service

__all__ = ["complete", "sampler_of"]

_DEFAULT_TOKENS = 1024
"""Tokens of an answer where the request does not say how many."""


def sampler_of(request: Sampling) -> AnySampler:
    """The sampler for a request: as OpenAI's, its temperature is 1 by default."""
    if request.temperature == 0:
        return Greedy()
    top_k = request.top_k if request.top_k and request.top_k > 0 else None
    return Multinomial(request.temperature or 1.0, top_k=top_k, top_p=request.top_p, min_p=request.min_p)


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
    turn = await asyncio.to_thread(_prepared, service, request)
    task = turn.task
    answer = _ChatAnswer(service, turn, report=bool(request.structgen and request.structgen.report))
    tasks = [service.task_with_seed(task, task.seed + index) for index in range(count)]
    headers = service.headers(request, turn.description)
    if request.stream:
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        return sse(answer.streamed(tasks, wants_usage=wants_usage), headers=headers)
    results = await service.gather(tasks)
    return JSONResponse(answer.whole(results), headers=headers)


@final
@dataclass(frozen=True, slots=True)
class _Turn:
    """A request that can be answered.

    Attributes:
        description: what a reply may be.
        task: of the first reply.
        reader: makes a reader for one reply; it returns None if a reply is its text.
    """

    description: Description
    task: Task
    reader: Callable[[], ReplyReader | None]


def _prepared(service: Service, request: ChatRequest) -> _Turn:
    """Read a request; in a thread, for this may take a while."""
    answer, tools, form = described(request, service.limits), Tools.of(request), service.form
    vocabulary = service.model.vocabulary
    tokens = tuple(service.model.encode_prompt(form.prompt(request.messages, tools)))
    max_tokens = request.max_completion_tokens or request.max_tokens or _DEFAULT_TOKENS
    max_tokens = service.room(
        len(tokens), max_tokens, is_stated=bool(request.max_completion_tokens or request.max_tokens)
    )
    thinking = form.thinking(request.reasoning_effort, vocabulary, tokens, max_tokens)
    description = form.replies(answer, tools, thinking, limits=service.limits, vocabulary=vocabulary)
    constraint = compile(description.grammar, vocabulary, limits=service.limits)
    seed = service.seed() if request.seed is None else request.seed
    return _Turn(
        description,
        Task(tokens, constraint, max_tokens, sampler_of(request), seed=seed),
        lambda: form.reader(answer, tools, thinking),
    )


@final
class _ChatAnswer:
    """The objects of one answer."""

    def __init__(self, service: Service, turn: _Turn, *, report: bool) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": service.name}
        self._extra = {"structgen": {"report": turn.description.report()}} if report else {}
        self._service = service
        self._turn = turn

    def _writer(self) -> MessageWriter:
        family = self._service.form.family
        return MessageWriter(self._service.model.vocabulary, self._turn.reader(), call_id=family.calls.id)

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer as a whole."""
        choices = []
        for index, result in enumerate(results):
            writer = self._writer()
            message = writer.message(result.text, result.tokens)
            reason = writer.finish_reason(result)
            choices.append({"index": index, "message": message, "logprobs": None, "finish_reason": reason})
        head = {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage(results)}
        return head | self._extra

    async def streamed(self, tasks: Sequence[Task], *, wants_usage: bool) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream."""
        results: dict[int, Result] = {}
        writers = [self._writer() for _ in tasks]
        for index in range(len(tasks)):
            yield self._chunk(index, {"role": "assistant", "content": ""}) | (self._extra if not index else {})
        async for index, item in self._service.merged(tasks):
            writer = writers[index]
            if isinstance(item, Result):
                results[index] = item
                for delta in writer.end():
                    yield self._chunk(index, delta)
                yield self._chunk(index, {}, finish_reason=writer.finish_reason(item))
            elif isinstance(item, Chunk):
                for delta in writer.deltas(item.text, item.tokens):
                    yield self._chunk(index, delta)
        if wants_usage:
            yield {
                **self._head,
                "object": "chat.completion.chunk",
                "choices": [],
                "usage": self._usage(list(results.values())),
            }

    def _chunk(self, index: int, delta: dict[str, Any], *, finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return {**self._head, "object": "chat.completion.chunk", "choices": [choice]}

    def _usage(self, results: Sequence[Result]) -> dict[str, Any]:
        prompt, tokens = len(self._turn.task.tokens), sum(result.stats.tokens for result in results)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": tokens,
            "total_tokens": prompt + tokens,
            "completion_tokens_details": {"forced_tokens": sum(result.stats.forced for result in results)},
        }
