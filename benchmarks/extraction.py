"""What helps a small model to extract: ways to tell it the form of the answer, and settings of ``extract``.

Each variant reads all documents of ``extraction_documents.toml`` that are not held out (``--heldout`` reads those
instead).  Answers are graded field by field against the right ones.  Results are kept in a file (``--rows``), so that
a run goes on where the last one ended.

Usage: python benchmarks/extraction.py [--variants NAMES] [--limit N] [--heldout] [--rows FILE] [--record FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from extraction_tasks import Document, documents, grades
from extraction_variants import VARIANTS

import structgen as sg

MAX_TOKENS: Final = 256
PLACEHOLDERS: Final = frozenset(("text", "string", "integer", "number", "any value", "...", "null", "none", "str"))
Row = dict[str, Any]


def row_of(model: Any, variant: str, document: Document) -> Row:
    """Run one variant on one document, and grade the answer."""
    began = perf_counter()
    run = VARIANTS[variant](document, model=model, max_tokens=MAX_TOKENS)
    seconds = perf_counter() - began
    value = document.model.model_validate(run.value.model_dump())  # a variant may have another type
    stats = run.stats
    return {
        "variant": variant,
        "document": document.name,
        "grades": [list(grade) for grade in grades(document.gold, value)],
        "tokens": stats.tokens,
        "chosen": stats.sampled,
        "prompt": stats.prompt_tokens,
        "passes": stats.forwards,
        "seconds": round(seconds, 2),
        "cut": run.finish_reason == "length",
        "placeholders": sum(text.casefold() in PLACEHOLDERS for text in _strings(value.model_dump())),
        "answer": value.model_dump_json(),
    }


def _strings(value: Any) -> list[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [text for part in value for text in _strings(part)]
    return [value] if isinstance(value, str) else []


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two variants compared document by document: by the mean score of the fields."""

    better: int
    worse: int

    @property
    def p_value(self) -> float:
        """Of the two-sided sign test: documents without a difference are left out."""
        count = self.better + self.worse
        tail = sum(math.comb(count, k) for k in range(min(self.better, self.worse) + 1)) / 2**count
        return min(1.0, 2 * tail)


def compared(rows: Iterable[Row], others: Iterable[Row]) -> Pairs:
    """How many documents have better and worse scores in ``rows`` than in ``others``; those in both count."""
    before = {row["document"]: score_of([row]) for row in others}
    signs = [score_of([row]) - before[row["document"]] for row in rows if row["document"] in before]
    return Pairs(sum(sign > 1e-9 for sign in signs), sum(sign < -1e-9 for sign in signs))


def score_of(rows: Sequence[Row]) -> float:
    """The mean score of all fields."""
    return _share(score for row in rows for _, _, score, _, _ in row["grades"])


def _share(values: Iterable[float]) -> float:
    held = list(values)
    return sum(held) / len(held) if held else math.nan


def table(rows: Sequence[Row], baseline: str) -> str:
    """A line for each variant, in the order of their first rows."""
    head = (
        *("variant", "documents", "score", "fields right", "optional dropped", "invented", "placeholders", "cut"),
        *("prompt", "tokens", "chosen", "passes", "seconds", "better / worse", "p"),
    )
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    reference = [row for row in rows if row["variant"] == baseline]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        held = [grade for row in mine for grade in row["grades"]]
        pairs = compared(mine, reference)
        cells = (
            variant,
            len(mine),
            f"{score_of(mine):.3f}",
            f"{_share(verdict == 'correct' for _, verdict, *_ in held):.3f}",
            f"{_share(verdict == 'missing' for _, verdict, _, optional, present in held if optional and present):.2f}",
            f"{_share(verdict == 'invented' for _, verdict, _, _, present in held if not present):.2f}",
            sum(row["placeholders"] for row in mine),
            sum(row["cut"] for row in mine),
            *(f"{_share(row[name] for row in mine):.0f}" for name in ("prompt", "tokens", "chosen", "passes")),
            f"{_share(row['seconds'] for row in mine):.1f}",
            "" if variant == baseline else f"{pairs.better} / {pairs.worse}",
            "" if variant == baseline else f"{pairs.p_value:.3f}",
        )
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    """Run what is not there yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variants", help="names, separated by commas; by default all")
    parser.add_argument("--baseline", help="what the others are compared with; by default the first variant")
    parser.add_argument("--limit", type=int, help="how many documents; by default all")
    parser.add_argument("--heldout", action="store_true", help="read the documents that are held out")
    parser.add_argument("--rows", type=Path, default=Path("build/extraction.jsonl"))
    parser.add_argument("--record", type=Path, help="where the table goes, too")
    given = parser.parse_args()
    names = given.variants.split(",") if given.variants else list(VARIANTS)
    chosen = [document for document in documents() if document.heldout == given.heldout][: given.limit]
    given.rows.parent.mkdir(parents=True, exist_ok=True)
    known: dict[tuple[str, str], Row] = {}
    if given.rows.exists():
        for line in given.rows.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            known[row["variant"], row["document"]] = row
    model = None
    for name in names:
        for document in chosen:
            if (name, document.name) in known:
                continue
            model = model or sg.load_model()
            row = known[name, document.name] = row_of(model, name, document)
            with given.rows.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    rows = [known[name, document.name] for name in names for document in chosen]
    text = table(rows, given.baseline or names[0])
    print(text)
    if given.record:
        command = f"python benchmarks/extraction.py --variants '{','.join(names)}'"
        given.record.write_text(f"# Extraction\n\n`{command}` on {platform.machine()}\n\n{text}\n")


if __name__ == "__main__":
    main()
