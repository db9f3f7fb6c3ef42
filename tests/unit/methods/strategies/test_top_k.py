"""Sparse distributions by Bregman divergences, against minimisation over all supports and their distributions."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import jsonschema
import numpy as np
import pytest
from numpy.typing import NDArray

from structgen.decode import Multinomial, Sampler, generate
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.methods.strategies.adaptive_sampler import BregmanTopK
from structgen.models import HashModel

Distribution = NDArray[np.float64]
PRIMAL = [0.2, 0.5, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 6.0]
DUAL = [1.1, 1.5, 2.0, 2.5, 3.0, 6.0]
DECODERS = [(alpha, False) for alpha in PRIMAL] + [(alpha, True) for alpha in DUAL]
SOME = [pytest.param(*each, marks=pytest.mark.nightly if at % 3 else ()) for at, each in enumerate(DECODERS)]
PENALTIES = [9.0, 2.0, 0.3, 0.05, 0.01, 0.001, 1e-5]


def divergence(x: Distribution, y: Distribution, alpha: float) -> float:
    """D(x, y) by its definition, term by term; phi(0) is 0, and so is phi'(0) times 0."""

    def phi(value: float) -> float:
        if value == 0:
            return 0.0
        return value * math.log(value) if alpha == 1 else value**alpha / (alpha * (alpha - 1))

    def slope(value: float) -> float:
        if alpha == 1:
            return math.log(value) + 1
        return value ** (alpha - 1) / (alpha - 1) if value else 0.0

    return math.fsum(phi(a) - phi(b) - (slope(b) * (a - b) if a != b else 0.0) for a, b in zip(x, y, strict=True))


def objective(distribution: Distribution, p: Distribution, alpha: float, *, dual: bool) -> float:
    """The divergence that the decoder minimises, without the penalty."""
    return divergence(p, distribution, alpha) if dual else divergence(distribution, p, alpha)


def nearest(p: Distribution, support: tuple[int, ...], alpha: float, *, dual: bool) -> Distribution:
    """The nearest distribution on a support, by Lagrange's condition and plain bisection."""
    kept = p[list(support)]

    def raised(gain: float) -> Distribution:
        if not dual:
            if alpha == 1:
                return kept * math.exp(gain)
            base = kept ** (alpha - 1) + gain * (alpha - 1)
            with np.errstate(divide="ignore"):
                return np.where(base > 0, np.maximum(base, 0), 0.0) ** (1 / (alpha - 1))
        low, high = kept.copy(), np.full(len(kept), 2.0)
        for _ in range(45):
            middle = (low + high) / 2
            is_short = middle ** (alpha - 2) * (middle - kept) < gain
            low, high = np.where(is_short, middle, low), np.where(is_short, high, middle)
        return high

    low, high = 0.0, 1.0
    while raised(high).sum() < 1:
        high *= 2
    for _ in range(80 if dual else 120):
        gain = (low + high) / 2
        low, high = (gain, high) if raised(gain).sum() < 1 else (low, gain)
    distribution = np.zeros_like(p)
    distribution[list(support)] = raised(low)
    return distribution


def distributions(count: int, sizes: tuple[int, int], seed: int) -> list[Distribution]:
    random = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        distribution = random.dirichlet(np.full(random.integers(*sizes), random.choice([0.2, 0.7, 3.0])))
        distribution = np.maximum(distribution, 1e-7)
        found.append(distribution / distribution.sum())
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("alpha", "dual"), SOME)
def test_the_reference_is_a_minimum(alpha: float, dual: bool) -> None:
    """The reference below is right: no distribution on the same support, near or far, is nearer."""
    random = np.random.default_rng(1)
    for p in distributions(3, (3, 7), 0):
        for size in range(2, len(p)):
            support = tuple(random.choice(len(p), size, replace=False).tolist())
            distribution = nearest(p, support, alpha, dual=dual)
            assert distribution.sum() == pytest.approx(1, abs=1e-9)
            least = objective(distribution, p, alpha, dual=dual)
            for distance in (1e-4, 1e-2, 0.3, 1.0):
                for _ in range(8):
                    other = np.zeros_like(p)
                    other[list(support)] = random.dirichlet(np.ones(size))
                    mixed = (1 - distance) * distribution + distance * other
                    assert objective(mixed, p, alpha, dual=dual) >= least - 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize(("alpha", "dual"), SOME)
