"""Time to the whole result: structgen on each runtime beside llama.cpp with the same grammar, on the embedded model.

llama.cpp is its own server, in this process (``xllamacpp``), with the same GGUF file, greedy sampling and no cache of
prompts; it reads schemas by itself, and other grammars as GBNF.  Tasks are interleaved, and every output is judged by a
check that is independent of the grammar.  A run that is cut off at the limit counts with its time, and is marked.

Usage: python benchmarks/end_to_end.py [--repeats N] [--threads N] [--engines "NAME; ..."] [--tasks "NAME; ..."]
"""

from __future__ import annotations

import argparse
import json
import re
import sqlite3
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

from speculative_tasks import EXTRACTIONS

import structgen as sg
from structgen.frontends.convert import write
from structgen.models.llama.embedded import embedded_gguf

EXAMPLES: Final = Path(__file__).parent.parent / "examples"
MAX_TOKENS: Final = 160


@dataclass(frozen=True)
class Task:
    """What is written: a prompt, a grammar, an independent check of the text, and the schema if there is one."""

    name: str
    prompt: str
    grammar: Any
    is_right: Callable[[str], bool]
    schema: dict[str, Any] | None = None


def of_schema(name: str, prompt: str, schema: dict[str, Any]) -> Task:
    """A task whose text is JSON of a schema, judged by ``jsonschema``."""
    from jsonschema import Draft202012Validator

    validator = Draft202012Validator(schema)

    def is_right(text: str) -> bool:
        try:
            return bool(validator.is_valid(json.loads(text)))
        except ValueError:
            return False

    return Task(name, prompt, sg.json_schema(schema), is_right, schema)


def of_pattern(name: str, prompt: str, pattern: str) -> Task:
    """A task whose text matches a regular expression."""
    return Task(name, prompt, sg.regex(pattern), lambda text: re.fullmatch(pattern, text) is not None)


def is_select(text: str) -> bool:
    """Whether SQLite can prepare it; unknown tables are no error of the grammar."""
    try:
        sqlite3.connect(":memory:").execute(f"EXPLAIN {text}")
    except sqlite3.OperationalError as error:
        return "no such table" in str(error)
    return True


def tasks() -> Iterator[Task]:
    """The examples, copies from documents, and short answers."""
    for file, prompt in (
        ("contact", "Write the contact card of Ada Lovelace, a mathematician in London."),
        ("sentiment", "The room was clean, but breakfast was cold and the staff were rude."),
        ("event", "Lunch with Tom at Cafe Roma on 5 May 2026 at noon."),
    ):
        path = EXAMPLES / f"{file}.schema.json"
        yield of_schema(file, prompt, json.loads(path.read_text(encoding="utf-8")))
    for each in EXTRACTIONS[:3]:
        yield of_schema(f"copy {each.name}", each.prompt, each.schema)
    yield Task(
        "sql",
        "Names of customers in Leeds, newest first, as SQL.",
        sg.load(EXAMPLES.parent / "grammars" / "sql_select" / "grammar.lark"),
        is_select,
    )
    yield of_pattern("phone", "What is the phone number in: call 555-0137 now?", r"[0-9]{3}-[0-9]{4}")
    yield of_pattern("date", "When is Christmas Eve 2026, as YYYY-MM-DD?", r"20[0-9]{2}-[01][0-9]-[0-3][0-9]")
    yield of_pattern("choice", "Is Rome old? yes or no.", "yes|no")


class Outcome(NamedTuple):
    """One run: its time in seconds, the text, and whether the engine ended it."""

    seconds: float
    text: str
    is_complete: bool
    tokens: int
    passes: int


