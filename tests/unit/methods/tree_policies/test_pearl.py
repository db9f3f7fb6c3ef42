"""Draft lengths that follow the accepted lengths."""

from __future__ import annotations

import pytest
from random_acceptance_rounds import WRONG, Lucky, rounds, state_of, task_of, token

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask
from structgen.decode.step.context import Context
from structgen.methods.tree_policies.draft_length import Pearl
from structgen.methods.tree_policies.draft_outcome import PendingDrafts
from structgen.models.toy.hash import HashModel


class Planned(Drafter, Drafting):
    """Is right for a planned number of tokens, one number per draft."""

    name = "planned"

    def __init__(self, plan: list[int]) -> None:
        self.plan = plan

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        right = self.plan.pop(0)
        return DraftTree.chain(
            [token(len(context) + ahead) if ahead < right else WRONG for ahead in range(budget)],
        )


def test_lengths_double_and_fall_back() -> None:
    plan = [64, 64, 64, 3, 0, 0, 0, 0, 64, 64]
    lengths = [len(each.tree) for each in rounds(Pearl(Planned(plan), window=2), 10)]
    # 4, 8, 16 are right; 3 of 32 are, with a mean of (16 + 3) / 2; then of (3 + 0) / 2 and of nothing
    assert lengths == [4, 8, 16, 32, 11, 3, 1, 1, 1, 2]


def test_lengths_keep_their_bounds() -> None:
    assert [len(each.tree) for each in rounds(Pearl(Planned([64] * 5), first=4, most=10), 5)] == [4, 8, 10, 10, 10]
    pearl = Pearl(Planned([0] * 5), least=2, first=4, window=1)
    assert [len(each.tree) for each in rounds(pearl, 5)] == [4, 2, 2, 2, 2]


def test_a_drafter_that_has_little_to_say_does_not_shorten_the_length() -> None:
    pearl = Pearl(Lucky("sure", {0: 1.0, 1: 1.0}, 2), first=8)
    drafting = pearl.start(context := Context(HashModel(task_of().constraint.vocabulary), [token(0)]), task_of())
    for _ in range(3):
        assert len(drafting.propose(context, state_of(), 64)) == 2
        context.append([token(len(context) + ahead) for ahead in range(3)])
    object.__setattr__(pearl.drafter, "length", 64)
    assert len(drafting.propose(context, state_of(), 64)) == 8


def test_kinds_have_lengths_of_their_own() -> None:
    pearl = Pearl(Lucky("lucky", {0: 0.0, 1: 1.0}, 32), window=1)
    written = list(rounds(pearl, 12, kind=lambda number: number % 2))
    assert [len(each.tree) for each in written[-2:]] == [1, 32]


def test_a_watch_keeps_drafts_until_all_is_known() -> None:
    context = Context(HashModel(task_of().constraint.vocabulary), [token(0)])
    watch = PendingDrafts()
    right, wrong = DraftTree.chain([token(1), token(2), token(3)]), DraftTree.chain([token(1), WRONG, token(3)])
    watch.add(1, right, 5)
    watch.add(1, wrong, 6)
    assert watch.settled(context) == []
    context.append([token(1)])
    assert watch.settled(context) == []
    context.append([token(2)])
    assert [outcome.kind for outcome in watch.settled(context)] == [6]
    context.append([token(3)])
    (outcome,) = watch.settled(context)
    assert outcome == (right, (token(1), token(2), token(3)), 5)
    assert watch.settled(context) == []
    watch.add(4, right, 1)
    context.truncate(2)
    assert watch.settled(context) == []
    context.append([WRONG] * 5)
    assert watch.settled(context) == []


def test_a_wrapped_drafter_is_told_and_closed() -> None:
    calls: list[str] = []

    class Noted(Planned):
        def observe(self, verified: object) -> None:
            calls.append("observe")

        def close(self) -> None:
            calls.append("close")

    list(rounds(Pearl(Noted([1, 1])), 2))
    assert calls == ["observe", "observe", "close"]
    assert Pearl(Noted([])).name == "planned"


def test_settings_out_of_range_are_refused() -> None:
    for settings in ({"least": 0}, {"least": 5}, {"most": 3}, {"window": 0}):
        with pytest.raises(ValueError, match="Pearl"):
            Pearl(Lucky("lucky", 0.5), **settings)
