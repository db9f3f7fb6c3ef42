"""Requests of strangers: their keys, and bodies that are too large, too slow, or no JSON."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from starlette.requests import ClientDisconnect

from structgen.integrations.server.protocol import APIError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["check_key", "json_body", "unless_gone"]

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
    """Read a body of at most ``max_bytes`` bytes, which has so many ``seconds`` to arrive, as JSON.

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


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
