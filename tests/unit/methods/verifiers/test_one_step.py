"""The distribution of the next token.

It is computed by exact enumeration of the drafts and of all random decisions of verifiers.
"""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from verifier_outcomes import (
    Distribution,
    EveryChance,
    as_distribution,
    distribution_of,
    exact_distribution,
    masked,
    random_distribution,
    random_mask,
    sampled_from,
)

from structgen.decode.speculative.verifier import IndependentRejection, RecursiveRejection
from structgen.methods.verifiers.acceptance_rules import KSequential, min_rho, select_k_sequentially
from structgen.methods.verifiers.tree_verification import restricted

Choose = Callable[[Distribution, Distribution, Sequence[int], EveryChance], int]
SEEDS = [range(first, first + 20) for first in range(0, 200, 20)]
seeds = pytest.mark.parametrize("seeds", SEEDS, ids=lambda each: f"from {each.start}")


@functools.cache
def sufficient_rho(p: tuple[Fraction, ...], q: tuple[Fraction, ...], count: int) -> Fraction:
    """The least rho up to 2**-14, by the definition, with bisection in fractions."""
    low, high = Fraction(1), Fraction(count)
    for _ in range(16 if count > 1 else 0):
        middle = (low + high) / 2
        beta = sum(min(p[i] / middle, q[i]) for i in range(len(p)))
        if 1 - (1 - beta) ** count <= middle * beta:
            high = middle
        else:
            low = middle
    return high


def k_sequential(p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance) -> int:
    count = sum(bool(q[draft]) for draft in drafts)
    return select_k_sequentially(p, q, drafts, chance, sufficient_rho(tuple(p), tuple(q), count) if count else None)


VERIFIERS: dict[str, tuple[Choose, bool]] = {
    "recursive rejection": (RecursiveRejection().choose, False),
    "recursive rejection of independent drafts": (RecursiveRejection().choose, True),
    "independent rejection": (IndependentRejection().choose, True),
    "k-sequential": (k_sequential, True),
}
verifiers = pytest.mark.parametrize(("choose", "replaced"), VERIFIERS.values(), ids=VERIFIERS)


def next_token(
    choose: Choose, p: Distribution, q: Distribution, count: int, *, replaced: bool, told: Distribution | None = None
) -> list[Fraction]:
    """The distribution of the chosen token.

    ``told`` is given to the verifier in place of the distribution of the drafts.
    """
    q_told = q if told is None else told
    found = distribution_of(lambda chance: choose(p, q_told, sampled_from(q, count, chance, replaced=replaced), chance))
    return as_distribution(found, len(p))


def taken(choose: Choose, p: Distribution, q: Distribution, count: int, *, replaced: bool) -> tuple[Fraction, Fraction]:
    """The probability that a draft is accepted, and that the outcome is among the drafts at all."""

    def run(chance: EveryChance) -> tuple[bool, bool]:
        drafts = sampled_from(q, count, chance, replaced=replaced)
        chance.draws = 0
        token = choose(p, q, drafts, chance)
        return not chance.draws, token in drafts

    found = distribution_of(run)
    return sum(p for (took, _), p in found.items() if took), sum(p for (_, among), p in found.items() if among)


def best_transport(p: Distribution, q: Distribution, count: int) -> Fraction:
    """The most that any verifier of independent drafts can accept: the minimum cut of the transport to tokens."""
    subsets = itertools.product((False, True), repeat=len(p))
    return min(
        sum(p[i] for i in range(len(p)) if inside[i])
        + 1
        - sum((q[i] for i in range(len(q)) if inside[i]), Fraction(0)) ** count
        for inside in subsets
    )


def overlap(p: Distribution, q: Distribution) -> Fraction:
    return np.minimum(p, q).sum()


def filtered(
    choose: Choose, p: Distribution, q: Distribution, drafts: Sequence[int], mask: Sequence[bool], chance: EveryChance
) -> int:
    """The distribution of the chosen token if refused drafts are left out.

    The rest is verified with its distribution under the mask.
    """
    distribution, left = restricted(q, drafts, np.array(mask))
    assert list(distribution) == list(masked(q, mask))
    return choose(p, distribution, left, chance)


def case(seed: int) -> tuple[Distribution, Distribution, int]:
    rng = random.Random(seed)
    size, count = rng.choice(((2, 1), (3, 2), (3, 3), (4, 2), (5, 1), (5, 2)))
    return random_distribution(rng, size), random_distribution(rng, size), count


