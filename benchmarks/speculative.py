"""Drafts on the embedded model: tokens for each forward pass of the target, and wall time, beside transformers.

Four sets of greedy outputs: the schemas of ``examples/``, extraction that copies from a document, the same extraction
asked again after an edit of the document, and free prose, each under the same grammar.  structgen must write the same
tokens with drafts and without, or the run ends.  transformers asks the model for tokens that the grammar forces, and so
may spell them otherwise and go on differently: how many outputs are the same is a column.

- ``plain``: structgen without drafts (forced tokens take no passes of their own).
- ``auto``: structgen as it comes.  What earlier outputs taught it is dropped before each output, but for the set of
  what is asked again, where it knows the output before the edit and nothing else.
- ``generate``: ``transformers.generate`` with structgen's mask processor.
- ``lookup``: the same with ``prompt_lookup_num_tokens=10``.
- ``assisted``: the same with an assistant: the first half of the model's own layers, since there is no smaller model
  with this vocabulary.

Usage: python benchmarks/speculative.py [--max-tokens 200] [--repeats 3] [--only SET] [--cases N] [--no-peers]
                                        [--record FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from speculative_tasks import EXTRACTIONS, PROSE, edited

_READING: Final[Any] = {"whitespace": "flexible", "additional": "written"}
"""As the measurements on record: with free white space, and undeclared members as schemas say."""

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROMPT = (
    "Reply in JSON about this: Ada Lovelace (ada@example.org), 36, mathematician, ordered 3 lamps on 12 March 2024."
)
LOOKUP = 10


@dataclass(frozen=True)
class Case:
    """One output: its name, the prompt, the constraint, and what was written before it."""

    name: str
    prompt: str
    constraint: Any
    before: tuple[str, Any] | None = None


@dataclass
class Run:
    """What one way of decoding came to on one case."""

    tokens: tuple[int, ...]
    forwards: int
    seconds: list[float] = field(default_factory=list)


Way = Callable[[Case, int], Run]


def main() -> None:
    from structgen.models import load_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only")
    parser.add_argument("--cases", type=int, help="the first so many of each set")
    parser.add_argument("--no-peers", action="store_true")
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()

    model = load_model(device="cpu", runtime="torch")
    ways: dict[str, Way] = {"plain": ours(model, None), "auto": ours(model, "auto")}
    if not arguments.no_peers:
        ways |= peers(model)
    lines = [
        "| set | way | same outputs | tokens | passes | tokens a pass | least of an output | seconds an output "
        "| times faster than plain | times faster than generate |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    details = ["| set | case | tokens | " + " | ".join(f"{name}: passes" for name in ways) + " |"]
    details.append("| --- | --- | --- |" + " --- |" * len(ways))
    for kind, cases in sets(model).items():
        if arguments.only in (None, kind):
            table = measured(cases[: arguments.cases], ways, arguments.max_tokens, arguments.repeats)
            lines += summary(kind, table)
            details += (
                f"| {kind} | {case} | {len(runs['plain'].tokens)} | "
                + " | ".join(str(run.forwards) for run in runs.values())
                + " |"
                for case, runs in table.items()
            )
    text = "\n".join([*lines, "", *details])
    print(text)
    if arguments.record:
        arguments.record.write_text(f"# Drafts on the embedded model\n\n`python benchmarks/speculative.py`\n\n{text}\n")


def sets(model: Any) -> dict[str, list[Case]]:
    """The cases by set."""
    from structgen.engine import compile
    from structgen.frontends.json_schema import json_schema
    from structgen.frontends.regex import regex

    vocabulary = model.vocabulary
    of = {task.name: compile(json_schema(task.schema, **_READING), vocabulary) for task in EXTRACTIONS}
    text = compile(regex(r"(?s).+"), vocabulary)
    return {
        "examples": [
            Case(
                path.name,
                PROMPT,
                compile(
                    json_schema(path.read_text(encoding="utf-8"), **_READING),
                    vocabulary,
                ),
            )
            for path in sorted(EXAMPLES.glob("*.schema.json"))
        ],
        "extraction": [Case(task.name, task.prompt, of[task.name]) for task in EXTRACTIONS],
        "asked again": [
            Case(task.name, edited(task).prompt, of[task.name], (task.prompt, of[task.name])) for task in EXTRACTIONS
        ],
        "prose": [Case(f"prose {index}", prompt, text) for index, prompt in enumerate(PROSE, start=1)],
    }


def ours(model: Any, drafter: Any) -> Way:
    """``structgen.generate``."""
    from structgen.decode import generate
    from structgen.decode.speculative.drafters.auto import forget

    def way(case: Case, max_tokens: int) -> Run:
        forget(model.vocabulary)
        if case.before is not None:
            generate(model, *case.before, max_tokens=max_tokens, drafter=drafter)
        began = perf_counter()
        result = generate(model, case.prompt, case.constraint, max_tokens=max_tokens, drafter=drafter)
        return Run(result.tokens, result.stats.forwards, [perf_counter() - began])

    return way


def peers(model: Any) -> dict[str, Way]:
    """``transformers.generate`` with a mask processor, alone and with its own ways to draft."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList

    from structgen.integrations.transformers import ConstraintLogitsProcessor

    target = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32).eval()
    assistant = AutoModelForCausalLM.from_pretrained(model.folder, dtype=torch.float32).eval()
    half = target.config.num_hidden_layers // 2
    assistant.model.layers = assistant.model.layers[:half]
    assistant.config.num_hidden_layers = half
    tokenizer = AutoTokenizer.from_pretrained(model.folder)
    passes = [0]
    target.register_forward_pre_hook(lambda *_: passes.__setitem__(0, passes[0] + 1))

    def way(**options: Any) -> Way:
        def run(case: Case, max_tokens: int) -> Run:
            ids = torch.tensor([model.encode_prompt(case.prompt)])
            processor = ConstraintLogitsProcessor(case.constraint, max_new_tokens=max_tokens, strict=False)
            passes[0] = 0
            began = perf_counter()
            output = target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                max_new_tokens=max_tokens,
                logits_processor=LogitsProcessorList([processor]),
                pad_token_id=tokenizer.eos_token_id,
                **options,
            )
            seconds = perf_counter() - began
            written = [token for token in output[0, ids.shape[1] :].tolist() if token not in model.vocabulary.eos]
            return Run(tuple(written), passes[0], [seconds])

        return run

    return {
        "generate": way(),
        "lookup": way(prompt_lookup_num_tokens=LOOKUP),
        "assisted": way(assistant_model=assistant),
    }


