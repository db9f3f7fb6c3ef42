"""``structgen serve`` in a process of its own, with the embedded model: what HTTP costs, and what many clients get.

*One client*: the same requests go to ``generate`` in this process and to the server in turn, with the same greedy
outputs; medians of the differences to the first text and for a further token.  Both are a worker of a ``Batch`` and
answer the same requests in the same order, so they share the same prompts and their drafters remember the same answers:
as many passes show it, and what is left is the server.  The first text of JSON is forced, and comes before any pass.
*Many clients*: N requests one after the other, then by N clients at once, in a server that has not met the schema;
tokens a second of both, and the times between the passes of a client, from its second piece of text on (median, 99 %).
*A long prompt*: while a client reads a long answer, another one comes with a prompt of 1,000 tokens; the longest wait
of the first one, in its ordinary passes.

Usage: python benchmarks/serving.py [--clients 16] [--rounds 3] [--runtime R] [--record FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

from batching import PLACES, PROMPT, SCHEMA

import structgen as sg
from structgen.models import Batch

MAX_TOKENS: Final = 96
PATIENCE: Final = 1.0
"""As the server's."""
LONG_PROMPT: Final = 1000
OTHERS: Final = (
    *("Athens", "Berlin", "Chennai", "Dakar", "Essen", "Fez", "Geneva", "Havana", "Izmir", "Jaipur", "Kyoto", "Lagos"),
    *(
        "Malaga",
        "Naples",
        "Odense",
        "Porto",
        "Quito",
        "Rome",
        "Seoul",
        "Tunis",
        "Utrecht",
        "Vienna",
        "Warsaw",
        "Xiamen",
    ),
    *("York", "Zagreb", "Aden", "Bergen", "Cusco", "Doha", "Erfurt", "Faro", "Ghent", "Hobart", "Ibiza", "Jakarta"),
    *("Krakow", "Leeds", "Minsk", "Nice", "Omsk", "Prague", "Rabat", "Sofia", "Tirana", "Ulm", "Verona", "Wuhan"),
    *("Yerevan", "Zurich", "Amman", "Baku", "Cork", "Dover", "Exeter", "Foggia", "Graz", "Hue", "Ilorin", "Jena"),
)
AT_ONCE_S: Final = 0.004


class Timed(NamedTuple):
    """An answer, and when its pieces came, in seconds after the request."""

    text: str
    tokens: int
    moments: list[float]

    @property
    def first(self) -> float:
        """Seconds until the first piece."""
        return self.moments[0]

    @property
    def each(self) -> float:
        """Seconds for a token after the first piece."""
        return (self.moments[-1] - self.moments[0]) / max(1, self.tokens - 1)

    @property
    def gaps(self) -> list[float]:
        """Seconds between passes: pieces of one pass come at the same time.

        The first piece of JSON is forced text, which comes before the prompt has been run, so it is left out.
        """
        gaps = (after - before for before, after in itertools.pairwise(self.moments[1:]))
        return [gap for gap in gaps if gap > AT_ONCE_S]


