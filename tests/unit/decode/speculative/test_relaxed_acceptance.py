"""Criteria that accept more drafts than the exact rule: faster, always in the grammar, and not lossless."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from verifier_outcomes import (
    Distribution,
    as_distribution,
    distribution_of,
    exact_distribution,
    masked,
    random_distribution,
    random_mask,
    sampled_from,
)

from structgen.decode.speculative.verifier import RecursiveRejection, Verifier
from structgen.methods.verifiers.acceptance_rules import Judge, TypicalAcceptance

NEVER, ALWAYS = Judge(lambda p, q, draft: 0.0), Judge(lambda p, q, draft: 1.0)


def chosen(verifier: Verifier, p: Distribution, q: Distribution, count: int) -> list[Fraction]:
    found = distribution_of(
        lambda chance: verifier.choose(p, q, sampled_from(q, count, chance, replaced=False), chance)
    )
    return as_distribution(found, len(p))


def test_they_say_that_they_are_not_lossless() -> None:
    assert not NEVER.lossless
    assert not TypicalAcceptance.lossless


@pytest.mark.parametrize("seed", range(60))
def test_without_a_draft_that_passes_the_distribution_is_the_target(seed: int) -> None:
    rng = random.Random(seed)
    p, q = random_distribution(rng, 3), random_distribution(rng, 3)
    assert chosen(NEVER, p, q, 2) == list(p)
    assert chosen(TypicalAcceptance(epsilon=1.0, delta=1e9), p, q, 2) == list(p)


@pytest.mark.parametrize("seed", range(60))
def test_a_judge_that_passes_all_leaves_the_distribution_of_the_drafts_but_for_what_is_not_legal(seed: int) -> None:
    rng = random.Random(seed)
    mask = random_mask(rng, 4)
    p, q = random_distribution(rng, 4, mask), random_distribution(rng, 4)
    found = chosen(ALWAYS, p, q, 1)
    refused = sum((q[i] for i in range(4) if not p[i]), Fraction(0))
    rest = np.maximum(p - q, 0)
    wanted = [(q[i] if p[i] else 0) + (refused * rest[i] / rest.sum() if refused else 0) for i in range(4)]
    assert found == wanted
    if refused < 1:
        legal = [bool(each) for each in p]
        kept = masked(q, legal)
        assert chosen(ALWAYS, p, kept, 1) == list(kept)


@pytest.mark.parametrize("verifier", [ALWAYS, TypicalAcceptance(), TypicalAcceptance(1e-9, 1e-9)])
def test_legality_is_a_veto(verifier: Verifier) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        mask = random_mask(rng, 4)
        p, q = random_distribution(rng, 4, mask), random_distribution(rng, 4)
        for found, target in zip(chosen(verifier, p, q, 3), p, strict=True):
            assert target or not found


def test_a_typical_draft_passes_and_another_does_not() -> None:
    """The threshold is that of the definition, in Python's floats."""
    rng = random.Random(0)
    seen: set[tuple[bool, bool]] = set()
    for _ in range(300):
        p = random_distribution(rng, 6)
        epsilon, delta = rng.choice(((0.09, 0.3), (0.4, 2.0), (0.2, 0.8)))
        entropy = -math.fsum(float(each) * math.log(each) for each in p if each)
        draft = rng.randrange(6)
        if not p[draft]:
            continue
        threshold = min(epsilon, delta * math.exp(-entropy))
        if abs(float(p[draft]) - threshold) < 1e-9:
            continue
        certain = np.zeros(6, dtype=object) + Fraction(0)
        certain[draft] = Fraction(1)
        verifier = TypicalAcceptance(epsilon, delta)
        found = distribution_of(lambda chance, v=verifier, p=p, q=certain, d=draft: v.choose(p, q, [d], chance))
        passes = float(p[draft]) > threshold
        assert found.get(draft, 0) == (1 if passes else p[draft])
        seen.add((passes, float(p[draft]) > epsilon))
    assert seen == {(True, True), (True, False), (False, False)}


def test_a_judge_is_told_the_distributions_and_the_draft_and_keeps_to_its_threshold() -> None:
    p, q = exact_distribution([1, 3]), exact_distribution([3, 1])
    told: list[Any] = []

    def score(target: Distribution, distribution: Distribution, draft: int) -> float:
        told.append((list(target), list(distribution), draft))
        return float(target[draft])

    assert distribution_of(lambda chance: Judge(score, 0.25).choose(p, q, [0], chance)) == {0: 1}
    assert told[0] == (list(p), list(q), 0)
    assert distribution_of(lambda chance: Judge(score, 0.26).choose(p, q, [0], chance)) == {
        0: Fraction(1, 3),
        1: Fraction(2, 3),
    }


def test_relaxing_takes_more() -> None:
    """It accepts more where the target is unsure, as documented."""
    p, q = exact_distribution([1] * 8), exact_distribution([9, 1, 1, 1, 1, 1, 1, 1])

    def accepted(verifier: Verifier) -> Fraction:
        def run(chance: Any) -> bool:
            drafts = sampled_from(q, 1, chance, replaced=False)
            chance.draws = 0
            verifier.choose(p, q, drafts, chance)
            return chance.draws == 0

        return distribution_of(run).get(True, Fraction(0))

    assert accepted(TypicalAcceptance()) == 1
    assert accepted(RecursiveRejection()) == np.minimum(p, q).sum() < 1


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.3), (1.1, 0.3), (0.1, 0.0), (0.1, math.inf), (math.nan, 0.3)])
def test_settings_out_of_range_are_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(ValueError, match=r"TypicalAcceptance: (epsilon|delta) must be"):
        TypicalAcceptance(epsilon, delta)


def test_a_threshold_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="Judge: threshold must be a number"):
        Judge(lambda p, q, draft: 0.0, math.nan)
