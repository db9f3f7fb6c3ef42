"""The state that the endpoints share: the model, the runner, the limits, the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, final

from starlette.responses import Response

from structgen.decode.step.result import Result
from structgen.engine import compile
from structgen.frontends.json_schema import JsonPolicy
from structgen.integrations.server.metrics import Metrics, record
from structgen.integrations.server.protocol import APIError
from structgen.integrations.server.scores import Answer
from structgen.integrations.server.tools import Form
from structgen.models.protocol.diffusion import CachingDenoiser, DiffusionModel

if TYPE_CHECKING:
    from structgen.decode import AnyModel
    from structgen.engine import Constraint
    from structgen.grammar.limits import Limits
    from structgen.grammar.nodes import Grammar
    from structgen.integrations.server.description import Description
    from structgen.integrations.server.protocol import ChatRequest
    from structgen.integrations.server.runner import Runner, Task
    from structgen.integrations.server.writing import Item

__all__ = ["Handler", "Service"]

Handler = Callable[["Service", Any], Coroutine[Any, Any, Response]]
"""Answers a body that has been read."""


@final
@dataclass(frozen=True)
class Service:
    """A model that answers requests.

    Attributes:
        model: the model.
        name: its name in requests and responses.
        runner: runs its answers.
        limits: of descriptions, which are not trusted.
        tool_family: the family in whose form the model writes calls; None: the one that its chat template shows.
        metrics: the counters.
    """

    model: AnyModel
    name: str
    runner: Runner
    limits: Limits
    tool_family: str | None = None
    metrics: Metrics = field(default_factory=Metrics)

    @cached_property
    def is_diffusion(self) -> bool:
        """Whether the model fills canvases."""
        return isinstance(self.model, DiffusionModel)

    @cached_property
    def has_reuse(self) -> bool:
        """Whether a pass can run some slots of a canvas, with keys and values of the others from earlier passes."""
        if not isinstance(self.model, DiffusionModel):
            return False
        denoiser = self.model.start(self.model.vocabulary.eos[:1])
        try:
            return isinstance(denoiser, CachingDenoiser)
        finally:
            denoiser.close()

    @property
    def policy(self) -> JsonPolicy:
        """How JSON is written: compact on a canvas, where every character takes a slot in every pass."""
        return JsonPolicy(whitespace="compact") if self.is_diffusion else JsonPolicy()

    @cached_property
    def form(self) -> Form:
        """How the model writes thoughts and calls."""
        return Form.of(self.model, self.tool_family)

    def compiled(self, grammar: Grammar) -> Constraint:
        """Compile a description for the model; the time is measured."""
        record().schema = grammar.digest.hex()[:8]
        with self.metrics.compile.time():
            return compile(grammar, self.model.vocabulary, limits=self.limits)

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model.

        Raises:
            APIError: the server has another model.
        """
        if name is not None and name != self.name:
            raise APIError(
                404,
                f"model: there is no {name!r:.80}; this server has {self.name!r}",
                param="model",
                code="model_not_found",
            )

    def max_answer_tokens(self, prompt: int, max_tokens: int, *, is_stated: bool, param: str = "messages") -> int:
        """How many tokens an answer may have: as many as requested, and by default as many as fit into the context.

        Args:
            prompt: tokens of the prompt.
            max_tokens: of the answer.
            is_stated: whether the request states ``max_tokens``.
            param: the field with the prompt.

        Raises:
            APIError: the prompt and the answer do not fit into the context.
        """
        if self.model.max_context is None or prompt + max_tokens <= self.model.max_context:
            return max_tokens
        left = self.model.max_context - prompt
        if is_stated or left < 1:
            message = (
                f"the context holds {self.model.max_context} tokens, the prompt has {prompt}, the answer {max_tokens}"
            )
            raise APIError(
                400,
                f"{message}; shorten the prompt, or lower max_tokens",
                param=param,
                code="context_length_exceeded",
            )
        return left

    def headers(self, request: ChatRequest, description: Description) -> dict[str, str]:
        """Headers of the answer: which fields of the request change nothing, and what is enforced."""
        held = {"structgen-enforced": description.header}
        return held | ({"structgen-ignored": ", ".join(request.ignored)} if request.ignored else {})

    async def answers(self, tasks: Sequence[Task]) -> list[Answer]:
        """Write several answers at the same time; with what else was wanted."""
        found = [Answer(self.model.vocabulary) for _ in tasks]
        async with aclosing(self.merged(tasks)) as items:
            async for index, item in items:
                found[index].note(item)
        return found

    async def merged(self, tasks: Sequence[Task]) -> AsyncGenerator[tuple[int, Item], None]:
        """The items of several answers, as soon as they are written, each with the number of its task."""
        queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        made = record()

        async def pump(index: int, task: Task) -> None:
            first: float | None = None
            async with aclosing(self.runner.run(task)) as items:
                async for item in items:
                    if first is None:
                        first = perf_counter()
                        self.metrics.first_token.observe(first - made.began)
                    if isinstance(item, Result):
                        made.add(item)
                        self.metrics.add(item)
                        if item.stats.tokens > 1:
                            self.metrics.token.observe((perf_counter() - first) / (item.stats.tokens - 1))
                    queue.put_nowait((index, item))

        async def watched(index: int, task: Task) -> None:
            try:
                await pump(index, task)
            except asyncio.CancelledError:  # nobody waits any more, and an error in the queue would refer to the queue
                raise
            except BaseException as error:  # a panic of a library in Rust is no Exception
                queue.put_nowait((index, error))

        running = [asyncio.create_task(watched(index, task)) for index, task in enumerate(tasks)]
        left = len(tasks)
        try:
            with self.runner.telling(lambda error: queue.put_nowait((0, error))):
                while left:
                    index, item = await queue.get()
                    if isinstance(item, BaseException):
                        raise item
                    left -= isinstance(item, Result)
                    yield index, item
        except (asyncio.CancelledError, GeneratorExit):
            made.is_cancelled = left > 0
            raise
        finally:
            for each in running:
                each.cancel()
            if not self.runner.is_over:
                await asyncio.gather(*running, return_exceptions=True)
