"""The architectures of transformers that run trees, and that their trees agree with sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tree_session_machine import path, random_tree, sequential

from structgen.errors import GenerationError
from structgen.models import from_transformers
from structgen.models.protocol import TreeSession
from structgen.models.protocol.tree import TokenTree
from structgen.models.transformers import model as transformers_trees

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SMALL = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "num_hidden_layers": 2,
}
IDS = [5, 80, 3, 200, 99, 5, 17, 210, 42, 7, 7, 130, 9, 64]
TREE = TokenTree([9, 8, 7, 6, 5, 4], [-1, -1, 1, 0, 2, 4])


def make(config_class: str, *, attention: str = "sdpa", dtype: Any = torch.float32, **options: Any) -> Any:
    """Make a causal model with random weights."""
    torch.manual_seed(11)
    config = getattr(transformers, config_class)(vocab_size=264, eos_token_id=2, bos_token_id=1, **options)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.to(dtype)


BRANCHING = {
    "full attention": lambda: make("LlamaConfig", **SMALL),
    "plain attention": lambda: make("LlamaConfig", **SMALL, attention="eager"),
    "half precision": lambda: make("LlamaConfig", **SMALL, dtype=torch.bfloat16),
    "plain half precision": lambda: make("LlamaConfig", **SMALL, dtype=torch.float16, attention="eager"),
    "learned positions": lambda: make("GPT2Config", n_embd=24, n_layer=2, n_head=3, n_positions=128),
    "positions with an offset": lambda: make(
        "OPTConfig",
        hidden_size=24,
        ffn_dim=32,
        num_attention_heads=3,
        num_hidden_layers=2,
        word_embed_proj_dim=24,
        max_position_embeddings=128,
    ),
    "a window as wide as the context": lambda: make("MistralConfig", **SMALL, sliding_window=128),
    "experts": lambda: make("MixtralConfig", **SMALL, num_local_experts=4, sliding_window=None),
}
OTHERS = {
    "a narrow window": lambda: make("MistralConfig", **SMALL, sliding_window=64),
    "some narrow windows": lambda: make("Gemma3TextConfig", **SMALL, sliding_window=64, query_pre_attn_scalar=8),
    "convolutions": lambda: make("Lfm2Config", **SMALL, layer_types=["conv", "full_attention"]),
    "biases by distance": lambda: make("BloomConfig", attention="eager", hidden_size=24, n_layer=2, n_head=3),
    "biases by distance and positions": lambda: make(
        "FalconConfig", hidden_size=24, num_hidden_layers=2, num_attention_heads=3, alibi=True
    ),
    "local attention": lambda: make(
        "GPTNeoConfig",
        attention="eager",
        hidden_size=24,
        num_layers=2,
        num_heads=3,
        attention_types=[[["global", "local"], 1]],
        window_size=64,
    ),
}


@pytest.fixture(scope="module")
def tokenizer(byte_tokenizer: Any) -> Any:
    """The byte-level tokenizer as an object of transformers."""
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer, eos_token="<|im_end|>")


@pytest.mark.parametrize("kind", BRANCHING)
def test_architectures_that_look_at_trees(tokenizer: Any, kind: str) -> None:
    """Trees after a prefix, kept paths and further trees agree with sequences."""
    model = from_transformers(BRANCHING[kind](), tokenizer, name=kind)
    session = model.start()
    assert isinstance(session, TreeSession)
    assert session.can_branch
    random = np.random.default_rng(0)
    ids = list(IDS)
    session.extend(ids[:-1])
    news = ids[-1:]
    for size in (1, 6, 32):
        tree = random_tree(random, size, tokens=264)
        rows = session.extend_tree(news, tree)
        expected = sequential(model, ids, tree)
        tolerance = 0.05 * expected.std() if "half" in kind else 1e-4
        np.testing.assert_allclose(rows[1:], expected, atol=tolerance)
        nodes = path(tree, size - 1)
        session.keep(nodes)
        news = [17]
        ids += [*(tree.token_ids[node] for node in nodes), *news]
    np.testing.assert_allclose(session.extend(news), model.start().extend(ids), atol=tolerance)


@pytest.mark.parametrize("kind", OTHERS)
def test_architectures_that_run_chains(tokenizer: Any, kind: str) -> None:
    """They say so, refuse trees, and go on."""
    model = from_transformers(OTHERS[kind](), tokenizer, name=kind)
    session: Any = model.start()
    session.extend(IDS[:3])
    assert not session.can_branch
    with pytest.raises(GenerationError, match="its sessions do not run trees"):
        session.extend_tree([1], TREE)
    with pytest.raises(GenerationError, match="there is no tree"):
        session.keep([])
    np.testing.assert_allclose(session.extend(IDS[3:]), model.start().extend(IDS), atol=1e-4)


@pytest.mark.parametrize("fault", ["mask", "positions", "error"])
def test_what_is_not_declared_is_tried_out(tokenizer: Any, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """A model that ignores the mask or positions, or fails on them, is found by a single trial."""
    model = from_transformers(BRANCHING["full attention"](), tokenizer)
    real, calls = model.model.forward, []

    def forward(*, input_ids: Any, position_ids: Any = None, attention_mask: Any = None, **options: Any) -> Any:
        calls.append(1)
        if fault == "error" and attention_mask is not None:
            raise IndexError("too many dimensions")
        kept = {} if fault == "mask" else {"attention_mask": attention_mask}
        kept |= {} if fault == "positions" else {"position_ids": position_ids}
        return real(input_ids=input_ids, **kept, **options)

    monkeypatch.setattr(model.model, "forward", forward)
    assert not model.start().can_branch
    assert calls
    calls.clear()
    assert not model.start().can_branch
    assert not calls


def test_other_attention_is_not_tried(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for causal attention alone take no masks, or other ones."""
    network = BRANCHING["full attention"]()
    monkeypatch.setattr(network.config, "_attn_implementation_internal", "flash_attention_2")
    model = from_transformers(network, tokenizer)
    monkeypatch.setattr(model, "run", lambda *_, **__: pytest.fail("it was run"))
    assert not model.start().can_branch


