"""The logits of a canvas whose slots do not all run in each pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

import torch

from structgen.models.diffusion.resident_logits import CanvasResidence, picked, slot_logits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from structgen.models.diffusion.resident_logits import TorchSlotLogits
    from structgen.models.protocol import Logits

__all__ = ["LiveLogits"]


@final
class LiveLogits:
    """The logits of every slot of one canvas, each from the last pass that ran it.

    Args:
        residence: what they are asked through where they stay on the device; None where they are kept on the host.
    """

    def __init__(self, residence: CanvasResidence | None) -> None:
        self._residence = residence
        self._kept: torch.Tensor | None = None

    def __len__(self) -> int:
        return 0 if self._kept is None else len(self._kept)

    @torch.inference_mode()
    def begin(self, logits: torch.Tensor) -> None:
        """Keep the logits of all slots, ``[slots, size]``, and drop those that there were."""
        self._kept = logits.float().cpu().clone() if self._residence is None else logits.clone()

    @torch.inference_mode()
    def write(self, slots: NDArray[np.intp] | slice, logits: torch.Tensor) -> None:
        """Keep the logits of some slots, ``[live slots, size]``."""
        kept = self._all
        places = slots if isinstance(slots, slice) else torch.from_numpy(slots).to(kept.device)
        kept[places] = logits.to(kept.device, kept.dtype)

    def host(self) -> Logits:
        """Return all of them, float32 ``[slots, size]``; the caller owns the array."""
        rows: Logits = self._all.to("cpu", torch.float32, copy=True).numpy()
        return rows

    def resident(self, asked: NDArray[np.bool_]) -> TorchSlotLogits:
        """Return those of the slots that are asked about, where they are.

        Args:
            asked: bool ``[slots]``.
        """
        residence = CanvasResidence() if self._residence is None else self._residence
        (found,) = slot_logits(residence, picked(residence, self._all[None], asked[None]), asked[None])
        return found

    def forget(self) -> None:
        """Drop them."""
        self._kept = None

    @property
    def _all(self) -> torch.Tensor:
        if self._kept is None:
            raise RuntimeError("no pass has run; begin first")
        return self._kept
