"""Phrases from passes, and draft paths that they extend."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from handmade_passes import LETTERS, compiled, ran, state_of, task_of, tree_of_texts

from structgen.decode import Context
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.methods.drafters.lookahead import Extended, phrases_of_pass
from structgen.models.toy.hash import HashModel

A, B, C, D = 1, 2, 3, 4


@dataclass(frozen=True, eq=False)
class Fixed(Drafter, Drafting):
    """Drafts a fixed tree, and records what it is told."""

    tree: DraftTree
    heard: list[object]

    @property
    def name(self) -> str:
        return "fixed"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        return self.tree

    def observe(self, verified: Verified) -> None:
        self.heard.append(verified)

    def close(self) -> None:
        self.heard.append("closed")


def one_hot(*tokens: int) -> np.ndarray:
    return np.eye(9, dtype=np.float32)[list(tokens)]


def test_phrases_follow_what_the_model_would_have_said() -> None:
    """This includes refused draft tokens; the last token of a phrase need not have been drafted."""
    tree = tree_of_texts(LETTERS, ["abc", "ed"])  # nodes a 0, b 1, c 2, e 3, d 4
    rows = one_hot(6, B, D, A, D, C)  # after the sequence, a, b, c, e, d
    phrases = list(phrases_of_pass(Verified(1, tree, rows), 7, 8))
    assert phrases == [(D, C), (5, D, C), (C, A), (B, D), (A, B, D), (7, 6)]
    assert list(phrases_of_pass(Verified(1, tree, rows), 7, 2))[1] == (5, D)


def test_what_is_forced_belongs_to_a_phrase() -> None:
    tree = DraftTree()
    first = tree.add(ROOT, A)
    tree.extend(first, [B, C], source=FORCED)
    rows = one_hot(A, 8, 8, D)
    assert list(phrases_of_pass(Verified(1, tree, rows), 7, 8)) == [(C, D), (B, C, D), (A, B, C, D), (7, A, B, C, D)]


@pytest.mark.parametrize("seed", range(5))
def test_phrases_are_the_ways_of_the_model_under_the_grammar(seed: int) -> None:
    """They agree with the model itself, asked after each prefix of each phrase."""
    constraint = compiled("([abc]{2},)*")
    context = Context(HashModel(LETTERS, seed=seed), [1])
    tree = tree_of_texts(LETTERS, ["ab", "ac", "bb", "ca"])
    verified = ran(context, tree)
    found = list(phrases_of_pass(verified, 1, 8, constraint.matcher()))
    starts = list(range(len(tree) - 1, ROOT - 1, -1))
    places = []
    for start in starts:
        matcher = constraint.matcher()
        assert all(matcher.accept(token) for token in tree.prefix(start))
        tokens, known = [*tree.prefix(start)], True
        phrase = [tokens[-1] if tokens else 1]
        while known:
            row = context.model.start().extend([1, *tokens])
            allowed = [token for token in range(LETTERS.size) if matcher.fork().accept(token)]
            token = max(allowed, key=lambda each: row[each])
            phrase.append(token)
            if not matcher.accept(token) or token == 0:
                break
            tokens.append(token)
            node = ROOT
            for each in tokens:
                child = tree.child(node, each)
                if child is None:
                    known = False
                    break
                node = child
        places.append(tuple(phrase))
    assert found == places


def test_paths_are_made_longer_in_the_order_of_their_reach() -> None:
    tree = DraftTree()
    tree.add(ROOT, A, 0.3)
    tree.add(ROOT, B, 0.6)
    drafter = Extended(Fixed(tree, []), phrases=1)
    drafter.pool.add(LETTERS, [(A, C, C), (B, D, D), (B, A, D)])
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [7])
    drafting = drafter.start(context, task_of(constraint))
    for budget, expected in {3: [[B, A]], 4: [[B, A], [B, A, D]], 9: [[B, A], [B, A, D], [A, C], [A, C, C]]}.items():
        found = drafting.propose(context, state_of(constraint.matcher()), budget)
        assert [found.prefix(node) for node in range(2, len(found))] == expected
        assert found.sources[:2] == ["fixed", "fixed"]
        assert set(found.sources[2:]) == {"fixed + phrases"}
    assert len(tree) == 2  # the base's tree is left unchanged


def test_where_nothing_is_drafted_the_sequence_itself_goes_on() -> None:
    drafter = Extended(Fixed(DraftTree(), []))
    drafter.pool.add(LETTERS, [(A, B, C), (A, D, 8)])
    constraint = compiled("(bc|d[ab])*")
    context = Context(HashModel(LETTERS), [A])
    tree = drafter.start(context, task_of(constraint)).propose(context, state_of(constraint.matcher()), 9)
    assert sorted(tree.prefix(leaf) for leaf in tree.leaves()) == [[B, C], [D]]  # the grammar cuts the other one


def test_the_base_is_told_everything() -> None:
    heard: list[object] = []
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [A])
    drafting = Extended(Fixed(DraftTree(), heard)).start(context, task_of(constraint))
    verified = ran(context, DraftTree.chain([B]))
    drafting.observe(verified)
    drafting.close()
    assert heard == [verified, "closed"]


def test_confidence_follows_what_came() -> None:
    drafter = Extended(Fixed(DraftTree(), []), phrases=1)
    drafter.pool.add(LETTERS, [(A, B, C)])
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [A])
    matcher = constraint.matcher()
    drafting = drafter.start(context, task_of(constraint))
    first = drafting.propose(context, state_of(matcher), 9)
    context.append([B, D, A])
    again = drafting.propose(context, state_of(matcher), 9)
    assert again.tokens == first.tokens == [B, C]
    assert again.confidences[0] > first.confidences[0]
    assert again.confidences[1] < first.confidences[1]


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="phrases"):
        Extended(Fixed(DraftTree(), []), phrases=0)
