"""The folder of the test data that do not belong to the project, and the real schemas in it."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import random
from pathlib import Path
from typing import Any, Final

__all__ = ["REAL_SCHEMAS", "data_folder", "real_schemas", "sampled_schemas"]

REAL_SCHEMAS: Final = "maskbench_dev.jsonl.gz"
"""The data file of real schemas, one JSON object a line."""


def data_folder() -> Path:
    """Return ``$STRUCTGEN_DATA``, or the folder beside the checkout; it need not exist."""
    chosen = os.environ.get("STRUCTGEN_DATA")
    return Path(chosen) if chosen else Path(__file__).resolve().parents[4] / "shared" / "data"


def real_schemas(folder: Path, step: int = 1) -> list[dict[str, Any]]:
    """Return every ``step``-th real schema with its instances; the others are not parsed, which takes seconds."""
    with gzip.open(folder / REAL_SCHEMAS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in itertools.islice(lines, 0, None, step)]


def sampled_schemas(folder: Path, seed: int, count: int) -> list[dict[str, Any]]:
    """Return a random sample of the real schemas with their instances, as large as ``count``."""
    with gzip.open(folder / REAL_SCHEMAS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in random.Random(seed).sample(list(lines), count)]
