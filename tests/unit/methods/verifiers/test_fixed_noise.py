"""Fixed noise: draft tokens change nothing, and drafters that share it agree as often as possible."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from fixed_point import find_fixed_point, settled
from verifier_outcomes import random_distribution

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.step.sampler import choose_by_noise
from structgen.methods.verifiers.tree_verification import sample_and_match

Tokens = tuple[int, ...]


class Toy:
    """Distributions that depend on all earlier tokens, and the keys of the positions."""

    def __init__(self, seed: int, length: int, *, dependence: float = 1.0) -> None:
        self.length = length
        self.size = 4
        self.keys = [seed * 100 + position for position in range(length + 1)]
        self._dependence = dependence

    def distribution(self, tokens: Tokens) -> np.ndarray:
        rng = np.random.default_rng([len(tokens), *tokens])
        own = rng.dirichlet(np.ones(self.size))
        shared = np.random.default_rng(len(tokens)).dirichlet(np.ones(self.size))
        distribution: np.ndarray = self._dependence * own + (1 - self._dependence) * shared
        return distribution

    def choose(self, tokens: Tokens) -> int:
        return choose_by_noise(self.distribution(tokens), self.keys[len(tokens)])

    def one_by_one(self) -> Tokens:
        tokens: Tokens = ()
        while len(tokens) < self.length:
            tokens = (*tokens, self.choose(tokens))
        return tokens


@pytest.mark.parametrize("seed", range(40))
def test_what_is_taken_is_what_writing_one_by_one_takes(seed: int) -> None:
    toy, rng = Toy(seed, 5), random.Random(seed)
    wanted = toy.one_by_one()
    tree = DraftTree()
    for _ in range(5):
        tree.extend(ROOT, [rng.choice((token, rng.randrange(4))) for token in wanted[:4]])
    verification = sample_and_match(tree, lambda node: toy.choose(() if node == ROOT else tuple(tree.prefix(node))))
    tokens = (*(tree.tokens[node] for node in verification.nodes), verification.token)
    assert tokens == wanted[: len(tokens)]
    assert tokens not in {tuple(tree.prefix(node)) for node in range(len(tree))}


# how often a drafter with the same noise agrees


def agreement(p: Sequence[Fraction], q: Sequence[Fraction]) -> Fraction:
    """The probability that both choose the same.

    It follows from the distribution of the minimum of independent exponential variates.
    """
    both = [i for i in range(len(p)) if p[i] and q[i]]
    return sum(
        (1 / sum((max(p[j] / p[i], q[j] / q[i]) for j in range(len(p))), Fraction(0)) for i in both), Fraction(0)
    )


@pytest.mark.parametrize("seed", range(100))
def test_agreement_is_bounded_from_below(seed: int) -> None:
    rng = random.Random(seed)
    p, q = random_distribution(rng, 4), random_distribution(rng, 4)
    distance = np.abs(p - q).sum() / 2
    assert (1 - distance) / (1 + distance) <= agreement(p, q) <= 1 - distance


@pytest.mark.exhaustive
def test_agreement_is_what_the_distributions_say() -> None:
    """Of 4000 keys, counts are within five standard deviations; independent noise would agree far less."""
    rng = random.Random(5)
    for _ in range(4):
        p, q = random_distribution(rng, 5), random_distribution(rng, 5)
        p, q = (p + q * 3) / 4, (q + p * 3) / 4
        wanted = float(agreement(p, q))
        target, draft = p.astype(float), q.astype(float)
        keys = range(4000)
        found = sum(choose_by_noise(target, key) == choose_by_noise(draft, key) for key in keys) / 4000
        apart = sum(choose_by_noise(target, key) == choose_by_noise(draft, key + 10**9) for key in keys) / 4000
        assert abs(found - wanted) < 5 * math.sqrt(0.25 / 4000)
        assert apart < found - 0.1
        distance = np.abs(target - draft).sum() / 2
        assert found > (1 - distance) / (1 + distance) - 5 * math.sqrt(0.25 / 4000)


# fixed points


@pytest.mark.parametrize("seed", range(40))
def test_a_fixed_point_is_what_writing_one_by_one_gives(seed: int) -> None:
    toy, rng = Toy(seed, 8, dependence=dependence(seed)), random.Random(seed)
    passes: list[Tokens] = []

    def choose(tokens: Sequence[int]) -> list[int | None]:
        passes.append(tuple(tokens))
        return [toy.choose(tuple(tokens[:position])) for position in range(len(tokens))]

    wanted = toy.one_by_one()
    found = find_fixed_point(choose, [rng.randrange(4) for _ in range(8)])
    assert found.tokens == wanted
    assert found.rounds == len(passes) <= 8
    for number, tokens in enumerate(passes):
        assert tokens[:number] == wanted[:number]  # each round settles one more
    assert find_fixed_point(choose, wanted).rounds == 1


def dependence(seed: int) -> float:
    return (1.0, 0.3, 0.05)[seed % 3]


def test_fixed_points_need_few_rounds_where_tokens_depend_little_on_each_other() -> None:
    rounds = []
    for seed in range(20):
        toy = Toy(seed, 12, dependence=0.05)

        def choose(tokens: Sequence[int], toy: Toy = toy) -> list[int | None]:
            return [toy.choose(tuple(tokens[:position])) for position in range(len(tokens))]

        rounds.append(find_fixed_point(choose, [0] * 12).rounds)
    assert sum(rounds) / len(rounds) < 5


@pytest.mark.parametrize("seed", range(30))
def test_an_output_that_ends_before_its_draft_does(seed: int) -> None:
    """A stop comes after two equal tokens: nothing follows it, and other tokens may be no prefix at all."""
    toy = Toy(seed, 8)

    def one(tokens: Tokens) -> int | None:
        if any(a == b for a, b in itertools.pairwise(tokens)):
            return None
        return toy.choose(tokens)

    wanted: Tokens = ()
    while len(wanted) < 8 and (token := one(wanted)) is not None:
        wanted = (*wanted, token)
    found = find_fixed_point(lambda tokens: [one(tuple(tokens[:n])) for n in range(len(tokens))], [0] * 8)
    assert found.tokens == wanted


def test_nothing_is_drafted() -> None:
    found = find_fixed_point(lambda tokens: [], [])
    assert (found.tokens, found.rounds) == ((), 0)


def test_what_is_settled() -> None:
    assert settled([1, 2, 3], [1, 2, 3]) == 3
    assert settled([1, 2, 3], [1, 5, 3]) == 2
    assert settled([1, 2, 3], [None, 5, 3]) == 1
