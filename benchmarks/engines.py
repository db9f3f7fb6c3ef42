"""structgen, xgrammar and guidance as grammar backends of the same vLLM, with real schemas; and forced text as drafts.

Each backend has a server of its own, all at the same time; sixteen clients ask them in turn, part by part, so that
whatever else the machine does meets all.  What *valid* and *complete* mean is as in ``servers.py``.  The rows of a step
alone, without a model, are in ``engines_rows.py``.

STRUCTGEN_VLLM_PYTHON names the Python of an environment with vLLM and structgen, as ``make engines`` makes it.

Usage: python benchmarks/engines.py [--count 64] [--max-tokens 96] [--running NAME=URL,...] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import httpx
from server_process import Running, free_port, running
from servers import BUILD, CONTEXT, Results, failures, grade, measure, schemas
from soak_sources import DATA

from structgen.models import embedded_folder

DRAFTS: Final = {
    "method": "custom_class",
    "model": "structgen.integrations.vllm.proposer.ForcedText",
    "num_speculative_tokens": 8,
}
BACKENDS: Final[dict[str, list[str]]] = {
    "structgen": ["--structured-outputs-config.backend", "structgen"],
    "structgen, forced drafts": [
        *("--structured-outputs-config.backend", "structgen"),
        *("--speculative-config", json.dumps(DRAFTS)),
    ],
    "xgrammar": ["--structured-outputs-config.backend", "xgrammar"],
    "guidance": ["--structured-outputs-config.backend", "guidance"],
}


def started(name: str) -> Running:
    """A server with a backend; it ends with the process."""
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [os.environ["STRUCTGEN_VLLM_PYTHON"], "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(embedded_folder()), "--dtype", "float32", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "16", "--enforce-eager", *BACKENDS[name]]
    log = BUILD / f"vllm {name}.log"
    return _held.enter_context(running(command, port, log, environment=environment))


_held = ExitStack()


def steps(server: Running) -> float:
    """How many passes of the model vLLM has counted."""
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    lines = [line for line in text.splitlines() if line.startswith("vllm:iteration_tokens_total_count")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


def table(results: dict[str, Results], passes: dict[str, float]) -> Iterator[str]:
    """Lines of the table."""
    base = results["structgen"]
    for name, held in results.items():
        grades = [grade(*each) for each in held.answers]
        answered = [answer for _, answer in held.answers if not answer.error]
        ratios = [rate / other for rate, other in zip(held.rates, base.rates, strict=True) if other]
        tokens = sum(answer.tokens for answer in answered)
        yield (
            f"| {name} | {sum(valid for _, valid in grades)} of {len(grades)} | {sum(done for done, _ in grades)} "
            f"| {len(grades) - len(answered)} | {statistics.median(held.rates):.1f} | {statistics.median(ratios):.2f} "
            f"| {tokens} | {tokens / passes[name]:.2f} |"
        )


def main() -> int:
    """Measure, and print the record."""
    reader = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    reader.add_argument("--count", type=int, default=64, help="how many schemas")
    reader.add_argument("--clients", type=int, default=16)
    reader.add_argument("--max-tokens", type=int, default=96)
    reader.add_argument("--seed", type=int, default=0)
    reader.add_argument("--running", default="", help="servers that run already: name=url, ...")
    reader.add_argument("--record", type=Path)
    options = reader.parse_args()
    if not DATA.is_file():
        print(f"no real schemas: {DATA} is missing", file=sys.stderr)
        return 0
    first, *wanted = schemas(1 + options.count, options.seed)
    with _held, ThreadPoolExecutor() as pool:
        if options.running:
            urls = dict(each.rsplit("=", 1) for each in options.running.split(";"))
            servers = {name: Running(None, url, Path()) for name, url in urls.items()}  # type: ignore[arg-type]
        else:
            servers = dict(zip(BACKENDS, pool.map(started, BACKENDS), strict=True))
        measure(servers, [first], options.max_tokens, 1)  # what is loaded or compiled once
        before = {name: steps(server) for name, server in servers.items()}
        results = measure(servers, wanted, options.max_tokens, options.clients, least=len(wanted) // 2)
        passes = {name: steps(server) - before[name] for name, server in servers.items()}
    text = "\n".join(
        [
            f"`python benchmarks/engines.py`: {options.count} real schemas, {options.clients} clients, at most "
            f"{options.max_tokens} tokens, temperature 0; SmolLM2-135M-Instruct in float32 on {os.cpu_count()} cores, "
            f"Python {platform.python_version()}, load average {os.getloadavg()[0]:.0f}.",
            "",
            "| backend | valid | complete | refused | tokens a second | over structgen | tokens | tokens a pass |",
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
            *table(results, passes),
            "",
            "What was not valid:",
            "",
            *sorted(failures(results)),
            "",
        ]
    )
    print(text)
    if options.record is not None:
        options.record.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
