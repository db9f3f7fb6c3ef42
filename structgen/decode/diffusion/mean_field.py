"""Mean-field distribution of a canvas: one forward pass's distribution of each free slot, independent of the others.

``HostLogits`` holds the logits of those slots as an array, with their sums, maxima and sums by token class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, final

import numpy as np
from structgen_kernels import _native

from structgen.errors import GenerationError
from structgen.models.protocol.diffusion import LOWEST, TokenClasses

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from structgen.models.protocol.diffusion import ClassLogits, SlotLogits

__all__ = ["FREE", "LOWEST", "HostLogits", "MeanField", "scaled"]

FREE: Final = -1
"""What a free slot of a canvas holds, whatever id the model's MASK has."""

_STEEPEST: Final = 1e30
"""The largest scale, for all smaller temperatures: only the largest logit remains, and the scale fits float32."""


@final
class MeanField:
    """The independent distributions of the free slots of one canvas; immutable.

    Args:
        canvas: int32 ``[slots]``, token ids and ``FREE``.
        logits: one logits row for each free slot from left to right, on any device; an array is float32 or float64
            ``[free slots, vocabulary.size]``.
        temperature: logits are divided by it.

    Raises:
        GenerationError: there is not one logits row for each free slot, or a row has NaN, +infinity or nothing finite.
        ValueError: the temperature is not positive and finite.
    """

    __slots__ = ("_log_norms", "canvas", "free", "largest", "row_of", "scale", "slot_logits", "temperature")

    def __init__(
        self, canvas: NDArray[np.int32], logits: SlotLogits | NDArray[np.floating], *, temperature: float = 1.0
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
                f"there must be one logits row for each of {len(self.free)} free slots",
                evidence=f"found an array of shape {logits.shape}",
            )
        self.slot_logits: SlotLogits = HostLogits(logits) if isinstance(logits, np.ndarray) else logits
        self.largest = self.slot_logits.largest()
        wrong = np.flatnonzero(~np.isfinite(self.largest))
        if len(wrong):
            raise GenerationError(
                f"slot {self.free[wrong[0]]}",
                "its logits are no distribution over tokens",
                evidence=f"their maximum is {self.largest[wrong[0]]}",
                remedy="run the model in float32 or bfloat16: float16 overflows in some models",
            )
        self.temperature = temperature
        self.scale = min(1.0 / temperature, _STEEPEST)
        self.row_of = np.full(len(self.canvas), -1, dtype=np.int64)
        self.row_of[self.free] = np.arange(len(self.free))
        self._log_norms: NDArray[np.float64] | None = None

    @property
    def logits(self) -> NDArray[np.floating]:
        """All logits, ``[free slots, vocabulary.size]``, read-only; copied from their device."""
        return self.slot_logits.host_all()

    @property
    def slots(self) -> int:
        """Slots of the canvas, free and fixed."""
        return len(self.canvas)

    def scaled(self, logits: NDArray[np.floating], largest: NDArray[np.floating] | np.floating) -> NDArray[np.float64]:
        """Logits of slots with the given maxima, divided by the temperature, from ``LOWEST`` to 0."""
        return scaled(logits, largest, self.scale)

    def log_norms(self) -> NDArray[np.float64]:
        """Log of the sum over all tokens of ``exp(scaled logit - largest)``, float64 ``[free slots]``."""
        if self._log_norms is None:
            self._log_norms = self.slot_logits.log_norms(self.scale)
        return self._log_norms

    def set_log_norms(self, log_norms: NDArray[np.float64]) -> None:
        """Store norms that another pass over the logits computed."""
        self._log_norms = log_norms

    def log_probs(self, slot: int) -> NDArray[np.float64]:
        """Log-probabilities of every token in a free slot, float64 ``[vocabulary.size]``."""
        row = int(self.row_of[slot])
        log_probs = self.scaled(self.slot_logits.host(row), self.largest[row])
        log_probs -= self.log_norms()[row]
        return log_probs

    def log_prob_of(self, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
        """Log-probability of ``tokens[slot]`` in every free slot, float64 ``[slots]``; 0 in fixed slots."""
        log_probs = np.zeros(self.slots)
        logits = self.slot_logits.at(tokens[self.free])
        log_probs[self.free] = self.scaled(logits, self.largest) - self.log_norms()
        return log_probs


_SMALL: Final = 1 << 16
"""Number of logits below which numpy is as fast as a native pass."""


def scaled(
    logits: NDArray[np.floating], largest: NDArray[np.floating] | np.floating, scale: float
) -> NDArray[np.float64]:
    """Logits of slots with the given maxima, times the scale, from ``LOWEST`` to 0."""
    return np.maximum((logits.astype(np.float64) - largest) * scale, LOWEST)


@final
class HostLogits:
    """See ``SlotLogits``.

    Args:
        values: float32 or float64 ``[rows, size]``.

    Attributes:
        is_native: whether passes over all logits are native, which needs float32.
    """

    __slots__ = ("_largest", "is_native", "values")

    def __init__(self, values: NDArray[np.floating]) -> None:
        self.values: NDArray[np.floating] = np.ascontiguousarray(values)
        self.is_native = self.values.dtype == np.float32 and self.values.size >= _SMALL
        self._largest: NDArray[np.floating] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """See ``SlotLogits.shape``."""
        return self.values.shape

    def largest(self) -> NDArray[np.floating]:
        """See ``SlotLogits.largest``."""
        if self._largest is None:
            if self.is_native:
                self._largest = _native.row_maxima(self.values.view(np.float32))
            elif self.values.size:
                self._largest = np.asarray(self.values.max(axis=1))
            else:
                self._largest = np.full(len(self.values), -np.inf, dtype=self.values.dtype)
        return self._largest

    def at(self, tokens: NDArray[np.int32], /) -> NDArray[np.floating]:
        """See ``SlotLogits.at``."""
        logits: NDArray[np.floating] = self.values[np.arange(len(tokens)), tokens]
        return logits

    def log_norms(self, scale: float, /) -> NDArray[np.float64]:
        """See ``SlotLogits.log_norms``."""
        one_class = TokenClasses(np.zeros(self.shape[1], dtype=np.int32), 1)
        return self.by_class(one_class, scale).log_norms()

    def by_class(self, classes: TokenClasses, scale: float, /) -> ClassLogits:
        """See ``SlotLogits.by_class``."""
        if self.is_native:
            return _NativeClasses(self.values.view(np.float32), self.largest().view(np.float32), classes, scale)
        return _ReferenceClasses(self.values, self.largest(), classes, scale)

    def leading(
        self, classes: TokenClasses, log_factors: NDArray[np.float64], scale: float, count: int, /
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """See ``SlotLogits.leading``."""
        tokens = np.empty((len(self.values), count), dtype=np.int32)
        leading = np.empty((len(self.values), count))
        for row, logits in enumerate(self.values):
            values = scaled(logits, self.largest()[row], scale) + log_factors[row][classes.of]
            for rank in range(count):
                tokens[row, rank] = values.argmax()
                leading[row, rank] = values[tokens[row, rank]]
                values[tokens[row, rank]] = -np.inf
        return tokens, leading

    def take(self, rows: NDArray[np.intp], /) -> HostLogits:
        """See ``SlotLogits.take``."""
        return HostLogits(self.values[rows])

    def raised(self, rows: NDArray[np.intp], tokens: NDArray[np.int32], by: NDArray[np.float32], /) -> HostLogits:
        """See ``SlotLogits.raised``."""
        values = self.values.copy()
        values[rows, tokens] += by
        return HostLogits(values)

    def host(self, row: int, /) -> NDArray[np.floating]:
        """See ``SlotLogits.host``."""
        logits: NDArray[np.floating] = self.values[row]
        return logits

    def host_all(self) -> NDArray[np.floating]:
        """See ``SlotLogits.host_all``."""
        return self.values


class _HostClasses(ABC):
    """See ``ClassLogits``: everything that follows from the sums."""

    def __init__(self) -> None:
        self._log_norms: NDArray[np.float64] | None = None

    @abstractmethod
    def _sums(self) -> NDArray[np.float64]:
        """Sums of ``exp(x)`` by class, float64 ``[rows, classes]``."""

    @abstractmethod
    def _moments(self) -> NDArray[np.float64]:
        """Sums of ``x exp(x)`` by class, float64 ``[rows, classes]``."""

    def log_norms(self) -> NDArray[np.float64]:
        if self._log_norms is None:
            self._log_norms = np.log(self._sums().sum(axis=1))
        return self._log_norms

    def log_sums(self) -> NDArray[np.float64]:
        with np.errstate(divide="ignore"):
            logs: NDArray[np.float64] = np.log(self._sums())
        return logs - self.log_norms()[:, None]

    def mean_logs(self) -> NDArray[np.float64]:
        norms = self.log_norms()[:, None]
        means: NDArray[np.float64] = (self._moments() - self._sums() * norms) / np.exp(norms)
        return means


@final
class _NativeClasses(_HostClasses):
    def __init__(
        self, values: NDArray[np.float32], largest: NDArray[np.float32], classes: TokenClasses, scale: float
    ) -> None:
        super().__init__()
        self._values, self._largest, self._scale = values, largest, scale
        self._layout = classes.layout("native", _native.ClassLayout)
        self._maxima: NDArray[np.float32] | None = None
        self._cached: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None  # sums of classes and of chunks

    def maxima(self) -> NDArray[np.floating]:
        if self._maxima is None and self._cached is None:  # the sums are needed next; the same pass computes them
            sums, by_chunk, _, self._maxima = self._pass(with_maxima=True)
            self._cached = sums, by_chunk
        if self._maxima is None:
            self._maxima = self._layout.maxima(self._values)
        return self._maxima

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32], /) -> NDArray[np.int32]:
        maxima = np.asarray(self.maxima()[rows, classes], dtype=np.float32)
        return self._layout.find(self._values, rows, classes, maxima)

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64], /
    ) -> NDArray[np.int32]:
        return self._layout.draw(self._values, self._scale, self._largest, *self._by_chunk(), rows, classes, uniform)

    def _sums(self) -> NDArray[np.float64]:
        return self._by_chunk()[0]

    def _moments(self) -> NDArray[np.float64]:
        moments = self._pass(with_moments=True)[2]
        if moments is None:
            raise RuntimeError("moments were requested")
        return moments

    def _by_chunk(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if self._cached is None:
            sums, by_chunk, _, _ = self._pass()
            self._cached = sums, by_chunk
        return self._cached

    def _pass(
        self, *, with_moments: bool = False, with_maxima: bool = False
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64] | None, NDArray[np.float32] | None]:
        return self._layout.sums(
            self._values, self._scale, self._largest, with_moments=with_moments, with_maxima=with_maxima
        )


