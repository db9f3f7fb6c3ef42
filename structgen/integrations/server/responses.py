"""``POST /v1/responses``, without stored state: each request has the whole conversation.

An answer to a description is complete, whatever the limit, so its status is ``completed``; free text that the limit
has cut is ``incomplete``.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, final

from pydantic import Field
from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk
from structgen.integrations.server.description import described
from structgen.integrations.server.protocol import APIError, Body, ChatRequest, parsed
from structgen.integrations.server.scores import Answer, field_event, token_scores
from structgen.integrations.server.settings import task_of
from structgen.integrations.server.stream import sse
from structgen.integrations.server.tools import Tools
from structgen.integrations.server.writing import FieldEnd

if TYPE_CHECKING:
    from structgen.integrations.server.description import Description
    from structgen.integrations.server.runner import Task
    from structgen.integrations.server.service import Service

__all__ = ["respond"]

_DEFAULT_TOKENS: Final = 1024
_LOGPROBS: Final = "message.output_text.logprobs"
_STATELESS: Final = "this server stores no responses; send the whole conversation in input"
_TAKEN: Final[Mapping[str, tuple[Any, ...]]] = {
    "store": (False,),
    "background": (False,),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "parallel_tool_calls": (True, False),
    "truncation": ("disabled",),
    "previous_response_id": (),
    "conversation": (),
    "n": (1,),
}
"""The values that are taken of fields that are not done."""
_REASONS: Final = {
    **dict.fromkeys(("store", "previous_response_id", "conversation"), _STATELESS),
    "background": "answers are not kept; leave it out, and take stream",
    "tools": "tools are called in chats; take /v1/chat/completions",
    "tool_choice": "tools are called in chats; take /v1/chat/completions",
    "truncation": "nothing is cut off the input; shorten it",
    "n": "a response has one answer; send several requests",
}


class _Text(Body):
    """The form of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class _Own(Body):
    """The fields of the body that a chat does not have."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    text: _Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None


async def respond(service: Service, data: object) -> Response:
    """Answer ``POST /v1/responses``.

    Raises:
        APIError: the request cannot be done.
        StructgenError: its description cannot be enforced, or the answer cannot be completed.
    """
    own, request = _parsed(data)
    service.check_model(request.model)
    with service.runner.admitted():
        description, task = await asyncio.to_thread(_prepared, service, own, request)
    writer = _Writer(service, own, request, description, task)
    headers = service.headers(request, description)
    if request.stream:
        return sse(writer.streamed(), headers=headers, named=True)
    (answer,) = await service.answers([task])
    return JSONResponse(writer.whole(answer), headers=headers)


def _parsed(data: object) -> tuple[_Own, ChatRequest]:
    """Read a body: its own fields, and those that it shares with chats.

    Raises:
        APIError: it is malformed, or has a field that is not done.
    """
    if not isinstance(data, dict):
        raise APIError(400, f"the body must be a JSON object; found {type(data).__name__}")
    for name, taken in _TAKEN.items():
        if data.get(name) is not None and data[name] not in taken:
            raise _wrong(name, _REASONS[name], code="unsupported_parameter")
    rest = {name: value for name, value in data.items() if name not in _TAKEN}
    own = parsed(_Own, {name: value for name, value in rest.items() if name in _Own.model_fields})
    if isinstance(rest.get("reasoning"), dict) and not any(rest["reasoning"].values()):
        del rest["reasoning"]
    shared = {name: value for name, value in rest.items() if name not in _Own.model_fields}
    if own.text is not None and own.text.format is not None:
        form = own.text.format
        if form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
        shared["response_format"] = form
    return own, parsed(ChatRequest, {**shared, "messages": _messages(own)})


def _messages(own: _Own) -> list[dict[str, Any]]:
    """The conversation.

    Raises:
        APIError: it has an item that is no message.
    """
    said: list[dict[str, Any]] = [] if own.instructions is None else [{"role": "system", "content": own.instructions}]
    if isinstance(own.input, str):
        return [*said, {"role": "user", "content": own.input}]
    for item in own.input:
        if item.get("type", "message") != "message":
            raise _wrong("input", f"expected messages; found an item of type {item.get('type')!r:.60}")
        said.append({"role": item.get("role"), "content": item.get("content")})
    return said


def _prepared(service: Service, own: _Own, request: ChatRequest) -> tuple[Description, Task]:
    try:
        description = described(request, service.limits)
    except APIError as error:
        error.param = None if error.param is None else error.param.replace("response_format", "text.format")
        raise
    tokens = service.model.encode_prompt(service.form.prompt(request.messages, Tools()))
    most = own.max_output_tokens
    max_tokens = service.room(len(tokens), most or _DEFAULT_TOKENS, is_stated=most is not None)
    has_scores = own.top_logprobs is not None or _LOGPROBS in (own.include or ())
    top = (own.top_logprobs or 0) if has_scores else None
    return description, task_of(service, request, description, tokens, max_tokens, top=top)


@final
class _Writer:
    """The objects and events of one response."""

    def __init__(self, service: Service, own: _Own, request: ChatRequest, description: Description, task: Task) -> None:
        self._id, self._item_id = f"resp_{uuid.uuid4().hex}", f"msg_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._service = service
        self._own = own
        self._request = request
        self._description = description
        self._task = task
        self._has_scores = own.top_logprobs is not None or _LOGPROBS in (own.include or ())
        self._number = 0

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The response as a whole."""
        result, task = answer.result, self._task
        is_cut = result.finish_reason == "length" and self._description.kind == "text"
        status = "incomplete" if is_cut else "completed"
        usage = {
            "input_tokens": len(task.tokens),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": result.stats.tokens,
            "output_tokens_details": {"reasoning_tokens": 0, "forced_tokens": result.stats.forced},
            "total_tokens": len(task.tokens) + result.stats.tokens,
        }
        held = self._response(status) | {"output": [self._item(status, [self._part(answer)])], "usage": usage}
        held |= {"incomplete_details": {"reason": "max_output_tokens"}} if is_cut else {}
        return held | ({} if self._request.structgen is None else {"structgen": answer.report(task)})

    def _response(self, status: str) -> dict[str, Any]:
        own, request = self._own, self._request
        form = None if own.text is None else own.text.format
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "model": self._service.name,
            "output": [],
            "error": None,
            "incomplete_details": None,
            "instructions": own.instructions,
            "max_output_tokens": own.max_output_tokens,
            "metadata": {},
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": form or {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"type": "message", "id": self._item_id, "role": "assistant", "status": status, "content": content}

    def _part(self, answer: Answer | None) -> dict[str, Any]:
        text = "" if answer is None else answer.result.text
        return {
            "type": "output_text",
            "text": text,
            "annotations": [],
            "logprobs": [] if answer is None else self._logprobs(answer),
        }

    def _logprobs(self, answer: Answer, start: int = 0) -> list[dict[str, Any]]:
        if not self._has_scores:
            return []
        steps = answer.steps[start:]
        return token_scores(self._service.model.vocabulary, steps, self._own.top_logprobs or 0)

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}

    async def streamed(self) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream."""
        answer = Answer(self._service.model.vocabulary)
        place: dict[str, Any] = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        yield self._event("created", response=self._response("in_progress"))
        yield self._event("in_progress", response=self._response("in_progress"))
        yield self._event("output_item.added", output_index=0, item=self._item("in_progress", []))
        yield self._event("content_part.added", **place, part=self._part(None))
        told = 0
        async for _, item in self._service.merged([self._task]):
            answer.note(item)
            match item:
                case Chunk() if item.text:
                    scores, told = self._logprobs(answer, told), len(answer.steps)
                    yield self._event("output_text.delta", **place, delta=item.text, logprobs=scores)
                case FieldEnd():
                    yield self._event("structgen.field", **place, **_without_type(field_event(item)))
        whole = self.whole(answer)
        part, status = self._part(answer), whole["status"]
        yield self._event("output_text.done", **place, text=part["text"], logprobs=part["logprobs"])
        yield self._event("content_part.done", **place, part=part)
        yield self._event("output_item.done", output_index=0, item=self._item(status, [part]))
        yield self._event(status, response=whole)


def _without_type(event: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "type"}


def _wrong(param: str, message: str, *, code: str = "invalid_value") -> APIError:
    return APIError(400, f"{param}: {message}", param=param, code=code)
