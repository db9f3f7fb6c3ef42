"""Batch the forward passes of programs that run in their own threads.

Each program runs ordinary code on an ordinary ``LanguageModel``.  A thread that needs a forward pass waits until every
other program needs one too or has ended.  One thread then runs all requests, and all threads continue.  No clock
decides which requests share a pass, so the same programs always meet in the same passes.
"""

from __future__ import annotations

import weakref
from threading import Condition, Lock, get_ident
from typing import TYPE_CHECKING, Self, final

from structgen.errors import GenerationError
from structgen.log import logger
from structgen.models.pass_times import shared_times
from structgen.models.protocol import Extension, PackedModel, TreeSession
from structgen.models.session import PackedSession, can_branch, extend, treeless
from structgen.travel import Live

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from structgen.models.pass_times import PassTimes
    from structgen.models.protocol import LanguageModel, Logits, Prompt, Session
    from structgen.models.protocol.tree import TokenTree

__all__ = ["Batch", "BatchSession", "Worker"]


@final
class Batch(Live):
    """A ``LanguageModel`` that batches the sessions of several threads, its workers.

    A request (``extend``, ``extend_all``, ``extend_tree``) of a worker waits until every worker has made one: a round.
    The requests of a round run in the workers' order.  One forward pass takes requests of up to ``pass_tokens`` tokens
    in all, tree tokens included; a larger request has its own pass.  So prompts share passes, and no pass has more
    tokens than ``pass_tokens``, except the pass of one larger request.  Each request returns what its session alone
    would return, up to rounding of float32 sums.  If a pass fails, its requests run one by one, so that each worker
    gets its own result or error.

    A model that is no ``PackedModel`` runs the requests one by one.  Only one thread at a time uses the model.

    The requests of a thread that is no worker run at once, alone.  A worker that waits for another worker other than by
    a request deadlocks both.

    Close the batch, or use it in a ``with`` statement, to free the caches.

    Args:
        model: the model that runs the requests.
        pass_tokens: see above.

    Raises:
        ValueError: ``pass_tokens`` is less than 1.
    """

    def __init__(self, model: LanguageModel, *, pass_tokens: int = 512) -> None:
        if pass_tokens < 1:
            raise ValueError(f"pass_tokens must be at least 1; found {pass_tokens}")
        self.name = model.name
        self.vocabulary = model.vocabulary
        self.max_context = model.max_context
        self._model = model
        self._packed = model if isinstance(model, PackedModel) else None
        self._pass_tokens = pass_tokens
        # Held while the model is in use, never while waiting for another thread.  Acquired before _changed.
        self._use = Lock()
        self._sessions: weakref.WeakSet[BatchSession] = weakref.WeakSet()  # under _use
        # Guards the attributes below.  Notified at each change that a waiting thread may wait for.
        self._changed = Condition(Lock())
        self._closed = False  # set under both
        self._workers: list[Worker] = []
        self._made = 0  # workers, including those that have left
        self._waiting: list[_Request] = []
        self._leader: _Request | None = None  # whose thread runs a round now

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
        """Those of the model, which may measure them now, for the rows of one worker of all (``shared_times``)."""
        with self._use:
            times: PassTimes | None = getattr(self._model, "pass_times", None)
        return None if times is None else shared_times(times, max(1, len(self._workers)))

    def worker(self) -> Worker:
        """Return a new worker; every round waits for it until it leaves.

        Make all workers before their threads start: then the batches do not depend on how fast threads start.
        """
        with self._changed:
            self._made += 1
            worker = Worker(self, self._made)
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
        """Free all caches and refuse all further requests, waiting ones included, after the current round has ended."""
        with self._use:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            for session in self._sessions:
                session.inner.close()

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
        with self._changed:
            if worker in self._workers:
                self._workers.remove(worker)
            self._changed.notify_all()  # the others may all be waiting

    def _extend(self, extension: Extension) -> Logits:
        with self._changed:
            worker = self._worker_here()
        if worker is not None:
            return self._meet(_Request(extension, worker.order, name=self.name))
        request = _Request(extension, 0, name=self.name)
        with self._use:
            self._check_open()
            request.run()
        return request.answer()

    def _meet(self, request: _Request) -> Logits:
        """Wait for all workers' requests and run them, or for another worker to have run this one."""
        try:
            with self._changed:
                self._waiting.append(request)
                self._changed.wait_for(lambda: request.is_answered or self._needs_leader())
                if not request.is_answered:
                    self._check_open()
                    self._leader = request
                requests = sorted(self._waiting, key=lambda waiting: waiting.order)
            if not request.is_answered:
                self._run_round(requests)
                self._end_round(request)
        except BaseException:
            self._withdraw(request)
            raise
        return request.answer()

    def _needs_leader(self) -> bool:
        return self._leader is None and (self._closed or len(self._waiting) >= len(self._workers))

    def _run_round(self, requests: list[_Request]) -> None:
        with self._use:
            self._check_open()
            for pack in self._packs(requests):
                try:
                    self._run_pack(pack)
                finally:  # after an interruption, requests without a result leave their sessions as they were
                    for request in pack:
                        request.undo_unanswered()

    def _packs(self, requests: list[_Request]) -> Iterator[list[_Request]]:
        pack: list[_Request] = []
        tokens = 0
        for request in requests:
            tokens += request.tokens
            if pack and tokens > self._pass_tokens:
                yield pack
                pack, tokens = [], request.tokens
            pack.append(request)
        yield pack

    def _run_pack(self, pack: list[_Request]) -> None:
        if self._packed is not None and len(pack) > 1:
            try:
                rows = self._packed.extend_many([request.extension for request in pack])
            except Exception as error:  # run one by one below, each request gets its own error
                logger.warning("a pass of %d requests failed, and each is run alone: %r", len(pack), error)
                for request in pack:
                    request.undo_unanswered()
            else:
                for request, logits in zip(pack, rows, strict=True):
                    request.logits = logits
                return
        for request in pack:
            request.run()

    def _end_round(self, leader: _Request) -> None:
        with self._changed:
            if self._leader is leader:
                self._leader = None
                self._waiting = [request for request in self._waiting if not request.is_answered]
                self._changed.notify_all()

    def _withdraw(self, request: _Request) -> None:
        """Remove a request whose thread was interrupted."""
        self._end_round(request)
        with self._changed:
            # Another thread may be running the request, and a pass cannot be stopped from here.
            self._changed.wait_for(lambda: self._leader is None)
            if request in self._waiting:
                self._waiting.remove(request)
        if request.is_answered:
            with self._use:
                request.undo()


