"""The Starlette application: routes, keys, sizes, errors in OpenAI's shape, and a page to try it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from structgen.errors import StructgenError
from structgen.integrations.server import chat, completions, language, responses
from structgen.integrations.server.metrics import Observed, record
from structgen.integrations.server.protocol import APIError, api_error
from structgen.integrations.server.reading import check_key, json_body, unless_gone
from structgen.log import logger
from structgen.markup import page_policy
from structgen.memory_cache import return_memory

if TYPE_CHECKING:
    from structgen.integrations.server.service import Handler, Service

__all__ = ["application"]

_MAX_BODY: Final = 4 << 20
_BODY_S: Final = 30.0
_CLOSE_S: Final = 1.0
"""Seconds for tasks that the server has waited for already, or has cancelled."""
_RETURN_S: Final = 20.0
_CLOSED: Final = 499
_OPEN: Final = ("/health", "/version", "/")
"""Paths that need no key."""


def application(
    service: Service,
    *,
    api_key: str | None = None,
    max_body: int = _MAX_BODY,
    body_s: float = _BODY_S,
    allow_origin: Sequence[str] = (),
) -> Starlette:
    """Return the application.

    Args:
        service: the model with its runner.
        api_key: clients must send it as ``Authorization: Bearer ...``; None: anyone may ask.
        max_body: the maximum number of bytes of a request's body.
        body_s: seconds in which a body must arrive.
        allow_origin: the origins of pages whose scripts may ask, such as ``https://example.com``; ``"*"`` is all.
    """

    def post(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            body = await json_body(request, max_bytes=max_body, seconds=body_s)
            return await unless_gone(request, handler(service, body))

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
        returning = asyncio.create_task(_return_memory())
        yield
        returning.cancel()
        await service.runner.close(_CLOSE_S)

    card: dict[str, Any] = {"id": service.name, "object": "model", "created": 0, "owned_by": "structgen"}
    card["structgen"] = {"decoder": "diffusion" if service.is_diffusion else "autoregressive"}
    if service.model.max_context is not None:
        card["max_model_len"] = service.model.max_context
    routes = [
        Route("/v1/models", get(lambda _: JSONResponse({"object": "list", "data": [card]}))),
        Route("/v1/models/{name:path}", get(lambda request: _model(service, card, request.path_params["name"]))),
        Route("/health", get(lambda _: _health(service))),
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
        Route("/", get(lambda _: _page())),
        Route("/metrics", get(lambda _: service.metrics.response(service.runner))),
    ]
    paths = {route.path for route in routes}
    return Starlette(
        routes=routes,
        middleware=[
            Middleware(Observed, metrics=service.metrics, paths=paths),
            *([_cross_origin(allow_origin)] if allow_origin else []),
        ],
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
                check_key(request, api_key)
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


async def _return_memory() -> None:
    """Give free memory back from time to time: each answer has a thread, and the allocator keeps what it has freed."""
    while True:
        await asyncio.sleep(_RETURN_S)
        await asyncio.to_thread(return_memory)


def _model(service: Service, card: dict[str, Any], name: str) -> Response:
    service.check_model(name)
    return JSONResponse(card)


def _health(service: Service) -> Response:
    """How busy the server is; with 503 when it is about to end, so that load balancers go elsewhere."""
    runner = service.runner
    status = "shutting down" if runner.is_closing else "ok"
    held = {"status": status, "running": runner.running, "waiting": runner.waiting}
    return JSONResponse(held, 503 if runner.is_closing else 200)


def _version() -> str:
    try:
        return version("structgen-lm")
    except PackageNotFoundError:
        return "unknown"


def _cross_origin(origins: Sequence[str]) -> Middleware:
    """Let scripts of other pages ask."""
    return Middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["structgen-enforced", "structgen-ignored"],
    )


def _page() -> Response:
    """A page to try the server in a browser: one file without any resource from elsewhere."""
    text, policy = _page_text()
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return HTMLResponse(text, headers=headers)


@cache
def _page_text() -> tuple[str, str]:
    """The text of the page, and its policy: it may ask this server, and its icon is empty data."""
    text = files(__package__).joinpath("page.html").read_text("utf-8")
    return text, f"{page_policy(text)}; connect-src 'self'; img-src data:; frame-ancestors 'none'"
