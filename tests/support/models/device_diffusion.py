"""Diffusion models whose logits stay on the device as tensors, made from models whose logits are arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from structgen.models.diffusion.torch_slot_logits import (
    CanvasResidence,
    LiveLogits,
    TorchSlotLogits,
    picked,
    slot_logits,
)

FREE = -1


class ResidentToy:
    """The given model with denoisers whose logits are tensors.

    Args:
        model: the model.
        dtype: of the tensors.
    """

    def __init__(self, model: Any, *, dtype: torch.dtype = torch.float32) -> None:
        self.model = model
        self.dtype = dtype
        self.residence = CanvasResidence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def start(self, prompt_ids: Any, /) -> ResidentToyDenoiser:
        """See ``DiffusionModel.start``."""
        return ResidentToyDenoiser(self, self.model.start(prompt_ids))


class ResidentToyDenoiser:
    """A ``ResidentCachingDenoiser`` that never returns an array."""

    is_resident = True

    def __init__(self, toy: ResidentToy, denoiser: Any) -> None:
        self.toy = toy
        self.denoiser = denoiser
        self.live = LiveLogits(toy.residence)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.denoiser, name)

    def denoise(self, canvases: Any, /, *, start: int = 0, stop: int | None = None) -> Any:
        """Refuse: this call would copy logits."""
        raise AssertionError("the logits of whole canvases were asked for")

    def denoise_live(self, canvas: Any, live: Any, /) -> Any:
        """Refuse: this call would copy logits."""
        raise AssertionError("the logits of a whole canvas were asked for")

    def denoise_resident(self, canvases: Any, asked: NDArray[np.bool_], /) -> list[TorchSlotLogits]:
        """See ``ResidentDenoiser.denoise_resident``."""
        logits = torch.from_numpy(self.denoiser.denoise(canvases)).to(self.toy.dtype)
        return slot_logits(self.toy.residence, picked(self.toy.residence, logits, asked), asked)

    def denoise_live_resident(self, canvas: Any, live: Any, asked: NDArray[np.bool_], /) -> TorchSlotLogits:
        """See ``ResidentCachingDenoiser.denoise_live_resident``."""
        self.live.begin(torch.from_numpy(self.denoiser.denoise_live(canvas, live)).to(self.toy.dtype))
        return self.live.resident(asked)

    def forget(self) -> None:
        """See ``CachingDenoiser.forget``."""
        self.denoiser.forget()


def resident(logits: NDArray[np.floating], dtype: torch.dtype = torch.float32) -> TorchSlotLogits:
    """Some rows as a tensor."""
    residence = CanvasResidence()
    (found,) = slot_logits(residence, torch.from_numpy(logits).to(dtype), np.ones((1, len(logits)), dtype=np.bool_))
    return found
