"""Small Llamas with random weights and a byte-level tokenizer, of any number of layers."""

from __future__ import annotations

import json
from pathlib import Path

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
HEADS, HEAD_WIDTH, KEY_HEADS, HIDDEN = 3, 8, 1, 40
WIDTH = HEADS * HEAD_WIDTH


def write_llama(
    folder: Path, *, layers: int, seed: int = 7, scale: float = 0.5, deeper: float = 1.0, attention: float = 1.0
) -> Path:
    """Fill ``folder`` with the files of a Llama.

    Args:
        folder: is made.
        layers: how many.
        seed: of the weights.
        scale: their standard deviation.
        attention: what the outputs of attention are multiplied by; with a small factor, the last token nearly decides
            the next, and greedy texts repeat themselves.
        deeper: what the outputs of a layer are multiplied by, relative to the layer before; below 1, later
            layers matter less.
    """
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir(parents=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate([*SPECIAL, *alphabet, "th", "the"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[("t", "h"), ("th", "e")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": WIDTH,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": HEAD_WIDTH,
        "max_position_embeddings": 512,
        "vocab_size": len(vocab) + 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": [2, 0]}))
    (folder / "chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    generator = torch.Generator().manual_seed(seed)

    def weights(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * scale

    tensors = {
        "model.embed_tokens.weight": weights(len(vocab) + 1, WIDTH),
        "model.norm.weight": 1 + weights(WIDTH) / 4,
    }
    for layer in range(layers):
        share = deeper**layer
        tensors |= {
            f"model.layers.{layer}.{name}.weight": tensor
            for name, tensor in {
                "input_layernorm": 1 + weights(WIDTH) / 4,
                "self_attn.q_proj": weights(WIDTH, WIDTH),
                "self_attn.k_proj": weights(KEY_HEADS * HEAD_WIDTH, WIDTH),
                "self_attn.v_proj": weights(KEY_HEADS * HEAD_WIDTH, WIDTH),
                "self_attn.o_proj": weights(WIDTH, WIDTH) * share * attention,
                "post_attention_layernorm": 1 + weights(WIDTH) / 4,
                "mlp.gate_proj": weights(HIDDEN, WIDTH),
                "mlp.up_proj": weights(HIDDEN, WIDTH),
                "mlp.down_proj": weights(WIDTH, HIDDEN) * share,
            }.items()
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
