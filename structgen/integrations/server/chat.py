"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, final

from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk
from structgen.decode.step.result import Result
from structgen.decode.step.sampler import Greedy, Multinomial
from structgen.integrations.server.description import described
from structgen.integrations.server.protocol import APIError, ChatRequest, Message, Sampling, parsed
from structgen.integrations.server.runner import Task
from structgen.integrations.server.stream import sse
from structgen.integrations.server.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode import AnySampler
    from structgen.integrations.server.service import Service

__all__ = ["complete", "sampler_of"]

_DEFAULT_TOKENS = 1024
"""Tokens of an answer where the request does not say how many."""
_TRACED_OTHERS = 3


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
    description, task = await asyncio.to_thread(_prepared, service, request)
    answer = _ChatAnswer(service.name, len(task.tokens), seed=task.seed)
    tasks = [service.task_with_seed(task, task.seed + index) for index in range(count)]
    headers = service.headers(request, description)
    if request.stream:
        wants_usage = bool(request.stream_options and request.stream_options.include_usage)
        return sse(answer.streamed(service, tasks, wants_usage=wants_usage), headers=headers)
    results = await service.gather(tasks)
    return JSONResponse(answer.whole(results), headers=headers)


def _prepared(service: Service, request: ChatRequest) -> tuple[Any, Task]:
    """The description of a request and the task of its first answer; in a thread, for this may take a while."""
    is_traced = request.structgen is not None and request.structgen.trace
    if is_traced and not request.stream:
        raise APIError(400, "structgen.trace needs stream: true", param="structgen.trace", code="invalid_value")
    description = described(request, service.limits)
    messages = [_plain(message) for message in request.messages]
    tokens = tuple(service.model.encode_prompt(messages))
    max_tokens = request.max_completion_tokens or request.max_tokens or _DEFAULT_TOKENS
    max_tokens = service.room(
        len(tokens), max_tokens, is_stated=bool(request.max_completion_tokens or request.max_tokens)
    )
    constraint = service.compiled(description.grammar)
    return description, Task(
        tokens,
        constraint,
        max_tokens,
        sampler_of(request),
        seed=service.seed() if request.seed is None else request.seed,
        alternatives=_TRACED_OTHERS if is_traced else 0,
        is_traced=is_traced,
    )


def _plain(message: Message) -> dict[str, Any]:
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

    def __init__(self, model: str, prompt_tokens: int, *, seed: int) -> None:
        self._head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": model}
        self._prompt_tokens = prompt_tokens
        self._seed = seed

    def whole(self, results: Sequence[Result]) -> dict[str, Any]:
        """The answer as a whole."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": result.text, "refusal": None},
                "logprobs": None,
                "finish_reason": result.finish_reason,
            }
            for index, result in enumerate(results)
        ]
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": self._usage(results)}

    async def streamed(
        self, service: Service, tasks: Sequence[Task], *, wants_usage: bool
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a stream."""
        results: dict[int, Result] = {}
        traces: dict[int, Trace] = {}
        for index in range(len(tasks)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for index, item in service.merged(tasks):
            if isinstance(item, Result):
                results[index] = item
                yield self._chunk(index, {}, finish_reason=item.finish_reason)
            elif isinstance(item, Trace):
                traces[index] = item
            elif isinstance(item, Chunk) and (item.text or index in traces):
                chunk = self._chunk(index, {"content": item.text} if item.text else {})
                trace = traces.pop(index, None)
                yield chunk if trace is None else chunk | {"structgen": trace.to_json()}
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
        tokens = sum(result.stats.tokens for result in results)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self._prompt_tokens + tokens,
            "completion_tokens_details": {"forced_tokens": sum(result.stats.forced for result in results)},
        }
