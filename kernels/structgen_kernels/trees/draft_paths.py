"""The accepted path of each tree of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import torch

from structgen_kernels.choices.choice import CHOSEN, NON_FINITE
from structgen_kernels.errors import EmptyRowError, KernelArgumentError, NonFiniteLogitsError

if TYPE_CHECKING:
    from torch import Tensor

    from structgen_kernels.trees.draft_forest import DraftForest

__all__ = ["DraftPaths"]


@final
@dataclass(frozen=True, slots=True)
class DraftPaths:
    """The accepted nodes of each tree, and the token after them.

    Attributes:
        nodes: int32 ``[nodes]``: from ``first[r]`` on, the accepted nodes of request ``r`` in order, padded with -1.
        accepted: bool ``[nodes]``, whether each node is accepted.
        counts: int32 ``[requests]``, the number of accepted nodes.
        tokens: int32 ``[requests]``, the token after the accepted nodes; -1 if no token is possible.
        status: int32 ``[requests]``, the status of the last position: see ``structgen_kernels.choices.choice``.
    """

    nodes: Tensor
    accepted: Tensor
    counts: Tensor
    tokens: Tensor
    status: Tensor

    @classmethod
    def buffers(cls, forest: DraftForest) -> Self:
        """Allocate buffers for a forest: 5 bytes per node and 12 per request."""
        nodes = torch.empty_like(forest.parents)
        counts, tokens, status = (forest.first.new_empty(forest.requests) for _ in range(3))
        return cls(nodes, torch.empty_like(nodes, dtype=torch.bool), counts, tokens, status)

    @classmethod
    def fitting(cls, kernel: str, forest: DraftForest, out: Self | None) -> Self:
        """Return ``out`` if it is given, else new buffers.

        Raises:
            KernelArgumentError: ``out`` has another shape or device.
        """
        if out is None:
            return cls.buffers(forest)
        if (
            out.nodes.shape != forest.parents.shape
            or out.counts.shape != (forest.requests,)
            or out.nodes.device != forest.device
        ):
            raise KernelArgumentError(
                kernel,
                "out",
                f"must be for {forest.requests} requests and {len(forest.parents)} nodes, on their device",
            )
        return out

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise if a request has no token after its path.  Copies ``status`` to the host, which synchronizes.

        Args:
            names: names of the requests, for messages.

        Raises:
            NonFiniteLogitsError: there is NaN or plus infinity in logits or in a draft distribution.
            EmptyRowError: no token is allowed, or all allowed tokens have probability 0.
        """
        found: list[int] = self.status.tolist()
        broken = [request for request, status in enumerate(found) if status == NON_FINITE]
        if broken:
            raise NonFiniteLogitsError("draft paths", broken, names)
        empty = [request for request, status in enumerate(found) if status != CHOSEN]
        if empty:
            raise EmptyRowError("draft paths", empty, names)
