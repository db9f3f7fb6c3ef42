"""Tracks the fields of a JSON answer while it is written: each is validated where it ends and reported as an event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from structgen.program.json_cursor import NUMBER_BYTES, FieldEnd, FieldStart, JsonCursor, path_text
from structgen.program.stream.event import FieldFinal, FieldStarted, Partial
from structgen.program.stream.validation import SchemaNode, problem_of, schema_root

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pydantic import TypeAdapter

    from structgen.engine import Matcher
    from structgen.program.answer import Answer
    from structgen.program.json_cursor import Path

__all__ = ["Assembly", "FieldTracker", "ValueRefused", "field_tracker_of", "value_of_text"]


@final
class Assembly:
    """Validates each value of a type where it ends, once, and makes what contains it of it.

    Attributes:
        partial: what was made so far.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._root = schema_root(adapter)
        self._places: dict[Path, SchemaNode | None] = {(): self._root}  # of the containers that are open
        self._parts: dict[Path, dict[str | int, Any]] = {}  # their values so far
        self._mixed: set[Path] = set()  # those in which a key occurs again
        self._untagged: set[Path] = set()  # unions whose first field was not the tag
        self._made: list[tuple[FieldEnd, Any]] = []
        self.partial = Partial(self._root)

    @property
    def value(self) -> Any:
        """The whole, once its end was added."""
        return self._made[-1][1]

    def add(self, end: FieldEnd) -> None:
        """Take the next value that ends; what it contains has been added before.

        Raises:
            pydantic.ValidationError: a validator refuses it; then it is as if it had not been added.
        """
        path = end.path
        parts = None if path in self._mixed else self._parts.get(path, {})
        if not path:
            self._note(end, (self._places[()] or self._root).value(end.data, parts))
            return
        self._choose(end)
        holder, key = self._place(path[:-1]), path[-1]
        place = None if holder is None else self._places.get(path) or holder.part(key)
        if holder is None or place is None:
            return
        if place.looks_around and holder.form == "fields" and isinstance(key, str):
            made = holder.field_value(key, end.data, parts, self._parts.get(path[:-1], {}))
        else:
            made = place.value(end.data, parts)
        self._note(end, made)

    def restart(self, ends: Sequence[FieldEnd]) -> None:
        """Go on from the first values, which are these; they are not validated again."""
        held = {(end.path, end.end): made for end, made in self._made}
        self._places, self._parts, self._mixed, self._made = {(): self._root}, {}, set(), []
        self._untagged.clear()
        self.partial = Partial(self._root)
        for end in ends:
            self._choose(end)
            if (end.path, end.end) in held:
                self._note(end, held[end.path, end.end])

    def _note(self, end: FieldEnd, made: Any) -> None:
        path = end.path
        for known in (self._places, self._parts):
            known.pop(path, None)
        self._mixed.discard(path)
        self._untagged.discard(path)
        if path:
            parts = self._parts.setdefault(path[:-1], {})
            if path[-1] in parts:
                self._mixed.add(path[:-1])
            parts[path[-1]] = made
        self._made.append((end, made))
        self.partial.add(path, made, self._place(path[:-1]) if path else None)

    def _choose(self, end: FieldEnd) -> None:
        """See which object of a union it is, if that is its tag."""
        if not end.path:
            return
        path = end.path[:-1]
        self._place(path)
        union = self._places[path]
        if union is None or union.tag is None or path in self._untagged:
            return
        chosen = union.chosen(end.value) if union.tag == end.path[-1] else None
        if chosen is None:
            self._untagged.add(path)
        else:
            self._places[path] = chosen

    def _place(self, path: Path) -> SchemaNode | None:
        """The place of a container that is open; None where it belongs to what is validated as a whole."""
        depth = len(path)
        while path[:depth] not in self._places:
            depth -= 1
        place = self._places[path[:depth]]
        for at in range(depth, len(path)):
            place = None if place is None or place.form is None else place.part(path[at])
            self._places[path[: at + 1]] = place
        return None if place is None or place.form is None else place


