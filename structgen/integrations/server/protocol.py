"""The bodies of requests, and errors and streams in OpenAI's shape.

A field that would change the output and is not done is refused by name.  Fields that say something about the request
only are named in the header ``structgen-ignored`` of the response.

Source: https://github.com/openai/openai-openapi, of October 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, Final, Literal, NoReturn, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from structgen.errors import BudgetError, GenerationError, LimitExceeded, StructgenError, meant
from structgen.log import logger

__all__ = ["APIError", "ChatRequest", "Message", "Options", "api_error", "parsed", "sse", "wrong"]

_Body = TypeVar("_Body", bound="Body")

NOTES: Final = frozenset(
    {
        *(
            "user",
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "prediction",
        ),
        *("top_level_metadata", "cache_salt", "request_id", "priority"),
    }
)
"""Fields that say something about a request, or make it faster at best: none can change the output."""

_NEUTRAL: Final[Mapping[str, Any]] = {
    "best_of": 1,
    "early_stopping": False,
    "echo": False,
    "ignore_eos": False,
    "include_stop_str_in_output": False,
    "length_penalty": 1.0,
    "min_tokens": 0,
    "modalities": ["text"],
    "skip_special_tokens": True,
    "suffix": "",
    "use_beam_search": False,
    "verbosity": "medium",
}
"""Values of fields that are not done and change nothing: clients send them as their defaults."""

_MAX_COMPARED: Final = 40
"""Characters of a field that may be misspelt; comparing takes their square."""
_REASONS: Final[Mapping[str, str]] = {
    "audio": "answers are texts",
    "best_of": "take n and choose, or structgen.sampler 'bestof'",
    "function_call": "take tool_choice, which has replaced it",
    "functions": "take tools, which have replaced it",
    "ignore_eos": "an answer may end where its description ends it",
    "include_stop_str_in_output": "none of a stop is sent",
    "min_tokens": "say in the description how long the answer is",
    "modalities": "answers are texts",
    "moderation": "nothing is moderated here",
    "stop_token_ids": "say it with stop",
    "suffix": "the model writes from left to right",
    "use_beam_search": "take structgen.sampler 'beam'",
    "verbosity": "say in the messages or in the description how long the answer is",
    "web_search_options": "nothing is searched here",
}
"""What to do instead."""
_MAX_NAMED: Final = 32
"""How many members of messages a header names."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


@final
class APIError(Exception):
    """An answer that is an error.

    Attributes:
        status: of HTTP.
        message: what is wrong, and what to do.
        param: the field at fault.
        code: a word for programs.
        headers: further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error in OpenAI's shape."""
        kind = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(self.status)
        kind = kind or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: Exception, *, param: str | None = None) -> APIError:
    """The response for an error of structgen: the request cannot be fulfilled."""
    match error:
        case APIError():
            return error
        case HTTPException():
            return APIError(error.status_code, error.detail, headers=error.headers)
        case BudgetError():
            return APIError(400, str(error), param="max_tokens", code="max_tokens_too_small")
        case LimitExceeded():
            return APIError(400, str(error), param=param, code="limit_exceeded")
        case GenerationError():
            return APIError(400, str(error), param=param, code="generation_failed")
        case StructgenError():
            return APIError(400, str(error), param=param, code="invalid_description")
    return APIError(500, f"internal error: {type(error).__name__}", code="internal_error")


def wrong(place: str, problem: str, *, code: str = "invalid_value") -> NoReturn:
    """Refuse a request for a value at a place in it."""
    raise APIError(400, f"{place}: {problem}", param=place, code=code)


def refuse_trace(request: ChatRequest) -> None:
    """Refuse the field that only streams of chats have."""
    if request.structgen is not None and request.structgen.trace:
        wrong("structgen.trace", "it is of chats with stream: true")


