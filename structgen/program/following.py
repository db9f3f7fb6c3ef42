"""Following an answer while it is written, wherever that is: its fields are told as soon as they are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from structgen.program.checks import FieldChecks
from structgen.program.events import FieldFinal, FieldStarted
from structgen.program.fields import FieldEnd, FieldStart, JsonCursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.engine import Matcher
    from structgen.program.answer import Answer
    from structgen.program.fields import Path

__all__ = ["Follower", "Refused"]

_NUMBER: Final = frozenset(b"0123456789.eE+-")


class Refused(Exception):
    """A check refuses the value of ``end``."""

    def __init__(self, end: FieldEnd, problem: str) -> None:
        self.end = end
        self.problem = problem


@final
class Follower:
    """Tells the fields of a JSON answer, and runs the checks of each before it is told.

    What no continuation can change is told before it is written: what the automaton forces is read ahead.

    Args:
        answer: what was asked for.

    Attributes:
        ends: the values that are complete, in the order in which they were told; those that were read ahead lie where
            the automaton's spelling has them.
    """

    def __init__(self, answer: Answer) -> None:
        self._checks = None if answer.adapter is None else FieldChecks(answer.adapter)
        self._cursor = JsonCursor()
        self._foretold_count = 0  # beginnings and ends of values that were told before their text was there
        self._siblings: dict[Path, dict[str, Any]] = {}  # complete fields by the path of their object
        self.ends: list[FieldEnd] = []

    @property
    def path(self) -> Path:
        """The value that is being written, or was written last."""
        return self._cursor.path

    def read(self, data: bytes, matcher: Matcher) -> Iterator[FieldStarted | FieldFinal]:
        """Read on.

        Args:
            data: what was written.
            matcher: what may follow it.

        Raises:
            Refused: a check refuses a value; ``restart`` or a new follower goes on.
        """
        yield from self._told_by(self._cursor.feed(data))
        yield from self._foretold(matcher)

    def finish(self) -> Iterator[FieldStarted | FieldFinal]:
        """The text is over.

        Raises:
            Refused: as ``read``.
        """
        yield from self._told_by(self._cursor.finish())

    def restart(self, data: bytes) -> None:
        """Go on from a beginning of what was read, without telling it again."""
        self._cursor = JsonCursor()
        self._siblings.clear()
        self._foretold_count = 0
        self.ends = [found for found in self._cursor.feed(data) if isinstance(found, FieldEnd)]
        for end in self.ends:
            self._note(end)

    def _told_by(self, found: list[FieldStart | FieldEnd]) -> Iterator[FieldStarted | FieldFinal]:
        """Events for what begins and ends, but for those that were foretold."""
        known = min(self._foretold_count, len(found))
        self._foretold_count -= known
        for event in found[known:]:
            yield from self._tell(event)

    def _foretold(self, matcher: Matcher) -> Iterator[FieldStarted | FieldFinal]:
        """Events for what no continuation can change any more."""
        ahead = self._cursor.copy()
        found = ahead.feed(matcher.forced_bytes())
        if not found and ahead.open_number and _NUMBER.isdisjoint(matcher.live_bytes()):
            found = ahead.finish()
        for event in found[self._foretold_count :]:
            self._foretold_count += 1
            yield from self._tell(event)

    def _tell(self, event: FieldStart | FieldEnd) -> Iterator[FieldStarted | FieldFinal]:
        if isinstance(event, FieldStart):
            yield FieldStarted(event.path)
            return
        value = event.value
        siblings = self._note(event)
        problem = None if self._checks is None else self._checks.problem(event.path, siblings, value)
        if problem is not None:
            raise Refused(event, problem)
        self.ends.append(event)
        if event.path:
            yield FieldFinal(event.path, value)

    def _note(self, end: FieldEnd) -> dict[str, Any] | None:
        """The complete fields of the object that a value belongs to, itself included; None if it is in no object."""
        if not end.path or not isinstance(end.path[-1], str):
            return None
        siblings = self._siblings.setdefault(end.path[:-1], {})
        siblings[end.path[-1]] = end.value
        return siblings
