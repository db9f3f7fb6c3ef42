"""Time to the whole result: structgen on each runtime beside what others would take, on the embedded model.

llama.cpp is its own server, in this process (``xllamacpp``), with the same GGUF file, greedy sampling and no cache of
prompts; it reads schemas by itself, and other grammars as GBNF.  The peers on transformers (xgrammar, llguidance,
Outlines, guidance) run the same weights in float32; name them to have them take part.
Tasks are interleaved, and every output is judged by a check that is independent of the grammar.  A run that is cut off
at the limit counts with its time, and is marked.

Usage: python benchmarks/end_to_end.py [--repeats N] [--threads N] [--engines "NAME; ..."] [--tasks "NAME; ..."]
           [--schemas N] [--no-warm-up]

``--schemas`` adds real schemas from ``../shared/data``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sqlite3
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final, NamedTuple

from speculative_tasks import EXTRACTIONS

import structgen as sg
from structgen.frontends.convert import write
from structgen.models.llama.embedded import embedded_folder, embedded_gguf

EXAMPLES: Final = Path(__file__).parent.parent / "examples"
REAL_SCHEMAS: Final = EXAMPLES.parent.parent / "shared" / "data" / "maskbench_dev.jsonl.gz"
MAX_TOKENS: Final = 160


@dataclass(frozen=True)
class Task:
    """What is written: a prompt, a grammar, an independent check of the text, and the schema if there is one."""

    name: str
    prompt: str
    grammar: Any
    is_right: Callable[[str], bool]
    schema: dict[str, Any] | None = None
    pattern: str | None = None
    lark: str | None = None


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
    grammar = sg.regex(pattern)
    return Task(name, prompt, grammar, lambda text: re.fullmatch(pattern, text) is not None, pattern=pattern)


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
    sql = EXAMPLES.parent / "grammars" / "sql_select" / "grammar.lark"
    prompt = "Names of customers in Leeds, newest first, as SQL."
    yield Task("sql", prompt, sg.load(sql), is_select, lark=write(sg.load(sql), "lark").text)  # without templates
    yield of_pattern("phone", "What is the phone number in: call 555-0137 now?", r"[0-9]{3}-[0-9]{4}")
    yield of_pattern("date", "When is Christmas Eve 2026, as YYYY-MM-DD?", r"20[0-9]{2}-[01][0-9]-[0-3][0-9]")
    yield of_pattern("choice", "Is Rome old? yes or no.", "yes|no")


def real_schemas(count: int) -> Iterator[Task]:
    """Small and medium schemas of real tools and interfaces, evenly spread over the file."""
    if not count:
        return
    with gzip.open(REAL_SCHEMAS, "rt", encoding="utf-8") as lines:
        found = [
            each
            for each in map(json.loads, lines)
            if isinstance(each["schema"], dict)
            and len(each["schema"].get("properties", ())) > 1
            and 200 < len(json.dumps(each["schema"])) < 2000
        ]
    for each in found[:: len(found) // count][:count]:
        try:
            told = each["schema"].get("description") or each["schema"].get("title") or each["name"]
            yield of_schema(each["name"], f"Write an example of this as JSON: {told}", each["schema"])
        except sg.errors.StructgenError as error:
            print(f"{each['name']}: {error}", file=sys.stderr)


class Outcome(NamedTuple):
    """One run: its time in seconds, the text, and whether the engine ended it."""

    seconds: float
    text: str
    is_complete: bool
    tokens: int
    passes: int


def structgen_runner(
    runtime: str, threads: int, *, dtype: str = "auto", clock: Callable[[], float] = perf_counter, **settings: Any
) -> Callable[[Task], Outcome]:
    """Run structgen on one runtime; grammars are compiled by the first run, which is not counted."""
    model: Any = sg.load_model(runtime=runtime, threads=threads, dtype=dtype)  # type: ignore[arg-type]
    compiled: dict[str, Any] = {}

    def run(task: Task) -> Outcome:
        if task.name not in compiled:
            compiled[task.name] = sg.compile(task.grammar, model.vocabulary)
        sg.drafters.forget()  # no run learns from an earlier one
        began = clock()
        result = sg.generate(model, task.prompt, compiled[task.name], max_tokens=MAX_TOKENS, **settings)
        seconds = clock() - began
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


class Network(NamedTuple):
    """The embedded model in transformers."""

    model: Any
    tokenizer: Any
    ids: Callable[[Task], list[int]]

    def prompt(self, task: Task) -> str:
        """The prompt with the chat template."""
        return str(self.tokenizer.decode(self.ids(task)))


@cache
def network(threads: int) -> Network:
    """Load it in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(threads)
    folder = embedded_folder()
    template: Any = sg.load_model(runtime="llama.cpp")
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return Network(model, tokenizer, lambda task: template.encode_prompt(task.prompt))


