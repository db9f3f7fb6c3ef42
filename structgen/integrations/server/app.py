"""The Starlette application: routes, keys, sizes, and errors in OpenAI's shape."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from structgen.errors import StructgenError
from structgen.integrations.server import chat, completions, language, responses
from structgen.integrations.server.metrics import Observed, record
from structgen.integrations.server.page import page
from structgen.integrations.server.protocol import APIError, api_error
from structgen.log import logger

if TYPE_CHECKING:
    from structgen.integrations.server.service import Service

__all__ = ["application"]

_MAX_BODY: Final = 4 << 20
_CLOSED: Final = 499
_OPEN: Final = ("/health", "/version", "/")
"""Paths that need no key."""

Handler = Callable[["Service", Any], Awaitable[Response]]


def application(service: Service, *, api_key: str | None = None, max_body: int = _MAX_BODY) -> Starlette:
    """Return the application.

    Args:
        service: the model with its runner.
        api_key: clients must send it as ``Authorization: Bearer ...``; None: anyone may ask.
        max_body: the maximum number of bytes of a request's body.
    """

    def post(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return await handler(service, await _json_body(request, max_body))

        return _guarded(endpoint, api_key)

    def get(value: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return value(request)

        return _guarded(endpoint, api_key)

    async def ended(_: Request, error: Exception) -> Response:
        answer = api_error(error)
        return JSONResponse(answer.body, answer.status, headers=answer.headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await service.runner.close()

    card = {"id": service.name, "object": "model", "created": 0, "owned_by": "structgen"}
    if service.model.max_context is not None:
        card["max_model_len"] = service.model.max_context
    routes = [
        Route("/v1/models", get(lambda _: JSONResponse({"object": "list", "data": [card]}))),
        Route("/v1/models/{name:path}", get(lambda request: _model(service, card, request.path_params["name"]))),
        Route("/health", get(lambda _: JSONResponse(_health(service)))),
        Route("/version", get(lambda _: JSONResponse({"version": _version()}))),
        Route("/v1/chat/completions", post(chat.complete), methods=["POST"]),
        Route("/v1/completions", post(completions.complete), methods=["POST"]),
        Route("/v1/responses", post(responses.respond), methods=["POST"]),
        Route("/tokenize", post(completions.tokenize), methods=["POST"]),
        Route("/detokenize", post(completions.detokenize), methods=["POST"]),
        Route("/v1/structgen/check", post(language.check), methods=["POST"]),
        Route("/v1/structgen/match", post(language.match), methods=["POST"]),
        Route("/v1/structgen/explain", post(language.explain), methods=["POST"]),
        Route("/v1/structgen/sample", post(language.sample), methods=["POST"]),
        Route("/", get(lambda _: page())),
        Route("/metrics", get(lambda _: service.metrics.response(service.runner))),
    ]
    paths = {route.path for route in routes}
    return Starlette(
        routes=routes,
        middleware=[Middleware(Observed, metrics=service.metrics, paths=paths)],
        exception_handlers=dict.fromkeys((404, 405, 500), ended),
        lifespan=lifespan,
    )


def _guarded(
    endpoint: Callable[[Request], Awaitable[Response]], api_key: str | None
) -> Callable[[Request], Awaitable[Response]]:
    """Check the key, and answer errors."""

    async def guarded(request: Request) -> Response:
        try:
            if api_key is not None and request.url.path not in _OPEN:
                _check_key(request, api_key)
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=_CLOSED)
        except (APIError, StructgenError) as error:
            answer = api_error(error)
        except Exception as error:
            logger.exception("a request failed: %s %s", request.method, request.url.path)
            answer = api_error(error)
        record().code = answer.code
        return JSONResponse(answer.body, answer.status, headers=answer.headers)

    return guarded


def _check_key(request: Request, api_key: str) -> None:
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), api_key.encode()):
        raise APIError(
            401, "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'", code="invalid_api_key"
        )


async def _json_body(request: Request, most: int) -> Any:
    """Read a body, which may have at most ``most`` bytes, as JSON.

    Raises:
        APIError: it is larger, or no JSON.
    """
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise APIError(413, f"the body is larger than {most} bytes", code="body_too_large")
        parts.append(part)
    try:
        return json.loads(b"".join(parts))
    except RecursionError:
        raise APIError(400, "the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise APIError(400, f"the body is no JSON: {error}", code="invalid_json") from None


def _model(service: Service, card: dict[str, Any], name: str) -> Response:
    service.check_model(name)
    return JSONResponse(card)


def _health(service: Service) -> dict[str, Any]:
    return {"status": "ok", "running": service.runner.running, "waiting": service.runner.waiting}


def _version() -> str:
    try:
        return version("structgen-lm")
    except PackageNotFoundError:
        return "unknown"
