"""Rules between the values of a JSON document: an order, references, and values that are all different.

Each is a potential that allows the documents in which the rule holds, and withholds a token as soon as what is written
cannot become one of them; at the latest at the end of a value.  Which documents there may be is the grammar's business.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from structgen.decode.monitors.json_reader import JsonReading, JsonState, Pattern, pattern
from structgen.decode.monitors.json_values import (
    Moment,
    canonical,
    digest_of,
    may_be,
    moment_of,
    moments_from,
    number_of,
    numbers_from,
    partial_string,
    string_of,
    units,
)
from structgen.decode.monitors.options import Options, successor
from structgen.decode.monitors.token_index import token_index

if TYPE_CHECKING:
    from structgen.decode.potentials.hypothesis import Hypothesis

__all__ = ["Operator", "Ordered", "References", "Unique", "ordered", "refers", "unique"]

Operator: TypeAlias = Literal["<", "<=", ">", ">="]
Scope: TypeAlias = tuple[str, ...]
Value: TypeAlias = tuple[Any, ...]
"""A number's key or a moment: tuples that order as what they stand for."""

_OPERATORS: Final[tuple[Operator, ...]] = ("<", "<=", ">", ">=")
_KEPT_ROWS: Final = 512
_QUOTE: Final = np.arange(256) == ord('"')


def ordered(left: str, operator: Operator, right: str, *, within: str | None = None, exponents: bool = True) -> Ordered:
    """Require that every value at ``left`` compares with every one at ``right`` as ``operator`` says.

    Numbers are compared exactly, and strings as dates, times or date-times (ISO 8601 as in RFC 3339).  Null compares
    with everything, and so does a value that is not there.  Two values that cannot be compared, as a number with a date
    or a time in UTC with one of which the zone is not known, break the rule.  The values may come in any order.

    Args:
        left: a JSON Pointer, in which a step ``*`` stands for every name and index.
        operator: one of ``<``, ``<=``, ``>``, ``>=``.
        right: likewise.
        within: the part of both paths whose ``*`` stand for the same in both; by default all that they have in common
            at their beginnings, so that ``/spans/*/from < /spans/*/to`` compares the ends of each span.
        exponents: whether numbers at these paths may have an exponent.  As ``30`` may go on as ``30e-2``, it is known
            only at a number's end how large it is; without them it is known as soon as digits tell.

    Raises:
        ValueError: a path is no JSON Pointer, the operator is unknown, or both paths are the same.

    Example:
        >>> rule = ordered("/start", "<", "/end")
    """
    if operator not in _OPERATORS:
        raise ValueError(f"ordered: the operator must be one of {', '.join(_OPERATORS)}; found {operator!r}")
    if left == right:
        raise ValueError(f"ordered: both sides are {left!r}; name two paths")
    return Ordered(left, operator, right, within, exponents=exponents)


def refers(references: str, targets: str, *, within: str = "") -> References:
    """Require that every value at ``references`` equals one at ``targets`` that stands earlier.

    Strings, numbers and truth values are compared as JSON does; null refers to nothing and is let through.

    Args:
        references: a JSON Pointer, in which a step ``*`` stands for every name and index.
        targets: likewise.
        within: the part of both paths whose ``*`` stand for the same in both: ``/graphs/*`` keeps references within
            one graph.  By default none: any earlier target will do.

    Raises:
        ValueError: a path is no JSON Pointer, or ``within`` is no beginning of both.

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
        ValueError: a path is no JSON Pointer, or ``within`` is no beginning of it.

    Example:
        >>> rule = unique("/items/*/id")
    """
    return Unique(path, within)


class _Side(NamedTuple):
    """The values of one side in one scope: of each kind the one that decides."""

    values: tuple[tuple[str, Value], ...] = ()
    has_other: bool = False


_Sides: TypeAlias = Mapping[tuple[Scope, int], _Side]


