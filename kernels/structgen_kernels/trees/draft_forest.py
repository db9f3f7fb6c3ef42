"""Trees of draft tokens of a batch.

The nodes of all requests stand one after the other, those of request ``r`` from ``first[r]`` on.  Within a request
they are numbered from 0, parents before their children; -1 is the sequence itself, which is the root.  A chain is a
tree in which every node follows the one before.

What the target says of a batch, such as logits, has a row for each *position*: of request ``r`` one for the root and
one after each of its nodes, ``first[r] + r + 1 + node`` for ``node`` from -1 on.
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
    """The trees of a batch; there may be room for more nodes than are used.

    Attributes:
        first: int32 ``[requests + 1]``, where the nodes of each request begin, and where all end.
        parents: int32 ``[nodes]``, numbers within the request.
        tokens: int32 ``[nodes]``, token ids.

    Raises:
        KernelArgumentError: a tensor has another type or shape, or they are on different devices.
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
        """The forest of trees that are given by their parents and tokens."""
        first = [0]
        for parents, _ in trees:
            first.append(first[-1] + len(parents))
        columns = (first, [each for tree in trees for each in tree[0]], [each for tree in trees for each in tree[1]])
        return cls(*(torch.tensor(column, dtype=torch.int32, device=device) for column in columns))

    @property
    def requests(self) -> int:
        """How many trees there are."""
        return len(self.first) - 1

    @property
    def positions(self) -> int:
        """Rows of what the target says: see the module."""
        return self.requests + len(self.parents)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.first.device
