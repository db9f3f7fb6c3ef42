"""Run the fuzzers: ``python tests/fuzz/campaign.py NAME --seconds 60``, or all of them, one after the other.

The targets in Python run under atheris, which looks for new branches of structgen; ``native`` is a program that ``make
fuzz`` builds. What is found lies in ``build/fuzz/NAME``: inputs of new branches in ``corpus``, inputs that show a fault
as ``crash-*``, ``timeout-*`` or ``oom-*``, and the counts in ``outcomes.json``.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import pkgutil
import random
import subprocess
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CHECKOUT: Final = HERE.parents[1]
WORK: Final = Path(os.environ.get("STRUCTGEN_FUZZ_FOLDER", CHECKOUT / "build/fuzz"))
NAMES: Final = (
    "regex",
    "json_schema",
    "structural_tag",
    "lark",
    "bnf",
    "chat",
    "tokenizer",
    "gguf",
    "template",
    "differential",
    "native",
)
_LARGEST: Final = {"gguf": 3_000, "tokenizer": 3_000, "differential": 400, "native": 400}
_EVERY: Final = 2.0
"""Seconds between two counts that are written."""
_KEPT: Final = 0.05
_POOL: Final = 4_000
_SHORT: Final = 600
_WASTED: Final = ("refused", "no document", "no files", "limit", "empty")
"""Without atheris: the part of the good inputs that are mutated further, how many of them there are at a time, and of
how many bytes; and what inputs come to that are not."""


def prepared(name: str, inputs: list[bytes]) -> Path:
    """The folder of a target, with its seeds."""
    folder = WORK / name
    (folder / "corpus").mkdir(parents=True, exist_ok=True)
    for index, data in enumerate(inputs):
        (folder / "corpus" / f"seed-{index:04}").write_bytes(data)
    return folder


def options(name: str, folder: Path, arguments: argparse.Namespace) -> list[str]:
    """Those of libFuzzer."""
    chosen = [
        f"-artifact_prefix={folder}/",
        f"-max_len={_LARGEST.get(name, 1_500)}",
        "-entropic=0",  # its bookkeeping takes longer than the inputs
        "-len_control=0",
        "-reduce_inputs=0",
        "-timeout=300",  # by the clock on the wall, beside whatever else the machine does
        "-rss_limit_mb=3000",
        "-print_final_stats=1",
        f"-seed={arguments.seed}",
    ]
    chosen += [f"-max_total_time={arguments.seconds}"] if arguments.seconds else []
    chosen += [f"-runs={arguments.runs}"] if arguments.runs else []
    return [*chosen, str(folder / "corpus")]


class Counts:
    """How many inputs a target had and what became of them, in all runs: a file that is written every few seconds."""

    def __init__(self, path: Path, outcomes: Counter[str]) -> None:
        self._path, self._outcomes = path, outcomes
        self._earlier = Counter(json.loads(path.read_text())) if path.exists() else Counter[str]()
        self._inputs, self._written = 0, time.monotonic()

    def add(self) -> None:
        """Count an input."""
        self._inputs += 1
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self) -> None:
        """Write the file."""
        self._written = time.monotonic()
        self._path.write_text(json.dumps(self._earlier + self._outcomes + Counter(inputs=self._inputs)))


def run_python(name: str, arguments: argparse.Namespace) -> None:
    """Fuzz a target under atheris; never returns."""
    import atheris

    with atheris.instrument_imports(include=["structgen", "jinja2"], enable_loader_override=False):
        import targets

        from structgen import engine, frontends, grammar
        from structgen.models import chat_template  # noqa: F401

        for package in (engine, frontends, grammar):  # also what is imported on first use
            for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
                importlib.import_module(found.name)
        target = targets.by_name()[name]
    known = targets.seeds(name)
    folder = prepared(name, known)
    counts = Counts(folder / "outcomes.json", target.outcomes)
    gc.freeze()

    def one_input(data: bytes) -> None:
        target(data)
        counts.add()

    def mutator(data: bytes, max_size: int, seed: int) -> bytes:
        made = target.mutate(bytes(data), known, random.Random(seed))
        return made if len(made) <= max_size else made[:max_size]

    atheris.Setup([sys.argv[0], *options(name, folder, arguments)], one_input, custom_mutator=mutator)
    atheris.Fuzz()


def run_plain(name: str, arguments: argparse.Namespace) -> int:
    """Mutate and run without atheris: several times as fast, and blind. Goes on after a finding; each is kept once."""
    import targets

    target = targets.by_name()[name]
    known = targets.seeds(name)
    folder = prepared(name, known)
    kept = [path.read_bytes() for path in sorted((folder / "corpus").iterdir())]
    pool = list(known)
    rng = random.Random(arguments.seed)
    counts = Counts(folder / "outcomes-plain.json", target.outcomes)
    found: Counter[tuple[str, ...]] = Counter()
    gc.freeze()  # what all inputs share is not looked at again and again
    began, done = time.monotonic(), 0
    while (not arguments.runs or done < arguments.runs) and (
        not arguments.seconds or time.monotonic() - began < arguments.seconds
    ):
        data = kept[done] if done < len(kept) else target.mutate(rng.choice(pool), known, rng)
        done += 1
        counts.add()
        try:
            outcome = target(data)
        except Exception as error:
            places = [f"{Path(each.filename).name}:{each.lineno}" for each in traceback.extract_tb(error.__traceback__)]
            kind = type(error).__name__, *places[-2:]
            found[kind] += 1
            if found[kind] == 1:
                (folder / f"crash-plain-{arguments.seed}-{len(found)}").write_bytes(data)
                sys.stdout.write(f"{' '.join(kind)}: {str(error)[:200]!r}\n{data!r}\n")
                sys.stdout.flush()
            continue
        if outcome not in _WASTED and len(data) <= _SHORT and (done <= len(kept) or rng.random() < _KEPT):
            if len(pool) < _POOL:
                pool.append(data)
            else:
                pool[rng.randrange(len(pool))] = data
    counts.write()
    sys.stdout.write(f"{name}: {done} inputs, {len(found)} findings, {dict(target.outcomes)}\n")
    return 1 if found else 0


def run_native(arguments: argparse.Namespace) -> int:
    """Fuzz the engine."""
    from targets import seeds

    folder = prepared("native", seeds("native"))
    program = os.environ.get("STRUCTGEN_FUZZER", str(CHECKOUT / "build/fuzz/native_fuzzer"))
    defaults = {
        "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
        "ASAN_OPTIONS": "malloc_context_size=0:quarantine_size_mb=16",  # stacks of all that is allocated take a fifth
    }
    environment = {**defaults, **os.environ}
    return subprocess.run([program, *options("native", folder, arguments)], check=False, env=environment).returncode


def run_all(arguments: argparse.Namespace) -> int:
    """Each target in a process of its own; the time is shared out equally."""
    share = max(1, arguments.seconds // len(NAMES)) if arguments.seconds else 0
    failed = []
    for name in NAMES:
        command = [
            sys.executable,
            __file__,
            name,
            f"--seed={arguments.seed}",
            f"--runs={arguments.runs}",
            f"--seconds={share}",
        ]
        log = WORK / f"{name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            status = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT).returncode
        lines = log.read_text(errors="replace").splitlines()
        done = next((line for line in reversed(lines) if line.startswith("stat::number_of_executed_units")), "no count")
        sys.stdout.write(f"{name}: {'ok' if not status else f'FAILED ({status}), see {log}'}; {done}\n")
        sys.stdout.flush()
        failed += [name] if status else []
    return 1 if failed else 0


def main() -> int:
    """Read the arguments, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", choices=NAMES, help="the target; all of them if it is left out")
    parser.add_argument("--seconds", type=int, default=0, help="how long, in all")
    parser.add_argument("--runs", type=int, default=0, help="how many inputs, of each target")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="without atheris, for many inputs")
    parser.add_argument("--input", type=Path, help="run this file alone, without the fuzzer")
    arguments = parser.parse_args()
    sys.path.insert(0, str(HERE))
    os.environ["STRUCTGEN_CACHE"] = ""
    os.environ["RUST_BACKTRACE"] = "0"  # a panic of the tokenizers library takes as long as two hundred inputs with it
    if arguments.input is not None:
        from targets import by_name

        sys.stdout.write(by_name()[arguments.name](arguments.input.read_bytes()) + "\n")
        return 0
    if not arguments.seconds and not arguments.runs:
        parser.error("say how long: --seconds or --runs")
    if arguments.name is None:
        return run_all(arguments)
    if arguments.name == "native":
        return run_native(arguments)
    if arguments.plain:
        return run_plain(arguments.name, arguments)
    run_python(arguments.name, arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
