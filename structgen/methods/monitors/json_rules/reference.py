"""Rules about earlier values of a JSON document: references that must exist, and values that must all differ.

Each potential blocks a token as soon as what is written cannot become a document in which the rule holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.methods.monitors.bytewise_potential import Options, successor, token_index
from structgen.methods.monitors.json_rules.reader import (
    JsonPotential,
    JsonState,
    OrderedKey,
    ScopePath,
    pattern,
    shared_steps,
)
from structgen.methods.monitors.json_rules.value import (
    canonical,
    digest_of,
    may_be,
    number_of,
    partial_string,
    string_of,
    units,
)

if TYPE_CHECKING:
    from structgen.decode.potentials.potential import Hypothesis

__all__ = ["References", "Unique", "refers", "unique"]

_KEPT_ROWS: Final = 512
_QUOTE: Final = np.arange(256) == ord('"')


def refers(references: str, targets: str, *, within: str = "") -> References:
    """Require that every value at ``references`` equals one at ``targets`` that stands earlier.

    Strings, numbers and truth values are compared as JSON does; null refers to nothing and is let through.

    Args:
        references: a JSON Pointer, in which a step ``*`` stands for every name and index.
        targets: likewise.
        within: the part of both paths whose ``*`` stand for the same in both: ``/graphs/*`` keeps references within
            one graph.  By default none: any earlier target will do.

    Raises:
        ValueError: a path is no JSON Pointer, or ``within`` is no prefix of both.

    Example:
        >>> rule = refers("/edges/*/from", "/nodes/*/id")
    """
    return References(references, targets, within)


def unique(path: str, *, within: str = "") -> Unique:
    """Require that the values at ``path`` are all different: numbers by value, objects in any order of their names.

    Args:
        path: a JSON Pointer, in which a step ``*`` stands for every name and index.
        within: the part of the path whose ``*`` keep values apart: ``/orders/*`` lets two orders have the same.

    Raises:
        ValueError: a path is no JSON Pointer, or ``within`` is no prefix of it.

    Example:
        >>> rule = unique("/items/*/id")
    """
    return Unique(path, within)


class _ComparedValue(NamedTuple):
    """A value: the UTF-16 of a string, or something that stands for another value."""

    string: bytes | None
    other: bytes | OrderedKey = b""


class _EarlierValues(NamedTuple):
    """Values that stood earlier in one scope.

    Attributes:
        strings: in the order of their UTF-16, by which they are sought.
        others: of numbers their keys, of truth values the bytes, of containers digests.
    """

    strings: tuple[bytes, ...] = ()
    others: frozenset[bytes | OrderedKey] = frozenset()

    def has(self, value: _ComparedValue) -> bool:
        """Whether it is among them."""
        if value.string is None:
            return value.other in self.others
        at = bisect_left(self.strings, value.string)
        return at < len(self.strings) and self.strings[at] == value.string

    def with_value(self, value: _ComparedValue) -> _EarlierValues:
        """These and one more."""
        if self.has(value):
            return self
        if value.string is None:
            return self._replace(others=self.others | {value.other})
        at = bisect_left(self.strings, value.string)
        return self._replace(strings=(*self.strings[:at], value.string, *self.strings[at:]))

    def prefix(self, text: bytes) -> tuple[bytes, ...]:
        """The strings that begin so."""
        after = successor(text)
        low = bisect_left(self.strings, text)
        return self.strings[low : len(self.strings) if after is None else bisect_left(self.strings, after)]


_Values: TypeAlias = Mapping[ScopePath, _EarlierValues]
_NO_VALUES: Final = _EarlierValues()


@final
class References(JsonPotential[_Values]):
    """The potential that :func:`refers` makes."""

    def __init__(self, references: str, targets: str, within: str) -> None:
        if references == targets:
            raise ValueError(f"refers: both paths are {targets!r}; name the references and what they refer to")
        paths = pattern(references), pattern(targets)
        super().__init__(paths)
        self._shared = shared_steps(within, paths)
        self._name = f"{references} in {targets}"
        self._rows = _Rows()

    @property
    def name(self) -> str:
        """See ``Potential``: the rule."""
        return self._name

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """See ``Potential``: within the string of a reference, what goes on with a target, or with an escape."""
        state = self._at(hypothesis)
        if state is None or not state.in_string or 0 not in state.watched:
            return None
        rests = _rests(state, state.memory.get(state.scope(self._shared), _NO_VALUES), hypothesis.data)
        return None if rests is None else self._rows.only(hypothesis, rests)

    def _memory(self) -> _Values:
        return {}

    def _scalar(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonReading``."""
        if raw == b"null":
            return memory
        scope, value = state.scope(self._shared), _compared_value(raw)
        if value is None:
            return None
        known = memory.get(scope, _NO_VALUES)
        if which == 0:
            return memory if known.has(value) else None
        return {**memory, scope: known.with_value(value)}

    def _opens(self, memory: _Values, which: int, state: JsonState[_Values]) -> _Values | None:
        """See ``JsonReading``: an array or object refers to nothing, and nothing refers to it."""
        return None if which == 0 else memory

    def _may_become(self, state: JsonState[_Values], which: int, raw: bytes) -> bool:
        """See ``JsonReading``."""
        if which != 0:
            return True
        known = state.memory.get(state.scope(self._shared), _NO_VALUES)
        if state.in_number:
            return any(isinstance(each, tuple) and may_be(raw, each) for each in known.others)
        begun = partial_string(raw)
        written = units(begun.text)
        strings = known.prefix(written)
        if begun.escape:
            digits = begun.escape[2:].lower()
            return any(target[len(written) :][:2].hex().startswith(digits) for target in strings if target != written)
        if begun.half:
            return any(_text(target[len(written) :])[:1].encode("utf-8", "surrogatepass").startswith(begun.half)
                       for target in strings)  # fmt: skip
        return bool(strings)


