"""Hours of ``structgen serve`` under clients of all kinds; each answer is judged by other validators.

Two servers run, each a process of its own: one with a model of noise, which has the tokens of the embedded model and
costs little, and one with the embedded model.  Clients ask them in random order what ``soak_requests.py`` and
``soak_refusals.py`` have: all endpoints, streamed or not; clients that go away, that are slow, that send what is
broken, too large or not theirs.  A wrong output, a status of 500 or above, an error that is not the client's, a refusal
of what is right, a bad request that is not refused, a traceback in a log, and an answer that takes ten minutes are
findings; so is what a server still holds after the last client has gone.  Memory, handles and threads of each server
are sampled sixty times; five times all clients wait, so that memory can be seen without what is being written.

Usage: python benchmarks/soak_server.py [--hours H] [--clients 16] [--embedded 3] [--seed N] [--record FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import re
import statistics
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

os.environ.setdefault("STRUCTGEN_CACHE_MB", "16")  # full before the first rest, so that growth is none of the caches'

import httpx
import numpy as np
from server_process import Running, free_port, running, structgen_command
from soak_client import HANGS_S, Cases, Client, Target
from soak_ledger import Ledger, Sample, curves, percentile, sampled
from soak_refusals import REFUSALS
from soak_requests import ACTIONS
from soak_sources import Workbench

import structgen as sg
from structgen.models.llama.embedded import embedded_gguf

BUILD: Final = Path("build/soak")
KEY: Final = "soak-key"
SAMPLES: Final = 60
FINDINGS: Final = 20
FLAT: Final = 0.05
REST_EVERY: Final = 12
"""Samples from one rest to the next; the first rest is after a fifth of the run, when caches are full."""
REST_S: Final = 45
"""The server collects and gives free memory back every 21 s, on a busy machine later."""
ROOM: Final = {"--max-running": 8, "--max-queue": 16}
FAULTS: Final = re.compile(
    rb"Traceback|exception|never (?:awaited|retrieved)|(?:Runtime|Resource)Warning", re.IGNORECASE
)


def write_noise(path: Path) -> None:
    """Write a model of one layer of noise, with the tokens and the chat template of the embedded model."""
    import gguf

    source = gguf.GGUFReader(embedded_gguf())
    width, hidden, heads, size = 64, 64, 2, 49152
    changed = {
        "llama.block_count": 1,
        "llama.embedding_length": width,
        "llama.feed_forward_length": hidden,
        "llama.attention.head_count": heads,
        "llama.attention.head_count_kv": heads,
        "llama.rope.dimension_count": width // heads,
        "general.file_type": 0,
        "general.name": "noise",
    }
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, entry in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, inner = entry.types[0], entry.types[-1] if len(entry.types) > 1 else None
        writer.add_key_value(name, changed.get(name, entry.contents()), kind, inner)
    rng = np.random.default_rng(1)
    square = (width, width)
    parts = {"attn_norm": (width,), "attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square}
    parts |= {"ffn_norm": (width,), "ffn_gate": square, "ffn_up": square, "ffn_down": square}
    shapes = {"token_embd": (size, width), "output_norm": (width,), "output": (size, width)}
    for name, shape in {**shapes, **{f"blk.0.{part}": shape for part, shape in parts.items()}}.items():
        writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, dtype=np.float32) / 3)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@dataclass
class Served:
    """A server under load.

    Attributes:
        name: of its model.
        held: the process.
        idle: the process before the first client.
        samples: while it works.
        rests: while all clients pause, answers are done and free memory has been given back.
        after: once all clients have gone.
    """

    name: str
    held: Running
    idle: Sample
    samples: list[Sample] = field(default_factory=list)
    rests: list[Sample] = field(default_factory=list)
    after: Sample | None = None

    def sampled(self, seconds: float, ms: Sequence[float] = (), outputs: int = 0) -> Sample:
        """Look at the process."""
        return sampled(self.held.process.pid, seconds, ms, outputs)

    def get(self, path: str) -> httpx.Response:
        """Ask it something."""
        return httpx.get(self.held.url + path, headers={"Authorization": f"Bearer {KEY}"}, timeout=60)

    @property
    def growth(self) -> float:
        """By how much memory at rest grows after the first rest, along a line through the rests."""
        if len(self.rests) < 3:
            return 0.0
        times, sizes = [each.seconds for each in self.rests], [each.rss_mb for each in self.rests]
        slope = statistics.linear_regression(times, sizes).slope
        return slope * (times[-1] - times[0]) / statistics.fmean(sizes)

    def wait_until_idle(self) -> bool:
        """Wait until no answer is written or waits, for a minute; whether that is so."""
        for _ in range(120):
            state = self.get("/health").json()
            if not state["running"] and not state["waiting"]:
                return True
            time.sleep(0.5)
        return False


@dataclass
class Crowd:
    """All clients, each in a thread, which work until they are told to rest or to stop.

    Attributes:
        servers: whom they ask.
        ledger: what happened.
        seed: of what they do.
        began: when.
    """

    servers: Sequence[Served]
    ledger: Ledger
    seed: int
    began: float = field(default_factory=time.monotonic)
    stopped: threading.Event = field(default_factory=threading.Event)
    open_gate: threading.Event = field(default_factory=threading.Event)
    busy: set[int] = field(default_factory=set)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self.began

    def work(self, number: int, client: Client) -> None:
        """Turn after turn of one client."""
        rng = random.Random(f"{self.seed} {number}")
        turns = {**ACTIONS, **REFUSALS}
        while not self.stopped.is_set():
            self.open_gate.wait()
            self.busy.add(number)
            (action,) = rng.choices(list(turns), list(turns.values()))
            task = rng.randrange(1 << 40)
            self.ledger.running[number] = time.monotonic(), f"{action.__name__}, seed {task}"
            with client.working(action.__name__, task):
                try:
                    action(client, random.Random(task))
                except (AssertionError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):
                    client.found(traceback.format_exc()[-3000:])
            self.busy.discard(number)

    def rest(self) -> None:
        """Let all clients pause, and look at what the servers hold then."""
        self.open_gate.clear()
        until = time.monotonic() + 2 * HANGS_S
        while self.busy and time.monotonic() < until:
            time.sleep(0.2)
        for number in set(self.busy):
            self.ledger.found(f"a client does not end: {self.ledger.running[number]}")
        for server in self.servers:
            if not server.wait_until_idle():
                self.ledger.found(f"{server.name}: answers are written for nobody")
        for _ in range(REST_S):  # of work: all processes may be stopped for a while, and servers free nothing then
            time.sleep(1)
        for server in self.servers:
            server.rests.append(server.sampled(self.seconds))
        print(f"{self.seconds:7.0f} s  at rest: {self._shown([each.rests for each in self.servers])}", file=sys.stderr)
        self.open_gate.set()

    def look(self) -> bool:
        """Sample the servers; False if one has ended."""
        ms, outputs = self.ledger.taken()
        for server in self.servers:
            if server.held.process.poll() is not None:
                self.ledger.found(f"{server.name}: the server has ended with {server.held.process.returncode}")
                return False
            server.samples.append(server.sampled(self.seconds, ms, outputs))
        shown, tasks = self._shown([each.samples for each in self.servers]), sum(self.ledger.tasks.values())
        print(f"{self.seconds:7.0f} s  {shown}  {tasks} tasks  {outputs} outputs", file=sys.stderr, flush=True)
        return True

    def _shown(self, samples: Sequence[list[Sample]]) -> str:
        sizes = (f"{each.name} {held[-1].rss_mb:.0f} MB" for each, held in zip(self.servers, samples, strict=True))
        return ", ".join(sizes)


def soak(servers: Sequence[Served], clients: Sequence[Client], hours: float, seed: int, ledger: Ledger) -> None:
    """Let all clients work for some hours, rests not counted."""
    crowd = Crowd(servers, ledger, seed)
    threads = [threading.Thread(target=crowd.work, args=each, daemon=True) for each in enumerate(clients)]
    for thread in threads:
        thread.start()
    crowd.open_gate.set()
    for number in range(SAMPLES + 1):
        time.sleep(3600 * hours / SAMPLES if number else 0.0)
        if not crowd.look():
            break
        if number and number % REST_EVERY == 0:
            crowd.rest()
    crowd.stopped.set()
    for thread in threads:
        thread.join(HANGS_S)


def settle(server: Served, ledger: Ledger) -> None:
    """Look at a server that nobody asks any more, and end it while answers are being written."""
    time.sleep(5)
    server.after = server.sampled(0.0)
    for what in ("handles", "threads"):
        before, after = getattr(server.idle, what), getattr(server.after, what)
        if after > before + 10:  # the executors' threads, and connections that are kept
            ledger.found(f"{server.name}: {after} {what} after the last client, {before} before the first")
    counted = server.get("/metrics").text
    for line in re.findall(r'^structgen_requests_total\{.*status="5.*$', counted, re.MULTILINE):
        ledger.found(f"{server.name}: {line}")

    def last() -> None:
        body = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 24, "stream": True}
        headers = {"Authorization": f"Bearer {KEY}"}
        text = httpx.post(f"{server.held.url}/v1/chat/completions", json=body, headers=headers, timeout=HANGS_S).text
        if not text.endswith("data: [DONE]\n\n") or '"error"' in text:
            ledger.found(f"{server.name}: an answer was cut off at the end: {text[-500:]}")

    writer = threading.Thread(target=last)
    writer.start()
    while writer.is_alive() and not server.get("/health").json()["running"]:
        time.sleep(0.01)
    if (status := server.held.end()) not in (0, -15):
        ledger.found(f"{server.name}: exit status {status}")
    writer.join()
    log = server.held.log.read_bytes()
    for found in list(FAULTS.finditer(log))[:3]:
        ledger.found(f"{server.name}: in its log: {log[found.start() : found.start() + 3000].decode(errors='replace')}")


def report(ledger: Ledger, servers: Sequence[Served], options: argparse.Namespace, bench: Workbench) -> str:
    """The record, as Markdown."""
    verdicts: Counter[str] = sum(ledger.verdicts.values(), Counter())
    schemas = f"{len(bench.schemas)} real ones and generated ones" if bench.schemas else "generated ones"
    minutes = servers[0].samples[-1].seconds / 60
    lines = [
        "# The server for hours",
        "",
        f"`make soak-server H={options.hours:g}`, seed {options.seed}: {minutes:.0f} minutes, {options.clients} "
        f"clients, {options.embedded} of them of the embedded model; Python {platform.python_version()}, "
        f"{os.cpu_count()} processors shared with the clients and other processes (load average "
        f"{os.getloadavg()[2]:.0f}).",
        f"Schemas: {schemas}. `--max-running {ROOM['--max-running']} --max-queue {ROOM['--max-queue']}`, caches of "
        f"{os.environ['STRUCTGEN_CACHE_MB']} MB, which are full early. `benchmarks/soak_server.py` says what is random "
        "and who judges.",
        "",
        f"**{sum(verdicts.values())} outputs: {verdicts['valid']} valid, {verdicts['invalid']} invalid**, "
        f"{verdicts['disputed']} on which validators disagree. {sum(ledger.tasks.values())} turns of clients, "
        f"{sum(each['gone away'] for each in ledger.errors.values())} of clients that went away. "
        f"Findings: {len(ledger.findings)}.",
        "",
        "| what clients do | turns | outputs | invalid | refused, ended or left | ms: median | 99 % | most |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in sorted(ledger.tasks):
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(ledger.errors[name].items())) or "-"
        times, counts = sorted(ledger.ms[name]), ledger.verdicts[name]
        lines.append(
            f"| {name} | {ledger.tasks[name]} | {sum(counts.values())} | {counts['invalid']} "
            f"| {listed} | {percentile(times, 0.5):.0f} | {percentile(times, 0.99):.0f} | {percentile(times, 1):.0f} |"
        )
    shown: list[tuple[str, list[float]]] = []
    for each in servers:
        shown += [
            (f"{each.name}: memory, MB", [sample.rss_mb for sample in each.samples]),
            (f"{each.name}: handles", [float(sample.handles) for sample in each.samples]),
            (f"{each.name}: threads", [float(sample.threads) for sample in each.samples]),
        ]
    ms = [sample.ms for sample in servers[0].samples[1:]]
    shown += [
        ("ms of a turn, median", [percentile(each, 0.5) for each in ms]),
        ("ms of a turn, 99 %", [percentile(each, 0.99) for each in ms]),
    ]
    lines += ["", *curves(shown), ""]
    for each in servers:
        after = each.after or each.samples[-1]
        rests = ", ".join(f"{rest.rss_mb:.0f}" for rest in each.rests)
        lines.append(
            f"- {each.name}: memory at rest, with all clients waiting, {rests} MB: {100 * each.growth:+.1f} % from the "
            f"first rest to the last, along a line (bound: {100 * FLAT:.0f} %). Without clients {each.idle.rss_mb:.0f} "
            f"MB, {each.idle.handles} handles and {each.idle.threads} threads before, {after.rss_mb:.0f} MB, "
            f"{after.handles} and {after.threads} after."
        )
    if options.hours < 1:
        lines += ["", "Memory is to be judged by a run of an hour, which is still to be made."]
    if ledger.findings:
        lines += ["", "Findings:", ""]
        for finding in ledger.findings[:FINDINGS]:
            lines += ["```", finding, "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Run, and return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--embedded", type=int, default=3, help="how many of the clients ask the embedded model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="write the record to this file")
    options = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    noise = BUILD / "noise.gguf"
    write_noise(noise)
    bench, ledger = Workbench(options.seed, has_embedded=options.embedded > 0), Ledger()
    vocabulary = sg.Vocabulary.load(noise)
    cases = Cases(bench, vocabulary)
    counts = {"noise": options.clients - options.embedded, "embedded": options.embedded}
    servers: list[Served] = []
    clients: list[Client] = []
    with ExitStack() as stack:
        for name, count in counts.items():
            if not count:
                continue
            port, flags = free_port(), [str(each) for pair in ROOM.items() for each in pair]
            command = structgen_command(
                port, "--api-key", KEY, *flags, *(["--model", str(noise)] if name == "noise" else [])
            )
            held = stack.enter_context(running(command, port, BUILD / f"{name}.log"))
            servers.append(Served(name, held, sampled(held.process.pid, 0.0, [], 0)))
            clients += [
                Client(Target(held.url, KEY, sum(ROOM.values()), vocabulary), cases, ledger) for _ in range(count)
            ]
        soak(servers, clients, options.hours, options.seed, ledger)
        for client in clients:
            client.http.close()
        for server in servers:
            settle(server, ledger)
    for server in servers:
        if options.hours >= 1 and server.growth > FLAT:
            ledger.found(f"{server.name}: memory at rest grows by {100 * server.growth:.1f} %")
    text = report(ledger, servers, options, bench)
    print(text)
    if options.record is not None:
        options.record.write_text(text)
    return 1 if ledger.findings else 0


if __name__ == "__main__":
    sys.exit(main())
