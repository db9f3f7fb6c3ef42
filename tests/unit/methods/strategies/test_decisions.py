"""Decision rules against the best of all decisions, by expected utility in exact fractions."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Hashable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import pytest
from exact_target import exact_target, normalised

from structgen.decode.sampling import sample
from structgen.engine import Vocabulary
from structgen.errors import GenerationError, LimitExceeded
from structgen.frontends.regex import regex
from structgen.methods.strategies import (
    Decide,
    FBeta,
    HierarchicalFBeta,
    LeastCost,
    MostProbable,
    NearestMean,
    Quantile,
    label_distribution,
)
from structgen.models import HashModel

Distribution = dict[Any, Fraction]


def a_distribution(rng: random.Random, labels: Iterable[Any]) -> Distribution:
    weights = {label: rng.choice((0, 1, 1, 2, 3, 5, 8)) for label in labels}
    weights[rng.choice(list(weights))] += 1
    total = sum(weights.values())
    return {label: Fraction(weight, total) for label, weight in weights.items()}


def is_best(
    distribution: Distribution, decision: Any, decisions: Iterable[Any], utility: Callable[[Any, Any], Fraction]
) -> bool:
    """Whether no decision has a higher expected utility."""

    def expected(each: Any) -> Fraction:
        return sum((p * utility(each, label) for label, p in distribution.items()), Fraction(0))

    return expected(decision) == max(map(expected, decisions))


def floats(distribution: Distribution) -> dict[Any, float]:
    return {label: float(p) for label, p in distribution.items()}


def subsets(items: Iterable[Any]) -> list[frozenset[Any]]:
    pool = list(items)
    return [frozenset(each) for size in range(len(pool) + 1) for each in itertools.combinations(pool, size)]


def a_tree(rng: random.Random, leaves: int) -> dict[str, str]:
    """Leaves below a few inner nodes, and some inner nodes below others."""
    inner = [f"n{index}" for index in range(rng.randint(1, 3))]
    parents = {inner[index]: rng.choice(inner[:index]) for index in range(1, len(inner)) if rng.random() < 0.7}
    for index in range(leaves):
        if rng.random() < 0.85:
            parents[f"l{index}"] = rng.choice(inner)
    return parents


def chain(parents: Mapping[str, str], node: str) -> frozenset[str]:
    found = {node}
    while node in parents:
        node = parents[node]
        found.add(node)
    return frozenset(found)


@pytest.mark.parametrize("seed", range(60))
def test_no_decision_is_better(seed: int) -> None:
    rng = random.Random(seed)
    labels = list(range(rng.randint(1, 5)))
    numbers = sorted(rng.sample(range(-9, 10), len(labels)))
    distribution, numeric = a_distribution(rng, labels), a_distribution(rng, numbers)
    assert is_best(distribution, MostProbable().decide(floats(distribution)), labels, lambda d, y: Fraction(d == y))
    costs = {d: {y: Fraction(rng.randint(0, 9)) for y in labels} for d in [*labels, "ask"]}
    cost = LeastCost.of({d: {y: float(c) for y, c in row.items()} for d, row in costs.items()})
    assert is_best(distribution, cost.decide(floats(distribution)), costs, lambda d, y: -costs[d][y])
    own = LeastCost(lambda d, y: float(costs[d][y]))
    assert is_best(distribution, own.decide(floats(distribution)), labels, lambda d, y: -costs[d][y])
    assert is_best(numeric, Quantile().decide(floats(numeric)), numbers, lambda d, y: -abs(Fraction(d - y)))
    assert is_best(numeric, NearestMean().decide(floats(numeric)), numbers, lambda d, y: -(Fraction(d - y) ** 2))
    level = Fraction(rng.randint(1, 15), 16)
    assert is_best(
        numeric,
        Quantile(float(level)).decide(floats(numeric)),
        numbers,
        lambda d, y: -(level * max(y - d, 0) + (1 - level) * max(d - y, 0)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_no_set_has_a_higher_f_beta(seed: int) -> None:
    rng = random.Random(seed)
    labels = [f"l{index}" for index in range(rng.randint(1, 6))]
    distribution = a_distribution(rng, labels)
    beta = Fraction(rng.choice((1, 2, 4, 8)), 4)

    def utility(chosen: frozenset[str], label: str) -> Fraction:
        return (1 + beta**2) * (label in chosen) / (beta**2 + len(chosen))

    assert is_best(distribution, FBeta(float(beta)).decide(floats(distribution)), subsets(labels), utility)


@pytest.mark.parametrize("seed", range(60))
def test_no_node_and_no_set_of_nodes_has_a_higher_hierarchical_f_beta(seed: int) -> None:
    rng = random.Random(seed)
    leaves = rng.randint(1, 5)
    parents = a_tree(rng, leaves)
    distribution = a_distribution(rng, [f"l{index}" for index in range(leaves)])
    nodes = sorted({*distribution, *parents, *parents.values()})
    beta = Fraction(rng.choice((1, 2, 4, 8)), 4)

    def utility(stands_for: frozenset[str], label: str) -> Fraction:
        right = chain(parents, label)
        return (1 + beta**2) * len(stands_for & right) / (beta**2 * len(right) + len(stands_for))

    node = HierarchicalFBeta(parents, float(beta)).decide(floats(distribution))
    assert is_best(distribution, chain(parents, node), [chain(parents, each) for each in nodes], utility)
    chosen = HierarchicalFBeta(parents, float(beta), single=False).decide(floats(distribution))
    closed = {frozenset().union(*(chain(parents, each) for each in some)) for some in subsets(nodes)}
    assert chosen in closed
    assert is_best(distribution, chosen, closed, utility)
    # A set that is not closed is no better either: adding ancestors is free where it is right.
    assert is_best(distribution, chosen, subsets(nodes), utility)


def test_the_checks_notice_a_rule_that_is_not_best() -> None:
    """The most probable label is not the best answer where errors have different costs."""
    failures = dict.fromkeys(("absolute", "squared", "f", "hierarchical"), 0)
    for seed in range(60):
        rng = random.Random(seed)
        numbers = sorted(rng.sample(range(-9, 10), 5))
        distribution = a_distribution(rng, numbers)
        top = MostProbable().decide(floats(distribution))
        failures["absolute"] += not is_best(distribution, top, numbers, lambda d, y: -abs(Fraction(d - y)))
        failures["squared"] += not is_best(distribution, top, numbers, lambda d, y: -(Fraction(d - y) ** 2))
        failures["f"] += not is_best(
            distribution, frozenset([top]), subsets(numbers), lambda d, y: Fraction(2 * (y in d), 1 + len(d))
        )
        parents = a_tree(rng, 5)
        tree_distribution = a_distribution(rng, [f"l{index}" for index in range(5)])
        chains = [chain(parents, each) for each in {*tree_distribution, *parents, *parents.values()}]
        failures["hierarchical"] += not is_best(
            tree_distribution,
            chain(parents, MostProbable().decide(floats(tree_distribution))),
            chains,
            lambda d, y, parents=parents: Fraction(2 * len(d & chain(parents, y)), len(chain(parents, y)) + len(d)),
        )
    assert min(failures.values()) > 5


def test_doubt_between_siblings_is_answered_by_what_they_share() -> None:
    parents = {"dog": "animal", "cat": "animal", "cow": "animal", "hen": "animal", "oak": "plant"}
    even = {
        "dog": 0.24,
        "cat": 0.24,
        "cow": 0.24,
        "hen": 0.24,
        "oak": 0.04,
    }  # dog: 0.24 + 0.72 / 2, animal: 0.96 * 2 / 3
    assert MostProbable().decide(even) == "dog"
    assert HierarchicalFBeta(parents).decide(even) == "animal"
    assert HierarchicalFBeta(parents).decide({"dog": 0.9, "cat": 0.05, "oak": 0.05}) == "dog"


@pytest.mark.parametrize(
    "rule", [MostProbable(), LeastCost(lambda d, y: 0.0), Quantile(), NearestMean(), FBeta(), HierarchicalFBeta({})]
)
def test_bad_probabilities_are_refused(rule: Any) -> None:
    for bad in ({}, {1: 0.0}, {1: -0.5, 2: 1.5}, {1: math.nan}, {1: math.inf, 2: 1.0}):
        with pytest.raises(ValueError, match=type(rule).__name__):
            rule.decide(bad)
    assert rule.decide({3: 7.0}) in (3, frozenset([3]))  # not normalised, and that is all right


def test_bad_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="labels must be finite numbers; found 'a'"):
        Quantile().decide({"a": 1.0})
    with pytest.raises(ValueError, match="level must be in"):
        Quantile(1.0)
    with pytest.raises(ValueError, match="beta must be positive"):
        FBeta(0.0)
    with pytest.raises(ValueError, match="'a' is its own ancestor"):
        HierarchicalFBeta({"a": "b", "b": "a"})
    with pytest.raises(ValueError, match="decisions is empty"):
        LeastCost(lambda d, y: 0.0, ())
    with pytest.raises(ValueError, match="is NaN"):
        LeastCost(lambda d, y: math.nan).decide({1: 1.0})


VOCABULARY = Vocabulary([b"", b"1", b"2", b"3", b"12", b"0"], eos=[0])
PATTERN = "1|2|12|3|10|123|03"


def exact_labels(model: HashModel, label: Callable[[str], Hashable], budget: int) -> dict[Hashable, float]:
    found: dict[Hashable, float] = {}
    for output, p in normalised(exact_target(model, "1", PATTERN, budget)).items():
        mark = label(VOCABULARY.decode(output).decode())
        found[mark] = found.get(mark, 0.0) + p
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget", [1, 2, 3, 4])
@pytest.mark.parametrize("label", [str, int, len])
def test_label_probabilities_are_sums_over_all_spellings(label: Callable[[str], Hashable], budget: int) -> None:
    for seed in range(8):
        model = HashModel(VOCABULARY, seed=seed)
        right = exact_labels(model, label, budget)
        distribution = label_distribution(model, "1", regex(PATTERN), label=label, max_tokens=budget, tolerance=0.0)
        assert distribution.missing == 0
        assert dict(distribution.probabilities) == pytest.approx(right)
        target = exact_target(model, "1", PATTERN, budget)
        assert distribution.log_mass == pytest.approx(math.log(math.fsum(map(math.exp, target.values()))))
        rough = label_distribution(model, "1", regex(PATTERN), label=label, max_tokens=budget, tolerance=0.2)
        assert rough.followed <= distribution.followed
        assert rough.missing <= 0.2
        for mark, p in right.items():
            assert abs(rough.probabilities.get(mark, 0.0) - p) <= rough.missing + 1e-12


def test_decide_answers_the_label_and_its_most_probable_spelling() -> None:
    differ = 0
    for seed in range(20):
        model = HashModel(VOCABULARY, seed=seed)
        right = exact_labels(model, int, 3)
        sampled = sample(
            model, "1", regex(PATTERN), sampler=Decide(NearestMean(), label=int, tolerance=0.0), max_tokens=3
        )
        mean = sum(mark * p for mark, p in right.items())  # type: ignore[operator]
        best = min(sorted(right), key=lambda mark: abs(mark - mean))  # type: ignore[operator,type-var]
        assert int(sampled.best().text) == best
        target = exact_target(model, "1", PATTERN, 3)
        spelled = [output for output in target if int(VOCABULARY.decode(output)) == best]
        assert sampled.best().tokens == max(spelled, key=lambda output: target[output])
        assert sampled.samples[0].log_weight == pytest.approx(math.log(right[best]))
        top = sample(model, "1", regex(PATTERN), sampler=Decide(label=int, tolerance=0.0), max_tokens=3)
        assert int(top.best().text) == max(right, key=lambda mark: right[mark])
        differ += top.best().text != sampled.best().text
        chosen = sample(model, "1", regex(PATTERN), sampler=Decide(FBeta(2.0), label=int), max_tokens=3)
        assert {int(result.text) for result in chosen.results} == set(FBeta(2.0).decide(right))
    assert differ > 2


def test_potentials_weigh_labels() -> None:
    model = HashModel(VOCABULARY, seed=1)
    score = lambda text: -3.0 * (text == "12")  # noqa: E731
    target = normalised(exact_target(model, "1", PATTERN, 3, score))
    distribution = label_distribution(model, "1", regex(PATTERN), potentials=[score], max_tokens=3, tolerance=0.0)
    right: dict[str, float] = {}
    for output, p in target.items():
        text = VOCABULARY.decode(output).decode()
        right[text] = right.get(text, 0.0) + p
    assert dict(distribution.probabilities) == pytest.approx(right)
    with pytest.raises(GenerationError, match="score_bound"):
        label_distribution(model, "1", regex(PATTERN), potentials=[lambda text: 1.0], max_tokens=3)
    with pytest.raises(GenerationError, match="no output has a positive probability"):
        label_distribution(model, "1", regex(PATTERN), potentials=[lambda text: False], max_tokens=3)


def test_decisions_that_cannot_be_answered_are_errors() -> None:
    model = HashModel(VOCABULARY, seed=1)
    with pytest.raises(GenerationError, match=r"a label that no output has.*'ask'"):
        sample(model, "1", regex(PATTERN), sampler=Decide(LeastCost(lambda d, y: 0.0, ["ask"])))
    with pytest.raises(LimitExceeded, match="label_distribution"):
        label_distribution(model, "1", regex("[123]{9}"), limit=5)
    with pytest.raises(ValueError, match="tolerance"):
        Decide(tolerance=1.0)


def test_labels_in_json() -> None:
    from structgen.frontends.json_schema import json_schema

    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'"lowhigmedu'), b'"l', b"ow"], eos=[0])
    ranks = {"low": 0, "medium": 1, "high": 2}
    for seed in range(5):
        model = HashModel(vocabulary, seed=seed)
        sampler = Decide(Quantile(), label=lambda text: ranks[json.loads(text)])
        result = sample(model, "l", json_schema({"enum": list(ranks)}), sampler=sampler, max_tokens=9).best()
        assert json.loads(result.text) in ranks
