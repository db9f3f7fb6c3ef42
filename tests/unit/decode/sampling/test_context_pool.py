"""Prefixes that are run in any order, and runs that continue a written prefix."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from toy_outputs import STOP, Output, Toy

from structgen.decode import Context
from structgen.decode.sampling import Branch, SequenceSampler
from structgen.decode.sampling.sampler_run import run_sampler
from structgen.decode.sampling.shared_pass import ContextPool
from structgen.methods.samplers.beam import Beam
from structgen.methods.samplers.best_first import ExactBest
from structgen.methods.samplers.best_of import BestOf
from structgen.methods.samplers.trie_sampler import ASAp, RejectionTrie


def test_each_context_holds_its_path() -> None:
    """Any number of paths in any order are there, each with something to run, and little is run twice."""
    toy, rng = Toy(seed=1), random.Random(1)
    prompt = toy.model.encode_prompt("ab")
    started: list[Context] = []

    def start() -> Context:
        started.append(Context(toy.model, prompt))
        return started[-1]

    pool = ContextPool(len(prompt))
    fresh = run = 0
    for _ in range(300):
        paths = [tuple(rng.choice((1, 2, 4)) for _ in range(rng.randint(0, 4))) for _ in range(rng.randint(1, 3))]
        contexts = pool.placed(paths, start)
        assert len({id(context) for context in contexts}) == len(paths)
        for path, context in zip(paths, contexts, strict=True):
            assert context.tokens == (*prompt, *path)
            assert context.unseen
            run += len(context.unseen)
            fresh += len(prompt) + len(path)
            logits = context.session.extend(context.unseen)
            assert np.array_equal(logits, toy.model.start().extend([*prompt, *path]))
    assert len(started) == 3
    assert run < 0.8 * fresh


def test_branches_without_caches_are_run() -> None:
    toy, rng = Toy(seed=1), random.Random(2)
    with toy.branches() as branches:
        root = branches.root()
        branches.drop(root)
        known: list[Branch] = [root]
        for _ in range(40):
            branch = rng.choice(known)
            (logits,) = branches.logits_at([branch])
            distribution = branches.distribution(branch, logits)
            tokens = branch.hypothesis.tokens
            ids = [STOP if token == distribution.stop else token for token in distribution.ids.tolist()]
            assert dict(zip(ids, distribution.log_p, strict=True)) == pytest.approx(toy.choices(tokens), abs=1e-6)
            child_token = rng.choice(ids)
            if child_token != STOP:
                known.append(
                    branches.grown(
                        branch, distribution, child_token, float(distribution.log_p[distribution.index(child_token)])
                    )
                )
        rows = branches.logits_at(known[:9])
        for branch, logits in zip(known, rows, strict=False):
            wanted = toy.distribution(branch.hypothesis.tokens)
            assert logits - np.logaddexp.reduce(logits.astype(np.float64)) == pytest.approx(wanted, abs=1e-5)
        assert branch.log_p == pytest.approx(toy.log_p_before(branch.hypothesis.tokens))


SAMPLERS: list[SequenceSampler] = [
    ExactBest(n=1_000),
    Beam(1_000),
    BestOf(500),
    ASAp(300),
    RejectionTrie(300),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_samplers_go_on_from_what_is_written(sampler: SequenceSampler) -> None:
    """After the first token, with its share of the budget, they give the same outputs as runs that begin with it."""
    toy, begun = Toy("[abc]{1,3}", 3, seed=2), (4,)
    wanted: dict[Output, float] = {x: p for x, p in toy.target.items() if x[:1] == begun}
    with Context(toy.model, [*toy.model.encode_prompt("ab"), *begun]) as context:
        found = run_sampler(
            sampler, context, toy.constraint, max_tokens=3, generator=np.random.default_rng(1), begun=begun
        )
        assert context.tokens[-1] == 4
    outputs = [each.result.tokens for each in found.samples]
    if sampler.takes_best and not isinstance(sampler, BestOf):
        assert outputs == sorted(wanted, key=lambda x: -wanted[x])
        before: Any = toy.log_p_before(begun)
        assert [each.score for each in found.samples] == pytest.approx([wanted[x] - before for x in outputs], abs=1e-9)
    else:
        assert set(outputs) <= set(wanted)
        assert sum(math.exp(wanted[x]) for x in outputs) > 0.9 * sum(map(math.exp, wanted.values()))


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_the_same_seed_gives_the_same_samples(sampler: SequenceSampler) -> None:
    toy = Toy("[abc]{1,3}", 3, seed=2)
    first, second = toy.samples(sampler, seed=7), toy.samples(sampler, seed=7)
    assert [(s.result.tokens, s.log_weight) for s in first.samples] == [
        (s.result.tokens, s.log_weight) for s in second.samples
    ]
    assert isinstance(sampler, SequenceSampler)
