"""Accepted paths in trees, given a token of the target model at every position."""

from __future__ import annotations

import random

import pytest
import torch
from structgen_kernels.choices.choice import CHOSEN, EMPTY, NON_FINITE
from structgen_kernels.errors import EmptyRowError, KernelArgumentError, NonFiniteLogitsError
from structgen_kernels.trees.draft_forest import DraftForest
from structgen_kernels.trees.draft_paths import DraftPaths
from structgen_kernels.trees.tree_following import follow_tree

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.methods.verifiers.tree_verification import sample_and_match


def random_tree(rng: random.Random, most: int, tokens: int) -> DraftTree:
    """Make a tree of up to ``most`` nodes; some are chains."""
    tree = DraftTree()
    is_chain = rng.random() < 0.3
    for _ in range(rng.randint(0, most)):
        last = len(tree) - 1
        tree.add(last if is_chain else rng.randint(-1, last), rng.randrange(tokens))
    return tree


def forest_of(trees: list[DraftTree]) -> DraftForest:
    """Make the forest of trees for kernels."""
    return DraftForest.of([(tree.parents, tree.tokens) for tree in trees])


@pytest.mark.usefixtures("backend")
def test_paths_are_those_of_sample_and_match() -> None:
    rng = random.Random(1)
    trees = [random_tree(rng, 12, 3) for _ in range(30)]
    trees.append(DraftTree.chain([1] * 300))  # more nodes than are compared at a time
    forest = forest_of(trees)
    tokens = torch.tensor([rng.randrange(3) for _ in range(forest.positions)], dtype=torch.int32)
    tokens[-301:] = 1

    paths = follow_tree(forest, tokens)

    first = forest.first.tolist()
    for request, tree in enumerate(trees):
        row = first[request] + request + 1
        verification = sample_and_match(tree, lambda node, row=row: int(tokens[row + node]))
        held = paths.nodes[first[request] : first[request + 1]].tolist()
        assert held == [*verification.nodes, *[-1] * (len(tree) - verification.accepted)]
        assert int(paths.counts[request]) == verification.accepted
        assert int(paths.tokens[request]) == verification.token
        accepted = paths.accepted[first[request] : first[request + 1]].nonzero()[:, 0].tolist()
        assert accepted == sorted(verification.nodes)
    assert paths.status.tolist() == [CHOSEN] * len(trees)
    assert int(paths.counts.max()) == 300


@pytest.mark.usefixtures("backend")
def test_a_path_ends_where_nothing_was_chosen() -> None:
    forest = DraftForest.of([([-1, 0], [5, 6]), ([-1], [5]), ([], [])])
    tokens = torch.tensor([5, -1, 6, -1, 0, 5], dtype=torch.int32)
    paths = follow_tree(forest, tokens)
    assert paths.counts.tolist() == [1, 0, 0]
    assert paths.tokens.tolist() == [-1, -1, 5]
    assert paths.status.tolist() == [EMPTY, EMPTY, CHOSEN]
    with pytest.raises(EmptyRowError) as caught:
        paths.check(["a", "b", "c"])
    assert caught.value.rows == (0, 1)

    said = torch.tensor([CHOSEN, NON_FINITE, CHOSEN, EMPTY, CHOSEN, CHOSEN], dtype=torch.int32)
    paths = follow_tree(forest, tokens, status=said)
    assert paths.status.tolist() == [NON_FINITE, EMPTY, CHOSEN]
    with pytest.raises(NonFiniteLogitsError) as broken:
        paths.check()
    assert broken.value.rows == (0,)


@pytest.mark.usefixtures("backend")
def test_padding_is_neither_a_token_nor_a_node() -> None:
    whole = DraftForest.of([([-1, -1], [-1, 4]), ([-1], [4])])
    # Room for two more nodes whose content is undefined.
    padded = DraftForest(
        whole.first, *(torch.nn.functional.pad(each, (0, 2)) for each in (whole.parents, whole.tokens))
    )
    tokens = torch.tensor([-1, 4, 4, 4, 0, 4, 4], dtype=torch.int32)
    out = DraftPaths.buffers(padded)
    out.nodes.fill_(77)
    paths = follow_tree(padded, tokens, out=out)
    assert paths is out
    assert paths.counts.tolist() == [0, 1]
    assert paths.nodes.tolist() == [-1, -1, 0, 77, 77]


@pytest.mark.usefixtures("backend")
def test_no_requests() -> None:
    assert follow_tree(DraftForest.of([]), torch.zeros(0, dtype=torch.int32)).counts.shape == (0,)


def test_wrong_arguments_are_refused_before_a_launch() -> None:
    forest = DraftForest.of([([-1], [5])])
    tokens = torch.zeros(2, dtype=torch.int32)
    wrong = {
        "tokens": {"tokens": torch.zeros(1, dtype=torch.int32)},
        "status": {"status": torch.zeros(2, dtype=torch.int64)},
        "out": {"out": DraftPaths.buffers(DraftForest.of([([-1, 0], [5, 5])]))},
    }
    for argument, changed in wrong.items():
        with pytest.raises(KernelArgumentError) as caught:
            follow_tree(**{"forest": forest, "tokens": tokens, **changed})
        assert caught.value.argument == argument
    none = torch.zeros(0, dtype=torch.int32)
    for first, parents in ((none, none), (tokens, tokens.long()), (tokens, none[None])):
        with pytest.raises(KernelArgumentError):
            DraftForest(first, parents, tokens)


def launches() -> None:
    """Launch the kernels that ``kernel_builds`` compiles for GPUs."""
    forest = DraftForest.of([([-1], [5])])
    tokens = torch.zeros(2, dtype=torch.int32)
    follow_tree(forest, tokens)
    follow_tree(forest, tokens, status=tokens)
