"""Sampling whole outputs from the embedded model: what it costs, how near it comes, and genlm-control beside it.

Four parts, each a table (``--only`` takes some of them):

- ``queries``: how often AWRS queries the automaton about a token, for each token that is written.
- ``predicate``: AWRS against masking by predicate, where each answer takes a millisecond.
- ``accuracy``: the distance of the distribution of one output from the target, in languages in which locally
  constrained decoding (LCD) goes wrong; the target is known from scoring all members in all their spellings.
- ``peer``: time and log-evidence beside genlm-control on the same tasks with the same weights.  It lives in an
  environment of its own, whose Python ``--peer-python`` names (``python -m venv DIR``, then ``DIR/bin/pip install
  torch genlm-control``).  Runs of both alternate, and the one that does not run waits.

Usage: python benchmarks/sampling.py [--only PARTS] [--peer-python PYTHON] [--repeats 7] [--record FILE]
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, Final

import numpy as np
from sampling_exact import Remembering, distance, local_distribution, log_sum, scored
from sampling_tasks import ASKED, MYOPIC, SHARED, MyopicTask, Predicate, SharedTask

from structgen.decode import Multinomial
from structgen.decode.sampling import AWRS, SMC, Samples, SequenceSampler, run_sampler
from structgen.decode.step.context import Context
from structgen.engine import Constraint, compile
from structgen.frontends.regex import regex
from structgen.methods.samplers.prefix_trie import PrefixTrie
from structgen.methods.samplers.trie_sampler import ASAp
from structgen.models import load_model
from structgen.models.protocol import Prompt

PARTS: Final = ("queries", "predicate", "accuracy", "peer")
PARTICLES: Final = (4, 8, 16)
ESS_THRESHOLD: Final = 0.5
RESAMPLING: Final = "stratified"
ASAP_DRAWN: Final = (0, 1, 4, 16, 64, 256)
HERE: Final = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class Settings:
    """The options.

    Attributes:
        model: the embedded model.
        threads: of torch, in both libraries.
        repeats: timed runs of each kind.
        evidence_runs: runs whose evidence is compared.
        accuracy_runs: runs with one particle; with more there are fewer.
        peer_python: the Python of the peer's environment.
        peer_timeout: how long the peer's forward passes wait for more sequences to join, in seconds.
        predicate_seconds: what an answer of the expensive predicate takes.
    """

    model: Any
    threads: int
    repeats: int
    evidence_runs: int
    accuracy_runs: int
    peer_python: Path | None
    peer_timeout: float
    predicate_seconds: float


def run(
    sampler: SequenceSampler, context: Context, constraint: Constraint, max_tokens: int, seed: int, **named: Any
) -> Samples:
    """Sample once after a prompt that is in a context."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return run_sampler(sampler, context, constraint, max_tokens=max_tokens, generator=generator, **named)


def prompted(model: Any, prompt: Prompt) -> Context:
    """The prompt, run through the model but for its last token."""
    context = Context(model, model.encode_prompt(prompt))
    context.read()
    return context


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def part_queries(settings: Settings) -> str:
    """How often the automaton is queried."""
    size = settings.model.vocabulary.size
    rows = []
    totals: dict[str, list[int]] = {}
    for task in ASKED:
        constraint = compile(task.grammar, settings.model.vocabulary)
        with prompted(settings.model, task.prompt) as context:
            for label, mask_after in (("never a mask", None), ("a mask after 8", 8)):
                sampler = SMC(4, proposal=AWRS(mask_after=mask_after))
                runs = [run(sampler, context, constraint, task.max_tokens, seed) for seed in range(settings.repeats)]
                counts = [sum(getattr(each, name) for each in runs) for name in ("tokens", "queries", "masks")]
                totals[label] = [old + new for old, new in zip(totals.get(label, [0, 0, 0]), counts, strict=True)]
                tokens, queries, masks = counts
                rows.append([task.name, label, *map(str, counts), f"{queries / tokens:.1f}", f"{masks / tokens:.2f}"])
                progress(f"queries: {rows[-1]}")
    for label, counts in totals.items():
        tokens, queries, masks = counts
        rows.append(["**all**", label, *map(str, counts), f"**{queries / tokens:.1f}**", f"{masks / tokens:.2f}"])
    return (
        f"`SMC(4, proposal=AWRS(mask_after=...))`, {settings.repeats} runs of each task. Masking by predicate asks "
        f"about {size:,} tokens each time. `mask_after=None` never fills a mask, as a parser would that has none; with "
        "8 the mask is filled after eight rejected tokens. Tokens are those of all different sequences, stops "
        "included.\n\n"
        + table(["task", "AWRS", "tokens", "queries", "masks", "queries a token", "masks a token"], rows)
    )


