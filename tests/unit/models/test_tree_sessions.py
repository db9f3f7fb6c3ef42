"""Trees in every kind of session: random operations, against sequential sessions without trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tree_session_machine import STEPS, Lives, path, prefix, random_tree, sequential

from structgen.engine import Vocabulary
from structgen.errors import GenerationError
from structgen.models import Batch, HashModel, LanguageModel, from_transformers
from structgen.models.protocol import Logits, TreeSession
from structgen.models.protocol.tree import TokenTree
from structgen.models.session import ChainSession

TOLERANCE = 1e-4
"""Logits of the tiny models reach 20; wrong ones differ by more than 0.1."""
VOCABULARY = Vocabulary([b"", *(bytes([byte]) for byte in range(256)), b"ab", b"the"], eos=[0])


def hashing() -> HashModel:
    """The reference implementation of trees."""
    return HashModel(VOCABULARY, seed=5, writes="the tablet")


@pytest.fixture(scope="module")
def llama(tiny_folder: Path) -> Any:
    """The tiny model in float32 on the CPU."""
    torch = pytest.importorskip("torch")
    from structgen.models.llama.model import LlamaModel

    return LlamaModel(tiny_folder, name="tiny", device=torch.device("cpu"), dtype=torch.float32)


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def of_transformers(request: pytest.FixtureRequest, tiny_folder: Path, byte_tokenizer: Any) -> Any:
    """The same weights in transformers, with both kinds of attention, which take masks in different forms."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    network = transformers.AutoModelForCausalLM.from_pretrained(
        tiny_folder, dtype=torch.float32, attn_implementation=request.param
    )
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer, eos_token="<|im_end|>")
    return from_transformers(network, tokenizer, name=request.param)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_sessions_of_hashes(steps: list[tuple[str, int]]) -> None:
    """They agree exactly, as hashes have no rounding."""
    Lives(hashing(), most=4, tolerance=0, tokens=259).follow(steps)


@pytest.mark.exhaustive
@settings(max_examples=30, deadline=None, derandomize=True)
@given(steps=STEPS)
def test_sessions_of_a_llama(llama: Any, steps: list[tuple[str, int]]) -> None:
    """Segments have their usual length; tests of sharing use short ones."""
    Lives(llama, most=4, tolerance=TOLERANCE, tokens=264).follow(steps)


@pytest.mark.parametrize("seed", range(6))
def test_sessions_of_transformers(of_transformers: Any, seed: int) -> None:
    """The cache is cut and joined again."""
    random = np.random.default_rng(seed)
    kinds = ["tree", "tree", "tree", "keep", "keep", "extend", "extend_all", "fork", "truncate", "close", "refused"]
    steps = [(str(random.choice(kinds)), int(random.integers(2**32))) for _ in range(25)]
    Lives(of_transformers, most=4, tolerance=TOLERANCE, tokens=264).follow(steps)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(steps=STEPS, packed=st.booleans())
def test_sessions_of_a_batch(steps: list[tuple[str, int]], packed: bool) -> None:
    """They agree with the sessions that they wrap; only the batch itself calls ``extend_many``."""
    with Batch(hashing() if packed else Unpacked(hashing())) as batch:
        Lives(batch, most=4, tolerance=0, tokens=259).follow(steps)


class Unpacked:
    """The same model, one sequence at a time."""

    def __init__(self, model: HashModel) -> None:
        self.name, self.vocabulary, self.max_context = model.name, model.vocabulary, model.max_context
        self.encode_prompt, self.start = model.encode_prompt, model.start


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["hash", "llama"])
def test_chains_of_trees(kind: str, seed: int, request: pytest.FixtureRequest) -> None:
    """The first chain has logits, the rest is NaN, and keeping it needs no pass."""
    model: LanguageModel = hashing() if kind == "hash" else request.getfixturevalue("llama")
    random = np.random.default_rng(seed)
    session, ids = model.start(), [3]
    session.extend(ids)
    for _ in range(12):
        chain = ChainSession(session, name=model.name)
        news = [int(token) for token in random.integers(250, size=random.choice([1, 2, 6]))]
        tree = random_tree(random, int(random.choice([1, 2, 5, 16])), tokens=250)
        run, every = tree.first_chain(), bool(random.integers(2))
        if random.integers(3) == 0:  # the tree before is gone
            chain.extend_tree(news, random_tree(random, 4, tokens=250))
            ids += news
        forwards = session.forwards
        rows = chain.extend_tree(news, tree, all_positions=every)
        ids += news
        trunk = len(news) if every else 1
        rest = np.setdiff1d(np.arange(len(tree.parents)), run) + trunk
        assert np.isnan(rows[rest]).all()
        told = model.start().extend_all([*ids, *(tree.token_ids[node] for node in run)])
        np.testing.assert_allclose(
            rows[[*range(trunk), *(trunk + node for node in run)]], told[len(ids) - trunk :], atol=TOLERANCE
        )
        with pytest.raises(GenerationError, match="no such path"):
            chain.keep([0, 0])
        nodes = path(tree, int(random.integers(-1, len(tree.parents))))
        chain.keep(nodes)
        ids += [tree.token_ids[node] for node, ran in zip(nodes, run, strict=False) if node == ran]
        assert (session.length, session.forwards) == (len(ids), forwards + 1)
        with pytest.raises(GenerationError, match="there is no tree"):
            chain.keep([])
    np.testing.assert_allclose(session.extend([7]), model.start().extend_all([*ids, 7])[-1], atol=TOLERANCE)


