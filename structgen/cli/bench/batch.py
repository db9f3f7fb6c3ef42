"""Masks for a batch: 256 sequences over 32 schemas, at steady state.

Sequences of one schema read the same valid instance from different places on, over and over.  After one whole round,
in which every mask is checked to allow the token that comes next, two rounds of steps are timed: fill all rows at once
(timed), accept a token in each (not timed).  Engines take turns, first step by step: each finds the caches of the
processors full of what the others left there.  Then each takes many steps in a row: it finds there what it left itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, final

import numpy as np

from structgen.cli.bench.cases import Case
from structgen.cli.bench.engines import Bits, Engine, Sequence, allows
from structgen.cli.bench.measure import Tokenize, Verdict, judge

__all__ = ["IN_A_ROW", "SCHEMAS", "SEQUENCES", "Course", "choose", "run_batch"]

SEQUENCES: Final = 256
SCHEMAS: Final = 32
_LEAST_TOKENS: Final = 16
_MOST_TOKENS: Final = 300
_STEPS: Final = 300
IN_A_ROW: Final = (1, 50)
"""So many steps an engine takes before the next one takes as many."""


class Course:
    """A schema with the tokens of a valid instance that every engine accepts, and the compiled schema by engine."""

    __slots__ = ("compiled", "tokens")

    def __init__(self, tokens: list[int], compiled: dict[str, Any]) -> None:
        self.tokens = tokens
        self.compiled = compiled


def choose(engines: list[Engine], cases: Iterable[Case], tokenize: Tokenize) -> list[Course]:
    """Return a course for the first schemas of ``cases`` on which all engines agree; at most ``SCHEMAS``."""
    courses: list[Course] = []
    for case in cases:
        if len(courses) == SCHEMAS:
            break
        texts = [instance.ordered or instance.text for instance in case.instances if instance.is_valid]
        sizes = ((tokens, len(tokens)) for tokens in map(tokenize, texts))
        tokens = next((tokens for tokens, size in sizes if _LEAST_TOKENS <= size <= _MOST_TOKENS), None)
        course = None if tokens is None else _course(engines, case, tokens)
        if course is not None:
            courses.append(course)
    return courses


def _course(engines: list[Engine], case: Case, tokens: list[int]) -> Course | None:
    compiled = {}
    for engine in engines:
        try:
            compiled[engine.name] = engine.compile(case.schema)
            verdict = judge(engine.start(compiled[engine.name]), tokens, len(tokens), [])
        except Exception:  # any refusal counts, whatever its class in the engine
            return None
        if verdict is not Verdict.ACCEPTED:
            return None
    return Course(tokens, compiled)


@final
class _Rows:
    """The sequences of one engine; a sequence at its end begins again."""

    def __init__(self, engine: Engine, courses: list[Course]) -> None:
        self._engine, self._courses = engine, courses
        self._places: list[int] = []
        self._sequences: list[Sequence] = []
        copies = -(-SEQUENCES // len(courses))
        for row in range(SEQUENCES):
            course = courses[row % len(courses)]
            place = len(course.tokens) * (row // len(courses)) // copies
            sequence = self._start(course)
            for token in course.tokens[:place]:
                sequence.accept(token)
            self._sequences.append(sequence)
            self._places.append(place)
        self._words: Bits = np.zeros((SEQUENCES, self._sequences[0].words.shape[1]), dtype=np.int32)
        self._fill = engine.batch(self._sequences, self._words)

    def steps(self, count: int, *, check: bool) -> list[float]:
        """Fill all rows and accept a token in each, ``count`` times; return the microseconds of each fill.

        Raises:
            AssertionError: a mask does not allow the token, where masks are checked.
        """
        times = []
        for _ in range(count):
            start = time.perf_counter_ns()
            self._fill()
            times.append((time.perf_counter_ns() - start) / 1000)
            if self._accept(check=check):
                self._fill = self._engine.batch(self._sequences, self._words)
        return times

    def _accept(self, *, check: bool) -> bool:
        """Accept the next token of every sequence; return whether a sequence began again."""
        is_changed = False
        for row, sequence in enumerate(self._sequences):
            course, place = self._courses[row % len(self._courses)], self._places[row]
            token = course.tokens[place]
            if check and not allows(self._words, token, row):
                raise AssertionError(f"{self._engine.name}: row {row} of a batch does not allow token {token}")
            sequence.accept(token)
            self._places[row] = place + 1
            if place + 1 == len(course.tokens):
                self._sequences[row], self._places[row] = self._start(course), 0
                is_changed = True
        return is_changed

    def _start(self, course: Course) -> Sequence:
        return self._engine.start(course.compiled[self._engine.name])


def run_batch(engines: list[Engine], courses: list[Course]) -> dict[int, dict[str, list[float]]]:
    """Return the microseconds that each timed fill of all rows took, by the number of calls in a row and by engine.

    Raises:
        AssertionError: a mask of the batch does not allow the token that comes next.
    """
    rows = [_Rows(engine, courses) for engine in engines]
    for one in rows:
        one.steps(max(len(course.tokens) for course in courses), check=True)
    answer: dict[int, dict[str, list[float]]] = {}
    for calls in IN_A_ROW:
        samples: dict[str, list[float]] = {engine.name: [] for engine in engines}
        for block in range(_STEPS // calls):
            for turn in range(len(rows)):
                index = (block + turn) % len(rows)
                samples[engines[index].name] += rows[index].steps(calls, check=False)
        answer[calls] = samples
    return answer
