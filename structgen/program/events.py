"""What a program tells while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

from structgen.program.fields import Path, path_text

if TYPE_CHECKING:
    from structgen.program.assembly import Partial
    from structgen.program.run import Run

__all__ = ["Done", "Event", "FieldFinal", "FieldStarted", "ObjectFinal", "Retracted", "Text"]


@final
@dataclass(frozen=True, slots=True)
class Text:
    """More of the output.

    Attributes:
        text: whole characters; all of them joined, what was retracted left out, are the output.
        written: whether the model wrote it; a program may add text of its own.
    """

    kind: ClassVar[str] = "text"
    text: str
    written: bool = True


@final
@dataclass(frozen=True, slots=True)
class FieldStarted:
    """The value at ``path`` begins."""

    kind: ClassVar[str] = "field_started"
    path: Path

    @property
    def name(self) -> str:
        """The path as text."""
        return path_text(self.path)


@final
@dataclass(frozen=True, slots=True)
class FieldFinal:
    """Whatever is written from here on, the value at ``path`` is ``value``.

    It comes with the token that settles it, which may lie before the value's last character, and after the checks of
    the field.

    Attributes:
        path: keys and indices from the root.
        value: as ``json.loads`` reads it.
    """

    kind: ClassVar[str] = "field_final"
    path: Path
    value: Any
    _made: Partial | None = field(default=None, repr=False, compare=False)
    _count: int = field(default=0, repr=False, compare=False)

    @property
    def partial(self) -> Any:
        """The answer so far, of its own type: what is final, validated, and nothing else.

        Objects, mappings and lists grow from one event to the next, as do unions of objects once their tag is final; a
        field that is not final yet is missing, and all else (tuples, sets, other unions) appears when it is complete.
        It is one object that grows: copy what is to stay.  None where nothing is there yet.

        Complexity: linear in the fields since the event for which it was asked last.
        """
        return None if self._made is None else self._made.after(self._count)

    @property
    def name(self) -> str:
        """The path as text."""
        return path_text(self.path)


@final
@dataclass(frozen=True, slots=True)
class Retracted:
    """A check refused a value; it is drawn again.

    Attributes:
        length: how many characters of the present answer stay.
        path: the field that was refused; what became final within or after it is not.
        problem: what the check said.
    """

    kind: ClassVar[str] = "retracted"
    length: int
    path: Path
    problem: str
    _made: Partial | None = field(default=None, repr=False, compare=False)
    _count: int = field(default=0, repr=False, compare=False)

    @property
    def partial(self) -> Any:
        """The answer so far, see ``FieldFinal.partial``: an object of its own, without what was taken back."""
        return None if self._made is None else self._made.after(self._count)


@final
@dataclass(frozen=True, slots=True)
class ObjectFinal:
    """An answer is complete, and this is its value."""

    kind: ClassVar[str] = "object_final"
    value: Any


@final
@dataclass(frozen=True, slots=True)
class Done:
    """The program is through.  Nothing follows."""

    kind: ClassVar[str] = "done"
    run: Run[Any] = field(repr=False)


Event: TypeAlias = Text | FieldStarted | FieldFinal | Retracted | ObjectFinal | Done
