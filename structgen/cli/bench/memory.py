"""What an engine adds to the memory of a process that holds nothing else.

Each engine runs in a fresh process over the same schemas and instances, which are read one by one and dropped, as
are the times.  Three resident sizes are taken from the kernel: before the engine is imported, when its tokenizer is
loaded and a first mask made, and the highest since then (the mark is reset in between).  Their differences are
reported; memory that an engine has freed but its allocator kept counts, as it does in a server.  Caches that an
engine keeps by default are part of it: that of compiled grammars in xgrammar, that of states and rows in structgen.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

__all__ = ["measure_memory"]

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def measure_memory(engine: str, work: dict[str, Any]) -> dict[str, float] | None:
    """Run ``engine`` alone over the work of a comparison; None where the system does not tell sizes.

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
    from structgen.cli.bench.engines import ENGINES
    from structgen.cli.bench.measurement import Tally, read_cases, run_case, tokenizer_of

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
