"""What canvases of diffusion models take under limits; ``limits.py`` records it."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

import structgen as sg
from structgen.decode.diffusion import FREE, MeanField
from structgen.decode.diffusion.canvas import canvas_language, canvas_length
from structgen.engine.constraint import compile_together
from structgen.errors import GrammarError, LimitExceeded
from structgen.grammar.limits import counted, steps_left

Read: TypeAlias = Callable[[sg.Limits], Any]

_GRAMMARS: Final = Path(__file__).resolve().parents[1] / "grammars"


def _texts(count: int, length: int) -> dict[str, Any]:
    texts = {f"p{index}": {"type": "string", "maxLength": length} for index in range(count)}
    return {"type": "object", "properties": texts, "additionalProperties": False}


def canvas_seconds(
    read: Read, vocabulary: sg.Vocabulary, limits: sg.Limits, slots: int | None
) -> tuple[list[float], list[int], int]:
    """Make the tables for canvases of a grammar, choose a length, and take one step on a canvas of free slots.

    The step is that of ``Posterior``: forced slots, a draw from noise, and its confidence.

    Returns:
        CPU seconds of this thread and steps of each of the three calls, and the slots.

    Raises:
        LimitExceeded, GrammarError: by one of these calls.
    """
    seconds: list[float] = []
    steps: list[int] = []

    def timed(call: Callable[[], Any], counts: sg.Limits = limits) -> Any:
        with counted(counts, limit="canvas_steps"):
            start, before = time.thread_time(), steps_left()
            try:
                return call()
            finally:
                seconds.append(time.thread_time() - start)
                steps.append(before - steps_left())

    (constraint,) = compile_together([read(limits)], vocabulary, limits)
    chance = np.random.default_rng(0)
    try:
        own = sg.Limits(canvas_steps=1 << 50)  # the tables are counted against the limits of the constraint
        language = timed(lambda: canvas_language(constraint, ambiguity="counted"), own)
        length = timed(lambda: canvas_length(language))
        canvas = np.full(max(slots or length, language.shortest), FREE, dtype=np.int32)
        posterior = language.posterior(
            MeanField(canvas, chance.normal(size=(len(canvas), vocabulary.size)).astype(np.float32)), tail="free"
        )
        posterior.scores.log_sums()  # of the logits, whatever the grammar
        timed(lambda: (language.forced(canvas), posterior.shares(posterior.draw(chance).tokens)))
    except LimitExceeded as error:
        error.add_note(f"{max(seconds):.3f}")
        raise
    return seconds, steps, len(canvas)


CANVASES: Final[dict[str, Read]] = {
    "a date": lambda limits: sg.regex(r"\d{4}-\d{2}-\d{2}", limits=limits),
    "a line": lambda limits: sg.regex(r".{1,200}", limits=limits),
    "any JSON, compact": lambda limits: sg.json_schema({}, whitespace="compact", limits=limits),
    "objects with children": lambda limits: sg.json_schema(
        {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}, "required": ["children"]},
        whitespace="compact",
        limits=limits,
    ),
    "8 texts of up to 200 characters": lambda limits: sg.json_schema(
        _texts(8, 200),
        whitespace="compact",
        limits=limits,
    ),
    "40 texts of up to 1,000 characters": lambda limits: sg.json_schema(
        _texts(40, 1000),
        whitespace="compact",
        limits=limits,
    ),
    "arithmetic": lambda limits: sg.load(_GRAMMARS / "arithmetic/grammar.lark", limits=limits),
    "C++": lambda limits: sg.load(_GRAMMARS / "cpp/grammar.lark", limits=limits),
}


def longest_call(read: Read, vocabulary: sg.Vocabulary, limits: sg.Limits) -> tuple[float, bool]:
    """CPU seconds of the longest of the three calls, the least of three runs, and whether a limit refused the grammar.

    Python's collector is off: it would pass over all that the benchmark keeps.

    Raises:
        GrammarError: the grammar is refused with any limits.
    """
    found: list[tuple[float, bool]] = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            try:
                found.append((max(canvas_seconds(read, vocabulary, limits, None)[0]), False))
            except LimitExceeded as error:
                found.append((max(map(float, getattr(error, "__notes__", ())), default=0.0), True))
    finally:
        gc.enable()
    return min(found)


def rows(vocabulary: sg.Vocabulary, schemas: Mapping[str, Read]) -> list[str]:
    """The tables of what canvases take, and of what the limits admit."""
    made = [
        "| grammar | tables, million steps | CPU, s | slots | one step, million | CPU, s |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, read in CANVASES.items():
        try:
            seconds, steps, slots = canvas_seconds(read, vocabulary, sg.Limits(), 64)
            row = f"{steps[0] / 1e6:.1f} | {seconds[0]:.2f} | {slots} | {steps[2] / 1e6:.1f} | {seconds[2]:.2f}"
        except LimitExceeded as error:
            row = f"`{error.limit}`: {error.subject} | {error.__notes__[-1]} | | |"
        made.append(f"| {name} | {row} |")
        print(made[-1], file=sys.stderr)
    made += ["", "| limits | real schemas below 4 kB | refused by a limit | CPU of the longest call, s |"]
    made.append("| --- | --- | --- | --- |")
    for name, limits in (("`Limits()`", sg.Limits()), ("`Limits.strict()`", sg.Limits.strict())):
        refused, longest, number = 0, 0.0, 0
        for read in schemas.values():
            try:
                taken, is_refused = longest_call(read, vocabulary, limits)
            except GrammarError:  # refused with any limits
                continue
            number += 1
            refused += is_refused
            longest = max(longest, taken)
        made.append(f"| {name} | {number} | {refused} | {longest:.2f} |")
        print(made[-1], file=sys.stderr)
    return made