def measured(cases: list[Case], ways: dict[str, Way], max_tokens: int, repeats: int) -> dict[str, dict[str, Run]]:
    """Run all ways on each case in turn, ``repeats`` times."""
    table: dict[str, dict[str, Run]] = {}
    for case in cases:
        runs: dict[str, Run] = {}
        for _ in range(repeats):
            for name, way in ways.items():
                run = way(case, max_tokens)
                if name in runs:
                    runs[name].seconds += run.seconds
                else:
                    runs[name] = run
        table[case.name] = runs
        if runs["auto"].tokens != runs["plain"].tokens:
            sys.exit(f"{case.name}: drafts changed the output")
        print(f"{case.name}: {[run.forwards for run in runs.values()]}", file=sys.stderr)
    return table


def summary(kind: str, table: dict[str, dict[str, Run]]) -> Iterator[str]:
    """One line for each way."""

    def seconds(name: str) -> list[float]:
        return [statistics.median(runs[name].seconds) for runs in table.values()]

    for name in next(iter(table.values())):
        tokens = sum(len(runs[name].tokens) for runs in table.values())
        passes = sum(runs[name].forwards for runs in table.values())
        least = min(len(runs[name].tokens) / runs[name].forwards for runs in table.values())
        ratios = [
            f"{statistics.median(slower / faster for slower, faster in rates):.2f}"
            if (rates := _paired(table, other, name))
            else "-"
            for other in ("plain", "generate")
        ]
        same = sum(runs[name].tokens == runs["plain"].tokens for runs in table.values())
        yield (
            f"| {kind} | {name} | {same} of {len(table)} | {tokens} | {passes} | {tokens / passes:.2f} | {least:.2f} "
            f"| {statistics.mean(seconds(name)):.2f} | {ratios[0]} | {ratios[1]} |"
        )


def _paired(table: dict[str, dict[str, Run]], other: str, name: str) -> list[tuple[float, float]]:
    """Seconds for each token of two ways, case by case: their outputs need not be equally long."""
    return [(_per_token(runs[other]), _per_token(runs[name])) for runs in table.values() if other in runs]


def _per_token(run: Run) -> float:
    return statistics.median(run.seconds) / max(len(run.tokens), 1)


if __name__ == "__main__":
    main()