class _Request:
    """A worker's request to extend a session, and its result."""

    def __init__(self, extension: Extension, order: int, *, name: str) -> None:
        self.extension = extension
        self.order = order
        self.tokens = len(extension.token_ids)
        if extension.tree is not None:
            self.tokens += len(extension.tree.token_ids)
        self._name = name
        self.logits: Logits | None = None
        self.error: Exception | None = None
        self._length = extension.session.length

    @property
    def is_answered(self) -> bool:
        return self.logits is not None or self.error is not None

    def run(self) -> None:
        """Run this request alone."""
        try:
            self.logits = extend(self.extension, name=self._name)
        except Exception as error:  # raised in the thread that made the request
            self.error = error

    def answer(self) -> Logits:
        """Return the logits or raise the error."""
        if self.error is not None:
            raise self.error
        if self.logits is None:
            raise RuntimeError("the request was not run")
        return self.logits

    def undo(self) -> None:
        """Drop the tokens that were added to the session, and its tree."""
        session = self.extension.session
        if session.length > self._length:
            session.truncate(self._length)

    def undo_unanswered(self) -> None:
        """Drop the tokens that an unfinished pass may have added."""
        if not self.is_answered:
            self.undo()


@final
class Worker:
    """A thread that a batch waits for, from its creation on; use it in a ``with`` statement in that thread.

    When the block ends, also by an exception, the others continue without it.
    """

    def __init__(self, batch: Batch, order: int) -> None:
        self._batch = batch
        self.order = order
        self.thread: int | None = None

    def __enter__(self) -> Self:
        self._batch._bind(self)
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Let the others continue without this worker, also if no thread was ever bound to it."""
        self._batch._leave(self)


@final
class BatchSession(PackedSession):
    """One sequence of a ``Batch``; for one thread at a time."""

    def __init__(self, batch: Batch, inner: Session) -> None:
        self._batch = batch
        self.inner = inner

    @property
    def length(self) -> int:
        """Tokens in the sequence."""
        return self.inner.length

    @property
    def forwards(self) -> int:
        """Forward passes that included this session; a fork starts at zero."""
        return self.inner.forwards

    def _run(self, token_ids: Sequence[int], *, all_positions: bool, tree: TokenTree | None = None) -> Logits:
        if tree is not None and not self.can_branch:  # a PackedModel may not support trees
            raise treeless(name=self._batch.name)
        return self._batch._extend(Extension(self.inner, token_ids, all_positions, tree))

    @property
    def cuts_freely(self) -> bool:
        """Whether ``truncate`` of the wrapped session costs nothing."""
        return bool(getattr(self.inner, "cuts_freely", True))

    @property
    def can_branch(self) -> bool:
        """See ``TreeSession.can_branch``, of the wrapped session."""
        with self._batch._use:
            return can_branch(self.inner)

    def keep(self, nodes: Sequence[int], /) -> None:
        """See ``TreeSession.keep``."""
        with self._batch._use:
            if not isinstance(self.inner, TreeSession):
                raise treeless(name=self._batch.name)
            self.inner.keep(nodes)

    def truncate(self, length: int, /) -> None:
        """See ``Session.truncate``."""
        with self._batch._use:
            self.inner.truncate(length)

    def fork(self) -> BatchSession:
        """See ``Session.fork``."""
        with self._batch._use:
            self._batch._check_open()
            return self._batch._adopted(self.inner.fork())

    def close(self) -> None:
        """See ``Session.close``."""
        with self._batch._use:
            self.inner.close()