def test_the_distribution_is_the_minimum_over_all_supports(alpha: float, dual: bool) -> None:
    """On small distributions no support, with the nearest distribution on it, costs less."""
    sizes = set()
    for p in distributions(3, (3, 6), 2):
        costs = []
        for count in range(1, len(p) + 1):
            for support in itertools.combinations(range(len(p)), count):
                distribution = nearest(p, support, alpha, dual=dual)
                costs.append((objective(distribution, p, alpha, dual=dual), count, distribution))
        for penalty in PENALTIES:
            best, _, expected = min(
                ((d + penalty * k, k, distribution) for d, k, distribution in costs), key=lambda each: each[:2]
            )
            found = BregmanTopK(penalty, alpha, dual).sparse(np.log(p))
            kept = int(np.count_nonzero(found))
            sizes.add(kept)
            assert objective(found, p, alpha, dual=dual) + penalty * kept == pytest.approx(best, abs=1e-8)
            assert found == pytest.approx(expected, abs=1e-5)
    assert len(sizes) > 2  # k adapts


@pytest.mark.exhaustive
@pytest.mark.parametrize(("alpha", "dual"), SOME)
def test_k_is_the_best_of_all(alpha: float, dual: bool) -> None:
    """On larger distributions the search finds the best k of all, since the costs are discretely convex."""
    for p in distributions(2, (12, 30), 3):
        order = np.argsort(-p, kind="stable")
        costs = [
            objective(nearest(p, tuple(order[:k].tolist()), alpha, dual=dual), p, alpha, dual=dual)
            for k in range(1, len(p) + 1)
        ]
        assert (np.diff(costs, 2) >= -1e-9).all()
        for penalty in PENALTIES:
            found = BregmanTopK(penalty, alpha, dual).sparse(np.log(p))
            kept = int(np.count_nonzero(found))
            assert set(np.flatnonzero(found)) == set(order[:kept])
            totals = np.array(costs) + penalty * np.arange(1, len(p) + 1)
            assert totals[kept - 1] <= totals.min() + 1e-8
            assert found.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dual", [False, True])
def test_half_the_squared_distance_in_fractions(dual: bool) -> None:
    """For alpha = 2 both decoders add the same amount to each kept token; everything is exact."""
    random = np.random.default_rng(4)
    seen = set()
    for _ in range(60):
        counts = sorted((int(count) for count in random.integers(1, 40, size=random.integers(2, 12))), reverse=True)
        p = [Fraction(count, sum(counts)) for count in counts]
        penalty = Fraction(int(random.integers(1, 60)), 1009)  # no two counts of kept tokens cost the same
        totals = []
        for k in range(1, len(p) + 1):
            gain = (1 - sum(p[:k])) / k
            totals.append((k * gain**2 + sum(value**2 for value in p[k:])) / 2 + penalty * k)
        k = totals.index(min(totals)) + 1
        seen.add(k)
        gain = (1 - sum(p[:k])) / k
        expected = [float(value + gain) for value in p[:k]] + [0.0] * (len(p) - k)
        log_p = np.log([float(value) for value in p])
        assert BregmanTopK(float(penalty), 2.0, dual).sparse(log_p) == pytest.approx(expected, abs=1e-12)
    assert len(seen) > 3


@pytest.mark.parametrize("penalty", [0.5, 0.1, 0.02, 0.002])
def test_kullback_leibler_is_top_k(penalty: float) -> None:
    """For alpha = 1 the distribution is that of top-k, with the k at which the next token adds too little."""
    for p in distributions(10, (5, 60), 5):
        ranked = np.sort(p)[::-1]
        mass, k = ranked[0], 1
        while k < len(p) and math.log((mass + ranked[k]) / mass) > penalty:
            mass += ranked[k]
            k += 1
        weights = Multinomial(top_k=k).shaped(np.log(p))
        assert BregmanTopK(penalty).sparse(np.log(p)) == pytest.approx(weights / weights.sum(), abs=1e-12)


