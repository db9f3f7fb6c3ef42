"""The value of an answer, made part by part while it is written."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Final, final

from structgen.program.checks import Place, root_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import TypeAdapter

    from structgen.program.fields import FieldEnd, Path

__all__ = ["Assembly", "Partial"]


@final
class Assembly:
    """Validates each value where it ends, once, and makes what contains it of it.

    Args:
        adapter: of the answer's type.

    Attributes:
        partial: what was made so far.
    """

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._root = root_of(adapter)
        self._places: dict[Path, Place | None] = {(): self._root}  # of the containers that are open
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

    def _place(self, path: Path) -> Place | None:
        """The place of a container that is open; None where it belongs to what is validated as a whole."""
        depth = len(path)
        while path[:depth] not in self._places:
            depth -= 1
        place = self._places[path[:depth]]
        for at in range(depth, len(path)):
            place = None if place is None or place.form is None else place.part(path[at])
            self._places[path[: at + 1]] = place
        return None if place is None or place.form is None else place


@final
class Partial:
    """What an answer holds so far.

    Objects, mappings and lists grow with their parts, and unions of objects from their tag on.  All else is there once
    it is complete.

    Args:
        root: the place of the whole.
    """

    def __init__(self, root: Place) -> None:
        self._root = root
        self._added: list[
            tuple[Path, Any, Place | None]
        ] = []  # by the thread that runs the program; all else by the one that asks
        self._count = 0  # how many of these are in the value
        self._value: Any = None
        self._open: dict[Path, tuple[Place, Any]] = {}  # what grows in it
        self._clear()

    def __len__(self) -> int:
        return len(self._added)

    def add(self, path: Path, value: Any, holder: Place | None) -> None:
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

    def _put(self, path: Path, value: Any, holder: Place | None) -> None:
        self._open.pop(path, None)
        if not path:
            self._value = value
            return
        held = None if holder is None else self._holder(path[:-1], holder)
        if held is not None:
            _set(*held, path[-1], value)

    def _holder(self, path: Path, place: Place) -> tuple[Place, Any] | None:
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


def _empty(place: Place) -> Any:
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


def _set(place: Place, holder: Any, key: str | int, value: Any) -> None:
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
    """Hides the default of a field that is not there yet."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"field {self._name!r} is not final yet")


@functools.cache
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
