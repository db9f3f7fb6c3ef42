"""Hours of all decoders, with random constraints, cancellations and errors; each output is judged by other validators.

The tasks of ``soak_tasks.py`` run in random order in the main thread, and others beside them in a second thread, over
the same vocabularies.  One task in twenty of the main thread is interrupted at any moment, as by Ctrl-C, and so is one
stream in eight; the task is then run once more.  A wrong output, an error that is none of structgen's own, and a task
of more than ten minutes are findings.  Memory, open handles, threads and latency are sampled sixty times.

Usage: python benchmarks/soak.py [--hours H] [--seed N] [--no-embedded] [--record FILE]
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import logging
import os
import platform
import random
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import soak_ledger
from soak_ledger import curves, growth, percentile, sampled
from soak_sources import Output, Workbench, verdict
from soak_tasks import TASKS, Cancelled

import structgen as sg
from structgen.heap import return_memory

SAMPLES: Final = 60
FINDINGS: Final = 20
HANGS_S: Final = 600
LONG_S: Final = 30
BUGS: Final = ("no token continues", "which its own mask allows", "has no result yet")
"""What a ``GenerationError`` says only if something is wrong."""


@dataclass
class Ledger(soak_ledger.Ledger):
    """All that happened, with what concerns this process alone."""

    warned: Counter[str] = field(default_factory=Counter)
    cleared_mb: float = 0.0


_armed = threading.Event()


@contextmanager
def interrupted(rng: random.Random, *, ever: bool) -> Iterator[None]:
    """Raise ``Cancelled`` in the block after up to 60 ms, one time in twenty."""
    if not ever or rng.random() >= 0.05:
        yield
        return
    _armed.set()
    signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.0005, 0.06))
    try:
        yield
    finally:
        _armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)


def run_task(
    task: Callable[[Workbench, random.Random], list[Output]],
    bench: Workbench,
    seed: int,
    ledger: Ledger,
    *,
    is_main: bool,
) -> None:
    """Run a task, judge its outputs, and note what became of it."""
    name, rng = task.__name__, random.Random(seed)
    ledger.running[threading.get_ident()] = time.monotonic(), f"{name}, seed {seed}"
    outputs: list[Output] = []
    began = time.thread_time()
    outcome = ""
    try:
        with interrupted(rng, ever=is_main):
            outputs = task(bench, rng)
    except Cancelled:
        outcome = "cancelled"
    except sg.errors.StructgenError as error:
        outcome = type(error).__name__
        if any(words in str(error) for words in BUGS):
            ledger.found(f"{name}, seed {seed}: {error}")
    except Exception:
        outcome = "other"
        ledger.found(f"{name}, seed {seed}: {traceback.format_exc()[-3000:]}")
    ledger.took(name, seed, 1e3 * (time.thread_time() - began))
    verdicts = [(verdict(output), output) for output in outputs]
    with ledger.lock:
        ledger.tasks[name] += 1
        ledger.errors[name].update([outcome] if outcome else [])
        ledger.verdicts[name].update(each for each, _ in verdicts)
    for each, (source, text) in verdicts:
        if each == "invalid":
            ledger.found(f"{name}, seed {seed}: {source.kind} {source.text[:1500]} does not admit {text!r:.1500}")
    if outcome == "cancelled" and is_main:  # the same work once more, without the interruption
        run_task(task, bench, seed, ledger, is_main=False)


def resident_mb() -> float:
    """Memory of the process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def look(began: float, ledger: Ledger) -> None:
    """Sample the process."""
    gc.collect()
    sample = sampled("self", time.monotonic() - began, *ledger.taken())
    return_memory()
    sample.held_mb = resident_mb()
    ledger.samples.append(sample)
    print(
        f"{sample.seconds:7.0f} s  {sample.rss_mb:6.0f} MB  {sample.held_mb:6.0f} trimmed  {sample.handles} handles  "
        f"{sample.outputs} outputs",
        file=sys.stderr,
        flush=True,
    )


