"""What helps a small model to extract: ways to tell it the form of the answer, and settings of ``extract``.

Each variant (see ``PARTS`` in ``extraction_variants.py``) reads the documents of ``extraction_documents.toml`` that are
not held out; ``--heldout`` reads those instead.  Answers are graded field by field against the right ones.  Results are
kept in a file (``--rows``), so that a run goes on where the last one ended.

Usage: python benchmarks/extraction.py [--variants "sketch; fields; fields, unique"] [--limit N] [--heldout] [--stored]
       [--runtime llama.cpp]
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from extraction_tasks import Document, documents, grades
from extraction_variants import run_of

import structgen as sg

MAX_TOKENS: Final = 256
PLACEHOLDERS: Final = frozenset(("text", "string", "integer", "number", "any value", "list", "items", "...", "null"))
VARIANTS: Final = (
    "fields; sketch; schema; fields, example; fields, form first; sketch, form first; fields, form first, evidence; "
    "fields, form first, unique; fields, form first, required; fields, form first, evidence, unique, required"
)
Row = dict[str, Any]


def row_of(model: Any, variant: str, document: Document) -> Row:
    """Run one variant on one document, and grade the answer."""
    began = perf_counter()
    run = run_of(variant, document, model=model, max_tokens=MAX_TOKENS)
    seconds = perf_counter() - began
    stats = run.stats
    return {
        "variant": variant,
        "document": document.name,
        "grades": [list(grade) for grade in grades(document.gold, run.value)],
        "tokens": stats.tokens,
        "chosen": stats.sampled,
        "prompt": stats.prompt_tokens,
        "passes": stats.forwards,
        "seconds": round(seconds, 2),
        "cut": run.finish_reason == "length",
        "answer": run.value.model_dump_json(),
    }


def is_copied(row: Row) -> bool:
    """Whether a text of the answer is a word for its type, or the name of a field."""
    names, texts = _names_and_texts(json.loads(row["answer"]))
    return not texts.isdisjoint(PLACEHOLDERS | names)


def _names_and_texts(value: Any) -> tuple[set[str], set[str]]:
    """The names of all members, with spaces between their words, and all texts; in lower case."""
    found: tuple[set[str], set[str]] = (set(), {value.casefold()} if isinstance(value, str) else set())
    parts = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    if isinstance(value, dict):
        found[0].update(name.replace("_", " ") for name in value)
    for names, texts in map(_names_and_texts, parts):
        found[0].update(names)
        found[1].update(texts)
    return found


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
        *("variant", "documents", "score", "fields right", "optional right", "dropped", "invented", "copied", "cut"),
        *("prompt", "tokens", "chosen", "passes", "seconds", "better / worse", "p"),
    )
    lines = [f"| {' | '.join(head)} |", f"| --- |{' ---: |' * (len(head) - 1)}"]
    reference = [row for row in rows if row["variant"] == baseline]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        mine = [row for row in rows if row["variant"] == variant]
        held = [grade for row in mine for grade in row["grades"]]
        told = [verdict for _, verdict, _, optional, present in held if optional and present]
        pairs = compared(mine, reference)
        cells = (
            variant,
            len(mine),
            f"{score_of(mine):.3f}",
            f"{_share(verdict == 'correct' for _, verdict, *_ in held):.3f}",
            *(f"{_share(each == verdict for each in told):.2f}" for verdict in ("correct", "missing")),
            f"{_share(verdict == 'invented' for _, verdict, _, _, present in held if not present):.2f}",
            sum(map(is_copied, mine)),
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
    parser.add_argument("--variants", default=VARIANTS, help="what to compare; each is a list of parts")
    parser.add_argument("--baseline", help="what the others are compared with; by default the first variant")
    parser.add_argument("--limit", type=int, help="how many documents; by default all")
    parser.add_argument("--heldout", action="store_true", help="read the documents that are held out")
    parser.add_argument("--stored", action="store_true", help="run nothing, only print what is there")
    parser.add_argument("--rows", type=Path, default=Path("build/extraction.jsonl"))
    parser.add_argument("--runtime", choices=("torch", "llama.cpp"), default="torch", help="what runs the model")
    parser.add_argument("--dtype", default="auto", help="the type of the weights, for torch")
    parser.add_argument("--threads", type=int, help="CPU threads of a forward pass")
    given = parser.parse_args()
    names = [name.strip() for name in given.variants.split(";")]
    chosen = [document for document in documents() if document.heldout == given.heldout][: given.limit]
    known = stored(given.rows)
    if not given.stored:
        given.rows.parent.mkdir(parents=True, exist_ok=True)
        run_missing(known, names, chosen, given)
    wanted = [(name, document.name) for name in names for document in chosen]
    print(table([known[key] for key in wanted if key in known], given.baseline or names[0]))


def stored(rows: Path) -> dict[tuple[str, str], Row]:
    """The results that are there, by variant and document."""
    lines = rows.read_text(encoding="utf-8").splitlines() if rows.exists() else []
    return {(row["variant"], row["document"]): row for row in map(json.loads, lines)}


def run_missing(
    known: dict[tuple[str, str], Row], names: Sequence[str], chosen: Sequence[Document], given: argparse.Namespace
) -> None:
    """Run what is not there yet."""
    missing = [(name, document) for name in names for document in chosen if (name, document.name) not in known]
    model = sg.load_model(runtime=given.runtime, threads=given.threads, dtype=given.dtype) if missing else None
    for name, document in missing:
        row = known[name, document.name] = row_of(model, name, document)
        with given.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
