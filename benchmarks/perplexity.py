r"""Perplexity of the embedded model on fixed texts, by the type of its weights.

Texts: the documents of the extraction benchmark, and three pages of the documentation, in windows of 512 tokens.

    python benchmarks/perplexity.py [--dtypes float32,int8] [--windows N]
"""

from __future__ import annotations

import argparse
import math
import tomllib
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import structgen as sg

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = (
    "ideas/architecture",
    "reference/sampling",
    "reference/decoding",
    "guides/programs",
    "reference/vocabularies",
)
WINDOW: Final = 512


def strings(value: Any) -> Iterator[str]:
    """All longer texts in a TOML value."""
    if isinstance(value, str) and len(value) > 200:
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from strings(each)


def texts() -> dict[str, str]:
    """The texts by name."""
    documents = tomllib.loads((ROOT / "benchmarks" / "extraction_documents.toml").read_text(encoding="utf-8"))
    pages = ((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
    return {"documents": "\n".join(strings(documents)), "pages": "\n".join(pages)}


def loss(model: Any, window: list[int]) -> float:
    """The sum of negative log-probabilities of all tokens but the first."""
    session = model.start()
    rows = session.extend_all(window)[:-1].astype(np.float64)
    session.close()
    top = rows.max(axis=1)
    log_sums = top + np.log(np.exp(rows - top[:, None]).sum(axis=1))
    return float((log_sums - rows[np.arange(len(rows)), window[1:]]).sum())


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="float32,int8")
    parser.add_argument("--windows", type=int, default=10**6)
    given = parser.parse_args()
    print("| text | tokens | dtype | perplexity | processor s |\n| --- | ---: | --- | ---: | ---: |")
    for dtype in given.dtypes.split(","):
        model: Any = sg.load_model(device="cpu", dtype=dtype, threads=1, runtime="torch")
        total, count = 0.0, 0
        for name, text in texts().items():
            ids = model.encode_prompt(text, chat=False)
            windows = [ids[at : at + WINDOW] for at in range(0, len(ids) - WINDOW + 1, WINDOW)][: given.windows]
            began = process_time()
            losses = sum(loss(model, window) for window in windows)
            scored = len(windows) * (WINDOW - 1)
            seconds = process_time() - began
            print(f"| {name} | {scored} | {dtype} | {math.exp(losses / scored):.3f} | {seconds:.0f} |", flush=True)
            total, count = total + losses, count + scored
        print(f"| all | {count} | {dtype} | {math.exp(total / count):.3f} | |", flush=True)


if __name__ == "__main__":
    main()
