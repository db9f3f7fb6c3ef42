"""The embedded model on the schemas of ``examples/``: forward passes a token, and what the loop costs beside them.

Every example runs three times: with jump-forward, without it (the outputs must be the same, token by token), and
with free whitespace for comparison.  ``overhead`` is the time outside the model's forward passes, a token.

Usage: python benchmarks/generation.py [--max-tokens 120] [--record FILE]
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROMPT = (
    "Reply in JSON about this: Ada Lovelace (ada@example.org), 36, mathematician, ordered 3 lamps on 12 March 2024."
)


def main() -> None:
    from structgen.decode import generate
    from structgen.engine import compile
    from structgen.frontends.json_schema import json_schema
    from structgen.models import load_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-tokens", type=int, default=120)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()

    model = load_model(device="cpu", runtime="torch", threads=arguments.threads)
    lines = [
        "| example | tokens | forced | forwards | forwards a token | same without jump-forward | overhead ms a token "
        "| model ms a forward | forwards a token, free whitespace |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    forwards = tokens = 0
    costs = []
    for path in sorted(EXAMPLES.glob("*.schema.json")):
        schema = path.read_text(encoding="utf-8")
        constraint = compile(json_schema(schema, whitespace="single"), model.vocabulary)
        free = compile(json_schema(schema, whitespace="flexible"), model.vocabulary)
        generate(
            model, PROMPT, constraint, max_tokens=arguments.max_tokens, drafter=None
        )  # caches warm, as in a process that lives
        jumped = generate(model, PROMPT, constraint, max_tokens=arguments.max_tokens, drafter=None)
        plain = generate(model, PROMPT, constraint, max_tokens=arguments.max_tokens, drafter=None, jump_forward=False)
        loose = generate(model, PROMPT, free, max_tokens=arguments.max_tokens, drafter=None)
        if jumped.tokens != plain.tokens:
            sys.exit(f"{path.name}: jump-forward changed the output\n{jumped.text}\n{plain.text}")
        stats = jumped.stats
        cost = 1000 * (stats.time_mask_s + stats.time_other_s) / stats.tokens
        costs.append(cost)
        forwards, tokens = forwards + stats.forwards, tokens + stats.tokens
        lines.append(
            f"| {path.name} | {stats.tokens} | {stats.forced} | {stats.forwards} | {stats.forwards / stats.tokens:.2f} "
            f"| yes | {cost:.2f} | {1000 * stats.time_model_s / stats.forwards:.1f} "
            f"| {loose.stats.forwards / loose.stats.tokens:.2f} |"
        )
    lines += [
        "",
        f"All: {forwards / tokens:.2f} forwards a token; overhead {statistics.median(costs):.2f} ms a token (median).",
    ]
    text = "\n".join(lines)
    print(text)
    if arguments.record:
        arguments.record.write_text(
            f"# Generation on the embedded model\n\n`python benchmarks/generation.py`\n\n{text}\n"
        )


if __name__ == "__main__":
    main()
