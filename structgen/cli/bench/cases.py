"""Schemas with instances that are known to be valid or not, and how an instance is written."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from structgen.cli.failure import Failure

__all__ = ["Case", "Instance", "can_order", "find_data", "read_cases"]

_FILE: Final = "maskbench_dev.jsonl.gz"
_BESIDE_CHECKOUT: Final = Path(__file__).resolve().parents[4] / "shared" / "data"


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
        Failure: it is not there.
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
    """Yield ``count`` cases, drawn without replacement, in the order of the file; all if ``count`` is None.

    One case is in memory at a time, so that a process can measure what an engine takes.

    Raises:
        Failure: the file does not hold what it should.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            total = sum(1 for _ in lines)
        chosen = range(total) if count is None or count >= total else random.Random(seed).sample(range(total), count)
        wanted = frozenset(chosen)
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for index, line in enumerate(lines):
                if index in wanted:
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
