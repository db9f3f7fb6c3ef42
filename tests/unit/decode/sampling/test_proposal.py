"""Proposals: each token has its probability on average, by exact fractions where that is possible."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from exact_randomness import Chances, ExactWithoutReplacement, outcomes
from exact_target import z_score

from structgen.decode import Multinomial
from structgen.decode.potentials import Potential, potential
from structgen.decode.sampling import AWRS, Branches, Problem, Proposal
from structgen.decode.sampling.proposal import _BoundedPredicate, _TooManyRejects, as_proposal
from structgen.decode.step.context import Context
from structgen.decode.step.without_replacement import WeightedSample, sample_recursive
from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.models import HashModel

LIMIT = 6.0


@pytest.mark.parametrize("seed", range(60))
def test_turning_to_the_mask_after_some_rejects_is_unbiased(seed: int) -> None:
    """The expectation over all outcomes is right, in fractions."""
    rng = random.Random(seed)
    weights = [rng.randint(1, 9) for _ in range(rng.randint(2, 5))]
    distribution = [Fraction(weight, sum(weights)) for weight in weights]
    admitted = [rng.random() < 0.5 for _ in distribution]
    masked = [p if ok else Fraction(0) for p, ok in zip(distribution, admitted, strict=True)]
    most = rng.randint(0, 2)

    def draw(chances: Chances) -> WeightedSample[Fraction]:
        patient = _BoundedPredicate(admitted.__getitem__, np.arange(len(distribution)), most)
        try:
            return sample_recursive(ExactWithoutReplacement(distribution, chances), patient)
        except _TooManyRejects:
            if not any(admitted):
                return WeightedSample(None, Fraction(0), 0)
            return WeightedSample(chances.choose(masked), sum(masked), 0)

    found = [Fraction(0)] * len(distribution)
    for probability, sampled in outcomes(draw):
        if sampled.token is not None:
            found[sampled.token] += probability * sampled.weight
    assert found == masked


def test_turning_to_the_mask_later_would_be_biased() -> None:
    """The test above has power: once a token was admitted, it may not be resampled."""
    distribution, admitted = [Fraction(1, 2), Fraction(1, 4), Fraction(1, 4)], [True, True, False]
    masked = [p if ok else Fraction(0) for p, ok in zip(distribution, admitted, strict=True)]

    def draw(chances: Chances) -> WeightedSample[Fraction]:
        sampled = sample_recursive(ExactWithoutReplacement(distribution, chances), admitted.__getitem__)
        was_rejected_last = sampled.weight == distribution[sampled.token or 0] and sampled.queries == 2
        return WeightedSample(chances.choose(masked), sum(masked), 0) if was_rejected_last else sampled

    found = [Fraction(0)] * len(distribution)
    for probability, sampled in outcomes(draw):
        if sampled.token is not None:
            found[sampled.token] += probability * sampled.weight
    assert found != masked


VOCABULARY = Vocabulary([b"", *(bytes([letter]) for letter in b"abcdefgh")], eos=[0])


@potential(always=True)
def vowel(text: str) -> bool:
    return text[-1:] in ("", "a", "e")


def branches_of(potentials: Sequence[Potential], pattern: str = "[a-g]{1,3}") -> Branches:
    model = HashModel(VOCABULARY, seed=9)
    constraint = compile(regex(pattern), VOCABULARY)
    problem = Problem(model, (1,), constraint, potentials, 3)
    return Branches(problem, Context(model, problem.prompt))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "proposal",
    [
        AWRS(),
        pytest.param(AWRS(most_rejects=2), marks=pytest.mark.nightly),
        pytest.param(AWRS(mask_after=None), marks=pytest.mark.nightly),
        pytest.param(AWRS(mask_after=1), marks=pytest.mark.nightly),
        pytest.param(Multinomial(), marks=pytest.mark.nightly),
    ],
    ids=repr,
)
def test_each_token_gets_its_probability_on_average(proposal: AWRS | Multinomial) -> None:
    """Over 4,000 draws, three at a time, nine z-scores are small."""
    drawer: Proposal = as_proposal(proposal)
    generator = np.random.default_rng(3)
    with branches_of([vowel]) as branches:
        logits = branches.logits([branches.root()])[0].astype(np.float64)
        distribution = np.exp(logits - np.logaddexp.reduce(logits))
        sums = np.zeros((4000, VOCABULARY.size))
        for index in range(4000):
            for sampled in drawer.propose(branches, branches.root(), logits.astype(np.float32), 3, generator):
                if sampled.token is not None:
                    sums[index, sampled.token] += math.exp(sampled.log_weight) / 3
                    assert sampled.log_p == pytest.approx(math.log(distribution[sampled.token]), abs=1e-5)
            branches.masks.clear()  # each time as if the state were new
    right = [distribution[token] if token in (1, 5) else 0.0 for token in range(VOCABULARY.size)]
    for token, expected in enumerate(right):
        assert abs(z_score(sums[:, token], float(expected))) < LIMIT


def test_where_the_mask_says_all_the_weight_is_exact() -> None:
    generator = np.random.default_rng(3)
    with branches_of([]) as branches:
        root = branches.root()
        logits = branches.logits([root])[0]
        distribution = logits.astype(np.float64) - np.logaddexp.reduce(logits.astype(np.float64))
        log_z = float(np.logaddexp.reduce(distribution[1:8]))
        sampled = as_proposal(AWRS()).propose(branches, root, logits, 500, generator)
        assert {round(each.log_weight, 9) for each in sampled} == {round(log_z, 9)}
        assert branches.queries == 0
        # Stratified: no token's count is more than one away from its expectation.
        for token in range(1, 8):
            share = 500 * math.exp(distribution[token] - log_z)
            assert abs(sum(each.token == token for each in sampled) - share) < 2
        # Without a mask at first, the state is known afterwards and the weight is exact again.
        patient = AWRS(mask_after=0)
        assert as_proposal(patient).propose(branches, root, logits, 1, generator)[0].log_weight == pytest.approx(log_z)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mass", [1e-6, 1e-9, 1e-12])
def test_tiny_masses_keep_their_weight(mass: float) -> None:
    """Hardly anything is admitted: published code gives weight zero below 1e-5. 400 draws, one z-score."""

    class Sure(HashModel):
        def logits(self, state: int, matched: int) -> np.ndarray:  # type: ignore[override]
            row = np.full(self.vocabulary.size, -60.0, dtype=np.float32)
            row[2], row[1], row[5] = 0.0, math.log(mass), math.log(3 * mass)
            return row

    model = Sure(VOCABULARY)
    constraint = compile(regex("[a-g]{1,3}"), VOCABULARY)
    problem = Problem(model, (1,), constraint, [vowel], 3)
    generator = np.random.default_rng(1)
    for proposal in (AWRS(), AWRS(mask_after=None), AWRS(mask_after=2)):
        with Branches(problem, Context(model, problem.prompt)) as branches:
            root = branches.root()
            logits = branches.logits([root])[0]
            sampled = [as_proposal(proposal).propose(branches, root, logits, 1, generator)[0] for _ in range(400)]
        weights = np.array([math.exp(each.log_weight) if each.token == 5 else 0.0 for each in sampled]) / mass
        assert abs(z_score(weights, 3.0)) < LIMIT
        assert weights.mean() > 1


def test_nothing_that_is_admitted_is_said_so() -> None:
    nothing = potential(always=True)(lambda text: not text)
    generator = np.random.default_rng(1)
    for proposal in (AWRS(), AWRS(mask_after=None), AWRS(mask_after=2), Multinomial()):
        with branches_of([nothing]) as branches:
            root = branches.root()
            sampled = as_proposal(proposal).propose(branches, root, branches.logits([root])[0], 3, generator)
            assert [(each.token, each.log_weight) for each in sampled] == [(None, -math.inf)] * 3


def test_few_questions_are_asked() -> None:
    with branches_of([vowel]) as branches:
        root = branches.root()
        logits = branches.logits([root])[0]
        for _ in range(50):
            as_proposal(AWRS()).propose(branches, root, logits, 4, np.random.default_rng(2))
        assert branches.evaluator.evaluations["vowel"] <= 8  # once for each prefix: answers are shared
