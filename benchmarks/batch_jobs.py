"""What running a program over many documents adds to each: `structgen batch`, and a pool of actors of Ray Data.

    python benchmarks/batch_jobs.py --documents 2000 --record benchmarks/record/batch_jobs.md

The model is noise, which costs little, so that what is around it shows.  Each way runs once with few documents and once
with all; the difference of the two is what the documents cost, without the start of processes.  Processor time is of
all processes together.  The rows of all ways are compared first.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import structgen as sg
from structgen.models import HashModel
from structgen.program.batch_row import item_row, item_seed

FEW = 50
WORKERS = 2
BAR_MS = 5.0
JOB = """
import sys
sys.path.insert(0, {folder!r})
from batch_jobs import model, read
"""

Rows = dict[str, Any]
Measured = tuple[Rows, float, float]
"""Values by id, and seconds of the clock and of all processors."""


def model() -> HashModel:
    return HashModel(sg.Vocabulary([b"", *(bytes([byte]) for byte in range(256))], eos=[0]), max_context=4000)


@sg.program(sampler=sg.Multinomial(), drafter=None)
def read(text: str) -> dict[str, Any]:
    """A record of a document."""
    yield text
    return {"word": (yield sg.regex("[a-z]{8}"))}


def documents(count: int) -> list[dict[str, Any]]:
    return [{"id": f"n{at}", "text": f"document {at}: " + "it was a long day. " * 10} for at in range(count)]


def in_a_loop(count: int) -> Measured:
    """One document after the other, in this process."""
    loaded = model()
    began, cpu = time.perf_counter(), time.process_time()
    rows = {
        held["id"]: item_row(
            read, held["id"], {"text": held["text"]}, model=loaded, seed=item_seed(0, held["id"]), settings={}
        )["value"]
        for held in documents(count)
    }
    return rows, time.perf_counter() - began, time.process_time() - cpu


def in_batch(count: int) -> Measured:
    """`structgen batch` with two workers."""
    with tempfile.TemporaryDirectory() as folder:
        job, source, output = (Path(folder) / name for name in ("job.py", "in.jsonl", "out.jsonl"))
        job.write_text(JOB.format(folder=str(Path(__file__).parent)))
        lines = [{"id": held["id"], "args": {"text": held["text"]}} for held in documents(count)]
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [sys.executable, "-m", "structgen.cli", "batch", f"{job}:read", str(source), str(output)]
        began, cpu = time.perf_counter(), children_cpu()
        subprocess.run([*command, "--model", f"{job}:model", "--workers", str(WORKERS)], check=True)
        seconds, cpu = time.perf_counter() - began, children_cpu() - cpu
        return {row["id"]: row["value"] for row in map(json.loads, output.read_text().splitlines())}, seconds, cpu


def in_ray(count: int) -> Measured:
    """A pool of two actors; the cluster is there before."""
    import ray

    from structgen.integrations.ray import processor

    began, cpu = time.perf_counter(), tree_cpu()
    run = processor(read, model=model, concurrency=WORKERS)
    rows = run(ray.data.from_items(documents(count), override_num_blocks=4 * WORKERS)).take_all()
    return (
        {row["id"]: json.loads(row["value"]) for row in rows},
        time.perf_counter() - began,
        tree_cpu() - cpu,
    )


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_ended: dict[int, float] = {}


def tree_cpu() -> float:
    """Seconds of processors of this process and all below it; of those that have ended, as far as they were seen."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        used[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    for number in parents:
        above = number
        while above in parents and above != os.getpid():
            above = parents[above]
        if above == os.getpid():
            _ended[number] = used[number]
    return sum(_ended.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--documents", type=int, default=300)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    ways: dict[str, Callable[[int], Measured]] = {"a plain loop": in_a_loop, "`structgen batch --workers 2`": in_batch}
    try:
        import ray
    except ImportError:
        print("Ray is not installed, so its pool of actors is left out", file=sys.stderr)
    else:
        paths = [str(Path(__file__).parent), *(each for each in sys.path if each and Path(each).is_dir())]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0"}
        ray.init(
            num_cpus=WORKERS + 1,
            object_store_memory=200 << 20,
            include_dashboard=False,
            runtime_env={"env_vars": environment},
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        ways["Ray Data, 2 actors"] = in_ray
    table = measured(ways, options.documents)
    print(table)
    if options.record:
        options.record.write_text(table, encoding="utf-8")


def measured(ways: dict[str, Callable[[int], Measured]], count: int) -> str:
    """The table; the rows of all ways are the same."""
    in_a_loop(FEW)  # what is compiled and imported once
    lines, plain, expected = [], 0.0, None
    for name, run in ways.items():
        _, _, few_cpu = run(FEW)
        rows, all_s, all_cpu = run(count)
        expected = expected or rows
        assert rows == expected, f"the rows of {name} differ"
        cpu_ms = 1000 * (all_cpu - few_cpu) / (count - FEW)
        plain = plain or cpu_ms
        lines.append(
            f"| {name} | {all_s:.1f} s | {count / all_s:.0f} | {all_cpu:.1f} s | {cpu_ms:.2f} ms "
            f"| {cpu_ms - plain:+.2f} ms |"
        )
        print(lines[-1], file=sys.stderr)
    try:
        installed = f", Ray {version('ray')}"
    except PackageNotFoundError:
        installed = ""
    return f"""# Batch jobs

`python benchmarks/batch_jobs.py --documents {count} --record benchmarks/record/batch_jobs.md`

{count:,} documents of about 200 characters, a program that writes eight letters, a model of noise over bytes; batches
of 8. All ways wrote the same rows. Processor time is that of all processes together, of Ray's as far as they run at the
end. "Each" is the difference between runs of {count:,} and of {FEW} documents, divided by the documents between them:
without the start of processes.

| | clock | items/s | processors | processors, each | beside the loop |
| --- | --- | --- | --- | --- | --- |
{chr(10).join(lines)}

The bar is {BAR_MS:g} ms of processor time an item beside the loop. The clock includes the start of processes, and is
that of a machine that others use too.

{os.cpu_count()} processors, {platform.machine()}; Python {platform.python_version()}, \
structgen {version_of_structgen()}{installed}.
"""


def version_of_structgen() -> str:
    try:
        return version("structgen-lm")
    except PackageNotFoundError:
        return "of the checkout"


if __name__ == "__main__":
    main()
