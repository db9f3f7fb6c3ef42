"""The requests of a batch, cut into pieces; prompts whose caches are shared; and the times of passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast, final

import numpy as np

from structgen.models.protocol import Extension
from structgen.models.session import extend

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.batching import BatchSession
    from structgen.models.protocol import Logits, ResidentLogits, ResidentSession, Session

__all__ = ["LEAST_PIECE", "Prefixes", "Request", "common"]

_SHORT: Final = 64
"""Requests of more tokens are prompts: they come after the others, and are run in pieces."""
_SHORT_PROMPT: Final = 32
"""The same for the first request of a session."""
LEAST_PIECE: Final = 16
"""Tokens of prompts that every pass has room for, and tokens that are worth sharing."""


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many of their first tokens two sequences share; O(log n) comparisons of slices."""
    same, most = 0, min(len(one), len(other))
    if one[:LEAST_PIECE] != other[:LEAST_PIECE]:  # most have not
        most = min(most, LEAST_PIECE - 1)
    while same < most:
        middle = (same + most + 1) // 2
        if one[same:middle] == other[same:middle]:
            same = middle
        else:
            most = middle - 1
    return same


@final
class Prefixes:
    """Sessions that hold the prompts which were run last."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: dict[tuple[int, ...], Session] = {}  # used last, last

    def begin(self, request: Request) -> None:
        """Let a request start with the tokens that it has in common with a kept prompt, if these are many."""
        ids = request.token_ids
        lengths = {kept: min(common(kept, ids), len(ids) - 1) for kept in self._kept}
        best = max(lengths, key=lengths.__getitem__, default=())
        if best and lengths[best] >= LEAST_PIECE:
            self._kept[best] = kept = self._kept.pop(best)
            fork = kept.fork()
            fork.truncate(lengths[best])
            request.session.inner, request.done = fork, lengths[best]

    def startable(self, prompts: Sequence[Request]) -> list[Request]:
        """The prompts that wait for no earlier one which begins with the same tokens; they start with what is kept."""
        found: list[Request] = []
        for request in prompts:
            if request.is_fresh:
                self.begin(request)
            is_free = True
            for earlier in found:
                shared = min(common(earlier.token_ids, request.token_ids), len(request.token_ids) - 1)
                if (
                    earlier.is_first
                    and request.is_first
                    and shared >= max(request.done + LEAST_PIECE, earlier.done + 1)
                ):
                    earlier.shared, is_free = max(earlier.shared, shared), False
            if is_free:
                found.append(request)
        return found

    def add(self, ids: tuple[int, ...], session: Session) -> None:
        """Keep the first tokens of a session; ``ids`` are all of them."""
        if len(ids) > self._most or any(kept[: len(ids)] == ids for kept in self._kept):
            return
        for kept in [kept for kept in self._kept if ids[: len(kept)] == kept]:
            self._kept.pop(kept).close()
        fork = session.fork()
        fork.truncate(len(ids))
        self._kept[ids] = fork
        while sum(map(len, self._kept)) > self._most:
            self._kept.pop(next(iter(self._kept))).close()

    def clear(self) -> None:
        """Free all caches."""
        for session in self._kept.values():
            session.close()
        self._kept.clear()


@final
class Request:
    """A request to extend a session, and its result.

    Args:
        session: the session of the batch.
        extension: what its own session is to run.
        is_resident: whether its logits stay on the device.
        order: of the worker.
        is_valid: whether it has tokens, and the model has them and room for them; else the model refuses all of it.
    """

    def __init__(
        self, session: BatchSession, extension: Extension, order: int, *, is_resident: bool, is_valid: bool
    ) -> None:
        self.session = session
        self.order = order
        self.token_ids = tuple(extension.token_ids)
        self.arrived = 0  # passes before it came
        self.done = 0  # tokens that are in the session
        self.shared = 0  # others wait until this many are
        self._all_positions = extension.all_positions
        self._tree = extension.tree
        self._is_resident = is_resident
        self._length = session.inner.length
        self.is_valid = is_valid
        is_long = self.rows > (_SHORT_PROMPT if self.is_first else _SHORT)
        self.is_prompt = is_valid and is_long and not self.is_whole
        self._rows: list[Logits] = []
        self._logits: Logits | ResidentLogits | None = None
        self.error: Exception | None = None

    @property
    def left(self) -> int:
        """Tokens that are still to be run, without those of the tree."""
        return len(self.token_ids) - self.done

    @property
    def rows(self) -> int:
        """Tokens that are still to be run."""
        return self.left + (0 if self._tree is None else len(self._tree.token_ids))

    @property
    def is_whole(self) -> bool:
        """Whether it is run in one piece: logits of several positions that stay on a device are not joined."""
        return self.left == 1 or (self._is_resident and self._all_positions)

    def fitting(self, rows: int) -> int:
        """How many of its tokens fit into this many rows; a tree comes with the last of them, which waits for it."""
        if self.rows <= rows:
            return self.left
        return 0 if self.is_whole else min(rows, self.left - (self._tree is not None))

    def rows_of(self, count: int) -> int:
        """Rows of its next tokens, with its tree if they are all that are left."""
        return self.rows if count == self.left else count

    @property
    def is_first(self) -> bool:
        """Whether it begins a session, and needs no logits of all its tokens."""
        return self._length == 0 and not self._all_positions

    @property
    def is_fresh(self) -> bool:
        """Whether it may start with tokens that another session has run."""
        return self.is_first and self.done == 0

    @property
    def is_answered(self) -> bool:
        """Whether there is a result or an error."""
        return self._logits is not None or self.error is not None

    def piece(self, count: int) -> Extension:
        """Its next tokens; the last of them come with the tree."""
        ids = self.token_ids[self.done : self.done + count]
        return Extension(self.session.inner, ids, self._all_positions, self._tree if count == self.left else None)

    def take(self, count: int, logits: Logits | ResidentLogits) -> None:
        """Take the result of the next piece."""
        is_last = count == self.left
        if self._is_resident:
            self._logits = logits if is_last else None
        else:
            rows = logits if isinstance(logits, np.ndarray) else self._on_host(logits, is_needed=is_last)
            if self._all_positions:
                self._rows.append(rows)
            if is_last:
                self._logits = np.concatenate(self._rows) if len(self._rows) > 1 else rows
        self.done += count

    def _on_host(self, logits: ResidentLogits, *, is_needed: bool) -> Logits:
        """What the session returns for logits on a device; nothing is copied of a piece whose logits are not needed."""
        if self._all_positions or self._tree is not None:
            return np.stack([logits.host(row) for row in range(logits.shape[0])])
        return logits.host(0) if is_needed else np.empty(0, dtype=np.float32)

    def run(self, count: int) -> None:
        """Run the next piece alone."""
        try:
            self.take(count, self._alone(self.piece(count)))
        except Exception as error:  # raised in the thread that made the request
            self.error = error
            self.undo()

    def _alone(self, piece: Extension) -> Logits | ResidentLogits:
        if not self._is_resident:
            return extend(piece, name=self.session.model_name)
        session = cast("ResidentSession", piece.session)
        return session.extend_resident(piece.token_ids, all_positions=piece.all_positions, tree=piece.tree)

    def answer(self) -> Logits | ResidentLogits:
        """Return the logits or raise the error."""
        if self.error is not None:
            raise self.error
        if self._logits is None:
            raise RuntimeError("the request was not run")
        return self._logits

    def undo(self) -> None:
        """Drop the tokens that were added to the session, its tree, and the result."""
        self._logits, self.done = None, 0
        self.undo_unfinished()

    def undo_unfinished(self) -> None:
        """Drop the tokens that an unfinished pass may have added."""
        length = self._length + self.done
        if self._logits is None and self.session.inner.length > length:
            self.session.inner.truncate(length)