@contextmanager
def served(arguments: list[str]) -> Iterator[str]:
    """Run the server; its address."""
    command = [sys.executable, "-m", "structgen.cli", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://(\S+?)(?=/v1)", line):
                yield found.group(1)
                break
        else:
            raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.wait(60)


def asked(address: str, prompt: str, *, max_tokens: int = MAX_TOKENS, schema: object = SCHEMA) -> Timed:
    """Send a request and read its stream."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "place", "schema": schema}}
    text, moments, usage = "", [], {}
    connection = HTTPConnection(address, timeout=600)
    connection.connect()
    began = perf_counter()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != HTTPStatus.OK:
        raise RuntimeError(answer.read().decode())
    for line in iter(answer.readline, b""):
        if not line.startswith(b"data: {"):
            continue
        moment = perf_counter() - began
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        delta = chunk["choices"][0]["delta"].get("content") if chunk["choices"] else None
        if delta:
            moments.append(moment)
            text += delta
    connection.close()
    return Timed(text, usage["completion_tokens"], moments)


def passes_of(address: str) -> int:
    """The passes that the server has counted."""
    connection = HTTPConnection(address, timeout=60)
    connection.request("GET", "/metrics")
    found = re.search(rb"^structgen_passes_total (\S+)", connection.getresponse().read(), re.MULTILINE)
    connection.close()
    assert found is not None
    return round(float(found.group(1)))


def here(batch: Batch, prompt: str) -> tuple[Timed, int]:
    """The same answer of ``generate``, and its passes."""
    moments: list[float] = []
    with batch.worker():
        began = perf_counter()
        result = sg.generate(
            batch,
            [{"role": "user", "content": prompt}],
            sg.json_schema(SCHEMA),
            max_tokens=MAX_TOKENS,
            stream=lambda chunk: moments.append(perf_counter() - began) if chunk.text else None,
        )
    return Timed(result.text, len(result.tokens), moments), result.stats.forwards


def one_client(address: str, batch: Batch, rounds: int) -> list[str]:
    """Compare the server with ``generate``."""
    first, each, same, passes, before = [], [], 0, 0, passes_of(address)
    prompts = [PROMPT.format(place=place) for place in PLACES[:8]]
    for number in range(rounds * len(prompts)):
        prompt = prompts[number % len(prompts)]
        (own, count), other = here(batch, prompt), asked(address, prompt)
        same += own.text == other.text
        passes += count
        if number:  # the first one compiles
            first.append(other.first - own.first)
            each.append(other.each - own.each)
    return [
        f"| one client: first text, over `generate` | {1000 * statistics.median(first):.2f} ms | 3 ms |",
        f"| one client: a further token, over `generate` | {1000 * statistics.median(each):.3f} ms | 0.2 ms |",
        f"| same outputs | {same} of {rounds * len(prompts)} | all |",
        f"| passes of the server, and of `generate` | {passes_of(address) - before} and {passes} | as many |",
    ]


def many_clients(address: str, count: int, rounds: int, schema: object, what: str) -> list[str]:
    """Compare clients at once with clients one after the other; no place comes twice, for drafts remember answers."""
    ratios, gaps, rates = [], [], []
    places = iter(OTHERS)

    def ask(_: int) -> Timed:
        prompt = PROMPT.format(place=next(places))
        return asked(address, prompt, schema=schema)

    for _ in range(rounds):
        began = perf_counter()
        alone = [ask(0) for _ in range(max(3, count // 4))]
        one = sum(each.tokens for each in alone) / (perf_counter() - began)
        began = perf_counter()
        with ThreadPoolExecutor(count) as pool:
            together = list(pool.map(ask, range(count)))
        rate = sum(each.tokens for each in together) / (perf_counter() - began)
        ratios.append(rate / one)
        rates.append((one, rate))
        gaps += [gap for each in together for gap in each.gaps]
    median, high = statistics.median(gaps), sorted(gaps)[int(0.99 * len(gaps))]
    one, rate = (statistics.median(each) for each in zip(*rates, strict=True))
    named, ratio = f"{count} clients, {what}", statistics.median(ratios)
    times = f"{high / median:.2f} ({1000 * high:.0f} and {1000 * median:.0f} ms)"
    return [
        f"| {named}: tokens a second, over one by one | {ratio:.2f} ({rate:.0f} and {one:.0f}) | 3 |",
        f"| {named}: between passes, 99 % over median | {times} | 3 |",
    ]


def long_prompt(address: str, rounds: int) -> list[str]:
    """Let a long prompt come while another answer is read."""
    added = []
    filler = "The quick brown fox jumps over the lazy dog near the river bank. " * (LONG_PROMPT // 14)
    for number in range(rounds):
        with ThreadPoolExecutor(2) as pool:
            reader = pool.submit(
                asked, address, f"Tell me a long story about {PLACES[number]}.", max_tokens=160, schema=None
            )
            sleep(1.5)
            pool.submit(asked, address, f"{number} {filler} Summarise it.", max_tokens=4, schema=None).result()
            gaps = reader.result().gaps
        ordinary = statistics.median(gaps)
        added.append(max(gaps) / ordinary - 1)
    what = "a prompt of 1,000 tokens: what it adds to the longest wait of others, in ordinary passes"
    return [f"| {what} | {statistics.median(added):.1f} | 2 |"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runtime", choices=("torch", "llama.cpp"), default=None)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    if arguments.rounds * (arguments.clients + max(3, arguments.clients // 4)) > len(OTHERS):
        parser.error(f"there are {len(OTHERS)} places: choose fewer --clients or --rounds")
    extra = ["--runtime", arguments.runtime] if arguments.runtime else []
    lines = ["| what | measured | bound |", "| --- | --- | --- |"]
    model = sg.load_model(runtime=arguments.runtime or "auto")
    with served(extra) as address, Batch(model, patience=PATIENCE) as batch:
        lines += one_client(address, batch, arguments.rounds)
        sys.stderr.write("\n".join(lines) + "\n")
        lines += long_prompt(address, arguments.rounds)
    for schema, what in ((SCHEMA, "JSON"), (None, "free text")):
        with served(extra) as address:
            asked(address, "Say hello.", max_tokens=8, schema=None)
            lines += many_clients(address, arguments.clients, arguments.rounds, schema, what)
            sys.stderr.write("\n".join(lines[-2:]) + "\n")
    runtime = arguments.runtime or "llama.cpp where it is installed"
    head = (
        f"# The server\n\n`python {' '.join(['benchmarks/serving.py', *sys.argv[1:]])}`\n\n"
        f"{os.cpu_count()} cores, Python {platform.python_version()}, {runtime}, "
        f"load average {os.getloadavg()[0]:.1f} at the end.\n\n"
    )
    text = head + "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if arguments.record:
        arguments.record.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
