"""The checks of every session before a forward pass."""

from __future__ import annotations

import numpy as np
import pytest
from function_model import FunctionModel

from structgen.engine import Vocabulary
from structgen.errors import GenerationError
from structgen.models import HashModel
from structgen.models.protocol import Extension
from structgen.models.protocol.tree import TokenTree
from structgen.models.session import SequenceLimits, can_branch, check_kept, check_truncation, extend

LIMITS = SequenceLimits("m", id_limit=10, max_context=8)


def test_ids_become_plain_ints() -> None:
    """Arrays and numpy integers are accepted too."""
    ids = LIMITS.check_extension(np.array([9, 0]), length=6)
    assert ids == [9, 0]
    assert {type(token) for token in ids} == {int}


@pytest.mark.parametrize(
    ("ids", "problem"),
    [
        ([], "no tokens to extend"),
        ([1, 10], "no token has the id 10"),
        ([-1], "no token has the id -1"),
        ([1, 2, 3], "1 token longer than the context"),
    ],
)
def test_bad_extensions_are_refused(ids: list[int], problem: str) -> None:
    """Each error has its own message."""
    with pytest.raises(GenerationError, match=problem):
        LIMITS.check_extension(ids, length=6)


@pytest.mark.parametrize(
    ("tree", "problem"),
    [
        (TokenTree([], []), "a tree needs tokens, and a parent for each: found 0 tokens and 0 parents"),
        (TokenTree([1], []), "found 1 token and 0 parents"),
        (TokenTree([1, 2], [-1, 1]), "a parent must precede its child: token 1 has the parent 1"),
        (TokenTree([1, 2], [-1, -2]), "token 1 has the parent -2"),
        (TokenTree([1, 10], [-1, 0]), "no token has the id 10"),
        (TokenTree([1, 2], [-1, 0]), "1 token longer than the context"),
    ],
)
def test_bad_trees_are_refused(tree: TokenTree, problem: str) -> None:
    """The checks are those of tokens; the context bounds the depth."""
    with pytest.raises(GenerationError, match=problem.replace(": ", ".*")):
        LIMITS.check_extension([1], length=6, tree=tree)
    assert LIMITS.check_extension([1], length=6, tree=TokenTree([1, 2, 3], [-1, -1, -1])) == [1]


def test_only_paths_are_kept() -> None:
    """A path goes from a root down, and each token is the parent of the next."""
    tree = TokenTree([1, 2, 3], [-1, 0, 0])
    for nodes in ([], [0], [0, 1], [0, 2]):
        assert check_kept(nodes, tree=tree, name="m") is tree
    for nodes in ([1], [0, 0], [0, 1, 2], [2, 0], [3], [-1]):
        with pytest.raises(GenerationError, match="no such path"):
            check_kept(nodes, tree=tree, name="m")
    with pytest.raises(GenerationError, match="there is no tree"):
        check_kept([], tree=None, name="m")


def test_an_extension_says_what_is_done() -> None:
    """One of three methods is named; a session without trees refuses before anything is run."""
    session = HashModel(Vocabulary([b"", b"a", b"b"], eos=[0])).start()
    tree = TokenTree([1, 2], [-1, -1])
    shapes = [extend(Extension(session, [1, 2], *rest), name="m").shape for rest in ((False,), (True,), (True, tree))]
    assert shapes == [(3,), (2, 3), (4, 3)]
    other = FunctionModel(Vocabulary([b"", b"a"], eos=[0]), lambda text: {}).start()
    assert can_branch(session)
    assert not can_branch(other)
    with pytest.raises(GenerationError, match="its sessions do not run trees"):
        extend(Extension(other, [1], False, tree), name="m")
    assert other.length == 0


def test_there_may_be_no_bound() -> None:
    """A model without a stated context accepts any length."""
    assert len(LIMITS._replace(max_context=None).check_extension([1] * 1000, length=6)) == 1000


@pytest.mark.parametrize("length", [-1, 7])
def test_truncation_stays_within_the_sequence(length: int) -> None:
    """A sequence cannot be cut to more tokens than it has."""
    with pytest.raises(GenerationError, match=f"cannot be cut to {length} tokens"):
        check_truncation(length, held=6, name="m")
    check_truncation(0, held=6, name="m")
    check_truncation(6, held=6, name="m")