def test_alpha_moves_probability() -> None:
    """Above 1 the ratio of a probable to an improbable token falls, below 1 it rises; the dual one falls less."""
    p = np.array([0.5, 0.3, 0.1, 0.06, 0.04])

    def ratio(alpha: float, *, dual: bool = False) -> float:
        distribution = BregmanTopK(1.0, alpha, dual).renormalised(p[:3])
        return float(distribution[0] / distribution[2])

    assert ratio(1.0) == pytest.approx(5)
    assert ratio(0.5) > 5 > ratio(1.5) > ratio(2.0) > ratio(3.0)
    assert ratio(2.0, dual=True) == pytest.approx(ratio(2.0))
    assert BregmanTopK(0.05, 1 + 1e-9).sparse(np.log(p)) == pytest.approx(BregmanTopK(0.05).sparse(np.log(p)))
    near = BregmanTopK(0.05, 1.0001).sparse(np.log(p))
    assert near == pytest.approx(BregmanTopK(0.05).sparse(np.log(p)), abs=1e-4)


@pytest.mark.exhaustive
def test_extreme_distributions() -> None:
    """Zeros, tiny probabilities and certainty give a distribution, and nothing impossible is kept."""
    for alpha, dual in DECODERS:
        sampler = BregmanTopK(1e-6, alpha, dual)
        with np.errstate(divide="ignore"):
            log_p = np.log(np.array([0.0, 1e-290, 0.5, 1e-12, 0.5 - 1e-12, 0.0]))
            certain = np.log(np.array([0.0, 1.0, 0.0]))
        distribution = sampler.sparse(log_p)
        assert distribution.sum() == pytest.approx(1)
        assert distribution[[0, 5]].tolist() == [0, 0]
        assert sampler.sparse(certain).tolist() == [0, 1, 0]
        flat = sampler.sparse(np.full(300, -math.log(300)))
        assert flat.sum() == pytest.approx(1)
        kept = int(np.count_nonzero(flat))
        assert (flat[:kept] > 0).all()  # of equal tokens the first


@pytest.mark.nightly
def test_tokens_are_sampled_from_the_distribution() -> None:
    """20,000 draws have the sparse distribution (alpha = 1e-6, Hoeffding's bound for each token).

    The dense distribution is rejected.
    """
    p = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    sampler, random = BregmanTopK(0.01, 2.0), np.random.default_rng(0)
    distribution = sampler.sparse(np.log(p))
    assert 2 <= np.count_nonzero(distribution) < len(p)
    draws = 20_000
    counts = np.bincount([sampler.draw(np.log(p), random) for _ in range(draws)], minlength=len(p))
    bound = math.sqrt(math.log(2 * len(p) / 1e-6) / (2 * draws))
    assert np.abs(counts / draws - distribution).max() < bound
    assert np.abs(counts / draws - p).max() > bound
    assert np.abs(counts / draws - np.where(distribution > 0, p, 0) / p[distribution > 0].sum()).max() > bound


def test_it_is_a_sampler_of_any_grammar(json_vocabulary: Vocabulary) -> None:
    """Outputs are valid for an independent validator, and the input distribution is unchanged."""
    sampler = BregmanTopK(0.02, 1.5)
    assert isinstance(sampler, Sampler)
    assert sampler.lossless is False
    schema = {
        "type": "array",
        "items": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "maxItems": 3,
    }
    constraint = compile(json_schema(schema), json_vocabulary)
    for seed in range(5):
        model = HashModel(json_vocabulary, seed=seed)
        result = generate(model, "ab", constraint, max_tokens=60, sampler=sampler, seed=seed)
        jsonschema.validate(json.loads(result.text), schema)
    log_p = np.log(np.array([0.2, 0.8]))
    before = log_p.copy()
    sampler.draw(log_p, np.random.default_rng(0))
    assert (log_p == before).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"penalty": 0.0}, "penalty"),
        ({"penalty": math.nan}, "penalty"),
        ({"alpha": 0.0}, "alpha"),
        ({"alpha": math.inf}, "alpha"),
        ({"alpha": 1.0, "dual": True}, "dual"),
        ({"alpha": 0.5, "dual": True}, "dual"),
    ],
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, float], message: str) -> None:
    """The message names the number."""
    with pytest.raises(ValueError, match=message):
        BregmanTopK(**arguments)  # type: ignore[arg-type]
