"""What one forward pass says of a canvas: an independent law over tokens for each free slot.

The law of a slot is the softmax of its logits over the temperature.  Logits count as at least ``LOWEST`` below the
slot's largest, so that every token has a chance: half precision turns small probabilities into zeros, and a language
all of whose members contain one of these would have no mass at all, though the model never said so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.diffusion.host_logits import HostLogits, scaled
from structgen.errors import GenerationError
from structgen.models.diffusion.protocol import LOWEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.models.diffusion.protocol import SlotLogits

__all__ = ["FREE", "LOWEST", "MeanField"]

FREE: Final = -1
"""What a free slot holds on the decoding side, whatever id the model's MASK has."""

_STEEPEST: Final = 1e30
"""The scale of all smaller temperatures: it leaves nothing but the largest logit, and is a number in float32."""


@final
class MeanField:
    """The laws of the free slots of one canvas; immutable.

    Args:
        canvas: int32 ``[slots]``, token ids and ``FREE``.
        logits: one row for each free slot from left to right, wherever they lie; an array is float32 or float64
            ``[free slots, vocabulary.size]``.
        temperature: logits are divided by it.

    Raises:
        GenerationError: the logits are not one row a free slot, or a row has NaN, +infinity or nothing finite.
        ValueError: the temperature is not positive and finite.
    """

    __slots__ = ("_log_norms", "canvas", "free", "largest", "row_of", "scale", "slot_logits", "temperature")

    def __init__(
        self,
        canvas: NDArray[np.int32],
        logits: SlotLogits | NDArray[np.floating],
        *,
        temperature: float = 1.0,
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(
                f"temperature must be positive and finite; found {temperature!r}; use Dingo() for the most probable "
                "canvas"
            )
        self.canvas = np.ascontiguousarray(canvas, dtype=np.int32)
        self.free = np.flatnonzero(self.canvas == FREE)
        if len(logits.shape) != 2 or logits.shape[0] != len(self.free):
            raise GenerationError(
                "denoising",
                f"there must be one row of logits for each of {len(self.free)} free slots",
                evidence=f"found an array of shape {logits.shape}",
            )
        self.slot_logits: SlotLogits = HostLogits(logits) if isinstance(logits, np.ndarray) else logits
        self.largest = self.slot_logits.largest()
        wrong = np.flatnonzero(~np.isfinite(self.largest))
        if len(wrong):
            raise GenerationError(
                f"slot {self.free[wrong[0]]}",
                "its logits are no law over tokens",
                evidence=f"their maximum is {self.largest[wrong[0]]}",
                remedy="run the model in float32 or bfloat16: float16 overflows in some",
            )
        self.temperature = temperature
        self.scale = min(1.0 / temperature, _STEEPEST)
        self.row_of = np.full(len(self.canvas), -1, dtype=np.int64)
        self.row_of[self.free] = np.arange(len(self.free))
        self._log_norms: NDArray[np.float64] | None = None

    @property
    def logits(self) -> NDArray[np.floating]:
        """All logits, ``[free slots, vocabulary.size]``, not to be written to; they are copied from where they lie."""
        return self.slot_logits.host_all()

    @property
    def slots(self) -> int:
        """Slots of the canvas, free and fixed."""
        return len(self.canvas)

    def scaled(self, logits: NDArray[np.floating], largest: NDArray[np.floating] | np.floating) -> NDArray[np.float64]:
        """Logits of slots whose largest one is given, over the temperature, from ``LOWEST`` to 0."""
        return scaled(logits, largest, self.scale)

    def log_norms(self) -> NDArray[np.float64]:
        """Log of the sum over all tokens of ``exp(scaled logit - largest)``, float64 ``[free slots]``."""
        if self._log_norms is None:
            self._log_norms = self.slot_logits.log_norms(self.scale)
        return self._log_norms

    def set_log_norms(self, log_norms: NDArray[np.float64]) -> None:
        """Keep norms that another pass over the logits has found."""
        self._log_norms = log_norms

    def log_probs(self, slot: int) -> NDArray[np.float64]:
        """Log-probabilities of every token in a free slot, float64 ``[vocabulary.size]``."""
        row = int(self.row_of[slot])
        found = self.scaled(self.slot_logits.host(row), self.largest[row])
        found -= self.log_norms()[row]
        return found

    def log_prob_of(self, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Log-probability of ``tokens[slot]`` in every free slot, float64 ``[slots]``; 0 in fixed slots."""
        found = np.zeros(self.slots)
        logits = self.slot_logits.at(tokens[self.free])
        found[self.free] = self.scaled(logits, self.largest) - self.log_norms()
        return found
