"""The paths that are taken in the trees of a batch."""

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
    """The nodes of each tree that are taken, and the token that follows them.

    Attributes:
        nodes: int32 ``[nodes]``: of request ``r`` the accepted nodes from ``first[r]`` on, one after the other, and -1
            in the rest of its places.
        accepted: bool ``[nodes]``, whether each node is taken.
        counts: int32 ``[requests]``, how many are.
        tokens: int32 ``[requests]``, what follows them; -1 where nothing can.
        status: int32 ``[requests]``, of the last position: see ``structgen_kernels.choices.choice``.
    """

    nodes: Tensor
    accepted: Tensor
    counts: Tensor
    tokens: Tensor
    status: Tensor

    @classmethod
    def buffers(cls, forest: DraftForest) -> Self:
        """Memory for the paths of a forest: 5 bytes a node and 12 a request."""
        nodes = torch.empty_like(forest.parents)
        counts, tokens, status = (forest.first.new_empty(forest.requests) for _ in range(3))
        return cls(nodes, torch.empty_like(nodes, dtype=torch.bool), counts, tokens, status)

    @classmethod
    def fitting(cls, kernel: str, forest: DraftForest, out: Self | None) -> Self:
        """Return ``out`` if it is given, else new buffers.

        Raises:
            KernelArgumentError: it is of another shape or device.
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
        """Raise where nothing follows a path; waits for the device and copies ``status``.

        Args:
            names: what the requests are called, for messages.

        Raises:
            NonFiniteLogitsError: logits, or the distribution of drafts, have NaN or plus infinity.
            EmptyRowError: no token is allowed, or none with any probability.
        """
        found: list[int] = self.status.tolist()
        broken = [request for request, status in enumerate(found) if status == NON_FINITE]
        if broken:
            raise NonFiniteLogitsError("draft paths", broken, names)
        empty = [request for request, status in enumerate(found) if status != CHOSEN]
        if empty:
            raise EmptyRowError("draft paths", empty, names)