def test_a_cache_that_was_lost_is_made_again(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that breaks off half way, with a tree or after one, leaves the tokens and no tree."""
    model = from_transformers(BRANCHING["full attention"](), tokenizer)
    session = model.start()
    assert isinstance(session, TreeSession)
    session.extend(IDS[:5])
    session.extend_tree(IDS[5:6], TREE)

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(model.model.model.layers[1], "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.extend_tree(IDS[6:8], TREE)
    assert session.length == 6
    with pytest.raises(GenerationError, match="there is no tree"):
        session.keep([])
    rows = session.extend_tree(IDS[6:8], TREE, all_positions=True)
    np.testing.assert_allclose(rows[:2], model.start().extend_all(IDS[:8])[6:], atol=1e-4)
    np.testing.assert_allclose(rows[2:], sequential(model, IDS[:8], TREE), atol=1e-4)
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "index_select", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.keep([1, 2])
    assert session.length == 8
    np.testing.assert_allclose(session.extend(IDS[8:]), model.start().extend(IDS), atol=1e-4)


def test_a_fork_does_not_hold_the_tree(tokenizer: Any) -> None:
    """Nor does it hold tokens kept later in the other session, since tensors are replaced and never written to."""
    model = from_transformers(BRANCHING["full attention"](), tokenizer)
    session: Any = model.start()
    session.extend(IDS)
    reference = session.fork()
    session.extend_tree([3], TREE)
    session.keep([1, 2])
    third = session.fork()
    session.extend_tree([11], TREE)
    fourth = session.fork()
    for each, ids in ((reference, IDS), (third, [*IDS, 3, 8, 7]), (fourth, [*IDS, 3, 8, 7, 11])):
        assert each.length == len(ids)
        np.testing.assert_allclose(each.extend([2]), model.start().extend([*ids, 2]), atol=1e-4)


def test_masks_have_the_form_that_the_attention_takes(tokenizer: Any) -> None:
    """By hand: a prefix of two, a token, and a tree with a fork."""
    tree = TokenTree([4, 5, 6], [-1, -1, 0])
    seen = [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 0, 1]]
    for attention in ("sdpa", "eager"):
        inputs = transformers_trees.tree_inputs(make("LlamaConfig", **SMALL, attention=attention), 1, tree, past=2)
        assert inputs["position_ids"].tolist() == [[2, 3, 3, 4]]
        mask = inputs["attention_mask"][0, 0]
        visible = mask if attention == "sdpa" else mask == 0
        assert visible.int().tolist() == seen
        assert mask.dtype == (torch.bool if attention == "sdpa" else torch.float32)
