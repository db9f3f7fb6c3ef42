"""Scheduling of a batch: how many rows a pass has, and which requests it runs."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Final, final

from structgen.models.batch_requests import LEAST_PIECE
from structgen.models.pass_times import Company, rows_within, time_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.batch_requests import Prefixes, Request
    from structgen.models.pass_times import PassTimes
    from structgen.models.protocol import LanguageModel

__all__ = ["Schedule", "Times", "divided"]

_LONGEST: Final = 2.0
"""How long a pass may take, in passes over one row of each of its sequences."""
_DELAY: Final = 1.4
"""How much longer the pieces of prompts may make a pass, in passes over one row of each sequence of the batch."""
_RECENT: Final = 0.3
"""Weight of the last pass in the means of times."""


@final
class Times:
    """Times of passes, in seconds."""

    def __init__(self) -> None:
        self.ended = 0.0
        self.last = 0.0
        self.rows = 1.0  # of a sequence that is no prompt
        self._sequences = 0.0
        self._row: float | None = None  # a pass over one row
        self._token: float | None = None  # what a token of a prompt adds

    def note(self, seconds: float, *, prompt_tokens: int, without: float = 1.0) -> None:
        """Note a pass that has just ended; ``without`` its prompts it takes this many passes over one row."""
        self.ended, self.last = perf_counter(), seconds
        if not prompt_tokens:
            self._row = _mean(self._row, seconds / without)
        elif self._row is not None:
            self._token = _mean(self._token, max(0.0, seconds - self._row * without) / prompt_tokens)

    def shared(self, rows: Sequence[int], *, waiting: int, workers: int) -> int:
        """Note the rows of each request of a pass but the prompts.

        Return how many other sequences a sequence shares a pass with: as many as are ``waiting``, or a mean of the last
        passes if that is more, since some of the ``workers`` may just have missed the pass.
        """
        if rows:
            self._sequences = min(_mean(self._sequences or None, len(rows)), float(workers))
            self.rows = max(1.0, _mean(self.rows, sum(rows) / len(rows)))
        return max(0, round(max(self._sequences, waiting)) - 1)

    def room(self, passes: float) -> int | None:
        """How many tokens of prompts take as long as this many passes over one row; None: too few passes say it."""
        if self._row is None or not self._token:
            return None
        return int(passes * self._row / self._token)


def _mean(before: float | None, now: float) -> float:
    return now if before is None else before + _RECENT * (now - before)


@final
class Schedule:
    """Divides requests into passes, by the times and the rows of the last passes.

    Args:
        model: its table of times, if it has one, says how many rows a pass may have.
        pass_tokens: rows of a pass.
        has_patience: whether passes are bounded by their times.
    """

    def __init__(self, model: LanguageModel, pass_tokens: int, *, has_patience: bool) -> None:
        self.times = Times()
        self._others = 0
        self._model = model
        self._pass_tokens = pass_tokens
        self._has_patience = has_patience
        self._table: PassTimes | None = None  # read before the first pass: the model may measure it, and is free then
        self._is_table_read = not has_patience
        self._bounds: dict[tuple[int, float], int] = {}

    def pieces(
        self, waiting: Sequence[Request], prefixes: Prefixes, *, workers: int, passes: int
    ) -> dict[Request, int]:
        """The requests of the next pass, each with the number of its tokens to run, not counting those of its tree.

        Args:
            waiting: the requests without an answer.
            prefixes: what prompts may begin with.
            workers: how many there are, waiting or not.
            passes: the number of passes, with the next one.
        """
        if not self._is_table_read:
            self._table, self._is_table_read = getattr(self._model, "pass_times", None), True
        ordered = sorted(waiting, key=lambda request: (request.arrived, request.order))
        prompts = [request for request in ordered if request.is_prompt]
        short = [request for request in ordered if not request.is_prompt]
        room = self._pass_tokens - (min(LEAST_PIECE, self._pass_tokens // 2) if prompts else 0)
        bound = self._bound(len(waiting), _LONGEST) if len(short) > 1 else None
        pieces = _first_come(short, room) if bound is None else divided(short, min(bound, room), passes - 2)
        rows = sum(request.rows_of(count) for request, count in pieces.items())
        room = self._pass_tokens - rows
        if self._has_patience and workers > len(prompts):  # others wait for the end of the pass
            room = min(room, max(LEAST_PIECE, self._prompt_tokens(rows, workers)))
        for request in prefixes.startable(prompts):
            stop = request.shared if request.shared > request.done else len(request.token_ids)
            count = min(stop - request.done, room)
            if count > 0:
                pieces[request] = count
                room -= count
        return pieces

    def _prompt_tokens(self, rows: int, workers: int) -> int:
        """How many tokens of prompts may be added to a pass over this many rows.

        Ordinary passes are those with all workers, which those that wait with their prompts become.
        """
        measured = self.times.room(_DELAY * self._time(workers))
        if measured is not None:  # the table knows nothing of long contexts
            return measured
        bound = self._bound(workers, 1 + _DELAY)
        return 0 if bound is None else bound - rows

    def note(self, seconds: float, rows: Sequence[int], *, prompt_tokens: int, waiting: int, workers: int) -> None:
        """Note a pass that has just ended, with the rows of each of its requests but the prompts.

        ``waiting`` requests waited for it; not all need have been in it.
        """
        self.times.note(seconds, prompt_tokens=prompt_tokens, without=self._time(sum(rows)))
        self._others = self.times.shared(rows, waiting=waiting, workers=max(1, workers))

    def company(self, others: int) -> Company:
        """The other sequences in the next pass of a sequence: at least this many, or more by the last passes."""
        others = max(others, self._others)
        theirs = round(others * self.times.rows)
        bound = self._bound(1 + others, _LONGEST) if others else None
        room = min(self._pass_tokens, bound or self._pass_tokens)
        return Company(others, theirs, max(room - theirs, room // (1 + others), 1))

    def _bound(self, sequences: int, longest: float) -> int | None:
        """Rows of a pass that takes ``longest`` times as long as with one row of each of its sequences; None: any."""
        if self._table is None:
            return None
        if (sequences, longest) not in self._bounds:
            rows = rows_within(self._table, longest * time_of(self._table, sequences))
            self._bounds[sequences, longest] = max(sequences, rows)
        return self._bounds[sequences, longest]

    def _time(self, rows: int) -> float:
        """The time of a pass over this many rows, in passes over one; 1 where rows cost next to nothing."""
        return 1.0 if rows < 1 or self._table is None else time_of(self._table, rows)


def _first_come(requests: Sequence[Request], room: int) -> dict[Request, int]:
    """The requests that fit into a pass as a whole, at least the first one; how many tokens each has to run."""
    pieces: dict[Request, int] = {}
    for request in requests:
        if request.rows <= room or not pieces:
            pieces[request] = request.left
            room -= request.rows
    return pieces


def divided(requests: Sequence[Request], room: int, before: int) -> dict[Request, int]:
    """Divide the rows of a pass among requests; return how many of its tokens each may run now.

    Those that need no more than an equal share have all they need, and leave the rest to the others.  What a request
    needs beyond that waits for the next pass.  What is run whole (``Request.is_whole``), as a tree and the token before
    it, waits for one pass if it is too much.

    Args:
        requests: those that come first, first.
        room: rows of the pass.
        before: the number of passes before the last one.
    """
    pieces = {request: request.left for request in requests if not request.is_valid}  # cost no rows
    for request in requests:
        if request.is_whole and request.arrived <= before and (request.rows <= room or not pieces):
            pieces[request] = 1
            room -= request.rows
    others = [request for request in requests if request not in pieces]
    equal, spare, free = room, 0, room
    for waiting, rows in zip(range(len(others), 0, -1), sorted(request.rows for request in others), strict=True):
        if rows > free // waiting:
            equal, spare = divmod(max(free, 0), waiting)
            break
        free -= rows
    for request in others:
        more = spare > 0 and request.rows > equal
        count = request.fitting(min(room, equal + more))
        if count > 0:
            pieces[request] = count
            room -= request.rows_of(count)
            spare -= more
    return pieces or {requests[0]: requests[0].left}
