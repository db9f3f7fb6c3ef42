"""Draft tokens by the last two tokens: which are tried, and in which order."""

from __future__ import annotations

import itertools
import math

import pytest
from handmade_passes import LETTERS, compiled, state_of, task_of

from structgen.decode import Context
from structgen.decode.speculative.draft_tree import DraftTree
from structgen.methods.drafters.ngram_tables import Trials, TrigramDrafts
from structgen.models.toy.hash import HashModel

A, B, C, D = 1, 2, 3, 4


def taught(exploration: float) -> TrigramDrafts:
    drafter = TrigramDrafts(exploration=exploration)
    for before, distribution in {
        (D, A): {B: 0.6, C: 0.3, D: 0.1},
        (A, B): {A: 0.7, C: 0.3},
        (A, C): {B: 0.9, D: 0.1},
    }.items():
        drafter.store.learn(LETTERS, [(before, list(distribution), [math.log(each) for each in distribution.values()])])
    return drafter


def proposed(drafter: TrigramDrafts, budget: int, pattern: str = "[a-f]*") -> DraftTree:
    constraint = compiled(pattern)
    context = Context(HashModel(LETTERS), [D, A])
    return drafter.start(context, task_of(constraint)).propose(context, state_of(constraint.matcher()), budget)


def test_without_exploration_the_most_probable_paths_come_first() -> None:
    """They are compared with all paths of the table, ordered by their probability."""
    pairs = {(D, A): {B: 0.6, C: 0.3, D: 0.1}, (A, B): {A: 0.7, C: 0.3}, (A, C): {B: 0.9, D: 0.1}}
    single = {before[-1]: distribution for before, distribution in pairs.items()}
    reach = {(D, A): 1.0}
    for length in range(2, 6):
        for path in [each for each in reach if len(each) == length]:
            distribution = pairs.get(path[-2:], single.get(path[-1], {}))
            reach |= {(*path, token): reach[path] * probability for token, probability in distribution.items()}
    expected = sorted((each for each in reach if len(each) > 2), key=lambda path: -reach[path])
    for budget in range(9):
        tree = proposed(taught(0.0), budget)
        assert [(D, A, *tree.prefix(node)) for node in range(len(tree))] == expected[:budget]
        assert tree.reach() == pytest.approx([reach[path] for path in expected[:budget]])


def test_what_fails_makes_room_for_what_was_not_tried() -> None:
    drafter = taught(0.5)
    first = proposed(drafter, 1)
    assert first.tokens == [B]
    tried = []
    for _ in range(40):
        token = proposed(drafter, 1).tokens[0]
        tried.append(token)
        drafter.trials.record(LETTERS, (D, A), [token], 9)  # none of them ever comes
    assert set(tried) == {B, C, D}
    assert [key for key, _ in itertools.groupby(tried)][:2] == [B, C]
    assert tried.count(B) > tried.count(C) > tried.count(D)


def test_what_comes_is_tried_again() -> None:
    drafter = taught(0.5)
    for _ in range(20):
        token = proposed(drafter, 1).tokens[0]
        drafter.trials.record(LETTERS, (D, A), [token], C)
    assert proposed(drafter, 1).tokens == [C]
    assert proposed(drafter, 1).confidences[0] > 0.7


def test_scores_are_those_of_puct() -> None:
    """The order of two children changes where the rule says so."""
    for exploration in (0.0, 0.2, 1.0):
        for fails in range(8):
            drafter = taught(exploration)
            drafter.trials.record(LETTERS, (D, A), [C], C)
            for _ in range(fails):
                drafter.trials.record(LETTERS, (D, A), [B], 9)
            total = math.sqrt(1 + fails + 1)
            scores = {
                B: 3 * 0.6 / (3 + fails) + exploration * 0.6 * total / (1 + fails),
                C: (3 * 0.3 + 1) / 4 + exploration * 0.3 * total / 2,
                D: 0.1 + exploration * 0.1 * total,
            }
            capped = {token: min(1.0, score) for token, score in scores.items()}
            best = max(capped, key=lambda token: (capped[token], token == B))
            assert proposed(drafter, 1).tokens == [best]


def test_the_grammar_and_what_it_forces_are_kept() -> None:
    tree = proposed(taught(0.1), 6, "c(b|d)*")
    assert [tree.prefix(node) for node in tree.children(-1)] == [[C]]
    assert [tree.tokens[node] for node in tree.children(0)] == [B, D][: len(tree.children(0))]


def test_fates_are_learned_from_what_came() -> None:
    drafter = taught(0.1)
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [D, A])
    matcher = constraint.matcher()
    drafting = drafter.start(context, task_of(constraint))
    drafting.propose(context, state_of(matcher), 4)
    context.append([B, C])
    for token in (B, C):
        assert matcher.accept(token)
    drafting.propose(context, state_of(matcher), 4)
    root = drafter.trials.of(LETTERS, (D, A))
    assert root[B] == (1.0, 1.0)
    assert all(taken == 0 for token, (_, taken) in root.items() if token != B)
    assert drafter.trials.of(LETTERS, (A, B))[A] == (1.0, 0.0)


def test_trials_are_bounded_and_fade() -> None:
    trials = Trials(most=2)
    for before in ((1,), (2,), (3,)):
        trials.record(LETTERS, before, [1], 1)
    assert len(trials) == 2
    assert trials.of(LETTERS, (1,)) == {}
    for _ in range(500):
        trials.record(LETTERS, (3,), [1], 2)
    tried, taken = trials.of(LETTERS, (3,))[1]
    assert tried == pytest.approx(64)
    assert taken < 0.01


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="exploration"):
        TrigramDrafts(exploration=-1)
    with pytest.raises(ValueError, match="most"):
        Trials(0)