def masked_runner(
    processor_of: Callable[[Network], Callable[[Task], Any]], threads: int, *, clock: Callable[[], float] = perf_counter
) -> Callable[[Task], Outcome]:
    """Run ``generate`` of transformers with a logits processor, which is made anew for each run."""
    import torch

    held = network(threads)
    processor = processor_of(held)

    def run(task: Task) -> Outcome:
        ids = torch.tensor([held.ids(task)])
        masks = processor(task)
        began = clock()
        made = held.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            logits_processor=[masks],
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )[0, ids.shape[1] :].tolist()
        seconds = clock() - began
        is_complete = made[-1] in held.model.generation_config.eos_token_id
        text = held.tokenizer.decode(made, skip_special_tokens=True)
        return Outcome(seconds, text, is_complete, len(made), len(made))

    return run


def of_xgrammar(held: Network) -> Callable[[Task], Any]:
    """The logits processors of xgrammar."""
    import xgrammar

    info = xgrammar.TokenizerInfo.from_huggingface(held.tokenizer, vocab_size=held.model.config.vocab_size)
    compiler = xgrammar.GrammarCompiler(info)
    compiled: dict[str, Any] = {}

    def make(task: Task) -> Any:
        if task.name not in compiled:
            compiled[task.name] = (
                compiler.compile_json_schema(json.dumps(task.schema))
                if task.schema is not None
                else compiler.compile_grammar(write(task.grammar, "gbnf").text)
            )
        return xgrammar.contrib.hf.LogitsProcessor(compiled[task.name])

    return make


