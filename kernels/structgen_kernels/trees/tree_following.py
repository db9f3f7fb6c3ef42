"""Sample and match: from the root down for as long as a tree holds what the target chose.

The target has chosen a token at every position, in one step for all; which of these count is decided here.  That is
lossless whatever the draft tokens are, for each token that comes out is one that the target chose after the ones
before.

Bytes: 5 a node and 12 a request are written; read are 8 a node for each token of the path, out of the cache but for
the first time.
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
"""Nodes that are compared at a time."""


def follow_tree(
    forest: DraftForest, tokens: Tensor, *, status: Tensor | None = None, out: DraftPaths | None = None
) -> DraftPaths:
    """Return the path of each request.  Of children with the same token the first is taken.

    Args:
        forest: the draft tokens.
        tokens: int32 ``[positions]``, what the target chose at each; -1 for nothing, and then the path ends.
        status: int32 ``[positions]``, as it was chosen; None gives EMPTY where there is no token.
        out: where to write; None makes it.

    Raises:
        KernelArgumentError: an argument is of the wrong type, shape or device.

    Complexity: O(nodes of the request) for each token of its path.
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
