"""Programs that share the forward passes of the embedded model, against the same programs one after the other.

Each program is one ``generate``, in a worker of its own.  Rounds alternate: a few programs one after the other, then
each number of workers.  Outputs are read by matchers of their own, and compared with those of programs that ran alone.
Rates count the tokens that are written, a second of the clock and a second of all processors together; a ratio is the
median of the rounds' ratios.

Usage: python benchmarks/batching.py [--widths 1,2,4,8,16] [--max-tokens 64] [--rounds 3] [--runtime R] [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from threading import Thread
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from structgen import Constraint
    from structgen.decode import Result
    from structgen.models import LanguageModel

PLACES = (
    *("Lisbon", "Nairobi", "Osaka", "Lima", "Oslo", "Cairo", "Quebec", "Hanoi"),
    *("Dublin", "Perth", "Riga", "Accra", "Bogota", "Delhi", "Turin", "Split"),
)
ALONE = 3  # programs one after the other in each round
COMPARED = 8  # programs whose outputs are compared
PROMPT = "Write a few sentences about {place} for visitors who have never been there: its people, food and weather."
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "inhabitants": {"type": "integer", "minimum": 0},
        "by_the_sea": {"type": "boolean"},
        "dishes": {"type": "array", "items": {"type": "string", "maxLength": 30}, "minItems": 2, "maxItems": 4},
        "weather": {"type": "string", "maxLength": 200},
    },
    "required": ["city", "country", "inhabitants", "by_the_sea", "dishes", "weather"],
    "additionalProperties": False,
}


class Rate(NamedTuple):
    """Tokens per second."""

    clock: float
    processors: float


def timed(run: Callable[[], list[Result]]) -> tuple[list[Result], Rate]:
    """Return the outputs, and the tokens per second; drafters know nothing of earlier outputs."""
    from structgen.drafters import forget

    forget()
    clock, processors = perf_counter(), process_time()
    results = run()
    clock, processors = perf_counter() - clock, process_time() - processors
    tokens = sum(len(result.tokens) for result in results)
    return results, Rate(tokens / clock, tokens / processors)


def program(model: LanguageModel, constraint: Constraint, place: str, max_tokens: int) -> Result:
    from structgen.decode import generate

    return generate(model, PROMPT.format(place=place), constraint, max_tokens=max_tokens)


def together(model: LanguageModel, constraint: Constraint, width: int, max_tokens: int) -> list[Result]:
    """Run as many programs in as many workers."""
    from structgen.models import Batch

    results: list[Any] = [None] * width
    with Batch(model) as batch:

        def work(worker: Any, index: int) -> None:
            with worker:
                results[index] = program(batch, constraint, PLACES[index], max_tokens)

        workers = [batch.worker() for _ in range(width)]
        threads = [Thread(target=work, args=(worker, index)) for index, worker in enumerate(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return results


def is_member(constraint: Constraint, result: Result) -> bool:
    """Read an output with a matcher of its own."""
    matcher = constraint.matcher()
    return matcher.accept_bytes(result.data) and matcher.is_accepting


def step_table(model: Any, widths: Sequence[int]) -> list[str]:
    """Time a pass of one token of each of several sequences, one of them among the widths, after 64 tokens each."""
    from structgen.models.protocol import Extension

    times: dict[int, list[float]] = {width: [] for width in widths}
    sessions = [model.start() for _ in range(max(widths))]
    for session in sessions:
        session.extend([5] * 64)
    for _ in range(20):
        for width in widths:
            began = perf_counter()
            model.extend_many([Extension(session, [7], all_positions=False) for session in sessions[:width]])
            times[width].append(perf_counter() - began)
            for session in sessions[:width]:
                session.truncate(64)
    medians = {width: statistics.median(times[width]) for width in widths}
    return [
        "| sequences in a pass, one token each | ms | against one sequence a pass |",
        "| --- | --- | --- |",
        *(
            f"| {width} | {1000 * median:.1f} | {width * medians[1] / median:.2f} |"
            for width, median in medians.items()
        ),
    ]


def main() -> None:
    import torch

    from structgen.engine import compile
    from structgen.frontends.json_schema import json_schema
    from structgen.frontends.regex import regex
    from structgen.models import load_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="1,2,4,8,16")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--runtime", choices=("torch", "llama.cpp"), default="torch")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    widths = [int(width) for width in arguments.widths.split(",")]
    if not all(1 <= width <= len(PLACES) for width in widths):
        parser.error(f"--widths: from 1 to {len(PLACES)} programs")

    model = load_model(device="cpu", runtime=arguments.runtime, threads=arguments.threads)
    constraints = {
        "JSON Schema": compile(json_schema(SCHEMA, whitespace="single"), model.vocabulary),
        "any text": compile(regex("(?s:.*)"), model.vocabulary),
    }
    table = [
        "| grammar | workers | tokens | alone, tokens/s | together, tokens/s | ratio | ratio a processor second | "
        "same outputs |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, constraint in constraints.items():
        expected = [program(model, constraint, place, arguments.max_tokens) for place in PLACES[:COMPARED]]
        rates: dict[int, list[tuple[Rate, Rate]]] = {width: [] for width in widths}
        notes: dict[int, str] = {}
        tokens: dict[int, int] = {}
        for _ in range(arguments.rounds):
            _, before = timed(
                lambda constraint=constraint: [
                    program(model, constraint, place, arguments.max_tokens) for place in PLACES[:ALONE]
                ]
            )
            for width in widths:
                found, after = timed(
                    lambda constraint=constraint, width=width: together(model, constraint, width, arguments.max_tokens)
                )
                if not all(is_member(constraint, result) for result in found):
                    sys.exit(f"{name}, {width} workers: an output is not a string of the grammar")
                same = sum(one.tokens == two.tokens for one, two in zip(expected, found, strict=False))
                rates[width].append((before, after))
                notes[width] = f"{same} of {min(width, COMPARED)}"
                tokens[width] = sum(len(result.tokens) for result in found)
                print(f"{name}, {width} workers: {before}, {after}, {notes[width]} the same", file=sys.stderr)
        for width in widths:
            alone, shared = (statistics.median(rate.clock for rate in side) for side in zip(*rates[width], strict=True))
            ratio = statistics.median(two.clock / one.clock for one, two in rates[width])
            ratio_processors = statistics.median(two.processors / one.processors for one, two in rates[width])
            table.append(
                f"| {name} | {width} | {tokens[width]} | {alone:.1f} | {shared:.1f} | {ratio:.2f} "
                f"| {ratio_processors:.2f} | {notes[width]} |"
            )
    machine = f"{os.cpu_count()} cores, torch {torch.__version__} with {torch.get_num_threads()} threads"
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    text = "\n".join(
        [
            f"{machine}; medians of {arguments.rounds} rounds; {load}.",
            "",
            *table,
            "",
            *step_table(model, sorted({1, *widths})),
        ]
    )
    print(text)
    if arguments.record:
        arguments.record.write_text(
            f"# Programs that share forward passes\n\n`python benchmarks/batching.py`\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
