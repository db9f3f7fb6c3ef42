"""Chains, their ends, and trees of a given shape."""

from __future__ import annotations

import math

import numpy as np
import pytest
from random_tree_policies import RandomGrowth, paths

from structgen.decode.speculative.acceptance import Calibration
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.fixed_tree import Chain, Fixed, Stop
from structgen.decode.speculative.tree_policy import DraftDistribution
from structgen.methods.tree_policies.draft_length import EntropyStop, RejectionStop


class Likely(RandomGrowth):
    """The most probable token has a given probability at each step; every other step starts with a forced token."""

    def __init__(self, *surest: float, forced: bool = False) -> None:
        super().__init__(0, 2)
        self.surest, self.each = surest, forced

    def distribution(self, prefix: tuple[int, ...]) -> DraftDistribution | None:
        if len(prefix) == len(self.surest):
            return None
        sure = self.surest[len(prefix)]
        return DraftDistribution.of(np.array([sure, 1 - sure]), 2, forced=(2,) if self.each and len(prefix) % 2 else ())


@pytest.mark.parametrize("seed", range(8))
def test_a_chain_takes_the_most_probable_token_each_time(seed: int) -> None:
    growth = RandomGrowth(seed)
    tree = Chain(5).grow(growth, 64)
    assert tree.parents == [-1, 0, 1, 2, 3]
    for end in range(5):
        distribution = growth.distribution(tuple(tree.tokens[:end]))
        assert distribution is not None
        assert (tree.tokens[end], tree.confidences[end]) == (distribution.tokens[0], distribution.probabilities[0])
    assert growth.calls == [1] * 5


def test_forced_tokens_are_no_drafts() -> None:
    tree = Chain(3).grow(Likely(*[0.9] * 6, forced=True), 64)
    assert tree.tokens == [0, 2, 0, 0]
    assert tree.sources == ["", FORCED, "", ""]
    assert Chain(3).grow(Likely(*[0.9] * 6, forced=True), 2).tokens == [0, 2]
    assert Chain(3).grow(Likely(*[0.9] * 6, forced=True), 1).tokens == [0]


def test_a_chain_ends_where_nothing_is_known_or_allowed() -> None:
    assert len(Chain(5).grow(Likely(0.9, 0.9), 64)) == 2
    assert len(Chain(0).grow(Likely(0.9, 0.9), 64)) == 0
    assert len(Chain(5).grow(Likely(0.9, 0.9), 0)) == 0


def test_entropy_ends_a_chain() -> None:
    stop = EntropyStop(least=0.5, scale=1.0)
    tree = Chain(9, stop).grow(Likely(1.0, 0.99, 0.97, 0.9, 0.99), 64)
    # the bounds are 1, 0.76, 0.63 and 0.43
    assert len(tree) == 3
    for sure in (0.999, 0.97, 0.9, 0.5):
        distribution = DraftDistribution.of(np.array([sure, 1 - sure]), 1)
        entropy = -sure * math.log(sure) - (1 - sure) * math.log(1 - sure)
        assert stop.stops(distribution, (), 0) == (1 - math.sqrt(entropy) < 0.5)


@pytest.mark.parametrize(("p", "q"), [(0.9, 0.8), (0.5, 0.3), (0.99, 0.9), (0.2, 0.6)])
def test_the_bound_on_acceptance_holds(p: float, q: float) -> None:
    """Pinsker: the divergence of the target from the drafter is a multiple of the drafter's entropy."""
    divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    entropy = -q * math.log(q) - (1 - q) * math.log(1 - q)
    acceptance = min(p, q) + min(1 - p, 1 - q)
    scale = divergence / 2 / entropy
    distribution = DraftDistribution.of(np.array([q, 1 - q]), 1)
    bound = 1 - math.sqrt(scale * distribution.entropy())
    assert acceptance >= bound
    assert not EntropyStop(bound - 1e-9, scale).stops(distribution, (), 0)
    assert EntropyStop(bound + 1e-9, scale).stops(distribution, (), 0)


@pytest.mark.parametrize("stop", [EntropyStop(0.9, 3.0), RejectionStop(0.0)], ids=["entropy", "rejection"])
def test_forced_tokens_never_end_a_chain(stop: Stop) -> None:
    class Forced(RandomGrowth):
        def distribution(self, prefix: tuple[int, ...]) -> DraftDistribution | None:
            return DraftDistribution.of(np.array([0.5, 0.5]), 2, forced=(7, 8, 9))

    tree = Chain(9, stop).grow(Forced(0), 64)
    assert tree.tokens[:3] == [7, 8, 9]
    assert len(tree) in {3, 7}  # up to the next choice


