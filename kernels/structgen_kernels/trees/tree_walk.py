"""A walk down all trees of a batch in parallel, for the reference implementations of tree kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.trees.draft_forest import DraftForest
    from structgen_kernels.trees.draft_paths import DraftPaths

__all__ = ["TreeWalk"]


@final
class TreeWalk:
    """The current node of each request.

    Args:
        forest: the trees.
        out: the buffers for the accepted nodes.

    Attributes:
        node: int64 ``[requests]``, the current node; -1 at first.
        going: bool ``[requests]``, whether the walk continues.
        most: the number of nodes of the largest tree; ``child`` returns it if there is no child.
    """

    def __init__(self, forest: DraftForest, out: DraftPaths) -> None:
        first = forest.first.to(torch.int64)
        self._begin = first[:-1]
        sizes = first[1:] - first[:-1]
        self.most = int(sizes.max()) if len(sizes) else 0
        self._request = torch.arange(forest.requests, device=forest.device)
        number = torch.arange(self.most, device=forest.device)
        self._place = (self._begin[:, None] + number).clamp(max=max(0, len(forest.parents) - 1))  # [requests, most]
        inside = number < sizes[:, None]
        self._parents = torch.where(inside, forest.parents[self._place], -2)
        self._tokens = torch.where(inside, forest.tokens[self._place], -1)
        self._out = out
        out.nodes[: int(first[-1])] = -1
        out.accepted[: int(first[-1])] = False
        out.counts.zero_()
        self.node = torch.full_like(self._request, -1)
        self.going = torch.ones_like(self._request, dtype=torch.bool)

    def position(self) -> Tensor:
        """Return the row of each current node, int64 ``[requests]``."""
        return self._begin + self._request + 1 + self.node

    def child(self, token: Tensor | None, after: Tensor) -> Tensor:
        """Return the first child with a number above ``after`` (and with ``token``, if given), int64 ``[requests]``."""
        number = torch.arange(self.most, device=after.device)
        fits = (self._parents == self.node[:, None]) & (number > after[:, None])
        if token is not None:
            fits &= (self._tokens == token[:, None]) & (token[:, None] >= 0)
        return torch.where(fits, number, self.most).amin(1) if self.most else torch.zeros_like(after)

    def token(self, node: Tensor) -> Tensor:
        """Return the tokens of nodes, int64 ``[requests]``; 0 if there is no node."""
        if not self.most:
            return torch.zeros_like(node)
        found = self._tokens.gather(1, node.clamp(max=self.most - 1)[:, None])[:, 0]
        return found.clamp(min=0).to(torch.int64)

    def step(self, token: Tensor, status: Tensor) -> None:
        """Accept the child with the token and move to it; without such a child the walk of the request ends."""
        self._out.tokens.copy_(torch.where(self.going, token, self._out.tokens))
        self._out.status.copy_(torch.where(self.going, status, self._out.status))
        child = self.child(token, self.node)
        self.going &= child < self.most
        taken = self.going.nonzero()[:, 0]
        places = self._begin[taken]
        self._out.nodes[places + self._out.counts[taken]] = child[taken].to(torch.int32)
        self._out.accepted[places + child[taken]] = True
        self._out.counts[taken] += 1
        self.node = torch.where(self.going, child, self.node)