@pytest.mark.exhaustive
@verifiers
@seeds
def test_what_is_chosen_has_the_distribution_of_the_target(choose: Choose, replaced: bool, seeds: range) -> None:
    for p, q, count in map(case, seeds):
        assert next_token(choose, p, q, count, replaced=replaced) == list(p)


@verifiers
@seeds
def test_with_a_mask_the_distribution_is_the_masked_target(choose: Choose, replaced: bool, seeds: range) -> None:
    """Drafts come from the whole distribution, or from the masked distribution.

    Or from the whole distribution without the refused ones.
    """
    for rng in map(random.Random, seeds):
        size = rng.choice((2, 3, 4))
        mask = random_mask(rng, size)
        p, q, count = random_distribution(rng, size, mask), random_distribution(rng, size), rng.choice((1, 2))
        assert next_token(choose, p, q, count, replaced=replaced) == list(p)
        kept = masked(q, mask)
        assert next_token(choose, p, kept, count, replaced=replaced) == list(p)
        found = distribution_of(
            lambda chance, p=p, q=q, mask=mask, count=count: filtered(
                choose, p, q, sampled_from(q, count, chance, replaced=replaced), mask, chance
            )
        )
        assert as_distribution(found, size) == list(p)


@verifiers
def test_distributions_over_the_allowed_tokens_alone_are_the_same(choose: Choose, replaced: bool) -> None:
    for rng in map(random.Random, range(40)):
        mask = random_mask(rng, 4)
        p, q = random_distribution(rng, 4, mask), masked(random_distribution(rng, 4, mask), mask)
        ids = np.flatnonzero(mask)
        whole = next_token(choose, p, q, 2, replaced=replaced)
        assert next_token(choose, p[ids], q[ids], 2, replaced=replaced) == [whole[each] for each in ids]


@verifiers
def test_no_drafts_and_drafts_of_no_probability_leave_the_target(choose: Choose, replaced: bool) -> None:
    p, q = exact_distribution([1, 2, 0]), exact_distribution([0, 1, 1])
    for drafts in ([], [0], [0, 0]):
        assert as_distribution(distribution_of(lambda chance, d=drafts: choose(p, q, d, chance)), 3) == list(p)
    nothing = q * 0
    assert as_distribution(distribution_of(lambda chance: choose(p, nothing, [], chance)), 3) == list(p)


# how often drafts are accepted


def vectors(shared_data: Path) -> Iterator[tuple[Distribution, Distribution, dict[str, Any]]]:
    cases = json.loads((shared_data / "vectors.json").read_text(encoding="utf-8"))["speculative"]
    assert len(cases) >= 20
    for each in cases:
        p, q = (exact_distribution([Fraction(value) for value in each[name]]) for name in "pq")
        yield p, q, each


def test_published_vectors(shared_data: Path) -> None:
    """The exact acceptance rates are the published ones."""
    recursive, independent = RecursiveRejection().choose, IndependentRejection().choose
    for p, q, wanted in vectors(shared_data):
        vanilla = Fraction(wanted["accept_vanilla"])
        assert taken(recursive, p, q, 1, replaced=False) == (vanilla, vanilla)
        for choose, replaced in VERIFIERS.values():
            for count in (1, 2, 3) if len(p) < 4 else (1, 2):
                assert next_token(choose, p, q, count, replaced=replaced) == list(p)
        for count in (2, 3):
            assert taken(recursive, p, q, count, replaced=False)[0] == Fraction(wanted[f"accept_rrswor_k{count}"])
            best = Fraction(wanted[f"accept_OT_optimal_k{count}_iid"])
            assert best == best_transport(p, q, count)
            for choose in (independent, recursive):
                assert vanilla <= taken(choose, p, q, count, replaced=True)[0] <= best
            took, among = taken(k_sequential, p, q, count, replaced=True)
            assert (1 - 1 / math.e) * best <= took <= among <= best


def test_published_vectors_with_a_grammar(shared_data: Path) -> None:
    choose = RecursiveRejection().choose
    seen = 0
    for whole, q, wanted in vectors(shared_data):
        if "grammar" not in wanted:
            continue
        seen += 1
        mask = wanted["grammar"]["allowed"]
        p, kept = masked(whole, mask), masked(q, mask)
        assert next_token(choose, p, q, 1, replaced=False) == list(p)
        assert taken(choose, p, q, 1, replaced=False)[0] == Fraction(wanted["grammar"]["accept_draft_unmasked"])
        assert taken(choose, p, kept, 1, replaced=False)[0] == Fraction(wanted["grammar"]["accept_draft_masked"])
    assert seen >= 10