@final
class _ReferenceClasses(_HostClasses):
    def __init__(
        self, values: NDArray[np.floating], largest: NDArray[np.floating], classes: TokenClasses, scale: float
    ) -> None:
        super().__init__()
        self._values, self._largest, self._classes, self._scale = values, largest, classes, scale
        self._maxima: NDArray[np.floating] | None = None
        self._cached_sums: NDArray[np.float64] | None = None

    def maxima(self) -> NDArray[np.floating]:
        if self._maxima is None:
            values, sizes = self._values, self._classes.sizes
            order = np.argsort(self._classes.of, kind="stable")
            present = np.flatnonzero(sizes)
            starts = (np.cumsum(sizes) - sizes)[present]
            self._maxima = np.full((len(values), self._classes.count), -np.inf, dtype=values.dtype)
            self._maxima[:, present] = np.maximum.reduceat(values[:, order], starts, axis=1)
        return self._maxima

    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32], /) -> NDArray[np.int32]:
        maxima = self.maxima()
        tokens = np.empty(len(rows), dtype=np.int32)
        for index, (row, of) in enumerate(zip(rows.tolist(), classes.tolist(), strict=True)):
            tokens[index] = np.flatnonzero((self._classes.of == of) & (self._values[row] == maxima[row, of]))[0]
        return tokens

    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64], /
    ) -> NDArray[np.int32]:
        sampled = np.empty(len(rows), dtype=np.int32)
        for index, (row, of) in enumerate(zip(rows.tolist(), classes.tolist(), strict=True)):
            tokens = np.flatnonzero(self._classes.of == of)
            exponents = scaled(self._values[row, tokens], self._largest[row], self._scale)
            running = np.cumsum(np.exp(exponents))
            at = int(np.searchsorted(running, uniform[index] * running[-1], side="right"))
            sampled[index] = tokens[min(at, len(tokens) - 1)]
        return sampled

    def _sums(self) -> NDArray[np.float64]:
        if self._cached_sums is None:
            self._cached_sums = self._by_class(np.exp)
        return self._cached_sums

    def _moments(self) -> NDArray[np.float64]:
        return self._by_class(lambda exponents: np.exp(exponents) * exponents)

    def _by_class(self, of_scaled: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Sums over the tokens of each class of a function of their scaled logits."""
        sums = np.empty((len(self._values), self._classes.count))
        for row, values in enumerate(self._values):
            exponents = scaled(values, self._largest[row], self._scale)
            sums[row] = np.bincount(self._classes.of, of_scaled(exponents), self._classes.count)
        return sums
