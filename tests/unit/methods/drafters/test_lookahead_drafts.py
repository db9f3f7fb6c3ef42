"""Lookahead decoding under a grammar: its phrases, and that outputs do not change."""

from __future__ import annotations

import numpy as np
import pytest
from handmade_passes import LETTERS, compiled

from structgen.decode import Greedy, Multinomial, Sampler, generate
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafting, DraftState, Verified
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary
from structgen.frontends.regex import regex
from structgen.methods.drafters.lookahead import Lookahead, PhrasePool, _LookaheadDrafting
from structgen.models.toy.hash import HashModel

PATTERN = "(ab|cd,[ab]|[def]{2},)*[.]"


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial()], ids=["greedy", "sampled"])
@pytest.mark.parametrize(("window", "size", "hits"), [(1, 2, 1), (3, 3, 2), (5, 4, 3)])
def test_outputs_are_the_same_in_no_more_passes(sampler: Sampler, window: int, size: int, hits: int) -> None:
    fewer = 0
    for seed in range(6):
        model = HashModel(LETTERS, seed=seed)
        plain = generate(model, "a", regex(PATTERN), max_tokens=40, sampler=sampler, seed=seed, drafter=None)
        drafter = Lookahead(window, size, hits)
        for _ in range(2):
            found = generate(
                model, "a", regex(PATTERN), max_tokens=40, sampler=sampler, seed=seed, drafter=Speculation(drafter)
            )
            assert found.tokens == plain.tokens
            assert found.stats.forwards <= plain.stats.forwards
            fewer += plain.stats.forwards - found.stats.forwards
    assert fewer > 0


class Watched(PhrasePool):
    """A pool that records all that it is given."""

    def __init__(self) -> None:
        super().__init__(length=16)
        self.given: list[tuple[int, ...]] = []

    def add(self, vocabulary: Vocabulary, phrases: object) -> None:
        given = [tuple(each) for each in phrases]  # type: ignore[attr-defined]
        self.given += given
        super().add(vocabulary, given)


def test_a_phrase_ends_with_what_the_model_says_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its tokens after the first two was predicted by an earlier pass at its position."""
    model = HashModel(LETTERS, seed=2)
    pool = Watched()
    passes: list[tuple[tuple[int, ...], Verified, int]] = []
    observe = _LookaheadDrafting.observe

    def watched(self: _LookaheadDrafting, verified: Verified) -> None:
        known = len(pool.given)
        columns = list(self._columns)
        observe(self, verified)
        context = tuple(output[: verified.start])
        for column, phrase in zip(columns, pool.given[known:], strict=True):
            row = model.start().extend([*context, *column.above, *column.tokens])
            matcher = compiled(PATTERN).matcher()
            for token in [*context[1:], *column.above, *column.tokens]:
                assert matcher.accept(token)
            allowed = [token for token in range(LETTERS.size) if matcher.fork().accept(token)]
            assert phrase == (*column.tokens, max(allowed, key=lambda token: row[token]))
        passes.append((context, verified, len(pool.given) - known))

    monkeypatch.setattr(_LookaheadDrafting, "observe", watched)
    plain = generate(model, "a", regex(PATTERN), max_tokens=40, sampler=Greedy(), drafter=None)
    output = [1, *plain.tokens]
    found = generate(
        model, "a", regex(PATTERN), max_tokens=40, sampler=Greedy(), drafter=Speculation(Lookahead(4, 4, 2, pool))
    )
    assert found.tokens == plain.tokens
    assert max(map(len, pool.given)) >= 4
    assert sum(count for _, _, count in passes) > 20


def proposals(
    model: HashModel, drafter: Lookahead, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[DraftTree, DraftState]]:
    seen: list[tuple[DraftTree, DraftState]] = []
    propose = _LookaheadDrafting.propose

    def watched(self: _LookaheadDrafting, context: object, state: DraftState, budget: int) -> DraftTree:
        tree = propose(self, context, state, budget)  # type: ignore[arg-type]
        assert len(tree) <= budget
        seen.append((tree, state))
        return tree

    with monkeypatch.context() as patch:
        patch.setattr(_LookaheadDrafting, "propose", watched)
        generate(model, "a", regex(PATTERN), max_tokens=40, sampler=Greedy(), drafter=Speculation(drafter, budget=20))
    return seen


def test_drafts_are_allowed_and_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = HashModel(LETTERS, seed=1)
    first = proposals(model, Lookahead(4, 3, 2), monkeypatch)
    for tree, state in first:
        for node in range(len(tree)):
            assert state.matcher.validate(tree.prefix(node)) == len(tree.prefix(node))
    second = proposals(model, Lookahead(4, 3, 2), monkeypatch)
    assert [(tree.tokens, tree.parents, tree.confidences) for tree, _ in first] == [
        (tree.tokens, tree.parents, tree.confidences) for tree, _ in second
    ]
    assert max(len(tree) for tree, _ in first) > 6


def test_the_window_is_a_trunk_with_a_branch_after_each_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grammar allows anything, and the model never repeats itself."""
    model = HashModel(Vocabulary([b"", *(b"%d;" % number for number in range(500))], eos=[0]), seed=7)
    drafter = Lookahead(3, 4, 1)
    with monkeypatch.context():
        seen: list[DraftTree] = []
        propose = _LookaheadDrafting.propose

        def watched(self: Drafting, context: object, state: DraftState, budget: int) -> DraftTree:
            tree = propose(self, context, state, budget)  # type: ignore[arg-type]
            seen.append(tree)
            return tree

        monkeypatch.setattr(_LookaheadDrafting, "propose", watched)
        generate(
            model,
            "1;",
            regex("([0-9]+;){0,40}"),
            max_tokens=12,
            sampler=Greedy(),
            drafter=Speculation(drafter, budget=60),
        )
    depths = [
        sorted(np.bincount(np.array(tree.token_tree().depths(), dtype=int)).tolist()) for tree in seen if len(tree)
    ]
    assert len(seen[0]) == 0
    assert depths[0] == [1, 1, 1]  # the trunk alone; then one more level in each pass, up to the size
    assert max(map(sum, depths)) >= 3 + 2 * 3 - 2
    assert all(len(tree.children(ROOT)) <= 1 + drafter.hits for tree in seen)


def test_numbers_are_checked() -> None:
    for numbers in ((0, 3, 1), (1, 1, 1), (1, 2, 0)):
        with pytest.raises(ValueError, match="Lookahead"):
            Lookahead(*numbers)
