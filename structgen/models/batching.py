"""Batch the forward passes of programs and requests that run in their own threads.

Each of them runs ordinary code on an ordinary ``LanguageModel``.  A thread that needs a forward pass waits.  When the
model is free, one of the waiting threads runs a pass over all waiting requests, and the threads with results continue.
Requests join at the next pass and leave when they are done: continuous batching, which is called iteration-level
scheduling in Orca (Yu et al., OSDI 2022, section 3.1).  Long prompts are run in pieces along with other requests, and a
prefix that prompts share is run once.
"""

from __future__ import annotations

import weakref
from functools import cached_property
from threading import Condition, Lock, get_ident
from time import perf_counter
from typing import TYPE_CHECKING, Self, cast, final

from structgen.errors import GenerationError
from structgen.log import logger
from structgen.models.batch_requests import Prefixes, Request
from structgen.models.protocol import Extension, PackedModel, ResidentModel, ResidentSession, TreeSession
from structgen.models.schedule import Schedule
from structgen.models.session import PackedSession, can_branch, treeless
from structgen.models.turns import Turns
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.pass_times import Company, PassTimes
    from structgen.models.protocol import LanguageModel, Logits, Prompt, ResidentLogits, Session
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Batch", "BatchSession", "Worker"]


@final
class Batch(Live):
    """A ``LanguageModel`` that batches the sessions of several threads, its workers.

    A request (``extend``, ``extend_all``, ``extend_tree``) of a worker waits for a pass.  A pass takes requests of at
    most ``pass_tokens`` tokens in all, tree tokens included; a larger one has its own pass.  Requests of up to 64
    tokens come first, then pieces of longer ones, the prompts; of each kind first those that have waited longer, then
    those of earlier workers.  The next pass may have other members.  Each request returns what its session alone would
    return, up to rounding of float32 sums.  If a pass fails, its requests run one by one, so that each worker gets its
    own result or error.

    A prompt that begins with at least 16 tokens of an earlier one shares their cache (``Session.fork``).  If both wait
    at the same time, the later one waits for the earlier one.

    A model that is no ``PackedModel`` runs the requests one by one.  Only one thread at a time uses the model.

    The requests of a thread that is no worker run immediately, alone.  Without patience, a worker that waits for
    another worker other than by a request deadlocks both.

    Close the batch, or use it in a ``with`` statement, to free the caches.

    Args:
        model: the model that runs the requests.
        pass_tokens: see above.
        patience: how long a free model waits for workers that have made no request since the last pass, as a multiple
            of the time of that pass.  Then they are not waited for until their next request.  Pieces of prompts are
            then so short that passes take at most about three times as long with them, and requests have so few rows
            that passes take twice as long as with one row each (``divided``).  None: a pass waits for all workers, and
            no clock decides what runs together, so the same programs always meet in the same passes.
        prefix_tokens: tokens of prompts whose caches are kept to be shared.

    Raises:
        ValueError: ``pass_tokens`` is less than 1, or ``patience`` or ``prefix_tokens`` is negative.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        pass_tokens: int = 512,
        patience: float | None = None,
        prefix_tokens: int = 2048,
    ) -> None:
        if pass_tokens < 1:
            raise ValueError(f"pass_tokens must be at least 1; found {pass_tokens}")
        if prefix_tokens < 0 or (patience is not None and patience < 0):
            raise ValueError(f"patience and prefix_tokens must not be negative; found {patience}, {prefix_tokens}")
        self.name = model.name
        self.vocabulary = model.vocabulary
        self.max_context = model.max_context
        self._model = model
        self._packed = model if isinstance(model, PackedModel) else None
        self._resident = model if isinstance(model, ResidentModel) and model.is_resident else None
        self._patience = patience
        # Held while the model is in use, never while waiting for another thread.  Acquired before _changed.
        self._use = Lock()
        self._sessions: weakref.WeakSet[BatchSession] = weakref.WeakSet()  # under _use
        self._prefixes = Prefixes(prefix_tokens)  # under _use
        self._schedule = Schedule(model, pass_tokens, has_patience=patience is not None)  # changed under _use
        # Guards the attributes below.  Notified at each change that a waiting thread may wait for.
        self._changed = Condition(Lock())
        self._closed = False  # set under both
        self._workers: list[Worker] = []
        self._made = 0  # workers, including those that have left
        self._waiting: list[Request] = []
        self._leader: Request | None = None  # whose thread runs a pass now
        self._passes = 0
        self._turns = Turns()  # of workers that have their logits

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def model(self) -> LanguageModel:
        """The model that runs the sessions."""
        return self._model

    @property
    def pass_times(self) -> PassTimes | None:
        """The pass times of the model, which may measure them now."""
        with self._use:
            times: PassTimes | None = getattr(self._model, "pass_times", None)
            return times

    @property
    def company(self) -> Company:
        """The other sequences in a worker's next pass; never waits for a pass.

        These are the workers with requests in the last pass, and those that have made none yet.
        """
        present = sum(worker.is_awaited or not worker.has_asked for worker in tuple(self._workers))
        return self._schedule.company(present - 1)

    def worker(self) -> Worker:
        """Return a new worker.  Without patience, every pass waits for it until it leaves.

        Make all workers before their threads start: then the passes do not depend on how fast threads start.
        """
        with self._changed:
            self._made += 1
            worker = Worker(self, self._made)
            worker.is_awaited = self._patience is None
            self._workers.append(worker)
            return worker

    def encode_prompt(self, prompt: Prompt, /, *, chat: bool = True) -> list[int]:
        """See ``LanguageModel.encode_prompt``."""
        with self._use:
            return self._model.encode_prompt(prompt, chat=chat)

    def start(self) -> BatchSession:
        """Return an empty session.

        Raises:
            GenerationError: the batch is closed.
        """
        with self._use:
            self._check_open()
            return self._adopted(self._model.start())

    def close(self) -> None:
        """Free all caches and refuse all further requests, waiting ones included, after the current pass has ended."""
        with self._use:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            for session in self._sessions:
                session.inner.close()
            self._prefixes.clear()

    def __repr__(self) -> str:
        return f"<Batch of {len(self._workers)} workers, {self._model!r}>"

    def _adopted(self, inner: Session) -> BatchSession:
        session = BatchSession(self, inner)
        self._sessions.add(session)
        return session

    def _check_open(self) -> None:
        if self._closed:
            raise GenerationError(
                f"model {self.name!r}",
                "the batch of programs that uses it is closed",
                remedy="make a new Batch, or keep this one open until all programs end",
            )

    def _bind(self, worker: Worker) -> None:
        with self._changed:
            if worker not in self._workers:
                raise RuntimeError("the worker has left")
            if worker.thread is not None or self._worker_here() is not None:
                raise RuntimeError("a worker is one thread, and a thread is one worker")
            worker.thread = get_ident()

    def _worker_here(self) -> Worker | None:
        thread = get_ident()
        return next((worker for worker in self._workers if worker.thread == thread), None)

    def _leave(self, worker: Worker) -> None:
        worker.end_turn()
        with self._changed:
            if worker in self._workers:
                self._workers.remove(worker)
            self._changed.notify_all()  # the others may all be waiting

    def _extend(self, session: BatchSession, extension: Extension, *, is_resident: bool) -> Logits | ResidentLogits:
        with self._changed:
            worker = self._worker_here()
        ids, end = extension.token_ids, session.length + len(extension.token_ids)
        fits = len(ids) > 0 and end <= (self.max_context or end)
        is_valid = fits and all(0 <= token < self.vocabulary.size for token in ids)
        order = 0 if worker is None else worker.order
        request = Request(session, extension, order, is_resident=is_resident, is_valid=is_valid)
        if worker is not None:
            return self._meet(request, worker)
        with self._use:
            self._check_open()
            request.run(request.left)
        return request.answer()

    def _meet(self, request: Request, worker: Worker) -> Logits | ResidentLogits:
        """Run passes, or wait for other workers to run them, until the request is answered and it is their turn."""
        worker.end_turn()
        try:
            with self._changed:
                worker.is_awaited = worker.has_asked = True
                request.arrived = self._passes
                self._waiting.append(request)
            while not request.is_answered:
                with self._changed:
                    while not (request.is_answered or self._needs_leader()):
                        self._changed.wait(self._rest())
                    if request.is_answered:
                        break
                    self._check_open()
                    self._leader = request
                    self._passes += 1
                    here = {each.order for each in self._waiting}
                    for each in self._workers:
                        each.is_awaited = each.is_awaited and (self._patience is None or each.order in here)
                    waiting = list(self._waiting)
                self._run_pass(waiting)
                self._end_pass(request)
            worker.turn = self._turns.take()
        except BaseException:
            self._withdraw(request)
            raise
        logits = request.answer()
        if request.is_prompt and request.is_first:
            request.session.prompt = request.token_ids
        return logits

    def _needs_leader(self) -> bool:
        if self._leader is not None:
            return False
        awaited = sum(each.is_awaited for each in self._workers)
        return self._closed or len(self._waiting) >= awaited or self._rest() == 0.0

    def _rest(self) -> float | None:
        """Seconds until the model stops waiting for workers without a request; None: it waits for a change."""
        if self._patience is None or self._leader is not None:
            return None
        times = self._schedule.times
        return max(0.0, times.ended + self._patience * times.last - perf_counter())

    def _run_pass(self, waiting: Sequence[Request]) -> None:
        with self._use:
            self._check_open()
            pieces = self._schedule.pieces(waiting, self._prefixes, workers=len(self._workers), passes=self._passes)
            prompt_tokens = sum(count for request, count in pieces.items() if request.is_prompt)
            rows = [request.rows_of(count) for request, count in pieces.items() if not request.is_prompt]
            began = perf_counter()
            try:
                self._run_pieces(pieces)
            finally:  # after an interruption, requests without a result leave their sessions as they were
                for request in pieces:
                    request.undo_unfinished()
            seconds, workers = perf_counter() - began, len(self._workers)
            self._schedule.note(seconds, rows, prompt_tokens=prompt_tokens, waiting=len(waiting), workers=workers)
            for request in pieces:
                if 0 < request.done == request.shared and not request.is_answered:
                    self._prefixes.add(request.token_ids[: request.done], request.session.inner)

    def _run_pieces(self, pieces: dict[Request, int]) -> None:
        if self._packed is not None and len(pieces) > 1:
            try:
                rows = self._together([request.piece(count) for request, count in pieces.items()])
            except Exception as error:  # run one by one below, each request gets its own error
                logger.warning("a pass of %d requests failed, and each is run alone: %r", len(pieces), error)
                for request in pieces:
                    request.undo_unfinished()
            else:
                for (request, count), logits in zip(pieces.items(), rows, strict=True):
                    request.take(count, logits)
                return
        for request, count in pieces.items():
            request.run(count)

    def _together(self, extensions: Sequence[Extension]) -> Sequence[Logits | ResidentLogits]:
        if self._resident is not None:
            return self._resident.extend_many_resident(extensions)
        return cast("PackedModel", self._packed).extend_many(extensions)

    def _end_pass(self, leader: Request) -> None:
        with self._changed:
            if self._leader is leader:
                self._leader = None
                self._waiting = [request for request in self._waiting if not request.is_answered]
                self._changed.notify_all()

    def _withdraw(self, request: Request) -> None:
        """Remove a request whose thread was interrupted."""
        self._end_pass(request)
        with self._changed:
            # Another thread may be running the request, and a pass cannot be stopped from here.
            self._changed.wait_for(lambda: self._leader is None)
            if request in self._waiting:
                self._waiting.remove(request)
        with self._use:
            request.undo()


@final
class Worker:
    """A thread that a batch waits for, from its creation on; use it in a ``with`` statement in that thread.

    When the block ends, also by an exception, the others continue without it.
    """

    def __init__(self, batch: Batch, order: int) -> None:
        self._batch = batch
        self.order = order
        self.thread: int | None = None
        self.is_awaited = True
        self.has_asked = False
        self.turn: Lock | None = None

    def __enter__(self) -> Self:
        self._batch._bind(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def end_turn(self) -> None:
        """Let the next worker continue that has its logits."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn.release()

    def leave(self) -> None:
        """Let the others continue without this worker, also if no thread was ever bound to it."""
        self._batch._leave(self)


