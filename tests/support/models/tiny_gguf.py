"""A tiny Llama as a GGUF file, in float32, so that only the order of sums differs from other implementations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

CONTEXT = 640


def write_gguf(path: Path, **changes: Any) -> None:
    """Write the tiny model; ``changes`` replace entries of its metadata."""
    gguf = pytest.importorskip("gguf")
    from tokenizers import pre_tokenizers

    width, hidden, layers, heads, key_heads, vocabulary = 48, 80, 3, 3, 1, 264
    head = width // heads
    random = np.random.default_rng(7)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_file_type(0)
    writer.add_context_length(changes.get("context_length", CONTEXT))
    writer.add_embedding_length(changes.get("embedding_length", width))
    writer.add_block_count(changes.get("block_count", layers))
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(changes.get("head_count", heads))
    writer.add_head_count_kv(key_heads)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocabulary)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "th", "the", "[PAD0]", "[PAD1]", "[PAD2]"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(changes.get("tokens", tokens))
    writer.add_token_types(changes.get("token_type", [3] * 3 + [1] * 258 + [5] * 3))
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )

    def weights(*shape: int) -> Any:
        return random.standard_normal(shape, dtype=np.float32) / 2

    for name, shape in {
        "token_embd": (vocabulary, width),
        "output_norm": (width,),
        **{
            f"blk.{layer}.{part}": shape
            for layer in range(layers)
            for part, shape in {
                "attn_norm": (width,),
                "attn_q": (width, width),
                "attn_k": (key_heads * head, width),
                "attn_v": (key_heads * head, width),
                "attn_output": (width, width),
                "ffn_norm": (width,),
                "ffn_gate": (hidden, width),
                "ffn_up": (hidden, width),
                "ffn_down": (width, hidden),
            }.items()
        },
    }.items():
        writer.add_tensor(f"{name}.weight", weights(*shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