@final
class Ordered(JsonReading[_Sides]):
    """The potential that :func:`ordered` makes."""

    def __init__(self, left: str, operator: Operator, right: str, within: str | None, *, exponents: bool) -> None:
        sides = pattern(left), pattern(right)
        super().__init__(sides)
        self._shared = _common(*sides) if within is None else _shared_steps(within, sides)
        self._exponents = exponents
        self._strict = len(operator) == 1
        self._smaller = 0 if operator.startswith("<") else 1
        self._name = f"{left} {operator} {right}"

    @property
    def name(self) -> str:
        """See ``Potential``: the rule."""
        return self._name

    def _memory(self) -> _Sides:
        return {}

    def _scalar(self, memory: _Sides, which: int, state: JsonState[_Sides], raw: bytes) -> _Sides | None:
        """See ``JsonReading``."""
        if raw == b"null":
            return memory
        kind, value = self._valued(raw)
        if kind == "number" and (value is None or (not self._exponents and b"e" in raw.lower())):
            return None
        return self._with(memory, which, state, None if value is None else (kind, value))

    def _opens(self, memory: _Sides, which: int, state: JsonState[_Sides]) -> _Sides | None:
        """See ``JsonReading``: an array or object compares with nothing."""
        return self._with(memory, which, state, None)

    def _may_become(self, state: JsonState[_Sides], which: int, raw: bytes) -> bool:
        """See ``JsonReading``."""
        if state.in_number and not self._exponents and (b"e" in raw or b"E" in raw):
            return False
        other = state.memory.get((state.scope(self._shared), 1 - which))
        if other is None:
            return True
        if other.has_other or len(other.values) > 1:
            return False
        kind, bound = other.values[0]
        if state.in_number:
            return kind == "number" and self._number_fits(raw, which, bound)
        if not isinstance(bound, Moment):
            return False
        begun = partial_string(raw)
        span = moments_from(begun.text, bound.kind)
        if span is None:
            return False
        low, high = span
        if which == self._smaller:
            return low < bound.seconds or (low == bound.seconds and (not self._strict or bool(bound.fraction)))
        return high > bound.seconds or (high == bound.seconds and not self._strict)

    def _number_fits(self, raw: bytes, which: int, bound: Value) -> bool:
        """Whether a number that begins so may lie on the right side of ``bound``."""
        span = numbers_from(raw, exponents=self._exponents)
        edge, reached = (span.low, span.has_low) if which == self._smaller else (span.high, span.has_high)
        if edge is None:
            return True
        if edge == bound:
            return reached and not self._strict
        return (edge < bound) == (which == self._smaller)

    def _valued(self, raw: bytes) -> tuple[str, Value | None]:
        """The kind and the value of a scalar; no value where it compares with nothing."""
        if raw.startswith(b'"'):
            moment = moment_of(string_of(raw))
            return ("", None) if moment is None else (moment.kind, moment)
        return ("other", None) if raw[:1] in (b"t", b"f") else ("number", number_of(raw))

    def _with(
        self,
        memory: _Sides,
        which: int,
        state: JsonState[_Sides],
        valued: tuple[str, Value] | None,
    ) -> _Sides | None:
        """The memory with one value more; None where it breaks the rule."""
        scope = state.scope(self._shared)
        other = memory.get((scope, 1 - which))
        if other is not None and (valued is None or not self._holds(which, valued, other)):
            return None
        side = memory.get((scope, which), _Side())
        if valued is None:
            return {**memory, (scope, which): side._replace(has_other=True)}
        kind, value = valued
        known = dict(side.values)
        decides = max if which == self._smaller else min
        known[kind] = decides(known[kind], value) if kind in known else value
        return {**memory, (scope, which): side._replace(values=tuple(known.items()))}

    def _holds(self, which: int, valued: tuple[str, Value], other: _Side) -> bool:
        kind, value = valued
        if other.has_other or any(each != kind for each, _ in other.values):
            return False
        bound = dict(other.values)[kind]
        small, large = (value, bound) if which == self._smaller else (bound, value)
        return small < large or (not self._strict and small == large)


class _Found(NamedTuple):
    """A value: the UTF-16 of a string, or something that stands for another value."""

    string: bytes | None
    other: bytes | Value = b""


class _Known(NamedTuple):
    """Values that stood earlier in one scope.

    Attributes:
        strings: in the order of their UTF-16, by which they are sought.
        others: of numbers their keys, of truth values the bytes, of containers digests.
    """

    strings: tuple[bytes, ...] = ()
    others: frozenset[bytes | Value] = frozenset()

    def has(self, value: _Found) -> bool:
        """Whether it is among them."""
        if value.string is None:
            return value.other in self.others
        at = bisect_left(self.strings, value.string)
        return at < len(self.strings) and self.strings[at] == value.string

    def with_value(self, value: _Found) -> _Known:
        """These and one more."""
        if self.has(value):
            return self
        if value.string is None:
            return self._replace(others=self.others | {value.other})
        at = bisect_left(self.strings, value.string)
        return self._replace(strings=(*self.strings[:at], value.string, *self.strings[at:]))

    def beginning(self, text: bytes) -> tuple[bytes, ...]:
        """The strings that begin so."""
        after = successor(text)
        low = bisect_left(self.strings, text)
        return self.strings[low : len(self.strings) if after is None else bisect_left(self.strings, after)]


