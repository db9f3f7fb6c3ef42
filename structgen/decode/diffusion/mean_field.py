"""What one forward pass says of a canvas: an independent law over tokens for each free slot.

The law of a slot is the softmax of its logits over the temperature.  Logits count as at least ``LOWEST`` below the
slot's largest, so that every token has a chance: half precision turns small probabilities into zeros, and a language
all of whose members contain one of these would have no mass at all, though the model never said so.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.errors import GenerationError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["FREE", "LOWEST", "MeanField"]

FREE: Final = -1
"""What a free slot holds on the decoding side, whatever id the model's MASK has."""

LOWEST: Final = -80.0
"""Nats below the largest logit of a slot (after temperature) that a logit counts as at least."""

_STEEPEST: Final = 1e30
"""The scale of all smaller temperatures: it leaves nothing but the largest logit, and is a number in float32."""

_SMALL: Final = 1 << 16
"""Logits in all, below which numpy is as fast as a native pass."""


@final
class MeanField:
    """The laws of the free slots of one canvas; immutable.

    Args:
        canvas: int32 ``[slots]``, token ids and ``FREE``.
        logits: float32 or float64 ``[free slots, vocabulary.size]``, one row for each free slot from left to right.
        temperature: logits are divided by it.

    Raises:
        GenerationError: the logits are not one row a free slot, or a row has NaN, +infinity or nothing finite.
        ValueError: the temperature is not positive and finite.
    """

    __slots__ = ("_log_norms", "canvas", "free", "largest", "logits", "row_of", "scale", "temperature")

    def __init__(
        self, canvas: NDArray[np.int32], logits: NDArray[np.float32] | NDArray[np.float64], *, temperature: float = 1.0
    ) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(
                f"temperature must be positive and finite; found {temperature!r}; use Dingo() for the most probable "
                "canvas"
            )
        self.canvas = np.ascontiguousarray(canvas, dtype=np.int32)
        self.free = np.flatnonzero(self.canvas == FREE)
        if logits.ndim != 2 or len(logits) != len(self.free):
            raise GenerationError(
                "denoising",
                f"there must be one row of logits for each of {len(self.free)} free slots",
                evidence=f"found an array of shape {logits.shape}",
            )
        self.logits = np.ascontiguousarray(logits)
        self.largest = self._largest()
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
    def slots(self) -> int:
        """Slots of the canvas, free and fixed."""
        return len(self.canvas)

    @property
    def is_native(self) -> bool:
        """Whether passes over all logits are native ones, which read float32."""
        return self.logits.dtype == np.float32 and self.logits.size >= _SMALL

    def scaled(self, logits: NDArray[np.floating], largest: NDArray[np.floating] | np.floating) -> NDArray[np.float64]:
        """Logits of slots whose largest one is given, over the temperature, from ``LOWEST`` to 0."""
        return np.maximum((logits.astype(np.float64) - largest) * self.scale, LOWEST)

    def log_norms(self) -> NDArray[np.float64]:
        """Log of the sum over all tokens of ``exp(scaled logit - largest)``, float64 ``[free slots]``."""
        if self._log_norms is None:
            if self.is_native:
                one_class = _native.ClassLayout(np.zeros(self.logits.shape[1], dtype=np.int32), 1)
                sums = one_class.sums(self.logits.view(np.float32), self.scale, self.largest.view(np.float32))[0][:, 0]
            else:
                rows = range(len(self.free))  # row by row: no second copy of all logits
                sums = np.array([np.exp(self.scaled(self.logits[row], self.largest[row])).sum() for row in rows])
            self._log_norms = np.log(sums)
        return self._log_norms

    def set_log_norms(self, log_norms: NDArray[np.float64]) -> None:
        """Keep norms that another pass over the logits has found."""
        self._log_norms = log_norms

    def log_probs(self, slot: int) -> NDArray[np.float64]:
        """Log-probabilities of every token in a free slot, float64 ``[vocabulary.size]``."""
        row = int(self.row_of[slot])
        scaled = self.scaled(self.logits[row], self.largest[row])
        scaled -= self.log_norms()[row]
        return scaled

    def log_prob_of(self, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Log-probability of ``tokens[slot]`` in every free slot, float64 ``[slots]``; 0 in fixed slots."""
        found = np.zeros(self.slots)
        logits = self.logits[np.arange(len(self.free)), tokens[self.free]]
        found[self.free] = self.scaled(logits, self.largest) - self.log_norms()
        return found

    def _largest(self) -> NDArray[np.float32] | NDArray[np.float64]:
        if self.is_native:
            return _native.row_maxima(self.logits.view(np.float32))
        if not self.logits.size:
            return np.full(len(self.free), -np.inf, dtype=self.logits.dtype)
        return np.asarray(self.logits.max(axis=1))