@final
class BatchSession(PackedSession):
    """One sequence of a ``Batch``; for one thread at a time."""

    def __init__(self, batch: Batch, inner: Session) -> None:
        self._batch = batch
        self.inner = inner
        self.prompt: tuple[int, ...] = ()  # with which the session begins, until it is kept

    @property
    def model_name(self) -> str:
        """The model's name in messages."""
        return self._batch.name

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self.inner.length

    @property
    def forwards(self) -> int:
        """Forward passes that included this session; a fork starts at zero."""
        return self.inner.forwards

    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        extension = Extension(self.inner, token_ids, all_positions, tree)
        return cast("Logits", self._extend(extension, is_resident=False))

    @cached_property
    def is_resident(self) -> bool:
        """See ``ResidentSession.is_resident``, of the wrapped session."""
        return isinstance(self.inner, ResidentSession) and self.inner.is_resident

    def extend_resident(
        self, token_ids: Sequence[int], /, *, all_positions: bool = False, tree: TokenTree | None = None
    ) -> ResidentLogits:
        """See ``ResidentSession.extend_resident``."""
        extension = Extension(self.inner, token_ids, all_positions, tree)
        return cast("ResidentLogits", self._extend(extension, is_resident=True))

    def _extend(self, extension: Extension, *, is_resident: bool) -> Logits | ResidentLogits:
        if extension.tree is not None and not self.can_branch:  # a PackedModel may not support trees
            raise treeless(name=self._batch.name)
        if self.prompt:
            with self._batch._use:
                self._keep_prompt()
        return self._batch._extend(self, extension, is_resident=is_resident)

    @property
    def cuts_freely(self) -> bool:
        """Whether ``truncate`` of the wrapped session costs nothing."""
        return bool(getattr(self.inner, "cuts_freely", True))

    @cached_property
    def can_branch(self) -> bool:
        """See ``TreeSession.can_branch``, of the wrapped session; read once, since a pass may have to end first."""
        with self._batch._use:
            return can_branch(self.inner)

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``."""
        if not self.can_branch:
            raise treeless(name=self._batch.name)
        with self._batch._use:
            cast("TreeSession", self.inner).keep(nodes)

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        with self._batch._use:
            self._keep_prompt()
            self.inner.truncate(length)

    def fork(self) -> BatchSession:
        """See ``Session.fork``."""
        with self._batch._use:
            self._batch._check_open()
            return self._batch._adopted(self.inner.fork())

    def close(self) -> None:
        """See ``Session.close``."""
        with self._batch._use:
            self._keep_prompt()
            self.inner.close()

    def _keep_prompt(self) -> None:
        """Keep the prompt for sessions with the same prefix.  Only once it is used again: a fork drops its tree."""
        if self.prompt and not self._batch._closed:
            self._batch._prefixes.add(self.prompt, self.inner)
        self.prompt = ()
