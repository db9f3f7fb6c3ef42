"""The result of sampling without replacement: tokens in order, with the mass that remained at each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

import torch

from structgen_kernels.choices.choice import CHOSEN, NON_FINITE
from structgen_kernels.errors import EmptyRowError, NonFiniteLogitsError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["ORDER_CHUNK", "Order", "OrderWorkspace"]

ORDER_CHUNK: Final = 128
"""Columns per chunk; each chunk has a first remaining token and a remaining mass."""


@final
@dataclass(frozen=True, slots=True)
class Order:
    """A contiguous part of the order of each row.

    If fewer than ``count`` tokens remain, the row is padded with the token -1 and minus infinities.  A row whose status
    is not ``CHOSEN`` is all padding.

    Attributes:
        tokens: int32 ``[rows, count]``, each sampled after the removal of all tokens before it, earlier parts included.
        keys: float32 ``[rows, count]``, descending; for equal keys the lower token id comes first.
        log_p: float32 ``[rows, count]``, log-probability of each token in the distribution of the whole row.
        left_log_mass: float32 ``[rows, count]``, log of the probability of the tokens that remained when the token was
            sampled, itself included: 0 for the first token.
        log_z: float32 ``[rows]``, log-sum-exp of the allowed logits divided by the temperature.
        log_top: float32 ``[rows]``, log-probability of the most probable token.
        status: int32 ``[rows]``: see ``structgen_kernels.choices.choice``; only allowed logits count for NON_FINITE.
    """

    tokens: Tensor
    keys: Tensor
    log_p: Tensor
    left_log_mass: Tensor
    log_z: Tensor
    log_top: Tensor
    status: Tensor

    @classmethod
    def buffers(cls, rows: int, count: int, device: torch.device | str) -> Self:
        """Allocate buffers for an order: ``16 * count + 12`` bytes per row."""
        keys, log_p, left = (torch.empty((rows, count), dtype=torch.float32, device=device) for _ in range(3))
        tokens = torch.empty((rows, count), dtype=torch.int32, device=device)
        log_z, log_top = (torch.empty(rows, dtype=torch.float32, device=device) for _ in range(2))
        status = torch.empty(rows, dtype=torch.int32, device=device)
        return cls(tokens, keys, log_p, left, log_z, log_top, status)

    def row(self, row: int) -> Order:
        """Return a view of one row."""
        fields = (self.tokens, self.keys, self.log_p, self.left_log_mass, self.log_z, self.log_top, self.status)
        return Order(*(field[row : row + 1] for field in fields))

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise if a row has no order.  Copies ``status`` to the host, which synchronizes.

        Args:
            names: names of the rows, for messages.

        Raises:
            NonFiniteLogitsError: see ``check_finite``.
            EmptyRowError: rows have no allowed token, or all their allowed tokens have probability 0.
        """
        self.check_finite(names)
        empty = [row for row, status in enumerate(self.status.tolist()) if status != CHOSEN]
        if empty:
            raise EmptyRowError("gumbel_order", empty, names)

    def check_finite(self, names: Sequence[str] | None = None) -> None:
        """Raise if a row does not define a distribution.  Unlike ``check``, this accepts rows without a possible token.

        Raises:
            NonFiniteLogitsError: rows have NaN or plus infinity among their allowed logits, or an invalid temperature.
        """
        broken = [row for row, status in enumerate(self.status.tolist()) if status == NON_FINITE]
        if broken:
            raise NonFiniteLogitsError("gumbel_order", broken, names)


@final
class OrderWorkspace:
    """Buffers between the two passes, for up to ``rows`` rows of ``columns`` tokens.

    Bytes: ``16 * ceil(columns / 128)`` per row, 16 KiB for 131,072 tokens.

    Args:
        rows: the number of rows of logits.
        columns: the number of tokens of the vocabulary.
        device: the device of the buffers.

    Attributes:
        firsts: int64 ``[rows, chunks]``, the first remaining token of each chunk and its key, packed so that the
            largest number comes first in the order.
        masses: float32 ``[rows, chunks]``, log-sum-exp of the remaining logits of each chunk.
        maxima: float32 ``[rows, chunks]``, the largest logit of each chunk divided by the temperature.
    """

    def __init__(self, rows: int, columns: int, device: torch.device | str) -> None:
        self.rows = rows
        self.columns = columns
        chunks = -(-columns // ORDER_CHUNK)
        self.firsts = torch.empty((rows, chunks), dtype=torch.int64, device=device)
        self.device = self.firsts.device  # with its index, which 'cuda' lacks
        self.masses = torch.empty((rows, chunks), dtype=torch.float32, device=device)
        self.maxima = torch.empty((rows, chunks), dtype=torch.float32, device=device)
