"""Draft heads in plain torch, as in the papers, and their training on the outputs of a small model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from structgen.models.llama.model import LlamaModel

Weights = dict[str, torch.Tensor]


def spoken(model: LlamaModel, *, count: int, length: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The model's greedy outputs after random tokens, ``[count, length]``, and its normed last states."""
    random = np.random.default_rng(seed)
    tokens, states = [], []
    for _ in range(count):
        session = model.start()
        said = [int(token) for token in random.integers(3, 259, size=3)]
        row = session.extend(said)
        while len(said) < length:
            said.append(int(row.argmax()))
            row = session.extend(said[-1:])
        session.truncate(0)
        session.watched = (session.layers,)
        session.extend(said)
        tokens.append(said)
        states.append(session.states[session.layers])
    with torch.inference_mode():
        normed = model.network.normed(torch.tensor(np.stack(states)))
    return torch.tensor(tokens), normed.clone()


def embedding(model: LlamaModel) -> torch.Tensor:
    return model.network.embedding(torch.arange(model.network.shape.vocabulary)).clone()


def new_weights(kind: str, model: LlamaModel, *, heads: int, seed: int = 0) -> Weights:
    """Initial weights: small random numbers, and the model's own output head."""
    generator = torch.Generator().manual_seed(seed)
    shape = model.network.shape
    width, hidden = shape.width, shape.hidden
    table = embedding(model)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator) * 0.1

    weights: Weights = {}
    if kind == "medusa":
        for head in range(heads):
            weights |= {
                f"{head}.0.linear.weight": random(width, width),
                f"{head}.0.linear.bias": torch.zeros(width),
                f"{head}.1.weight": table.clone(),
            }
    elif kind == "hydra":
        for head in range(heads):
            weights |= {
                f"heads.{head}.input.weight": random(width, (head + 2) * width),
                f"heads.{head}.input.bias": torch.zeros(width),
                f"heads.{head}.skip.weight": random(width, (head + 2) * width),
                f"heads.{head}.blocks.0.weight": random(width, width),
                f"heads.{head}.blocks.0.bias": torch.zeros(width),
                f"heads.{head}.output.weight": table.clone(),
            }
    else:
        queries, keys = shape.heads * shape.head_width, shape.key_value_heads * shape.head_width
        weights = {
            "fc.weight": random(width, 2 * width),
            "fc.bias": torch.zeros(width),
            "layers.0.self_attn.q_proj.weight": random(queries, width),
            "layers.0.self_attn.k_proj.weight": random(keys, width),
            "layers.0.self_attn.v_proj.weight": random(keys, width),
            "layers.0.self_attn.o_proj.weight": random(width, queries),
            "layers.0.post_attention_layernorm.weight": torch.ones(width),
            "layers.0.mlp.gate_proj.weight": random(hidden, width),
            "layers.0.mlp.up_proj.weight": random(hidden, width),
            "layers.0.mlp.down_proj.weight": random(width, hidden),
        }
    return weights


def config(kind: str, heads: int) -> dict[str, Any]:
    if kind == "eagle":
        return {"architectures": ["EagleLlamaForCausalLM"], "num_hidden_layers": 1}
    return {f"{kind}_num_heads": heads, f"{kind}_num_layers": 1}


def medusa(weights: Weights, states: torch.Tensor, head: int) -> torch.Tensor:
    """Logits of a head, ``[..., V]``."""
    hidden = states @ weights[f"{head}.0.linear.weight"].T + weights[f"{head}.0.linear.bias"]
    return (states + F.silu(hidden)) @ weights[f"{head}.1.weight"].T


def hydra(weights: Weights, states: torch.Tensor, seen: torch.Tensor, head: int) -> torch.Tensor:
    """Logits of a head after embedded tokens ``[..., head + 1, width]``."""
    z = torch.cat((states, seen.flatten(-2)), dim=-1)
    name = f"heads.{head}."
    x = z @ weights[f"{name}skip.weight"].T
    x = x + F.silu(z @ weights[f"{name}input.weight"].T + weights[f"{name}input.bias"])
    x = x + F.silu(x @ weights[f"{name}blocks.0.weight"].T + weights[f"{name}blocks.0.bias"])
    return x @ weights[f"{name}output.weight"].T


def eagle(model: LlamaModel, weights: Weights, states: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """States after embedded tokens, given the states before them: both ``[batch, rows, width]``."""
    shape = model.network.shape
    batch, rows, _ = states.shape
    x = torch.cat((seen, states), dim=-1) @ weights["fc.weight"].T + weights["fc.bias"]

    def projected(kind: str) -> torch.Tensor:
        flat = x @ weights[f"layers.0.self_attn.{kind}_proj.weight"].T
        return flat.view(batch, rows, -1, shape.head_width).transpose(1, 2)

    half = torch.arange(0, shape.head_width, 2) / shape.head_width
    angles = torch.arange(rows)[:, None] / shape.rope_theta**half
    turn = torch.polar(torch.ones_like(angles), angles)

    def turned(heads: torch.Tensor) -> torch.Tensor:
        first, second = heads.chunk(2, dim=-1)
        product = torch.complex(first, second) * turn
        return torch.cat((product.real, product.imag), dim=-1)

    queries, keys, values = turned(projected("q")), turned(projected("k")), projected("v")
    groups = shape.heads // shape.key_value_heads
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = queries @ keys.transpose(-1, -2) / shape.head_width**0.5
    scores = scores.masked_fill(torch.ones(rows, rows).triu(1).bool(), -torch.inf)
    found = (scores.softmax(-1) @ values).transpose(1, 2).flatten(2)
    x = x + found @ weights["layers.0.self_attn.o_proj.weight"].T
    normed = x * (x.pow(2).mean(-1, keepdim=True) + shape.epsilon).rsqrt()
    normed = normed * weights["layers.0.post_attention_layernorm.weight"]
    gate = F.silu(normed @ weights["layers.0.mlp.gate_proj.weight"].T)
    up = normed @ weights["layers.0.mlp.up_proj.weight"].T
    return x + (gate * up) @ weights["layers.0.mlp.down_proj.weight"].T


def trained(
    kind: str, model: LlamaModel, said: tuple[torch.Tensor, torch.Tensor], *, heads: int, steps: int, seed: int = 0
) -> Weights:
    """Weights after ``steps`` of Adam on the model's outputs, as ``spoken`` returns them."""
    tokens, states = said
    table = embedding(model)
    weights = {key: value.requires_grad_() for key, value in new_weights(kind, model, heads=heads, seed=seed).items()}
    optimizer = torch.optim.Adam(weights.values(), lr=1e-2)
    seen = table[tokens]
    for _ in range(steps):
        loss = torch.zeros(())
        if kind == "eagle":
            predicted = eagle(model, weights, states[:, :-2], seen[:, 1:-1])
            loss = F.smooth_l1_loss(predicted, states[:, 1:-1])
            loss = loss + 0.1 * F.cross_entropy((predicted @ table.T).flatten(0, 1), tokens[:, 2:].flatten())
        else:
            for head in range(heads):
                last = tokens.shape[1] - head - 2
                if kind == "medusa":
                    logits = medusa(weights, states[:, :last], head)
                else:
                    after = torch.stack([seen[:, 1 + at : 1 + at + last] for at in range(head + 1)], dim=2)
                    logits = hydra(weights, states[:, :last], after, head)
                loss = loss + F.cross_entropy(logits.flatten(0, 1), tokens[:, head + 2 :].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {key: value.detach().clone() for key, value in weights.items()}
