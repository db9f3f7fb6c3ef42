"""The draft model's sequence, against a new session for each question."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drafter_tasks import PlainModel, row_after

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.engine import Vocabulary
from structgen.methods.drafters.draft_session import DraftSession, common_length
from structgen.models import HashModel


@pytest.fixture(params=["trees", "no trees"])
def model(request: pytest.FixtureRequest, ab_vocabulary: Vocabulary) -> Any:
    """A model whose sessions run trees, or do not."""
    model = HashModel(ab_vocabulary, seed=5)
    return model if request.param == "trees" else PlainModel(model)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(20))
def test_it_stays_in_step(model: Any, seed: int) -> None:
    """Whatever is accepted, rejected, rolled back and asked, every row is that of a new session."""
    random = np.random.default_rng(seed)
    session = DraftSession(model)
    base = [int(token) for token in random.integers(1, 15, size=3)]
    asked: list[tuple[int, ...]] = [()]
    for _ in range(60):
        step = random.random()
        if step < 0.5 and asked:  # a prefix of the asked tokens is accepted, and another token comes
            path = asked[int(random.integers(len(asked)))]
            base += path[: int(random.integers(len(path) + 1))]
            base.append(int(random.integers(1, 15)))
        elif step < 0.6:  # some tokens are rolled back
            base = base[: max(1, len(base) - int(random.integers(8)))]
        elif step < 0.65:  # another token stands there
            base[int(random.integers(len(base)))] = int(random.integers(1, 15))
        elif step < 0.7:
            session.close()
        session.follow(base)
        asked = [()]
        for _ in range(int(random.integers(1, 4))):
            paths = [
                (*asked[int(random.integers(len(asked)))], *(int(t) for t in random.integers(1, 15, size=size)))
                for size in random.integers(0, 3, size=int(random.integers(1, 5)))
            ]
            for path, row in zip(paths, session.rows(paths), strict=True):
                assert row is not None
                assert (row == row_after(model, [*base, *path])).all()
            asked += paths


def test_nothing_is_run_twice(ab_vocabulary: Vocabulary) -> None:
    """A level of a tree is one pass, and rows of accepted tokens are not computed again."""
    session = DraftSession(HashModel(ab_vocabulary))
    session.follow([1, 2, 3])
    session.rows([()])
    session.rows([(4,), (5,), (6,)])
    session.rows([(4, 1), (4, 2), (6, 1)])
    assert session.forwards == 3
    session.rows([(5,), (6, 1), ()])
    session.follow([1, 2, 3, 4])
    session.rows([(), (2,)])
    session.follow([1, 2, 3, 4, 2])
    session.rows([()])
    assert session.forwards == 3
    session.rows([(9,)])
    assert session.forwards == 4


def test_a_chain_runs_each_token_once(ab_vocabulary: Vocabulary) -> None:
    """Tokens one after the other are one row each, and stay cached when they are accepted."""
    model = Counted(ab_vocabulary)
    session = DraftSession(model)
    session.follow([1, 2, 3])
    for path in [(), (4,), (4, 5), (4, 5, 6)]:
        session.rows([path])
    assert model.fed == [[1, 2, 3], [4], [5], [6]]
    session.follow([1, 2, 3, 4, 5, 6, 7])
    session.rows([()])
    assert model.fed[-1] == [7]
    session.follow([1, 2, 3, 4, 8])  # where a suffix is cut off, the token before it is run once more
    session.rows([()])
    assert model.fed[-1] == [4, 8]


def test_what_the_model_cannot_read_is_none(ab_vocabulary: Vocabulary) -> None:
    """Up to the model's context there are rows; beyond it there are none, and nothing fails."""
    session = DraftSession(HashModel(ab_vocabulary, max_context=5))
    session.follow([1, 2, 3])
    rows = session.rows([(), (4,), (4, 5), (4, 5, 6)])
    assert [row is None for row in rows] == [False, False, False, True]
    session.follow([1, 2, 3, 4, 5, 6])
    assert session.rows([()]) == [None]


def test_a_stage_is_asked_for_one_path_and_told(ab_vocabulary: Vocabulary) -> None:
    """Its drafts are run in the same pass, as far as the model's context reaches."""
    model = HashModel(ab_vocabulary, max_context=6)
    session = DraftSession(model)
    stage: Any = Drafting([7, 8, 9])
    session.follow([1, 2, 3])
    position: Any = object()
    session.rows([(4,)], position=position, stage=stage, most=3)
    assert session.forwards == 1
    for path in [(4, 7), (4, 7, 8)]:
        (row,) = session.rows([path])
        assert row is not None
        assert (row == row_after(model, [1, 2, 3, *path])).all()
    assert session.forwards == 1
    assert stage.asked == [((1, 2, 3, 4), 3)]
    assert stage.tokens == [7, 8]
    session.rows([(5,), (6,)], position=position, stage=stage, most=3)
    assert len(stage.asked) == 1


@pytest.mark.parametrize("shared", [0, 1, 511, 512, 513, 1024, 1300])
def test_the_common_prefix(shared: int) -> None:
    """It agrees with a comparison token by token, also at the boundaries of slices."""
    first = list(range(1300))
    second = [*range(shared), *([-1] * 5)]
    assert common_length(first, second) == shared
    assert common_length(tuple(first), first) == 1300


class Drafting:
    """Drafts one chain."""

    def __init__(self, chain: list[int]) -> None:
        self.asked: list[tuple[tuple[int, ...], int]] = []
        self.tokens: list[int] = []
        self._chain = chain

    def draft(self, context: Any, position: Any, most: int) -> DraftTree:
        self.asked.append((context.tokens, most))
        tree = DraftTree()
        tree.extend(ROOT, self._chain)
        return tree

    def observe(self, start: int, tree: DraftTree, rows: Any) -> None:
        self.tokens = tree.tokens
        assert len(rows) == 1 + len(tree)


class Counted:
    """A model that records the tokens that its sessions ran."""

    name = "counted"
    max_context = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.fed: list[list[int]] = []
        self._model = HashModel(vocabulary)

    def encode_prompt(self, prompt: Any, /, *, chat: bool = True) -> list[int]:
        return self._model.encode_prompt(prompt)

    def start(self) -> Any:
        session = self._model.start()
        extend = session.extend

        def noted(token_ids: Any, /) -> Any:
            self.fed.append(list(token_ids))
            return extend(token_ids)

        session.extend = noted  # type: ignore[method-assign]
        return session
