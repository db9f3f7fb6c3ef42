"""Runs several answers of the model concurrently; others wait in a queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar, final

from structgen.decode.step.background import streamed
from structgen.decode.step.context import Context
from structgen.integrations.server.protocol import APIError
from structgen.integrations.server.writing import filled, written
from structgen.models import Batch
from structgen.models.adjusted import AdjustedModel, Adjustments
from structgen.models.protocol.diffusion import DiffusionModel

if TYPE_CHECKING:
    from structgen.decode import AnyCanvasSampler, AnyDrafter, AnyModel, AnySampler
    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.engine import Constraint
    from structgen.integrations.server.writing import Item
    from structgen.models import LanguageModel

__all__ = ["Runner", "Task", "shutting_down"]

Value = TypeVar("Value")

_PATIENCE: Final = 1.0
"""See ``Batch``: a pass waits for those who are choosing a token, as long as the last pass took.  Half the sequences
take nearly as long as all of them."""

_AS_IT_IS: Final = Adjustments()


@final
@dataclass(frozen=True, slots=True)
class Task:
    """An answer to write.

    Attributes:
        tokens: of the prompt, at least one.
        constraint: compiled for the model's vocabulary.
        max_tokens: the maximum number of tokens of the answer; it is complete within them.
        sampler: how tokens, whole answers or canvases are chosen.
        seed: of the sampler.
        alternatives: how many other tokens each step records.
        drafter: proposes draft tokens.
        adjustments: of the model's logits.
        stops: the answer, which is free text, ends before the first of them.
        has_scores: whether steps are wanted with the log-probability that the model gives them.
        has_events: whether the fields of the answer are wanted as they become final.
        has_marginals: whether the probabilities of the values of its fields are wanted.
        is_json: whether the answer is JSON, so that it has fields.
        is_canonical: whether only the tokens that the tokenizer itself writes are allowed.
        is_traced: whether each chunk comes after the ``Trace`` of its tokens.
        unmasking: how the canvas is filled, and of how many slots it is; None for a model that writes token by token.
    """

    tokens: tuple[int, ...]
    constraint: Constraint
    max_tokens: int
    sampler: AnySampler | AnyCanvasSampler
    seed: int = 0
    alternatives: int = 0
    drafter: AnyDrafter = "auto"
    adjustments: Adjustments = _AS_IT_IS
    stops: tuple[str, ...] = ()
    has_scores: bool = False
    has_events: bool = False
    has_marginals: bool = False
    is_json: bool = False
    is_canonical: bool = False
    is_traced: bool = False
    unmasking: Unmasking | None = None


def shutting_down(message: str = "the server is shutting down") -> APIError:
    """The error for those who ask another server, or this one later."""
    return APIError(503, message, code="shutting_down", headers={"Retry-After": "5"})


@final
class Runner:
    """Runs tasks on a model, up to ``max_running`` of them in the same forward passes.

    A diffusion model fills this many canvases concurrently, each in forward passes of its own.

    Args:
        model: the model.
        max_running: how many answers are written at the same time.
        max_queue: how many more may wait.
        time_limit_s: seconds after which an answer ends with an error, waiting included; None: never.
    """

    def __init__(
        self, model: AnyModel, *, max_running: int = 16, max_queue: int = 64, time_limit_s: float | None = None
    ) -> None:
        self._model = model
        self._batch = None if isinstance(model, DiffusionModel) else Batch(model, patience=_PATIENCE)
        self.max_running = max_running
        self.max_queue = max_queue
        self.time_limit_s = time_limit_s
        self.running = 0
        self.waiting = 0
        self._free = asyncio.Semaphore(max_running)
        self._idle = asyncio.Event()
        self._idle.set()
        self.is_closing = False
        self.is_over = False  # those that still wait have been told that no answer comes
        self._told: set[Callable[[APIError], object]] = set()

    def _check_open(self) -> None:
        if self.is_closing:
            raise shutting_down()

    @contextmanager
    def admitted(self, count: int = 1) -> Iterator[None]:
        """Keep room for this many tasks, which the block prepares and which are run right after it.

        Raises:
            APIError: the queue is full, or the server is shutting down.
        """
        self._check_open()
        if self.running + self.waiting + count > self.max_running + self.max_queue:
            message = f"{self.running} answers are being written and {self.waiting} wait; try again later"
            raise APIError(429, message, code="queue_full", headers={"Retry-After": "1"})
        self.waiting += count
        try:
            yield
        finally:
            self.waiting -= count

    async def run(self, task: Task) -> AsyncGenerator[Item, None]:
        """Yield the chunks of an answer as they are written, what else is wanted, and then the result.

        The answer ends before its next forward pass if the coroutine is cancelled or the iterator is closed.  The task
        has been ``admitted``: once the status of a stream has been sent, it is too late to refuse it.

        Raises:
            APIError: the server is shutting down, or the time is over.
            StructgenError: as ``generate``.
        """
        self._check_open()
        self.waiting += 1
        self._idle.clear()
        loop = asyncio.get_running_loop()
        ends = None if self.time_limit_s is None else loop.time() + self.time_limit_s
        try:
            await self._in_time(self._free.acquire(), ends)
            self.running += 1
        finally:
            self.waiting -= 1
            self._note_idle()
        try:
            async with aclosing(streamed(self._written(task))) as items:
                while (item := await self._in_time(anext(items, None), ends)) is not None:
                    yield item
        finally:
            self.running -= 1
            self._free.release()
            self._note_idle()

    async def _in_time(self, awaited: Awaitable[Value], ends: float | None) -> Value:
        """Wait until a time of the loop; work that is not done then stops before its next forward pass."""
        limit = asyncio.timeout_at(ends)
        try:
            async with limit:
                return await awaited
        except TimeoutError:
            if not limit.expired():
                raise
            message = f"the answer was not done after {self.time_limit_s:g} s"
            raise APIError(504, message, code="time_limit") from None
        finally:
            del limit  # it knows the task, whose error knows this frame: together they would keep all of the answer

    def _written(self, task: Task) -> Generator[Item, None, None]:
        """Write an answer in this thread."""
        if self._batch is None or task.unmasking is not None:
            if not isinstance(self._model, DiffusionModel) or task.unmasking is None:
                raise RuntimeError("a canvas is filled by a diffusion model, and says how")
            yield from filled(self._model, task, task.unmasking)
            return
        model: LanguageModel = self._batch
        if task.adjustments:
            model = AdjustedModel(model, task.adjustments, prompt=len(task.tokens))
        with self._batch.worker(), Context(model, task.tokens) as context:
            yield from written(context, task)

    def _note_idle(self) -> None:
        if not (self.running or self.waiting):
            self._idle.set()

    @contextmanager
    def telling(self, tell: Callable[[APIError], object]) -> Iterator[None]:
        """Call ``tell`` if the server ends before the block does."""
        self._told.add(tell)
        try:
            yield
        finally:
            self._told.discard(tell)

    def end(self) -> int:
        """Tell all who still wait for answers that the server ends, and return how many answers are left.

        They are not waited for: each ends before its next forward pass, and the current one may take any time.
        """
        self.is_closing = self.is_over = True
        for tell in list(self._told):
            tell(shutting_down("the server was told to end, and the answer was not done in time"))
        return self.running + self.waiting

    async def drained(self, grace_s: float = 30.0) -> None:
        """Refuse new tasks, and wait for the others for this many seconds."""
        self.is_closing = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_s)

    async def close(self, grace_s: float = 30.0) -> None:
        """Refuse new tasks, wait this many seconds for the others, and free the caches if the model is free then."""
        await self.drained(grace_s)
        if self._batch is not None and self._idle.is_set():
            await asyncio.to_thread(self._batch.close)