@final
class Unique(JsonPotential[_Values]):
    """The potential that :func:`unique` makes."""

    def __init__(self, path: str, within: str) -> None:
        paths = (pattern(path),)
        super().__init__(paths)
        self._shared = shared_steps(within, paths)
        self._name = f"{path} unique"
        self._rows = _Rows()

    @property
    def name(self) -> str:
        """See ``Potential``: the rule."""
        return self._name

    def allowed(self, hypothesis: Hypothesis, /) -> NDArray[np.int32] | None:
        """See ``Potential``: within a string, all but what would make it one that there is already."""
        state = self._at(hypothesis)
        if state is None or not state.in_string or not state.watched:
            return None
        rests = _rests(state, state.memory.get(state.scope(self._shared), _NO_VALUES), hypothesis.data)
        return self._rows.without(hypothesis, rests) if rests else None

    def _memory(self) -> _Values:
        return {}

    def _scalar(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonReading``."""
        value = _compared_value(raw)
        return None if value is None else self._with(memory, state, value)

    def _opens(self, memory: _Values, which: int, state: JsonState[_Values]) -> _Values | None:
        """See ``JsonReading``."""
        return memory

    def _closes(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonReading``."""
        return self._with(memory, state, _ComparedValue(None, digest_of(raw)))

    def _may_become(self, state: JsonState[_Values], which: int, raw: bytes) -> bool:
        """See ``JsonReading``: a string or number that is longer is another one."""
        return True

    def _with(self, memory: _Values, state: JsonState[_Values], value: _ComparedValue) -> _Values | None:
        scope = state.scope(self._shared)
        known = memory.get(scope, _NO_VALUES)
        return None if known.has(value) else {**memory, scope: known.with_value(value)}


class _Rows:
    """Rows of masks for what is left of strings, the last of them kept."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[bytes, tuple[bytes, ...]], NDArray[np.int32]] = OrderedDict()

    def only(self, hypothesis: Hypothesis, rests: Iterable[bytes]) -> NDArray[np.int32]:
        """Tokens that go on with one of the rests, or close the string after it."""
        members, index = Options(rests).members, token_index(hypothesis.vocabulary)
        return self._kept(
            (hypothesis.vocabulary.digest, members),
            lambda: index.choices(members, lambda rest: _QUOTE, ends=False, escape=b"\\"),
        )

    def without(self, hypothesis: Hypothesis, rests: Iterable[bytes]) -> NDArray[np.int32]:
        """Tokens that do not close the string after one of the rests."""
        closed, index = Options(rest + b'"' for rest in rests).members, token_index(hypothesis.vocabulary)
        return self._kept((hypothesis.vocabulary.digest, closed), lambda: index.without(closed))

    def _kept(self, key: tuple[bytes, tuple[bytes, ...]], make: Callable[[], NDArray[np.int32]]) -> NDArray[np.int32]:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = make()
            if len(self._rows) > _KEPT_ROWS:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return row


def _compared_value(raw: bytes) -> _ComparedValue | None:
    """What a scalar is to be compared by; None for a number whose exponent is too long to read."""
    if raw.startswith(b'"'):
        return _ComparedValue(units(string_of(raw)))
    if raw[:1] in (b"t", b"f", b"n"):
        return _ComparedValue(None, raw)
    value = number_of(raw)
    return None if value is None else _ComparedValue(None, value)


def _rests(state: JsonState[_Values], known: _EarlierValues, data: bytes) -> list[bytes] | None:
    """What is left of each known string that begins as the one that is written; None within a character."""
    begun = partial_string(data[state.start :])
    if begun.escape or begun.half:
        return None
    written = units(begun.text)
    return [canonical(_text(target[len(written) :])) for target in known.prefix(written)]


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-16-be", "surrogatepass")
