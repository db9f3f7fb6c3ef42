"""Reads a JSON document byte by byte while it is generated: where values begin and end, and on which paths.

States are immutable, so sequences with a common prefix share them.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from structgen.frontends.json_schema.source.location import pointer_steps
from structgen.methods.monitors.bytewise_potential import BytewisePotential
from structgen.methods.monitors.json_rules.value import string_of

__all__ = ["JsonPotential", "JsonState", "Pattern", "pattern"]

Pattern: TypeAlias = tuple[str, ...]
Memory = TypeVar("Memory")

_SPACE: Final = frozenset(b" \t\n\r")
_DIGITS: Final = frozenset(b"0123456789")
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
_ESCAPES: Final = frozenset(b'"\\/bfnrt')
_LITERALS: Final = {ord("t"): b"true", ord("f"): b"false", ord("n"): b"null"}

# What may come next.
_VALUE, _FIRST_VALUE, _FIRST_KEY, _KEY, _COLON, _AFTER, _STRING, _NAME, _NUMBER, _LITERAL = range(10)
# The part of a number: after "-", after a leading zero, in the integer, after ".", in the fraction, after "e", after
# the exponent's sign, in the exponent.
_MINUS, _ZERO, _INTEGER, _POINT, _FRACTION, _E, _SIGN, _EXPONENT = range(8)
_WHOLE: Final = frozenset((_ZERO, _INTEGER, _FRACTION, _EXPONENT))


class _Frame(NamedTuple):
    """An open array or object.

    Attributes:
        parent: the container around it.
        is_object: whether it has names.
        step: the name or index of its current value, as text.
        position: the index as a number, in arrays.
        live: the numbers of the patterns that lead further into it.
        watched: the numbers of the patterns that lead to it.
        start: where it begins.
        depth: its depth, 1 for the outermost container.
    """

    parent: _Frame | None
    is_object: bool
    step: str
    position: int
    live: tuple[int, ...]
    watched: tuple[int, ...]
    start: int
    depth: int


class JsonState(NamedTuple, Generic[Memory]):
    """The state of a document after some bytes.

    Attributes:
        memory: what the rule stores about earlier values.
        mode: what may come next.
        part: the position within a string's escape, a number or a literal.
        start: where the string, number or literal begins.
        frame: the innermost open container.
        watched: the numbers of the patterns that lead to the current value.
    """

    memory: Memory
    mode: int = _VALUE
    part: int = 0
    start: int = 0
    frame: _Frame | None = None
    watched: tuple[int, ...] = ()

    @property
    def in_string(self) -> bool:
        """Whether the current value is a string."""
        return self.mode == _STRING

    @property
    def in_number(self) -> bool:
        """Whether the current value is a number."""
        return self.mode == _NUMBER

    def scope(self, steps: int) -> tuple[str, ...]:
        """The first ``steps`` steps of the path to the current value."""
        return _path_prefix(self.frame, steps)


class JsonPotential(BytewisePotential[JsonState[Memory]], Generic[Memory]):
    """A rule about values on some paths of a JSON document; anything but a JSON document is forbidden.

    A subclass receives the watched values: scalars when they end (``true``, ``false`` and ``null`` at their first
    letter), containers when they begin and end, and the prefix of a string or number after each token.

    Args:
        patterns: the watched paths.
    """

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        super().__init__()
        self._patterns = tuple(patterns)

    @abstractmethod
    def _memory(self) -> Memory:
        """The memory before the first value."""

    @abstractmethod
    def _scalar(self, memory: Memory, which: int, state: JsonState[Memory], raw: bytes) -> Memory | None:
        """Return the memory after a scalar on pattern ``which``; None if the scalar is forbidden."""

    @abstractmethod
    def _opens(self, memory: Memory, which: int, state: JsonState[Memory]) -> Memory | None:
        """Return the memory at the start of a container; None if the container is forbidden."""

    def _closes(self, memory: Memory, which: int, state: JsonState[Memory], raw: bytes) -> Memory | None:
        """Return the memory at the end of a container; None if the container is forbidden."""
        return memory

    @abstractmethod
    def _may_become(self, state: JsonState[Memory], which: int, raw: bytes) -> bool:
        """Whether an allowed string or number may have this prefix."""

    def _begin(self) -> JsonState[Memory]:
        """See ``BytewisePotential``."""
        return JsonState(self._memory())

    def _read(self, state: JsonState[Memory], data: bytes, start: int) -> JsonState[Memory] | None:
        """See ``BytewisePotential``."""
        current: JsonState[Memory] | None = state
        at = start
        while at < len(data) and current is not None:
            if current.mode in (_STRING, _NAME) and current.part == 0:
                stop = _plain_end(data, at)
                if stop > at:
                    at = stop
                    continue
            current = self._after(current, data, at)
            at += 1
        if current is None or not current.watched or current.mode not in (_STRING, _NUMBER):
            return current
        raw = data[current.start :]
        return current if all(self._may_become(current, which, raw) for which in current.watched) else None

    def _may_end(self, state: JsonState[Memory], data: bytes) -> bool:
        """See ``BytewisePotential``: the document must be complete."""
        if state.frame is not None:
            return False
        if state.mode == _NUMBER and state.part in _WHOLE:
            return self._ended(state, data[state.start :]) is not None
        return state.mode == _AFTER

    def _after(self, state: JsonState[Memory], data: bytes, at: int) -> JsonState[Memory] | None:
        """The state after the byte at ``at``."""
        byte, mode = data[at], state.mode
        if mode in (_STRING, _NAME):
            return self._in_string(state, data, at)
        if mode == _NUMBER:
            part = _number_part(state.part, byte)
            if part is not None:
                return state._replace(part=part)
            if state.part not in _WHOLE:
                return None
            ended = self._ended(state, data[state.start : at])
            return None if ended is None else self._after(ended, data, at)
        if mode == _LITERAL:
            word = _LITERALS[data[state.start]]
            if byte != word[state.part]:
                return None
            more = state.part + 1
            return state._replace(part=more) if more < len(word) else state._replace(mode=_AFTER, watched=())
        if byte in _SPACE:
            return state
        if mode in (_VALUE, _FIRST_VALUE) and not (mode == _FIRST_VALUE and byte == ord("]")):
            return self._value_begins(state, byte, at)
        return self._structure(state, data, at)

    def _structure(self, state: JsonState[Memory], data: bytes, at: int) -> JsonState[Memory] | None:
        """The state after a bracket, comma, colon or the quote of a name."""
        byte, mode, frame = data[at], state.mode, state.frame
        if frame is None:
            return None
        if byte == ord('"') and mode in (_KEY, _FIRST_KEY):
            return state._replace(mode=_NAME, part=0, start=at)
        if byte == ord(":") and mode == _COLON:
            return state._replace(mode=_VALUE)
        if byte == ord(",") and mode == _AFTER:
            if frame.is_object:
                return state._replace(mode=_KEY)
            position = frame.position + 1
            return state._replace(mode=_VALUE, frame=frame._replace(position=position, step=str(position)))
        closes = byte == (ord("}") if frame.is_object else ord("]"))
        if not closes or mode not in (_AFTER, _FIRST_KEY if frame.is_object else _FIRST_VALUE):
            return None
        memory: Memory | None = state.memory
        outer = state._replace(mode=_AFTER, frame=frame.parent, watched=())
        for which in frame.watched:
            if memory is None:
                return None
            memory = self._closes(memory, which, outer, data[frame.start : at + 1])
        return None if memory is None else outer._replace(memory=memory)

    def _value_begins(self, state: JsonState[Memory], byte: int, at: int) -> JsonState[Memory] | None:
        frame = state.frame
        live, watched = self._led_to(frame)
        begun = state._replace(start=at, part=0, watched=watched)
        if byte == ord('"'):
            return begun._replace(mode=_STRING)
        if byte == ord("-") or byte in _DIGITS:
            return begun._replace(mode=_NUMBER, part=_MINUS if byte == ord("-") else _INTEGER if byte > 48 else _ZERO)
        if byte in _LITERALS:
            ended = self._ended(begun, _LITERALS[byte])
            return None if ended is None else ended._replace(mode=_LITERAL, part=1, start=at)
        if byte not in b"[{":
            return None
        memory: Memory | None = state.memory
        for which in watched:
            if memory is None:
                return None
            memory = self._opens(memory, which, begun)
        if memory is None:
            return None
        is_object, depth = byte == ord("{"), 1 if frame is None else frame.depth + 1
        inner = _Frame(frame, is_object, "" if is_object else "0", 0, live, watched, at, depth)
        return JsonState(memory, _FIRST_KEY if is_object else _FIRST_VALUE, 0, at, inner)

    def _in_string(self, state: JsonState[Memory], data: bytes, at: int) -> JsonState[Memory] | None:
        """The state after a byte of a string; ``part`` is 0, or 5 after a backslash, or the missing hex digits."""
        byte, part = data[at], state.part
        if part == 5:
            return state._replace(part=4) if byte == ord("u") else state._replace(part=0) if byte in _ESCAPES else None
        if part:
            return state._replace(part=part - 1) if byte in _HEX else None
        if byte == ord("\\"):
            return state._replace(part=5)
        if byte < 0x20:
            return None
        if byte != ord('"'):
            return state
        raw = data[state.start : at + 1]
        if state.mode == _STRING:
            return self._ended(state, raw)
        frame = state.frame
        if frame is None:
            return None
        name = string_of(raw) if frame.live else ""  # names off the watched paths are not read
        return state._replace(mode=_COLON, frame=frame._replace(step=name))

    def _ended(self, state: JsonState[Memory], raw: bytes) -> JsonState[Memory] | None:
        """The state after a scalar."""
        memory: Memory | None = state.memory
        for which in state.watched:
            if memory is None:
                return None
            memory = self._scalar(memory, which, state, raw)
        return None if memory is None else state._replace(memory=memory, mode=_AFTER, part=0, watched=())

    def _led_to(self, frame: _Frame | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The patterns that lead further into the value that begins, and the patterns that lead to it."""
        if frame is None:
            numbers, depth = tuple(range(len(self._patterns))), 0
        else:
            depth = frame.depth
            numbers = tuple(n for n in frame.live if self._patterns[n][depth - 1] in ("*", frame.step))
        further = tuple(number for number in numbers if len(self._patterns[number]) > depth)
        return further, tuple(number for number in numbers if len(self._patterns[number]) == depth)


