"""Rules about earlier values of a JSON document: references that must exist, and values that must all differ.

Each potential blocks a token as soon as no document in which the rule holds has this prefix.
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

_MAX_ROWS: Final = 512
_QUOTE: Final = np.arange(256) == ord('"')


def refers(references: str, targets: str, *, within: str = "") -> References:
    """Require that every value at ``references`` equals an earlier value at ``targets``.

    Strings, numbers and truth values are compared as in JSON; null is always allowed.

    Args:
        references: a JSON Pointer, in which a step ``*`` matches every name and index.
        targets: likewise.
        within: the common prefix of both paths whose ``*`` must match the same step in both: ``/graphs/*`` restricts
            references to one graph. By default none: any earlier target is allowed.

    Raises:
        ValueError: a path is not a JSON Pointer, or ``within`` is not a prefix of both.

    Example:
        >>> rule = refers("/edges/*/from", "/nodes/*/id")
    """
    return References(references, targets, within)


def unique(path: str, *, within: str = "") -> Unique:
    """Require that all values at ``path`` differ: numbers by value, objects regardless of the order of their members.

    Args:
        path: a JSON Pointer, in which a step ``*`` matches every name and index.
        within: the prefix of the path whose ``*`` separate values: ``/orders/*`` lets two orders have the same value.

    Raises:
        ValueError: a path is not a JSON Pointer, or ``within`` is not a prefix of it.

    Example:
        >>> rule = unique("/items/*/id")
    """
    return Unique(path, within)


class _ComparedValue(NamedTuple):
    """A value: the UTF-16 of a string, or a key of any other value."""

    string: bytes | None
    other: bytes | OrderedKey = b""


class _EarlierValues(NamedTuple):
    """The earlier values in one scope.

    Attributes:
        strings: in UTF-16, sorted.
        others: keys of numbers, bytes of truth values, digests of containers.
    """

    strings: tuple[bytes, ...] = ()
    others: frozenset[bytes | OrderedKey] = frozenset()

    def has(self, value: _ComparedValue) -> bool:
        """Whether it contains a value."""
        if value.string is None:
            return value.other in self.others
        at = bisect_left(self.strings, value.string)
        return at < len(self.strings) and self.strings[at] == value.string

    def with_value(self, value: _ComparedValue) -> _EarlierValues:
        """The values with one more."""
        if self.has(value):
            return self
        if value.string is None:
            return self._replace(others=self.others | {value.other})
        at = bisect_left(self.strings, value.string)
        return self._replace(strings=(*self.strings[:at], value.string, *self.strings[at:]))

    def prefix(self, text: bytes) -> tuple[bytes, ...]:
        """The strings with this prefix."""
        after = successor(text)
        low = bisect_left(self.strings, text)
        return self.strings[low : len(self.strings) if after is None else bisect_left(self.strings, after)]


_Values: TypeAlias = Mapping[ScopePath, _EarlierValues]
_NO_VALUES: Final = _EarlierValues()


@final
class References(JsonPotential[_Values]):
    """The potential of :func:`refers`."""

    def __init__(self, references: str, targets: str, within: str) -> None:
        if references == targets:
            raise ValueError(f"refers: both paths are {targets!r}; pass the paths of references and of targets")
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
        """See ``Potential``: within the string of a reference, tokens that continue a target, or begin an escape."""
        state = self._at(hypothesis)
        if state is None or not state.in_string or 0 not in state.watched:
            return None
        rests = _rests(state, state.memory.get(state.scope(self._shared), _NO_VALUES), hypothesis.data)
        return None if rests is None else self._rows.only(hypothesis, rests)

    def _memory(self) -> _Values:
        return {}

    def _scalar(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonPotential``."""
        if raw == b"null":
            return memory
        scope, value = state.scope(self._shared), _compared_value(raw)
        if value is None:
            return None
        earlier = memory.get(scope, _NO_VALUES)
        if which == 0:
            return memory if earlier.has(value) else None
        return {**memory, scope: earlier.with_value(value)}

    def _opens(self, memory: _Values, which: int, state: JsonState[_Values]) -> _Values | None:
        """See ``JsonPotential``: an array or object is neither a reference nor a target."""
        return None if which == 0 else memory

    def _may_become(self, state: JsonState[_Values], which: int, raw: bytes) -> bool:
        """See ``JsonPotential``."""
        if which != 0:
            return True
        earlier = state.memory.get(state.scope(self._shared), _NO_VALUES)
        if state.in_number:
            return any(isinstance(each, tuple) and may_be(raw, each) for each in earlier.others)
        begun = partial_string(raw)
        written = units(begun.text)
        strings = earlier.prefix(written)
        if begun.escape:
            digits = begun.escape[2:].lower()
            return any(target[len(written) :][:2].hex().startswith(digits) for target in strings if target != written)
        if begun.half:
            return any(_text(target[len(written) :])[:1].encode("utf-8", "surrogatepass").startswith(begun.half)
                       for target in strings)  # fmt: skip
        return bool(strings)


