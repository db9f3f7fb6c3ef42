"""Forks of one prompt in the forward passes of the embedded model, against sequences that share nothing.

Both sides are sessions with the same tokens: a prompt, and after it a tail that differs.  On one side they are forks
of a session that has read the prompt, on the other each has a copy of it; a pass adds one token to each.  Rounds
alternate between the sides; a ratio is the median of the rounds' ratios, of the clock and of the time of all
processors.  The logits of both sides are compared.  A fork that is alone copies the prompt after a few passes, so one
sequence tells what it costs to look after that.

Usage: python benchmarks/sharing.py [--prompts 50,200,1000] [--widths 1,4,16,64] [--tails 0,40] [--rounds 9]
    [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.llama.model import LlamaModel, LlamaSession
    from structgen.models.protocol import Logits

TOLERANCE = 1e-3  # of logits, which reach 30


class Time(NamedTuple):
    """Milliseconds."""

    clock: float
    processors: float


def ids(count: int, seed: int) -> list[int]:
    """Some tokens of text."""
    return [1000 + (7919 * at + 104729 * seed) % 40000 for at in range(count)]


def one_pass(model: LlamaModel, sessions: Sequence[LlamaSession]) -> tuple[Time, list[Logits]]:
    """Add a token to each, and take it back."""
    from structgen.models.protocol import Extension

    lengths = [session.length for session in sessions]
    clock, processors = perf_counter(), process_time()
    rows = model.extend_many([Extension(session, [1017], all_positions=False) for session in sessions])
    time = Time(1000 * (perf_counter() - clock), 1000 * (process_time() - processors))
    for session, length in zip(sessions, lengths, strict=True):
        session.truncate(length)
    return time, rows


def memory(sessions: Sequence[LlamaSession]) -> float:
    """MiB of all caches, what is shared once."""
    segments = {link.segment for session in sessions for link in session._cache.links}
    return sum(segment.entries.nbytes for segment in segments) / 2**20


def sides(
    model: LlamaModel, prompt: int, width: int, tail: int
) -> tuple[list[LlamaSession], list[LlamaSession], float]:
    """Return the forks, the sequences that share nothing, and the milliseconds of a fork."""
    base = model.start()
    base.extend(ids(prompt, 0))
    began = perf_counter()
    forks = [base.fork() for _ in range(width)]
    fork_ms = 1000 * (perf_counter() - began) / width
    alone = [base.fork() for _ in range(width)]
    for seed, pair in enumerate(zip(forks, alone, strict=True), start=1):
        for session in pair:
            if tail:
                session.extend(ids(tail, seed))
        pair[1]._cache.unshare()
    return forks, alone, fork_ms


def main() -> None:
    import torch

    from structgen.models import load_model
    from structgen.models.llama.model import LlamaModel

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="50,200,1000")
    parser.add_argument("--widths", default="1,4,16,64")
    parser.add_argument("--tails", default="0,40")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    prompts, widths, tails = (
        [int(each) for each in text.split(",")] for text in (arguments.prompts, arguments.widths, arguments.tails)
    )
    if min(*prompts, *widths) < 1 or min(tails) < 0:
        parser.error("prompts and widths: at least 1")

    model = load_model(device="cpu", runtime="torch")
    if not isinstance(model, LlamaModel):
        sys.exit("the embedded model is not there")
    table = [
        "| prompt | tail | sequences | apart, ms | forks, ms | ratio | ratio of processor time | a fork, ms "
        "| apart, MiB | forks, MiB | logits differ by |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for prompt in prompts:
        for tail in tails:
            for width in widths:
                forks, alone, fork_ms = sides(model, prompt, width, tail)
                times: list[tuple[Time, Time]] = []
                difference = 0.0
                for _ in range(arguments.rounds):
                    apart, expected = one_pass(model, alone)
                    shared, found = one_pass(model, forks)
                    times.append((apart, shared))
                    difference = max(abs(one - two).max() for one, two in zip(expected, found, strict=True))
                    if difference > TOLERANCE:
                        sys.exit(f"prompt {prompt}, {width} sequences: the logits differ by {difference}")
                clocks = [statistics.median(time.clock for time in side) for side in zip(*times, strict=True)]
                ratio = statistics.median(one.clock / two.clock for one, two in times)
                processors = statistics.median(one.processors / two.processors for one, two in times)
                table.append(
                    f"| {prompt} | {tail} | {width} | {clocks[0]:.0f} | {clocks[1]:.0f} | {ratio:.2f} "
                    f"| {processors:.2f} | {fork_ms:.3f} | {memory(alone):.0f} | {memory(forks):.0f} "
                    f"| {difference:.0e} |"
                )
                print(table[-1], file=sys.stderr)
                for session in (*forks, *alone):
                    session.close()
    machine = f"{os.cpu_count()} cores, torch {torch.__version__} with {torch.get_num_threads()} threads"
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    text = "\n".join([f"{machine}; medians of {arguments.rounds} rounds; {load}.", "", *table])
    print(text)
    if arguments.record:
        arguments.record.write_text(f"# Forks of one prompt\n\n`python benchmarks/sharing.py`\n\n{text}\n")


if __name__ == "__main__":
    main()
