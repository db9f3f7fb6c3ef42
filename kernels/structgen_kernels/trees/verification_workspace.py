"""All buffers between the two passes of a verification, so that a captured step does not allocate."""

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
    """Buffers for up to ``nodes`` nodes and ``requests`` requests over a vocabulary of ``columns`` tokens.

    Bytes: ``20 * blocks`` per position, ``8 * blocks`` per request and 8 per node, with
    ``blocks = ceil(columns / 1024)``: 2.5 KiB per position for 131,072 tokens.  No distribution is copied.

    Args:
        nodes: the number of nodes of all trees.
        requests: the number of trees.
        columns: the number of tokens of the vocabulary.
        device: the device of the buffers.
        block: columns per block, a power of two, at least 32.  Random numbers are indexed by block, so the same noise
            gives other tokens with another block size.

    Attributes:
        p_maxima: float32 ``[positions, blocks]``, the largest logit divided by the temperature.
        p_sums: float32 ``[positions, blocks]``, the sum of exponentials relative to ``p_maxima``.
        p_best: int32 ``[positions, blocks]``, the first token with the largest logit.
        q_maxima: float32 ``[positions, blocks]``, as ``p_maxima``, for the draft distribution.
        q_sums: float32 ``[positions, blocks]``, as ``p_sums``, for the draft distribution.
        residual_sums: float32 ``[requests, 2, blocks]``, sums of the current residual and of the next.
        refused: int32 ``[nodes]``, the rejected children of the current position.
        scales: float32 ``[nodes]``, the factor of the distribution at each rejection.
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
        self.device = self.p_best.device  # with its index, which 'cuda' lacks
        self.residual_sums = torch.empty((requests, 2, blocks), dtype=torch.float32, device=device)
        self.refused = torch.empty(nodes, dtype=torch.int32, device=device)
        self.scales = torch.empty(nodes, dtype=torch.float32, device=device)

    def check(self, kernel: str, forest: DraftForest, columns: int) -> None:
        """Check that the workspace fits a forest over a vocabulary of ``columns`` tokens.

        Raises:
            KernelArgumentError: the workspace is too small, for another vocabulary, or on another device.
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