class ValueRefused(Exception):
    """A check refuses the value of ``end``."""

    def __init__(self, end: FieldEnd, problem: str) -> None:
        self.end = end
        self.problem = problem


@final
class FieldTracker:
    """Reports the fields of a JSON answer of a type, after the checks of each.

    A value that no continuation can change is reported before it is written: forced text is read ahead.

    Attributes:
        ends: the complete values, in the order in which they were reported; those that were read ahead are where
            the automaton's spelling has them.
        cut: the first byte that was written while the budget excluded tokens; None if there is none so far.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._assembly = Assembly(adapter)
        self._cursor = JsonCursor()
        self._ahead_count = 0  # starts and ends of values that were reported before their text was written
        self.ends: list[FieldEnd] = []
        self.cut: int | None = None

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

    @property
    def name(self) -> str:
        """The path as text."""
        return path_text(self._cursor.path)

    def read(self, data: bytes, matcher: Matcher) -> Iterator[FieldStarted | FieldFinal]:
        """Read what was written, at once; the events come as they are asked for.  ``matcher`` says what may follow.

        Raises:
            ValueRefused: a check refuses a value; ``restart`` or a new tracker goes on.
        """
        return self._events(self._cursor.feed(data), matcher)

    def finish(self) -> Iterator[FieldStarted | FieldFinal]:
        """Note the end of the text.

        Raises:
            ValueRefused: as ``read``.
        """
        yield from self._new_events(self._cursor.finish())

    def restart(self, data: bytes) -> None:
        """Go on from a prefix of what was read, without reporting it again."""
        self._cursor = JsonCursor()
        self._ahead_count = 0
        self.ends = [found for found in self._cursor.feed(data) if isinstance(found, FieldEnd)]
        self._assembly.restart(self.ends)

    def _events(self, found: list[FieldStart | FieldEnd], matcher: Matcher) -> Iterator[FieldStarted | FieldFinal]:
        yield from self._new_events(found)
        yield from self._events_ahead(matcher)

    def _new_events(self, found: list[FieldStart | FieldEnd]) -> Iterator[FieldStarted | FieldFinal]:
        """Events for the fields that begin and end, except those that were reported ahead."""
        known = min(self._ahead_count, len(found))
        self._ahead_count -= known
        for event in found[known:]:
            yield from self._report(event)

    def _events_ahead(self, matcher: Matcher) -> Iterator[FieldStarted | FieldFinal]:
        """Events for what no continuation can change any more."""
        forced = matcher.forced_bytes()
        if not forced and not self._cursor.open_number:
            return  # what was written starts and ends nothing that was not reported
        ahead = self._cursor.copy()
        found = ahead.feed(forced)
        if not found and ahead.open_number and NUMBER_BYTES.isdisjoint(matcher.live_bytes()):
            found = ahead.finish()
        for event in found[self._ahead_count :]:
            self._ahead_count += 1
            yield from self._report(event)

    def _report(self, event: FieldStart | FieldEnd) -> Iterator[FieldStarted | FieldFinal]:
        if isinstance(event, FieldStart):
            yield FieldStarted(event.path)
            return
        from pydantic import ValidationError

        try:
            self._assembly.add(event)
        except ValidationError as error:
            raise ValueRefused(event, problem_of(error)) from error
        self.ends.append(event)
        if event.path:
            is_cut = self.cut is not None and event.end > self.cut
            yield FieldFinal(event.path, event.value, *self.so_far, is_cut)


def field_tracker_of(answer: Answer) -> FieldTracker | None:
    """The reader that follows the fields of an answer; None for text."""
    return None if answer.form == "text" or answer.adapter is None else FieldTracker(answer.adapter)


def value_of_text(answer: Answer, text: str) -> Any:
    """The value that the text of an answer spells.

    Raises:
        ValueRefused: a validator of the type's own refuses it.
    """
    from pydantic import ValidationError

    try:
        return answer.value(text)
    except ValidationError as error:
        data = text.encode()
        raise ValueRefused(FieldEnd((), data, 0, len(data)), problem_of(error)) from error
