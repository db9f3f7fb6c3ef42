"""Trees of draft tokens of a batch.

The nodes of all requests are concatenated; those of request ``r`` begin at ``first[r]``.  Within a request, nodes are
numbered from 0, parents before their children.  Node -1 is the root: the sequence itself.  In a chain, every node is
the child of the node before.

Tensors of the target model, such as logits, have one row per *position*.  Request ``r`` has a position for the root and
one for each node: row ``first[r] + r + 1 + node``, for ``node`` from -1 on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self, final

import torch

from structgen_kernels.arguments import check_tensor
from structgen_kernels.errors import KernelArgumentError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["DraftForest"]


@final
@dataclass(frozen=True, slots=True)
class DraftForest:
    """The trees of a batch.  The tensors may be longer than the nodes in use.

    Attributes:
        first: int32 ``[requests + 1]``, the first node of each request, and the end of all nodes.
        parents: int32 ``[nodes]``, the parent of each node, numbered within the request.
        tokens: int32 ``[nodes]``, token ids.

    Raises:
        KernelArgumentError: a tensor has another dtype or shape, or the devices differ.
    """

    first: Tensor
    parents: Tensor
    tokens: Tensor

    def __post_init__(self) -> None:
        check_tensor("draft forest", "first", self.first, dtype=torch.int32, dims=1)
        if not len(self.first):
            raise KernelArgumentError("draft forest", "first", "must have at least one entry")
        device = self.first.device
        check_tensor("draft forest", "parents", self.parents, dtype=torch.int32, dims=1, device=device)
        check_tensor("draft forest", "tokens", self.tokens, dtype=torch.int32, shape=self.parents.shape, device=device)

    @classmethod
    def of(cls, trees: Sequence[tuple[Sequence[int], Sequence[int]]], device: torch.device | str = "cpu") -> Self:
        """Make a forest from the parents and tokens of each tree."""
        first = [0]
        for parents, _ in trees:
            first.append(first[-1] + len(parents))
        columns = (first, [each for tree in trees for each in tree[0]], [each for tree in trees for each in tree[1]])
        return cls(*(torch.tensor(column, dtype=torch.int32, device=device) for column in columns))

    @property
    def requests(self) -> int:
        """The number of trees."""
        return len(self.first) - 1

    @property
    def positions(self) -> int:
        """The number of rows of the target model's tensors: see the module."""
        return self.requests + len(self.parents)

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.first.device