@pytest.mark.parametrize("seed", range(60))
def test_k_sequential_takes_nearly_as_often_as_any_verifier_can(seed: int) -> None:
    p, q, count = case(seed)
    best = best_transport(p, q, count)
    took, among = taken(k_sequential, p, q, count, replaced=True)
    assert (1 - 1 / math.e) * best <= took <= among <= best
    rho = sufficient_rho(tuple(p), tuple(q), count)
    beta = sum(min(p[i] / rho, q[i]) for i in range(len(p)))
    assert took == 1 - (1 - beta) ** count


@seeds
def test_masking_the_drafts_never_makes_them_worse(seeds: range) -> None:
    for rng in map(random.Random, seeds):
        size = rng.choice((2, 3, 4, 5))
        mask = random_mask(rng, size)
        p, q = random_distribution(rng, size, mask), random_distribution(rng, size)
        kept = masked(q, mask)
        if not kept.sum():
            continue
        assert overlap(p, kept) >= overlap(p, q)
        for choose, replaced in VERIFIERS.values():
            assert taken(choose, p, q, 1, replaced=replaced)[0] == overlap(p, q)
            assert taken(choose, p, kept, 1, replaced=replaced)[0] == overlap(p, kept)


def test_masking_the_drafts_gains_much() -> None:
    rng, gained = random.Random(0), []
    for _ in range(200):
        mask = random_mask(rng, 5)
        p, q = random_distribution(rng, 5, mask), random_distribution(rng, 5)
        if masked(q, mask).sum():
            gained.append(overlap(p, masked(q, mask)) - overlap(p, q))
    assert min(gained) == 0
    assert sum(gained) / len(gained) > Fraction(1, 10)


# the rho of k-sequential selection