def part_predicate(settings: Settings) -> str:
    """An expensive predicate."""
    constraint = compile(Predicate.grammar, settings.model.vocabulary)
    rows = []
    costs = []
    with prompted(settings.model, Predicate.prompt) as context:
        for label, proposal, seeds in (
            ("`AWRS()`", AWRS(), range(5)),
            ("`AWRS(mask_after=None)`", AWRS(mask_after=None), range(5)),
            ("`Multinomial()`: masking by predicate", Multinomial(), range(1)),
        ):
            seconds, tokens, queries = [], 0, 0
            for seed in seeds:
                predicate = Predicate(settings.predicate_seconds)
                sampler = SMC(1, proposal=proposal)
                began = perf_counter()
                found = run(
                    sampler, context, constraint, Predicate.max_tokens, seed, potentials=[predicate.potential()]
                )
                seconds.append(perf_counter() - began)
                tokens, queries = tokens + found.tokens, queries + predicate.queries
                progress(f"predicate: {label} {seconds[-1]:.2f} s, {[each.text for each in found.results]}")
            costs.append(sum(seconds) / tokens)
            figures = f"{queries / tokens:,.1f}", f"{statistics.median(seconds):.2f}", f"{1000 * costs[-1]:,.1f}"
            rows.append([label, f"{len(seeds)}", f"{tokens}", *figures])
    for row, cost in zip(rows, costs, strict=True):
        row.append(f"{costs[-1] / cost:.0f}")
    return (
        f"The grammar is `SELECT name FROM name`, and the predicate whether SQLite can run that on a database of three "
        f"tables, or it begins such a query; each answer takes {1000 * settings.predicate_seconds:.0f} ms. One "
        "particle.\n\n"
        + table(
            ["proposal", "runs", "tokens", "predicate calls a token", "s a run, median", "ms a token", "times faster"],
            rows,
        )
    )


