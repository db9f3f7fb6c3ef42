"""An order between values of a JSON document: numbers, dates and times at two paths.

The potential blocks a token as soon as no document in which the rule holds has this prefix.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias, final

from structgen.methods.monitors.json_rules.reader import (
    JsonPotential,
    JsonState,
    OrderedKey,
    Pattern,
    ScopePath,
    pattern,
    shared_steps,
)
from structgen.methods.monitors.json_rules.value import (
    Moment,
    moment_of,
    moments_from,
    number_of,
    numbers_from,
    partial_string,
    string_of,
)

__all__ = ["Operator", "Ordered", "ordered"]

Operator: TypeAlias = Literal["<", "<=", ">", ">="]

_OPERATORS: Final[tuple[Operator, ...]] = ("<", "<=", ">", ">=")


def ordered(left: str, operator: Operator, right: str, *, within: str | None = None, exponents: bool = True) -> Ordered:
    """Require that every value at ``left`` compares with every value at ``right`` by ``operator``.

    Numbers are compared exactly, and strings as dates, times or date-times (ISO 8601 as in RFC 3339). Null and missing
    values satisfy the rule. Two values that cannot be compared, such as a number and a date or a time in UTC and one
    without a zone, violate it. The values may come in any order.

    Args:
        left: a JSON Pointer, in which a step ``*`` matches every name and index.
        operator: one of ``<``, ``<=``, ``>``, ``>=``.
        right: likewise.
        within: the common prefix of both paths whose ``*`` must match the same step in both; by default the longest
            common prefix, so that ``/spans/*/from < /spans/*/to`` compares the ends of each span.
        exponents: whether numbers at these paths may have an exponent. Since ``30`` may become ``30e-2``, a number's
            size is then known only at its end; without exponents, its digits bound it early.

    Raises:
        ValueError: a path is not a JSON Pointer, the operator is unknown, or both paths are equal.

    Example:
        >>> rule = ordered("/start", "<", "/end")
    """
    if operator not in _OPERATORS:
        raise ValueError(f"ordered: the operator must be one of {', '.join(_OPERATORS)}; found {operator!r}")
    if left == right:
        raise ValueError(f"ordered: both sides are {left!r}; name two paths")
    return Ordered(left, operator, right, within, exponents=exponents)


class _Side(NamedTuple):
    """The values of one side in one scope: of each kind the extreme one."""

    values: tuple[tuple[str, OrderedKey], ...] = ()
    has_other: bool = False


_Sides: TypeAlias = Mapping[tuple[ScopePath, int], _Side]


@final
class Ordered(JsonPotential[_Sides]):
    """The potential of :func:`ordered`."""

    def __init__(self, left: str, operator: Operator, right: str, within: str | None, *, exponents: bool) -> None:
        sides = pattern(left), pattern(right)
        super().__init__(sides)
        self._shared = _common(*sides) if within is None else shared_steps(within, sides)
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
        """See ``JsonPotential``."""
        if raw == b"null":
            return memory
        kind, value = self._valued(raw)
        if kind == "number" and (value is None or (not self._exponents and b"e" in raw.lower())):
            return None
        return self._with(memory, which, state, None if value is None else (kind, value))

    def _opens(self, memory: _Sides, which: int, state: JsonState[_Sides]) -> _Sides | None:
        """See ``JsonPotential``: an array or object compares with nothing."""
        return self._with(memory, which, state, None)

    def _may_become(self, state: JsonState[_Sides], which: int, raw: bytes) -> bool:
        """See ``JsonPotential``."""
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

    def _number_fits(self, raw: bytes, which: int, bound: OrderedKey) -> bool:
        """Whether a number with this prefix may satisfy the order with ``bound``."""
        span = numbers_from(raw, exponents=self._exponents)
        edge, reached = (span.low, span.includes_low) if which == self._smaller else (span.high, span.includes_high)
        if edge is None:
            return True
        if edge == bound:
            return reached and not self._strict
        return (edge < bound) == (which == self._smaller)

    def _valued(self, raw: bytes) -> tuple[str, OrderedKey | None]:
        """The kind and the value of a scalar; no value if it cannot be compared."""
        if raw.startswith(b'"'):
            moment = moment_of(string_of(raw))
            return ("", None) if moment is None else (moment.kind, moment)
        return ("other", None) if raw[:1] in (b"t", b"f") else ("number", number_of(raw))

    def _with(
        self, memory: _Sides, which: int, state: JsonState[_Sides], valued: tuple[str, OrderedKey] | None
    ) -> _Sides | None:
        """The memory with one more value; None if the value violates the rule."""
        scope = state.scope(self._shared)
        other = memory.get((scope, 1 - which))
        if other is not None and (valued is None or not self._holds(which, valued, other)):
            return None
        side = memory.get((scope, which), _Side())
        if valued is None:
            return {**memory, (scope, which): side._replace(has_other=True)}
        kind, value = valued
        values = dict(side.values)
        extreme = max if which == self._smaller else min
        values[kind] = extreme(values[kind], value) if kind in values else value
        return {**memory, (scope, which): side._replace(values=tuple(values.items()))}

    def _holds(self, which: int, valued: tuple[str, OrderedKey], other: _Side) -> bool:
        kind, value = valued
        if other.has_other or any(each != kind for each, _ in other.values):
            return False
        bound = dict(other.values)[kind]
        small, large = (value, bound) if which == self._smaller else (bound, value)
        return small < large or (not self._strict and small == large)


def _common(left: Pattern, right: Pattern) -> int:
    """The number of common first steps of two paths."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count
