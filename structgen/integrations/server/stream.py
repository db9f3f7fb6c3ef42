"""Server-sent events, as OpenAI's clients read them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from starlette.responses import StreamingResponse

from structgen.integrations.server.protocol import api_error
from structgen.log import logger

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

__all__ = ["event", "sse"]


def event(data: object, *, name: str | None = None) -> bytes:
    """One event; ``data`` is written as JSON on one line."""
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
                    yield event(item, name=item["type"] if named else None)
            except Exception as error:  # the status has been sent
                if (answer := api_error(error)).status == 500:
                    logger.exception("an answer failed while it was streamed")
                yield event(answer.body)
        yield b"data: [DONE]\n\n"

    return StreamingResponse(
        body(), media_type="text/event-stream", headers={"Cache-Control": "no-cache", **(headers or {})}
    )
