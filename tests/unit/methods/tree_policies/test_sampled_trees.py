"""Trees whose children are sampled.

A verifier gives the target's distribution, over every outcome of every draw.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest
from exact_randomness import Chances, ExactWithoutReplacement, outcomes
from random_tree_policies import Prefix, RandomGrowth

from structgen.decode.speculative import tree_policy as children
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.fixed_tree import Chain, Fixed
from structgen.decode.speculative.tree_policy import Shape
from structgen.decode.speculative.verifier import RecursiveRejection
from structgen.methods.tree_policies.draft_length import EntropyStop, RejectionStop
from structgen.methods.tree_policies.dynamic_tree import DySpec

SHAPES = (
    Chain(2),
    Chain(2, EntropyStop(0.5)),
    Chain(2, RejectionStop(0.3)),
    Fixed.branching(2, 1),
    Fixed.branching(3, 2),
    DySpec(),
    DySpec(width=1),
    DySpec(least=0.2),
)


class ExactChance:
    """Answers a verifier with the same decisions that draw the children."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances

    def coin(self, probability: Any, /) -> bool:
        likely = min(max(Fraction(probability), Fraction(0)), Fraction(1))
        return bool(self._chances.choose([1 - likely, likely]))

    def draw(self, weights: Any, /) -> int:
        return self._chances.choose([Fraction(weight) for weight in weights])


def fractions(weights: np.ndarray[Any, Any]) -> list[Fraction]:
    exact = [Fraction(float(weight)).limit_denominator(10_000) for weight in weights]
    return [weight / sum(exact) for weight in exact]


@pytest.fixture(autouse=True)
def exact_samplers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "inverse_cdf", lambda weights, chances: chances.choose(fractions(weights)))
    monkeypatch.setattr(
        children,
        "TokensWithoutReplacement",
        lambda weights, generator: ExactWithoutReplacement(fractions(weights), generator.random()),
    )


class Decisions:
    """Replaces a generator: decisions are made elsewhere."""

    def __init__(self, chances: Chances) -> None:
        self._chances = chances

    def random(self) -> Chances:
        return self._chances


def sampled_by(shape: Shape, growth: RandomGrowth, budget: int, chances: Chances) -> DraftTree:
    return shape.grow(growth, budget, generator=cast(Any, Decisions(chances)))


def target(seed: object, prefix: Prefix) -> list[Fraction]:
    rng = random.Random(f"target{seed}{prefix}")
    weights = [rng.randint(0, 5) for _ in range(3)]
    weights[rng.randrange(3)] += 1
    return [Fraction(weight, sum(weights)) for weight in weights]


def written(seed: object, tree: DraftTree, chances: Chances) -> Prefix:
    """Two tokens, verified where some were sampled."""
    tokens: list[int] = []
    node: int | None = ROOT
    for _ in range(2):
        p = np.array(target(seed, tuple(tokens)), dtype=object)
        sampled = None if node is None else tree.sampled.get(node)
        if sampled is None:
            token = chances.choose(list(p))
        else:
            q = np.array(fractions(sampled.distribution), dtype=object)
            token = RecursiveRejection().choose(p, q, sampled.tokens, ExactChance(chances))
        tokens.append(token)
        node = None if node is None else tree.child(node, token)
    return tuple(tokens)


def distribution_of(seed: object, grow: Callable[[Any], DraftTree]) -> dict[Prefix, Fraction]:
    distribution: dict[Prefix, Fraction] = defaultdict(Fraction)
    for probability, tokens in outcomes(lambda chances: written(seed, grow(chances), chances)):
        distribution[tokens] += probability
    return {tokens: probability for tokens, probability in distribution.items() if probability}


def distribution_wanted(seed: object) -> dict[Prefix, Fraction]:
    distribution: dict[Prefix, Fraction] = {}
    for first, p in enumerate(target(seed, ())):
        for second, q in enumerate(target(seed, (first,))):
            if p * q:
                distribution[first, second] = p * q
    return distribution


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_the_target_distribution_comes_out(shape: Shape, seed: int) -> None:
    budget = 2 + seed
    distribution = distribution_of(seed, lambda chances: sampled_by(shape, RandomGrowth(seed), budget, chances))
    assert distribution == pytest.approx(distribution_wanted(seed), abs=1e-12)


def test_a_tree_that_drops_what_was_sampled_is_found_out() -> None:
    """The test above can fail: a shape that leaves out improbable children changes the distribution."""

    def grow(chances: Any) -> DraftTree:
        tree = sampled_by(Fixed.branching(2), RandomGrowth(1), 2, chances)
        return tree.kept(node for node in range(len(tree)) if tree.confidences[node] > 0.3)

    assert distribution_of(1, grow) != pytest.approx(distribution_wanted(1), abs=1e-3)


def test_places_are_filled_in_the_order_of_their_worth() -> None:
    """The worth of a place is known before its token: that of each draw is at most that of the one before."""
    for seed in range(10):

        def grow(chances: Any, seed: int = seed) -> DraftTree:
            return sampled_by(DySpec(), RandomGrowth(seed), 3, chances)

        for _, tree in outcomes(grow):
            reach = [*tree.reach(), 1.0]  # the last is that of the root
            left: dict[int, float] = {}
            worths = []
            for parent, confidence in zip(tree.parents, tree.confidences, strict=True):
                worths.append(reach[parent] * left.get(parent, 1.0))
                left[parent] = left.get(parent, 1.0) - confidence
            assert all(later <= earlier + 1e-12 for earlier, later in pairwise(worths))
            assert all(
                tuple(tree.tokens[child] for child in tree.children(parent)) == sampled.tokens
                for parent, sampled in tree.sampled.items()
            )
