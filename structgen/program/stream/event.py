"""The events of a running program, and the partial value of an answer that they carry."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, final

from structgen.program.json_cursor import Located, Path
from structgen.program.stream.validation import SchemaNode

if TYPE_CHECKING:
    from structgen.program.outcome import Run

__all__ = ["Done", "Event", "FieldFinal", "FieldStarted", "ObjectFinal", "Partial", "Retracted", "Text", "Thought"]


@final
class Partial:
    """The partial value of an answer; ``root`` is the position of the whole.

    Objects, mappings and lists grow with their parts, and unions of objects from their tag on.  Other values appear
    once they are complete.
    """

    def __init__(self, root: SchemaNode) -> None:
        self._root = root
        # By the thread that runs the program; all else by the thread that reads the events.
        self._added: list[tuple[Path, Any, SchemaNode | None]] = []
        self._count = 0  # how many of these are in the value
        self._value: Any = None
        self._open: dict[Path, tuple[SchemaNode, Any]] = {}  # what grows in it
        self._clear()

    def __len__(self) -> int:
        return len(self._added)

    def __deepcopy__(self, memo: object) -> Partial:
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """What grows stays with the run: a pickled event has no partial value."""
        return type(None), ()

    def add(self, path: Path, value: Any, holder: SchemaNode | None) -> None:
        """Note a value that is complete, and the place of what holds it."""
        self._added.append((path, value, holder))

    def after(self, count: int) -> Any:
        """Return what the first ``count`` values make; None where nothing is there yet.

        It is one object that grows, for as long as ``count`` does; then another.

        Complexity: linear in the values since the last call, or in ``count`` if that had more.
        """
        if count < self._count:
            self._clear()
        for path, value, holder in self._added[self._count : count]:
            self._put(path, value, holder)
        self._count = count
        return self._value

    def _clear(self) -> None:
        self._count = 0
        self._value = _empty(self._root)
        self._open = {} if self._value is None else {(): (self._root, self._value)}

    def _put(self, path: Path, value: Any, holder: SchemaNode | None) -> None:
        self._open.pop(path, None)
        if not path:
            self._value = value
            return
        held = None if holder is None else self._holder(path[:-1], holder)
        if held is not None:
            _set(*held, path[-1], value)

    def _holder(self, path: Path, place: SchemaNode) -> tuple[SchemaNode, Any] | None:
        """What grows at ``path``, put there if need be; None where nothing does."""
        depth = len(path)
        while depth and path[:depth] not in self._open:
            depth -= 1
        held = self._open.get(path[:depth])
        if held is None and not path:  # a union, now that its tag is known
            self._value = _empty(place)
            held = (place, self._value) if self._value is not None else None
            if held is not None:
                self._open[()] = held
        for at in range(depth, len(path)):
            below = None if held is None else place if at == len(path) - 1 else held[0].part(path[at])
            value = None if below is None else _empty(below)
            if held is None or below is None or value is None:
                return None
            _set(*held, path[at], value)
            held = self._open[path[: at + 1]] = below, value
        return held


def _empty(place: SchemaNode) -> Any:
    """A container without parts; None where it does not grow."""
    if place.form is None or any(layer.get("root_model") for layer in place.layers):
        return None
    kind = place.container["type"]
    if kind in ("typed-dict", "dict"):
        return {}
    if kind == "list":
        return []
    kind = "model" if kind == "model-fields" else "dataclass" if kind == "dataclass-args" else None
    made = next((layer["cls"] for layer in place.layers if layer["type"] == kind), None)
    if made is None:
        return None
    return _empty_model(made) if kind == "model" else object.__new__(_growing(made))


def _empty_model(cls: Any) -> Any:
    """A model without any field, not even those with defaults."""
    made = cls.__new__(cls)
    object.__setattr__(made, "__dict__", {})
    object.__setattr__(made, "__pydantic_fields_set__", set())
    object.__setattr__(made, "__pydantic_extra__", {} if cls.model_config.get("extra") == "allow" else None)
    object.__setattr__(made, "__pydantic_private__", None)
    return made


def _set(place: SchemaNode, holder: Any, key: str | int, value: Any) -> None:
    if isinstance(holder, list) and isinstance(key, int):
        holder[key:] = [value]
        return
    name = place.names[str(key)] if place.form == "fields" else key
    if isinstance(holder, dict):
        holder[name] = value
    elif place.container["type"] == "model-fields":
        holder.__dict__[name] = value
        holder.__pydantic_fields_set__.add(name)
    else:
        object.__setattr__(holder, str(name), value)


class _Missing:
    """Hides the default of a field that has no value yet."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"field {self._name!r} is not final yet")


@functools.lru_cache(maxsize=256)  # a process may make a class for each request
def _growing(cls: Any) -> Any:
    """A dataclass whose instances may lack fields."""

    def shown(self: Any) -> str:
        there = ((field.name, getattr(self, field.name, _MISSING)) for field in dataclasses.fields(cls) if field.repr)
        return f"{cls.__qualname__}({', '.join(f'{name}={value!r}' for name, value in there if value is not _MISSING)})"

    defaults = [field.name for field in dataclasses.fields(cls) if field.name in vars(cls)]
    slots = "__slots__" in vars(cls)
    return type(
        cls.__name__,
        (cls,),
        {"__repr__": shown, "__module__": cls.__module__, "__slots__": ()}
        | ({} if slots else {name: _Missing() for name in defaults}),
    )


_MISSING: Final = object()


@final
@dataclass(frozen=True, slots=True)
class Text:
    """More of the output.

    Attributes:
        text: whole characters; all of them joined, what was retracted left out, are the output.
        written: whether the model wrote it; a program may add text of its own.
        name: of the field of a JSON answer in which the text ends, ``""`` for the whole; None for any other text.
    """

    kind: ClassVar[str] = "text"
    text: str
    written: bool = True
    name: str | None = field(default=None, compare=False)


@final
@dataclass(frozen=True, slots=True)
class Thought:
    """More of what the model thinks before an answer; no part of the output."""

    kind: ClassVar[str] = "thought"
    text: str


@final
@dataclass(frozen=True, slots=True)
class FieldStarted(Located):
    """The value at ``path`` begins."""

    kind: ClassVar[str] = "field_started"
    path: Path


@final
@dataclass(frozen=True, slots=True)
class FieldFinal(Located):
    """Whatever is written from here on, the value at ``path`` is ``value``.

    It comes with the token that settles it, which may come before the value's last character, and after the checks of
    the field.

    Attributes:
        path: keys and indices from the root.
        value: as ``json.loads`` reads it.
        is_cut: see ``FieldScore.is_cut``; of a server's answer False.
    """

    kind: ClassVar[str] = "field_final"
    path: Path
    value: Any
    _made: Partial | None = field(default=None, repr=False, compare=False)
    _count: int = field(default=0, repr=False, compare=False)
    is_cut: bool = False

    @property
    def partial(self) -> Any:
        """The answer so far, of its own type: only final, validated fields.

        Objects, mappings and lists grow from one event to the next, as do unions of objects once their tag is final; a
        field that is not final yet is missing, and all else (tuples, sets, other unions) appears when it is complete.
        It is one object that grows: copy what is to stay.  None where nothing is there yet, and of a pickled event.

        Complexity: linear in the fields since the event at which it was last read.
        """
        return None if self._made is None else self._made.after(self._count)


@final
@dataclass(frozen=True, slots=True)
class Retracted:
    """A check refused a value; it is sampled again.

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


Event: TypeAlias = Text | Thought | FieldStarted | FieldFinal | Retracted | ObjectFinal | Done
