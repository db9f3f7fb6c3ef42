"""Sequoia: the best shape by enumeration of all trees, and the fastest size and depth."""

from __future__ import annotations

import math
import random
from itertools import product

import pytest
from random_tree_policies import Prefix, RandomGrowth, trees

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import ROOT
from structgen.methods.tree_policies.sequoia import OptimalForm, RankAcceptance, Sequoia, optimal_form


def expected(tree: frozenset[Prefix], rates: tuple[float, ...]) -> float:
    """The expected number of accepted nodes; each path is given by the ranks on it."""
    return sum(math.prod(rates[rank] for rank in path) for path in tree)


def has_all_siblings(tree: frozenset[Prefix]) -> bool:
    return all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in tree for path in tree)


def best(rates: tuple[float, ...], size: int, depth: int | None) -> float:
    forms = (tree for count in range(size + 1) for tree in trees(len(rates), count, depth=depth))
    return max(expected(tree, rates) for tree in forms if has_all_siblings(tree))


def ranks(form: OptimalForm) -> frozenset[Prefix]:
    found: list[Prefix] = []
    for node, parent in enumerate(form.parents):
        rank = form.parents[:node].count(parent)
        found.append((*(() if parent == ROOT else found[parent]), rank))
    return frozenset(found)


@pytest.mark.parametrize("depth", [None, 1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5])
def test_no_form_brings_more(size: int, depth: int | None) -> None:
    rng = random.Random(size)
    for _ in range(6):
        rates = tuple(rng.choice((0.0, 0.1, 0.25, 0.3, 0.6, 0.9)) for _ in range(rng.randint(1, 3)))  # in any order
        form = optimal_form(rates, size, depth)
        assert len(form.parents) <= size
        assert form.expected == pytest.approx(best(rates, size, depth), abs=1e-12)
        assert expected(ranks(form), rates) == pytest.approx(form.expected, abs=1e-12)
        assert depth is None or all(len(path) <= depth for path in ranks(form))


def test_large_forms_hold_the_likeliest_paths() -> None:
    """With falling rates the best shape has the paths of the largest products, which a plain search finds."""
    rates = (0.55, 0.2, 0.1, 0.05)
    products = sorted(
        (math.prod(rates[rank] for rank in path) for depth in range(1, 8) for path in product(range(4), repeat=depth)),
        reverse=True,
    )
    assert optimal_form(rates, 48, 7).expected == pytest.approx(sum(products[:48]))


@pytest.mark.parametrize("price", [0.0, 0.2])
@pytest.mark.parametrize("cost", [CostModel(0.02), CostModel(0.3), CostModel(0.05, ((4, 1.01), (5, 2.0)))], ids=str)
def test_no_size_and_depth_write_faster(cost: CostModel, price: float) -> None:
    sequoia = Sequoia(cost, price, depth=4)
    rates = sequoia.acceptance.rates(0)
    form = sequoia.form(0, 10)
    speeds = {
        (size, depth): (1 + optimal_form(rates, size, depth).expected) / (cost.relative(1 + size) + price * depth)
        for size in range(11)
        for depth in range(5)
    }
    depth = max((len(path) for path in ranks(form)), default=0)
    assert (1 + form.expected) / (cost.relative(1 + len(form.parents)) + price * depth) == pytest.approx(
        max(speeds.values())
    )


def test_what_does_not_pay_is_not_drafted() -> None:
    assert Sequoia(CostModel(0.9)).form(0, 10).parents == ()
    assert Sequoia(CostModel(0.01), price=5.0).form(0, 10).parents == ()
    assert len(Sequoia(CostModel(0.0)).form(0, 10).parents) == 10


def test_forms_follow_what_is_measured() -> None:
    sequoia = Sequoia(CostModel(0.05), acceptance=RankAcceptance(memory=50))
    for _ in range(60):
        tree = sequoia.grow(RandomGrowth(1), 12, kind=1)
        sequoia.learn(tree, [tree.tokens[node] for node in tree.token_tree().first_chain()], 1)
        other = sequoia.grow(RandomGrowth(1), 12, kind=2)
        sequoia.learn(other, [99], 2)
    sure, hopeless = sequoia.form(1, 12), sequoia.form(2, 12)
    assert sure.expected > sequoia.form(3, 12).expected > hopeless.expected
    assert max(map(len, ranks(sure))) > max(map(len, ranks(hopeless)), default=0)


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"price": -1.0}, {"price": math.inf}, {"depth": 0}):
        with pytest.raises(ValueError, match="Sequoia"):
            Sequoia(CostModel(0.1), **settings)
    for wrong in (((0.5,), -1, None), ((0.5,), 1, -1), ((1.5,), 1, None)):
        with pytest.raises(ValueError, match="optimal_form"):
            optimal_form(*wrong)
    with pytest.raises(ValueError, match="budget"):
        Sequoia(CostModel(0.1)).grow(RandomGrowth(0), -1)
