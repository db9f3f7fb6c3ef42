"""What happened in hours of work: tasks, verdicts, errors, findings, and samples of a process as lines of bars."""

from __future__ import annotations

import statistics
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["Ledger", "Sample", "bars", "curves", "growth", "percentile", "sampled"]

BARS: Final = "▁▂▃▄▅▆▇█"


@dataclass
class Sample:
    """One look at a process.

    Attributes:
        seconds: since the start.
        rss_mb: resident memory.
        handles: open files and connections.
        threads: of the process.
        outputs: judged so far.
        ms: of the tasks since the last look, sorted.
        held_mb: memory after the allocator has given free memory back; 0 where nobody asked it to.
    """

    seconds: float
    rss_mb: float
    handles: int
    threads: int
    outputs: int
    ms: Sequence[float]
    held_mb: float = 0.0


@dataclass
class Ledger:
    """All that happened."""

    tasks: Counter[str] = field(default_factory=Counter)
    verdicts: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    errors: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    recent: list[float] = field(default_factory=list)
    slowest: dict[str, tuple[float, int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    running: dict[int, tuple[float, str]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def took(self, name: str, seed: int, milliseconds: float) -> None:
        """Note how long a task took."""
        with self.lock:
            self.ms[name].append(milliseconds)
            self.recent.append(milliseconds)
            if milliseconds > self.slowest.get(name, (0.0, 0))[0]:
                self.slowest[name] = milliseconds, seed

    def found(self, finding: str) -> None:
        """Note something wrong."""
        with self.lock:
            self.findings.append(finding)
        print(f"FINDING {finding}", file=sys.stderr, flush=True)

    def taken(self) -> tuple[list[float], int]:
        """The times since the last call, sorted, and how many outputs were judged."""
        with self.lock:
            recent, self.recent = self.recent, []
            return sorted(recent), sum(sum(counts.values()) for counts in self.verdicts.values())


def sampled(process: int | str, seconds: float, ms: Sequence[float], outputs: int) -> Sample:
    """Look at a process, by its number or ``"self"``."""
    place = Path(f"/proc/{process}")
    status = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines())
    rss = float(status["VmRSS"].split()[0]) / 1024
    return Sample(seconds, rss, len(list((place / "fd").iterdir())), int(status["Threads"]), outputs, ms)


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the sorted values lie."""
    return values[min(int(share * len(values)), len(values) - 1)] if values else 0.0


def growth(samples: Sequence[Sample], value: Callable[[Sample], float]) -> float:
    """The slope of a line through the second half of the samples, in per cent an hour of their mean."""
    half = samples[len(samples) // 2 :]
    if len(half) < 3:
        return 0.0
    fit = statistics.linear_regression([each.seconds / 3600 for each in half], [value(each) for each in half])
    return 100 * fit.slope / statistics.fmean(value(each) for each in half)


def bars(values: Sequence[float]) -> str:
    """A line of bars from 0 to the largest value."""
    top = max(values, default=0) or 1
    return "".join(BARS[round(value / top * (len(BARS) - 1))] for value in values)


def curves(shown: Sequence[tuple[str, Sequence[float]]]) -> list[str]:
    """A block of named lines of bars, each with its first, its last and its largest value."""
    width = max(len(name) for name, _ in shown)
    lines = [
        f"{name:{width}} {values[0]:6.0f} {bars(values)} {values[-1]:6.0f}  most {max(values):.0f}"
        for name, values in shown
    ]
    return ["```", *lines, "```"]