def of_llguidance(held: Network) -> Callable[[Task], Any]:
    """Logits processors of llguidance's matcher."""
    import torch
    from llguidance import LLMatcher
    from llguidance.hf import from_tokenizer
    from llguidance.torch import allocate_token_bitmask, apply_token_bitmask_inplace, fill_next_token_bitmask

    tokenizer = from_tokenizer(held.tokenizer, held.model.config.vocab_size)
    mask = allocate_token_bitmask(1, held.model.config.vocab_size)

    def make(task: Task) -> Any:
        grammar = (
            LLMatcher.grammar_from_json_schema(task.schema)
            if task.schema is not None
            else LLMatcher.grammar_from_regex(task.pattern)
            if task.pattern is not None
            else LLMatcher.grammar_from_lark(str(task.lark))
        )
        matcher = LLMatcher(tokenizer, grammar)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        seen = 0

        def masked(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            nonlocal seen
            if seen:
                matcher.consume_token(int(ids[0, -1]))
            seen += 1
            fill_next_token_bitmask(matcher, mask)
            apply_token_bitmask_inplace(scores, mask)
            return scores

        return masked

    return make


def outlines_runner(threads: int, *, clock: Callable[[], float] = perf_counter) -> Callable[[Task], Outcome]:
    """Run Outlines on transformers."""
    import outlines

    held = network(threads)
    model = outlines.from_transformers(held.model, held.tokenizer)
    made: dict[str, Any] = {}

    def run(task: Task) -> Outcome:
        if task.name not in made:
            kind = (
                outlines.json_schema(json.dumps(task.schema))
                if task.schema is not None
                else outlines.regex(task.pattern)
                if task.pattern is not None
                else outlines.cfg(str(task.lark))
            )
            made[task.name] = outlines.Generator(model, kind)
        prompt = held.prompt(task)
        began = clock()
        text = made[task.name](prompt, max_new_tokens=MAX_TOKENS, do_sample=False, pad_token_id=0)
        seconds = clock() - began
        tokens = len(held.tokenizer(text)["input_ids"])
        return Outcome(seconds, text, tokens < MAX_TOKENS - 1, tokens, tokens)

    return run


def guidance_runner(threads: int, *, clock: Callable[[], float] = perf_counter) -> Callable[[Task], Outcome]:
    """Run guidance on transformers."""
    import guidance

    held = network(threads)
    model = guidance.models.Transformers(held.model, held.tokenizer, echo=False)

    def run(task: Task) -> Outcome:
        limits = {"name": "text", "temperature": 0.0, "max_tokens": MAX_TOKENS}
        wanted = (
            guidance.json(schema=task.schema, **limits)
            if task.schema is not None
            else guidance.gen(regex=task.pattern, **limits)
            if task.pattern is not None
            else guidance.lark(lark_grammar=str(task.lark), **limits)
        )
        prompt = held.prompt(task)
        began = clock()
        text = (model + prompt + wanted)["text"]
        seconds = clock() - began
        tokens = len(held.tokenizer(text)["input_ids"])
        return Outcome(seconds, text, tokens < MAX_TOKENS - 1, tokens, tokens)

    return run


ENGINES: Final[dict[str, Callable[..., Callable[[Task], Outcome]]]] = {
    "llama.cpp": lambda threads, clock: llama_runner(threads),
    "structgen, llama.cpp": partial(structgen_runner, "llama.cpp"),
    "structgen, llama.cpp, no drafts": partial(structgen_runner, "llama.cpp", drafter=None),
    "structgen, torch": partial(structgen_runner, "torch"),
    "structgen, torch, no drafts": partial(structgen_runner, "torch", drafter=None),
    "structgen, int8": partial(structgen_runner, "torch", dtype="int8"),
    "structgen, int8, no drafts": partial(structgen_runner, "torch", dtype="int8", drafter=None),
    "transformers, xgrammar": partial(masked_runner, of_xgrammar),
    "transformers, llguidance": partial(masked_runner, of_llguidance),
    "Outlines": outlines_runner,
    "guidance": guidance_runner,
}
USUAL: Final = tuple(ENGINES)[:4]


def names_of(text: str) -> list[str]:
    """Names with semicolons between."""
    return [name.strip() for name in text.split(";")]


def main() -> None:
    """Run all engines on all tasks, interleaved, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", type=names_of, default=list(USUAL))
    parser.add_argument("--processor", action="store_true", help="time of the processors, not for llama.cpp itself")
    parser.add_argument("--tasks", type=names_of)
    parser.add_argument("--schemas", type=int, default=0)
    parser.add_argument("--no-warm-up", action="store_true")
    given = parser.parse_args()
    clock = process_time if given.processor else perf_counter
    engines = {name: ENGINES[name](given.threads, clock=clock) for name in given.engines}
    chosen = [task for task in tasks() if given.tasks is None or task.name in given.tasks]
    chosen += real_schemas(given.schemas)
    unmeasured = 0 if given.no_warm_up else 1
    print(f"| task | {' | '.join(engines)} |\n| --- |{' ---: |' * len(engines)}")
    ratios: dict[str, list[float]] = {name: [] for name in engines}
    for task in chosen:
        runs: dict[str, list[Outcome]] = {name: [] for name in engines}
        refused: dict[str, str] = {}
        for _ in range(given.repeats + unmeasured):  # the first warms up
            for name, run in engines.items():
                try:
                    runs[name].append(run(task))
                except Exception as error:  # each engine has errors of its own
                    refused[name] = f"{type(error).__name__}: {error}"
        for name, why in refused.items():
            print(f"{task.name}: {name}: {why[:200]}", file=sys.stderr)
        cells = []
        base = [each.seconds for each in runs[next(iter(engines))][unmeasured:]]
        for name, held in runs.items():
            if name in refused:
                cells.append("error")
                continue
            time = statistics.median(each.seconds for each in held[unmeasured:])
            if base:
                ratios[name].append(time / statistics.median(base))
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
        + " | ".join(f"{statistics.median(each):.2f}" if each else "" for each in ratios.values())
        + " |"
    )


if __name__ == "__main__":
    main()
