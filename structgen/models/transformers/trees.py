"""Trees of tokens for models of transformers: what a pass is given, and which models make of it what they should."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from structgen.models.protocol.tree import TokenTree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.transformers.model import TransformersModel

__all__ = ["keep_entries", "own_entries", "takes_trees", "tree_inputs", "written"]

_TRUNK: Final = (0, 1, 2)
_TRIAL: Final = TokenTree((3, 4, 5, 6, 7), (-1, -1, 1, 0, 2))
_ROUNDING: Final = 1e-3
"""A row of a trial may differ from that of the sequence by this share of the spread of its logits, or by a few units in
the last place of the model's numbers; one whose mask or position is wrong differs by about the spread."""


def tree_inputs(model: Any, count: int, tree: TokenTree, *, past: int) -> dict[str, torch.Tensor]:
    """What a forward pass needs beside the tokens to run a tree.

    Args:
        model: of transformers.
        count: tokens that the tree follows in the pass.
        tree: what is run behind them.
        past: tokens in the cache.

    Returns:
        ``position_ids`` ``[1, rows]`` and ``attention_mask`` ``[1, 1, rows, past + rows]``, in the form in which the
        model's attention takes it: booleans for the fused one, numbers that are added to scores for the plain one.
    """
    device = model.get_input_embeddings().weight.device
    size = len(tree.token_ids)
    visible = torch.ones((count + size, past + count + size), dtype=torch.bool, device=device).tril(past)
    visible[-size:, -size:] = torch.from_numpy(tree.ancestors()).to(device)
    end = past + count
    positions = [*range(past, end), *(end + depth for depth in tree.depths())]
    mask = visible
    if _attention(model) == "eager":
        mask = torch.zeros(visible.shape, dtype=model.dtype, device=device)
        mask.masked_fill_(~visible, torch.finfo(model.dtype).min)
    return {"position_ids": torch.tensor([positions], device=device), "attention_mask": mask[None, None]}


def keep_entries(cache: DynamicCache, length: int, entries: Sequence[int]) -> None:
    """Keep ``length`` tokens of a plain cache, and of those behind them the given ones, counted from there.

    O(1), or O(tokens) where they are not the first.
    """
    end = length + len(entries)
    in_place = all(at == entry for at, entry in enumerate(entries))
    for layer in cache.layers:
        if not isinstance(layer, DynamicLayer) or layer.keys is None or layer.values is None:
            continue
        keys, values = layer.keys[..., :end, :], layer.values[..., :end, :]
        if not in_place:  # anew: tensors of a cache are never written to, forks may share them
            rows = torch.tensor([*range(length), *(length + entry for entry in entries)], device=keys.device)
            keys, values = layer.keys.index_select(-2, rows), layer.values.index_select(-2, rows)
        layer.keys, layer.values = keys, values


def own_entries(cache: DynamicCache) -> None:
    """Copy the keys and values of a cache, which a compiled model may have left where its next pass writes; O(tokens).

    CUDA graphs do that (``mode="reduce-overhead"``).
    """
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            layer.keys, layer.values = layer.keys.clone(), layer.values.clone()


def takes_trees(model: TransformersModel) -> bool:
    """Whether a model's answers for a tree are those for its paths; three short passes where that is not plain.

    It takes an attention that uses a mask of any form, and a cache of which any entries can be kept: no fused kernels
    for causal attention only, no recurrent states, no windows that are shorter than the context, no biases that are
    made from the order of the tokens.  What an architecture makes of mask and positions is nowhere declared, so those
    that may be fit are tried out.
    """
    network = model.model
    if not (
        "position_ids" in inspect.signature(written(network).forward).parameters
        and getattr(network, "_supports_attention_backend", False)  # its attention is given the mask as it is
        and _attention(network) in ("eager", "sdpa")
        and _sees_all(network.config, model.max_context)
    ):
        return False
    try:
        return _passes_trial(model)
    except Exception:  # whatever a foreign architecture raises: its trees are not run
        return False


def written(model: Any) -> Any:
    """The model as it was written, where ``torch.compile`` has wrapped it: with its own name and signature."""
    return getattr(model, "_orig_mod", model)


def _attention(model: Any) -> str | None:
    name: str | None = getattr(model.config.get_text_config(decoder=True), "_attn_implementation", None)
    return name


def _sees_all(config: Any, max_context: int | None) -> bool:
    """Whether each token sees all before it, in all layers, in every sequence that fits the context."""
    return all(
        type(layer) is DynamicLayer
        or (
            type(layer) is DynamicSlidingWindowLayer and max_context is not None and layer.sliding_window >= max_context
        )
        for layer in DynamicCache(config=config).layers
    )


def _passes_trial(model: TransformersModel) -> bool:
    """Whether the logits after two leaves of a tree, of different depths, are those of the sequences."""
    trunk, tree = list(_TRUNK), _TRIAL
    size = len(tree.token_ids)
    rows = model.run(trunk, model.empty_cache(), positions=size, tree=tree).float()
    precision = torch.finfo(model.model.dtype).eps
    for path in ((0, 3), (1, 2, 4)):
        chain = [tree.token_ids[node] for node in path]
        expected = model.run(trunk + chain, model.empty_cache(), positions=1)[0].float()
        error = (rows[path[-1]] - expected).square().mean().sqrt()
        if not error <= max(_ROUNDING, 4 * precision) * expected.std():
            return False
    return True
