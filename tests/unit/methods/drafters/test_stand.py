"""Draft tokens sampled from the table: their distribution, and that of the output."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from handmade_passes import LETTERS, compiled, state_of, task_of

from structgen.decode import Context, Greedy, Multinomial, generate
from structgen.decode.speculative.draft_tree import ROOT
from structgen.decode.speculative.drafters.likely_tokens import NGramTable
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary
from structgen.frontends.regex import regex
from structgen.methods.drafters.ngram_tables import Stand
from structgen.models.toy.hash import HashModel

A, B, C, D, E = range(1, 6)
DISTRIBUTION = {B: 0.5, C: 0.3, D: 0.15, E: 0.05}


def taught(**settings: object) -> Stand:
    drafter = Stand(store=NGramTable(2), **settings)  # type: ignore[arg-type]
    drafter.store.learn(LETTERS, [((A,), list(DISTRIBUTION), [math.log(each) for each in DISTRIBUTION.values()])])
    return drafter


def plackett_luce(distribution: dict[int, float], count: int) -> dict[tuple[int, ...], float]:
    """The probabilities of all ordered draws without replacement."""
    found = {}
    for tokens in itertools.permutations(distribution, count):
        probability, left = 1.0, 1.0
        for token in tokens:
            probability *= distribution[token] / left
            left -= distribution[token]
        found[tokens] = probability
    return found


def chi_square(seen: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """The one-sided p-value of chi-square, by the normal approximation of Wilson and Hilferty (1931)."""
    total = sum(seen.values())
    assert set(seen) <= set(expected)
    statistic = sum((seen[each] - total * p) ** 2 / (total * p) for each, p in expected.items())
    freedom = len(expected) - 1
    score = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(score / math.sqrt(2))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sampler", "pattern", "distribution"),
    [
        (Multinomial(), "[a-f]*", DISTRIBUTION),
        (Multinomial(), "[bde]*", {B: 0.5 / 0.7, D: 0.15 / 0.7, E: 0.05 / 0.7}),
        (Multinomial(0.5), "[a-f]*", {token: p**2 / 0.365 for token, p in DISTRIBUTION.items()}),
        (Multinomial(top_k=3), "[a-f]*", {B: 0.5 / 0.95, C: 0.3 / 0.95, D: 0.15 / 0.95}),
    ],
    ids=["plain", "masked", "colder", "top-3"],
)
def test_children_are_sampled_without_replacement(
    sampler: Multinomial, pattern: str, distribution: dict[int, float]
) -> None:
    """They have the Plackett-Luce distribution.

    Its weights are the table's distribution after the mask and the sampler's shaping.
    """
    constraint = compiled(pattern)
    drafter = taught(shape=RankTree(((0,), (1,))))
    context = Context(HashModel(LETTERS), [A])
    drafting = drafter.start(context, task_of(constraint, sampler, seed=1))
    state = state_of(constraint.matcher())
    seen: Counter[tuple[int, ...]] = Counter()
    for _ in range(3_000):
        tree = drafting.propose(context, state, 2)
        sampled = tree.sampled[ROOT]
        assert tree.tokens == list(sampled.tokens)
        assert not sampled.replaced
        seen[sampled.tokens] += 1
    dense = np.zeros(LETTERS.size)
    dense[list(distribution)] = list(distribution.values())
    assert sampled.distribution.tolist() == pytest.approx(dense.tolist(), abs=1e-12)
    assert chi_square(seen, plackett_luce(distribution, 2)) > 1e-6


def test_for_a_sampler_that_draws_nothing_the_most_probable_are_chosen() -> None:
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [A])
    for drafter, sampler in ((taught(), Greedy()), (taught(draws=False), Multinomial())):
        tree = drafter.start(context, task_of(constraint, sampler)).propose(context, state_of(constraint.matcher()), 3)
        assert not tree.sampled
        assert [tree.tokens[node] for node in tree.children(ROOT)] == [B, C, D][: len(tree.children(ROOT))]
        assert tree.confidences[0] == pytest.approx(0.5)


def test_a_shorter_run_helps_where_the_longest_tells_nothing_allowed() -> None:
    drafter = taught(shape=RankTree(((0,),)))
    drafter.store.learn(LETTERS, [((C, A), [D], [0.0])])
    context = Context(HashModel(LETTERS), [C, A])
    for pattern, expected in (("[a-f]*", D), ("[abc]*", B)):
        constraint = compiled(pattern)
        tree = drafter.start(context, task_of(constraint)).propose(context, state_of(constraint.matcher()), 1)
        assert tree.tokens == [expected]


VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
PATTERN = "[ab]{2}c?"


def exact_distribution(model: HashModel, sampler: Multinomial, prompt: list[int]) -> dict[tuple[int, ...], float]:
    """The probabilities of all outputs, by enumeration."""
    outputs: dict[tuple[int, ...], float] = {}
    open_ = [((), 1.0, compiled(PATTERN, VOCABULARY).matcher())]
    while open_:
        tokens, probability, matcher = open_.pop()
        allowed = [token for token in range(VOCABULARY.size) if matcher.fork().accept(token)]
        row = model.start().extend([*prompt, *tokens]).astype(np.float64)[allowed]
        weights = sampler.shaped(row - row.max()) if len(allowed) > 1 else np.ones(1)
        for token, weight in zip(allowed, weights / weights.sum(), strict=True):
            if token == 0:
                outputs[tokens] = probability * weight
            else:
                fork = matcher.fork()
                assert fork.accept(token)
                open_.append(((*tokens, token), probability * weight, fork))
    return outputs


@pytest.mark.nightly
def test_outputs_keep_their_distribution() -> None:
    """Many outputs that draft for each other agree with the distribution of all outputs."""
    model, sampler = HashModel(VOCABULARY, seed=5), Multinomial(1.5)
    expected = exact_distribution(model, sampler, model.encode_prompt("c"))
    assert sum(expected.values()) == pytest.approx(1)
    assert len(expected) > 8
    drafter = Stand()
    seen: Counter[tuple[int, ...]] = Counter()
    accepted = 0
    for seed in range(2_500):
        result = generate(
            model,
            "c",
            regex(PATTERN),
            max_tokens=4,
            sampler=sampler,
            seed=seed,
            drafter=Speculation(drafter, budget=4),
        )
        seen[result.tokens] += 1
        accepted += result.stats.accepted
    assert accepted > 1_000
    assert chi_square(seen, expected) > 1e-6
