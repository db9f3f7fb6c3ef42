"""Random sequences of operations on sessions that run trees, against lists of tokens that sequential sessions read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from structgen.errors import GenerationError
from structgen.models import LanguageModel, PackedModel
from structgen.models.protocol import Extension, TreeSession
from structgen.models.protocol.tree import TokenTree

KINDS = (
    *("tree", "tree", "tree", "tree", "keep", "keep", "keep"),
    *("many", "many", "extend", "extend_all", "fork", "fork", "truncate", "close", "refused"),
)

STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2**32 - 1)), min_size=3, max_size=25)
"""What to do, and what decides the rest."""


def random_tree(random: np.random.Generator, size: int, *, tokens: int) -> TokenTree:
    """A tree of some shape: a chain, leaves side by side, or anything between."""
    back = int(random.choice([1, 2, 4, size]))
    parents = [int(random.integers(max(-1, node - back), node)) for node in range(size)]
    return TokenTree([int(token) for token in random.integers(tokens, size=size)], parents)


def path(tree: TokenTree, node: int) -> list[int]:
    """The nodes from a root down to one; none for -1."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = tree.parents[node]
    return nodes[::-1]


def prefix(tree: TokenTree, node: int) -> list[int]:
    """The tokens from a root down to a node."""
    return [tree.token_ids[each] for each in path(tree, node)]


def sequential(model: LanguageModel, ids: list[int], tree: TokenTree) -> NDArray[np.float32]:
    """The logits after each token of a tree after ``ids``, with a new session for each leaf."""
    rows: list[Any] = [None] * len(tree.parents)
    for leaf in set(range(len(rows))) - set(tree.parents):
        nodes = path(tree, leaf)
        told = model.start().extend_all([*ids, *prefix(tree, leaf)])[len(ids) :]
        for node, row in zip(nodes, told, strict=True):
            rows[node] = row
    return np.stack(rows)


@dataclass
class Life:
    """A session with its expected content."""

    session: TreeSession
    ids: list[int] = field(default_factory=list)
    tree: TokenTree | None = None


class Lives:
    """A few sessions of a model, with their expected answers.

    Args:
        model: see above.
        most: sessions at a time.
        tolerance: between logits.
        tokens: ids that are sampled from.
    """

    def __init__(self, model: LanguageModel, *, most: int, tolerance: float, tokens: int) -> None:
        self._model = model
        self._most = most
        self._tolerance = tolerance
        self._tokens = tokens
        self._lives = [Life(self._session(model.start()))]

    def follow(self, steps: Sequence[tuple[str, int]]) -> None:
        """Take some steps, and then check each session once more."""
        for kind, seed in steps:
            random = np.random.default_rng(seed)
            life = self._lives[int(random.integers(len(self._lives)))]
            getattr(self, f"_{kind}")(life, random)
            assert [each.session.length for each in self._lives] == [len(each.ids) for each in self._lives]
            for each in self._lives:
                if each.tree is None:
                    with pytest.raises(GenerationError, match="there is no tree"):
                        each.session.keep([])
        for at, life in enumerate(self._lives):
            self._check(life, [at], None, False, life.session.extend([at]))

    def _session(self, session: object) -> TreeSession:
        assert isinstance(session, TreeSession)
        assert session.can_branch
        return session

    def _news(self, random: np.random.Generator) -> list[int]:
        return [int(token) for token in random.integers(self._tokens, size=random.choice([1, 1, 1, 1, 2, 5, 20]))]

    def _check(
        self, life: Life, news: list[int], tree: TokenTree | None, all_positions: bool, rows: NDArray[np.float32]
    ) -> None:
        """Compare a session's answer, and record its expected content."""
        life.ids += news
        life.tree = tree
        told = self._model.start().extend_all(life.ids)[-len(news) if all_positions else -1 :]
        if tree is not None:
            told = np.concatenate([told, sequential(self._model, life.ids, tree)])
        elif not all_positions:
            told = told[0]
        assert rows.dtype == np.float32
        np.testing.assert_allclose(rows, told, atol=self._tolerance)

    def _extend(self, life: Life, random: np.random.Generator) -> None:
        news = self._news(random)
        self._check(life, news, None, False, life.session.extend(news))

    def _extend_all(self, life: Life, random: np.random.Generator) -> None:
        news = self._news(random)
        self._check(life, news, None, True, life.session.extend_all(news))

    def _tree(self, life: Life, random: np.random.Generator) -> None:
        news, all_positions = self._news(random), bool(random.integers(2))
        tree = random_tree(random, int(random.choice([1, 2, 3, 5, 8, 32])), tokens=self._tokens)
        rows = life.session.extend_tree(news, tree, all_positions=all_positions)
        self._check(life, news, tree, all_positions, rows)

    def _many(self, _: Life, random: np.random.Generator) -> None:
        if not isinstance(self._model, PackedModel):
            return
        chosen = [self._lives[at] for at in random.permutation(len(self._lives))[: random.integers(1, self._most + 1)]]
        extensions = [
            Extension(
                life.session,
                self._news(random),
                bool(random.integers(2)),
                random_tree(random, int(random.integers(1, 9)), tokens=self._tokens) if random.integers(3) else None,
            )
            for life in chosen
        ]
        rows = self._model.extend_many(extensions)
        for life, (_, news, all_positions, tree), each in zip(chosen, extensions, rows, strict=True):
            self._check(life, list(news), tree, all_positions, each)

    def _keep(self, life: Life, random: np.random.Generator) -> None:
        if life.tree is not None:
            node = int(random.integers(-1, len(life.tree.parents)))
            life.session.keep(path(life.tree, node))
            life.ids += prefix(life.tree, node)
            life.tree = None

    def _refused(self, life: Life, random: np.random.Generator) -> None:
        """A refused call leaves the tokens and the tree unchanged."""
        for tree, problem in (
            (TokenTree([], []), "a tree needs tokens"),
            (TokenTree([1, 2], [-1]), "found 2 tokens and 1 parent"),
            (TokenTree([1, 2], [-1, 1]), "token 1 has the parent 1"),
            (TokenTree([1, 2], [-2, 0]), "token 0 has the parent -2"),
            (TokenTree([1, 10**6], [-1, 0]), "no token has the id 1000000"),
        ):
            with pytest.raises(GenerationError, match=problem):
                life.session.extend_tree([1], tree)
        with pytest.raises(GenerationError, match="no tokens to extend"):
            life.session.extend_tree([], TokenTree([1], [-1]))
        with pytest.raises(GenerationError):
            life.session.truncate(len(life.ids) + 1)
        if life.tree is not None:
            wrong = [-1] if random.integers(2) else [len(life.tree.parents)]
            for nodes in ([0, 0], wrong):
                with pytest.raises(GenerationError, match="no such path"):
                    life.session.keep(nodes)

    def _truncate(self, life: Life, random: np.random.Generator) -> None:
        excess = int(random.choice([0, 1, 2, 4, int(random.integers(len(life.ids) + 1))]))
        del life.ids[max(len(life.ids) - excess, 0) :]
        life.session.truncate(len(life.ids))
        life.tree = None

    def _fork(self, life: Life, _: np.random.Generator) -> None:
        if len(self._lives) < self._most:
            self._lives.append(Life(self._session(life.session.fork()), list(life.ids)))
            life.tree = None

    def _close(self, life: Life, _: np.random.Generator) -> None:
        life.session.close()
        life.ids.clear()
        life.tree = None
