"""Every buffer of a verification between its two passes, so that a captured step allocates nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import torch

from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from structgen_kernels.trees.draft_forest import DraftForest

__all__ = ["VerificationWorkspace"]

_BLOCK: Final = 1024


@final
class VerificationWorkspace:
    """Buffers for a forest of up to ``nodes`` nodes and ``requests`` requests over ``columns`` tokens.

    Bytes: ``20 * blocks`` a position, ``8 * blocks`` a request and 8 a node, where ``blocks = ceil(columns / 1024)``:
    2.5 KiB a position for 131,072 tokens.  No distribution is copied.

    Args:
        nodes: of all trees together.
        requests: how many trees.
        columns: tokens of the vocabulary.
        device: where.
        block: columns that are summed together, a power of two, at least 32.  It decides which random numbers are
            looked at, so the same noise gives other tokens with another block.

    Attributes:
        p_maxima: float32 ``[positions, blocks]``, the largest logit over the temperature.
        p_sums: float32 ``[positions, blocks]``, sums of exponentials relative to it.
        p_best: int32 ``[positions, blocks]``, the first token with the largest logit.
        q_maxima: float32 ``[positions, blocks]``, as ``p_maxima`` of the distribution of drafts.
        q_sums: float32 ``[positions, blocks]``.
        residual_sums: float32 ``[requests, 2, blocks]``, of the last residual and of the next.
        refused: int32 ``[nodes]``, children that were refused at the position that a request stands at.
        scales: float32 ``[nodes]``, what the distribution was multiplied by at each.
    """

    def __init__(
        self, nodes: int, requests: int, columns: int, device: torch.device | str, *, block: int = _BLOCK
    ) -> None:
        if block < 32 or block & (block - 1):
            raise KernelArgumentError("verify_tree", "block", f"must be a power of two from 32 on, not {block}")
        self.nodes = nodes
        self.requests = requests
        self.columns = columns
        self.block = block
        blocks, positions = -(-columns // block), nodes + requests
        self.blocks = blocks
        self.p_maxima, self.p_sums, self.q_maxima, self.q_sums = (
            torch.empty((positions, blocks), dtype=torch.float32, device=device) for _ in range(4)
        )
        self.p_best = torch.empty((positions, blocks), dtype=torch.int32, device=device)
        self.device = self.p_best.device  # with its index, which 'cuda' leaves out
        self.residual_sums = torch.empty((requests, 2, blocks), dtype=torch.float32, device=device)
        self.refused = torch.empty(nodes, dtype=torch.int32, device=device)
        self.scales = torch.empty(nodes, dtype=torch.float32, device=device)

    def check(self, kernel: str, forest: DraftForest, columns: int) -> None:
        """Raise where it is not for a forest over ``columns`` tokens.

        Raises:
            KernelArgumentError: it is too small, for another vocabulary, or on another device.
        """
        if (
            self.nodes < len(forest.parents)
            or self.requests < forest.requests
            or self.columns != columns
            or self.device != forest.device
        ):
            raise KernelArgumentError(
                kernel,
                "workspace",
                f"is for {self.nodes} nodes, {self.requests} requests and {self.columns} tokens on "
                f"{str(self.device)!r}, not for {len(forest.parents)}, {forest.requests} and {columns} on "
                f"{str(forest.device)!r}",
            )
