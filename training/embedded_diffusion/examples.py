"""Examples for the embedded diffusion model: a few facts in a text, and the JSON document that says them."""

from __future__ import annotations

import json
import random
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, final, get_args

from training.embedded_diffusion.schemas import Record
from training.embedded_diffusion.tasks import TASKS
from training.embedded_diffusion.values import ValueSampler

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Example", "Split", "compact", "examples"]

Split: TypeAlias = Literal["train", "new_combinations", "new_values"]
"""Records of which values.

``train``: for training.  ``new_combinations``: values that training saw, in records that it did not (a twentieth of
all records is kept out).  ``new_values``: every name, and every number of a known stretch, is one that training never
saw.
"""

_SPLITS: tuple[str, ...] = get_args(Split)
_HELD_OUT_RECORDS = 20


@final
@dataclass(frozen=True)
class Example:
    """A prompt and the document that answers it.

    Attributes:
        task: the task's name.
        prompt: what the model is told, ready for ``EmbeddedDiffusion.encode_prompt``.
        document: compact JSON, properties in the order of the schema.
        record: its value.
    """

    task: str
    prompt: str
    document: str
    record: Record


def compact(record: Record) -> str:
    """Return the one spelling of a record that the model is trained on."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


def examples(split: Split, seed: int, count: int, *, tasks: tuple[str, ...] | None = None) -> Iterator[Example]:
    """Yield examples, the same ones for the same arguments.

    Args:
        split: of which values.
        seed: another seed is another sequence.
        count: how many.
        tasks: names of the tasks to draw from; None is all of them, each as likely.

    Raises:
        ValueError: an unknown split or task.
    """
    if split not in _SPLITS:
        raise ValueError(f"examples: split {split!r} is unknown; choose one of {', '.join(_SPLITS)}")
    names = tuple(TASKS) if tasks is None else tasks
    if unknown := [name for name in names if name not in TASKS]:
        raise ValueError(f"examples: task {unknown[0]!r} is unknown; choose from {', '.join(TASKS)}")
    return _examples(split, seed, count, names)


def _examples(split: Split, seed: int, count: int, names: tuple[str, ...]) -> Iterator[Example]:
    chance = random.Random(f"{split} {seed}")
    draw = ValueSampler(chance, unseen=split == "new_values")
    while count > 0:
        task = TASKS[chance.choice(names)]
        record = task.draw(draw)
        document = compact(record)
        kept = zlib.crc32(document.encode()) % _HELD_OUT_RECORDS == 0
        if split != "new_values" and kept != (split == "new_combinations"):
            continue
        count -= 1
        yield Example(task.name, task.tell(record, chance), document, record)
