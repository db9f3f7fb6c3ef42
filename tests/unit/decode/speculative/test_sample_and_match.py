"""Draft tokens that are accepted where they equal the token that would have been chosen."""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from exact_randomness import Chances, ExactWithoutReplacement, outcomes
from verifier_outcomes import EveryChance, distribution_of, exact_distribution, random_distribution, random_mask

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.step.without_replacement import (
    WeightedSample,
    sample_geometric,
    sample_recursive,
    sample_weighted,
)
from structgen.methods.verifiers.tree_verification import sample_and_match

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


# constraints that are only asked about single tokens


@dataclass(frozen=True)
class Weighted:
    """What was accepted: nodes, the next token if there is one, and the weights of all of them."""

    nodes: tuple[int, ...]
    token: int | None
    weights: tuple[Any, ...]

    @property
    def weight(self) -> Any:
        return math.prod(self.weights[1:], start=self.weights[0])


def sample_and_match_weighted(tree: DraftTree, draw: Callable[[int], WeightedSample[Any]]) -> Weighted:
    """As ``sample_and_match``, for samples with weights: if each is right on average, so is their product."""
    nodes: list[int] = []
    weights: list[Any] = []
    node = ROOT
    while True:
        sampled = draw(node)
        weights.append(sampled.weight)
        child = None if sampled.token is None else tree.child(node, sampled.token)
        if child is None:
            return Weighted(tuple(nodes), sampled.token, tuple(weights))
        nodes.append(child)
        node = child


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
