"""Logits of canvases that stay on the model's device and are queried there: ``SlotLogits`` in torch.

``LiveLogits`` are the logits of a canvas whose forward passes run only some slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy as np
import torch
from structgen_kernels.canvases.class_choice import class_best, class_draw
from structgen_kernels.canvases.class_layout import ClassLayout
from structgen_kernels.canvases.class_scores import class_scores

from structgen.models.protocol.diffusion import LOWEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from structgen_kernels.canvases.class_scores import ClassScores

    from structgen.models.protocol import Logits
    from structgen.models.protocol.diffusion import ClassLogits, TokenClasses

__all__ = ["CanvasResidence", "LiveLogits", "TorchSlotLogits", "picked", "slot_logits"]

_FLATTEST: Final = 1e-30
"""The minimum scale: it makes all logits equal, and is a normal number in float32."""

_CELLS: Final = 1 << 24
"""Number of logits to convert to float32 at a time."""


@final
class CanvasResidence:
    """Transfers between host and device for the logits of one model's canvases, with counts.

    Attributes:
        sent_bytes: bytes sent to the device.
        copied_bytes: bytes copied to the host; each copy waits for the device.
        copied_rows: whole logits rows among the copies.
        waits: number of waits of the host.
    """

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.copied_bytes = 0
        self.copied_rows = 0
        self.waits = 0

    def sent(self, array: NDArray[Any], device: torch.device) -> torch.Tensor:
        """Return an array on a device, without waiting for the device."""
        self.sent_bytes += array.nbytes
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    def copied(self, tensor: torch.Tensor) -> NDArray[Any]:
        """Return a tensor on the host."""
        self.waits += 1
        array: NDArray[Any] = tensor.cpu().numpy()
        self.copied_bytes += array.nbytes
        return array

    def copied_logits(self, rows: torch.Tensor) -> NDArray[np.float32]:
        """Return whole logits rows on the host, float32."""
        self.copied_rows += len(rows)
        return self.copied(rows.float())


@torch.inference_mode()
def picked(residence: CanvasResidence, logits: torch.Tensor, queried: NDArray[np.bool_]) -> torch.Tensor:
    """Return a copy of the queried rows, ``[rows, columns]``.

    Args:
        residence: makes the transfers.
        logits: ``[canvases, slots, columns]``.
        queried: bool ``[canvases, slots]``, the queried slots.
    """
    canvases, slots = residence.sent(np.stack(np.nonzero(queried)), logits.device).unbind()
    return logits[canvases, slots]


@torch.inference_mode()
def slot_logits(residence: CanvasResidence, rows: torch.Tensor, queried: NDArray[np.bool_]) -> list[TorchSlotLogits]:
    """Return the logits of some slots of each canvas of a pass.

    Args:
        residence: makes the transfers.
        rows: ``[rows, size]``, of any floating type, canvas by canvas; nobody else writes to them.
        queried: bool ``[canvases, slots]``, the slots of the rows.
    """
    largest = _largest(residence, rows)
    stops = np.cumsum(queried.sum(axis=1)).tolist()
    return [
        TorchSlotLogits(residence, rows[start:stop], largest[start:stop])
        for start, stop in zip([0, *stops], stops, strict=False)
    ]


@final
class TorchSlotLogits:
    """See ``SlotLogits``.

    Args:
        residence: makes the transfers.
        logits: ``[rows, size]``, of any floating type; nobody else writes to them.
        largest: float32 ``[rows]``, the largest logit of each row; NaN for a row with a NaN.
    """

    def __init__(self, residence: CanvasResidence, logits: torch.Tensor, largest: NDArray[np.float32]) -> None:
        self._residence = residence
        self._logits = logits
        self._largest = largest
        self._results: dict[bytes, NDArray[np.float32]] = {}
        self._hosted: dict[int, NDArray[np.float32]] = {}
        self._hosted_all: NDArray[np.float32] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """See ``SlotLogits.shape``."""
        return tuple(self._logits.shape)

    def largest(self) -> NDArray[np.floating]:
        """See ``SlotLogits.largest``."""
        return self._largest

    @torch.inference_mode()
    def log_norms(self, scale: float, /) -> NDArray[np.float64]:
        """See ``SlotLogits.log_norms``."""
        sums = [each.exp().sum(1) for _, each in self._exponents(scale)]
        return self._residence.copied(torch.cat(sums).log()).astype(np.float64) if sums else np.zeros(0)

    def at(self, tokens: NDArray[np.int32], /) -> NDArray[np.floating]:
        """See ``SlotLogits.at``; results are cached, because a completion is queried more than once."""
        key = tokens.tobytes()
        if key not in self._results:
            self._results[key] = self._at(tokens)
        return self._results[key]

    def by_class(self, classes: TokenClasses, scale: float, /) -> ClassLogits:
        """See ``SlotLogits.by_class``."""
        return _TorchClasses(self._residence, self._logits, classes, max(scale, _FLATTEST))

    @torch.inference_mode()
    def leading(
        self, classes: TokenClasses, log_factors: NDArray[np.float64], scale: float, count: int, /
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """See ``SlotLogits.leading``."""
        if not len(self._logits):
            return np.zeros((0, count), dtype=np.int32), np.zeros((0, count))
        of = layout_on(classes, self._logits.device).class_of.long()
        factors = self._residence.sent(log_factors.astype(np.float32), self._logits.device)
        parts = []
        for rows, exponents in self._exponents(scale):
            values = exponents.add_(factors[rows].index_select(1, of))
            leaders = []
            for _ in range(count):
                token = values.argmax(1, keepdim=True)  # the first of equal values, which topk does not guarantee
                leaders.append(torch.cat([token.double(), values.gather(1, token).double()], 1))
                values.scatter_(1, token, -torch.inf)
            parts.append(torch.stack(leaders, 1))
        results = self._residence.copied(torch.cat(parts))
        return results[..., 0].astype(np.int32), results[..., 1].copy()

    @torch.inference_mode()
    def take(self, rows: NDArray[np.intp], /) -> TorchSlotLogits:
        """See ``SlotLogits.take``."""
        indices = self._residence.sent(np.asarray(rows, dtype=np.int64), self._logits.device)
        return TorchSlotLogits(self._residence, self._logits[indices], self._largest[rows])

    @torch.inference_mode()
    def raised(self, rows: NDArray[np.intp], tokens: NDArray[np.int32], by: NDArray[np.float32], /) -> TorchSlotLogits:
        """See ``SlotLogits.raised``; the copy is float32."""
        device = self._logits.device
        indices = self._residence.sent(np.stack([rows, tokens]).astype(np.int64), device)
        raised = self._logits.to(torch.float32, copy=True)
        raised[indices[0], indices[1]] += self._residence.sent(by.astype(np.float32), device)
        return TorchSlotLogits(self._residence, raised, _largest(self._residence, raised))

    def host(self, row: int, /) -> NDArray[np.floating]:
        """See ``SlotLogits.host``."""
        if row not in self._hosted:
            self._hosted[row] = self._residence.copied_logits(self._logits[row : row + 1])[0]
        return self._hosted[row]

    def host_all(self) -> NDArray[np.floating]:
        """See ``SlotLogits.host_all``."""
        if self._hosted_all is None:
            self._hosted_all = self._residence.copied_logits(self._logits)
            self._hosted = dict(enumerate(self._hosted_all))
        return self._hosted_all

    @torch.inference_mode()
    def _at(self, tokens: NDArray[np.int32]) -> NDArray[np.float32]:
        if not len(tokens):
            return np.zeros(0, dtype=np.float32)
        # on a GPU an invalid index breaks all later operations
        if not 0 <= tokens.min() <= tokens.max() < self.shape[1]:
            raise IndexError(f"tokens are 0 to {self.shape[1] - 1}; found {tokens.min()} to {tokens.max()}")
        indices = self._residence.sent(tokens.astype(np.int64), self._logits.device)
        return self._residence.copied(self._logits.gather(1, indices[:, None])[:, 0].float())

    def _exponents(self, scale: float) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield the arguments of the softmax, float32, for some rows at a time."""
        largest = self._residence.sent(self._largest, self._logits.device)
        step = max(1, _CELLS // self._logits.shape[1])
        for start in range(0, len(self._logits), step):
            rows = slice(start, start + step)
            values = self._logits[rows].to(torch.float32, copy=True).sub_(largest[rows, None])
            yield rows, values.mul_(max(scale, _FLATTEST)).clamp_(min=LOWEST)

    def __repr__(self) -> str:
        return f"<TorchSlotLogits {list(self.shape)}, {self._logits.dtype} on {self._logits.device}>"


@final
class _TorchClasses:
    """See ``ClassLogits``; only results are copied to the host.

    Args:
        residence: makes the transfers.
        logits: ``[rows, size]``.
        classes: the partition of the tokens.
        scale: the scale of the logits.
    """

    def __init__(self, residence: CanvasResidence, logits: torch.Tensor, classes: TokenClasses, scale: float) -> None:
        self._residence, self._logits, self._classes, self._scale = residence, logits, classes, scale
        self._scores: ClassScores | None = None
        self._sums: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None  # of rows, and of classes
        self._maxima: NDArray[np.floating] | None = None

    def log_norms(self) -> NDArray[np.float64]:
        return (self._sums or self._fetched()[0])[0]

    def log_sums(self) -> NDArray[np.float64]:
        return (self._sums or self._fetched()[0])[1]

    def maxima(self) -> NDArray[np.floating]:
        if self._maxima is None:
            self._maxima = self._fetched(with_maxima=True)[1]
        return self._maxima

    @torch.inference_mode()
    def mean_logs(self) -> NDArray[np.float64]:
        if not len(self._logits):
            return np.zeros((0, self._classes.count))
        self._scores = self._pass(moments=True)
        if self._scores.mean_logs is None:
            raise RuntimeError("the moments were not computed")
        return self._residence.copied(self._scores.mean_logs).astype(np.float64)

    @torch.inference_mode()
    def best(self, rows: NDArray[np.int64], classes: NDArray[np.int32], /) -> NDArray[np.int32]:
        if not len(rows):
            return np.zeros(0, dtype=np.int32)
        row, of = self._places(rows, classes)
        return self._residence.copied(class_best(self._logits, self._layout, self._known(), row, of))

    @torch.inference_mode()
    def draw(
        self, rows: NDArray[np.int64], classes: NDArray[np.int32], uniform: NDArray[np.float64], /
    ) -> NDArray[np.int32]:
        if not len(rows):
            return np.zeros(0, dtype=np.int32)
        row, of = self._places(rows, classes)
        uniforms = self._residence.sent(uniform, self._logits.device)
        return self._residence.copied(class_draw(self._logits, self._layout, self._known(), row, of, uniforms))

    @property
    def _layout(self) -> ClassLayout:
        return layout_on(self._classes, self._logits.device)

    def _known(self) -> ClassScores:
        if self._scores is None:
            self._scores = self._pass(moments=False)
        return self._scores

    def _pass(self, *, moments: bool) -> ClassScores:
        return class_scores(self._logits, self._layout, scale=self._scale, moments=moments)

    @torch.inference_mode()
    def _fetched(
        self, *, with_maxima: bool = False
    ) -> tuple[tuple[NDArray[np.float64], NDArray[np.float64]], NDArray[np.floating]]:
        """Copy the sums, and the maxima, to the host in one transfer: callers of the maxima also need the sums."""
        if not len(self._logits):
            nothing = np.zeros((0, self._classes.count))
            self._sums = np.zeros(0), nothing
            return self._sums, nothing
        scores = self._known()
        parts = [scores.log_norms[:, None], scores.log_sums, *([scores.maxima] if with_maxima else [])]
        columns = self._residence.copied(torch.cat(parts, 1))
        count = self._classes.count
        self._sums = columns[:, 0].astype(np.float64), columns[:, 1 : 1 + count].astype(np.float64)
        return self._sums, columns[:, 1 + count :]

    def _places(self, rows: NDArray[np.int64], classes: NDArray[np.int32]) -> Sequence[torch.Tensor]:
        return self._residence.sent(np.stack([rows, classes]).astype(np.int32), self._logits.device).unbind()


def layout_on(classes: TokenClasses, device: torch.device) -> ClassLayout:
    """Return the layout of classes on a device, cached with the classes."""
    return classes.layout(device, lambda of, count: ClassLayout.of(of, count, device))


def _largest(residence: CanvasResidence, logits: torch.Tensor) -> NDArray[np.float32]:
    return residence.copied(logits.amax(1).float()) if len(logits) else np.zeros(0, dtype=np.float32)


@final
class LiveLogits:
    """The logits of every slot of one canvas, each from the last pass that ran the slot.

    Args:
        residence: makes the transfers of on-device logits; None keeps the logits on the host.
    """

    def __init__(self, residence: CanvasResidence | None) -> None:
        self._residence = residence
        self._kept: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self._kept is None else len(self._kept)

    @torch.inference_mode()
    def begin(self, logits: torch.Tensor) -> None:
        """Store the logits of all slots, ``[slots, size]``, in place of earlier ones."""
        self._kept = logits.float().cpu().clone() if self._residence is None else logits.clone()

    @torch.inference_mode()
    def write(self, slots: NDArray[np.intp] | slice, logits: torch.Tensor) -> None:
        """Store the logits of some slots, ``[live slots, size]``."""
        every = self._all
        indices = slots if isinstance(slots, slice) else torch.from_numpy(slots).to(every.device)
        every[indices] = logits.to(every.device, every.dtype)

    def host(self) -> Logits:
        """Return all logits, float32 ``[slots, size]``; the caller owns the array."""
        rows: Logits = self._all.to("cpu", torch.float32, copy=True).numpy()
        return rows

    def resident(self, queried: NDArray[np.bool_]) -> TorchSlotLogits:
        """Return the on-device logits of the queried slots.

        Args:
            queried: bool ``[slots]``, the queried slots.
        """
        residence = CanvasResidence() if self._residence is None else self._residence
        (logits,) = slot_logits(residence, picked(residence, self._all[None], queried[None]), queried[None])
        return logits

    def forget(self) -> None:
        """Drop the logits."""
        self._kept = None

    @property
    def _all(self) -> torch.Tensor:
        if self._kept is None:
            raise RuntimeError("no pass has run; begin first")
        return self._kept
