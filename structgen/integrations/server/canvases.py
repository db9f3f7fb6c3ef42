"""One answer of a diffusion model: a canvas that is filled in any order, and given out in the order of the text."""

from __future__ import annotations

import codecs
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, final

from structgen.decode import Chunk, Result
from structgen.decode.diffusion.fill import fill_steps
from structgen.decode.diffusion.mean_field import FREE
from structgen.program.json_cursor import FieldEnd, JsonCursor

if TYPE_CHECKING:
    from structgen.decode.diffusion.canvas_run import Snapshot
    from structgen.decode.diffusion.commit_policy import Unmasking
    from structgen.engine import Vocabulary
    from structgen.integrations.server.runner import Task
    from structgen.integrations.server.writing import Item
    from structgen.models.protocol.diffusion import DiffusionModel

__all__ = ["filled"]


def filled(model: DiffusionModel, task: Task, unmasking: Unmasking) -> Generator[Item, None, None]:
    """Fill the canvas of a task; a chunk is what the filled slots at its start have gained.

    Raises:
        StructgenError: as ``fill_canvas``.
    """
    steps = fill_steps(
        model,
        task.tokens,
        task.constraint,
        canvas=unmasking.canvas,
        policy=unmasking.policy,
        sampler=task.sampler,  # type: ignore[arg-type]  # of canvases, with unmasking
        temperature=unmasking.temperature,
        seed=task.seed,
    )
    start = _Start(task)
    try:
        while True:
            try:
                snapshot = next(steps)
            except StopIteration as end:
                result: Result = end.value
                break
            yield from start.add(snapshot)
    finally:
        steps.close()
    yield from start.end(result)
    yield result


@final
class _Start:
    """The tokens before the first free slot: no later step changes them."""

    def __init__(self, task: Task) -> None:
        self._vocabulary: Vocabulary = task.constraint.vocabulary
        self._has_events = task.has_events
        self._forced: set[int] = set()
        self._sent = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._cursor = JsonCursor()

    def add(self, snapshot: Snapshot) -> Iterator[Item]:
        """What a commit has made final."""
        self._forced.update(map(int, snapshot.forced))
        end, canvas = self._sent, snapshot.canvas
        while end < len(canvas) and canvas[end] != FREE and int(canvas[end]) not in self._vocabulary.eos:
            end += 1
        yield from self._given(tuple(map(int, canvas[self._sent : end])))

    def _given(self, tokens: tuple[int, ...], *, is_last: bool = False) -> Iterator[Item]:
        data = self._vocabulary.decode(tokens)
        text, start = self._decoder.decode(data, is_last), self._sent
        self._sent += len(tokens)
        if tokens or text:
            yield Chunk(text, tokens, self._forced.issuperset(range(start, self._sent)), start)
        if self._has_events:
            found = [*self._cursor.feed(data), *(self._cursor.finish() if is_last else ())]
            yield from (each for each in found if isinstance(each, FieldEnd))

    def end(self, result: Result) -> Iterator[Item]:
        """The rest."""
        yield from self._given(result.tokens[self._sent :], is_last=True)
