"""Bandits: simulated arms with a known best, and drafters chosen by their rewards."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from random_acceptance_rounds import VOCABULARY, Lucky, Round, rounds, state_of, task_of, token

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.step.context import Context
from structgen.errors import DraftWarning
from structgen.methods.tree_policies.bandit import EXP3, UCB, ArmRecord, Arms, Bandit, Policy
from structgen.models.toy.hash import HashModel

MEANS = (0.2, 0.5, 0.45, 0.3)


def regret(policy: Policy, plays: int, *, seed: int, reward: Callable[[random.Random, int, int], float]) -> list[float]:
    """The loss after each play, compared with the arm of the largest mean."""
    arms = Arms(policy, len(MEANS))
    rng = random.Random(seed)
    uniform = np.random.default_rng(seed).random
    missed, curve = 0.0, []
    for play in range(plays):
        arm, probability = arms.choose(0, uniform)
        arms.learn(0, arm, probability, reward(rng, arm, play))
        missed += max(MEANS) - MEANS[arm]
        curve.append(missed)
    return curve


def coin(rng: random.Random, arm: int, play: int) -> float:
    return float(rng.random() < MEANS[arm])


@pytest.mark.exhaustive
@pytest.mark.parametrize("policy", [UCB(), EXP3(0.05)], ids=str)
def test_regret_grows_less_and_less(policy: Policy) -> None:
    curves = [regret(policy, 4000, seed=seed, reward=coin) for seed in range(4)]
    mean = np.mean(curves, axis=0)
    early, late = mean[999], mean[3999] - mean[2999]
    assert late < 0.7 * early
    assert mean[-1] < 0.6 * 4000 * (max(MEANS) - np.mean(MEANS))  # compared with random choice


def test_the_regret_of_upper_bounds_is_logarithmic() -> None:
    curves = np.mean([regret(UCB(), 8000, seed=seed, reward=coin) for seed in range(4)], axis=0)
    bound = 8 * sum(math.log(8000) / (max(MEANS) - mean) for mean in MEANS if mean < max(MEANS))
    assert curves[-1] < bound  # of UCB1, which uses no variances
    assert curves[7999] - curves[3999] < 0.5 * curves[3999]


def test_sampled_arms_follow_rewards_that_change() -> None:
    """The best arm changes in the middle: old rewards must be forgotten."""
    policy = EXP3(0.2)
    arms = Arms(policy, 2)
    uniform = np.random.default_rng(3).random
    chosen = []
    for play in range(6000):
        arm, probability = arms.choose(0, uniform)
        best = 0 if play < 2000 else 1
        arms.learn(0, arm, probability, 0.8 if arm == best else 0.1)
        chosen.append(arm == best)
    assert np.mean(chosen[1000:2000]) > 0.8
    assert np.mean(chosen[-1000:]) > 0.8


def test_arms_that_are_sampled_have_the_probability_that_is_told() -> None:
    record = ArmRecord(3)
    record.log_weights[:] = (0.0, 1.0, -2.0)
    uniform = np.random.default_rng(0).random
    distribution: dict[int, float] = {}
    counts = np.zeros(3)
    for _ in range(20_000):
        arm, probability = EXP3(0.3).choose(record, uniform)
        distribution[arm] = probability
        counts[arm] += 1
    assert sum(distribution.values()) == pytest.approx(1)
    wanted = 0.7 * np.exp(record.log_weights) / np.exp(record.log_weights).sum() + 0.1
    assert [distribution[arm] for arm in range(3)] == pytest.approx(wanted.tolist())
    assert counts / 20_000 == pytest.approx(wanted, abs=0.02)


def test_arms_that_wait_for_their_reward_are_not_all_the_same() -> None:
    """Several outputs start at once, and each gets another arm."""
    arms = Arms(UCB(), 3)
    assert [arms.choose(0, random.random)[0] for _ in range(4)] == [0, 1, 2, 0]
    assert arms.plays(0) == (0, 0, 0)
    arms.learn(0, 1, 1.0, 0.5)
    assert arms.plays(0) == (0, 1, 0)
    assert arms.plays(7) == (0, 0, 0)


COST = CostModel(0.1)


class Failing(Drafter, Drafting):
    """A drafter that fails."""

    name = "failing"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        raise RuntimeError("no idea")

    def observe(self, verified: Verified) -> None:
        pass


def always(kind: int, number: int) -> int:
    return kind


def speed(written: list[Round]) -> float:
    return sum(each.told for each in written) / sum(each.time(COST) for each in written)


@pytest.mark.nightly
@pytest.mark.parametrize("policy", [UCB(0.3), EXP3(0.05)], ids=str)
def test_drafters_are_chosen_by_kind_and_nearly_as_well_as_by_one_who_knows(policy: Policy) -> None:
    """One drafter is right in texts, one in numbers, one rarely and with many rows."""
    arms = (
        Lucky("text", {0: 0.9, 1: 0.1}, 4),
        Lucky("number", {0: 0.2, 1: 0.8}, 3),
        Lucky("wide", 0.3, 12),
    )

    def kind(number: int) -> int:
        return number // 5 % 2

    bandit = Bandit(arms, policy, COST)
    written = list(rounds(bandit, 4000, kind=kind))[2000:]
    for each, best in ((0, arms[0]), (1, arms[1])):
        alone = speed(list(rounds(best, 2000, kind=partial(always, each))))
        found = speed([one for one in written if one.kind == each])
        assert found > 0.93 * alone
        assert int(np.argmax(bandit.arms.plays(each))) == arms.index(best)


def test_rewards_are_choices_by_time() -> None:
    bandit = Bandit((Lucky("sure", 1.0, 4),), cost=COST, prices=(0.6,), most=4.0)
    list(rounds(bandit, 11))
    record = bandit.arms._record(0)
    assert record.plays[0] == 11
    assert record.totals[0] == pytest.approx(11 * (5 / (1.4 + 0.6)) / 4)


def test_a_round_is_rewarded_for_what_was_run_of_it() -> None:
    """The loop may cut a tree: then fewer rows are reported, and paid."""

    bandit = Bandit((Lucky("sure", 1.0, 4),), cost=COST, most=4.0)
    context = Context(HashModel(VOCABULARY), [token(0)])
    drafting = bandit.start(context, task_of())
    tree = drafting.propose(context, state_of(), 8)
    assert tree.sources == ["sure"] * 4
    drafting.observe(Verified(1, tree.kept([0]), np.zeros((2, VOCABULARY.size), dtype=np.float32)))
    context.append([token(1), token(2), token(3)])
    drafting.close()
    assert bandit.arms._record(0).totals[0] == pytest.approx(2 / 1.1 / 4)


def test_the_same_seed_chooses_the_same() -> None:
    def sizes(seed: int) -> list[int]:
        bandit = Bandit((Lucky("a", 0.5, 2), Lucky("b", 0.5, 3)), EXP3(), COST)
        return [len(each.tree) for each in rounds(bandit, 50, seed=seed)]

    assert sizes(1) == sizes(1)
    assert sizes(1) != sizes(2)


def test_a_drafter_that_fails_is_an_arm_without_drafts() -> None:
    bandit = Bandit((Failing(), Lucky("sure", 1.0, 4)), cost=COST)
    with pytest.warns(DraftWarning, match="'failing'"):
        written = list(rounds(bandit, 60))
    assert speed(written[20:]) > 3
    assert bandit.arms.plays(0)[0] < 10


@pytest.mark.parametrize(
    "settings",
    [{"drafters": ()}, {"prices": (1.0,)}, {"prices": (1.0, -1.0)}, {"most": 1.0}, {"most": math.inf}],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="Bandit"):
        Bandit(**{"drafters": (Lucky("a", 0.1), Lucky("b", 0.1)), **settings})  # type: ignore[arg-type]


def test_policies_refuse_numbers_out_of_range() -> None:
    for width in (0.0, math.nan):
        with pytest.raises(ValueError, match="UCB"):
            UCB(width)
    for explore in (0.0, 1.1):
        with pytest.raises(ValueError, match="EXP3"):
            EXP3(explore)
