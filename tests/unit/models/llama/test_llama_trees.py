"""Trees in sessions of the Llama that share their caches: one pass against sequential ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tree_session_machine import KINDS, STEPS, Lives, path, prefix, random_tree, sequential

from structgen.errors import GenerationError
from structgen.models.llama import attention as llama_attention, cache as llama_cache
from structgen.models.llama.model import LlamaModel, LlamaSession
from structgen.models.protocol import Extension
from structgen.models.protocol.tree import TokenTree

torch = pytest.importorskip("torch")

TOLERANCE = 1e-4
"""Logits of the tiny model reach 20; wrong ones differ by more than 0.1."""
PROMPT = [5, 80, 3, 261, 99, 5, 17, 200, 42, 7] * 30
TREE = TokenTree([9, 8, 7, 6, 5, 4], [-1, -1, 1, 0, 2, 4])
PATH = [1, 2, 4, 5]


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LlamaModel:
    """The tiny model in float32 on the CPU."""
    return load(tiny_folder)


def load(folder: Path, dtype: Any = torch.float32) -> LlamaModel:
    """Load a folder as the embedded model is loaded."""
    return LlamaModel(folder, name="tiny", device=torch.device("cpu"), dtype=dtype)


@pytest.fixture
def family(model: LlamaModel) -> list[LlamaSession]:
    """A session over the prompt with two forks."""
    base = model.start()
    base.extend(PROMPT)
    return [base, base.fork(), base.fork()]


def last_row(model: LlamaModel, ids: list[int]) -> Any:
    """The logits of a session that shares nothing, after tokens."""
    return model.start().extend(ids)


@pytest.mark.exhaustive
@settings(max_examples=25, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_answers_depend_on_the_tokens_alone(model: LlamaModel, steps: list[tuple[str, int]]) -> None:
    """Earlier trees, kept paths, forks, cuts and shared passes do not matter; short segments make all cases occur."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llama_cache, "_COPIED", 2)
        patch.setattr(llama_cache, "_FIRST_CAPACITY", 1)
        patch.setattr(llama_attention, "_WORTHWHILE", 4)
        patch.setattr(llama_attention, "_WORTHWHILE_NATIVELY", 4)
        patch.setattr(llama_attention, "_NATIVE_ROWS", 2)
        patch.setattr(llama_attention, "_SHORT", 5)
        Lives(model, most=5, tolerance=TOLERANCE, tokens=264).follow(steps)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("ways")
def test_every_way_of_summing_gives_the_same(model: LlamaModel, seed: int) -> None:
    """Shared, padded and separate attention agree on long random walks."""
    random = np.random.default_rng(seed)
    kinds = [*KINDS, "many", "many", "many", "fork", "fork"]
    steps = [(str(random.choice(kinds)), int(random.integers(2**32))) for _ in range(40)]
    Lives(model, most=6, tolerance=TOLERANCE, tokens=264).follow(steps)


@pytest.mark.parametrize("past", [1, 40, 300, 600])
def test_large_trees_after_long_pasts(model: LlamaModel, past: int) -> None:
    """Trees of up to 32 tokens of any shape agree, alone and beside a relative with its own tree."""
    random = np.random.default_rng(past)
    ids = [int(token) for token in random.integers(264, size=past)]
    base = model.start()
    base.extend(ids)
    for size in (1, 2, 13, 32):
        tree = random_tree(random, size, tokens=264)
        rows = base.extend_tree([7], tree)
        np.testing.assert_allclose(rows[1:], sequential(model, [*ids, 7], tree), atol=TOLERANCE)
        node = int(random.integers(size))
        base.keep(path(tree, node))
        ids += [7, *prefix(tree, node)]
        if len(ids) > past + 4:
            base.truncate(past)
            del ids[past:]
    trees = [random_tree(random, size, tokens=264) for size in (32, 7)]
    together = model.extend_many(
        [Extension(session, [3, 4], True, tree) for session, tree in zip([base, base.fork()], trees, strict=True)]
    )
    for rows, tree in zip(together, trees, strict=True):
        np.testing.assert_allclose(rows[2:], sequential(model, [*ids, 3, 4], tree), atol=TOLERANCE)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("ways")
