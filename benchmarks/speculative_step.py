"""What verification costs beside the model: a tree of 32 draft tokens at the embedded model's vocabulary, warm caches.

Each figure is the median over positions of an output of the least of several runs.

- ``walk``: cutting what the grammar refuses and placing what it forces (``walked``).
- ``masks``: the masks of the position and after all 32 nodes in one call (``Matcher.fill_mask_tree``).
- ``worth``: choosing the part of the tree that pays (``worthwhile``).
- ``match``: finding the accepted path for sample and match, and the cache's part of it (``Context.known``).
- ``reject``: recursive rejection at one position with four sampled children, all but the last refused.

Usage: python benchmarks/speculative_step.py [--record FILE]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import numpy as np

_READING: Final[Any] = {"whitespace": "flexible", "additional": "written"}
"""As the measurements on record: with free white space, and undeclared members as schemas say."""

REPEATS = 7
NODES = 32


def main() -> None:
    from structgen.models import load_model

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path)
    arguments = parser.parse_args()

    model = load_model(device="cpu", runtime="torch")
    times = {**before_the_pass(model), **after_the_pass(model.vocabulary.size)}
    lines = ["| part | median ms | largest ms |", "| --- | --- | --- |"]
    lines += [
        f"| {name} | {1000 * statistics.median(each):.3f} | {1000 * max(each):.3f} |" for name, each in times.items()
    ]
    lines += ["", f"{len(times['walk'])} positions, {NODES} nodes, {model.vocabulary.size} tokens."]
    text = "\n".join(lines)
    print(text)
    if arguments.record:
        arguments.record.write_text(
            f"# Verification beside the model\n\n`python benchmarks/speculative_step.py`\n\n{text}\n"
        )


def before_the_pass(model: Any) -> dict[str, list[float]]:
    """Seconds of what is done with a tree before it is run."""
    from speculative_tasks import EXTRACTIONS

    from structgen.decode.speculative.cost import CostModel, pruned_tree
    from structgen.decode.speculative.draft_tree import ROOT, DraftTree
    from structgen.decode.speculative.grammar_walk import grammar_filtered
    from structgen.engine import compile
    from structgen.frontends.json_schema import json_schema

    vocabulary, cost = model.vocabulary, CostModel.assumed(model)
    random = np.random.default_rng(7)
    times: dict[str, list[float]] = {"walk": [], "masks": [], "worth": []}
    bitmask = np.zeros((NODES + 1, -(-vocabulary.size // 32)), dtype=np.int32)
    for task in EXTRACTIONS[:4]:
        document = '{"' + '", "'.join(f'{name}": "{task.text[:24]}' for name in task.schema["properties"]) + '"}'
        tokens = vocabulary.tokenize(document)
        matcher = compile(json_schema(task.schema, **_READING), vocabulary).matcher()
        for at, token in enumerate(tokens[:-NODES]):
            tree = DraftTree()
            node = ROOT
            for depth, draft in enumerate(tokens[at : at + NODES // 2]):
                before, node = node, tree.add(node, draft, 0.9)
                tree.add(before, int(random.integers(vocabulary.size)) if depth else draft + 1, 0.05)
            times["walk"].append(least(partial(grammar_filtered, tree, matcher, remaining=200, budget=NODES)))
            times["worth"].append(least(partial(pruned_tree, tree, cost, NODES)))
            nodes = tree.token_tree()
            times["masks"].append(least(partial(matcher.fill_mask_tree, nodes.token_ids, nodes.parents, bitmask)))
            if not matcher.accept(token):
                break
    return times


def after_the_pass(size: int) -> dict[str, list[float]]:
    """Seconds of what is done with the rows of a tree."""
    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.verifier import GeneratorChance
    from structgen.decode.step.logits_row import LookAhead
    from structgen.verification import RecursiveRejection

    chain = DraftTree.chain(range(100, 100 + NODES)).token_tree()
    ahead = LookAhead(10, chain, np.zeros((NODES + 1, size), dtype=np.float32))
    match = [least(partial(ahead.distribution, chain.token_ids[:depth])) for depth in range(1, NODES)]
    reject = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        p, q = (generator.dirichlet(np.full(size, 0.01)) for _ in range(2))
        refused = np.flatnonzero(p < q)
        drafts = [int(index) for index in refused[np.argsort(-q[refused])[:4]]]
        reject.append(least(partial(RecursiveRejection().choose, p, q, drafts, GeneratorChance(generator))))
    return {"match": match, "reject": reject}


def least(work: Callable[[], Any]) -> float:
    """Seconds of the quickest of several runs."""
    best = float("inf")
    for _ in range(REPEATS):
        began = perf_counter()
        work()
        best = min(best, perf_counter() - began)
    return best


if __name__ == "__main__":
    main()
