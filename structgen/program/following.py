"""Following an answer while it is written, wherever that is: its fields are told as soon as they are settled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from structgen.program.assembly import Assembly
from structgen.program.checks import problem_of
from structgen.program.events import FieldFinal, FieldStarted
from structgen.program.fields import NUMBER_BYTES, FieldEnd, FieldStart, JsonCursor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import TypeAdapter

    from structgen.engine import Matcher
    from structgen.program.answer import Answer
    from structgen.program.assembly import Partial
    from structgen.program.fields import Path

__all__ = ["Follower", "Refused", "follower_of", "value_of_text"]


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
        adapter: of the answer's type.

    Attributes:
        ends: the values that are complete, in the order in which they were told; those that were read ahead lie where
            the automaton's spelling has them.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._assembly = Assembly(adapter)
        self._cursor = JsonCursor()
        self._foretold_count = 0  # beginnings and ends of values that were told before their text was there
        self.ends: list[FieldEnd] = []

    @property
    def value(self) -> Any:
        """The value of the whole, once it is complete."""
        return self._assembly.value

    @property
    def so_far(self) -> tuple[Partial, int]:
        """What is complete so far, and how many values of it are: see ``FieldFinal.partial``."""
        return self._assembly.partial, len(self._assembly.partial)

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
        self._foretold_count = 0
        self.ends = [found for found in self._cursor.feed(data) if isinstance(found, FieldEnd)]
        self._assembly.restart(self.ends)

    def _told_by(self, found: list[FieldStart | FieldEnd]) -> Iterator[FieldStarted | FieldFinal]:
        """Events for what begins and ends, but for those that were foretold."""
        known = min(self._foretold_count, len(found))
        self._foretold_count -= known
        for event in found[known:]:
            yield from self._tell(event)

    def _foretold(self, matcher: Matcher) -> Iterator[FieldStarted | FieldFinal]:
        """Events for what no continuation can change any more."""
        forced = matcher.forced_bytes()
        if not forced and not self._cursor.open_number:
            return  # nothing begins or ends with what was written, for that was told
        ahead = self._cursor.copy()
        found = ahead.feed(forced)
        if not found and ahead.open_number and NUMBER_BYTES.isdisjoint(matcher.live_bytes()):
            found = ahead.finish()
        for event in found[self._foretold_count :]:
            self._foretold_count += 1
            yield from self._tell(event)

    def _tell(self, event: FieldStart | FieldEnd) -> Iterator[FieldStarted | FieldFinal]:
        if isinstance(event, FieldStart):
            yield FieldStarted(event.path)
            return
        from pydantic import ValidationError

        try:
            self._assembly.add(event)
        except ValidationError as error:
            raise Refused(event, problem_of(error)) from error
        self.ends.append(event)
        if event.path:
            yield FieldFinal(event.path, event.value, *self.so_far)


def follower_of(answer: Answer) -> Follower | None:
    """What follows the fields of an answer; None where it is text."""
    return None if answer.form == "text" or answer.adapter is None else Follower(answer.adapter)


def value_of_text(answer: Answer, text: str) -> Any:
    """What the text of an answer stands for.

    Raises:
        Refused: a validator of the type's own refuses it.
    """
    from pydantic import ValidationError

    try:
        return answer.value(text)
    except ValidationError as error:
        data = text.encode()
        raise Refused(FieldEnd((), data, 0, len(data)), problem_of(error)) from error