def test_a_likely_refusal_ends_a_chain() -> None:
    untouched = RejectionStop(0.5)
    distribution = DraftDistribution.of(np.array([0.9, 0.1]), 1)
    assert not untouched.stops(distribution, (0.8, 0.8), 0)  # 0.36 for one refusal at least
    assert untouched.stops(distribution, (0.8, 0.8, 0.75), 0)
    assert not untouched.stops(distribution, (), 0)
    tree = Chain(9, untouched).grow(Likely(*[0.8] * 9), 64)
    assert len(tree) == 4  # the fourth makes a refusal likelier than 0.5


def test_what_is_measured_counts_more_than_what_the_drafter_says() -> None:
    stop = RejectionStop(0.5, Calibration(strength=2))
    chain = Chain(6, stop)
    for _ in range(50):
        tree = chain.grow(Likely(*[0.8] * 6), 64, kind=1)
        chain.learn(tree, [0] * 9, 1)
        other = chain.grow(Likely(*[0.8] * 6), 64, kind=2)
        chain.learn(other, [0, 1], 2)
    assert len(chain.grow(Likely(*[0.8] * 6), 64, kind=1)) == 6
    assert len(chain.grow(Likely(*[0.8] * 6), 64, kind=2)) < 4
    assert len(chain.grow(Likely(*[0.8] * 6), 64, kind=3)) == 4


def test_forms_by_branching() -> None:
    assert Fixed.branching(2, 1, 2).parents == (-1, -1, 0, 1, 2, 2, 3, 3)
    assert Fixed.branching().parents == ()


def test_forms_by_paths() -> None:
    assert Fixed.paths([(0, 0), (1,)]).parents == (-1, -1, 0)
    assert Fixed.paths([(2, 1)]).parents == (-1, -1, -1, 2, 2)
    assert Fixed.paths([(0, 1, 0)]).parents == Fixed.paths([(0,), (0, 0), (0, 1), (0, 1, 0)]).parents == (-1, 0, 0, 2)


@pytest.mark.parametrize("seed", range(8))
def test_a_form_is_filled_by_rank(seed: int) -> None:
    growth = RandomGrowth(seed, 4, most=3)
    wanted = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0)]
    tree = Fixed.paths(wanted).grow(growth, 64)
    expected = set()
    for ranks in wanted:
        prefix: tuple[int, ...] = ()
        for rank in ranks:
            distribution = growth.distribution(prefix)
            assert distribution is not None
            if rank >= len(distribution.tokens):
                break
            prefix = (*prefix, int(distribution.tokens[rank]))
        else:
            expected.add(prefix)
    assert paths(tree) == expected
    assert len(growth.calls) <= 3


def test_a_budget_cuts_the_lowest_level() -> None:
    whole = Fixed.branching(2, 2, 2).grow(RandomGrowth(3), 64)
    for budget in range(len(whole)):
        tree = Fixed.branching(2, 2, 2).grow(RandomGrowth(3), budget)
        assert (tree.tokens, tree.parents) == (whole.tokens[:budget], whole.parents[:budget])


def test_forced_tokens_stand_between_levels() -> None:
    tree = Fixed.branching(1, 1).grow(Likely(0.9, 0.9, forced=True), 64)
    assert (tree.tokens, tree.parents) == ([0, 2, 0], [-1, 0, 1])
    assert tree.child(ROOT, 0) == 0


@pytest.mark.parametrize("shape", [Chain(4), Fixed.branching(2, 2)], ids=str)
def test_sampled_trees_record_what_was_sampled(shape: Chain | Fixed) -> None:
    tree = shape.grow(RandomGrowth(1, 5), 64, generator=np.random.default_rng(0))
    again = shape.grow(RandomGrowth(1, 5), 64, generator=np.random.default_rng(0))
    assert tree.tokens == again.tokens
    assert {parent for parent in range(-1, len(tree)) if tree.children(parent)} == set(tree.sampled)
    for parent, sampled in tree.sampled.items():
        assert sampled.tokens == tuple(tree.tokens[child] for child in tree.children(parent))
        assert not sampled.replaced
    assert isinstance(tree, DraftTree)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match="Chain"):
        Chain(-1)
    with pytest.raises(ValueError, match="budget"):
        Chain(2).grow(RandomGrowth(0), -1)
    with pytest.raises(ValueError, match="budget"):
        Fixed((-1,)).grow(RandomGrowth(0), -1)
    for parents in ((0,), (-1, 1), (-2,)):
        with pytest.raises(ValueError, match="Fixed"):
            Fixed(parents)
    for counts in ((0,), (2, -1), (5000,), (100, 100)):
        with pytest.raises(ValueError, match="Fixed"):
            Fixed.branching(*counts)
    with pytest.raises(ValueError, match="negative"):
        Fixed.paths([(0, -1)])
    for settings in ({"least": -0.1}, {"least": 1.1}, {"scale": 0.0}, {"scale": math.inf}):
        with pytest.raises(ValueError, match="EntropyStop"):
            EntropyStop(**settings)
    with pytest.raises(ValueError, match="RejectionStop"):
        RejectionStop(1.5)