@pytest.mark.parametrize("seed", range(100))
def test_the_least_rho_is_on_the_safe_side(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, count = int(rng.choice((2, 5, 300))), int(rng.choice((1, 2, 3, 8)))
    p, q = rng.dirichlet(np.full(size, 0.3)), rng.dirichlet(np.full(size, 0.3))
    found = min_rho(p, q, count)
    exact_p, exact_q = ([Fraction(value) for value in distribution] for distribution in (p, q))

    def excess(rho: Fraction) -> Fraction:
        beta = sum((min(a / rho, b) for a, b in zip(exact_p, exact_q, strict=True)), Fraction(0))
        return 1 - (1 - beta) ** count - rho * beta

    assert 1 <= found <= count
    assert excess(Fraction(found)) <= Fraction(1, 10**13)
    if found > 1.003:
        assert excess(Fraction(found) - Fraction(3, 1000)) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("rho", [Fraction(1), Fraction(3, 2), Fraction(2), Fraction(5)])
def test_any_rho_will_do(rho: Fraction) -> None:
    """One that is too small for the distributions is not used."""

    def choose(p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance) -> int:
        return select_k_sequentially(p, q, drafts, chance, rho)

    for seed in range(40):
        p, q, _ = case(seed)
        assert next_token(choose, p, q, 2, replaced=True) == list(p)


def test_a_rho_that_is_too_small_would_show() -> None:
    """A control: the residual for slightly less than the least rho is negative somewhere."""
    p, q = exact_distribution([1, 1]), exact_distribution([3, 1])
    assert sufficient_rho(tuple(p), tuple(q), 2) > Fraction(11, 10)
    beta = sum(np.minimum(p / Fraction(11, 10), q))
    assert min(p - np.minimum(p / Fraction(11, 10), q) * (1 - (1 - beta) ** 2) / beta) < 0


@pytest.mark.parametrize("rho", [0.5, math.nan, math.inf, -1])
def test_a_rho_below_one_is_refused(rho: float) -> None:
    with pytest.raises(ValueError, match="rho must be a finite number of at least 1"):
        KSequential(rho)


def test_k_sequential_that_solves_for_rho_has_the_distribution_too() -> None:
    """It uses floats, so the distribution is that of the target up to rounding."""
    for seed in range(20):
        p, q, count = case(seed)
        found = next_token(KSequential().choose, p, q, count, replaced=True)
        assert np.abs(np.array(found, dtype=float) - p.astype(float)).max() < 1e-12


def sampled_until(q: Distribution, stop: int, chance: EveryChance, *, replaced: bool) -> list[int]:
    """At most two drafts; no second one after ``stop``."""
    first = sampled_from(q, 1, chance, replaced=replaced)
    if first == [stop]:
        return first
    left = q if replaced else masked(q, [index not in first for index in range(len(q))])
    return first + sampled_from(left, 1, chance, replaced=replaced)


@pytest.mark.parametrize("seed", range(30))
def test_recursive_rejection_may_be_given_more_drafts_after_some_than_after_others(seed: int) -> None:
    p, q, _ = case(seed)
    for replaced in (False, True):
        for choose in (RecursiveRejection().choose, IndependentRejection().choose)[: 1 + replaced]:

            def run(chance: EveryChance, choose: Choose = choose, replaced: bool = replaced) -> int:
                return choose(p, q, sampled_until(q, 0, chance, replaced=replaced), chance)

            assert as_distribution(distribution_of(run), len(p)) == list(p)


def test_k_sequential_may_not() -> None:
    """So it documents that the number of drafts must not depend on their values."""
    found = 0
    for seed in range(30):
        p, q, _ = case(seed)
        distribution = distribution_of(
            lambda chance, p=p, q=q: k_sequential(p, q, sampled_until(q, 0, chance, replaced=True), chance)
        )
        found += as_distribution(distribution, len(p)) != list(p)
    assert found > 10


# the same questions, asked of verifiers that are wrong


def unmasked_target(
    p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance, mask: Sequence[bool]
) -> int:
    """The drafts are masked and tested against the whole target; only the residual is masked."""
    (draft,) = drafts
    if chance.coin(min(Fraction(1), p[draft] / q[draft])):
        return draft
    rest = masked(np.maximum(p - q, 0), mask)
    return chance.draw(rest if rest.sum() else masked(p, mask))


def no_residual(p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance) -> int:
    """A rejected draft is resampled from the target itself."""
    for draft in drafts:
        if chance.coin(min(Fraction(1), p[draft] / q[draft])):
            return draft
    return chance.draw(p)


def absolute_residual(p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance) -> int:
    """The residual is not clipped at zero."""
    for draft in drafts:
        if chance.coin(min(Fraction(1), p[draft] / q[draft])):
            return draft
    return chance.draw(abs(p - q))


def not_renormalised(p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance) -> int:
    """After a rejection the residual is used without renormalising it."""
    for draft in drafts:
        if chance.coin(min(Fraction(1), p[draft] / q[draft])):
            return draft
        rest = np.maximum(p - q, 0)
        if not rest.sum():
            break
        p, q = rest, q.copy()
        q[draft] = Fraction(0)
        q = q / (q.sum() or 1)
    return chance.draw(p)


def stale_q(p: Distribution, q: Distribution, drafts: Sequence[int], chance: EveryChance) -> int:
    """Drafts without replacement are each tested against the distribution of the first."""
    for draft in drafts:
        if chance.coin(min(Fraction(1), p[draft] / q[draft])):
            return draft
        rest = np.maximum(p - q, 0)
        p = rest / rest.sum()
    return chance.draw(p)


def biased(choose: Choose, *, replaced: bool, least: int = 1) -> int:
    """How many of 50 cases have another distribution than the target."""
    found = 0
    for seed in range(50):
        p, q, count = case(seed)
        count = max(count, least)
        try:
            found += next_token(choose, p, q, count, replaced=replaced) != list(p)
        except (ZeroDivisionError, IndexError):
            found += 1
    return found


def test_a_residual_that_is_none_shows() -> None:
    assert biased(no_residual, replaced=False) > 25
    assert biased(absolute_residual, replaced=False) > 25


def test_a_distribution_that_is_not_made_one_again_shows() -> None:
    assert biased(not_renormalised, replaced=False, least=2) > 15


def test_a_stale_distribution_of_the_drafts_shows() -> None:
    assert biased(stale_q, replaced=False, least=2) > 15
    assert biased(IndependentRejection().choose, replaced=False, least=2) > 15


def test_the_right_verifiers_are_not_biased() -> None:
    for choose, replaced in VERIFIERS.values():
        assert biased(choose, replaced=replaced) == 0


def test_a_target_without_its_mask_shows() -> None:
    rng, found = random.Random(0), 0
    for _ in range(100):
        mask = random_mask(rng, 4)
        whole, q = random_distribution(rng, 4), masked(random_distribution(rng, 4, mask), mask)
        p = masked(whole, mask)
        if not p.sum():
            continue
        distribution = distribution_of(
            lambda chance, w=whole, q=q, m=mask: unmasked_target(w, q, [chance.draw(q)], chance, m)
        )
        found += as_distribution(distribution, 4) != list(p)
    assert found > 30


def test_a_temperature_that_the_verifier_does_not_know_of_shows() -> None:
    for choose, replaced in VERIFIERS.values():
        found = 0
        for seed in range(60):
            p, q, count = case(seed)
            found += next_token(choose, p, exact_distribution(list(q * q)), count, replaced=replaced, told=q) != list(p)
        assert found > 20
