"""Tokens of a batch in the order in which they were drawn without replacement.

With what was left of the distribution.
"""

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
"""Columns with a known first remaining token and mass."""


@final
@dataclass(frozen=True, slots=True)
class Order:
    """A part of the order of each row: its tokens from some place on.

    Where fewer tokens are left than there are places, the rest of a row holds the token -1 and minus infinities.  So
    does all of a row whose status is not ``CHOSEN``.

    Attributes:
        tokens: int32 ``[rows, count]``, each drawn from what those before it, in this part and in earlier ones, left.
        keys: float32 ``[rows, count]``, descending; of equal keys the lower token comes first.
        log_p: float32 ``[rows, count]``, log-probability of each token in the distribution of the whole row.
        left_log_mass: float32 ``[rows, count]``, log of the probability of all that was left when the token was drawn,
            itself included: 0 for the first of all.
        log_z: float32 ``[rows]``, log-sum-exp of the allowed logits over the temperature.
        log_top: float32 ``[rows]``, log-probability of the likeliest token.
        status: int32 ``[rows]``: see ``structgen_kernels.choices.choice``; NON_FINITE is found among allowed logits
            only.
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
        """Memory for an order: ``16 * count + 12`` bytes a row."""
        keys, log_p, left = (torch.empty((rows, count), dtype=torch.float32, device=device) for _ in range(3))
        tokens = torch.empty((rows, count), dtype=torch.int32, device=device)
        log_z, log_top = (torch.empty(rows, dtype=torch.float32, device=device) for _ in range(2))
        status = torch.empty(rows, dtype=torch.int32, device=device)
        return cls(tokens, keys, log_p, left, log_z, log_top, status)

    def row(self, row: int) -> Order:
        """One row of it, not a copy."""
        fields = (self.tokens, self.keys, self.log_p, self.left_log_mass, self.log_z, self.log_top, self.status)
        return Order(*(field[row : row + 1] for field in fields))

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise where a row has no order; waits for the device and copies ``status``.

        Args:
            names: what the rows are called, for messages.

        Raises:
            NonFiniteLogitsError: see ``check_finite``.
            EmptyRowError: rows have no allowed token, or none with any probability.
        """
        self.check_finite(names)
        empty = [row for row, status in enumerate(self.status.tolist()) if status != CHOSEN]
        if empty:
            raise EmptyRowError("gumbel_order", empty, names)

    def check_finite(self, names: Sequence[str] | None = None) -> None:
        """Raise where a row is no distribution; as ``check``, which rows where nothing is possible pass.

        Raises:
            NonFiniteLogitsError: rows have NaN or plus infinity among their allowed logits, or no valid temperature.
        """
        broken = [row for row, status in enumerate(self.status.tolist()) if status == NON_FINITE]
        if broken:
            raise NonFiniteLogitsError("gumbel_order", broken, names)


@final
class OrderWorkspace:
    """Buffers between the two passes, for up to ``rows`` rows of up to ``columns`` tokens.

    Bytes: ``16 * ceil(columns / 128)`` a row, 16 KiB for 131,072 tokens.

    Args:
        rows: rows of logits.
        columns: tokens of the vocabulary.
        device: where.

    Attributes:
        firsts: int64 ``[rows, chunks]``, the key and token of each chunk that come next, packed so that the largest
            comes first.
        masses: float32 ``[rows, chunks]``, log-sum-exp of what is left of each chunk.
        maxima: float32 ``[rows, chunks]``, the largest logit of each chunk over the temperature.
    """

    def __init__(self, rows: int, columns: int, device: torch.device | str) -> None:
        self.rows = rows
        self.columns = columns
        chunks = -(-columns // ORDER_CHUNK)
        self.firsts = torch.empty((rows, chunks), dtype=torch.int64, device=device)
        self.device = self.firsts.device  # with its index, which 'cuda' leaves out
        self.masses = torch.empty((rows, chunks), dtype=torch.float32, device=device)
        self.maxima = torch.empty((rows, chunks), dtype=torch.float32, device=device)