@final
class Unique(JsonPotential[_Values]):
    """The potential of :func:`unique`."""

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
        """See ``Potential``: within a string, all tokens but those that complete an earlier string."""
        state = self._at(hypothesis)
        if state is None or not state.in_string or not state.watched:
            return None
        rests = _rests(state, state.memory.get(state.scope(self._shared), _NO_VALUES), hypothesis.data)
        return self._rows.without(hypothesis, rests) if rests else None

    def _memory(self) -> _Values:
        return {}

    def _scalar(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonPotential``."""
        value = _compared_value(raw)
        return None if value is None else self._with(memory, state, value)

    def _opens(self, memory: _Values, which: int, state: JsonState[_Values]) -> _Values | None:
        """See ``JsonPotential``."""
        return memory

    def _closes(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonPotential``."""
        return self._with(memory, state, _ComparedValue(None, digest_of(raw)))

    def _may_become(self, state: JsonState[_Values], which: int, raw: bytes) -> bool:
        """See ``JsonPotential``: a longer string or number is another value."""
        return True

    def _with(self, memory: _Values, state: JsonState[_Values], value: _ComparedValue) -> _Values | None:
        scope = state.scope(self._shared)
        earlier = memory.get(scope, _NO_VALUES)
        return None if earlier.has(value) else {**memory, scope: earlier.with_value(value)}


class _Rows:
    """Mask rows for remainders of strings; the last ones are cached."""

    def __init__(self) -> None:
        self._rows: OrderedDict[tuple[bytes, tuple[bytes, ...]], NDArray[np.int32]] = OrderedDict()

    def only(self, hypothesis: Hypothesis, rests: Iterable[bytes]) -> NDArray[np.int32]:
        """Tokens that continue one of the rests, or close the string after it."""
        members, index = Options(rests).members, token_index(hypothesis.vocabulary)
        return self._cached(
            (hypothesis.vocabulary.digest, members),
            lambda: index.choices(members, lambda rest: _QUOTE, ends=False, escape=b"\\"),
        )

    def without(self, hypothesis: Hypothesis, rests: Iterable[bytes]) -> NDArray[np.int32]:
        """Tokens that do not close the string after one of the rests."""
        closed, index = Options(rest + b'"' for rest in rests).members, token_index(hypothesis.vocabulary)
        return self._cached((hypothesis.vocabulary.digest, closed), lambda: index.without(closed))

    def _cached(self, key: tuple[bytes, tuple[bytes, ...]], make: Callable[[], NDArray[np.int32]]) -> NDArray[np.int32]:
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = make()
            if len(self._rows) > _MAX_ROWS:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        return row


def _compared_value(raw: bytes) -> _ComparedValue | None:
    """The key by which a scalar is compared; None for a number with too long an exponent."""
    if raw.startswith(b'"'):
        return _ComparedValue(units(string_of(raw)))
    if raw[:1] in (b"t", b"f", b"n"):
        return _ComparedValue(None, raw)
    value = number_of(raw)
    return None if value is None else _ComparedValue(None, value)


def _rests(state: JsonState[_Values], earlier: _EarlierValues, data: bytes) -> list[bytes] | None:
    """The remainder of each earlier string that has the current string as prefix; None within a character."""
    begun = partial_string(data[state.start :])
    if begun.escape or begun.half:
        return None
    written = units(begun.text)
    return [canonical(_text(target[len(written) :])) for target in earlier.prefix(written)]


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-16-be", "surrogatepass")
