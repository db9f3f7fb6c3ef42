"""Draft tokens that are accepted where they equal the token that would have been chosen."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
from exact_randomness import Chances, ExactWithoutReplacement, outcomes
from verifier_outcomes import EveryChance, distribution_of, exact_distribution, random_distribution, random_mask

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.verifier import VerificationResult
from structgen.decode.step.without_replacement import (
    WeightedSample,
    sample_geometric,
    sample_recursive,
    sample_weighted,
)
from structgen.methods.verifiers.tree_verification import (
    match_greedily,
    match_greedily_chain,
    sample_and_match,
    sample_and_match_weighted,
)

Tokens = tuple[int, ...]


def some_tree(rng: random.Random, size: int, depth: int) -> DraftTree:
    tree = DraftTree()
    for _ in range(rng.randint(0, 4)):
        tree.extend(ROOT, [rng.randrange(size) for _ in range(rng.randint(1, depth))])
    return tree


def tokens_of(tree: DraftTree, nodes: tuple[int, ...], token: int) -> Tokens:
    return (*(tree.tokens[node] for node in nodes), token)


@pytest.mark.parametrize("seed", range(50))
def test_what_is_sampled_has_its_distribution_whatever_was_drafted(seed: int) -> None:
    rng = random.Random(seed)
    distributions = {
        each: random_distribution(rng, 2) for n in range(4) for each in itertools.product(range(2), repeat=n)
    }
    tree = some_tree(rng, 2, 2)

    def run(chance: EveryChance) -> Tokens:
        def draw(node: int) -> int:
            return chance.draw(distributions[tuple(tree.prefix(node))])

        verification = sample_and_match(tree, draw)
        assert verification.accepted == len(verification.nodes)
        tokens = tokens_of(tree, verification.nodes, verification.token)
        while len(tokens) < 3:
            tokens = (*tokens, chance.draw(distributions[tokens]))
        return tokens

    found = distribution_of(run)
    for tokens in itertools.product(range(2), repeat=3):
        wanted = (
            distributions[()][tokens[0]] * distributions[tokens[:1]][tokens[1]] * distributions[tokens[:2]][tokens[2]]
        )
        assert found.get(tokens, 0) == wanted


@pytest.mark.parametrize("seed", range(50))
def test_a_greedy_walk_ends_where_writing_one_by_one_leaves_the_tree(seed: int) -> None:
    rng = random.Random(seed)
    logits = np.random.default_rng(seed)
    rows = {
        each: logits.integers(0, 3, 3).astype(float) for n in range(5) for each in itertools.product(range(3), repeat=n)
    }
    tree = some_tree(rng, 3, 4)
    one_by_one: Tokens = ()
    while len(one_by_one) < 5:
        row = rows[one_by_one].tolist()
        one_by_one = (*one_by_one, row.index(max(row)))
    verification = match_greedily([rows[()], *(rows[tuple(tree.prefix(node))] for node in range(len(tree)))], tree)
    tokens = tokens_of(tree, verification.nodes, verification.token)
    assert tokens == one_by_one[: len(tokens)]
    paths = {tuple(tree.prefix(node)) for node in range(len(tree))}
    assert tokens not in paths
    chain = [rng.choice((token, 0)) for token in one_by_one[:4]]
    of_chain = match_greedily_chain([rows[tuple(chain[:n])] for n in range(5)], chain)
    same = next((n for n in range(4) if chain[n] != one_by_one[n]), 4)
    assert of_chain == VerificationResult(tuple(range(same)), one_by_one[same])
    tree_of_chain = DraftTree.chain(chain)
    assert match_greedily([rows[tuple(chain[:n])] for n in range(5)], tree_of_chain) == of_chain


def test_of_equal_tokens_the_first_is_the_greedy_one() -> None:
    assert match_greedily_chain(np.array([[1.0, 1.0], [0.0, 2.0]]), [0]) == VerificationResult((0,), 1)
    assert match_greedily_chain(np.array([[1.0, 1.0], [0.0, 2.0]]), [1]) == VerificationResult((), 0)


# constraints that are only asked about single tokens

ESTIMATORS: dict[str, Callable[..., WeightedSample[Any]]] = {
    "recursive": sample_recursive,
    "recursive, gives up": partial(sample_recursive, max_rejects=2),
    "geometric": partial(sample_geometric, max_rejects=2),
}


def sequence_weights(
    estimator: Callable[..., WeightedSample[Any]], seed: int, *, length: int, size: int, product: bool = True
) -> tuple[dict[Tokens, Fraction], dict[Tokens, Fraction]]:
    """The expected weight of each sequence, and the model's probability of the admitted ones."""
    rng = random.Random(seed)
    prefixes = [each for n in range(length + 1) for each in itertools.product(range(size), repeat=n)]
    distributions = {each: random_distribution(rng, size) for each in prefixes}
    masks = {each: random_mask(rng, size) for each in prefixes}
    tree = some_tree(rng, size, length - 1)

    def draw(chances: Chances, tokens: Tokens) -> WeightedSample[Fraction]:
        return estimator(ExactWithoutReplacement(list(distributions[tokens]), chances), masks[tokens].__getitem__)

    def run(chances: Chances) -> tuple[Tokens | None, Fraction]:
        verification = sample_and_match_weighted(tree, lambda node: draw(chances, tuple(tree.prefix(node))))
        assert len(verification.weights) == len(verification.nodes) + 1
        if verification.token is None:
            assert verification.weight == 0
            return None, verification.weight
        tokens = tokens_of(tree, verification.nodes, verification.token)
        weight = verification.weight if product else verification.weights[-1]
        while len(tokens) < length:
            sampled = draw(chances, tokens)
            weight *= sampled.weight
            if sampled.token is None:
                return None, weight
            tokens = (*tokens, sampled.token)
        return tokens, weight

    found: defaultdict[Tokens, Fraction] = defaultdict(Fraction)
    for probability, (tokens, weight) in outcomes(run):
        if tokens is None:
            assert weight == 0
        elif weight:
            found[tokens] += probability * weight
    wanted: dict[Tokens, Fraction] = {}
    for tokens in itertools.product(range(size), repeat=length):
        p = Fraction(1)
        for position, token in enumerate(tokens):
            p *= distributions[tokens[:position]][token] * masks[tokens[:position]][token]
        if p:
            wanted[tokens] = p
    return dict(found), wanted


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_weights_of_sequences_are_right_on_average(estimator: Callable[..., WeightedSample[Any]]) -> None:
    for seed in range(12):
        size, length = ((2, 3), (2, 2), (3, 2))[seed % 3]
        found, wanted = sequence_weights(estimator, seed, length=length, size=size)
        assert found == wanted


def test_the_rule_that_chooses_an_estimator_keeps_them_right() -> None:
    def chosen(sampler: ExactWithoutReplacement, admits: Callable[[int], bool]) -> WeightedSample[Fraction]:
        return sample_weighted(sampler, max(sampler.probability(token) for token in range(2)), admits, max_rejects=2)

    for seed in range(8):
        found, wanted = sequence_weights(chosen, seed, length=2, size=2)
        assert found == wanted


def test_enumeration_notices_weights_of_accepted_drafts_that_are_forgotten() -> None:
    results = [sequence_weights(sample_recursive, seed, length=2, size=3, product=False) for seed in range(20)]
    assert sum(found != wanted for found, wanted in results) >= 4


def test_a_draw_that_finds_nothing_ends_the_walk() -> None:
    tree = DraftTree.chain([0, 1])
    distribution = exact_distribution([1, 1])

    def draw(node: int) -> WeightedSample[Fraction]:
        return WeightedSample(0, distribution[0], 1) if node == ROOT else WeightedSample(None, Fraction(0), 2)

    verification = sample_and_match_weighted(tree, draw)
    assert (verification.nodes, verification.token, verification.weights, verification.weight) == (
        (0,),
        None,
        (distribution[0], 0),
        0,
    )