def structgen_runner(runtime: str, threads: int, **settings: Any) -> Callable[[Task], Outcome]:
    """Run structgen on one runtime; grammars are compiled by the first run, which is not counted."""
    model: Any = sg.load_model(runtime=runtime, threads=threads)  # type: ignore[arg-type]
    compiled: dict[str, Any] = {}

    def run(task: Task) -> Outcome:
        if task.name not in compiled:
            compiled[task.name] = sg.compile(task.grammar, model.vocabulary)
        sg.drafters.forget()  # no run learns from an earlier one
        began = perf_counter()
        result = sg.generate(model, task.prompt, compiled[task.name], max_tokens=MAX_TOKENS, **settings)
        seconds = perf_counter() - began
        return Outcome(seconds, result.text, result.finish_reason == "stop", result.stats.tokens, result.stats.forwards)

    return run


def llama_runner(threads: int) -> Callable[[Task], Outcome]:
    """Run llama.cpp's own server."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(embedded_gguf())
    params.n_ctx, params.n_parallel, params.n_gpu_layers = 2048, 1, 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    template: Any = sg.load_model(runtime="llama.cpp")
    written: dict[str, str] = {}

    def run(task: Task) -> Outcome:
        if task.schema is None and task.name not in written:
            written[task.name] = write(task.grammar, "gbnf").text
        request = {
            "prompt": template.encode_prompt(task.prompt),
            **({"grammar": written[task.name]} if task.schema is None else {"json_schema": task.schema}),
            "temperature": 0,
            "n_predict": MAX_TOKENS,
            "cache_prompt": False,
        }
        began = perf_counter()
        answer = server.handle_completions(request)
        seconds = perf_counter() - began
        reply = json.loads(answer) if isinstance(answer, str) else answer
        tokens = reply["usage"]["completion_tokens"] if "usage" in reply else reply["tokens_predicted"]
        choice = reply["choices"][0] if "choices" in reply else reply
        text = choice.get("text", choice.get("content"))
        ended = choice.get("finish_reason", choice.get("stop_type")) in ("stop", "eos")
        return Outcome(seconds, text, ended, tokens, tokens)

    return run


ENGINES: Final[dict[str, Callable[[int], Callable[[Task], Outcome]]]] = {
    "llama.cpp": llama_runner,
    "structgen, llama.cpp": lambda threads: structgen_runner("llama.cpp", threads),
    "structgen, llama.cpp, no drafts": lambda threads: structgen_runner("llama.cpp", threads, drafter=None),
    "structgen, torch": lambda threads: structgen_runner("torch", threads),
}


def names_of(text: str) -> list[str]:
    """Names with semicolons between."""
    return [name.strip() for name in text.split(";")]


def main() -> None:
    """Run all engines on all tasks, interleaved, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", type=names_of, default=list(ENGINES))
    parser.add_argument("--tasks", type=names_of)
    given = parser.parse_args()
    engines = {name: ENGINES[name](given.threads) for name in given.engines}
    chosen = [task for task in tasks() if given.tasks is None or task.name in given.tasks]
    print(f"| task | {' | '.join(engines)} |\n| --- |{' ---: |' * len(engines)}")
    ratios: dict[str, list[float]] = {name: [] for name in engines}
    for task in chosen:
        runs: dict[str, list[Outcome]] = {name: [] for name in engines}
        for _ in range(given.repeats + 1):  # the first warms up
            for name, run in engines.items():
                runs[name].append(run(task))
        cells = []
        first = statistics.median(each.seconds for each in runs[next(iter(engines))][1:])
        for name, held in runs.items():
            time = statistics.median(each.seconds for each in held[1:])
            ratios[name].append(time / first)
            last = held[-1]
            verdict = (
                ""
                if last.is_complete and task.is_right(last.text)
                else " (not right)"
                if last.is_complete
                else " (cut)"
            )
            cells.append(f"{time:.2f} s, {last.tokens} / {last.passes}{verdict}")
        print(f"| {task.name} | {' | '.join(cells)} |", flush=True)
    print(
        "| median ratio to the first | "
        + " | ".join(f"{statistics.median(each):.2f}" for each in ratios.values())
        + " |"
    )


if __name__ == "__main__":
    main()