def pattern(pointer: str) -> Pattern:
    """Return the steps of a JSON Pointer (RFC 6901), in which a step ``*`` matches every name and index.

    Raises:
        ValueError: it is not a JSON Pointer.
    """
    if pointer and not pointer.startswith("/"):
        raise ValueError(f"path {pointer!r}: a JSON Pointer begins with '/', such as '/items/*/id'; add the '/'")
    for part in pointer.split("~")[1:]:
        if part[:1] not in ("0", "1"):
            raise ValueError(f"path {pointer!r}: '~' must be followed by 0 or 1; write '~0' for a tilde, '~1' for '/'")
    return tuple(pointer_steps(pointer))


def _path_prefix(frame: _Frame | None, steps: int) -> tuple[str, ...]:
    path = []
    while frame is not None:
        if frame.depth <= steps:
            path.append(frame.step)
        frame = frame.parent
    return tuple(reversed(path))


def _plain_end(data: bytes, at: int) -> int:
    """The end of a string's plain bytes, without quotes, escapes and control characters, from ``at`` on."""
    while at < len(data) and data[at] >= 0x20 and data[at] not in (0x22, 0x5C):
        at += 1
    return at


def _number_part(part: int, byte: int) -> int | None:
    """The part of a number after a byte; None if the byte ends the number."""
    if byte in _DIGITS:
        if part == _MINUS:
            return _ZERO if byte == 48 else _INTEGER
        if part == _ZERO:
            return None
        return {_POINT: _FRACTION, _E: _EXPONENT, _SIGN: _EXPONENT}.get(part, part)
    if byte == ord(".") and part in (_ZERO, _INTEGER):
        return _POINT
    if byte in b"eE" and part in (_ZERO, _INTEGER, _FRACTION):
        return _E
    return _SIGN if byte in b"+-" and part == _E else None


ScopePath: TypeAlias = tuple[str, ...]
OrderedKey: TypeAlias = tuple[Any, ...]
"""The key of a number or a moment: tuples in the order of these values."""


def shared_steps(within: str, paths: Sequence[Pattern]) -> int:
    """Return the number of steps of ``within``.

    Raises:
        ValueError: a path does not begin with it.
    """
    shared = pattern(within)
    for path in paths:
        if path[: len(shared)] != shared:
            raise ValueError(f"within={within!r} must be a prefix of every path; found '/{'/'.join(path)}'")
    return len(shared)
