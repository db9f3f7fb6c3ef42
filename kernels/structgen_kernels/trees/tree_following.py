"""Sample and match: accept draft tokens from the root down while they equal the tokens of the target model.

The target model has sampled a token at every position, in one batched step.  This step selects the tokens to keep.  It
is lossless for any draft tokens: each token of the output was sampled by the target model after the tokens before it.

Bytes: 5 per node and 12 per request are written.  Each token of the path reads 8 per node, from the cache except for
the first token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.choices.choice import CHOSEN, EMPTY
from structgen_kernels.dispatch import backend_for
from structgen_kernels.launch import launch
from structgen_kernels.trees.draft_paths import DraftPaths
from structgen_kernels.trees.tree_walk import TreeWalk

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.trees.draft_forest import DraftForest

__all__ = ["follow_tree"]

_KERNEL: Final = "follow_tree"
_BLOCK: Final = 128
"""Nodes per block of the search for a child."""


def follow_tree(
    forest: DraftForest, tokens: Tensor, *, status: Tensor | None = None, out: DraftPaths | None = None
) -> DraftPaths:
    """Return the accepted path of each request.  If several children have the token, the first is accepted.

    Args:
        forest: the draft tokens.
        tokens: int32 ``[positions]``, the target model's token at each position; -1 for none, which ends the path.
        status: int32 ``[positions]``, the status of each token; None means EMPTY where there is no token.
        out: the output buffers; None allocates them.

    Raises:
        KernelArgumentError: an argument has the wrong dtype, shape or device.

    Complexity: O(nodes of the request) for each token of the path.
    """
    device = forest.device
    check_tensor(_KERNEL, "tokens", tokens, dtype=torch.int32, shape=(forest.positions,), device=device)
    if status is not None:
        check_tensor(_KERNEL, "status", status, dtype=torch.int32, shape=(forest.positions,), device=device)
    out = DraftPaths.fitting(_KERNEL, forest, out)
    if backend_for(device) == "torch":
        _follow(forest, tokens, status, out)
    elif forest.requests:
        from structgen_kernels.trees.jit.tree_following import follow_tree_kernel

        launch(
            follow_tree_kernel,
            (forest.requests,),
            forest.first,
            forest.parents,
            forest.tokens,
            tokens,
            status,
            out.nodes,
            out.accepted,
            out.counts,
            out.tokens,
            out.status,
            BLOCK=_BLOCK,
            num_warps=4,
        )
    return out


def _follow(forest: DraftForest, tokens: Tensor, status: Tensor | None, out: DraftPaths) -> None:
    """The reference implementation."""
    walk = TreeWalk(forest, out)
    while bool(walk.going.any()):
        token = tokens[walk.position()]
        walk.step(token, torch.where(token >= 0, CHOSEN, EMPTY) if status is None else status[walk.position()])
