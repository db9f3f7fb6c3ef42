"""The Starlette application: routes, API keys, limits on bodies, errors in OpenAI's format, and a page to try it."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from structgen.errors import StructgenError
from structgen.heap import return_memory
from structgen.integrations.server import chat, completions, language, responses
from structgen.integrations.server.metrics import Observed, record
from structgen.integrations.server.protocol import APIError, api_error
from structgen.integrations.server.runner import shutting_down
from structgen.log import logger
from structgen.markup import page_policy

if TYPE_CHECKING:
    from structgen.integrations.server.runner import Runner
    from structgen.integrations.server.service import Handler, Service

__all__ = ["application"]

_MAX_BODY: Final = 4 << 20
_BODY_S: Final = 30.0
_CLOSE_S: Final = 1.0
"""Seconds for tasks that the server has waited for already, or has cancelled."""
_RETURN_S: Final = 20.0
_DISPOSED_S: Final = 1.0
"""Seconds in which the engines that a collection has freed are gone: large ones are freed in the background."""
_FEW_OBJECTS: Final = 1_000
_CLOSED: Final = 499
_SHOWN: Final = 80
"""Characters of a path or method that an error shows."""
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

        return _guarded(endpoint, service.runner, api_key)

    def get(value: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return value(request)

        return _guarded(endpoint, service.runner, api_key)

    async def ended(request: Request, error: Exception) -> Response:
        answer = api_error(error)
        if answer.status in (404, 405):
            answer.message = _lost(request, paths, answer.headers.get("Allow"))
        return JSONResponse(answer.body, answer.status, headers=answer.headers)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        returning = asyncio.create_task(_return_memory(service.runner))
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
    endpoint: Callable[[Request], Awaitable[Response]], runner: Runner, api_key: str | None
) -> Callable[[Request], Awaitable[Response]]:
    """Check the key, and answer errors; the end of the server is one."""

    async def guarded(request: Request) -> Response:
        try:
            if api_key is not None and request.url.path not in _OPEN:
                check_key(request, api_key)
            return await endpoint(request)
        except ClientDisconnect:
            return Response(status_code=_CLOSED)
        except asyncio.CancelledError:
            if not runner.is_over:
                raise
            return _refused(shutting_down())
        except (APIError, StructgenError) as error:
            return _refused(error)
        except Exception as error:
            logger.exception("a request failed: %s %s", request.method, request.url.path)
            return _refused(error)

    return guarded


def _refused(error: Exception) -> Response:
    """An error in OpenAI's shape.  It is no local of the frame that has caught it, which it knows by its traceback."""
    answer = api_error(error)
    record().code = answer.code
    return JSONResponse(answer.body, answer.status, headers=answer.headers)


async def _return_memory(runner: Runner) -> None:
    """Give free memory back from time to time: each answer has a thread, and the allocator keeps what it has freed.

    What refers to itself is freed by a full collection, which stops all threads: none while an answer is written, and
    none for a few objects.  The collections that Python makes by itself come after so many objects that what has no
    more users, engines of many megabytes among it, waited for hours.
    """
    while True:
        await asyncio.sleep(_RETURN_S)
        made, *younger = gc.get_count()  # objects since the last collection, and collections since the last full one
        if (made > _FEW_OBJECTS or any(younger)) and not (runner.running or runner.waiting):
            await asyncio.to_thread(gc.collect)
            await asyncio.sleep(_DISPOSED_S)
        await asyncio.to_thread(return_memory)


def _model(service: Service, card: dict[str, Any], name: str) -> Response:
    service.check_model(name)
    return JSONResponse(card)


def _lost(request: Request, paths: Collection[str], allowed: str | None) -> str:
    """Say what is wrong with a path or a method: most often the address that a client was given lacks ``/v1``."""
    path = request.url.path
    shown = f"{path[:_SHOWN]!r}"
    if allowed is not None:
        return f"{shown} takes {allowed}; found {request.method[:_SHOWN]}"
    start = path.removeprefix("/v1").removeprefix("/v1").rstrip("/")
    if f"/v1{start}" in paths and start:
        return f"there is no {shown}; it is at '/v1{start}': give clients the address that ends with /v1, once"
    return f"there is no {shown}; there are {', '.join(sorted(path for path in paths if '{' not in path))}"


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


Value = TypeVar("Value")

_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_CLOSE: Final = {"Connection": "close"}
"""The rest of the body is not read, so the connection has no other use."""


def check_key(request: Request, api_key: str) -> None:
    """Compare keys in a time that does not depend on where they differ.

    Raises:
        APIError: it is missing or wrong.
    """
    kind, _, given = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not secrets.compare_digest(given.strip().encode(), api_key.encode()):
        raise APIError(
            401,
            "the API key is missing or wrong; send it as 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def json_body(request: Request, *, max_bytes: int, seconds: float) -> Any:
    """Read a JSON body of at most ``max_bytes`` bytes, which must arrive within ``seconds``.

    RFC 8259 in UTF-8, without what readers understand differently: an object has a name once, numbers are finite,
    and strings are Unicode (no lone surrogates).

    Raises:
        APIError: it is larger, slower, or no such JSON.
        ClientDisconnect: the client has gone.
    """
    stated = request.headers.get("content-length", "")
    if stated.isdecimal() and int(stated[:20]) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > max_bytes:
                    raise _too_large(max_bytes)
                parts.append(part)
    except TimeoutError:
        raise APIError(
            408, f"the body was not complete after {seconds:g} s", code="body_too_slow", headers=_CLOSE
        ) from None
    return _json(b"".join(parts))


def _too_large(max_bytes: int) -> APIError:
    return APIError(413, f"the body is larger than {max_bytes} bytes", code="body_too_large", headers=_CLOSE)


def _json(data: bytes) -> Any:
    try:
        value = json.loads(data.decode(), object_pairs_hook=_object, parse_constant=_no_number, parse_float=_finite)
        if _SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise APIError(400, "the body is nested too deeply", code="invalid_json") from None
    except UnicodeEncodeError:
        raise APIError(400, "the body has a lone surrogate, which is no text", code="invalid_json") from None
    except ValueError as error:
        raise APIError(400, f"the body is no JSON: {error}", code="invalid_json") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"an object has the name {twice!a:.80} twice")
    return made


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.40} is too large")
    return number


async def unless_gone(request: Request, work: Awaitable[Value]) -> Value:
    """Await ``work``, and cancel it when the client has gone; the body must have been read.

    Raises:
        ClientDisconnect: the client has gone.
    """
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return await working
        raise ClientDisconnect
    finally:
        for each in (working, gone):
            each.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await each
        del working, gone, each  # their errors know this frame: together they would keep all of the answer


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
