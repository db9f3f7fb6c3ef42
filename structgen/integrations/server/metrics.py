"""Metrics of the server: ``GET /metrics`` for Prometheus, and a log line for each request.

``Observed`` wraps the application.  It makes the ``Record`` of a request, which is found as ``record()`` in whatever
runs on behalf of the request, threads included; when the answer has been sent, or its client has gone, the record is
counted and logged.
"""

from __future__ import annotations

from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from structgen.log import logger

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from structgen.decode import Result
    from structgen.integrations.server.runner import Runner

__all__ = ["Metrics", "Observed", "Record", "record"]

_CLOSED: Final = 499
_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NO_DESCRIPTION: Final = "-" * 8


@final
@dataclass(slots=True)
class Record:
    """The record of a request so far.

    Attributes:
        schema: the first 8 hexadecimal digits of the digest of the grammar; dashes without one.
        prompt_tokens: tokens of the prompt.
        tokens: tokens of the answers.
        forced: those that were forced.
        passes: forward passes that the answers took part in.
        code: of the error that the answer is.
        is_cancelled: the client went away before its answers were complete.
    """

    schema: str = _NO_DESCRIPTION
    prompt_tokens: int = 0
    tokens: int = 0
    forced: int = 0
    passes: int = 0
    code: str | None = None
    is_cancelled: bool = False
    began: float = field(default_factory=perf_counter)

    def add(self, result: Result) -> None:
        """Count an answer."""
        self.prompt_tokens = result.stats.prompt_tokens
        self.tokens += result.stats.tokens
        self.forced += result.stats.forced
        self.passes += result.stats.forwards


_record: ContextVar[Record | None] = ContextVar("record", default=None)


def record() -> Record:
    """The record of the current request; outside of a request, one that is discarded."""
    return _record.get() or Record()


@final
class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self.registry, "namespace": "structgen"}
        self.requests = Counter("requests", "Requests, by endpoint and status.", ("endpoint", "status"), **named)
        self.refused = Counter("refused", "Requests that were refused, by the code of the error.", ("code",), **named)
        self.cancelled = Counter("cancelled", "Requests whose client went away before the end.", **named)
        self.tokens = Counter("tokens", "Tokens: of prompts, forced, taken from drafts, sampled.", ("kind",), **named)
        self.passes = Counter("passes", "Forward passes, counted once for each answer in them.", **named)
        seconds = {"buckets": _SECONDS, **named}
        self.first_token = Histogram("first_token_seconds", "From the request to its first token.", **seconds)
        self.token = Histogram("token_seconds", "Mean time per token after the first, by answer.", **seconds)
        self.compile = Histogram("compile_seconds", "Time to compile a description.", **seconds)
        self.seconds = Histogram("request_seconds", "From a request to the end of its answer.", **seconds)
        for kind in ("prompt", "forced", "accepted", "sampled"):
            self.tokens.labels(kind)
        self._running = Gauge("running", "Answers that are being written.", **named)
        self._waiting = Gauge("waiting", "Answers that wait.", **named)

    def add(self, result: Result) -> None:
        """Count an answer.  A token is counted once: a chosen one as accepted if a drafter had proposed it."""
        stats = result.stats
        accepted = sum(step.drafted for step in result.steps if step.token is not None and not step.forced)
        for kind, count in (
            ("prompt", stats.prompt_tokens),
            ("forced", stats.forced),
            ("accepted", accepted),
            ("sampled", stats.sampled - accepted),
        ):
            self.tokens.labels(kind).inc(count)
        self.passes.inc(stats.forwards)

    def response(self, runner: Runner) -> Response:
        """The text that Prometheus reads."""
        self._running.set(runner.running)
        self._waiting.set(runner.waiting)
        return Response(generate_latest(self.registry), media_type=CONTENT_TYPE_LATEST)


@final
class Observed:
    """An application whose requests are counted and logged.

    Args:
        inner: the application.
        metrics: where they are counted.
        paths: those of the endpoints; others are counted as ``other``.
    """

    def __init__(self, inner: ASGIApp, metrics: Metrics, paths: Collection[str]) -> None:
        self._inner = inner
        self._metrics = metrics
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        made, status = Record(), _CLOSED
        token = _record.set(made)

        async def sent(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._inner(scope, receive, sent)
        finally:
            _record.reset(token)
            self._end(scope["method"], scope["path"], status, made)

    def _end(self, method: str, path: str, status: int, made: Record) -> None:
        metrics, seconds = self._metrics, perf_counter() - made.began
        is_cancelled = made.is_cancelled or status == _CLOSED
        endpoint = path if path in self._paths else "/v1/models/{id}" if path.startswith("/v1/models/") else "other"
        metrics.requests.labels(endpoint, str(_CLOSED if is_cancelled else status)).inc()
        metrics.seconds.observe(seconds)
        if is_cancelled:
            metrics.cancelled.inc()
        if made.code is not None:
            metrics.refused.labels(made.code).inc()
        logger.info(
            "%s %.80r %d%s schema=%s prompt=%d tokens=%d forced=%d passes=%d %.3f s%s",
            method,
            path,
            status,
            " cancelled" if is_cancelled else "",
            made.schema,
            made.prompt_tokens,
            made.tokens,
            made.forced,
            made.passes,
            seconds,
            "" if made.code is None else f" {made.code}",
        )