def test_relatives_look_at_trees_in_one_pass(model: LlamaModel, family: list[LlamaSession]) -> None:
    """Step by step, each but one has a tree; the kept path of one is not seen by another."""
    random = np.random.default_rng(3)
    held = [list(PROMPT) for _ in family]
    for step in range(6):
        trees = [None if (step + at) % 3 == 0 else random_tree(random, 6, tokens=264) for at in range(3)]
        rows = model.extend_many(
            [Extension(session, [step + 1], False, tree) for session, tree in zip(family, trees, strict=True)]
        )
        for session, ids, tree, row in zip(family, held, trees, rows, strict=True):
            ids.append(step + 1)
            if tree is None:
                np.testing.assert_allclose(row, last_row(model, ids), atol=TOLERANCE)
                continue
            np.testing.assert_allclose(row[1:], sequential(model, ids, tree), atol=TOLERANCE)
            node = int(random.integers(-1, 6))
            session.keep(path(tree, node))
            ids.extend(prefix(tree, node))
    assert [session.length for session in family] == [len(ids) for ids in held]
    assert [session.forwards for session in family] == [7, 6, 6]


def test_relatives_may_write_while_a_tree_waits(model: LlamaModel, family: list[LlamaSession]) -> None:
    """Forks that run, fork and are closed in the common segment do not touch the tree."""
    base, first, second = family
    base.extend_tree([3], TREE)
    first.extend([1, 2])
    second.close()
    second.extend(PROMPT[:50])
    reference = first.fork()
    first.close()
    base.keep(PATH)
    ids = [*PROMPT, 3, 8, 7, 5, 4]
    assert base.length == len(ids)
    np.testing.assert_allclose(base.extend([11]), last_row(model, [*ids, 11]), atol=TOLERANCE)
    np.testing.assert_allclose(reference.extend([11]), last_row(model, [*PROMPT, 1, 2, 11]), atol=TOLERANCE)


def test_a_fork_keeps_its_tree_when_its_relatives_are_gone(model: LlamaModel, family: list[LlamaSession]) -> None:
    """What it shares becomes its own while the tree waits in a segment after it."""
    base, fork, _ = family
    fork.extend_tree([3], TREE)
    base.close()
    family.clear()
    fork.keep(PATH)
    expected = last_row(model, [*PROMPT, 3, 8, 7, 5, 4, 11])
    np.testing.assert_allclose(fork.extend([11]), expected, atol=TOLERANCE)


def test_forks_of_what_was_kept(model: LlamaModel, family: list[LlamaSession]) -> None:
    """A fork has the kept tokens and nothing of the rest, and ends the tree as every other call does."""
    base = family[0]
    base.extend_tree([3], TREE)
    base.keep(PATH[:2])
    reference = base.fork()
    base.extend_tree([11], TREE)
    other = base.fork()
    with pytest.raises(GenerationError, match="there is no tree"):
        base.keep([])
    ids = [*PROMPT, 3, 8, 7]
    for session, held in ((reference, ids), (other, [*ids, 11]), (base, [*ids, 11])):
        assert session.length == len(held)
        np.testing.assert_allclose(session.extend([2]), last_row(model, [*held, 2]), atol=TOLERANCE)