class Body(BaseModel):
    """A body whose fields are all known; ``ignored`` are the names of those that change nothing."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    ignored: Annotated[tuple[str, ...], Field(exclude=True)] = ()


class StreamOptions(BaseModel):
    """What a stream has in addition to its deltas."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class Options(BaseModel):
    """Options that only this server has.

    Attributes:
        sampler: of the catalogue, by name; or an object with ``name`` and settings.
        marginals: add the probability of each value of each field that has few.
        events: send an event for each field that is final, with its value, between the deltas of a stream.
        canonical: write only the tokens that the tokenizer itself writes.
        seed: of the sampler, as the field ``seed``.
        report: add to the response what of the description is enforced, and how.
        trace: each chunk of a stream has the origin of its tokens.
        policy: of a diffusion model, which slots of a canvas are committed together: as ``sampler``.
        block: of a diffusion model, how many slots are filled before those to their right.
        reuse: of a diffusion model that keeps keys and values, which slots a pass runs: as ``sampler``.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    sampler: str | dict[str, Any] | None = None
    marginals: bool = False
    events: bool = False
    canonical: bool = False
    seed: int | None = None
    report: bool = False
    trace: bool = False
    policy: str | dict[str, Any] | None = None
    block: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    reuse: str | dict[str, Any] | None = None


class Message(BaseModel):
    """A message of a chat; members that are not listed change nothing."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None
    name: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Any = None
    tool_call_id: str | None = None
    function_call: Any = None
    audio: None = None


class ChatRequest(Body):
    """The body of ``POST /v1/chat/completions``; other endpoints that write take some of its fields.

    ``settings`` reads those about sampling, ``description`` those that describe an answer, of OpenAI and other servers.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(lt=1 << 63)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stop: str | Annotated[list[str], Field(max_length=16)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=1024)] | None = None
    structgen: Options | None = None

    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: Any = None
    guided_json_object: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_whitespace_pattern: Any = None
    structural_tag: Any = None
    regex: Any = None
    ebnf: Any = None
    json_schema: Any = None
    grammar: Any = None
    format: Any = None

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def members(body: object) -> dict[str, Any]:
    """The members of a body.

    Raises:
        APIError: it is no object.
    """
    if not isinstance(body, dict):
        raise APIError(400, f"the body must be a JSON object; found {type(body).__name__}")
    return body


def parsed(kind: type[_Body], data: object) -> _Body:
    """Read a body.

    Raises:
        APIError: it is malformed, or has a field that is not done.
    """
    fields = members(data)
    unknown = {name: value for name, value in fields.items() if name not in kind.model_fields}
    ignored = {name for name, value in unknown.items() if name in NOTES or _is_neutral(name, value)}
    try:
        made = kind.model_validate({name: value for name, value in fields.items() if name not in ignored})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            message = f"{param}: this field is not supported, and it could change the output; leave it out"
            message += f", and {_REASONS[param]}" if param in _REASONS else ""
            if param not in _REASONS and len(param) <= _MAX_COMPARED and (near := meant(param, kind.model_fields)):
                message += f"; {near}"
            raise APIError(400, message, param=param, code="unsupported_parameter") from None
        raise APIError(400, f"{param}: {first['msg']}", param=param, code="invalid_value") from None
    made.ignored = (*sorted(ignored), *sorted(set(_unread(made)))[:_MAX_NAMED])
    return made


def _unread(body: Body) -> Iterator[str]:
    """Members of messages and of their parts that are ignored: clients send back those of responses, and more."""
    for message in getattr(body, "messages", None) or ():
        parts = message.content if isinstance(message.content, list) else ()
        for name, value in (message.model_extra or {}).items():
            if value not in (None, [], {}):
                yield f"messages.{_in_header(name)}"
        for name in {name for part in parts if isinstance(part, dict) for name in part}:
            if name not in ("type", "text", "refusal"):
                yield f"messages.content.{_in_header(name)}"


def _in_header(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else "*"


def _is_neutral(name: str, value: object) -> bool:
    return value is None or (name in _NEUTRAL and value == _NEUTRAL[name])


def _event(data: object, *, name: str | None = None) -> bytes:
    """A server-sent event; ``data`` is written as JSON on one line."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def sse(
    items: AsyncGenerator[dict[str, Any], None], *, headers: Mapping[str, str] | None = None, named: bool = False
) -> StreamingResponse:
    """A stream of JSON objects, which ends with ``[DONE]``; an error in the middle becomes an event with the error.

    ``named`` is whether events have the ``type`` of their object as their name.
    """

    async def body() -> AsyncIterator[bytes]:
        async with aclosing(items):
            try:
                async for item in items:
                    yield _event(item, name=item["type"] if named else None)
            except Exception as error:  # the status has been sent
                if (answer := api_error(error)).status == 500:
                    logger.exception("an answer failed while it was streamed")
                yield _event(answer.body)
        yield b"data: [DONE]\n\n"

    return StreamingResponse(
        body(), media_type="text/event-stream", headers={"Cache-Control": "no-cache", **(headers or {})}
    )