def soak(hours: float, seed: int, bench: Workbench) -> Ledger:
    """Run tasks in two threads for some hours."""
    ledger, stopped = Ledger(), threading.Event()
    tasks, weights = list(TASKS), list(TASKS.values())

    def beside() -> None:
        rng = random.Random(seed + 1)
        while not stopped.is_set():
            (task,) = rng.choices(tasks, weights)
            run_task(task, bench, rng.randrange(1 << 40), ledger, is_main=False)

    def give_up(_number: int, _frame: Any) -> None:
        if _armed.is_set():
            raise Cancelled

    def warned(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
        ledger.warned[f"{category.__name__}: {str(message)[:200]}"] += 1

    bench.warm_up()

    def watch() -> None:
        known: set[str] = set()
        while not stopped.wait(5):
            for since, task in list(ledger.running.values()):
                if time.monotonic() - since > LONG_S and task not in known:
                    known.add(task)
                    print(f"{task} has run for {LONG_S} s", file=sys.stderr, flush=True)
                    faulthandler.dump_traceback(all_threads=True)

    signal.signal(signal.SIGALRM, give_up)
    warnings.simplefilter("always", sg.errors.DraftWarning)
    warnings.showwarning = warned
    began = time.monotonic()
    look(began, ledger)
    other = threading.Thread(target=beside, daemon=True)
    for each in (other, threading.Thread(target=watch, daemon=True)):
        each.start()
    rng, end = random.Random(seed), began + 3600 * hours
    while (now := time.monotonic()) < end:
        if now - began >= len(ledger.samples) * 3600 * hours / SAMPLES:
            look(began, ledger)
        (task,) = rng.choices(tasks, weights)
        run_task(task, bench, rng.randrange(1 << 40), ledger, is_main=True)
    stopped.set()
    other.join(HANGS_S)
    if other.is_alive():
        ledger.found(f"a task does not end: {list(ledger.running.values())}")
    look(began, ledger)
    sg.clear_caches()
    time.sleep(5)  # large engines are freed in the background
    return_memory()
    ledger.cleared_mb = resident_mb()
    return ledger


def report(ledger: Ledger, hours: float, seed: int, bench: Workbench) -> str:
    """The record, as Markdown."""
    verdicts: Counter[str] = sum(ledger.verdicts.values(), Counter())
    samples = ledger.samples
    schemas = f"{len(bench.schemas)} real and generated ones" if bench.schemas else "generated ones"
    lines = [
        "# All decoders for hours",
        "",
        f"`make soak H={hours:g}`, seed {seed}: {samples[-1].seconds / 60:.0f} minutes, one process with two threads "
        f"of work, Python {platform.python_version()}, {os.cpu_count()} processors shared with other processes "
        f"(load average {os.getloadavg()[2]:.0f}).",
        f"Schemas: {schemas}. Models of noise; the embedded model "
        f"{'writes one task in three hundred' if bench.has_embedded else 'was left out'}. "
        "`benchmarks/soak.py` says what is random, what is cancelled and who judges.",
        "",
        f"**{sum(verdicts.values())} outputs: {verdicts['valid']} valid, {verdicts['invalid']} invalid**, "
        f"{verdicts['disputed']} on which validators disagree. {sum(ledger.tasks.values())} tasks, "
        f"{sum(each['cancelled'] for each in ledger.errors.values())} cancelled. "
        f"Findings: {len(ledger.findings)}.",
        "",
        "| task | run | outputs | invalid | cancelled | refused or ended, by error | CPU ms: median | 99 % | most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in sorted(ledger.tasks):
        errors = ledger.errors[name]
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(errors.items()) if kind != "cancelled") or "-"
        times, counts = sorted(ledger.ms[name]), ledger.verdicts[name]
        lines.append(
            f"| {name} | {ledger.tasks[name]} | {sum(counts.values())} | {counts['invalid']} | {errors['cancelled']} "
            f"| {listed} | {percentile(times, 0.5):.0f} | {percentile(times, 0.99):.0f} | {percentile(times, 1):.0f} |"
        )
    half = f"over the last {(samples[-1].seconds - samples[len(samples) // 2].seconds) / 60:.0f} minutes"
    shown: list[tuple[str, list[float]]] = [
        ("resident memory, MB", [each.rss_mb for each in samples]),
        ("the same, trimmed", [each.held_mb for each in samples]),
        ("open handles", [float(each.handles) for each in samples]),
        ("threads", [float(each.threads) for each in samples]),
        ("CPU ms of a task, median", [percentile(each.ms, 0.5) for each in samples[1:]]),
        ("CPU ms of a task, 99 %", [percentile(each.ms, 0.99) for each in samples[1:]]),
    ]
    lines += [
        "",
        *curves(shown),
        "",
        f"Growth {half}: memory {growth(samples, lambda each: each.rss_mb):+.1f} % an hour, "
        f"{growth(samples, lambda each: each.held_mb):+.1f} % after the allocator has given free memory back; handles "
        f"{growth(samples, lambda each: each.handles):+.1f} %. With all caches dropped at the end: "
        f"{ledger.cleared_mb:.0f} MB. "
        "Times are of the thread that runs the task, what its helpers take not counted.",
        "",
    ]
    if hours < 1:
        lines += [
            "Growth is to be judged by a run of an hour, which is still to be made: caches fill for longer than this.",
            "",
        ]
    if ledger.warned:
        lines += ["Warnings:", "", *(f"- {count} times {text}" for text, count in ledger.warned.most_common(10)), ""]
    if ledger.findings:
        lines += ["Findings:", ""]
        for finding in ledger.findings[:FINDINGS]:
            lines += ["```", finding, "```", ""]
    slowest = sorted(ledger.slowest.items(), key=lambda each: -each[1][0])[:5]
    lines += ["Slowest: " + ", ".join(f"{name} seed {at} ({ms:.0f} ms)" for name, (ms, at) in slowest) + ".", ""]
    return "\n".join(lines)


def main() -> int:
    """Run, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-embedded", action="store_true", help="leave the embedded model out")
    parser.add_argument("--record", type=Path, help="write the record to this file")
    options = parser.parse_args()
    logging.getLogger("structgen").setLevel(logging.CRITICAL)
    bench = Workbench(options.seed, not options.no_embedded)
    ledger = soak(options.hours, options.seed, bench)
    text = report(ledger, options.hours, options.seed, bench)
    print(text)
    if options.record is not None:
        options.record.write_text(text)
    return 1 if ledger.findings else 0


if __name__ == "__main__":
    sys.exit(main())
