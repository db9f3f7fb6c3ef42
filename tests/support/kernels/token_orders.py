"""The tokens of a batch in the order of sampling without replacement, copied from the device a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, final

from structgen_kernels.choices.gumbel_order import gumbel_order
from structgen_kernels.masks.mask_rows import MaskRows
from structgen_kernels.philox import Noise

if TYPE_CHECKING:
    from structgen_kernels.choices.token_order import Order
    from torch import Tensor

__all__ = ["TokenOrders"]


@final
class TokenOrders:
    """The orders of all rows; the first ``count`` tokens of each are computed in one step and copied together.

    ``OrderedWithoutReplacement`` reads the results of ``row``.  A row that needs more tokens gets the next ``count`` by
    itself.  Bytes: ``16 * count + 12`` per row, 1 KiB for 64 tokens; a row of 131,072 logits has 512 KiB.

    Args:
        logits: float32, float16 or bfloat16 ``[rows, columns]``; they must not change.
        noise: the noise of each row.
        masks: the mask of each row; None allows every column.
        temperature: float32 ``[rows]``; None means 1.
        count: the number of tokens to copy at a time.

    Attributes:
        log_z: for each row, log-sum-exp of the allowed logits divided by the temperature.
        log_top: for each row, the log-probability of the most probable token.

    Raises:
        KernelArgumentError: the arguments do not match.
        NonFiniteLogitsError: rows have NaN or plus infinity among their allowed logits.
    """

    def __init__(
        self,
        logits: Tensor,
        noise: Noise,
        *,
        masks: MaskRows | None = None,
        temperature: Tensor | None = None,
        count: int = 64,
    ) -> None:
        self._logits, self._noise, self._masks, self._temperature = logits, noise, masks, temperature
        self._count = count
        self._first = gumbel_order(logits, noise, masks=masks, temperature=temperature, count=count)
        self._first.check_finite()
        self.log_z: list[float] = self._first.log_z.tolist()
        self.log_top: list[float] = self._first.log_top.tolist()
        self._copied = _copied(self._first)

    def row(self, row: int) -> Iterator[tuple[int, float, float]]:
        """Yield the tokens of a row, each with its log-probability and the log of the remaining probability before it.

        All tokens of positive probability are yielded; none if no token is possible.
        """
        part = self._copied[row]
        order = self._first.row(row)
        while True:
            for entry in part:
                if entry[0] < 0:
                    return
                yield entry
            order = gumbel_order(
                self._logits[row : row + 1],
                Noise(self._noise.seeds[row : row + 1], self._noise.offsets[row : row + 1]),
                masks=None if self._masks is None else MaskRows(self._masks.table, self._masks.codes[row : row + 1]),
                temperature=None if self._temperature is None else self._temperature[row : row + 1],
                count=self._count,
                after=order,
            )
            part = _copied(order)[0]


def _copied(order: Order) -> list[list[tuple[int, float, float]]]:
    columns = zip(order.tokens.tolist(), order.log_p.tolist(), order.left_log_mass.tolist(), strict=True)
    return [list(zip(*each, strict=True)) for each in columns]