def test_the_first_tokens_of_a_tree_stay_where_they_are(
    model: LlamaModel, family: list[LlamaSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied if no dropped token lies between; otherwise only the tokens after it are."""
    moved: list[int] = []
    select = torch.Tensor.index_select

    def counted(self: Any, dim: int, index: Any) -> Any:
        moved.append(len(index))
        return select(self, dim, index)

    monkeypatch.setattr(torch.Tensor, "index_select", counted)
    for nodes, expected in (([0, 1], 0), ([], 0), ([0, 2], 1), ([0, 1, 3], 1), ([0, 1, 4, 5], 2)):
        moved.clear()
        base = family[0]
        base.truncate(300)
        base.extend_tree([3], TokenTree([9, 8, 7, 6, 5, 4], [-1, 0, 0, 1, 1, 4]))
        assert not moved
        base.keep(nodes)
        assert sum(moved) == expected


@pytest.mark.parametrize("layer", range(3))
def test_an_interrupted_look_leaves_no_trace(
    model: LlamaModel, family: list[LlamaSession], monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    """After Ctrl-C in any layer, while a session has a tree, the tree is gone and the tokens stay."""
    family[0].extend_tree([3], TREE)
    real, calls = torch.nn.functional.silu, []

    def interrupt(x: Any) -> Any:
        calls.append(1)
        if len(calls) > layer:
            raise KeyboardInterrupt
        return real(x)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "silu", interrupt)
        with pytest.raises(KeyboardInterrupt):
            model.extend_many([Extension(session, [1], False, TREE) for session in family])
    assert [session.length for session in family] == [301, 300, 300]
    for session in family:
        with pytest.raises(GenerationError, match="there is no tree"):
            session.keep([])
    rows = model.extend_many([Extension(session, [at + 3], False, TREE) for at, session in enumerate(family)])
    for at, (row, past) in enumerate(zip(rows, ([*PROMPT, 3], PROMPT, PROMPT), strict=True)):
        np.testing.assert_allclose(row[1:], sequential(model, [*past, at + 3], TREE), atol=TOLERANCE)


def test_an_interrupted_choice_leaves_no_trace(
    model: LlamaModel, family: list[LlamaSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C while entries are moved, nothing is kept, and the session goes on."""
    base = family[0]
    base.extend_tree([3], TREE)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "index_select", interrupt)
        with pytest.raises(KeyboardInterrupt):
            base.keep(PATH)
    assert base.length == 301
    with pytest.raises(GenerationError, match="there is no tree"):
        base.keep(PATH)
    np.testing.assert_allclose(base.extend([8, 7]), last_row(model, [*PROMPT, 3, 8, 7]), atol=TOLERANCE)


def test_a_refused_pack_keeps_the_trees(model: LlamaModel, family: list[LlamaSession]) -> None:
    """A refused request leaves all sessions unchanged, with their trees."""
    base, fork, _ = family
    base.extend_tree([3], TREE)
    with pytest.raises(GenerationError, match="token 0 has the parent 0"):
        model.extend_many([Extension(base, [5], False), Extension(fork, [5], False, TokenTree([1], [0]))])
    with pytest.raises(GenerationError, match="no such path"):
        base.keep([0, 1])
    base.keep(PATH)
    assert [base.length, fork.length] == [305, 300]


def test_lack_of_memory_is_explained(
    model: LlamaModel, family: list[LlamaSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names all tokens of the pack."""
    monkeypatch.setattr(torch.nn.functional, "silu", lambda x: (_ for _ in ()).throw(RuntimeError("can't allocate")))
    with pytest.raises(GenerationError, match="can't allocate at 300 \\+ 8, 300 \\+ 1 tokens"):
        model.extend_many([Extension(family[0], [5, 6], False, TREE), Extension(family[1], [5], False)])


@pytest.mark.parametrize("together", [False, True])
def test_half_precision_works(tiny_folder: Path, together: bool) -> None:
    """In bfloat16 trees stay as near to float32 as tokens do, alone and beside others."""
    model, exact = load(tiny_folder, torch.bfloat16), load(tiny_folder)
    base = model.start()
    base.extend(PROMPT[:100])
    sessions = [base, base.fork(), base.fork()] if together else [base]
    expected = sequential(exact, [*PROMPT[:100], 3], TREE)
    for rows in model.extend_many([Extension(session, [3], False, TREE) for session in sessions]):
        assert np.abs(rows[1:] - expected).max() < 0.1 * np.abs(expected).max()