def part_accuracy(settings: Settings) -> str:
    """The distribution of one output."""
    counts = (1, 4, 16, 64)
    rows, asap_rows = [], []
    for task in MYOPIC:
        model = Remembering(settings.model)
        prompt = model.encode_prompt(task.prompt)
        distribution = scored(model, prompt, task.members, task.max_tokens)
        evidence = log_sum(np.array(list(distribution.values())))
        target = {tokens: math.exp(log_p - evidence) for tokens, log_p in distribution.items()}
        constraint = compile(regex(task.pattern), model.vocabulary)
        context = Context(model, prompt)
        local = distance(target, exponential(local_distribution(model, prompt, distribution)))
        row = [task.name, f"{len(task.members)}", f"{len(distribution)}", f"{evidence:.2f}", f"{local:.3f}"]
        for count in counts:
            runs = max(settings.accuracy_runs // max(count // 4, 1), 100)
            sampler = SMC(count, proposal=Multinomial()) if count == 1 else SMC(count)
            mean, spread = averaged(run(sampler, context, constraint, task.max_tokens, seed) for seed in range(runs))
            if not mean.keys() <= target.keys():
                sys.exit(f"{task.name}: an output is not a member")
            row.append(f"{distance(target, mean):.3f} ± {spread:.3f}")
        rows.append(row)
        progress(f"accuracy: {row}")
        asap_rows.append([task.name, *asap_distances(settings, model, context, constraint, task, distribution)])
        progress(f"accuracy: ASAp {asap_rows[-1]}")
    return (
        "Total variation between the target and the distribution of one output (sequences of tokens, not texts). LCD "
        "is exact, "
        "from its own product of masked distributions. That of `SMC(n)` is the average of the normalised weights over "
        f"{settings.accuracy_runs} runs (n = 1 and 4; fewer with more, 100 at least); after ± half the sum of the "
        "standard errors of all sequences, about what the distance would be by chance alone.\n\n"
        + table(
            ["task", "members", "spellings", "log-evidence", "LCD", "SMC(1), Multinomial"]
            + [f"SMC({count})" for count in counts[1:]],
            rows,
        )
        + "\n\nThe same of the next output of ASAp after so many outputs, averaged over tries that learned from "
        "different seeds; in brackets by how much the trie's bound on the log-evidence, which never rises, is above it:"
        "\n\n" + table(["task", *(f"{count}" for count in ASAP_DRAWN)], asap_rows)
    )


def exponential(distribution: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    return {tokens: math.exp(log_p) for tokens, log_p in distribution.items()}


def averaged(draws: Iterable[Samples]) -> tuple[dict[tuple[int, ...], float], float]:
    """The average of normalised weights, and half the sum of its standard errors."""
    sums: dict[tuple[int, ...], float] = {}
    squares: dict[tuple[int, ...], float] = {}
    runs = 0
    for found in draws:
        runs += 1
        for weight, result in zip(found.weights.tolist(), found.results, strict=True):
            sums[result.tokens] = sums.get(result.tokens, 0.0) + weight
            squares[result.tokens] = squares.get(result.tokens, 0.0) + weight**2
    mean = {tokens: total / runs for tokens, total in sums.items()}
    errors = (math.sqrt(max(squares[tokens] / runs - mean[tokens] ** 2, 0.0) / runs) for tokens in mean)
    return mean, 0.5 * sum(errors)


def asap_distances(
    settings: Settings,
    model: Remembering,
    context: Context,
    constraint: Constraint,
    task: MyopicTask,
    distribution: dict[tuple[int, ...], float],
) -> list[str]:
    """The distance of the next output's distribution, worked out from the trie, not sampled."""
    chains = max(settings.accuracy_runs // 50, 5)
    evidence = log_sum(np.array(list(distribution.values())))
    target = {tokens: math.exp(log_p - evidence) for tokens, log_p in distribution.items()}
    means: list[dict[tuple[int, ...], float]] = [{} for _ in ASAP_DRAWN]
    excess = [0.0 for _ in ASAP_DRAWN]
    for seed in range(chains):
        trie = PrefixTrie()
        sampled = 0
        for index, wanted in enumerate(ASAP_DRAWN):
            if wanted > sampled:
                run(
                    ASAp(samples=wanted - sampled, trie=trie),
                    context,
                    constraint,
                    task.max_tokens,
                    1000 * seed + sampled,
                )
                sampled = wanted
            excess[index] += (success(trie, (), is_end=False) - evidence) / chains
            nexts = local_distribution(model, context.tokens, distribution, partial(success, trie))
            for tokens, log_p in nexts.items():
                means[index][tokens] = means[index].get(tokens, 0.0) + math.exp(log_p) / chains
    return [f"{distance(target, mean):.3f} ({more:.2f})" for mean, more in zip(means, excess, strict=True)]


def success(trie: PrefixTrie, tokens: tuple[int, ...], *, is_end: bool) -> float:
    """What a trie knows of a prefix, or of an output; 0 where it knows nothing."""
    node = trie.root
    for token in (*tokens, -1) if is_end else tokens:
        child = node.children.get(token)
        if child is None:
            return 0.0
        node = child
    return float(node.log_success)


class Peer:
    """The worker in the peer's environment.

    Raises:
        RuntimeError: a request failed.
    """

    def __init__(self, settings: Settings) -> None:
        command = [str(settings.peer_python), str(HERE / "sampling_peer.py")]
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )
        vocabulary = settings.model.vocabulary
        names = {token["id"]: token["content"] for token in added_tokens(settings.model.folder)}
        self.about = self.ask(
            op="load",
            folder=str(settings.model.folder),
            threads=settings.threads,
            eos=[names[token] for token in vocabulary.eos],
            timeout=settings.peer_timeout,
        )
        if sorted(self.about["eos"]) != sorted(vocabulary.eos):
            raise RuntimeError(f"the peer ends outputs with {self.about['eos']}, structgen with {vocabulary.eos}")

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the peer has no pipes")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"the peer: {answer['error']}")
        return answer

    def run(self, task: SharedTask | MyopicTask, particles: int, seed: int, *, keep_logits: bool) -> dict[str, Any]:
        """Run a prepared task once in the worker."""
        return self.ask(
            op="run",
            name=task.name,
            particles=particles,
            ess_threshold=ESS_THRESHOLD,
            resampling=RESAMPLING,
            max_tokens=task.max_tokens,
            seed=seed,
            keep_logits=keep_logits,
        )

    def close(self) -> None:
        """End the worker."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(60)


def added_tokens(folder: Path) -> list[dict[str, Any]]:
    tokens: list[dict[str, Any]] = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    return tokens


def part_peer(settings: Settings) -> str:
    """The peer beside us."""
    if settings.peer_python is None or not settings.peer_python.exists():
        return f"Left out: no Python with genlm-control ({settings.peer_python or '--peer-python is not given'})."
    peer = Peer(settings)
    try:
        times, evidence = peer_times(settings, peer), peer_evidence(settings, peer)
    finally:
        peer.close()
    versions = ", ".join(f"{name} {number}" for name, number in peer.about["versions"].items())
    return (
        f"The peer: {versions}; {peer.about['dtype']}, {settings.threads} threads; AWRS with `{RESAMPLING}` resampling "
        f"at an ESS below {ESS_THRESHOLD}, the same prompt tokens, EOS ids and numbers of tokens (the peer's "
        "`max_tokens` counts the stop). Both have the prompt cached before the clock starts, and forget the logits of "
        f"the run before. The peer's forward passes wait {1000 * settings.peer_timeout:.0f} ms for company (20 ms is "
        "its default). Automata are compiled, and a run of each has warmed the caches. Medians of "
        f"{settings.repeats} alternating runs; processor time is that of all threads, which other work on the machine "
        "disturbs less. The languages are those in which both agree: the peer takes the members of JSON objects in "
        "any order, any number of blanks and one line break between characters, and special tokens for their text, so "
        f"there is no `<`.\n\n{times}\n\n"
        f"Log-evidence, the logarithm of the average estimate of {settings.evidence_runs} runs with 16 particles, with "
        "its standard error; logits are remembered between these runs. *z* is the difference in standard errors, of "
        "both together or against the exact value, which is known from scoring all members in all their spellings."
        f"\n\n{evidence}"
    )


def peer_times(settings: Settings, peer: Peer) -> str:
    rows = []
    for task in SHARED:
        constraint = compile(regex(task.pattern), settings.model.vocabulary)
        with prompted(settings.model, task.prompt) as context:
            peer.ask(
                op="task",
                name=task.name,
                prompt=list(context.tokens),
                regex=None if task.schema else task.pattern,
                schema=task.schema,
            )
            for particles in PARTICLES:
                sampler = SMC(particles, ess_threshold=ESS_THRESHOLD, resampling=RESAMPLING)
                ours: list[tuple[float, float, int]] = []
                theirs: list[dict[str, Any]] = []
                for seed in range(settings.repeats + 1):
                    gc.collect()
                    began, worked = perf_counter(), process_time()
                    found = run(sampler, context, constraint, task.max_tokens, seed)
                    ours.append((perf_counter() - began, process_time() - worked, found.forwards))
                    theirs.append(peer.run(task, particles, seed, keep_logits=False))
                    progress(f"peer: {task.name}, {particles}: {ours[-1][0]:.2f} s, {theirs[-1]['seconds']:.2f} s")
                mine = [statistics.median(column) for column in zip(*ours[1:], strict=True)]
                keys = "seconds", "processor_seconds", "forwards", "queries"
                other = [statistics.median(each[key] for each in theirs[1:]) for key in keys]
                rows.append(
                    [
                        task.name,
                        f"{particles}",
                        *(f"{mine[0]:.2f}", f"{other[0]:.2f}", f"{other[0] / mine[0]:.1f}"),
                        *(f"{mine[1]:.2f}", f"{other[1]:.2f}", f"{other[1] / mine[1]:.1f}"),
                        *(f"{mine[2]:.0f}", f"{other[2]:.0f}", f"{other[3]:,.0f}"),
                    ]
                )
    head = ["task", "particles", "s a run", "peer's", "ratio", "processor s a run", "peer's", "ratio"]
    return table([*head, "forward passes", "peer's", "peer's queries"], rows)


def peer_evidence(settings: Settings, peer: Peer) -> str:
    rows = []
    for task in (*MYOPIC, *SHARED):
        model = Remembering(settings.model)
        prompt = model.encode_prompt(task.prompt)
        exact = None
        if isinstance(task, MyopicTask):
            exact = log_sum(np.array(list(scored(model, prompt, task.members, task.max_tokens).values())))
            peer.ask(op="task", name=task.name, prompt=prompt, regex=task.pattern, schema=None)
        constraint = compile(regex(task.pattern), model.vocabulary)
        context = Context(model, prompt)
        sampler = SMC(16, ess_threshold=ESS_THRESHOLD, resampling=RESAMPLING)
        ours = [
            run(sampler, context, constraint, task.max_tokens, seed).log_evidence
            for seed in range(settings.evidence_runs)
        ]
        theirs = [
            peer.run(task, 16, seed, keep_logits=seed > 0)["log_evidence"] for seed in range(settings.evidence_runs)
        ]
        (mine, my_error), (other, its_error) = log_mean(ours), log_mean(theirs)
        both = (mine - other) / math.hypot(my_error, its_error)
        rows.append(
            [task.name, "-" if exact is None else f"{exact:.3f}"]
            + [f"{mine:.3f} ± {my_error:.3f}", f"{other:.3f} ± {its_error:.3f}", f"{both:+.1f}"]
            + [
                "-" if exact is None else f"{(each - exact) / error:+.1f}"
                for each, error in ((mine, my_error), (other, its_error))
            ]
        )
        progress(f"peer: evidence {rows[-1]}")
    head = [
        "task",
        "exact",
        "structgen",
        "genlm-control",
        "z",
        "z, structgen against exact",
        "z, genlm-control against exact",
    ]
    return table(head, rows)


def log_mean(logs: Sequence[float | None]) -> tuple[float, float]:
    """The logarithm of the mean of exponentials, and its standard error by the delta method."""
    values = np.array([-np.inf if each is None else each for each in logs])
    ratios = np.exp(values - values.max())
    mean = float(ratios.mean())
    return float(values.max()) + math.log(mean), float(ratios.std(ddof=1)) / mean / math.sqrt(len(ratios))


def machine(threads: int) -> str:
    import torch

    try:
        commit = subprocess.run(
            ["git", "-C", str(HERE), "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return (
        f"commit {commit}, {platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"numpy {version('numpy')}, torch {torch.__version__} with {threads} threads, SmolLM2-135M-Instruct in "
        f"float32, load average {os.getloadavg()[0]:.1f} at the end"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--peer-python", type=Path)
    parser.add_argument("--peer-timeout", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--evidence-runs", type=int, default=60)
    parser.add_argument("--accuracy-runs", type=int, default=2000)
    parser.add_argument("--predicate-ms", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    wanted = arguments.only.split(",")
    unknown = [part for part in wanted if part not in PARTS]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is not one of {', '.join(PARTS)}")
    settings = Settings(
        model=load_model(device="cpu", runtime="torch", threads=arguments.threads),
        threads=arguments.threads,
        repeats=arguments.repeats,
        evidence_runs=arguments.evidence_runs,
        accuracy_runs=arguments.accuracy_runs,
        peer_python=arguments.peer_python,
        peer_timeout=arguments.peer_timeout,
        predicate_seconds=arguments.predicate_ms / 1000,
    )
    titles = {
        "queries": ("Queries to the automaton", part_queries),
        "predicate": ("An expensive predicate", part_predicate),
        "accuracy": ("How near the target", part_accuracy),
        "peer": ("Beside genlm-control", part_peer),
    }
    sections = []
    for part in wanted:
        title, measure = titles[part]
        sections.append(f"## {title}\n\n{measure(settings)}")
        print(sections[-1] + "\n", flush=True)
    about = machine(arguments.threads)
    print(about)
    if arguments.record:
        body = "\n\n".join(sections)
        arguments.record.write_text(
            f"# Sampling on the embedded model\n\n`python benchmarks/sampling.py`: {about}.\n\n{body}\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
