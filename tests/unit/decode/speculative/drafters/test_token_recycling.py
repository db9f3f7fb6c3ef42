"""Successors of tokens as draft tokens."""

from __future__ import annotations

import pytest
from handmade_passes import LETTERS, compiled, ran, state_of, task_of, tree_of_texts

from structgen.decode import Context
from structgen.decode.speculative.drafters.token_recycling import TokenRecycling
from structgen.decode.speculative.fixed_tree import RankTree
from structgen.models.toy.hash import HashModel

A, B, C, D = 1, 2, 3, 4


def test_the_tree_is_the_successors_of_successors() -> None:
    drafter = TokenRecycling(RankTree(((0,), (1,), (0, 0), (0, 1), (1, 0))))
    drafter.store.learn(LETTERS, [(A, [B, C]), (B, [A, D]), (C, [C])])
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [D, A])
    tree = drafter.start(context, task_of(constraint)).propose(context, state_of(constraint.matcher()), 10)
    assert [tree.prefix(node) for node in range(len(tree))] == [[B], [C], [B, A], [B, D], [C, C]]
    assert tree.confidences[:2] == [drafter.ranks.rate(0, 0), drafter.ranks.rate(0, 1)]


def test_what_is_refused_leaves_its_place_to_the_next_one() -> None:
    """Forced tokens stand between a draft token and its successors, which are those of the last forced token."""
    drafter = TokenRecycling(RankTree(((0,), (0, 0))))
    drafter.store.learn(LETTERS, [(A, [0, C, B]), (D, [C, A])])
    constraint = compiled("bcd[ab]*")
    context = Context(HashModel(LETTERS), [A])
    matcher = constraint.matcher()
    state = state_of(matcher)
    tree = drafter.start(context, task_of(constraint)).propose(context, state, 10)
    assert [tree.prefix(node) for node in range(len(tree))] == [[B], [B, C], [B, C, D], [B, C, D, A]]
    assert tree.sources == ["", "forced", "forced", ""]


def test_each_row_refreshes_the_successors_of_the_token_before_it() -> None:
    drafter = TokenRecycling()
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS, seed=3), [B, A])
    drafting = drafter.start(context, task_of(constraint))
    tree = tree_of_texts(LETTERS, ["cd", "a"])
    verified = ran(context, tree)
    drafting.observe(verified)
    expected = {
        token: sorted(range(9), key=lambda other: (-row[other], other))[:8]
        for token, row in [(C, verified.rows[1]), (D, verified.rows[2]), (A, verified.rows[0])]
    }
    for token, successors in expected.items():  # for A, the row after the sequence, not that of the draft token
        assert drafter.store.after(LETTERS, token) == successors
    assert drafter.store.after(LETTERS, B) == []


def test_ranks_are_counted_as_tokens_come() -> None:
    """This includes draft tokens that had no room."""
    drafter = TokenRecycling(RankTree(((0,), (0, 0))))
    drafter.store.learn(LETTERS, [(A, [B, C]), (B, [D, A])])
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [A])
    matcher = constraint.matcher()
    drafting = drafter.start(context, task_of(constraint))
    before = drafter.ranks.rates(2)
    drafting.propose(context, state_of(matcher), 10)
    context.append([B, A, A])
    for token in (B, A, A):
        assert matcher.accept(token)
    drafting.propose(context, state_of(matcher), 10)
    after = drafter.ranks.rates(2)
    assert after[0][0] > before[0][0]
    assert after[0][1] < before[0][1]
    assert after[1][0] < before[1][0]
    assert after[1][1] > before[1][1]
    assert after[2:] == before[2:]


def test_a_budget_of_nothing_and_an_empty_store_give_nothing() -> None:
    drafter = TokenRecycling()
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [A])
    drafting = drafter.start(context, task_of(constraint))
    assert len(drafting.propose(context, state_of(constraint.matcher()), 10)) == 0
    drafter.store.learn(LETTERS, [(A, [B])])
    assert len(drafting.propose(context, state_of(constraint.matcher()), 0)) == 0
    assert len(drafting.propose(context, state_of(constraint.matcher()), 1)) == 1


@pytest.mark.parametrize("budget", range(1, 8))
def test_the_budget_holds_with_what_is_forced(budget: int) -> None:
    drafter = TokenRecycling()
    drafter.store.learn(LETTERS, [(A, [B, D]), (C, [A, B])])
    constraint = compiled("((b|d)c,c)*")
    context = Context(HashModel(LETTERS), [A])
    tree = drafter.start(context, task_of(constraint)).propose(context, state_of(constraint.matcher()), budget)
    assert 0 < len(tree) <= budget
