"""The token chosen in each row of a batch, and the status of the row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from structgen_kernels.errors import EmptyRowError, NonFiniteLogitsError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["CHOSEN", "EMPTY", "MASSLESS", "NON_FINITE", "Choice"]

CHOSEN: Final = 0
"""The status of a row in which a token was chosen."""

EMPTY: Final = 1
"""The status of a row in which no token is allowed."""

MASSLESS: Final = 2
"""The status of a row in which all allowed logits are minus infinity."""

NON_FINITE: Final = 3
"""The status of a row with NaN or plus infinity among the logits of the vocabulary, allowed or not."""


@final
@dataclass(frozen=True, slots=True)
class Choice:
    """One token per row.  If the status is not ``CHOSEN``, the token is -1, and ``log_p`` and ``log_z`` are -inf.

    Attributes:
        tokens: int32 ``[rows]``.
        log_p: float32 ``[rows]``, log-probability of the token under the model's distribution at temperature 1, without
            truncation, restricted to the allowed tokens and renormalised.
        log_z: float32 ``[rows]``, log of the probability that the model gives to all allowed tokens together.
        log_mass: float32 ``[rows]``, log-sum-exp of all logits of the vocabulary, allowed or not; -inf if there is NaN
            or plus infinity, or all are minus infinity.
        status: int32 ``[rows]``: ``CHOSEN``, ``EMPTY``, ``MASSLESS`` or ``NON_FINITE``.
        kernel: the name of the operation, for messages.
    """

    tokens: Tensor
    log_p: Tensor
    log_z: Tensor
    log_mass: Tensor
    status: Tensor
    kernel: str = "choice"

    def arguments(self) -> tuple[Tensor, ...]:
        """Return the output arguments of kernels."""
        return self.tokens, self.log_p, self.log_z, self.log_mass, self.status

    def check(self, names: Sequence[str] | None = None) -> None:
        """Raise if a row has no token.  Copies ``status`` to the host, which synchronizes.

        Args:
            names: names of the rows, for messages.

        Raises:
            NonFiniteLogitsError: rows have NaN or plus infinity among their logits.
            EmptyRowError: rows have no allowed token, or all their allowed tokens have probability 0.
        """
        found: list[int] = self.status.tolist()
        broken = [row for row, status in enumerate(found) if status == NON_FINITE]
        if broken:
            raise NonFiniteLogitsError(self.kernel, broken, names)
        empty = [row for row, status in enumerate(found) if status != CHOSEN]
        if empty:
            raise EmptyRowError(self.kernel, empty, names)
