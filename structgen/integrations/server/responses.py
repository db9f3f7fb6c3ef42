"""``POST /v1/responses``, without stored state: each request has the whole conversation.

An answer to a description is complete, whatever the limit, so its status is ``completed``; free text that the limit
has cut is ``incomplete``.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, final

from pydantic import Field
from starlette.responses import JSONResponse, Response

from structgen.decode import Chunk, Result
from structgen.errors import StructgenError
from structgen.integrations.server.chat import Turn, prepared, top_of
from structgen.integrations.server.items import Event, ItemWriter, messages_of_items
from structgen.integrations.server.protocol import (
    APIError,
    Body,
    ChatRequest,
    api_error,
    members,
    parsed,
    refuse_trace,
    sse,
    wrong,
)
from structgen.integrations.server.scores import Answer, field_event, token_scores
from structgen.program.json_cursor import FieldEnd

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.integrations.server.service import Service

__all__ = ["respond"]

_LOGPROBS: Final = "message.output_text.logprobs"
_STATELESS: Final = "this server stores no responses; send the whole conversation in input"
_TAKEN: Final[Mapping[str, tuple[Any, ...]]] = {
    "store": (False,),
    "background": (False,),
    "truncation": ("disabled",),
    "previous_response_id": (),
    "conversation": (),
    "n": (1,),
}
"""The values that are taken of fields that are not done."""
_REASONS: Final = {
    **dict.fromkeys(("store", "previous_response_id", "conversation"), _STATELESS),
    "background": "answers are not kept; leave it out, and take stream",
    "truncation": "nothing is cut off the input; shorten it",
    "n": "a response has one answer; send several requests",
}
_OF_CHATS: Final = {
    "messages": "say it in input",
    "response_format": "say it in text.format",
    "max_tokens": "say it in max_output_tokens",
    "max_completion_tokens": "say it in max_output_tokens",
    "reasoning_effort": "say it in reasoning.effort",
    "logprobs": f"say include: [{_LOGPROBS!r}]",
}
"""Fields of chats that a response has under other names."""
_PLACES: Final = (
    (re.compile(r"response_format(\.json_schema)?"), "text.format"),
    (re.compile(r"max_(completion_)?tokens"), "max_output_tokens"),
    (re.compile(r"reasoning_effort"), "reasoning.effort"),
    (re.compile(r"messages(\b[^#]*)?"), "input"),
)
"""Places in a chat, and those in a response."""
_FLAT: Final = re.compile(r"(\]|tool_choice)\.(function|custom|allowed_tools)\b")


class _Text(Body):
    """The form of the answer."""

    format: dict[str, Any] | None = None
    verbosity: Literal["medium"] | None = None


class _Reasoning(Body):
    """The thoughts."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class _Own(Body):
    """The fields of the body that a chat does not have."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    text: _Text | None = None
    reasoning: _Reasoning | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


async def respond(service: Service, data: object) -> Response:
    """Answer ``POST /v1/responses``.

    Raises:
        APIError: the request cannot be done.
        StructgenError: the answer cannot be completed.
    """
    own, request = _parsed(data)
    service.check_model(request.model)
    with _located():
        with service.runner.admitted():
            turn = await asyncio.to_thread(prepared, service, request)
        headers = service.headers(request, turn.description)
        if request.stream:
            return sse(_Response(service, own, request, turn).streamed(), headers=headers, named=True)
        (found,) = await service.answers([turn.task])
        return JSONResponse(_Response(service, own, request, turn, found).whole(), headers=headers)


def _parsed(data: object) -> tuple[_Own, ChatRequest]:
    """Read a body: its own fields, and the chat that it stands for.

    Raises:
        APIError: it is malformed, or has a field that is not done.
    """
    fields = members(data)
    for name, taken in _TAKEN.items():
        if fields.get(name) is not None and fields[name] not in taken:
            wrong(name, _REASONS[name], code="unsupported_parameter")
    for name, instead in _OF_CHATS.items():
        if fields.get(name) is not None:
            wrong(name, f"it is a field of chats; {instead}", code="unsupported_parameter")
    given = {name: value for name, value in fields.items() if name not in _TAKEN and name not in _OF_CHATS}
    own = parsed(_Own, {name: value for name, value in given.items() if name in _Own.model_fields})
    shared = {name: value for name, value in given.items() if name not in _Own.model_fields}
    shared |= {
        "messages": _messages(own),
        "max_completion_tokens": own.max_output_tokens,
        "tools": None if own.tools is None else [_nested(tool) for tool in own.tools],
        "tool_choice": _nested(own.tool_choice) if isinstance(own.tool_choice, dict) else own.tool_choice,
        "reasoning_effort": None if own.reasoning is None else own.reasoning.effort,
    }
    if own.top_logprobs is not None or _LOGPROBS in (own.include or ()):
        shared |= {"logprobs": True, "top_logprobs": own.top_logprobs or 0}
    if own.text is not None and own.text.format is not None:
        form = own.text.format
        if form.get("type") == "json_schema":
            form = {"type": "json_schema", "json_schema": {name: form[name] for name in form if name != "type"}}
        shared["response_format"] = form
    with _located():
        request = parsed(ChatRequest, shared)
    refuse_trace(request)
    if own.reasoning is not None and (own.reasoning.summary or own.reasoning.generate_summary):
        request.ignored += ("reasoning.summary",)  # thoughts are given as they are
    return own, request


def _messages(own: _Own) -> list[dict[str, Any]]:
    """The conversation.

    Raises:
        APIError: it has an item that is not done.
    """
    said: list[dict[str, Any]] = [] if own.instructions is None else [{"role": "system", "content": own.instructions}]
    if isinstance(own.input, str):
        return [*said, {"role": "user", "content": own.input}]
    return said + messages_of_items(own.input)


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """A tool, or the choice of one, in the form of chats: its fields are in a nested object."""
    kind = given.get("type")
    if kind not in ("function", "custom", "allowed_tools"):
        return dict(given)
    return {"type": kind, kind: {name: value for name, value in given.items() if name != "type" and value is not None}}


@contextmanager
def _located() -> Iterator[None]:
    """Let errors about the chat name the place in the body."""
    try:
        yield
    except (APIError, StructgenError) as error:
        raise _renamed(api_error(error)) from error


def _renamed(error: APIError) -> APIError:
    param = error.param
    if param is None:
        return error
    head, mark, pointer = param.partition("#")
    for pattern, name in _PLACES:
        head = pattern.sub(name, head, count=1) if pattern.match(head) else head
    if head.startswith("tool"):
        head = _FLAT.sub(r"\1", head)
    place = head + mark + pointer
    message = error.message.replace(param, place, 1) if error.message.startswith(param) else error.message
    return APIError(error.status, message, param=place, code=error.code, headers=error.headers)


@final
class _Response:
    """The objects and events of one response."""

    def __init__(
        self, service: Service, own: _Own, request: ChatRequest, turn: Turn, answer: Answer | None = None
    ) -> None:
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._service = service
        self._own = own
        self._request = request
        self._turn = turn
        self._top = top_of(request)
        self._answer = Answer(service.model.vocabulary) if answer is None else answer
        self._writer = turn.writer(service)
        self._items = ItemWriter(self._writer, partial(_scores, service.model.vocabulary, self._answer, self._top))
        self._number = 0

    def whole(self) -> dict[str, Any]:
        """The response as a whole, to an answer that is complete."""
        result = self._answer.result
        list(self._items.begin())
        list(self._items.add(result.text, result.tokens))
        list(self._items.end(self._status(result)))
        return self._ended()

    def _status(self, result: Result) -> str:
        return "incomplete" if self._turn.finish_reason(self._writer, result) == "length" else "completed"

    def _ended(self) -> dict[str, Any]:
        """The response once all is written."""
        answer, task = self._answer, self._turn.task
        result, status = answer.result, self._status(answer.result)
        self._items.score()
        usage = {
            "input_tokens": len(task.tokens),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": result.stats.tokens,
            "output_tokens_details": {
                "reasoning_tokens": self._items.reasoning_tokens,
                "forced_tokens": result.stats.forced,
            },
            "total_tokens": len(task.tokens) + result.stats.tokens,
        }
        held = self._response(status) | {"output": self._items.items, "usage": usage}
        held |= {"incomplete_details": {"reason": "max_output_tokens"}} if status == "incomplete" else {}
        if self._request.structgen is not None:
            report = answer.report(task, in_full=True) or {}
            held["structgen"] = report | self._turn.description.report_for(self._request)
        return held

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
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": request.reasoning_effort, "summary": None},
            "store": False,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": {"format": form or {"type": "text"}},
            "tool_choice": own.tool_choice or "auto",
            "tools": own.tools or [],
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def _event(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        self._number += 1
        return {"type": f"response.{kind}", "sequence_number": self._number - 1, **fields}

    async def streamed(self) -> AsyncGenerator[dict[str, Any], None]:
        """The events of a stream."""
        with _located():
            async for kind, fields in self._events():
                yield self._event(kind, fields)

    async def _events(self) -> AsyncGenerator[Event, None]:
        for kind in ("created", "in_progress"):
            yield kind, {"response": self._response("in_progress")}
        for event in self._items.begin():
            yield event
        async for _, item in self._service.merged([self._turn.task]):
            self._answer.note(item)
            match item:
                case Chunk():
                    for event in self._items.add(item.text, item.tokens):
                        yield event
                case FieldEnd():
                    fields = {name: value for name, value in field_event(item).items() if name != "type"}
                    yield "structgen.field", {**self._items.place(0), **fields}
                case Result():
                    for event in self._items.end(self._status(item)):
                        yield event
        whole = self._ended()
        yield whole["status"], {"response": whole}


def _scores(vocabulary: Vocabulary, answer: Answer, top: int | None, start: int, stop: int) -> list[dict[str, Any]]:
    return [] if top is None else token_scores(vocabulary, answer.steps[start:stop], top)
