"""Kernels beside what a GPU can move, beside torch and beside xgrammar: masks, samples, trees, canvases and charts.

On a GPU: medians of 30 runs by events of the device, the second-level cache overwritten before each, and the host
ahead of the device, so that the time to launch is not in them; what consists of many launches is captured as a graph.
In the same run: what a copy of 1 GiB moves, read and written, and what reading 1 GiB takes.  ``moved`` is what an
operation must read and write at least, over its time, ``floor`` what that takes at the measured rate.

Without a GPU nothing is timed: each operation runs on small shapes in Triton's interpreter, and the table has the
floors at full shapes, those bytes at 3.35 TB/s (H100) and 4.8 TB/s (H200), beside "not measured".

Every operation is compared with its reference implementation in torch first.  One that differs has no time, and the
exit status is 1.

Floors are of memory alone: chains, trees and charts also wait for one slot or product after the other.

Usage: PYTHONPATH=.:kernels python benchmarks/kernels.py [--only NAME ...] [--data FILE] [--xgrammar FOLDER]
           [--record FILE]
       PYTHONPATH=.:kernels python benchmarks/kernels.py --export FILE    real masks, an automaton and a plan, where
           the engine and a tokenizer are, for --data where they are not
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported, which the following does

import triton
from kernel_cases import OPERATIONS, Case, Place, Wrong
from kernel_data import export, load, traffic

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS: Final = 30
FLUSHED: Final = 256 << 20
MOVED: Final = 1 << 30
RATES: Final = {"H100": 3.35e12, "H200": 4.8e12}
AHEAD: Final = 4_000_000
"""Clock cycles for which the device waits before it is timed, about 2 ms."""


_cuda: Any = torch.cuda
"""Some of its functions have no types."""


def timed(work: Callable[[], Any], *, rounds: int = ROUNDS) -> float:
    """Median milliseconds on the device."""
    waste = torch.empty(FLUSHED, dtype=torch.int8, device="cuda")
    for _ in range(3):
        work()
    times: list[float] = []
    for _ in range(rounds):
        begin, end = (_cuda.Event(enable_timing=True) for _ in range(2))
        waste.zero_()
        _cuda._sleep(AHEAD)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same work as a graph."""
    stream = _cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def bandwidths() -> dict[str, float]:
    """Bytes a second of a copy, read and written, and of reading."""
    source = torch.ones(MOVED // 4, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    copying = timed(lambda: target.copy_(source))
    reading = min(timed(source.sum), timed(source.amax))
    return {"copy": 2 * MOVED / copying * 1e3, "read": MOVED / reading * 1e3}


def measured(case: Case, rates: dict[str, float]) -> list[str]:
    """The rows of a case on a GPU; the first is its own."""
    work = captured(case.work) if case.is_captured else case.work
    own = timed(work)
    rate = rates["copy"] if case.bar is not None and case.bar[0] == "copy" else rates["read"]
    floor = case.floor_bytes / rate * 1e3
    moved = case.floor_bytes / own * 1e3
    cells = (
        f"{own:.4f} | {floor:.4f} | {moved / 1e9:.0f} | {100 * moved / rate:.0f}% | {_verification(case, own, floor)}"
    )
    rows = [f"| {case.name} | {'graph' if case.is_captured else 'launched'} | {cells} |"]
    for name, peer in case.peers.items():
        if isinstance(peer, str):
            rows.append(f"| - {name} | | did not run: {peer} | | | | |")
            continue
        other = timed(peer)
        said = f"{other / own:.2f} times as long"
        if case.ahead is not None:
            said += f" (at least {case.ahead:g}: {'yes' if other >= case.ahead * own else 'no'})"
        rows.append(f"| - {name} | launched | {other:.4f} | | | | {said} |")
    return rows


def _verification(case: Case, own: float, floor: float) -> str:
    if case.bar is None:
        return ""
    kind, number = case.bar
    if kind == "copy":
        reached, said = 100 * floor / own, f"at least {number:.0f}% of copying"
        return f"{said}: {'yes' if reached >= number else 'no'}, {reached:.0f}%"
    if kind == "read":
        return f"at most {number} times reading: {'yes' if own <= number * floor else 'no'}, {own / floor:.2f}"
    return f"under {number:g} ms: {'yes' if own < number else 'no'}"


def on_gpu(place: Place, only: list[str]) -> Iterator[str]:
    """The table of a GPU, line by line."""
    rates = bandwidths()
    yield f"Copying moves {rates['copy'] / 1e9:.0f} GB/s, read and written; reading {rates['read'] / 1e9:.0f} GB/s."
    yield ""
    yield "| operation | how | ms | floor, ms | GB/s | of the measured rate | bar |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in _cases(place, only):
        try:
            case.check()
            yield from measured(case, rates)
        except Exception as error:  # one row without a time; the others are still measured
            _failed.append(case.name)
            yield f"| {case.name} | | {_problem(error)} | | | | |"
        torch.cuda.empty_cache()


def on_processor(place: Place, only: list[str]) -> Iterator[str]:
    """The table without a GPU, line by line."""
    titles = [f"floor on {name}, ms" for name in RATES]
    yield "| operation | in the interpreter | bytes at the full shape | " + " | ".join(titles) + " | time |"
    yield "| " + " | ".join(["---"] * (4 + len(RATES))) + " |"
    for case in _cases(place, only):
        said = "as its reference implementation"
        try:
            case.check()
        except Exception as error:
            _failed.append(case.name)
            said = _problem(error)
        floors = " | ".join(f"{case.floor_bytes / rate * 1e3:.4f}" for rate in RATES.values())
        yield f"| {case.name} | {said} | {case.floor_bytes:,} | {floors} | not measured |"


_failed: list[str] = []


def _problem(error: Exception) -> str:
    said = str(error).splitlines()
    return f"{'WRONG' if isinstance(error, Wrong) else type(error).__name__}: {said[0][:120] if said else ''}"


def _cases(place: Place, only: list[str]) -> Iterator[Case]:
    for name, cases in OPERATIONS.items():
        if not only or name in only:
            print(f"{name} ...", file=sys.stderr)
            yield from cases(place)


def sent(only: list[str]) -> Iterator[str]:
    """What the host sends for masks, which no GPU is needed for."""
    if only and "traffic" not in only:
        return
    yield ""
    try:
        found = traffic()
    except (ImportError, OSError) as error:
        yield f"Bytes from the host: not measured here ({error})."
        return
    yield (
        f"Bytes from the host for masks, {found.sequences} sequences over {found.schemas} schemas, {found.steps} "
        f"steps, {found.rows} different masks: {found.warm_up:.1f} for each sequence and step in the first half, in "
        f"which most masks are sent, {found.steady:.1f} in the second, in which documents are written again (at most "
        f"64: {'yes' if found.steady <= 64 else 'no'})."
    )


def heading(place: Place) -> list[str]:
    """What was measured, on what and when."""
    root = Path(__file__).resolve().parents[1]
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=False
    )
    device = f"{os.cpu_count()} cores, no GPU, Triton's interpreter"
    if place.is_gpu:
        held = torch.cuda.get_device_properties(0)
        device = f"{held.name}, {held.total_memory >> 30} GiB, {held.multi_processor_count} processors"
    versions = f"torch {torch.__version__}, triton {triton.__version__}, Python {platform.python_version()}"
    if place.is_gpu:
        versions += f", CUDA {torch.version.cuda}"
    return [
        "# Kernels",
        "",
        "`python benchmarks/kernels.py`",
        "",
        f"Commit {git.stdout.strip() or 'unknown'}, {datetime.date.today().isoformat()}; {device}; {versions}.",
        "",
    ]


def _peer_folder(given: Path | None) -> Path | None:
    if given is not None:
        return given
    found = importlib.util.find_spec("xgrammar")
    return None if found is None or found.origin is None else Path(found.origin).parent / "kernels"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], choices=[*OPERATIONS, "traffic"])
    parser.add_argument("--data", type=Path, help="written by --export")
    parser.add_argument("--xgrammar", type=Path, help="the folder of its kernels, if it is not installed")
    parser.add_argument("--export", type=Path)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    if arguments.export:
        export(arguments.export)
        return
    data = load(arguments.data) if arguments.data else None
    place = Place(torch.device("cuda" if torch.cuda.is_available() else "cpu"), data, _peer_folder(arguments.xgrammar))
    lines = heading(place)
    if data is None:
        lines += ["Without the file of `--export`: no masks of real constraints, no canvases of an automaton.", ""]
    print("\n".join(lines))
    for line in (on_gpu if place.is_gpu else on_processor)(place, arguments.only):
        lines.append(line)
        print(line, flush=True)
    for line in sent(arguments.only):
        lines.append(line)
        print(line, flush=True)
    if arguments.record:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        arguments.record.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(1 if _failed else 0)


if __name__ == "__main__":
    main()