def test_chains_refuse_what_is_no_tree_or_too_long() -> None:
    """The session stays unchanged."""
    model = HashModel(VOCABULARY, max_context=6)
    session = model.start()
    session.extend([1, 2])
    chain = ChainSession(session, name="m")
    for tree, problem in (
        (TokenTree([], []), "a tree needs tokens"),
        (TokenTree([1], [0]), "token 0 has the parent 0"),
        (TokenTree([1, 2, 3, 4], [-1, 0, 1, 2]), "1 token longer than the context"),
        (TokenTree([1, 999], [-1, 0]), "no token has the id 999"),
    ):
        with pytest.raises(GenerationError, match=problem):
            chain.extend_tree([5], tree)
        assert session.length == 2
        with pytest.raises(GenerationError, match="there is no tree"):
            chain.keep([])
    chain.extend_tree([5], TokenTree([1, 2, 3, 4], [-1, 0, 1, 0]))
    chain.keep([0, 1, 2])
    assert session.length == 6


def test_an_interrupted_chain_leaves_no_trace() -> None:
    """Ctrl-C comes after the pass, before its result is returned."""

    class Interrupted(HashModel):
        def logits(self, state: int, matched: int) -> Logits:
            raise KeyboardInterrupt

    session = Interrupted(VOCABULARY).start()
    chain = ChainSession(session, name="m")
    with pytest.raises(KeyboardInterrupt):
        chain.extend_tree([5], TokenTree([1, 2], [-1, 0]))
    assert session.length == 0


def test_hashes_are_bounded_by_positions() -> None:
    """This holds alone and in a batch."""
    model = HashModel(VOCABULARY, max_context=640)
    check_bounds(model)
    check_bounds(Batch(model))


def test_a_llama_is_bounded_by_positions(llama: Any) -> None:
    """Its cache takes more entries than it has positions."""
    check_bounds(llama)


def test_transformers_are_bounded_by_positions(of_transformers: Any) -> None:
    """Their own caches have no bound."""
    check_bounds(of_transformers)


def check_bounds(model: Any) -> None:
    """The depth counts, not the number of tokens of a tree; all of them may be at the last positions of 640."""
    session: TreeSession = model.start()
    ids = [int(token) for token in np.random.default_rng(1).integers(250, size=638)]
    session.extend(ids[:-1])
    with pytest.raises(GenerationError, match="1 token longer than the context"):
        session.extend_tree(ids[-1:], TokenTree([1, 2, 3, 4], [-1, 0, 0, 1]))
    assert session.length == 637
    wide = TokenTree([*range(60), *range(60)], [-1] * 60 + list(range(60)))
    rows = session.extend_tree(ids[-1:], wide)
    assert np.isfinite(rows).all()
    few = TokenTree([0, 59, 0, 59], [-1, -1, 0, 1])
    np.testing.assert_allclose(rows[[1, 60, 61, 120]], sequential(model, ids, few), atol=TOLERANCE)
    session.keep([59, 119])
    assert session.length == 640
    with pytest.raises(GenerationError, match="1 token longer than the context"):
        session.extend([1])
    session.truncate(639)
    expected = model.start().extend_all([*ids, 59, 7])[-1]
    np.testing.assert_allclose(session.extend([7]), expected, atol=TOLERANCE)


def test_trees_tell_their_shape() -> None:
    """Depths, ancestors and the first chain agree with results by hand."""
    tree = TokenTree([5, 6, 7, 8, 9], [-1, 0, -1, 0, 3])
    assert tree.depths() == [0, 1, 0, 1, 2]
    assert tree.first_chain() == [0, 1]
    assert tree.ancestors().astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 1, 1],
    ]
    assert prefix(tree, 4) == [5, 8, 9]
    tree.check(name="m")
    tree.check_path([0, 3, 4], name="m")
    TokenTree(np.array([1, 2]), np.array([-1, 0])).check(name="m")