_Values: TypeAlias = Mapping[Scope, _Known]
_NOTHING: Final = _Known()


@final
class References(JsonReading[_Values]):
    """The potential that :func:`refers` makes."""

    def __init__(self, references: str, targets: str, within: str) -> None:
        if references == targets:
            raise ValueError(f"refers: both paths are {targets!r}; name the references and what they refer to")
        paths = pattern(references), pattern(targets)
        super().__init__(paths)
        self._shared = _shared_steps(within, paths)
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
        rests = _rests(state, state.memory.get(state.scope(self._shared), _NOTHING), hypothesis.data)
        return None if rests is None else self._rows.only(hypothesis, rests)

    def _memory(self) -> _Values:
        return {}

    def _scalar(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonReading``."""
        if raw == b"null":
            return memory
        scope, value = state.scope(self._shared), _found(raw)
        if value is None:
            return None
        known = memory.get(scope, _NOTHING)
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
        known = state.memory.get(state.scope(self._shared), _NOTHING)
        if state.in_number:
            return any(isinstance(each, tuple) and may_be(raw, each) for each in known.others)
        begun = partial_string(raw)
        written = units(begun.text)
        strings = known.beginning(written)
        if begun.escape:
            digits = begun.escape[2:].lower()
            return any(target[len(written) :][:2].hex().startswith(digits) for target in strings if target != written)
        if begun.half:
            return any(_text(target[len(written) :])[:1].encode("utf-8", "surrogatepass").startswith(begun.half)
                       for target in strings)  # fmt: skip
        return bool(strings)


@final
class Unique(JsonReading[_Values]):
    """The potential that :func:`unique` makes."""

    def __init__(self, path: str, within: str) -> None:
        paths = (pattern(path),)
        super().__init__(paths)
        self._shared = _shared_steps(within, paths)
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
        rests = _rests(state, state.memory.get(state.scope(self._shared), _NOTHING), hypothesis.data)
        return self._rows.without(hypothesis, rests) if rests else None

    def _memory(self) -> _Values:
        return {}

    def _scalar(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonReading``."""
        value = _found(raw)
        return None if value is None else self._with(memory, state, value)

    def _opens(self, memory: _Values, which: int, state: JsonState[_Values]) -> _Values | None:
        """See ``JsonReading``."""
        return memory

    def _closes(self, memory: _Values, which: int, state: JsonState[_Values], raw: bytes) -> _Values | None:
        """See ``JsonReading``."""
        return self._with(memory, state, _Found(None, digest_of(raw)))

    def _may_become(self, state: JsonState[_Values], which: int, raw: bytes) -> bool:
        """See ``JsonReading``: a string or number that is longer is another one."""
        return True

    def _with(self, memory: _Values, state: JsonState[_Values], value: _Found) -> _Values | None:
        scope = state.scope(self._shared)
        known = memory.get(scope, _NOTHING)
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


def _found(raw: bytes) -> _Found | None:
    """What a scalar is to be compared by; None for a number whose exponent is too long to read."""
    if raw.startswith(b'"'):
        return _Found(units(string_of(raw)))
    if raw[:1] in (b"t", b"f", b"n"):
        return _Found(None, raw)
    value = number_of(raw)
    return None if value is None else _Found(None, value)


def _rests(state: JsonState[_Values], known: _Known, data: bytes) -> list[bytes] | None:
    """What is left of each known string that begins as the one that is written; None within a character."""
    begun = partial_string(data[state.start :])
    if begun.escape or begun.half:
        return None
    written = units(begun.text)
    return [canonical(_text(target[len(written) :])) for target in known.beginning(written)]


def _text(encoded: bytes) -> str:
    return encoded.decode("utf-16-be", "surrogatepass")


def _common(left: Pattern, right: Pattern) -> int:
    """How many steps two paths begin with in common."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


def _shared_steps(within: str, paths: Sequence[Pattern]) -> int:
    """The number of steps of ``within``.

    Raises:
        ValueError: some path does not begin with it.
    """
    shared = pattern(within)
    for path in paths:
        if path[: len(shared)] != shared:
            raise ValueError(f"within={within!r} must be the beginning of every path; found '/{'/'.join(path)}'")
    return len(shared)
