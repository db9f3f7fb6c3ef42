"""Counted bounds on time and memory, and the count of a front end's work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from types import TracebackType
from typing import Final

from structgen.errors import LimitExceeded

__all__ = ["PYTHON_STEP", "Limits", "counted", "spend", "spend_steps", "steps_left", "steps_since"]

PYTHON_STEP: Final = 32
"""The cost in ``Limits.steps`` of an elementary step of a front end, about a microsecond."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on work and memory, in counted units: the same on every machine.

    Reaching one raises ``LimitExceeded`` with the name of the field.  ``docs/reference/limits.md`` has what inputs of
    many kinds take.

    Attributes:
        source_bytes: size of a regex, schema or grammar text.
        nesting: depth of nesting of the input (parentheses, schemas, JSON values).
        grammar_nodes: nodes of the grammar that a front end makes.
        states: automaton states, call frames and configurations made on behalf of one constraint.
        regular_states: states explored to decide whether an intersection or complement is empty.
        steps: elementary steps of one call, of 10 to 30 nanoseconds: to read a grammar (tokens, characters of classes,
            patterns compared with each other, automata of ``multipleOf``), to compile it, to fill a mask or to take a
            token (terms derived, sets of bytes compared, nodes of tries walked).  The default is below half a second
            on a machine of today.
        canvas_steps: elementary steps of about 10 nanoseconds on one canvas of a diffusion model, over all steps of the
            model and all particles (eight masses of a chart added or compared, or four edges of an automaton looked at,
            are one); and, counted by themselves, those to make the tables for canvases, once for each constraint.
        distance_steps: one search for the shortest completion in tokens: trie nodes, and states at a hundred each.
        cache_bytes: memory for cached mask rows of one constraint, within the bound on engines of ``cache_limits``.
    """

    source_bytes: int = 16 << 20
    nesting: int = 2_000
    grammar_nodes: int = 500_000
    states: int = 400_000
    regular_states: int = 200_000
    steps: int = 16_000_000
    canvas_steps: int = 40_000_000
    distance_steps: int = 5_000_000
    cache_bytes: int = 256 << 20

    @classmethod
    def strict(cls) -> Limits:
        """Return the limits for a server whose clients send grammars: each call takes about 50 ms at most.

        The same object each time, so that what is cached for it is found.
        """
        return _strict()

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or value <= 0:
                raise ValueError(f"Limits: {item.name} must be a positive integer; found {value!r}")


@cache
def _strict() -> Limits:
    return Limits(
        source_bytes=1 << 20,
        nesting=500,
        grammar_nodes=100_000,
        states=100_000,
        regular_states=20_000,
        steps=2_000_000,
        canvas_steps=3_000_000,
        distance_steps=500_000,
        cache_bytes=64 << 20,
    )


class _Current(threading.local):
    """The remaining steps of the call in this thread, the field of ``Limits`` that bounds them, and its value.

    ``left`` is None outside of such a call.
    """

    left: int | None = None
    limit: str = "steps"
    maximum: int = 0


_current: Final = _Current()


class counted:  # noqa: N801  # used like a function
    """A context in which ``spend`` counts: one call of a front end or of ``compile``, or one canvas.

    A context inside another counts for both.  One that is entered again continues with its remaining steps: a generator
    enters it for each of its parts, since the caller's own work between them is not counted.
    """

    __slots__ = ("_limit", "_maximum", "_outer", "_start", "_steps")

    def __init__(self, limits: Limits, steps: int | None = None, *, limit: str = "steps") -> None:
        """Allow ``steps``; by default, and at most, the field ``limit``, which errors name."""
        self._limit = limit
        self._maximum: int = getattr(limits, limit)
        self._steps = self._maximum if steps is None else min(steps, self._maximum)

    def __enter__(self) -> None:
        self._outer = outer, limit, maximum = _current.left, _current.limit, _current.maximum
        if outer is not None and outer < self._steps:
            self._start = outer  # and errors name the limit of the outer context
            _current.left, _current.limit, _current.maximum = outer, limit, maximum
        else:
            self._start = self._steps
            _current.left, _current.limit, _current.maximum = self._steps, self._limit, self._maximum

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        left, limit, maximum = self._outer
        spent = self._start - (_current.left or 0)
        self._steps -= spent
        if left is not None:
            left -= spent
        _current.left, _current.limit, _current.maximum = left, limit, maximum


def spend(steps: int, subject: str | Callable[[], str], evidence: str = "") -> None:
    """Count elementary steps of Python code, each about a microsecond.

    ``subject`` of the error, with the place in the input, may be made on demand.

    Raises:
        LimitExceeded: the call has taken ``Limits.steps``, or the field that its context names.
    """
    spend_steps(steps * PYTHON_STEP, subject, evidence)


def spend_steps(steps: int, subject: str | Callable[[], str], evidence: str = "", remedy: str = "") -> None:
    """Count elementary steps of native code; otherwise as ``spend``."""
    if _current.left is None:
        return
    _current.left -= steps
    if _current.left < 0:
        where = subject if isinstance(subject, str) else subject()
        raise LimitExceeded(where, limit=_current.limit, maximum=_current.maximum, evidence=evidence, remedy=remedy)


def steps_left(default: int = 0) -> int:
    """The remaining steps of the call, for ``steps_since`` and for native code; ``default`` where none are counted."""
    return default if _current.left is None else _current.left


def steps_since(left: int) -> int:
    """The steps that were counted since ``steps_left`` returned ``left``: what a cached result must count as."""
    return (left - (_current.left or 0)) // PYTHON_STEP
