"""Tiny models, made on the fly: random weights, a byte-level tokenizer, no download."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_gguf

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TINY_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "max_position_embeddings": 640,
    "vocab_size": 264,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}


@pytest.fixture(scope="session")
def byte_tokenizer() -> Any:
    """A tokenizer of ``tokenizers``: three special tokens, then all bytes, then the two merges of "the"."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet, "th", "the"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


@pytest.fixture(scope="session")
def tiny_weights() -> dict[str, Any]:
    """Random weights of the model of ``TINY_CONFIG``, named as Hugging Face names them."""
    import torch

    generator = torch.Generator().manual_seed(7)
    config = TINY_CONFIG
    width, hidden = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (config["vocab_size"], width),
        "model.norm": (width,),
    }
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}": shape
            for name, shape in {
                "input_layernorm": (width,),
                "self_attn.q_proj": (queries, width),
                "self_attn.k_proj": (keys, width),
                "self_attn.v_proj": (keys, width),
                "self_attn.o_proj": (width, queries),
                "post_attention_layernorm": (width,),
                "mlp.gate_proj": (hidden, width),
                "mlp.up_proj": (hidden, width),
                "mlp.down_proj": (width, hidden),
            }.items()
        }
    return {f"{name}.weight": torch.randn(shape, generator=generator) / 2 for name, shape in shapes.items()}


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory, byte_tokenizer: Any, tiny_weights: dict[str, Any]) -> Path:
    """A folder of Hugging Face files with a tiny Llama, as ``LlamaModel`` and transformers read it."""
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("tiny-llama")
    (folder / "config.json").write_text(json.dumps(TINY_CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 0]}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": SPECIAL[1],
                "eos_token": SPECIAL[2],
                "chat_template": CHAT_TEMPLATE,
            }
        )
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    byte_tokenizer.save(str(folder / "tokenizer.json"))
    save_file(tiny_weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(params=["natively", "all shared", "all padded", "all apart", "in float32", "as it is"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same sums in other ways: the result must not depend on which is fastest."""
    from structgen.models.llama import attended, attention as llama_attention, cache as llama_cache

    way: str = request.param
    if way != "as it is":
        monkeypatch.setattr(llama_cache, "_COPIED", 2)
        monkeypatch.setattr(llama_cache, "_FIRST_CAPACITY", 1)
        monkeypatch.setattr(llama_attention, "_WORTHWHILE", 10**9 if way == "all apart" else 2)
        monkeypatch.setattr(llama_attention, "_WORTHWHILE_NATIVELY", 2)
        monkeypatch.setattr(llama_attention, "_NATIVE_ROWS", 3 if way == "natively" else 0)
        monkeypatch.setattr(llama_attention, "_SHORT", 10**9 if way == "all padded" else 3)
    if way == "in float32":

        def attend(queries: Any, keys: Any, values: Any, bias: Any) -> Any:
            return attended.attend_plainly(queries.float(), keys.float(), values.float(), bias)

        monkeypatch.setattr(attended, "attend", attend)
    return way


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights for llama.cpp, a byte-level vocabulary of 264 tokens and a chat template."""
    pytest.importorskip("xllamacpp")
    path = tmp_path_factory.mktemp("tiny-gguf") / "tiny.gguf"
    write_gguf(path)
    return path
