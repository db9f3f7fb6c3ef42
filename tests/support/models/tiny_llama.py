"""A Llama of transformers with random weights, small enough for tests of what is done around it."""

from __future__ import annotations

from typing import Any

__all__ = ["EOS", "PAD", "WIDTH", "tiny_llama"]

EOS, PAD, WIDTH = 0, 310, 320
"""Its head is wider than the vocabularies of the tests; the padding is no token of theirs."""


def tiny_llama(seed: int) -> Any:
    """Return a model of two layers, with a context of 256 tokens."""
    import torch
    import transformers

    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.4,
        bos_token_id=None,
        eos_token_id=EOS,
        pad_token_id=PAD,
    )
    return transformers.LlamaForCausalLM(config).eval()
