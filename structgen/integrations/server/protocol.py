"""The bodies of requests, and errors in OpenAI's shape.

A field that would change the output and is not done is refused by name.  Fields that say something about the request
only are named in the header ``structgen-ignored`` of the response.

Source: https://github.com/openai/openai-openapi, of October 2026.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException

from structgen.errors import BudgetError, GenerationError, LimitExceeded, StructgenError

__all__ = ["APIError", "ChatRequest", "Sampling", "api_error", "parsed"]

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
            "prompt_cache_retention",
        ),
        *("verbosity", "top_level_metadata", "cache_salt", "request_id", "priority"),
    }
)
"""Fields that say something about a request, and do not change its output here."""


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
    """The answer for an error of structgen: what the client has asked for cannot be done."""
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


class Body(BaseModel):
    """A body whose fields are all known; ``ignored`` are the names of those that change nothing."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    ignored: Annotated[tuple[str, ...], Field(exclude=True)] = ()


class StreamOptions(BaseModel):
    """What a stream has beside its deltas."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", strict=True)

    include_usage: bool = False


class Sampling(Body):
    """What all endpoints that write have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None


class Options(BaseModel):
    """What only this server has.

    Attributes:
        trace: whether each chunk of a stream tells how its tokens came about.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)

    trace: bool = False


class Message(BaseModel):
    """A message of a chat."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow", strict=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Any = None


class ChatRequest(Sampling):
    """The body of ``POST /v1/chat/completions``."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    response_format: dict[str, Any] | None = None
    structgen: Options | None = None


def parsed(kind: type[_Body], data: object) -> _Body:
    """Read a body.

    Raises:
        APIError: it is malformed, or has a field that is not done.
    """
    if not isinstance(data, dict):
        raise APIError(400, f"the body must be a JSON object; found {type(data).__name__}")
    ignored = tuple(sorted(name for name in data if name in NOTES and name not in kind.model_fields))
    try:
        made = kind.model_validate({name: value for name, value in data.items() if name not in ignored})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        param = ".".join(map(str, first["loc"]))
        if first["type"] == "extra_forbidden":
            message = f"{param}: this field is not supported, and it could change the output; leave it out"
            raise APIError(400, message, param=param, code="unsupported_parameter") from None
        raise APIError(400, f"{param}: {first['msg']}", param=param, code="invalid_value") from None
    made.ignored = ignored
    return made
