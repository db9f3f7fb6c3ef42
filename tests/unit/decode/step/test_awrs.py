"""Adaptive weighted rejection sampling, by exact enumeration of all outcomes."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_randomness import ExactWithoutReplacement, outcomes

from structgen.decode.step.without_replacement import (
    PEAKED,
    TokensWithoutReplacement,
    WeightedSample,
    sample_geometric,
    sample_recursive,
    sample_weighted,
)

Estimator = Callable[..., WeightedSample[Any]]


def moments(
    estimator: Estimator, distribution: Sequence[Fraction], admitted: Sequence[bool]
) -> tuple[list[Fraction], Fraction, Fraction]:
    """The expectations of the weight by token, of its square, and of the number of queries."""
    by_token, square, queries, total = [Fraction(0)] * len(distribution), Fraction(0), Fraction(0), Fraction(0)
    ok = admitted.__getitem__
    for probability, found in outcomes(lambda chances: estimator(ExactWithoutReplacement(distribution, chances), ok)):
        total += probability
        square += probability * found.weight**2
        queries += probability * found.queries
        if found.token is None:
            assert found.weight == 0
        else:
            by_token[found.token] += probability * found.weight
    assert total == 1
    return by_token, square, queries


def a_case(rng: random.Random, most: int) -> tuple[list[Fraction], list[bool]]:
    weights = [rng.choice((0, 1, 1, 2, 3, 5, 9)) for _ in range(rng.randint(1, most))]
    weights[rng.randrange(len(weights))] = rng.randint(1, 9)
    return [Fraction(weight, sum(weights)) for weight in weights], [rng.random() < 0.5 for _ in weights]


def admitted_part(distribution: Sequence[Fraction], admitted: Sequence[bool]) -> list[Fraction]:
    return [p if ok else Fraction(0) for p, ok in zip(distribution, admitted, strict=True)]


@pytest.mark.parametrize("seed", range(200))
def test_weights_are_right_on_average_for_every_token(seed: int) -> None:
    rng = random.Random(seed)
    distribution, admitted = a_case(rng, 5)
    small, fewer = a_case(rng, 3)
    rejects = rng.choice((None, 1, 2, 3, 4))
    found, _, queries = moments(partial(sample_recursive, max_rejects=rejects), distribution, admitted)
    assert found == admitted_part(distribution, admitted)
    assert queries <= len(distribution)
    accepts, rejects = rng.choice(((2, 1), (2, 2), (2, 4), (3, 2), (3, 3), (4, 1)))
    found, _, queries = moments(partial(sample_geometric, accepts=accepts, max_rejects=rejects), small, fewer)
    assert found == admitted_part(small, fewer)
    assert queries <= len(small)


@pytest.mark.parametrize("seed", range(40))
def test_the_rule_that_chooses_keeps_them_right(seed: int) -> None:
    distribution, admitted = a_case(random.Random(seed), 3)
    found, _, _ = moments(
        lambda sampler, ok: sample_weighted(sampler, max(distribution), ok, max_rejects=3), distribution, admitted
    )
    assert found == admitted_part(distribution, admitted)


def test_the_rule_asks_less_where_one_token_is_likely() -> None:
    distribution, admitted = [Fraction(9, 10), Fraction(1, 20), Fraction(1, 20)], [True, False, True]
    chosen = moments(
        lambda sampler, ok: sample_weighted(sampler, max(distribution), ok, max_rejects=8), distribution, admitted
    )
    assert max(distribution) >= PEAKED
    assert chosen == moments(partial(sample_geometric, max_rejects=8), distribution, admitted)
    assert chosen[2] < moments(partial(sample_recursive, max_rejects=8), distribution, admitted)[2]


def test_enumeration_notices_a_wrong_weight() -> None:
    """A control: plain rejection with weight 1 fails, and so does a token other than the first admitted one."""

    def unweighted(sampler: ExactWithoutReplacement, ok: Callable[[int], bool]) -> WeightedSample[Fraction]:
        found = sample_recursive(sampler, ok)
        return WeightedSample(found.token, Fraction(found.token is not None), found.queries)

    def last(sampler: ExactWithoutReplacement, ok: Callable[[int], bool]) -> WeightedSample[Fraction]:
        accepted: list[int] = []
        found = sample_recursive(sampler, lambda token: ok(token) and not accepted.append(token))
        return WeightedSample(accepted[-1] if accepted else None, found.weight, found.queries)

    distribution, admitted = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)], [True, True, False]
    assert moments(unweighted, distribution, admitted)[0] != admitted_part(distribution, admitted)
    assert moments(last, distribution, admitted)[0] != admitted_part(distribution, admitted)
    assert sum(moments(last, distribution, admitted)[0]) == sum(admitted_part(distribution, admitted))


def test_one_admitted_token_has_its_mass_for_its_weight() -> None:
    """The recursive estimator has no variance."""
    distribution = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 8), Fraction(1, 8)]
    found, square, _ = moments(sample_recursive, distribution, [False, False, True, False])
    assert square == sum(found) ** 2 == Fraction(1, 64)


def test_published_vectors(shared_data: Path) -> None:
    """The exact moments of the recursive estimator are the published ones."""
    cases = json.loads((shared_data / "vectors.json").read_text(encoding="utf-8"))["awrs"]
    assert len(cases) >= 20
    for case in cases:
        distribution = [Fraction(p) for p in case["p"]]
        for name, rejects in (("rawrs", None), ("rawrs_R2", 2), ("rawrs_R3", 3)):
            wanted = case["estimators"][name]
            found, square, queries = moments(
                partial(sample_recursive, max_rejects=rejects), distribution, case["accept"]
            )
            assert found == [Fraction(each) for each in wanted["E_w_by_token"]]
            assert square == Fraction(wanted["E_w2"])
            assert queries == Fraction(wanted["E_constraint_calls"])


@pytest.mark.parametrize(("accepts", "rejects"), [(1, 3), (2, 0), (2, -1)])
def test_bounds_that_bound_nothing_are_refused(accepts: int, rejects: int) -> None:
    sampler = TokensWithoutReplacement(np.ones(2), np.random.default_rng(0))
    with pytest.raises(ValueError, match=r"must be at least [12]; found"):
        sample_geometric(sampler, lambda token: True, accepts=accepts, max_rejects=rejects)
    if rejects < 1:
        with pytest.raises(ValueError, match=r"max_rejects must be at least 1"):
            sample_recursive(sampler, lambda token: True, max_rejects=rejects)


# in floating point


def mean_weight(
    estimator: Estimator, distribution: Sequence[float], admitted: set[int], draws: int, seed: int
) -> tuple[float, float]:
    """The mean weight over many draws, and its standard error, both as multiples of the admitted mass."""
    generator = np.random.default_rng(seed)
    weights = np.array(distribution)
    found = [estimator(TokensWithoutReplacement(weights, generator), admitted.__contains__) for _ in range(draws)]
    assert all(each.token in admitted for each in found if each.token is not None)
    values = np.array([each.weight for each in found]) / (
        sum(distribution[token] for token in admitted) / sum(distribution) or 1
    )
    return float(values.mean()), float(values.std() / math.sqrt(draws))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mass", [1e-3, 1e-6, 1e-9, 1e-12, 1e-15, 1e-40, 1e-280])
@pytest.mark.parametrize("estimator", [sample_recursive, sample_geometric])
def test_a_small_admitted_mass_has_its_weight(estimator: Estimator, mass: float) -> None:
    """The remaining mass is never found by subtraction, so no particle dies because it has little of it."""
    distribution = [0.5, 0.5 - mass, mass / 4, mass * 3 / 4]
    mean, error = mean_weight(estimator, distribution, {2, 3}, 4_000, seed=1)
    assert abs(mean - 1) <= 5 * error + 1e-12  # two-sided alpha of 6e-7
    # The geometric estimator's relative variance is about the logarithm of 1 / Z.
    spread = 1 if estimator is sample_recursive else 1.5 * math.sqrt(1 - math.log(mass))
    assert error < spread / math.sqrt(4_000)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("distribution", "admitted"),
    [
        ([0.2393] * 4 + [2.39e-4] * 178, {56}),
        ([0.999999999999999] + [9.99e-17] * 10, {3}),
        ([0.999999999999999] + [9.99e-17] * 10, {0}),
        ([1.0, 2.2e-313], set()),
        ([0.0, 1.0, 0.0], {1}),
        ([0.0, 1.0, 0.0], {0}),
        ([1.0], {0}),
    ],
)
@pytest.mark.parametrize("estimator", [sample_recursive, sample_geometric])
def test_distributions_on_which_others_failed(
    estimator: Estimator, distribution: list[float], admitted: set[int]
) -> None:
    """Underflow, rounding to one, zeros and a single token are right; with one admitted token the weight is exact."""
    mean, error = mean_weight(estimator, distribution, admitted, 500, seed=2)
    assert abs(mean - bool(admitted and sum(distribution[token] for token in admitted))) <= 5 * error + 1e-12
    if estimator is sample_recursive:
        assert error <= 1e-12


def test_the_remaining_probability_is_known_precisely() -> None:
    """It agrees with exact fractions to 1e-13, after each of many tokens that were taken and put back."""
    rng = random.Random(7)
    weights = np.array([10.0 ** rng.uniform(-30, 0) for _ in range(1_500)])
    sampler = TokensWithoutReplacement(weights, np.random.default_rng(7))
    exact = [Fraction(float(weight)) for weight in weights]
    total, out = sum(exact), list[int]()
    for step in range(1_400):
        token = sampler.take()
        assert token not in out
        out.append(token)
        if step % 9 == 0:
            sampler.put_back(out.pop(rng.randrange(len(out))))
        if step % 50 == 0:
            left = (total - sum(exact[token] for token in out)) / total
            assert abs(Fraction(sampler.left) - left) <= left * Fraction(1, 10**13)
    assert sampler.probability(3) == pytest.approx(float(exact[3] / total), rel=1e-14)


@pytest.mark.exhaustive
def test_draws_are_in_proportion_to_what_remains() -> None:
    """Each uniform number gives the token of the inverse distribution function of what remains."""

    class Uniforms:
        def __init__(self, values: list[float]) -> None:
            self.values = values

        def random(self) -> float:
            return self.values.pop(0)

    rng = random.Random(3)
    weights = np.array([rng.choice((0.0, rng.random())) for _ in range(1_100)])
    for _ in range(80):
        uniforms = [rng.random() for _ in range(4)]
        sampler = TokensWithoutReplacement(weights, Uniforms(list(uniforms)))  # type: ignore[arg-type]
        left = [Fraction(float(weight)) for weight in weights]
        for uniform in uniforms:
            target, wanted = Fraction(uniform) * sum(left), 0
            while target >= left[wanted]:
                target -= left[wanted]
                wanted += 1
            assert sampler.take() == wanted
            left[wanted] = Fraction(0)


def test_the_number_of_misses_has_its_distribution() -> None:
    """The number has the geometric distribution; chi-square with alpha 1e-6 over 20,000 draws."""
    sampler = TokensWithoutReplacement(np.array([0.6, 0.3, 0.1]), np.random.default_rng(5))
    assert sampler.misses(9) == 0
    while sampler.probability(sampler.take()) < 0.5:
        sampler = TokensWithoutReplacement(np.array([0.6, 0.3, 0.1]), np.random.default_rng(6))
    counts = np.bincount([int(sampler.misses(5)) for _ in range(20_000)], minlength=6)
    expected = 20_000 * np.array([*(0.6**k * 0.4 for k in range(5)), 0.6**5])
    assert float(((counts - expected) ** 2 / expected).sum()) < 36.5  # 5 degrees of freedom
    sampler.take()
    sampler.take()
    assert sampler.is_empty
    assert sampler.misses(7) == 7


def test_no_remaining_probability_is_refused() -> None:
    with pytest.raises(ValueError, match="no token has any probability"):
        TokensWithoutReplacement(np.zeros(3), np.random.default_rng(0))
